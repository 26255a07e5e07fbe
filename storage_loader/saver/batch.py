"""What a user may hand to a saver, as arrays of the schema: checked before a row is copied.

Rows of no fixed size become a `Ragged`: see variable.py, and text.py for bytes, text and JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..keywords import nearest
from ..ragged import Ragged
from ..schema import Attribute, Schema
from .arrays import as_numpy, large_integers, stacked, storable
from .cast import Array, cast
from .texts import as_octets
from .variable import as_ragged, cast_ragged

Rows = Array | Ragged


def as_arrays(batch: object, schema: Schema) -> tuple[dict[str, Rows], int]:
    """Arrays of shape (rows, *attribute.shape) in the stored dtypes, and the number of rows.

    `Ragged` ones of attributes whose rows have no fixed size. `batch` maps attribute names to
    numpy arrays, tensors of torch, TensorFlow or JAX, or lists; or is a pandas DataFrame. Raises
    `SchemaError` or `CastError`.
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
    pandas = sys.modules.get("pandas")
    is_column = pandas is not None and isinstance(value, pandas.Series)
    return _array(value.to_numpy() if is_column else value, attribute)


def _cast(rows: Rows, attribute: Attribute) -> Rows:
    if isinstance(rows, Ragged):
        return cast_ragged(rows, attribute)
    return cast(rows, attribute)


def _columns(batch: object, schema: Schema) -> Mapping[str, Any]:
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(batch, pandas.DataFrame):
        batch = {name: batch[name] for name in batch.columns}
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
    array = as_numpy(value, name)
    if array.shape == (0,):
        return np.zeros((0, *attribute.item_shape), attribute.numpy_dtype)  # no rows of any shape
    if array.dtype == object:
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
