"""Blocks of an object brought from the store: the one way to verify them and to retry damage."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ChecksumError
from ...layout import Column, ObjectLayout
from ...schema import END, Region
from ...store import Buffer
from ..fill.parts import Array, Parts, void_items
from ..fill.ragged import check_ends
from ..fill.ready import Copy, Span, copier
from ..order import Rows
from .coded import CodedItems
from .directory import Checksums, Directory
from .objects import Objects

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Extents:
    """Bytes of an object that are in memory: ascending, disjoint stretches of it."""

    starts: Sequence[int]
    data: Sequence[memoryview]

    def view(self, start: int, end: int) -> memoryview:
        """Bytes that lie in one stretch."""
        i = bisect_right(self.starts, start) - 1
        return self.data[i][start - self.starts[i] : end - self.starts[i]]

    def parts(self, column: Column, region: Region) -> Parts:
        """The whole items of a column that has bytes; numbers are those in the object."""
        firsts, arrays = [], []
        nbytes, offset = column.item_nbytes, column.offset
        for start, data in zip(self.starts, self.data, strict=True):
            first = max(0, -((offset - start) // nbytes))
            stop = min(column.items, (start + len(data) - offset) // nbytes)
            if first < stop:
                firsts.append(first)
                place = offset - start
                items = data[place + first * nbytes : place + stop * nbytes]
                arrays.append(void_items(items, region))
        return Parts(region, np.array(firsts, np.int64), arrays)


class Holder(ABC):
    """What holds bytes of one object: memory, or a file on this machine."""

    def __init__(self, objects: Objects, index: int, directory: Directory | None) -> None:
        """`directory`: what is known already; it must be where the commit says no layout."""
        self._objects = objects
        self._index = index
        self._stored = objects.stored(index)
        layout = self._stored.layout if directory is None else directory.layout
        assert isinstance(layout, ObjectLayout)
        self.layout = layout
        self._checksums = None if directory is None else directory.checksums

    @abstractmethod
    def _fetch(self, blocks: Rows, stop: threading.Event, *, with_table: bool) -> None:
        """Put blocks, by place among the checksums, and the directory here, as they come."""

    @abstractmethod
    def _table_bytes(self) -> Buffer | None:
        """The directory as it lies here, if it does."""

    @abstractmethod
    def _keep(self, blocks: Rows) -> None:
        """Note that these blocks and the table are here and right."""

    @abstractmethod
    def _shown(self, start: int, end: int) -> memoryview:
        """Bytes of the object that are here, as they are stored."""

    @abstractmethod
    def take(self, region: Region, rows: Rows, out: Array) -> None:
        """Copy items, which ascend, of a region whose blocks are here."""

    def _views(self, blocks: Rows) -> list[memoryview]:
        """The bytes of blocks as they lie here."""
        return [self._shown(start, end) for start, end in self.layout.block_ranges[blocks].tolist()]

    def copier(self, name: str) -> Copy:
        """Copies bytes of a region whose blocks are here."""
        decoder = self._decoder(name)
        if decoder is not None:
            return decoder.copy
        offset = self.layout.columns[name].offset
        return copier(lambda start, stop: self._shown(offset + start, offset + stop))

    def spans(self, rows: Rows) -> dict[str, Span]:
        """Where rows lie among the values of their attributes; the ends of theirs are here.

        Raises `FormatError` where that is outside.
        """
        spans = {}
        before = np.maximum(rows - 1, 0)
        for region in self._objects.regions:
            if region.role == "ends":
                ends = np.empty((2, len(rows)), f"V{END.itemsize}")
                self.take(region, before, ends[0])
                self.take(region, rows, ends[1])
                starts, stops = ends.view(END)
                starts = np.where(rows > 0, starts, 0)
                count = self.layout.columns[f"{region.attribute}/values"].items
                check_ends(region.attribute, starts, stops, count)
                spans[region.attribute] = Span(starts, stops)
        return spans

    def _decoder(self, name: str) -> CodedItems | None:
        """What decodes a region whose blocks are here; None where it is not coded."""
        column = self.layout.columns[name]
        if column.coded is None:
            return None
        region = self._objects.region(name)
        return CodedItems(column, region, self._shown, self._objects.url(self._index))

    def bring(self, blocks: Rows, stop: threading.Event) -> None:
        """Have blocks, at least one, from the store. What comes damaged is fetched once more.

        Returns early, with less than that, once `stop` is set. Raises `ChecksumError`, a
        `StoreError` or `NotKeptError`.
        """
        self._fetch(blocks, stop, with_table=not self._has_table())
        self.settle(blocks, stop)

    def settle(self, blocks: Rows, stop: threading.Event) -> None:
        """What `bring` does once the blocks were fetched for the first time."""
        if not stop.is_set() and not self._has_table():
            self._objects.note_retry(self._index)
            self._fetch(_NONE, stop, with_table=True)
        wrong = self._checked(blocks, stop)
        if len(wrong):
            self._objects.note_retry(self._index)
            self._fetch(wrong, stop, with_table=False)
            wrong = self._checked(blocks, stop)
        if len(wrong):
            raise self._table().error(int(wrong[0]))

    def _checked(self, blocks: Rows, stop: threading.Event) -> Rows:
        """Those of the blocks that came wrong; the others are kept."""
        if stop.is_set():  # what came may not be whole
            return _NONE
        wrong = self._wrong(blocks)
        self._keep(np.setdiff1d(blocks, wrong, assume_unique=True) if len(wrong) else blocks)
        return wrong

    def _has_table(self) -> bool:
        """Whether the table is here and right, or not needed."""
        if self._checksums is not None or not self._objects.verify:
            return True
        try:
            return self._table_bytes() is not None and self._table() is not None
        except ChecksumError:
            return False

    def _table(self) -> Checksums:
        """Raises `ChecksumError` where the table itself is damaged."""
        if self._checksums is None:
            table = self._table_bytes()
            assert table is not None
            self._checksums = Checksums(self._objects, self._index, self.layout, table)
        return self._checksums

    def _wrong(self, blocks: Rows) -> Rows:
        """Those of the blocks that are not what they were."""
        if not self._objects.verify or not len(blocks):
            return _NONE
        return self._table().wrong(blocks, self._views(blocks))
