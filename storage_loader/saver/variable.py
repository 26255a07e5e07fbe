"""Rows of numbers that differ in length, of whatever kind, as a `Ragged`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..keywords import shown
from ..ragged import Ragged
from ..schema import Attribute
from .arrays import as_numpy, large_integers, stacked, storable
from .arrow import arrow_column, arrow_lists
from .cast import Array, cast


def as_ragged(value: Any, attribute: Attribute) -> Ragged:
    """All rows of a column, not cast yet unless they came in several dtypes.

    `value`: a list or tuple of arrays, tensors or lists, one a row; `(values, lengths)`, all rows
    one after another and the items of each; a `Ragged`; an array or tensor of rows of one length;
    an array of objects; a nested tensor of torch; a `RaggedTensor`; lists of pyarrow; a pandas
    column of any of these. A tuple of two arrays or tensors is `(values, lengths)` where the first
    has the items' shape and the second holds integers from 0 up, which sum to the first's length;
    a list never is. Where both would be two rows, too, it is refused. Raises `SchemaError`.
    """
    rows = _whole(value, attribute)
    if rows is None:
        rows = _of_rows(_each(value, attribute), attribute)
    if rows.values.shape[1:] != attribute.item_shape:
        raise SchemaError(
            f"attribute {attribute.name!r}: items have shape {rows.values.shape[1:]}, the dataset "
            f"stores {attribute.item_shape} of each"
        )
    storable(rows.values, attribute)
    return rows


def cast_ragged(rows: Ragged, attribute: Attribute) -> Ragged:
    """The same rows in the stored dtype; raises `CastError`, naming attribute, row and value."""

    def row_of(item: int) -> int:
        return int(np.searchsorted(rows.offsets, item, "right")) - 1

    return Ragged(cast(rows.values, attribute, row_of), rows.offsets)


def given_ragged(value: object, attribute: Attribute) -> Ragged | None:
    """What a `Ragged` or `(values, lengths)` says, checked; None for anything else."""
    if isinstance(value, Ragged):
        return _checked(as_numpy(value.values, attribute.name), value.offsets, attribute)
    if type(value) is not tuple or len(value) != 2:
        return None
    if not all(hasattr(part, "shape") and hasattr(part, "dtype") for part in value):
        return None
    if any(getattr(part, "is_nested", False) for part in value):
        return None
    values, lengths = (as_numpy(part, attribute.name) for part in value)
    if values.ndim != 1 + len(attribute.item_shape):
        return None
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        return None
    if lengths.sum() != len(values):
        raise SchemaError(
            f"attribute {attribute.name!r}: a tuple of two arrays is (values, lengths); these "
            f"lengths sum to {lengths.sum()}, but there are {len(values)} values. Two rows are "
            "given as a list"
        )
    if len(lengths) == 2 and values.ndim == 1 and not attribute.is_text:
        raise SchemaError(
            f"attribute {attribute.name!r}: a tuple of two arrays, of {len(values)} and 2 items, "
            "may be (values, lengths) or two rows; give Ragged.of_lengths(values, lengths), or the "
            "rows as a list"
        )
    return Ragged.of_lengths(values, lengths)


def _checked(values: Array, offsets: Any, attribute: Attribute) -> Ragged:
    """Rows from 0 on, of offsets that somebody gave."""
    places = np.asarray(offsets)
    is_right = bool(places.ndim == 1 and places.dtype.kind in "iu" and len(places) and values.ndim)
    if is_right:
        places = places.astype(np.int64)
        is_inside = places[0] >= 0 and places[-1] <= len(values)
        is_right = bool(is_inside and (np.diff(places) >= 0).all())
    if not is_right:
        raise SchemaError(
            f"attribute {attribute.name!r}: offsets are one more than there are rows, ascending "
            "integers between 0 and the number of values"
        )
    return Ragged(values[places[0] : places[-1]], places - places[0])


def _whole(value: Any, attribute: Attribute) -> Ragged | None:
    """The rows of what is ragged itself; None for rows that come one by one."""
    given = given_ragged(value, attribute)
    if given is not None:
        return given
    column = arrow_column(value)
    if column is not None:
        return arrow_lists(column, attribute)
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if torch is not None and isinstance(value, torch.Tensor) and value.is_nested:
        return _of_nested(value.detach(), attribute)
    if tensorflow is not None and isinstance(value, tensorflow.RaggedTensor):
        if value.ragged_rank != 1:
            raise SchemaError(
                f"attribute {attribute.name!r}: a RaggedTensor of {value.ragged_rank} ragged axes; "
                "one is supported"
            )
        return _checked(value.values.numpy(), value.row_splits.numpy(), attribute)
    return None


def _of_nested(value: Any, attribute: Attribute) -> Ragged:
    torch = sys.modules["torch"]
    is_packed = value.layout == torch.jagged and value.lengths() is None and value._ragged_idx == 1
    if not is_packed:  # strided, transposed, or with gaps between its rows
        return _of_rows(value.unbind(), attribute)
    return _checked(
        as_numpy(value.values(), attribute.name), value.offsets().cpu().numpy(), attribute
    )


def _each(value: Any, attribute: Attribute) -> Sequence[Any] | Array:
    """The rows one by one; or in one array, where all have one length."""
    if isinstance(value, (list, tuple)):
        return value
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Series):
        value = value.to_numpy()
    array = as_numpy(value, attribute.name)
    if array.dtype == object and array.ndim:
        return [*array]
    if array.shape != (0,) and array.ndim != 2 + len(attribute.item_shape):
        axes = ", ".join(["rows", "items", *map(str, attribute.item_shape)])
        raise SchemaError(
            f"attribute {attribute.name!r}: shape {array.shape}; rows that differ in length are a "
            f"list of arrays, and those of one length an array of shape ({axes})"
        )
    return array


def _of_rows(rows: Sequence[Any] | Array, attribute: Attribute) -> Ragged:
    if isinstance(rows, np.ndarray):
        if rows.ndim == 1:  # no rows
            return _none(attribute)
        count, items, *shape = rows.shape
        return Ragged(rows.reshape(count * items, *shape), np.arange(count + 1) * items)
    arrays = (
        rows
        if _are_alike(rows, attribute)
        else [_row(row, i, attribute) for i, row in enumerate(rows)]
    )
    lengths = np.fromiter(map(len, arrays), np.int64, len(arrays))
    full = [(i, array) for i, array in enumerate(arrays) if len(array)]  # others say no dtype
    if not full:
        return Ragged(_none(attribute).values, np.zeros(len(arrays) + 1, np.int64))
    if len({array.dtype for _, array in full}) > 1:  # numpy's common dtype may lose values
        full = [(i, cast(array, attribute, lambda _, i=i: i)) for i, array in full]  # type: ignore[misc]
    return Ragged.of_lengths(np.concatenate([array for _, array in full]), lengths)


def _are_alike(rows: Sequence[Any], attribute: Attribute) -> bool:
    """Whether all are arrays of one dtype and of the items' shape, which need no closer look."""
    if set(map(type, rows)) != {np.ndarray}:
        return False
    [kind, *others] = {(row.dtype, row.ndim, row.shape[1:]) for row in rows}
    return (
        not others
        and kind[0].kind in "biufc"
        and kind[1:]
        == (
            1 + len(attribute.item_shape),
            attribute.item_shape,
        )
    )


