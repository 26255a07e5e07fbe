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

from ..codecs import Codec
from ..errors import FormatError
from ..keywords import shown
from ..layout import (
    ALIGNMENT,
    CODED_BLOCK_WORDS,
    MAX_BLOCKS,
    MAX_OBJECT_NBYTES,
    MAX_ROWS,
    WORD_NBYTES,
    misfits,
    num_place_words,
)
from ..schema import Schema
from .objects import OWN_LAYOUT, StoredObjects, layout_of

# A part of 200 characters is a file's name everywhere, that of a cache file too.
_KEY = re.compile(r"objects/[A-Za-z0-9][A-Za-z0-9._-]{0,199}/[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.h5")
_HEX = re.compile(r"[0-9a-f]*")
_HEX_DIGITS = 16
_COLUMNS = ("key", "rows", "nbytes", "checksum", "directory_checksum", "layout")
_OWN = ("directory", "directory_nbytes", "decoded")

Numbers = npt.NDArray[np.int64]


def parse_objects(columns: object, layouts: object, schema: Schema, place: str) -> StoredObjects:
    """A commit's `objects` and `layouts`; raises `FormatError`, naming `place`."""
    table = _layouts(parse_list(layouts, "layouts", place), schema, place)
    has_objects = isinstance(columns, dict) and columns.get("key") != []
    has_own = has_objects and bool((table[:, 0] == OWN_LAYOUT).any())
    names = (*_COLUMNS, *_OWN) if has_own else _COLUMNS
    if not isinstance(columns, dict) or not set(names) <= set(columns):
        raise FormatError(f"{place}: 'objects' does not hold the columns {', '.join(names)}")
    lengths = {len(parse_list(columns[name], name, place)) for name in names}
    if len(lengths) > 1:
        raise FormatError(f"{place}: the columns of 'objects' differ in length")
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
    directories = None
    if has_own:
        is_coded = (table[index, 1 : 1 + len(schema.regions)] != 0).any(axis=1)
        most = np.where(is_coded, MAX_OBJECT_NBYTES, nbytes)
        directories = _directories(columns, keys, rows, nbytes, most, schema, place)
    objects = StoredObjects.of(
        schema,
        keys=keys,
        layouts=table,
        forms=_forms(np.array(list(shapes), np.int64).reshape(-1, 3), table, schema, place),
        form=np.array(form, np.int64),
        checksums=checksums,
        directory_checksums=directory_checksums,
        directories=directories,
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
    most_decoded: Numbers,
    schema: Schema,
    place: str,
) -> Numbers:
    """Shape (3, objects), as in `StoredObjects`."""
    starts, sizes, decoded = (
        _whole(columns.get(name, []), 0, place, lambda i, name=name: f"{name} of {keys[i]}")  # type: ignore[misc]
        for name in _OWN
    )
    least = num_place_words(len(schema.regions)) * WORD_NBYTES
    most = least + CODED_BLOCK_WORDS * MAX_BLOCKS * WORD_NBYTES
    wrong = (rows > MAX_ROWS) | (nbytes > MAX_OBJECT_NBYTES)
    wrong |= (starts == 0) | (starts % ALIGNMENT != 0) | (sizes % WORD_NBYTES != 0)
    wrong |= (sizes < least) | (sizes > most) | (starts > nbytes - sizes) | (decoded > most_decoded)
    if wrong.any():
        i = int(wrong.argmax())
        raise FormatError(
            f"{place}: {keys[i]}: {rows[i]} rows and a directory of {sizes[i]} bytes from byte "
            f"{starts[i]} on do not fit an object of {nbytes[i]} bytes"
        )
    return np.stack([starts, sizes, decoded])


def _layouts(layouts: list[Any], schema: Schema, place: str) -> Numbers:
    """Shape (layouts, 1 + 2 * regions): as in `StoredObjects`."""
    own = [schema.is_variable or not _says_any_place(item) for item in layouts]
    has_own = bool(own) and all(own)  # all of a commit alike
    wanted = {"blocks"} if has_own else {"blocks", "offsets", "directory"}
    for item in layouts:
        if not isinstance(item, dict) or not wanted <= item.keys():
            raise FormatError(f"{place}: a layout holds {', '.join(sorted(wanted))}")
    blocks = _by_region([item["blocks"] for item in layouts], "blocks", 1, schema, place)
    if has_own:
        codecs = [_codecs(item.get("codecs", {}), schema, place) for item in layouts]
        first = np.full((len(blocks), 1), OWN_LAYOUT, np.int64)
        return np.concatenate([first, np.array(codecs, np.int64), blocks], axis=1)
    directories = _whole([item["directory"] for item in layouts], 0, place, lambda _: "directory")
    offsets = _by_region([item["offsets"] for item in layouts], "offsets", 0, schema, place)
    return np.concatenate([directories[:, None], offsets, blocks], axis=1)


def _says_any_place(layout: object) -> bool:
    return isinstance(layout, dict) and not {"offsets", "directory"}.isdisjoint(layout)


def _codecs(value: object, schema: Schema, place: str) -> list[int]:
    """The number of each region's codec, 0 for none."""
    if not isinstance(value, dict):
        raise FormatError(f"{place}: a layout's 'codecs' are an object, not {shown(value)}")
    unknown = value.keys() - {region.name for region in schema.regions}
    if unknown:
        raise FormatError(f"{place}: a layout's 'codecs' name {shown(sorted(unknown)[0])}")
    try:
        codecs = {name: Codec.from_json(codec) for name, codec in value.items()}
    except FormatError as error:
        raise FormatError(f"{place}: {error}") from error
    return [codecs[r.name].number if r.name in codecs else 0 for r in schema.regions]


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
    if not len(forms) or layouts[0, 0] == OWN_LAYOUT:  # their own directories say more
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
