"""Arrays of whatever kind as numpy's."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import SchemaError
from ..schema import Attribute
from .cast import Array


def as_numpy(value: Any, name: str) -> Array:
    """A column or a row of any kind as an array; raises `SchemaError`, naming the attribute."""
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
            return np.stack([as_numpy(row, name) for row in value])
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SchemaError(f"attribute {name!r}: not an array: {error}") from error


def _from_torch(value: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.resolve_conj().resolve_neg().numpy())


def stacked(array: Array, name: str) -> Array:
    """Values that came one by one, e.g. a DataFrame's column of arrays."""
    if not array.size:
        return np.zeros(array.shape)
    rows = [as_numpy(value, name) for value in array.flat]
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


def large_integers(value: object, array: Array) -> Array:
    """Python integers on both sides of 2**63, which numpy makes floats of; else `array`."""
    objects = np.asarray(value, object)
    if all(isinstance(v, int) and 0 <= v < 2**64 for v in objects.flat):
        return objects.astype(np.uint64)
    return array


def storable(array: Array, attribute: Attribute) -> None:
    """Raise `SchemaError` where these are no numbers."""
    if array.dtype.kind not in "biufc" and array.dtype != ml_dtypes.bfloat16:
        raise SchemaError(
            f"attribute {attribute.name!r}: values of dtype {array.dtype.name!r} cannot be stored; "
            f"the dataset stores {attribute.dtype}"
        )
