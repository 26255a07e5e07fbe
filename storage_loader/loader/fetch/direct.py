"""Rows read straight from the store into memory: only their blocks, many requests in flight,
nothing kept but each object's small columns and checksums."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...errors import ChecksumError
from ...ranges import Range, coalesce
from ..fill.gather import Copies
from ..fill.parts import Parts, void_rows
from ..order import Rows
from .blocks import ObjectRows
from .directory import Checksums, Directories, Directory
from .objects import Objects
from .work import Work

_GAP = 4096  # bytes between two ranges that are not worth another request
_SMALL = 2**21  # bytes of a piece of work that waits for the network more than it works
_WORK_REQUESTS = 16  # of one object or several that are one piece of work


class DirectReader:
    """Reads rows of objects. Safe from many threads."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.directories = Directories()

    def works(
        self, groups: Sequence[ObjectRows], copies: Copies, stop: threading.Event, *, most: int
    ) -> list[Work]:
        """What must be done so that `copies` gets the rows, verified; `most` bytes each.

        The works do nothing once `stop` is set; they raise `ChecksumError` or a `StoreError`.
        """
        works = []
        reads: list[_ObjectRead] = []
        nbytes, requests = 0, 0
        for part in (part for group in groups for part in self._cut(group, most)):
            read = _ObjectRead(self, part)
            if reads and (nbytes + read.nbytes > most or requests + read.count > _WORK_REQUESTS):
                works.append(self._work(reads, copies, stop))
                reads, nbytes, requests = [], 0, 0
            reads.append(read)
            nbytes, requests = nbytes + read.nbytes, requests + read.count
        if reads:
            works.append(self._work(reads, copies, stop))
        return works

    def _cut(self, group: ObjectRows, most: int) -> Iterator[ObjectRows]:
        """Rows of an object, cut where they would be too much for one piece of work."""
        columns = self.objects.stored(group.index).layout.columns
        column = max((columns[a.name] for a in self.objects.schema), key=lambda c: c.row_nbytes)
        count = max(1, most // max(1, column.block_nbytes))
        steps = np.diff(group.rows // column.block_rows)
        block = np.cumsum(np.append(0, steps > 0))
        request = np.cumsum(np.append(0, steps > 1))
        portion = block // count + request // _WORK_REQUESTS
        cuts = (np.flatnonzero(np.diff(portion)) + 1).tolist()
        for start, stop in pairwise([0, *cuts, len(group.rows)]):
            yield group.some(slice(start, stop))

    def _work(self, reads: list[_ObjectRead], copies: Copies, stop: threading.Event) -> Work:
        def run() -> None:
            if stop.is_set():
                return
            objects = self.objects.until(stop)
            received = objects.get_many([(read.index, read.requests) for read in reads])
            for read, buffers in zip(reads, received, strict=True):
                self._finish(read, buffers, copies, objects)

        nbytes = sum(len(read.rows) for read in reads) * self.objects.schema.row_nbytes
        return Work(nbytes, run, is_small=sum(read.nbytes for read in reads) <= _SMALL)

    def _finish(
        self, read: _ObjectRead, buffers: Sequence[memoryview], copies: Copies, objects: Objects
    ) -> None:
        try:
            read.finish(buffers, copies)
        except ChecksumError:  # damaged on the way, or where it lies: once more
            objects.note_retry(read.index)
            read.finish(objects.get_ranges(read.index, read.requests), copies)


class _ObjectRead:
    """Planned on construction: which ranges of one object are needed."""

    def __init__(self, reader: DirectReader, group: ObjectRows) -> None:
        self._reader = reader
        self._group = group
        self.rows = group.rows
        self._objects = reader.objects
        self._stored = self._objects.stored(group.index)
        self.index = group.index
        layout = self._stored.layout
        self._directory = reader.directories.find(group.index)
        self._blocks: dict[str, Rows] = {}  # by attribute, their places in the checksum table
        for a in self._objects.schema:
            if a.name not in layout.small:
                self._blocks[a.name] = np.unique(layout.blocks_of(a.name, group.rows))
            elif self._directory is None:
                every = layout.all_blocks(a.name)
                self._blocks[a.name] = np.arange(every.start, every.stop)
        stops = np.cumsum([0, *map(len, self._blocks.values())]).tolist()
        self._places = {  # which of the ranges these blocks are
            name: slice(*bounds) for name, bounds in zip(self._blocks, pairwise(stops), strict=True)
        }
        blocks = np.concatenate([np.empty(0, np.int64), *self._blocks.values()])
        ranges = layout.block_ranges[blocks]
        if self._directory is None and self._objects.verify:
            ranges = np.concatenate([ranges, [layout.checksums_range]])
        self._sizes: Rows = ranges[:, 1] - ranges[:, 0]
        coalesced = coalesce(ranges, gap=_GAP)
        self._sources = coalesced.sources
        self.requests: Sequence[Range] = coalesced.requests
        self.nbytes = sum(end - start for start, end in self.requests)

    @property
    def count(self) -> int:
        """Requests."""
        return len(self.requests)

    def finish(self, buffers: Sequence[memoryview], copies: Copies) -> None:
        """Verify what was received, and copy the rows."""
        layout, rows = self._stored.layout, self.rows
        directory = self._directory or self._make_directory(buffers)
        with copies.part(self._group.places) as part:
            for name, out in part.items():
                if name in directory.small:
                    directory.small[name].take(rows, out=out, mode="clip")
                    continue
                self._verify(name, buffers, directory.checksums)
                attribute = self._objects.schema[name]
                blocks, runs = self._runs(name, buffers)
                firsts = (blocks - layout.first_checksum[name]) * layout.columns[name].block_rows
                arrays = [void_rows(data, attribute) for data in runs]
                Parts(attribute, firsts, arrays).copy_sorted(rows, out)

    def _runs(self, name: str, buffers: Sequence[memoryview]) -> tuple[Rows, list[memoryview]]:
        """Runs of an attribute's blocks that came in one request: the first of each, all bytes."""
        blocks, places = self._blocks[name], self._places[name]
        requests, starts = self._sources[places].T
        cuts = np.flatnonzero((np.diff(blocks) > 1) | (np.diff(requests) != 0)) + 1
        firsts = np.append(0, cuts)
        ends = (starts + self._sizes[places])[np.append(cuts, len(blocks)) - 1]
        bounds = zip(requests[firsts].tolist(), starts[firsts].tolist(), ends.tolist(), strict=True)
        return blocks[firsts], [buffers[request][start:end] for request, start, end in bounds]

    def _make_directory(self, buffers: Sequence[memoryview]) -> Directory:
        checksums, nbytes = None, 0
        if self._objects.verify:
            [table] = self._ranges(slice(-1, None), buffers)
            checksums, nbytes = Checksums(self._objects, self.index, table), table.nbytes
        layout = self._stored.layout
        small = {}
        for a in self._objects.schema:
            if a.name in layout.small and a.row_nbytes:
                self._verify(a.name, buffers, checksums)
                data = b"".join(self._ranges(self._places[a.name], buffers))
                small[a.name] = void_rows(memoryview(data), a)
        nbytes += sum(column.nbytes for column in small.values())
        directory = Directory(checksums, small, nbytes)
        self._reader.directories.keep(self._group.index, directory)
        return directory

    def _ranges(self, places: slice, buffers: Sequence[memoryview]) -> list[memoryview]:
        """The bytes of some ranges; the checksum table is the last one."""
        found = zip(self._sources[places].tolist(), self._sizes[places].tolist(), strict=True)
        return [buffers[request][start : start + nbytes] for (request, start), nbytes in found]

    def _verify(
        self, name: str, buffers: Sequence[memoryview], checksums: Checksums | None
    ) -> None:
        if checksums is None:
            return
        wrong = checksums.wrong(self._blocks[name], self._ranges(self._places[name], buffers))
        if wrong:
            raise checksums.error(wrong[0])
