"""Copying rows that lie in memory into batches, without a loop over rows.

Large rows are copied batch by batch; small ones, whose copying is bound by memory latency, for
many batches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...schema import Attribute, Schema
from ..order import Rows
from .memory import Memory
from .parts import Array, Parts, Sorted

_LARGE_ROW = 1024  # bytes from which rows are copied batch by batch, by their addresses
_ROWS_A_PART = 16  # with fewer, a numpy call for each part costs more than it saves
_GROUP_NBYTES = 4 * 2**20  # of small rows gathered at once: they stay in the cache
_GROUP_ROWS = 16_384


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

    @contextmanager
    def part(self, places: Rows) -> Iterator[dict[str, Array]]:
        """By attribute, what the rows at these places, which ascend, are written to."""
        first, count = int(places[0]), len(places)
        if places[-1] - first == count - 1:
            yield {name: array[first : first + count] for name, array in self._arrays.items()}
            return
        scattered = {name: np.empty(count, array.dtype) for name, array in self._arrays.items()}
        yield scattered
        for name, rows in scattered.items():
            self._arrays[name][places] = rows

    def ready(self) -> Ready:
        """All rows, once they are copied."""
        first = np.zeros(1, np.int64)
        parts = {
            name: Parts(self._schema[name], first, [array], frees_gil=True)
            for name, array in self._arrays.items()
            if len(array)
        }
        return Ready(parts, self._numbers)


def gathered(
    schema: Schema,
    ready: Ready,
    rows: Rows,
    new_memory: Callable[[], Memory | None] = lambda: None,
) -> Iterator[tuple[dict[str, Array], Memory | None]]:
    """Batches of `rows`, of shape (batches, rows of a batch): arrays of shape (rows, *shape).

    A row of -1 is zeros; `ready` holds every other one. Each batch is put into a memory of its
    own, which comes beside it. Where that is None the arrays are new, of one batch or, for small
    rows, slices of what a few batches share.
    """
    count, size = rows.shape
    small = sum(a.row_nbytes for a in schema if a.row_nbytes < _LARGE_ROW)
    group_rows = min(_GROUP_NBYTES // max(1, small), _GROUP_ROWS)
    together = max(1, group_rows // max(1, size))
    for start in range(0, count, together):
        some = rows[start : start + together]
        padding = some < 0
        if not padding.any():
            yield from _group(schema, ready, some, new_memory)
        elif padding.all():
            for _ in some:
                yield _zeros(schema, size, new_memory())
        else:  # any row that is here is copied in its place, then overwritten
            filled = np.where(padding, some.max(), some)
            batches = _group(schema, ready, filled, new_memory)
            for (batch, memory), mask in zip(batches, padding, strict=True):
                for array in batch.values():
                    array[mask] = 0
                yield batch, memory


def _zeros(
    schema: Schema, rows: int, memory: Memory | None
) -> tuple[dict[str, Array], Memory | None]:
    batch = {a.name: _empty(a, rows, memory) for a in schema}
    for array in batch.values():
        array[...] = 0
    return batch, memory


def _empty(attribute: Attribute, rows: int, memory: Memory | None) -> Array:
    if memory is None:
        return np.empty((rows, *attribute.shape), attribute.numpy_dtype)
    room = memory.empty(rows * attribute.row_nbytes)
    return room.view(attribute.numpy_dtype).reshape(rows, *attribute.shape)


def _places(numbers: Rows, rows: Rows) -> Rows:
    """Where each of `rows` is in `numbers`, which ascend; an error for one that is not."""
    places: Rows = np.searchsorted(numbers, rows)
    if rows.size and (not len(numbers) or (numbers.take(places, mode="clip") != rows).any()):
        raise AssertionError(f"rows are not here: {rows}")
    return places


def _group(
    schema: Schema, ready: Ready, rows: Rows, new_memory: Callable[[], Memory | None]
) -> Iterator[tuple[dict[str, Array], Memory | None]]:
    """Batches of `rows`, none of which is padding; small rows are gathered for all of them."""
    if ready.numbers is not None:
        rows = _places(ready.numbers, rows)
    parts = ready.parts
    count, size = rows.shape
    flat = rows.reshape(-1)
    shared: dict[str, Array] = {}
    places: dict[str, Rows] = {}
    order: Sorted | None = None
    for a in schema:
        part = parts.get(a.name)
        if part is None or not len(flat):
            shared[a.name] = np.empty((len(flat), *a.shape), a.numpy_dtype)
        elif a.row_nbytes >= _LARGE_ROW:
            places[a.name] = part.places(rows)
        elif len(flat) < _ROWS_A_PART * len(part.arrays):
            shared[a.name] = part.take(flat, part.places(flat))
        else:
            order = order or Sorted(flat)
            shared[a.name] = part.take_sorted(order)
    for i in range(count):
        memory = new_memory()
        batch = {}
        for a in schema:
            if a.name in shared:
                array = shared[a.name][i * size : (i + 1) * size]
                if memory is not None and memory.wants(array.nbytes):
                    array, shares = _empty(a, size, memory), array
                    array[...] = shares
            elif memory is None:
                array = parts[a.name].take(rows[i], places[a.name][i])
            else:
                array = _empty(a, size, memory)
                memory.fill(parts[a.name], rows[i], places[a.name][i], array)
            batch[a.name] = array
        yield batch, memory
