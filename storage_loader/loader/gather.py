"""Copying rows that lie in memory into batches, without a loop over rows.

Rows of an attribute lie in memory as parts: runs of rows, each one array. Large rows are copied
by one numpy call a batch, which is given their addresses: an array that begins at the lowest
address and whose items overlap, one at each byte, is indexed by them. That reaches 0.9 of
`np.take` from one array, a loop over rows 0.75. Small rows, whose copying is bound by memory
latency, are gathered for many batches at once: in the order they are stored, part by part, and
then put into the order asked for, while they are still in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schema import Attribute, Schema
from .order import Rows

Array = npt.NDArray[Any]

_LARGE_ROW = 1024  # bytes from which rows are copied batch by batch, by their addresses
_HUGE_ROW = 2**20  # bytes from which a loop over rows costs nothing
_ROWS_A_PART = 16  # with fewer, a numpy call for each part costs more than it saves
_GROUP_NBYTES = 4 * 2**20  # of small rows gathered at once: they stay in the cache
_GROUP_ROWS = 16_384


@dataclass(frozen=True)
class Parts:
    """Where rows of one attribute lie in memory.

    Part i holds the dataset's rows from `firsts[i]` on, contiguous, as an array of void items
    of one row each. Parts ascend, in their last rows too; there is at least one.
    """

    attribute: Attribute
    firsts: Rows
    arrays: Sequence[Array]

    @cached_property
    def _addresses(self) -> Rows:
        return np.array([a.__array_interface__["data"][0] for a in self.arrays], np.int64)

    @cached_property
    def _lowest(self) -> int:
        return int(self._addresses.min())

    @cached_property
    def _memory(self) -> Array | None:
        """All memory from the lowest part to the highest, an item at each byte.

        None where a loop over rows costs nothing, or numpy cannot express it.
        """
        nbytes = self.attribute.row_nbytes
        ends = [a + p.nbytes for a, p in zip(self._addresses.tolist(), self.arrays, strict=True)]
        count = max(ends) - self._lowest - nbytes + 1
        if nbytes >= _HUGE_ROW or count * nbytes >= 2**62:
            return None
        return np.asarray(_Memory(self._lowest, count, nbytes))

    @cached_property
    def _shifts(self) -> Rows:
        """By part, the place in `_memory` of the dataset's row 0, if the part reached there."""
        return self._addresses - self.firsts * self.attribute.row_nbytes - self._lowest

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
        return AssertionError(f"rows of attribute {self.attribute.name!r} are not here: {rows}")

    def places(self, rows: Rows) -> Rows:
        """Places of rows in `_memory`, in the shape of `rows`."""
        places: Rows = rows * self.attribute.row_nbytes
        places += self._shifts[self._parts_of(rows)]
        return places

    def take(self, rows: Rows, places: Rows) -> Array:
        """The rows, shape (len(rows), *shape), whose `places` are given too."""
        if self._memory is not None:
            return _typed(self._memory[places], self.attribute)
        out = np.empty((len(rows), self.attribute.row_nbytes), np.uint8)
        parts = self._parts_of(rows)
        within = rows - self.firsts[parts]
        for i, (part, row) in enumerate(zip(parts.tolist(), within.tolist(), strict=True)):
            out[i] = self.arrays[part][row : row + 1].view(np.uint8)
        return _typed(out.reshape(-1).view(self.arrays[0].dtype), self.attribute)

    def take_sorted(self, order: _Sorted) -> Array:
        """Rows in the order that `order` was made of."""
        out = np.empty(len(order.rows), self.arrays[0].dtype)
        self.copy_sorted(order.rows, out, is_run=order.is_run)
        return _typed(out if order.back is None else out.take(order.back), self.attribute)

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


class _Memory:
    """What `np.asarray` makes an array over a stretch of memory of."""

    def __init__(self, address: int, count: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{nbytes}",
            "version": 3,
        }


class _Sorted:
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


def _typed(items: Array, attribute: Attribute) -> Array:
    return items.view(attribute.numpy_dtype).reshape(len(items), *attribute.shape)


