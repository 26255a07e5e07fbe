"""The object columns of a commit as they come from JSON: checked, then arrays. Pure.

Nothing that stands there is trusted. Columns are checked as a whole; where that fails, the first
wrong value is looked for and named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..keywords import shown
from ..layout import misfits
from ..schema import Schema
from .objects import StoredObjects, layout_of

# A part of 200 characters is a file's name everywhere, that of a cache file too.
_KEY = re.compile(r"objects/[A-Za-z0-9][A-Za-z0-9._-]{0,199}/[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.h5")
_HEX = re.compile(r"[0-9a-f]*")
_HEX_DIGITS = 16
_COLUMNS = ("key", "rows", "nbytes", "checksum", "blocks_checksum", "layout")

Numbers = npt.NDArray[np.int64]


def parse_objects(columns: object, layouts: object, schema: Schema, place: str) -> StoredObjects:
    """A commit's `objects` and `layouts`; raises `FormatError`, naming `place`."""
    if not isinstance(columns, dict) or set(columns) != set(_COLUMNS):
        raise FormatError(f"{place}: 'objects' does not hold the columns {', '.join(_COLUMNS)}")
    lengths = {len(parse_list(columns[name], name, place)) for name in _COLUMNS}
    if len(lengths) > 1:
        raise FormatError(f"{place}: the columns of 'objects' differ in length")
    table = _layouts(parse_list(layouts, "layouts", place), schema, place)
    keys = _keys(columns["key"], place)
    checksums, blocks_checksums = (
        _checksums(columns[name], keys, place) for name in ("checksum", "blocks_checksum")
    )
    index = _whole(columns["layout"], 0, place, lambda i: f"layout of {keys[i]}")
    rows = _whole(columns["rows"], 1, place, lambda i: f"rows of {keys[i]}")
    nbytes = _whole(columns["nbytes"], 1, place, lambda i: f"nbytes of {keys[i]}")
    if len(index) and index.max() >= len(table):
        raise FormatError(f"{place}: there is no layout {index.max()}")
    shapes: dict[tuple[int, int, int], int] = {}
    columns_of_shape = zip(rows.tolist(), nbytes.tolist(), index.tolist(), strict=True)
    form = [shapes.setdefault(shape, len(shapes)) for shape in columns_of_shape]
    objects = StoredObjects.of(
        schema,
        keys=keys,
        layouts=table,
        forms=_forms(np.array(list(shapes), np.int64).reshape(-1, 3), table, schema, place),
        form=np.array(form, np.int64),
        checksums=checksums,
        blocks_checksums=blocks_checksums,
    )
    refuse_repeated(objects, place)
    return objects


def refuse_repeated(objects: StoredObjects, place: str) -> None:
    """Raise `FormatError` where an object stands twice: its rows would be doubled."""
    repeated = objects.first_repeated()
    if repeated is not None:
        raise FormatError(f"{place}: {repeated} stands twice")


def parse_list(value: object, name: str, place: str) -> list[Any]:
    """The value itself, if it is a list."""
    if not isinstance(value, list):
        raise FormatError(f"{place}: {name!r} is not a list")
    return value


def _whole(values: list[Any], least: int, place: str, name: Callable[[int], str]) -> Numbers:
    """Whole numbers from `least` up to 2**63 - 1; `name` says what the i-th one is."""
    if set(map(type, values)) <= {int}:  # not bool, which is one
        with suppress(OverflowError):
            numbers = np.array(values, np.int64)
            if not len(numbers) or numbers.min() >= least:
                return numbers
    index, wrong = _first_wrong(values, lambda v: type(v) is int and least <= v < 2**63)
    raise FormatError(
        f"{place}: {name(index)} is {shown(wrong)}, not a whole number from {least} up"
    )


def _keys(values: list[Any], place: str) -> list[str]:
    if set(map(type, values)) <= {str} and all(map(_KEY.fullmatch, values)):
        return values
    _, wrong = _first_wrong(values, lambda v: isinstance(v, str) and _KEY.fullmatch(v) is not None)
    raise FormatError(f"{place}: {shown(wrong)} is no key of an object")


def _checksums(values: list[Any], keys: Sequence[str], place: str) -> npt.NDArray[np.uint64]:
    if set(map(type, values)) <= {str} and set(map(len, values)) <= {_HEX_DIGITS}:
        text = "".join(values)
        if _HEX.fullmatch(text):
            return np.frombuffer(bytes.fromhex(text), ">u8").astype(np.uint64)
    index, wrong = _first_wrong(
        values,
        lambda v: isinstance(v, str) and len(v) == _HEX_DIGITS and _HEX.fullmatch(v) is not None,
    )
    raise FormatError(
        f"{place}: checksum {shown(wrong)} of {keys[index]} is not {_HEX_DIGITS} hex digits"
    )


def _first_wrong(values: list[Any], is_right: Callable[[Any], bool]) -> tuple[int, Any]:
    """The first value that is not right, and its place; there is one."""
    return next((i, v) for i, v in enumerate(values) if not is_right(v))


def _layouts(layouts: list[Any], schema: Schema, place: str) -> Numbers:
    """Shape (layouts, 1 + 2 * attributes): checksums, offsets and block_rows."""
    for item in layouts:
        if not isinstance(item, dict) or item.keys() != {"offsets", "block_rows", "checksums"}:
            raise FormatError(f"{place}: a layout holds offsets, block_rows and checksums")
    checksums = _whole([item["checksums"] for item in layouts], 0, place, lambda _: "checksums")
    return np.concatenate(
        [
            checksums[:, None],
            _by_attribute([item["offsets"] for item in layouts], "offsets", 0, schema, place),
            _by_attribute([item["block_rows"] for item in layouts], "block_rows", 1, schema, place),
        ],
        axis=1,
    )


def _by_attribute(values: list[Any], what: str, least: int, schema: Schema, place: str) -> Numbers:
    """Shape (values, attributes): of each layout the numbers it has by attribute."""
    names = schema.names
    wanted = set(names)
    for value in values:
        if not isinstance(value, dict) or value.keys() != wanted:
            raise FormatError(f"{place}: a layout's {what!r} does not name the schema's attributes")
    flat = [value[name] for value in values for name in names]
    numbers = _whole(flat, least, place, lambda i: f"{what} of {names[i % len(names)]!r}")
    return numbers.reshape(-1, len(names))


def _forms(forms: Numbers, layouts: Numbers, schema: Schema, place: str) -> Numbers:
    """The forms themselves, as in `StoredObjects`, if their layouts fit."""
    rows, nbytes, index = forms.T
    offsets, blocks = layouts[:, 1 : len(schema) + 1], layouts[:, len(schema) + 1 :]
    figures = {"offsets": offsets, "blocks": blocks, "checksums_offsets": layouts[:, 0]}
    wrong = misfits(schema, rows, nbytes, index, **figures)
    try:
        for form in forms[wrong]:
            layout_of(schema, form, layouts)  # raises, and says why
    except FormatError as error:
        raise FormatError(f"{place}: {error}") from error
    return forms
