"""Objects whose bytes lie on this machine: a folder's own, or copies in a cache."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ChecksumError
from ...ranges import Range, coalesce
from ...store import Buffer, mapped_identity
from ..fill.parts import Array, void_rows
from ..order import Rows
from .blocks import Checksums
from .cache import Cache
from .cache_file import PAGE, CacheFile, Writer
from .objects import Objects
from .resident import is_resident
from .verified import Blocks, verified_blocks
from .work import Work

_GAP = 256 * 2**10  # bytes fetched for nothing rather than split a request ...
_SPARE = 8  # ... while they are at most this part of what is needed: ranks share a dataset
_STREAMED = 2**20  # a longer range is written while it is received
_LONGEST = 64 * 2**20  # one request: an object of the default size is fetched whole
_WORK_REQUESTS = 32  # short ones that are one piece of work


class HeldObject:
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
        self._objects = objects
        self._index = index
        self._stored = objects.stored(index)
        self._layout = self._stored.layout
        self._file = file
        self._data = objects.get(index) if file is None else file.data
        num_blocks = self._stored.layout.num_checksums
        if verified is not None:
            self.verified = verified
        elif not objects.verify:
            self.verified = np.zeros(num_blocks, bool)
        elif file is None:
            self.verified = verified_blocks(mapped_identity(self._data), num_blocks)
        else:
            self.verified = file.verified
        self._is_resident = is_resident(self._data)
        self._busy = np.zeros(num_blocks, bool)  # blocks that a thread fetches or verifies
        self._changed = threading.Condition()
        self._checksums: Checksums | None = None
        self.columns: dict[str, Array] = {}  # by attribute that has bytes, a void item for each row
        for a in objects.schema:
            column = self._stored.layout.columns[a.name]
            if column.nbytes:
                self.columns[a.name] = void_rows(self._data[column.offset : column.end], a)

    @property
    def is_resident(self) -> bool:
        """Whether all its bytes lie in memory, as far as is known."""
        return self._is_resident

    @property
    def is_whole(self) -> bool:
        """Whether nobody has cut its cache file."""
        return self._file is None or self._file.is_whole

    def has(self, needed: Blocks) -> bool:
        """Whether these blocks are here and verified."""
        return not (needed & ~self.verified).any()

    def missing_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that must be fetched or read, as far as is known."""
        if self._file is None:
            return 0
        here = self.verified | self._file.present
        ranges = self._stored.layout.block_ranges[needed & ~here]
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def unverified_nbytes(self, needed: Blocks) -> int:
        """Bytes of those of the blocks that are not verified yet."""
        ranges = self._stored.layout.block_ranges[needed & ~self.verified]
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    def reserve(self, cache: Cache, needed: Blocks, stop: threading.Event) -> bool:
        """Whether the cache takes those of the blocks that must be fetched; see `Cache.reserve`."""
        assert self._file is not None
        layout = self._stored.layout
        ranges = layout.block_ranges[needed & ~self.verified & ~self._file.present]
        if not self._file.has_table:
            flags = self._stored.nbytes, self._stored.nbytes + len(needed) + PAGE
            ranges = np.concatenate([ranges, [layout.checksums_range, flags]])
        return cache.reserve(_pages_nbytes(ranges), self._file, stop)

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
        here = np.ones_like(todo) if self._file is None else self._file.present
        return [
            Work(
                nbytes,
                partial(self._ensure, some, stop),
                is_small=0 < nbytes < _STREAMED,
                waits=not (is_here and self._is_resident),
            )
            for mask, is_here in ((todo & here, True), (todo & ~here, False))
            for nbytes, some in self._portions(mask, is_here=is_here)
        ]

    def ensure(self, needed: Blocks, stop: threading.Event) -> None:
        """Do all of `works` now."""
        for work in self.works(needed, stop):
            work.run()

    def _portions(self, mask: Blocks, *, is_here: bool) -> Iterator[tuple[int, Blocks]]:
        """Blocks cut into pieces of work, with the bytes of each."""
        places = np.flatnonzero(mask)
        if not len(places):
            return
        ranges = self._stored.layout.block_ranges[places]
        sizes = ranges[:, 1] - ranges[:, 0]
        # Requests lie far from each other; a long one is a piece of work of its own.
        breaks = np.append(True, ranges[1:, 0] - ranges[:-1, 1] > _GAP)
        breaks[1:] |= np.diff(np.cumsum(sizes) // _LONGEST) > 0
        request = np.cumsum(breaks) - 1
        totals = np.bincount(request, weights=sizes)
        works = np.empty(len(totals), np.int64)
        most = _LONGEST if is_here else _STREAMED
        work, nbytes, count = 0, 0, 0
        for i, total in enumerate(totals.tolist()):
            if count and (nbytes + total > most or count == _WORK_REQUESTS):
                work, nbytes, count = work + 1, 0, 0
            works[i] = work
            nbytes, count = nbytes + total, count + 1
        for number in range(work + 1):
            chosen = works[request] == number
            some = np.zeros_like(mask)
            some[places[chosen]] = True
            yield 0 if is_here else int(sizes[chosen].sum()), some

    def _ensure(self, needed: Blocks, stop: threading.Event) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not (self._busy & needed).any())
            todo = needed & ~self.verified
            self._busy |= todo
        try:
            if not todo.any() or stop.is_set():
                return
            if self._file is None:
                places = np.flatnonzero(todo)
                self._read_in(places, stop)
                wrong = self._wrong(places)
            else:
                wrong = self._bring(self._file, todo, stop)
            if stop.is_set():
                return
            if wrong:
                raise self._table().error(wrong[0])
            with self._changed:
                self.verified |= todo
        finally:
            with self._changed:
                self._busy &= ~todo
                self._changed.notify_all()

    def _read_in(self, places: Rows, stop: threading.Event) -> None:
        """Have the disk read long runs of blocks from end to end, before the map is touched."""
        if self._is_resident:
            return
        for start, end in coalesce(self._stored.layout.block_ranges[places]).requests:
            if end - start < _GAP:  # reading takes longer than the map, where memory has the file
                continue
            # From the file's start on, if that is near: the kernel takes it for a long read sooner.
            start = 0 if start < _GAP else start  # noqa: PLW2901
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

    def _table(self) -> Checksums:
        if self._checksums is None:
            start, end = self._stored.layout.checksums_range
            table = b"".join(self._pieces(start, end))
            self._checksums = Checksums(self._objects, self._index, table)
        return self._checksums

    def _wrong(self, places: Rows) -> list[int]:
        """Those of the blocks that are not what they were."""
        if not self._objects.verify:
            return []
        ranges = self._stored.layout.block_ranges[places].tolist()
        return self._table().wrong(places, [self._data[start:end] for start, end in ranges])

    def _can_verify(self, file: CacheFile) -> bool:
        """Whether the table is here, or not needed."""
        return not self._objects.verify or (file.has_table and self._has_good_table())

    def _has_good_table(self) -> bool:
        try:
            self._table()
        except ChecksumError:  # damaged on this disk: the store has it whole
            return False
        return True

    def _bring(self, file: CacheFile, todo: Blocks, stop: threading.Event) -> list[int]:
        """Complete the cache file by the blocks `todo`; those that came wrong."""
        missing = self._missing(file, todo, stop)
        if not missing.any():
            return []
        with file.fetching(_runs(np.flatnonzero(missing)), stop):
            if stop.is_set():
                return []
            places = np.flatnonzero(
                self._missing(file, missing, stop)
            )  # others may have brought some
            wrong = self._brought(file, places, stop)
            if wrong and not stop.is_set():  # damaged on the way: once more
                self._objects.note_retry(self._index)
                wrong = self._brought(file, np.array(wrong), stop)
            return wrong

    def _missing(self, file: CacheFile, todo: Blocks, stop: threading.Event) -> Blocks:
        """Those of the blocks that are not here whole."""
        if not self._can_verify(file):
            return todo
        here = todo & file.present
        if here.any():
            self._read_in(np.flatnonzero(here), stop)
            here[self._wrong(np.flatnonzero(here))] = False
        return todo & ~here

    def _brought(
        self, file: CacheFile, places: npt.NDArray[np.int64], stop: threading.Event
    ) -> list[int]:
        """Fetch blocks into the file, and mark them; those that came wrong."""
        if not len(places):
            return []
        layout = self._stored.layout
        ranges = layout.block_ranges[places]
        can_verify = self._can_verify(file)
        if not can_verify:
            ranges = np.concatenate([ranges, [layout.checksums_range]])
        self._fetch(file, coalesce(ranges).requests, stop)
        if stop.is_set():
            return []
        if not can_verify:
            if not self._has_good_table():  # damaged on the way: once more
                self._fetch(file, [layout.checksums_range], stop)
                if stop.is_set():
                    return []
            self._table()
            file.mark_table()
        wrong = self._wrong(places)
        for first, last in _runs(np.setdiff1d(places, wrong)):
            file.mark(first, last)
        return wrong

    def _fetch(self, file: CacheFile, wanted: list[Range], stop: threading.Event) -> None:
        """Fetch disjoint ascending ranges into the file."""
        requests = coalesce(wanted, gap=spare_gap(wanted)).requests
        short = [r for r in requests if r[1] - r[0] <= _STREAMED]
        objects = self._objects.until(stop)
        with Writer(file) as writer:
            received = objects.get_ranges(self._index, short)
            for (start, _), data in zip(short, received, strict=True):
                _write_wanted(writer, start, data, wanted)
            for start, end in (r for r in requests if r[1] - r[0] > _STREAMED):
                for first, last in _inside(wanted, start, end):
                    file.allocate(first, last)
                place = start
                for piece in objects.stream(self._index, start, end):
                    place = _write_wanted(writer, place, piece, wanted)
                    if stop.is_set():
                        return


