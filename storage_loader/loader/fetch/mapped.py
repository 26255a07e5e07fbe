"""Objects whose bytes lie on this machine: a folder's own, or copies in a cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from ...process import cached_property
from ...ranges import Range, coalesce
from ...store import Buffer, mapped_identity
from ..fill.parts import Array, void_rows
from ..order import Rows
from .blocks import every_block
from .cache import Cache
from .cache_file import PAGE, CacheFile, Writer
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
        verified: Blocks | None,
        file: CacheFile | None,
    ) -> None:
        """`verified`, updated in place: None where this reader knows nothing of the object yet.
        `file` is None where the store itself is local.
        """
        super().__init__(objects, index)
        self._file = file
        self._data = objects.get(index) if file is None else file.data
        num_blocks = self._layout.num_checksums
        if verified is not None:
            self.verified = verified
        elif not objects.verify:
            self.verified = np.zeros(num_blocks, bool)
        elif file is None:
            self.verified = verified_blocks(mapped_identity(self._data), num_blocks)
        else:
            self.verified = file.verified
        self._busy = np.zeros(num_blocks, bool)  # blocks that a thread fetches or verifies
        self._changed = threading.Condition()
        self.columns: dict[str, Array] = {}  # by attribute that has bytes, a void item for each row
        for a in objects.schema:
            column = self._layout.columns[a.name]
            if column.nbytes:
                self.columns[a.name] = void_rows(self._data[column.offset : column.end], a)

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return self._stored.nbytes

    @property
    def every_block(self) -> Blocks:
        """The blocks of all attributes that are read."""
        return every_block(self._stored, self._objects.schema)

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

    def are_here(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of the object's rows are here in all attributes, as far as is known."""
        here = self._here()
        found = np.ones(len(rows), bool)
        for attribute in self._objects.schema:
            name = attribute.name
            if name in self._layout.small:
                found &= here[self._layout.all_blocks(name)].all()
            else:
                found &= here[self._layout.blocks_of(name, rows)]
        return found

    def missing_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that must be fetched or read, as far as is known."""
        return self._nbytes(needed & ~self._here())

    def unverified_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that are not verified yet."""
        return self._nbytes(needed & ~self.verified)

    def _nbytes(self, blocks: Blocks) -> int:
        ranges = self._layout.block_ranges[blocks]
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def _here(self) -> Blocks:
        """The blocks that lie on this machine, as far as is known."""
        if self._file is None:
            return np.ones_like(self.verified)
        return self.verified | self._file.present

    def reserve(self, cache: Cache, needed: Blocks, stop: threading.Event) -> bool:
        """Whether the cache takes those of the blocks that must be fetched; see `Cache.reserve`."""
        assert self._file is not None
        layout = self._layout
        ranges = layout.block_ranges[needed & ~self._here()]
        if not self._file.has_table:
            flags = self._stored.nbytes, self._stored.nbytes + len(needed) + PAGE
            ranges = np.concatenate([ranges, [layout.checksums_range, flags]])
        return cache.reserve(pages_nbytes(ranges, PAGE), self._file, stop)

    def row(self, row: int) -> dict[str, Array] | None:
        """One row, copied; None where not all of it is here and verified."""
        arrays: dict[str, Array] = {}
        for attribute in self._objects.schema:
            name, dtype, shape = attribute.name, attribute.numpy_dtype, attribute.shape
            column = self._layout.columns[name]
            if not column.nbytes:
                arrays[name] = np.empty(shape, dtype)
                continue
            if not self.verified[self._layout.first_checksum[name] + row // column.block_rows]:
                return None
            start = column.offset + row * column.row_nbytes
            values = np.frombuffer(self._data[start : start + column.row_nbytes], dtype)
            arrays[name] = values.reshape(shape).copy()
        return arrays

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
                self._layout.block_ranges,
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
        with self._changed:
            self._changed.wait_for(lambda: not (self._busy & needed).any())
            todo = needed & ~self.verified
            self._busy |= todo
        try:
            if todo.any() and not stop.is_set():
                self._have(np.flatnonzero(todo), stop)
                if not stop.is_set():
                    with self._changed:
                        self.verified |= todo
        finally:
            with self._changed:
                self._busy &= ~todo
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
        for start, end in coalesce(self._layout.block_ranges[blocks]).requests:
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
        return b"".join(self._pieces(*self._layout.checksums_range))

    def _views(self, blocks: Rows) -> list[memoryview]:
        return [self._data[start:end] for start, end in self._layout.block_ranges[blocks].tolist()]

    def _keep(self, blocks: Rows) -> None:
        assert self._file is not None
        for first, last in runs(blocks):
            self._file.mark(first, last)

    def _fetch(self, blocks: Rows, stop: threading.Event, *, with_table: bool) -> None:
        assert self._file is not None
        tuning = self._objects.tuning
        ranges = self._layout.block_ranges[blocks]
        if with_table:
            ranges = np.concatenate([ranges, [self._layout.checksums_range]])
        wanted = coalesce(ranges).requests
        requests = coalesce(wanted, gap=spare_gap(wanted, tuning.gap_nbytes)).requests
        short = [r for r in requests if r[1] - r[0] <= tuning.stream_nbytes]
        objects = self._objects.until(stop)
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
