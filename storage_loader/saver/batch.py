"""What a user may hand to a saver, as arrays of the schema: checked before a row is copied."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import SchemaError
from ..keywords import nearest
from ..schema import Attribute, Schema
from .cast import Array, cast


def as_arrays(batch: object, schema: Schema) -> tuple[dict[str, Array], int]:
    """Arrays of shape (rows, *attribute.shape) in the stored dtypes, and the number of rows.

    `batch` maps attribute names to numpy arrays, tensors of torch, TensorFlow or JAX, or
    lists; or is a pandas DataFrame. Raises `SchemaError` or `CastError`.
    """
    columns = _columns(batch, schema)
    arrays = {a.name: _array(columns[a.name], a) for a in schema}
    first = schema.names[0]
    rows = len(arrays[first])
    for name, array in arrays.items():
        if len(array) != rows:
            raise SchemaError(
                f"attributes {first!r} and {name!r} have {rows} and {len(array)} rows; "
                "a batch has one number of rows"
            )
    # Cast last: shapes and names are cheap to check, and a batch is stored whole or not at all.
    return {a.name: cast(arrays[a.name], a) for a in schema}, rows


def _columns(batch: object, schema: Schema) -> Mapping[str, Any]:
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(batch, pandas.DataFrame):
        batch = {name: batch[name].to_numpy() for name in batch.columns}
    if not isinstance(batch, Mapping):
        raise SchemaError(
            f"a batch is a dict of attribute name to array, or a DataFrame, not "
            f"{type(batch).__name__}"
        )
    for name in batch:
        if name not in schema.names:
            raise SchemaError(
                f"the batch holds {name!r}, which is no attribute{nearest(str(name), schema.names)}"
            )
    missing = [name for name in schema.names if name not in batch]
    if missing:
        raise SchemaError(f"the batch lacks attribute {missing[0]!r}")
    return batch


def _array(value: object, attribute: Attribute) -> Array:
    name = attribute.name
    array = _as_numpy(value, name)
    if array.shape == (0,):
        return np.zeros((0, *attribute.shape), attribute.numpy_dtype)  # no rows of any shape
    if array.dtype == object:
        array = _stacked(array, name)
    if (
        array.dtype == np.float64
        and attribute.numpy_dtype.kind in "iu"
        and not hasattr(value, "dtype")
    ):
        array = _large_integers(value, array)
    if array.dtype.kind not in "biufc" and array.dtype != ml_dtypes.bfloat16:
        raise SchemaError(
            f"attribute {name!r}: values of dtype {array.dtype.name!r} cannot be stored; "
            f"the dataset stores {attribute.dtype}"
        )
    if array.shape[1:] != attribute.shape or array.ndim == 0:
        if array.shape == attribute.shape:
            axes = ", ".join(["rows", *map(str, attribute.shape)])
            raise SchemaError(
                f"attribute {name!r}: shape {array.shape} is one row; a batch has a leading "
                f"axis, ({axes}{'' if attribute.shape else ','})"
            )
        raise SchemaError(
            f"attribute {name!r}: rows have shape {array.shape[1:]}, "
            f"the dataset stores {attribute.shape}"
        )
    return array


def _as_numpy(value: Any, name: str) -> Array:
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise SchemaError(f"attribute {name!r}: masked values cannot be stored; fill them")
        return np.asarray(value.data)
    torch = sys.modules.get("torch")
    tensor_type = () if torch is None else torch.Tensor
    try:
        if isinstance(value, tensor_type):
            return _from_torch(value)
        if isinstance(value, (list, tuple)) and any(isinstance(row, tensor_type) for row in value):
            return np.stack([_as_numpy(row, name) for row in value])
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SchemaError(f"attribute {name!r}: not an array: {error}") from error


def _from_torch(value: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.resolve_conj().resolve_neg().numpy())


def _stacked(array: Array, name: str) -> Array:
    """Values that came one by one, e.g. a DataFrame's column of arrays."""
    rows = [_as_numpy(value, name) for value in array.flat]
    for row, value in zip(rows, array.flat, strict=True):
        if row.dtype == object:
            kind = "int beyond 64 bits" if isinstance(value, int) else type(value).__name__
            raise SchemaError(
                f"attribute {name!r}: {kind} objects cannot be stored; give numbers of one dtype "
                "and shape"
            )
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise SchemaError(f"attribute {name!r}: rows have different shapes, {shapes}")
    return np.stack(rows).reshape(*array.shape, *shapes[0])


def _large_integers(value: object, array: Array) -> Array:
    """Python integers on both sides of 2**63, which numpy makes floats of; else `array`."""
    objects = np.asarray(value, object)
    if all(isinstance(v, int) and 0 <= v < 2**64 for v in objects.flat):
        return objects.astype(np.uint64)
    return array