def _none(attribute: Attribute) -> Ragged:
    return Ragged(
        np.zeros((0, *attribute.item_shape), attribute.numpy_dtype), np.zeros(1, np.int64)
    )


def _row(row: Any, index: int, attribute: Attribute) -> Array:
    """One row as an array of the items' shape."""
    refuse_missing(row, index, attribute)
    try:
        array = as_numpy(row, attribute.name)
        if array.dtype == object and array.ndim:
            array = stacked(array, attribute.name)
        elif array.dtype == np.float64 and attribute.numpy_dtype.kind in "iu":
            array = array if hasattr(row, "dtype") else large_integers(row, array)
        if array.shape == (0,):
            return np.zeros((0, *attribute.item_shape), attribute.numpy_dtype)
        storable(array, attribute)
    except SchemaError as error:
        what = str(error).removeprefix(f"attribute {attribute.name!r}: ")
        raise SchemaError(f"attribute {attribute.name!r}: row {index}: {what}") from error
    if array.ndim == 0 or array.shape[1:] != attribute.item_shape:
        what = f"has shape {array.shape}" if array.ndim else f"is {shown(row)}"
        axes = ", ".join(["items", *map(str, attribute.item_shape)])
        raise SchemaError(
            f"attribute {attribute.name!r}: row {index} {what}; a batch is a list of rows of "
            f"shape ({axes}{'' if attribute.item_shape else ','})"
        )
    return array


def refuse_missing(row: object, index: int, attribute: Attribute) -> None:
    """Raise `SchemaError` where a row is None, NaN or pandas' NA or NaT."""
    if row is None or (isinstance(row, (float, np.floating)) and row != row):
        is_missing = True
    else:
        pandas = sys.modules.get("pandas")
        is_missing = pandas is not None and (row is pandas.NA or row is pandas.NaT)
    if is_missing:
        raise SchemaError(
            f"attribute {attribute.name!r}: row {index} has no value ({row!s}); fill it, or leave "
            "the row out"
        )
