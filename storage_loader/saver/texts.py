"""Bytes, text and JSON, of whatever kind, as a `Ragged` of their bytes."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..keywords import shown
from ..ragged import Ragged
from ..schema import Attribute
from .arrays import as_numpy
from .arrow import arrow_column, arrow_objects, arrow_octets, is_text
from .cast import Array
from .variable import given_ragged, refuse_missing

_log = logging.getLogger(__name__)


def as_octets(value: Any, attribute: Attribute) -> Ragged:
    """All rows of a column of bytes, text or JSON, as uint8.

    `value`: a list or tuple, one value a row; numpy's bytes, strings and objects (numpy itself
    drops NULs at the end of what is no object); a tensor of strings; strings and binaries of
    pyarrow; a pandas column of any of these; for bytes and text also a `Ragged` of uint8, or
    `(values, lengths)`. Text may come as bytes, which are checked to be UTF-8. A list's None is
    null in JSON, as elsewhere in Python; any other value that is missing raises `SchemaError`.
    """
    if attribute.dtype == "json":
        return _json(_objects(value, attribute), attribute)
    given = given_ragged(value, attribute)
    column = None if given is not None else arrow_column(value)
    if given is not None:
        if given.values.dtype != np.uint8 or given.values.ndim != 1:
            raise SchemaError(
                f"attribute {attribute.name!r}: values of dtype {given.values.dtype.name!r} and "
                f"{given.values.ndim} axes; {attribute.dtype} as one array are uint8 on one axis"
            )
        return _right(given, attribute)
    if column is not None:
        rows = arrow_octets(column, attribute)
        if not is_text(column):
            return _right(rows, attribute)
        if attribute.dtype == "bytes":
            raise _no_bytes(0, attribute)
        return rows
    if not isinstance(value, (list, tuple)):
        value = _array(value, attribute)
        if value.dtype.kind == "S":
            return _right(_of_bytes(value), attribute)
        if value.dtype.kind == "U" and value.dtype.itemsize and attribute.dtype == "str":
            return _of_text(value, attribute)
        value = value.tolist()
    return _of_list(value, attribute)


def _right(rows: Ragged, attribute: Attribute) -> Ragged:
    """The rows themselves, if each is UTF-8 by itself where it has to be text."""
    if attribute.dtype == "str":
        octets = np.ascontiguousarray(rows.values)
        try:
            str(octets.data, "utf-8")
        except UnicodeDecodeError as error:
            row = int(np.searchsorted(rows.offsets, error.start, "right")) - 1
            raise _no_text(row, error.reason, attribute) from None
        full = np.flatnonzero(rows.lengths)
        is_rest = octets[rows.offsets[full]] & 0xC0 == 0x80  # of a character begun before
        if is_rest.any():
            row = int(full[is_rest.argmax()])
            raise _no_text(row, "it begins within a character", attribute)
    return rows


def _array(value: Any, attribute: Attribute) -> Array:
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Series):
        value = value.to_numpy()
    array = as_numpy(value, attribute.name)
    if array.ndim != 1:
        raise SchemaError(
            f"attribute {attribute.name!r}: {shown(value)} has {array.ndim} axes; a batch is a "
            f"list of {attribute.dtype}, one a row"
        )
    return array


def _of_bytes(array: Array) -> Ragged:
    width = array.dtype.itemsize
    lengths = np.strings.str_len(array)
    octets = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), width)
    return Ragged.of_lengths(octets[np.arange(width) < lengths[:, None]], lengths)


def _of_text(array: Array, attribute: Attribute) -> Ragged:
    """From numpy's strings, which hold four bytes a character."""
    lengths = np.strings.str_len(array)
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    points = array.view(np.uint32).reshape(len(array), array.dtype.itemsize // 4)
    characters = Ragged.of_lengths(points[np.arange(points.shape[1]) < lengths[:, None]], lengths)
    points = characters.values
    wrong = (points >= 0xD800) & (points < 0xE000) | (points > sys.maxunicode)
    if wrong.any():
        row = int(np.searchsorted(characters.offsets, wrong.argmax(), "right")) - 1
        raise _no_text(row, "it holds half a character", attribute)
    text = points.astype("<u4", copy=False).tobytes().decode("utf-32-le")
    nbytes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    ends = np.concatenate([[0], np.cumsum(nbytes)])
    return Ragged(np.frombuffer(text.encode(), np.uint8), ends[characters.offsets])


def _of_list(rows: Sequence[Any], attribute: Attribute) -> Ragged:
    kinds = set(map(type, rows))
    if kinds == {str} and attribute.dtype == "str":
        with contextlib.suppress(UnicodeEncodeError):  # the row is looked for below
            return _packed(list(map(str.encode, rows)))
    if kinds == {bytes}:
        return _right(_packed(rows), attribute)
    return _right(_packed([_octets(row, i, attribute) for i, row in enumerate(rows)]), attribute)


def _packed(parts: Sequence[bytes]) -> Ragged:
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Ragged.of_lengths(np.frombuffer(b"".join(parts), np.uint8), lengths)


def _octets(row: Any, index: int, attribute: Attribute) -> bytes:
    refuse_missing(row, index, attribute)
    if isinstance(row, str):
        if attribute.dtype == "bytes":
            raise _no_bytes(index, attribute)
        try:
            return row.encode()
        except UnicodeEncodeError:
            raise _no_text(index, "it holds half a character", attribute) from None
    if isinstance(row, (bytes, bytearray, memoryview)):
        return bytes(row)
    if attribute.dtype == "bytes" and hasattr(row, "dtype"):  # an encoded image, as OpenCV gives it
        array = as_numpy(row, attribute.name)
        if array.dtype == np.uint8 and array.ndim == 1:
            return array.tobytes()
    raise SchemaError(
        f"attribute {attribute.name!r}: row {index} is {shown(row)} ({type(row).__name__}), the "
        f"dataset stores {attribute.dtype}"
    )


def _no_bytes(row: int, attribute: Attribute) -> SchemaError:
    return SchemaError(
        f"attribute {attribute.name!r}: row {row} is text, the dataset stores bytes; encode it, or "
        "make the attribute 'str'"
    )


def _no_text(row: int, why: str, attribute: Attribute) -> SchemaError:
    return SchemaError(f"attribute {attribute.name!r}: row {row} is not UTF-8: {why}")


def _objects(value: Any, attribute: Attribute) -> Sequence[Any]:
    """The rows as objects of Python."""
    if isinstance(value, (list, tuple)):
        return value
    column = arrow_column(value)
    if column is not None:
        return arrow_objects(column, attribute)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.Series):
        value = value.to_numpy()
        for row in np.flatnonzero(pandas.isna(value))[:1].tolist():
            refuse_missing(None, row, attribute)
    array = as_numpy(value, attribute.name)
    if not array.ndim:
        raise SchemaError(
            f"attribute {attribute.name!r}: {shown(value)} is one value; a batch is a list of "
            "them, one a row"
        )
    rows: Sequence[Any] = array.tolist()
    return rows


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _json(rows: Sequence[Any], attribute: Attribute) -> Ragged:
    texts: list[bytes] = []
    _warn_of_text(rows, attribute)
    try:
        texts.extend(_encode(row).encode() for row in rows)  # those before an error are there
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            f"attribute {attribute.name!r}: row {len(texts)} cannot be stored as JSON: {error}"
            f"{_remedy(str(error))}"
        ) from error
    return _packed(texts)


def _remedy(problem: str) -> str:
    """The end of an error message for what Python's encoder does not take."""
    if "type bytes " in problem or "type bytearray " in problem:
        return "; decode bytes to text, or make them an attribute of 'bytes'"
    if " is not JSON serializable" in problem and problem.startswith("Object of type "):
        return "; give Python's own values: of numpy's and torch's .item() or .tolist()"
    return ""


def _warn_of_text(rows: Sequence[Any], attribute: Attribute) -> None:
    """Once for an attribute: JSON that is text already is stored as one string."""
    if attribute.name in _warned or not rows or not all(map(_is_json_text, rows)):
        return
    _warned.add(attribute.name)
    _log.warning(
        "attribute %r: each row is text that holds JSON, and is stored as a JSON string; to store "
        "what it says, give json.loads(text); for text as it is, make the attribute 'str'",
        attribute.name,
    )


_warned: set[str] = set()  # attributes, in this process


def _is_json_text(row: object) -> bool:
    """Whether it is the text of a JSON object or array."""
    if not isinstance(row, str) or row.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(row)
    except (ValueError, RecursionError):
        return False
    return True