def _write_wanted(writer: Writer, start: int, data: Buffer, wanted: list[Range]) -> int:
    """Write what is wanted of the bytes from `start` on; returns where they end.

    Never a gap between two ranges: verified blocks may lie there, and these bytes are not.
    """
    view = memoryview(data).cast("B")
    end = start + view.nbytes
    for first, last in _inside(wanted, start, end):
        writer.write(first, view[first - start : last - start])
    return end


def _inside(wanted: list[Range], start: int, end: int) -> Iterator[Range]:
    """The parts of ascending disjoint ranges that lie between `start` and `end`."""
    for place in range(bisect_right(wanted, start, key=itemgetter(1)), len(wanted)):
        first, last = max(start, wanted[place][0]), min(end, wanted[place][1])
        if first >= last:
            break
        yield first, last


def spare_gap(ranges: Sequence[Range]) -> int:
    """The widest gap to bridge between disjoint `ranges`, so that few requests waste few bytes.

    At most 256 KiB, and all gaps up to it together at most 1/8 of the ranges' bytes. Without
    the second limit, each of two ranks that take turns of 192 KiB would fetch everything.
    """
    starts, ends = np.sort(np.asarray(ranges, np.int64), axis=0).T
    gaps = starts[1:] - ends[:-1]
    widths, counts = np.unique(gaps[gaps <= _GAP], return_counts=True)
    fits = np.cumsum(widths * counts) <= (ends - starts).sum() // _SPARE
    return int(widths[fits].max(initial=0))


def _pages_nbytes(ranges: npt.NDArray[np.int64]) -> int:
    """Bytes of the pages that hold any byte of disjoint ranges."""
    starts, ends = np.sort(ranges, axis=0).T
    first, stop = starts // PAGE, -(-ends // PAGE)
    shared = np.maximum(stop[:-1] - first[1:], 0)
    return int((stop - first).sum() - shared.sum()) * PAGE


def _runs(numbers: npt.NDArray[Any]) -> list[Range]:
    """Ascending numbers as half-open runs."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, cuts)]
