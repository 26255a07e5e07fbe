"""Columns of pyarrow, and of pandas where they are pyarrow's, without an object for each row."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..keywords import shown
from ..ragged import Offsets, Ragged
from ..schema import Attribute
from .cast import Array

_MISSING = "has no value (null)"


def arrow_column(value: object) -> Any | None:
    """A column as an array of pyarrow, in chunks or whole; None where it is none."""
    pyarrow, pandas = sys.modules.get("pyarrow"), sys.modules.get("pandas")
    if pyarrow is None:
        return None
    if isinstance(value, (pyarrow.Array, pyarrow.ChunkedArray)):
        return value
    if pandas is not None and isinstance(value, pandas.Series):
        dtype = value.dtype
        is_text = isinstance(dtype, pandas.StringDtype) and dtype.storage == "pyarrow"
        if is_text or isinstance(dtype, pandas.ArrowDtype):
            return pyarrow.array(value.array)
    return None


def is_table(value: object) -> bool:
    """Whether it is a table of pyarrow, or a batch of one."""
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(value, (pyarrow.Table, pyarrow.RecordBatch))


def table_columns(table: Any) -> dict[str, Any]:
    """By name, the columns of such a table; raises `SchemaError` for a name that stands twice."""
    names = table.schema.names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SchemaError(f"the batch holds {shown(twice[0])} twice")
    return dict(zip(names, table.columns, strict=True))


def arrow_numbers(column: Any, attribute: Attribute) -> Array:
    """Rows of a fixed shape; raises `SchemaError`, naming the row, for a null or another shape."""
    pyarrow = sys.modules["pyarrow"]
    types, kind = pyarrow.types, column.type
    if isinstance(kind, pyarrow.FixedShapeTensorType):
        _refuse_nulls(column, attribute, int)
        chunks = getattr(column, "chunks", [column])
        tensors = [chunk.to_numpy_ndarray() for chunk in chunks]
        return np.concatenate(tensors) if tensors else np.empty(0)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if is_list and attribute.shape and all(attribute.shape):
        first, *item = attribute.shape
        rows = arrow_lists(column, Attribute(attribute.name, attribute.dtype, (None, *item)))
        wrong = np.flatnonzero(rows.lengths != first)
        if len(wrong):
            raise SchemaError(
                f"attribute {attribute.name!r}: row {wrong[0]} has shape "
                f"{(int(rows.lengths[wrong[0]]), *item)}, the dataset stores {attribute.shape}"
            )
        return rows.values.reshape(len(rows), *attribute.item_shape)
    _refuse_nulls(column, attribute, int)
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers


def arrow_lists(column: Any, attribute: Attribute) -> Ragged:
    """Rows of numbers from lists: `ListArray`, `LargeListArray`, `FixedSizeListArray` or chunks.

    Raises `SchemaError`, naming the row, for a null.
    """
    return _joined(column, attribute, _lists)


def arrow_octets(column: Any, attribute: Attribute) -> Ragged:
    """The bytes of strings or binaries; raises `SchemaError`, naming the row, for a null."""
    return _joined(column, attribute, _octets)


def arrow_objects(column: Any, attribute: Attribute) -> list[Any]:
    """The values as Python's; raises `SchemaError`, naming the row, for a null."""
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise SchemaError(
            f"attribute {attribute.name!r}: row {row} {_MISSING}; fill it, or leave the row out"
        )
    rows: list[Any] = column.to_pylist()
    return rows


def is_text(column: Any) -> bool:
    """Whether its values are text, which pyarrow knows to be UTF-8, and no bytes."""
    types = sys.modules["pyarrow"].types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _joined(
    column: Any, attribute: Attribute, read: Callable[[Any, Attribute, int], Ragged]
) -> Ragged:
    chunks = getattr(column, "chunks", None)
    if chunks is None:
        return read(column, attribute, 0)
    if not chunks:
        chunks = [sys.modules["pyarrow"].array([], column.type)]
    parts, first = [], 0
    for chunk in chunks:
        parts.append(read(chunk, attribute, first))
        first += len(chunk)
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged.of_lengths(np.concatenate([part.values for part in parts]), lengths)


def _lists(array: Any, attribute: Attribute, first: int) -> Ragged:
    values, offsets = _opened(array, attribute, lambda row: first + row)
    in_item = 1

    def row_of(place: int) -> int:
        return first + int(np.searchsorted(offsets, place // in_item, "right")) - 1

    for axis in attribute.item_shape:
        values, ends = _opened(values, attribute, row_of, "holds a null")
        wrong = np.flatnonzero(np.diff(ends) != axis)
        if len(wrong):
            raise SchemaError(
                f"attribute {attribute.name!r}: row {row_of(int(wrong[0]))} holds a list of "
                f"{np.diff(ends)[wrong[0]]}, the dataset stores items of shape "
                f"{attribute.item_shape}"
            )
        in_item *= axis
    _refuse_nulls(values, attribute, row_of, "holds a null")
    numbers = values.to_numpy(zero_copy_only=False)
    return Ragged(numbers.reshape(offsets[-1], *attribute.item_shape), offsets)


def _opened(
    array: Any, attribute: Attribute, row_of: Callable[[int], int], what: str = _MISSING
) -> tuple[Any, Offsets]:
    """What the lists of an array hold, one after another, and where each begins, from 0 on."""
    types = sys.modules["pyarrow"].types
    array = getattr(array, "storage", array)  # of an extension, such as a tensor's
    _refuse_nulls(array, attribute, row_of, what)
    if types.is_fixed_size_list(array.type):
        return array.flatten(), np.arange(len(array) + 1) * array.type.list_size
    if not (types.is_list(array.type) or types.is_large_list(array.type)):
        raise SchemaError(
            f"attribute {attribute.name!r}: pyarrow's {array.type} where lists are needed; rows "
            f"have shape {attribute.shape}"
        )
    offsets = array.offsets.to_numpy().astype(np.int64)
    return array.values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]


def _octets(array: Any, attribute: Attribute, first: int) -> Ragged:
    pyarrow = sys.modules["pyarrow"]
    _refuse_nulls(array, attribute, lambda row: first + row)
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
        _refuse_nulls(array, attribute, lambda row: first + row)
    try:
        array = array.cast(pyarrow.large_binary())
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        raise SchemaError(
            f"attribute {attribute.name!r}: pyarrow's {array.type} where strings or binaries are "
            "needed"
        ) from None
    _, places, data = array.buffers()
    if not len(array):
        return Ragged(np.empty(0, np.uint8), np.zeros(1, np.int64))
    offsets = np.frombuffer(places, np.int64)[array.offset : array.offset + len(array) + 1]
    octets = np.frombuffer(data or b"", np.uint8)
    return Ragged(octets[offsets[0] : offsets[-1]], offsets - offsets[0])


def _refuse_nulls(
    array: Any, attribute: Attribute, row_of: Callable[[int], int], what: str = _MISSING
) -> None:
    if array.null_count:
        place = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        raise SchemaError(
            f"attribute {attribute.name!r}: row {row_of(place)} {what}; fill it, or leave the row "
            "out"
        )
