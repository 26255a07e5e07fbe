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
    if array.dtype == object:
        array = _stacked(array, name)
    if array.dtype.kind not in "biufc" and array.dtype != ml_dtypes.bfloat16:
        raise SchemaError(
            f"attribute {name!r}: values of dtype {array.dtype.name!r} cannot be stored; "
            f"the dataset stores {attribute.dtype}"
        )
    if array.shape[1:] != attribute.shape or array.ndim == 0:
        if array.shape == attribute.shape:
            raise SchemaError(
                f"attribute {name!r}: shape {array.shape} is one row; a batch has a leading "
                f"axis, (rows, {', '.join(map(str, attribute.shape))})"
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
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        if tensor.dtype == torch.bfloat16:
            return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
        return np.asarray(tensor.resolve_conj().resolve_neg().numpy())
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise SchemaError(f"attribute {name!r}: not an array: {error}") from error


def _stacked(array: Array, name: str) -> Array:
    """Rows that came one by one, e.g. a DataFrame's column of arrays."""
    if array.ndim != 1 or not len(array) or not all(isinstance(row, np.ndarray) for row in array):
        example = next((v for v in array.flat if not isinstance(v, (int, float))), None)
        raise SchemaError(
            f"attribute {name!r}: {type(example).__name__} objects cannot be stored; "
            "give numbers of one dtype and shape"
        )
    try:
        return np.stack(list(array))
    except ValueError as error:
        shapes = sorted({row.shape for row in array})
        raise SchemaError(f"attribute {name!r}: rows have different shapes, {shapes}") from error
