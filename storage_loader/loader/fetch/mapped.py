"""Objects whose bytes lie on this machine: a folder's own, or copies in a cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ...process import cached_property
from ...ranges import Range, coalesce
from ...schema import END, Attribute, Region
from ...store import Buffer, mapped_identity
from ...sync import Condition
from ..fill.parts import Array, void_items
from ..fill.ragged import check_ends, one_value
from ..order import Rows
from .blocks import ObjectRows, every_block
from .cache import Cache
from .cache_file import PAGE, CacheFile, Writer
from .directory import Directory
from .objects import Objects
from .requests import inside, pages_nbytes, portions, runs, spare_gap
from .resident import is_resident
from .transfer import Holder
from .verified import Blocks, verified_blocks
from .work import Work


class MappedObject(Holder):
    """One object, mapped; blocks are verified before they count as here. Thread-safe."""

    def __init__(
        self,
        objects: Objects,
        index: int,
        directory: Directory | None,
        verified: Blocks | None,
        file: CacheFile | None,
    ) -> None:
        """`directory`: see `Holder`. `verified`, updated in place: None where this reader knows
        nothing of the object yet. `file` is None where the store itself is local.
        """
        super().__init__(objects, index, directory)
        self._file = file
        self._directory = directory
        self._data = objects.get(index) if file is None else file.data
        num_blocks = self.layout.num_checksums
        if verified is not None:
            self.verified = verified
        elif not objects.verify:
            self.verified = np.zeros(num_blocks, bool)
        elif file is None:
            self.verified = verified_blocks(mapped_identity(self._data), num_blocks)
        else:
            self.verified = file.verified
        self._busy = np.zeros(num_blocks, bool)  # blocks that a thread fetches or verifies
        self._changed = Condition()
        # By region that has bytes and is not compressed, a void item for each item.
        self.columns: dict[str, Array] = {}
        for region in objects.regions:
            column = self.layout.columns[region.name]
            if column.nbytes and column.coded is None:
                data = self._data[column.offset : column.end]
                self.columns[region.name] = void_items(data, region)

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return self._stored.nbytes

    @property
    def every_block(self) -> Blocks:
        """The blocks of all attributes that are read."""
        return every_block(self.layout, self._objects.regions)

    @cached_property
    def is_resident(self) -> bool:
        """Whether all its bytes lie in memory, as far as is known. 1 ms for 64 MiB."""
        return is_resident(self._data)

    @property
    def is_whole(self) -> bool:
        """Whether nobody has cut its cache file."""
        return self._file is None or self._file.is_whole

    def has(self, needed: Blocks) -> bool:
        """Whether these blocks are here and verified."""
        return not (needed & ~self.verified).any()

    def are_here(self, group: ObjectRows) -> npt.NDArray[np.bool_]:
        """Which of the object's rows are here in all attributes, as far as is known."""
        here = self._here()
        found = np.ones(len(group.rows), bool)
        for region in self._objects.regions:
            name = region.name
            if name in self.layout.small:
                found &= here[self.layout.all_blocks(name)].all()
            elif region.role != "values":
                found &= here[self.layout.blocks_of(name, group.rows)]
            else:
                span = group.spans[region.attribute]
                blocks = np.append(0, np.cumsum(here[self.layout.all_blocks(name)]))
                column = self.layout.columns[name]
                firsts = span.starts // column.block_items
                lasts = np.maximum(-(-span.stops // column.block_items), firsts)
                found &= blocks[lasts] - blocks[firsts] == lasts - firsts
        return found

    @cached_property
    def is_coded(self) -> bool:
        """Whether any of what is read is compressed, so that it cannot be used where it lies."""
        columns = self.layout.columns
        return any(columns[region.name].coded is not None for region in self._objects.regions)

    def take(self, region: Region, rows: Rows, out: Array) -> None:
        decoder = self._decoder(region.name)
        if decoder is not None:
            decoder.take(rows, out)
        else:
            self.columns[region.name].take(rows, out=out, mode="clip")

    def _shown(self, start: int, end: int) -> memoryview:
        return self._data[start:end]

    def missing_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that must be fetched or read, as far as is known."""
        return self._nbytes(needed & ~self._here())

    def unverified_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that are not verified yet."""
        return self._nbytes(needed & ~self.verified)

    def _nbytes(self, blocks: Blocks) -> int:
        ranges = self.layout.block_ranges[blocks]
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def _here(self) -> Blocks:
        """The blocks that lie on this machine, as far as is known."""
        if self._file is None:
            return np.ones_like(self.verified)
        return self.verified | self._file.present

    def reserve(self, cache: Cache, needed: Blocks, stop: threading.Event) -> bool:
        """Whether the cache takes those of the blocks that must be fetched; see `Cache.reserve`."""
        assert self._file is not None
        layout = self.layout
        ranges = layout.block_ranges[needed & ~self._here()]
        if not self._file.has_table:
            flags = self._stored.nbytes, self._stored.nbytes + len(needed) + PAGE
            ranges = np.concatenate([ranges, [layout.directory_range, flags]])
        return cache.reserve(pages_nbytes(ranges, PAGE), self._file, stop)

    def row(self, row: int) -> dict[str, Any] | None:
        """One row, copied; None where not all of it is here and verified."""
        values: dict[str, Any] = {}
        for a in self._objects.schema:
            if a.is_variable:
                items = self._items_of(a, row)
                if items is None:
                    return None
                values[a.name] = one_value(a, items)
                continue
            column = self.layout.columns[a.name]
            if not column.nbytes:
                values[a.name] = np.empty(a.item_shape, a.numpy_dtype)
                continue
            if not self._has(a.name, row, row + 1):
                return None
            items = self._bytes(a.name, row, row + 1)
            values[a.name] = np.frombuffer(items, a.numpy_dtype).reshape(a.item_shape).copy()
        return values

    def _items_of(self, attribute: Attribute, row: int) -> memoryview | None:
        """The bytes of one row's items; None where not all of it is here and verified."""
        ends, values = (region.name for region in attribute.regions)
        first = max(0, row - 1)
        if not self._has(ends, first, row + 1):
            return None
        stops = np.frombuffer(self._bytes(ends, first, row + 1), END).tolist()
        start, stop = (stops[-2] if row else 0), stops[-1]
        column = self.layout.columns[values]
        if not 0 <= start <= stop <= column.items:
            check_ends(attribute.name, np.array([start]), np.array([stop]), column.items)
        if start == stop:
            return memoryview(b"")
        return self._bytes(values, start, stop) if self._has(values, start, stop) else None

    def _bytes(self, name: str, start: int, stop: int) -> memoryview:
        """Items of a region, at least one, whose blocks are here."""
        column = self.layout.columns[name]
        start, stop = start * column.item_nbytes, stop * column.item_nbytes
        decoder = self._decoder(name)
        if decoder is None:
            return self._data[column.offset + start : column.offset + stop]
        out = np.empty(stop - start, np.uint8).data
        decoder.copy(start, stop, out)
        return out

    def _has(self, name: str, start: int, stop: int) -> bool:
        """Whether these items of a region are here and verified; at least one."""
        size, first = self.layout.columns[name].block_items, self.layout.first_checksum[name]
        block, last = start // size, (stop - 1) // size
        if block == last:
            return bool(self.verified[first + block])
        return bool(self.verified[first + block : first + last + 1].all())

    def works(self, needed: Blocks, stop: threading.Event) -> list[Work]:
        """What must be done so that the `needed` blocks are here and verified.

        Works end early, with less than that, once `stop` is set. They raise `ChecksumError`, a
        `StoreError` or `NotKeptError`.
        """
        todo = needed & ~self.verified
        if not todo.any():
            return []
        here, tuning = self._here(), self._objects.tuning
        streamed = tuning.stream_nbytes
        return [
            Work(
                0 if is_here else nbytes,
                partial(self._ensure, some, stop),
                is_small=nbytes < streamed and not is_here,
                waits=not (is_here and self.is_resident),
            )
            for mask, is_here in ((todo & here, True), (todo & ~here, False))
            for nbytes, some in portions(
                self.layout.block_ranges,
                mask,
                most=tuning.request_nbytes if is_here else streamed,
                tuning=tuning,
            )
        ]

    def ensure(self, needed: Blocks, stop: threading.Event) -> None:
        """Do all of `works` now."""
        for work in self.works(needed, stop):
            work.run()

    def _ensure(self, needed: Blocks, stop: threading.Event) -> None:
        todo = np.zeros_like(needed)

        def is_claimed() -> bool | None:
            if (self._busy & needed).any():
                return None
            todo[:] = needed & ~self.verified
            self._busy[todo] = True
            return True

        try:  # from before the claim on: Ctrl-C may come right after it
            self._changed.when(is_claimed)
            if todo.any() and not stop.is_set():
                self._have(np.flatnonzero(todo), stop)
                if not stop.is_set():
                    with self._changed.lock:
                        self.verified |= todo
        finally:
            self._busy[todo] = False  # of its own alone, so without the lock: Ctrl-C ends waits
            with self._changed.lock:
                self._changed.notify_all()

    def _have(self, blocks: Rows, stop: threading.Event) -> None:
        """Verify blocks, and bring to the cache file those that are not there or not right."""
        wrong = self._not_here(blocks, stop)
        if not len(wrong) or stop.is_set():
            return
        if self._file is None:
            raise self._table().error(int(wrong[0]))
        with self._file.fetching(runs(wrong), stop):
            if not stop.is_set():
                wrong = self._not_here(wrong, stop)  # others may have brought some
                if len(wrong):
                    self.bring(wrong, stop)

    def _not_here(self, blocks: Rows, stop: threading.Event) -> Rows:
        """Those of the blocks that are not here whole."""
        if self._file is None:
            here = blocks
        elif self._has_table():
            here = blocks[self._file.present[blocks]]
        else:
            return blocks
        self._read_in(here, stop)
        missing = np.setdiff1d(blocks, here, assume_unique=True)
        return np.union1d(missing, () if stop.is_set() else self._wrong(here)).astype(np.int64)

    def _read_in(self, blocks: Rows, stop: threading.Event) -> None:
        """Have the disk read long runs of blocks from end to end, before the map is touched."""
        if self.is_resident:
            return
        for start, end in coalesce(self.layout.block_ranges[blocks]):
            # From the file's start on, if that is near: the kernel takes it for a long read sooner.
            start = 0 if start < self._objects.tuning.gap_nbytes else start  # noqa: PLW2901
            for _ in self._pieces(start, end):
                if stop.is_set():
                    return

    def _pieces(self, start: int, end: int) -> Iterator[Buffer]:
        """Bytes that lie here, read rather than mapped: a map fetches what lies around, too."""
        if start == end:
            return iter(())
        if self._file is not None:
            return self._file.read(start, end)
        return self._objects.stream(self._index, start, end)

    def _table_bytes(self) -> Buffer | None:
        if self._file is not None and not self._file.has_table:
            return None
        return b"".join(self._pieces(*self.layout.directory_range))

    def _keep(self, blocks: Rows) -> None:
        assert self._file is not None
        for first, last in runs(blocks):
            self._file.mark(first, last)

    def _fetch(self, blocks: Rows, stop: threading.Event, *, with_table: bool) -> None:
        assert self._file is not None
        tuning = self._objects.tuning
        ranges = self.layout.block_ranges[blocks]
        if with_table:
            ranges = np.concatenate([ranges, [self.layout.directory_range]])
        wanted = coalesce(ranges)
        requests = coalesce(wanted, gap=spare_gap(wanted, tuning.gap_nbytes))
        short = [r for r in requests if r[1] - r[0] <= tuning.stream_nbytes]
        objects = self._objects.until(stop)
        if self._directory is not None and not self._file.has_table:
            self._file.write(self.layout.directory_range[0], self._directory.data)
            self._file.mark_table()
        with Writer(self._file) as writer:
            received = objects.get_ranges(self._index, short)
            for (start, _), data in zip(short, received, strict=True):
                _write_wanted(writer, start, data, wanted)
            for start, end in (r for r in requests if r[1] - r[0] > tuning.stream_nbytes):
                for first, last in inside(wanted, start, end):
                    self._file.allocate(first, last)
                place = start
                for piece in objects.stream(self._index, start, end):
                    place = _write_wanted(writer, place, piece, wanted)
                    if stop.is_set():
                        return
        if with_table and not stop.is_set():
            self._file.mark_table()


def _write_wanted(writer: Writer, start: int, data: Buffer, wanted: list[Range]) -> int:
    """Write what is wanted of the bytes from `start` on; returns where they end.

    Never a gap between two ranges: verified blocks may lie there, and these bytes are not.
    """
    view = memoryview(data).cast("B")
    end = start + view.nbytes
    for first, last in inside(wanted, start, end):
        writer.write(first, view[first - start : last - start])
    return end
