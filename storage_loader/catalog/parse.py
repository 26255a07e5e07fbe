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
from ..layout import (
    ALIGNMENT,
    MAX_BLOCKS,
    MAX_OBJECT_NBYTES,
    MAX_ROWS,
    WORD_NBYTES,
    misfits,
    num_place_words,
)
from ..schema import Schema
from .objects import StoredObjects, layout_of

# A part of 200 characters is a file's name everywhere, that of a cache file too.
_KEY = re.compile(r"objects/[A-Za-z0-9][A-Za-z0-9._-]{0,199}/[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.h5")
_HEX = re.compile(r"[0-9a-f]*")
_HEX_DIGITS = 16
_COLUMNS = ("key", "rows", "nbytes", "checksum", "directory_checksum", "layout")
_VARIABLE = (*_COLUMNS, "directory", "directory_nbytes", "decoded")

Numbers = npt.NDArray[np.int64]


def parse_objects(columns: object, layouts: object, schema: Schema, place: str) -> StoredObjects:
    """A commit's `objects` and `layouts`; raises `FormatError`, naming `place`."""
    has_objects = isinstance(columns, dict) and columns.get("key") != []
    names = _VARIABLE if schema.is_variable and has_objects else _COLUMNS
    if not isinstance(columns, dict) or not set(names) <= set(columns):
        raise FormatError(f"{place}: 'objects' does not hold the columns {', '.join(names)}")
    lengths = {len(parse_list(columns[name], name, place)) for name in names}
    if len(lengths) > 1:
        raise FormatError(f"{place}: the columns of 'objects' differ in length")
    table = _layouts(parse_list(layouts, "layouts", place), schema, place)
    keys = _keys(columns["key"], place)
    checksums, directory_checksums = (
        _checksums(columns[name], keys, place) for name in ("checksum", "directory_checksum")
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
        directory_checksums=directory_checksums,
        directories=_directories(columns, keys, rows, nbytes, schema, place),
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


def _directories(
    columns: dict[str, list[Any]],
    keys: Sequence[str],
    rows: Numbers,
    nbytes: Numbers,
    schema: Schema,
    place: str,
) -> Numbers | None:
    """Shape (3, objects), as in `StoredObjects`; None where rows are of fixed size."""
    if not schema.is_variable:
        return None
    starts, sizes, decoded = (
        _whole(columns.get(name, []), 0, place, lambda i, name=name: f"{name} of {keys[i]}")  # type: ignore[misc]
        for name in _VARIABLE[-3:]
    )
    least = num_place_words(len(schema.regions)) * WORD_NBYTES
    most = least + MAX_BLOCKS * WORD_NBYTES
    wrong = (rows > MAX_ROWS) | (nbytes > MAX_OBJECT_NBYTES)
    wrong |= (starts == 0) | (starts % ALIGNMENT != 0) | (sizes % WORD_NBYTES != 0)
    wrong |= (sizes < least) | (sizes > most) | (starts > nbytes - sizes) | (decoded > nbytes)
    if wrong.any():
        i = int(wrong.argmax())
        raise FormatError(
            f"{place}: {keys[i]}: {rows[i]} rows and a directory of {sizes[i]} bytes from byte "
            f"{starts[i]} on do not fit an object of {nbytes[i]} bytes"
        )
    return np.stack([starts, sizes, decoded])


def _layouts(layouts: list[Any], schema: Schema, place: str) -> Numbers:
    """Shape (layouts, 1 + 2 * regions): as in `StoredObjects`."""
    wanted = {"blocks"} if schema.is_variable else {"blocks", "offsets", "directory"}
    for item in layouts:
        if not isinstance(item, dict) or not wanted <= item.keys():
            raise FormatError(f"{place}: a layout holds {', '.join(sorted(wanted))}")
    blocks = _by_region([item["blocks"] for item in layouts], "blocks", 1, schema, place)
    if schema.is_variable:
        return np.concatenate([np.zeros((len(blocks), 1 + blocks.shape[1]), np.int64), blocks], 1)
    directories = _whole([item["directory"] for item in layouts], 0, place, lambda _: "directory")
    offsets = _by_region([item["offsets"] for item in layouts], "offsets", 0, schema, place)
    return np.concatenate([directories[:, None], offsets, blocks], axis=1)


def _by_region(values: list[Any], what: str, least: int, schema: Schema, place: str) -> Numbers:
    """Shape (values, regions): of each layout the numbers it has by region."""
    names = [region.name for region in schema.regions]
    wanted = set(names)
    for value in values:
        if not isinstance(value, dict) or not wanted <= value.keys():
            raise FormatError(f"{place}: a layout's {what!r} does not name the schema's regions")
    flat = [value[name] for value in values for name in names]
    numbers = _whole(flat, least, place, lambda i: f"{what} of {names[i % len(names)]!r}")
    return numbers.reshape(-1, len(names))


def _forms(forms: Numbers, layouts: Numbers, schema: Schema, place: str) -> Numbers:
    """The forms themselves, as in `StoredObjects`, if their layouts fit."""
    if schema.is_variable:  # their own directories say more
        return forms
    rows, nbytes, index = forms.T
    offsets, blocks = layouts[:, 1 : len(schema) + 1], layouts[:, len(schema) + 1 :]
    figures = {"offsets": offsets, "blocks": blocks, "directory_offsets": layouts[:, 0]}
    wrong = misfits(schema, rows, nbytes, index, **figures)
    try:
        for form in forms[wrong]:
            layout_of(schema, form, layouts)  # raises, and says why
    except FormatError as error:
        raise FormatError(f"{place}: {error}") from error
    return forms
