"""Rows read straight from the store into memory: only their blocks, many requests in flight,
nothing kept but each object's directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...ranges import coalesce
from ...store import Buffer
from ..fill.parts import void_rows
from ..fill.ready import Copies
from ..order import Rows
from .blocks import ObjectRows, needed_blocks
from .directory import Directories, Directory
from .objects import Objects
from .transfer import Extents, Holder
from .work import Work

_GAP = 4096  # bytes between two ranges that are not worth another request


class DirectReader:
    """Reads rows of objects. Safe from many threads."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._directories = Directories()

    def works(
        self, groups: Sequence[ObjectRows], copies: Copies, stop: threading.Event, *, most: int
    ) -> list[Work]:
        """What must be done so that `copies` gets the rows, verified; `most` bytes each.

        The works do nothing once `stop` is set; they raise `ChecksumError` or a `StoreError`.
        """
        works = []
        most_requests = self._objects.tuning.work_requests
        reads: list[ReceivedObject] = []
        nbytes, requests = 0, 0
        objects = self._objects.until(stop)
        for part in (part for group in groups for part in self._cut(group, most)):
            read = ReceivedObject(objects, self._directories, part)
            if reads and (
                nbytes + read.nbytes > most or requests + len(read.requests) > most_requests
            ):
                works.append(self._work(reads, copies, stop))
                reads, nbytes, requests = [], 0, 0
            reads.append(read)
            nbytes, requests = nbytes + read.nbytes, requests + len(read.requests)
        if reads:
            works.append(self._work(reads, copies, stop))
        return works

    def _cut(self, group: ObjectRows, most: int) -> Iterator[ObjectRows]:
        """Rows of an object, cut where they would be too much for one piece of work."""
        columns = self._objects.stored(group.index).layout.columns
        column = max((columns[a.name] for a in self._objects.schema), key=lambda c: c.row_nbytes)
        count = max(1, most // max(1, column.block_nbytes))
        steps = np.diff(group.rows // column.block_rows)
        block = np.cumsum(np.append(0, steps > 0))
        request = np.cumsum(np.append(0, steps > 1))
        portion = block // count + request // self._objects.tuning.work_requests
        cuts = (np.flatnonzero(np.diff(portion)) + 1).tolist()
        for start, stop in pairwise([0, *cuts, len(group.rows)]):
            yield group.some(slice(start, stop))

    def _work(self, reads: list[ReceivedObject], copies: Copies, stop: threading.Event) -> Work:
        objects = self._objects.until(stop)

        def run() -> None:
            if stop.is_set():
                return
            received = objects.get_many([(read.index, read.requests) for read in reads])
            for read, buffers in zip(reads, received, strict=True):
                read.receive(buffers)
                read.settle(read.blocks, stop)
                if stop.is_set():
                    return
                read.copy(copies)
                read.forget()

        nbytes = sum(len(read.rows) for read in reads) * objects.schema.row_nbytes
        is_small = sum(read.nbytes for read in reads) <= objects.tuning.stream_nbytes
        return Work(nbytes, run, is_small)


class ReceivedObject(Holder):
    """Blocks of one object in memory, for some of its rows. Planned on construction."""

    def __init__(self, objects: Objects, directories: Directories, group: ObjectRows) -> None:
        super().__init__(objects, group.index)
        self.index, self.rows, self._places = group.index, group.rows, group.places
        self._directories = directories
        self._directory = directories.find(group.index)
        needed = needed_blocks(self._stored, objects.schema, group.rows)
        if self._directory is not None:
            self._checksums = self._directory.checksums
            for name in self._directory.small:
                needed[self._layout.all_blocks(name)] = False
        self.blocks = np.flatnonzero(needed)
        ranges = self._layout.block_ranges[self.blocks]
        if self._directory is None and objects.verify:
            ranges = np.concatenate([ranges, [self._layout.checksums_range]])
        self.requests = coalesce(ranges, gap=_GAP).requests
        self.nbytes = sum(end - start for start, end in self.requests)
        self._extents = Extents([], [])

    def receive(self, buffers: Sequence[memoryview]) -> None:
        """What came of `requests`."""
        self._extents = Extents([start for start, _ in self.requests], buffers)

    def copy(self, copies: Copies) -> None:
        """Copy the rows, which are verified."""
        small = {} if self._directory is None else self._directory.small
        with copies.part(self._places) as part:
            for name, out in part.items():
                if name in small:
                    small[name].take(self.rows, out=out, mode="clip")
                else:
                    column, attribute = self._layout.columns[name], self._objects.schema[name]
                    self._extents.parts(column, attribute).copy_sorted(self.rows, out)

    def forget(self) -> None:
        """Keep no bytes."""
        self._extents = Extents([], [])

    def _fetch(self, blocks: Rows, stop: threading.Event, *, with_table: bool) -> None:
        """All of it: of a request that came damaged in part the rest is not kept either."""
        self.receive(self._objects.get_ranges(self.index, self.requests))

    def _table_bytes(self) -> Buffer | None:
        return self._extents.view(*self._layout.checksums_range)

    def _views(self, blocks: Rows) -> list[memoryview]:
        ranges = self._layout.block_ranges[blocks].tolist()
        return [self._extents.view(start, end) for start, end in ranges]

    def _keep(self, blocks: Rows) -> None:
        if self._directory is not None or len(blocks) < len(self.blocks):
            return
        small = {
            a.name: void_rows(memoryview(b"".join(self._column_views(a.name))), a)
            for a in self._objects.schema
            if a.name in self._layout.small and a.row_nbytes
        }
        nbytes = sum(column.nbytes for column in small.values())
        if self._checksums is not None:
            nbytes += self._checksums.nbytes
        self._directory = Directory(self._checksums, small, nbytes)
        self._directories.keep(self.index, self._directory)

    def _column_views(self, name: str) -> list[memoryview]:
        places = self._layout.all_blocks(name)
        return self._views(np.arange(places.start, places.stop))
