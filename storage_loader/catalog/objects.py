"""The objects of commits and versions: columns in memory, a `StoredObject` on access. Pure.

A version may have millions of objects. A Python object for each took 300 bytes and 3 us of opening,
in columns it takes 28 bytes and 1.3 us.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ..codecs import Codec
from ..layout import Column, ObjectLayout, Outline
from ..schema import Schema
from .bounds import Extreme

_RECORD = np.dtype(
    [
        ("stem", "u4"),  # place of the key's first part in the stems
        ("number", "i4"),  # the six digits after it; -1 where the key has none
        ("form", "u4"),  # place of the layout in the forms
        ("checksum", "u8"),
        ("directory_checksum", "u8"),
    ]
)
_DIRECTORY = (("directory", "u8"), ("directory_nbytes", "u4"), ("decoded", "u8"))
_OWN = np.dtype([*_RECORD.descr, *_DIRECTORY])  # where objects say themselves how they lie
OWN_LAYOUT = -1  # instead of the directory's offset, where each object has another
_END = ".h5"
_DIGITS = 6
_KEPT_NBYTES = 64 * 2**20  # of layouts made from forms: 1,600 of three columns and 64 MiB
_COLUMN_NBYTES, _BLOCK_NBYTES = 400, 32  # what a layout takes for each of them


@dataclass(frozen=True)
class StoredObject:
    """One object of a commit."""

    key: str  # relative to the dataset
    checksum: int  # xxh3 of all its bytes
    directory_checksum: int  # xxh3 of its directory, which ranges of it are verified by
    layout: ObjectLayout | Outline  # an outline where its directory is to be read first
    decoded: int  # bytes of its rows
    # By attribute of single numbers, (smallest, largest); only a saver knows them.
    extremes: Mapping[str, tuple[Extreme, Extreme]] = field(default_factory=dict, compare=False)

    @property
    def rows(self) -> int:
        """Rows in the object."""
        return self.layout.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return self.layout.nbytes


class StoredObjects(Sequence[StoredObject]):
    """Stored objects in order. Immutable, picklable; equals a list or tuple of equal objects.

    `layouts` are int64 of shape (layouts, 1 + 2 * regions): the directory's offset, then those of
    the regions, then their block_items. Where each object's own directory says how it lies, -1,
    then the numbers of the regions' codecs, 0 for none, then their block_items. `forms` are
    the layouts with the sizes of objects that have them, int64 of shape (forms, 3): rows, nbytes,
    place in the layouts. Together they are no more than what a commit says, however many objects
    have however many attributes.
    """

    def __init__(
        self,
        schema: Schema,
        stems: tuple[str, ...],
        layouts: npt.NDArray[np.int64],
        forms: npt.NDArray[np.int64],
        records: npt.NDArray[Any],
    ) -> None:
        self._schema = schema
        self._stems = stems
        self._layouts = layouts
        self._forms = forms
        self._records = records
        self._made_layouts: dict[int, ObjectLayout] = {}  # by form
        self._made_nbytes = 0

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        keys: Sequence[str],
        layouts: npt.NDArray[np.int64],
        forms: npt.NDArray[np.int64],
        form: npt.NDArray[np.int64],
        checksums: npt.NDArray[np.uint64],
        directory_checksums: npt.NDArray[np.uint64],
        directories: npt.NDArray[np.int64] | None = None,
    ) -> StoredObjects:
        """From columns of equal length that were checked; `form`: places in `forms`.

        Keys are ASCII and end with `.h5`. `directories`, where objects say how they lie, shape (3,
        objects): the directory's offset and bytes, and the bytes of all rows, decoded.
        """
        stems: dict[str, int] = {}
        records = np.empty(len(keys), _RECORD if directories is None else _OWN)
        parts = [_split(key) for key in keys]
        records["stem"] = [stems.setdefault(stem, len(stems)) for stem, _ in parts]
        records["number"] = [number for _, number in parts]
        records["form"] = form
        records["checksum"] = checksums
        records["directory_checksum"] = directory_checksums
        if directories is not None:
            for (name, _), column in zip(_DIRECTORY, directories, strict=True):
                records[name] = column
        return cls(schema, tuple(stems), layouts, forms, records)

    @classmethod
    def joined(cls, schema: Schema, parts: Sequence[StoredObjects]) -> StoredObjects:
        """The objects of all parts, one after another."""
        stems: dict[str, int] = {}
        layouts: dict[bytes, int] = {}
        forms: dict[bytes, int] = {}
        has_own = any(part._has_own for part in parts)
        records = np.zeros(sum(len(part) for part in parts), _OWN if has_own else _RECORD)
        start = 0
        for part in parts:
            of_part = part._forms.copy()
            of_part[:, 2] = _places(layouts, _rows_of(part._layouts))[of_part[:, 2]]
            out = records[start : start + len(part)]
            for name in part._records.dtype.names or ():
                out[name] = part._records[name]
            if has_own and not part._has_own:
                out["decoded"] = part.decoded
            out["stem"] = _places(stems, part._stems)[out["stem"]]
            out["form"] = _places(forms, _rows_of(of_part))[out["form"]]
            start += len(part)
        table = np.frombuffer(b"".join(layouts), np.int64).reshape(-1, 1 + 2 * len(schema.regions))
        sizes = np.frombuffer(b"".join(forms), np.int64).reshape(-1, 3)
        return cls(schema, tuple(stems), table, sizes, records)

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of each object."""
        rows: npt.NDArray[np.int64] = self._forms[self._records["form"], 0]
        return rows

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """Bytes of each object."""
        nbytes: npt.NDArray[np.int64] = self._forms[self._records["form"], 1]
        return nbytes

    @property
    def decoded(self) -> npt.NDArray[np.int64]:
        """Bytes of the rows of each object."""
        if self._has_own:
            return self._records["decoded"].astype(np.int64)
        return self.rows * self._schema.row_nbytes

    @property
    def codecs(self) -> dict[str, list[Codec]]:
        """By region that some of the objects have compressed: how, each codec once."""
        names = [region.name for region in self._schema.regions]
        own = self._layouts[self._layouts[:, 0] == OWN_LAYOUT]
        numbers = zip(names, own[:, 1 : 1 + len(names)].T, strict=True)
        found = {name: np.unique(some[some != 0]).tolist() for name, some in numbers}
        return {n: [Codec.numbered(one) for one in some] for n, some in found.items() if some}

    @property
    def _has_own(self) -> bool:
        """Whether any object says itself how it lies."""
        return self._records.dtype == _OWN

    def key(self, index: int) -> str:
        """The key of one object, relative to the dataset."""
        record = self._records[index]
        return self._key(int(record["stem"]), int(record["number"]))

    def first_repeated(self) -> str | None:
        """The key of an object that is not there for the first time; None where there is none."""
        # 62 bits: a key is its stem and number, and no two stems are equal.
        keys = self._records["stem"].astype(np.int64) * 2**30 + self._records["number"]
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        return self.key(int(order[again + 1].min())) if len(again) else None

    def _key(self, stem: int, number: int) -> str:
        digits = "" if number < 0 else f"{number:0{_DIGITS}}"
        return f"{self._stems[stem]}{digits}{_END}"

    def _layout(self, form: int) -> ObjectLayout:
        layout = self._made_layouts.get(form)
        if layout is None:
            layout = layout_of(self._schema, self._forms[form], self._layouts)
            nbytes = _COLUMN_NBYTES * len(layout.columns) + _BLOCK_NBYTES * layout.num_checksums
            if self._made_nbytes + nbytes > _KEPT_NBYTES:
                self._made_layouts.clear()
                self._made_nbytes = 0
            self._made_layouts[form] = layout
            self._made_nbytes += nbytes
        return layout

    def _outline(self, form: int, directory: int, nbytes: int) -> Outline:
        rows, object_nbytes, layout = self._forms[form].tolist()
        names = [region.name for region in self._schema.regions]
        _, *figures = self._layouts[layout].tolist()
        numbers = zip(names, figures[: len(names)], strict=True)
        blocks = dict(zip(names, figures[len(names) :], strict=True))
        codecs = {name: Codec.numbered(number) for name, number in numbers if number}
        return Outline(rows, object_nbytes, (directory, directory + nbytes), blocks, codecs)

    def _made(self, record: tuple[int, ...]) -> StoredObject:
        stem, number, form, checksum, directory_checksum, *own = record
        key = self._key(stem, number)
        if own and self._layouts[self._forms[form, 2], 0] == OWN_LAYOUT:
            outline = self._outline(form, *own[:2])
            return StoredObject(key, checksum, directory_checksum, outline, own[2])
        layout = self._layout(form)
        decoded = layout.rows * self._schema.row_nbytes
        return StoredObject(key, checksum, directory_checksum, layout, decoded)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> StoredObject: ...

    @overload
    def __getitem__(self, index: slice) -> StoredObjects: ...

    def __getitem__(self, index: int | slice) -> StoredObject | StoredObjects:
        if isinstance(index, slice):
            records = self._records[index]
            return StoredObjects(self._schema, self._stems, self._layouts, self._forms, records)
        return self._made(self._records[operator.index(index)].item())

    def __iter__(self) -> Iterator[StoredObject]:
        return map(self._made, self._records.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (StoredObjects, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"StoredObjects({len(self)} objects, {len(self._layouts)} layouts)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made_layouts": {}, "_made_nbytes": 0}


def layout_of(
    schema: Schema, form: npt.NDArray[np.int64], layouts: npt.NDArray[np.int64]
) -> ObjectLayout:
    """The layout that a form stands for; raises `FormatError` where it is none."""
    rows, nbytes, layout = form.tolist()
    directory_offset, *places = layouts[layout].tolist()
    regions = schema.regions
    offsets, blocks = places[: len(regions)], places[len(regions) :]
    columns = {
        region.name: Column(offset, rows, region.item_nbytes, block_items)
        for region, offset, block_items in zip(regions, offsets, blocks, strict=True)
    }
    return ObjectLayout(rows, nbytes, columns, directory_offset)


def _split(key: str) -> tuple[str, int]:
    """Stem and number of a key: savers number their objects with six digits or more."""
    stem = key[: -len(_END)]
    digits = stem[-_DIGITS:]
    if len(digits) == _DIGITS and digits.isdecimal():
        return stem[:-_DIGITS], int(digits)
    return stem, -1


def _places(known: dict[Any, int], values: Iterable[Any]) -> npt.NDArray[np.uint32]:
    """The place of each value among the known ones; new ones are added."""
    return np.array([known.setdefault(value, len(known)) for value in values], np.uint32)


def _rows_of(table: npt.NDArray[np.int64]) -> Iterator[bytes]:
    return (row.tobytes() for row in table)
