"""Where rows of an attribute lie in memory, and copying them from there.

Large rows are copied by one numpy call a batch, which is given their addresses: an array that
begins at the lowest address and whose items overlap, one at each byte, is indexed by them. That
reaches 0.9 of `np.take` from one array, a loop over rows 0.75. numpy lets go of the GIL for more
than 500 items: while more is fetched, rows are copied in so many pieces that the threads that
fetch are not held up. That takes 3 to 10% longer.

Small rows, whose copying is bound by memory latency, are copied in the order they are stored, part
by part, and then put into the order asked for, while they are still in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ...process import cached_property
from ...schema import Region
from ..order import Rows

Array = npt.NDArray[Any]

LOOP_ROW = 16_384  # bytes from which a loop over rows fills given memory at 0.8 and more of that
_PIECE_NBYTES = 2**18  # smaller rows are copied twice there: in the processor's cache that is free
_HUGE_ROW = 2**20  # bytes from which a loop over rows costs nothing
_FREE_ITEMS = 501  # numpy lets go of the GIL from so many on (NPY_BEGIN_THREADS_THRESHOLDED)
_LEAST_PIECE = 4096  # bytes of a row's piece; smaller ones take longer to copy


@dataclass(frozen=True)
class Parts:
    """Where rows of one attribute lie in memory, or what else a region has by row.

    Part i holds the dataset's rows from `firsts[i]` on, contiguous, as an array of void items
    of one row each. Parts ascend, in their last rows too; there is at least one.
    """

    region: Region
    firsts: Rows
    arrays: Sequence[Array]
    frees_gil: bool = False  # other threads are to run while large rows are copied

    @cached_property
    def _spanned(self) -> tuple[int, int, Rows]:
        return span_of(self.arrays)

    @cached_property
    def span(self) -> tuple[int, int]:
        """Address and size, bytes, of all memory from the lowest part to the highest."""
        return self._spanned[:2]

    @cached_property
    def _memory(self) -> Array | None:
        """All memory from the lowest part to the highest, an item of a row's size at each byte.

        None where a loop over rows costs nothing, or numpy cannot express it.
        """
        nbytes = self.region.item_nbytes
        _, span_nbytes = self.span
        if nbytes >= _HUGE_ROW or (span_nbytes - nbytes + 1) * nbytes >= 2**62:
            return None
        return self._items(nbytes)

    def _items(self, nbytes: int) -> Array:
        """The same memory with items of any size."""
        address, span_nbytes = self.span
        return np.asarray(_Memory(address, span_nbytes - nbytes + 1, nbytes))

    @cached_property
    def octets(self) -> Array:
        """The same memory, uint8, shape (span's bytes,)."""
        return self._items(1).view(np.uint8)

    @cached_property
    def _shifts(self) -> Rows:
        """By part, the place in that memory of the dataset's row 0, if the part reached there."""
        return self._spanned[2] - self.firsts * self.region.item_nbytes

    @cached_property
    def _stops(self) -> Rows:
        return self.firsts + np.array([len(array) for array in self.arrays], np.int64)

    def _parts_of(self, rows: Rows) -> Rows:
        of_row: Rows = np.searchsorted(self.firsts, rows, "right") - 1
        if (rows < self.firsts[0]).any() or (rows >= self._stops[of_row]).any():
            raise self._not_here(rows)
        return of_row

    def _not_here(self, rows: Rows) -> AssertionError:
        """Addresses are not checked by numpy, so a mistake of ours must end here."""
        return AssertionError(f"rows of {self.region.name!r} are not here: {rows}")

    def places(self, rows: Rows) -> Rows:
        """Offsets of rows from `span`'s address, bytes, in the shape of `rows`."""
        places: Rows = rows * self.region.item_nbytes
        places += self._shifts[self._parts_of(rows)]
        return places

    def take(self, rows: Rows, places: Rows) -> Array:
        """The rows, shape (len(rows), *shape), whose `places` are given too."""
        if self._memory is not None:
            pieces = _pieces(self.region.item_nbytes, len(rows)) if self.frees_gil else 1
            if pieces == 1:
                return _typed(self._memory[places], self.region)
            nbytes = self.region.item_nbytes // pieces
            starts = (places[:, None] + np.arange(pieces) * nbytes).reshape(-1)
            copied = self._items(nbytes)[starts]
            return _typed(copied.view(self.arrays[0].dtype), self.region)
        out = np.empty(len(rows) * self.region.item_nbytes, np.uint8)
        self._copy_each(rows, out)
        return _typed(out.view(self.arrays[0].dtype), self.region)

    def take_into(self, rows: Rows, places: Rows, out: Array) -> None:
        """The same into `out`, a contiguous array of just that size."""
        nbytes = self.region.item_nbytes
        out = out.reshape(-1).view(np.uint8)
        if self._memory is None:
            self._copy_each(rows, out)
        elif nbytes < LOOP_ROW:
            items = out.view(self._memory.dtype)
            count = max(1, _PIECE_NBYTES // nbytes)
            for start in range(0, len(rows), count):
                some = slice(start, start + count)
                items[some] = self._memory[places[some]]
        else:
            source, target = self.octets.data, out.data
            starts = range(0, len(target), nbytes)
            for start, place in zip(starts, places.tolist(), strict=True):
                target[start : start + nbytes] = source[place : place + nbytes]

    def _copy_each(self, rows: Rows, out: Array) -> None:
        parts = self._parts_of(rows)
        within = rows - self.firsts[parts]
        each = out.reshape(len(rows), self.region.item_nbytes)
        for i, (part, row) in enumerate(zip(parts.tolist(), within.tolist(), strict=True)):
            each[i] = self.arrays[part][row : row + 1].view(np.uint8)

    def take_sorted(self, order: Sorted) -> Array:
        """Rows in the order that `order` was made of."""
        out = np.empty(len(order.rows), self.arrays[0].dtype)
        self.copy_sorted(order.rows, out, is_run=order.is_run)
        return _typed(out if order.back is None else out.take(order.back), self.region)

    def copy_sorted(self, rows: Rows, out: Array, *, is_run: bool = False) -> None:
        """Copy rows that ascend, at least one, to `out`; `is_run`: they have no gaps."""
        cuts = np.searchsorted(rows, self.firsts)
        cuts[0] = 0
        stops = np.append(cuts[1:], len(rows))
        if rows[0] < self.firsts[0]:
            raise self._not_here(rows)
        for i in np.flatnonzero(stops > cuts).tolist():
            some = slice(int(cuts[i]), int(stops[i]))
            within = rows[some] - self.firsts[i]
            if within[-1] >= len(self.arrays[i]):
                raise self._not_here(rows)
            if is_run:
                out[some] = self.arrays[i][within[0] : within[-1] + 1]
            else:
                self.arrays[i].take(within, out=out[some], mode="clip")


@lru_cache(maxsize=256)
def _pieces(row_nbytes: int, rows: int) -> int:
    """Equal pieces of a row in which `rows` of them are copied: few, but enough to free the GIL.

    1 where that cannot be.
    """
    fewest = -(-_FREE_ITEMS // max(1, rows))
    most = row_nbytes // _LEAST_PIECE
    return next((n for n in range(fewest, most + 1) if row_nbytes % n == 0), 1)


class _Memory:
    """What `np.asarray` makes an array over a stretch of memory of; it is only read."""

    def __init__(self, address: int, count: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),  # torch warns of read-only arrays
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{nbytes}",
            "version": 3,
        }


def span_of(arrays: Sequence[Array]) -> tuple[int, int, Rows]:
    """Address and size, bytes, of all memory from the lowest array to the highest.

    And the place of each array there, 0 for one without bytes, which lies anywhere.
    """
    sizes = np.array([array.nbytes for array in arrays], np.int64)
    addresses = np.array([array.__array_interface__["data"][0] for array in arrays], np.int64)
    filled = sizes > 0
    if not filled.any():
        return 0, 0, np.zeros_like(sizes)
    first = int(addresses[filled].min())
    nbytes = int((addresses + sizes)[filled].max()) - first
    return first, nbytes, np.where(filled, addresses - first, 0)


def stretch(address: int, nbytes: int) -> Array:
    """Memory as it lies, uint8, shape (nbytes,); whose it is must live as long."""
    return np.asarray(_Memory(address, nbytes, 1)).view(np.uint8)


class Sorted:
    """Rows in ascending order, and the way back."""

    def __init__(self, rows: Rows) -> None:
        self.back: Rows | None = None  # takes sorted rows to the order asked for
        self.rows = rows
        if not (rows[1:] >= rows[:-1]).all():
            # One sort of integers that hold row and position is far faster than an argsort.
            bits = len(rows).bit_length()
            keys = rows << bits
            keys |= np.arange(len(rows))
            keys.sort()
            self.rows = keys >> bits
            keys &= (1 << bits) - 1
            self.back = np.empty(len(rows), np.int64)
            self.back[keys] = np.arange(len(rows))
        self.is_run = bool(self.rows[-1] - self.rows[0] == len(rows) - 1) and bool(
            (np.diff(self.rows) == 1).all()
        )


def _typed(items: Array, region: Region) -> Array:
    return items.view(region.dtype).reshape(len(items), *region.shape)


def void_items(data: memoryview, region: Region) -> Array:
    """Contiguous items of a region as an array of one void item each; of at least one byte."""
    return np.frombuffer(data, f"V{region.item_nbytes}")