def void_rows(data: memoryview, attribute: Attribute) -> Array:
    """Contiguous rows of an attribute as an array of one void item a row; of at least one byte."""
    return np.frombuffer(data, f"V{attribute.row_nbytes}")


@dataclass(frozen=True)
class Ready:
    """Rows in memory, by attribute that has bytes. Holds what it refers to."""

    parts: Mapping[str, Parts]
    numbers: Rows | None = None  # rows in order, which `parts` counts from 0; None: as the dataset


class Copies:
    """Memory for rows of all attributes, which ascend, each once; filled part by part."""

    def __init__(self, schema: Schema, numbers: Rows) -> None:
        self._schema = schema
        self._numbers = numbers
        self._arrays = {
            a.name: np.empty(len(numbers), f"V{a.row_nbytes}") for a in schema if a.row_nbytes
        }

    def part(self, place: int, count: int) -> dict[str, Array]:
        """By attribute, where `count` rows from `place` on go."""
        return {name: array[place : place + count] for name, array in self._arrays.items()}

    def ready(self) -> Ready:
        """All rows, once they are copied."""
        first = np.zeros(1, np.int64)
        parts = {
            name: Parts(self._schema[name], first, [array])
            for name, array in self._arrays.items()
            if len(array)
        }
        return Ready(parts, self._numbers)


def gathered(schema: Schema, ready: Ready, rows: Rows) -> Iterator[dict[str, Array]]:
    """Batches of `rows`, of shape (batches, rows of a batch): arrays of shape (rows, *shape).

    A row of -1 is zeros; `ready` holds every other one. The arrays are new, of one batch or,
    for small rows, slices of what a few batches share.
    """
    count, size = rows.shape
    small = sum(a.row_nbytes for a in schema if a.row_nbytes < _LARGE_ROW)
    group_rows = min(_GROUP_NBYTES // max(1, small), _GROUP_ROWS)
    together = max(1, group_rows // max(1, size))
    for start in range(0, count, together):
        some = rows[start : start + together]
        padding = some < 0
        if not padding.any():
            yield from _group(schema, ready, some)
        elif padding.all():
            for _ in some:
                yield {a.name: np.zeros((size, *a.shape), a.numpy_dtype) for a in schema}
        else:  # any row that is here is copied in its place, then overwritten
            filled = np.where(padding, some.max(), some)
            for batch, mask in zip(_group(schema, ready, filled), padding, strict=True):
                for array in batch.values():
                    array[mask] = 0
                yield batch


def _places(numbers: Rows, rows: Rows) -> Rows:
    """Where each of `rows` is in `numbers`, which ascend; an error for one that is not."""
    places: Rows = np.searchsorted(numbers, rows)
    if rows.size and (not len(numbers) or (numbers.take(places, mode="clip") != rows).any()):
        raise AssertionError(f"rows are not here: {rows}")
    return places


def _group(schema: Schema, ready: Ready, rows: Rows) -> Iterator[dict[str, Array]]:
    """Batches of `rows`, none of which is padding; small rows are gathered for all of them."""
    if ready.numbers is not None:
        rows = _places(ready.numbers, rows)
    parts = ready.parts
    count, size = rows.shape
    flat = rows.reshape(-1)
    shared: dict[str, Array] = {}
    places: dict[str, Rows] = {}
    order: _Sorted | None = None
    for a in schema:
        part = parts.get(a.name)
        if part is None or not len(flat):
            shared[a.name] = np.empty((len(flat), *a.shape), a.numpy_dtype)
        elif a.row_nbytes >= _LARGE_ROW:
            places[a.name] = part.places(rows)
        elif len(flat) < _ROWS_A_PART * len(part.arrays):
            shared[a.name] = part.take(flat, part.places(flat))
        else:
            order = order or _Sorted(flat)
            shared[a.name] = part.take_sorted(order)
    for i in range(count):
        yield {
            a.name: shared[a.name][i * size : (i + 1) * size]
            if a.name in shared
            else parts[a.name].take(rows[i], places[a.name][i])
            for a in schema
        }
