"""Rows read straight from the store into memory: only their blocks, many requests in flight,
nothing kept but each object's directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...layout import ObjectLayout
from ...process import cached_property
from ...ranges import coalesce
from ...schema import Region
from ...store import Buffer
from ..fill.parts import LOOP_ROW, Array, void_items
from ..fill.ready import Copies, Copy, Span, copier
from ..order import Rows
from .blocks import ObjectRows, needed_blocks
from .directory import Directories, Directory
from .objects import Objects
from .transfer import Extents, Holder
from .work import Work

_SPARE = 1 / 8  # of the bytes of rows: others that were received with them, and may stay, too
_GAP = 4096  # bytes between two ranges that are not worth another request


class DirectReader:
    """Reads rows of objects. Safe from many threads."""

    def __init__(self, objects: Objects, directories: Directories) -> None:
        self._objects = objects
        self._directories = directories

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
        for directory, part in (part for group in groups for part in self._cut(group, most, stop)):
            read = ReceivedObject(objects, self._directories, directory, part, self._regions)
            if reads and (
                nbytes + read.nbytes > most or requests + len(read.requests) > most_requests
            ):
                works.append(self._work(objects, reads, copies, stop))
                reads, nbytes, requests = [], 0, 0
            reads.append(read)
            nbytes, requests = nbytes + read.nbytes, requests + len(read.requests)
        if reads:
            works.append(self._work(objects, reads, copies, stop))
        return works

    def ends(self, group: ObjectRows, stop: threading.Event) -> dict[str, Span]:
        """Where rows of one object lie among the values of their attributes.

        Raises `ChecksumError`, `FormatError` or a `StoreError`; worth nothing once `stop` is set.
        """
        objects = self._objects.until(stop)
        directory = self._directories.get(group.index, stop)
        ends = [region for region in objects.regions if region.role == "ends"]
        read = ReceivedObject(objects, self._directories, directory, group, ends)
        if len(read.blocks):
            read.receive(objects.get_ranges(group.index, read.requests))
            read.settle(read.blocks, stop)
        return {} if stop.is_set() else read.spans(group.rows)

    @cached_property
    def _regions(self) -> list[Region]:
        """What is read of rows: where their values lie is known by then."""
        return [region for region in self._objects.regions if region.role != "ends"]

    def _cut(
        self, group: ObjectRows, most: int, stop: threading.Event
    ) -> Iterator[tuple[Directory | None, ObjectRows]]:
        """Rows of an object, cut where they would be too much for one piece of work."""
        directory = self._directories.get(group.index, stop)
        layout = self._objects.stored(group.index).layout if directory is None else directory.layout
        assert isinstance(layout, ObjectLayout)
        fixed = [layout.columns[r.name] for r in self._regions if r.role == "rows"]
        portion = np.zeros(len(group.rows), np.int64)
        if fixed:
            column = max(fixed, key=lambda c: c.item_nbytes)
            count = max(1, most // max(1, column.block_nbytes))
            steps = np.diff(group.rows // column.block_items)
            block = np.cumsum(np.append(0, steps > 0))
            request = np.cumsum(np.append(0, steps > 1))
            portion = block // count + request // self._objects.tuning.work_requests
        for name, span in group.spans.items():
            nbytes = np.cumsum((span.stops - span.starts) * self._objects.schema[name].item_nbytes)
            gaps = np.append(0, span.starts[1:] - span.stops[:-1] > 0)
            requests = np.cumsum(gaps) // self._objects.tuning.work_requests
            portion = np.maximum(portion, np.maximum(nbytes // max(1, most), requests))
        cuts = (np.flatnonzero(np.diff(portion)) + 1).tolist()
        for start, end in pairwise([0, *cuts, len(group.rows)]):
            yield directory, group.some(slice(start, end))

    def _work(
        self,
        objects: Objects,
        reads: list[ReceivedObject],
        copies: Copies,
        stop: threading.Event,
    ) -> Work:
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

        nbytes = sum(read.result_nbytes for read in reads)
        is_small = sum(read.nbytes for read in reads) <= objects.tuning.stream_nbytes
        return Work(nbytes, run, is_small)


class ReceivedObject(Holder):
    """Blocks of one object in memory, for some of its rows. Planned on construction."""

    def __init__(
        self,
        objects: Objects,
        directories: Directories,
        directory: Directory | None,
        group: ObjectRows,
        regions: Sequence[Region],
    ) -> None:
        """`directory`: the object's, of `directories`. `regions`: what is read of the rows."""
        super().__init__(objects, group.index, directory)
        self.index, self.rows, self._group = group.index, group.rows, group
        self._directories, self._directory, self._regions = directories, directory, regions
        self._small = {} if directory is None else directory.small
        needed = needed_blocks(self.layout, regions, group)
        for name in self._small:
            needed[self.layout.all_blocks(name)] = False
        self.blocks = np.flatnonzero(needed)
        ranges = self.layout.block_ranges[self.blocks]
        if directory is None and objects.verify:
            ranges = np.concatenate([ranges, [self.layout.directory_range]])
        self.requests = coalesce(ranges, gap=_GAP)
        self.nbytes = sum(end - start for start, end in self.requests)
        self._extents = Extents([], [])

    def receive(self, buffers: Sequence[memoryview]) -> None:
        """What came of `requests`."""
        self._extents = Extents([start for start, _ in self.requests], buffers)

    def copy(self, copies: Copies) -> None:
        """Copy the rows, which are verified; large ones stay where they were received."""
        places = self._group.places
        received = {region.name for region in self._regions if self._stays(region)}
        for region in self._regions:
            if region.name in received:
                self._refer(region, copies)
        with copies.part(places, but=received) as part:
            for region in self._regions:
                if region.name in part:
                    self.take(region, self.rows, part[region.name])
        for region in self._regions:
            if region.role == "values":
                span = self._group.spans[region.attribute]
                copies.put(region.attribute, places, span, self.copier(region.name))

    def _stays(self, region: Region) -> bool:
        """Whether to keep what was received costs no more memory than a copy, and saves time."""
        return (
            region.role == "rows"
            and region.item_nbytes >= LOOP_ROW
            and region.name not in self._small
            and self.layout.columns[region.name].coded is None
            and self.nbytes <= (1 + _SPARE) * self.result_nbytes
        )

    def _refer(self, region: Region, copies: Copies) -> None:
        rows, places = self._group.rows, self._group.places
        offset, nbytes = self.layout.columns[region.name].offset, region.item_nbytes
        item = np.dtype(f"V{nbytes}")
        cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(places) != 1)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(rows)]):
            first = offset + int(rows[start]) * nbytes
            data = self._shown(first, first + (stop - start) * nbytes)
            copies.refer(region.name, int(places[start]), np.frombuffer(data, item))

    def take(self, region: Region, rows: Rows, out: Array) -> None:
        if region.name in self._small:
            self._small[region.name].take(rows, out=out, mode="clip")
            return
        decoder = self._decoder(region.name)
        if decoder is not None:
            decoder.take(rows, out)
        else:
            column = self.layout.columns[region.name]
            self._extents.parts(column, region).copy_sorted(rows, out)

    def copier(self, name: str) -> Copy:
        if name in self._small:
            small = self._small[name].view(np.uint8).data
            return copier(lambda start, stop: small[start:stop])
        return super().copier(name)

    def _shown(self, start: int, end: int) -> memoryview:
        return self._extents.view(start, end)

    @property
    def result_nbytes(self) -> int:
        """Bytes of the rows."""
        nbytes = 0
        for region in self._regions:
            if region.role == "values":
                span = self._group.spans[region.attribute]
                nbytes += int((span.stops - span.starts).sum()) * region.item_nbytes
            else:
                nbytes += len(self.rows) * region.item_nbytes
        return nbytes

    def forget(self) -> None:
        """Keep no bytes."""
        self._extents = Extents([], [])

    def _fetch(self, blocks: Rows, stop: threading.Event, *, with_table: bool) -> None:
        """All of it: of a request that came damaged in part the rest is not kept either."""
        self.receive(self._objects.get_ranges(self.index, self.requests))

    def _table_bytes(self) -> Buffer | None:
        return self._extents.view(*self.layout.directory_range)

    def _keep(self, blocks: Rows) -> None:
        if len(blocks) < len(self.blocks):
            return
        small = {
            region.name: self._all_items(region)
            for region in self._regions
            if region.name in self.layout.small
            and region.name not in self._small
            and self.layout.columns[region.name].nbytes
        }
        if self._directory is None:
            self._directory = Directory(self.layout, self._checksums, small)
        elif small:
            self._directory = replace(self._directory, small={**self._small, **small})
        else:
            return
        self._small = self._directory.small
        self._directories.keep(self.index, self._directory)

    def _all_items(self, region: Region) -> Array:
        """Those of a region whose blocks are all here, copied."""
        decoder = self._decoder(region.name)
        if decoder is not None:
            return decoder.all()
        places = self.layout.all_blocks(region.name)
        views = self._views(np.arange(places.start, places.stop))
        return void_items(memoryview(b"".join(views)), region)
