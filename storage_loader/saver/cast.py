"""Casts that lose nothing: exact ones and narrower floats. Pure numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import CastError
from ..schema import Attribute

Array = npt.NDArray[Any]
RowOf = Callable[[int], int]

_REAL_PART: dict[str, np.dtype[Any]] = {
    "complex64": np.dtype("float32"),
    "complex128": np.dtype("float64"),
}


def cast(values: Array, attribute: Attribute, row_of: RowOf = int) -> Array:
    """`values` (shape (rows, *attribute.shape)) in the attribute's dtype.

    Integers by value: they must be in range, and exact in a float. Floats may get narrower,
    but no finite value becomes inf. Floats never become integers, complex numbers never
    reals. Raises `CastError` naming attribute, row and value. `row_of`: the row of an item of
    `values`, where rows have no fixed size.
    """
    target = attribute.numpy_dtype
    if values.dtype == target:
        return values
    source, aim = _kind(values.dtype), _kind(target)
    if not values.size:
        return np.zeros(values.shape, target)
    if source > aim:
        _check_no_nan(values, attribute, row_of)
        raise CastError(
            f"attribute {attribute.name!r}: row {row_of(0)} holds {values.flat[0]!s} "
            f"({values.dtype.name}), but the dataset stores {attribute.dtype}; convert it yourself "
            "if that is meant"
        )
    if source == _INTEGER:
        lossy = _outside_range(values, target) if aim == _INTEGER else _inexact(values, target)
        reason = "out of range" if aim == _INTEGER else "not exact"
    else:
        lossy, reason = _overflows(values, target), "would become inf"
    if lossy is not None and lossy.any():
        position = tuple(np.argwhere(lossy)[0])
        raise CastError(
            f"attribute {attribute.name!r}: row {row_of(position[0])} holds {values[position]!s} "
            f"({values.dtype.name}), {reason} in {attribute.dtype}"
        )
    with np.errstate(invalid="ignore"):  # of a signalling NaN, which stays a NaN
        return values.astype(target)


def _check_no_nan(values: Array, attribute: Attribute, row_of: RowOf) -> None:
    """A missing value made floats of integers, as in a DataFrame: it is what is to be mended."""
    missing = np.argwhere(np.isnan(values))
    if len(missing):
        position = tuple(missing[0])
        raise CastError(
            f"attribute {attribute.name!r}: row {row_of(position[0])} holds {values[position]!s} "
            f"({values.dtype.name}), which {attribute.dtype} cannot hold; fill or leave out the "
            "rows without a value, then convert the others"
        )


_INTEGER, _FLOAT, _COMPLEX = range(3)


def _kind(dtype: np.dtype[Any]) -> int:
    if dtype.kind in "biu":
        return _INTEGER
    if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
        return _FLOAT
    if dtype.kind == "c":
        return _COMPLEX
    raise CastError(f"values of dtype {dtype.name!r} cannot be stored; give numbers")


def _outside_range(values: Array, target: np.dtype[Any]) -> Array | None:
    if np.can_cast(values.dtype, target, "safe"):
        return None
    if target == np.bool_:
        return np.asarray((values != 0) & (values != 1))
    limits = np.iinfo(target)
    # Compared within the source's own range: a limit outside it cannot be exceeded.
    own = np.iinfo(values.dtype)
    low, high = max(limits.min, own.min), min(limits.max, own.max)
    return np.asarray((values < low) | (values > high))


def _inexact(values: Array, target: np.dtype[Any]) -> Array | None:
    """Where an integer has more significant bits than the float, or is beyond its range."""
    real = _REAL_PART.get(target.name, target)
    if values.dtype == np.bool_:
        return None
    float_info = ml_dtypes.finfo(real)  # type: ignore[no-untyped-call]
    bits = float_info.nmant + 1
    if np.iinfo(values.dtype).bits <= bits and float(float_info.max) > 2.0**bits:
        return None
    magnitude = values.astype(np.uint64)  # two's complement
    if values.dtype.kind == "i":
        magnitude = np.where(values < 0, np.uint64(0) - magnitude, magnitude)
    lowest_bit = magnitude & (np.uint64(0) - magnitude)
    significant = magnitude // np.maximum(lowest_bit, np.uint64(1))
    inexact = significant >= np.uint64(2**bits)
    if float(float_info.max) < 2.0**64:
        inexact |= magnitude > np.uint64(int(float_info.max))
    return np.asarray(inexact)


def _overflows(values: Array, target: np.dtype[Any]) -> Array | None:
    if np.can_cast(values.dtype, target, "safe"):
        return None
    if values.dtype.kind == "c":  # each part by itself: the other may be inf or NaN
        real = _REAL_PART[target.name]
        lossy = [_overflows(part, real) for part in (values.real, values.imag)]
        return None if lossy[0] is None else np.asarray(lossy[0] | lossy[1])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.isfinite(values) & ~np.isfinite(values.astype(target)))
