"""Rows that are in memory, where they lie or as copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...schema import Schema
from ..order import Rows
from .parts import Array, Parts


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
