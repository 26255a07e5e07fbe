"""What a user may hand to a saver, as arrays of the schema: checked before a row is copied.

Rows of no fixed size become a `Ragged`: see variable.py, and text.py for bytes, text and JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..keywords import nearest, shown
from ..ragged import Ragged
from ..schema import Attribute, Schema
from .arrays import as_numpy, large_integers, stacked, storable
from .arrow import arrow_column, arrow_numbers, is_table, table_columns
from .cast import Array, cast
from .texts import as_octets
from .variable import as_ragged, cast_ragged, refuse_missing

Rows = Array | Ragged


def as_arrays(batch: object, schema: Schema) -> tuple[dict[str, Rows], int]:
    """Arrays of shape (rows, *attribute.shape) in the stored dtypes, and the number of rows.

    `Ragged` ones of attributes whose rows have no fixed size. `batch` maps attribute names to
    numpy arrays, tensors of torch, TensorFlow or JAX, or lists; or is a pandas DataFrame, a Table
    or RecordBatch of pyarrow, or a list of rows, each a dict. Raises `SchemaError` or `CastError`.
    """
    columns = _columns(batch, schema)
    arrays = {a.name: _rows(columns[a.name], a) for a in schema}
    first = schema.names[0]
    rows = len(arrays[first])
    for name, array in arrays.items():
        if len(array) != rows:
            raise SchemaError(
                f"attributes {first!r} and {name!r} have {rows} and {len(array)} rows; "
                "a batch has one number of rows"
            )
    # Cast last: shapes and names are cheap to check, and a batch is stored whole or not at all.
    return {a.name: _cast(arrays[a.name], a) for a in schema}, rows


def _rows(value: Any, attribute: Attribute) -> Rows:
    if attribute.is_text:
        return as_octets(value, attribute)
    if attribute.is_variable:
        return as_ragged(value, attribute)
    if (
        type(value) is np.ndarray
        and value.dtype == attribute.numpy_dtype
        and value.shape[1:] == attribute.shape
        and value.ndim
    ):
        return value
    pandas = sys.modules.get("pandas")
    is_column = pandas is not None and isinstance(value, pandas.Series)
    return _array(value.to_numpy() if is_column else value, attribute)


def _cast(rows: Rows, attribute: Attribute) -> Rows:
    if isinstance(rows, Ragged):
        return cast_ragged(rows, attribute)
    return cast(rows, attribute)


def _columns(batch: object, schema: Schema) -> Mapping[str, Any]:
    if not isinstance(batch, Mapping):
        batch = _by_name(batch)
    for name in batch:
        if name not in schema.names:
            raise SchemaError(
                f"the batch holds {name!r}, which is no attribute{nearest(str(name), schema.names)}"
            )
    missing = [name for name in schema.names if name not in batch]
    if missing:
        raise SchemaError(f"the batch lacks attribute {missing[0]!r}")
    return batch


def _by_name(batch: Any) -> Mapping[str, Any]:
    """The columns of a table, or of a list of rows."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(batch, pandas.DataFrame):
        return {name: batch[name] for name in batch.columns}
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], Mapping):
        return _of_rows(batch)
    if is_table(batch):
        return table_columns(batch)
    raise SchemaError(
        "a batch is a dict of attribute name to array, a list of dicts, one a row, or a table "
        f"of pandas or pyarrow, not {type(batch).__name__}"
    )


def _of_rows(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """The columns of rows that are dicts of the same attributes."""
    first = rows[0]
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(f"row {number} of the batch is {type(row).__name__}, not a dict")
        if row.keys() != first.keys():
            lacking, more = first.keys() - row.keys(), row.keys() - first.keys()
            what = f"lacks {shown(min(lacking, key=str))}" if lacking else ""
            what = what or f"holds {shown(min(more, key=str))}"
            raise SchemaError(
                f"row {number} of the batch {what}, row 0 does not; each row is a dict of all "
                "attributes"
            )
    return {name: [row[name] for row in rows] for name in first}


def _array(value: object, attribute: Attribute) -> Array:
    name = attribute.name
    column = arrow_column(value)
    if column is not None:
        value = arrow_numbers(column, attribute)
    try:
        array = as_numpy(value, name)
    except SchemaError:
        _refuse_odd(value, attribute)
        raise
    if array.shape == (0,):
        return np.zeros((0, *attribute.item_shape), attribute.numpy_dtype)  # no rows of any shape
    if array.dtype == object:
        _refuse_odd(array, attribute)
        array = stacked(array, name)
    if (
        array.dtype == np.float64
        and attribute.numpy_dtype.kind in "iu"
        and not hasattr(value, "dtype")
    ):
        array = large_integers(value, array)
    storable(array, attribute)
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


def _refuse_odd(rows: Any, attribute: Attribute) -> None:
    """Raise `SchemaError` for a row of another shape than others, where rows come one by one."""
    if not isinstance(rows, (list, tuple)) and getattr(rows, "ndim", 0) != 1:
        return
    shapes = []
    for number, row in enumerate(rows):
        if not isinstance(row, (float, np.floating)):  # a NaN is a value there
            refuse_missing(row, number, attribute)
        try:
            shapes.append(tuple(np.shape(row)))
        except (ValueError, TypeError, RuntimeError):  # lists that are not equally long
            return
    wrong = [number for number, shape in enumerate(shapes) if shape != attribute.shape]
    if wrong and len(set(shapes)) > 1:
        raise SchemaError(
            f"attribute {attribute.name!r}: row {wrong[0]} has shape {shapes[wrong[0]]}, the "
            f"dataset stores {attribute.shape}"
        )
