"""Rows that are in memory, where they lie or as copies."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from ...schema import Schema
from ..order import Rows
from .memory import ReusedMemory
from .parts import Array, Parts
from .ragged import RaggedParts


@dataclass(frozen=True)
class Ready:
    """Rows in memory, by attribute that has bytes. Holds what it refers to."""

    parts: Mapping[str, Parts | RaggedParts]
    numbers: Rows | None = None  # rows in order, which `parts` counts from 0; None: as the dataset


class Copies:
    """Memory for rows of all attributes, which ascend, each once; filled part by part."""

    def __init__(
        self,
        schema: Schema,
        numbers: Rows,
        counts: Mapping[str, Rows] = {},
        memory: Mapping[str, ReusedMemory] | None = None,
    ) -> None:
        """`counts`: by attribute whose rows have no fixed size, the items of each row.

        `memory`: by attribute, where its rows are put; None: new memory.
        """
        self._schema = schema
        self._numbers = numbers
        self._stops = {name: np.cumsum(some) for name, some in counts.items()}  # items

        def empty(name: str, nbytes: int) -> Array:
            return np.empty(nbytes, np.uint8) if memory is None else memory[name].empty(nbytes)

        self._arrays = {
            a.name: empty(a.name, len(numbers) * a.row_nbytes).view(f"V{a.row_nbytes}")
            for a in schema
            if a.row_nbytes and not a.is_variable
        }
        self._referred: dict[str, list[tuple[int, Array]]] = {name: [] for name in self._arrays}
        self._values = {
            name: empty(name, int(stops[-1]) * schema[name].item_nbytes)
            for name, stops in self._stops.items()
            if len(stops)
        }

    @contextmanager
    def part(self, places: Rows, but: Container[str] = ()) -> Iterator[dict[str, Array]]:
        """By attribute of fixed size, what the rows at these places, which ascend, go to.

        `but`: attributes that are left out.
        """
        arrays = {name: array for name, array in self._arrays.items() if name not in but}
        first, count = int(places[0]), len(places)
        if places[-1] - first == count - 1:
            yield {name: array[first : first + count] for name, array in arrays.items()}
            return
        scattered = {name: np.empty(count, array.dtype) for name, array in arrays.items()}
        yield scattered
        for name, rows in scattered.items():
            arrays[name][places] = rows

    def refer(self, name: str, place: int, array: Array) -> None:
        """Have rows of a fixed size, of void items, in the memory where they lie, not copied.

        They are those from this place on, and in no `part`.
        """
        self._referred[name].append((place, array))

    def put(self, name: str, places: Rows, span: Span, copy: Copy) -> None:
        """Copy the items of rows of one attribute, at least one row.

        `span`: where they lie among the values of their object; `copy` copies bytes of these.
        """
        nbytes = self._schema[name].item_nbytes
        out, stops = self._values[name].data, self._stops[name][places] * nbytes
        starts = stops - (span.stops - span.starts) * nbytes
        cuts = np.flatnonzero((span.starts[1:] != span.stops[:-1]) | (starts[1:] != stops[:-1]))
        firsts, lasts = np.append(0, cuts + 1), np.append(cuts, len(places) - 1)
        origins = (span.starts[firsts] * nbytes).tolist()
        pairs = zip(origins, starts[firsts].tolist(), stops[lasts].tolist(), strict=True)
        for origin, start, stop in pairs:
            if start < stop:
                copy(origin, origin + stop - start, out[start:stop])

    def ready(self) -> Ready:
        """All rows, once they are copied."""
        first = np.zeros(1, np.int64)
        parts: dict[str, Parts | RaggedParts] = {
            name: self._fixed(name, array) for name, array in self._arrays.items() if len(array)
        }
        for name, values in self._values.items():
            ends = self._stops[name].view("V8")
            parts[name] = RaggedParts(self._schema[name], first, [ends], [values])
        return Ready(parts, self._numbers)

    def _fixed(self, name: str, array: Array) -> Parts:
        """Rows as they were copied, with those between them that lie elsewhere."""
        firsts, arrays, end = [], [], 0
        for place, referred in sorted(self._referred[name], key=itemgetter(0)):
            if end < place:
                firsts.append(end)
                arrays.append(array[end:place])
            firsts.append(place)
            arrays.append(referred)
            end = place + len(referred)
        if end < len(array):
            firsts.append(end)
            arrays.append(array[end:])
        region = self._schema[name].regions[0]
        return Parts(region, np.array(firsts, np.int64), arrays, frees_gil=True)


@dataclass(frozen=True)
class Span:
    """Where rows of one attribute lie among the values of their object, items: one each a row."""

    starts: Rows
    stops: Rows

    def some(self, chosen: Any) -> Span:
        """Those that a slice or a mask chooses."""
        return Span(self.starts[chosen], self.stops[chosen])


Copy = Callable[[int, int, memoryview], None]
"""Copies bytes start to stop of a region in an object to memory."""


def copier(show: Callable[[int, int], memoryview]) -> Copy:
    """Of a region whose bytes are shown as they are."""

    def copy(start: int, stop: int, out: memoryview) -> None:
        out[:] = show(start, stop)

    return copy
