"""Objects whose bytes lie on this machine: a folder's own, or copies in a cache."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..catalog import StoredObject
from ..errors import ChecksumError, FormatError, StoreError
from ..layout import Column
from ..ranges import Range, coalesce
from ..schema import Attribute, Schema
from ..store import Buffer, Store
from .blocks import Checksums
from .cache import CacheFile
from .gather import Array

Blocks = npt.NDArray[np.bool_]

_GAP = 256 * 2**10  # bytes fetched for nothing rather than split a request ...
_SPARE = 8  # ... while they are at most this part of what is needed: ranks share a dataset
_STREAMED = 2**20  # a longer range is written while it is received


class HeldObject:
    """One object, mapped; blocks are verified before they count as here. Thread-safe."""

    def __init__(
        self,
        stored: StoredObject,
        schema: Schema,
        store: Store,
        key: str,
        verified: Blocks,
        file: CacheFile | None,
    ) -> None:
        """`verified` is updated in place; `file` is None where the store itself is local."""
        self._stored = stored
        self._store = store
        self._key = key
        self._verified = verified
        self._file = file
        self._lock = threading.Lock()
        self._checksums: Checksums | None = None
        self._data = store.get(key) if file is None else file.data
        if self._data.nbytes != stored.nbytes:
            raise FormatError(
                f"{self._place} has {self._data.nbytes} bytes, its commit says {stored.nbytes}"
            )
        self.columns: Mapping[str, Array] = {
            a.name: _view(self._data, a, stored.layout.columns[a.name]) for a in schema
        }

    @property
    def _place(self) -> str:
        return f"{self._store.url}/{self._key}"

    def ensure(self, needed: Blocks, stop: threading.Event) -> None:
        """Fetch what is missing of the `needed` blocks, and verify what was not yet.

        Returns early, with less than that, once `stop` is set. Raises `ChecksumError` or a
        `StoreError`.
        """
        with self._lock:
            todo = needed & ~self._verified
            if not todo.any():
                return
            if self._file is None:
                wrong = self._table().wrong(np.flatnonzero(todo).tolist(), self._data)
            else:
                wrong = self._bring(self._file, todo, stop)
            if stop.is_set():
                return
            if wrong:
                raise self._table().error(wrong[0])
            self._verified |= todo

    def _table(self) -> Checksums:
        if self._checksums is None:
            start, end = self._stored.layout.checksums_range
            self._checksums = Checksums(self._stored, self._data[start:end], self._place)
        return self._checksums

    def _has_good_table(self) -> bool:
        try:
            self._table()
        except ChecksumError:  # damaged on this disk: the store has it whole
            return False
        return True

    def _bring(self, file: CacheFile, todo: Blocks, stop: threading.Event) -> list[int]:
        """Complete the cache file by the blocks `todo`; those that came wrong."""
        layout = self._stored.layout
        has_table = file.has_table and self._has_good_table()
        here = todo & file.present if has_table else np.zeros_like(todo)
        if here.any():
            damaged = self._table().wrong(np.flatnonzero(here).tolist(), self._data)
            here[damaged] = False
        missing = np.flatnonzero(todo & ~here)
        if not len(missing):
            return []
        ranges: list[Range] = [(int(a), int(b)) for a, b in layout.block_ranges[missing]]
        if not has_table:
            ranges.append(layout.checksums_range)
        self._fetch(file, ranges, stop)
        if stop.is_set():
            return []
        if not has_table:
            self._table()
            file.mark_table()
        wrong = self._table().wrong(missing.tolist(), self._data)
        if not wrong:
            for first, last in _runs(missing):
                file.mark(first, last)
        return wrong

    def _fetch(self, file: CacheFile, ranges: list[Range], stop: threading.Event) -> None:
        wanted = coalesce(ranges).requests
        requests = coalesce(wanted, gap=spare_gap(wanted)).requests
        short = [r for r in requests if r[1] - r[0] <= _STREAMED]
        for (start, _), data in zip(short, self._store.get_ranges(self._key, short), strict=True):
            _write_wanted(file, start, data, wanted)
        for start, end in (r for r in requests if r[1] - r[0] > _STREAMED):
            place = start
            for piece in self._store.stream(self._key, start, end):
                place = _write_wanted(file, place, piece, wanted)
                if stop.is_set():
                    return
            if place != end:
                raise StoreError(
                    f"{self._place}: {place - start} bytes came for {start} to {end}; "
                    "the object is shorter than its commit says"
                )


def _write_wanted(file: CacheFile, start: int, data: Buffer, wanted: list[Range]) -> int:
    """Write what is wanted of the bytes from `start` on; returns where they end.

    Never a gap between two ranges: verified blocks may lie there, and these bytes are not.
    """
    view = memoryview(data).cast("B")
    end = start + view.nbytes
    for place in range(bisect_right(wanted, start, key=itemgetter(1)), len(wanted)):
        first, last = max(start, wanted[place][0]), min(end, wanted[place][1])
        if first >= last:
            break
        file.write(first, view[first - start : last - start])
    return end


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


def _runs(numbers: npt.NDArray[Any]) -> list[Range]:
    """Ascending numbers as half-open runs."""
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, cuts)]


def _view(data: memoryview, attribute: Attribute, column: Column) -> Array:
    values = np.frombuffer(data[column.offset : column.end], attribute.numpy_dtype)
    return values.reshape(column.rows, *attribute.shape)
