"""Fields of attributes whose rows have a fixed shape, copied without a loop over rows.

Large rows are copied batch by batch; small ones, whose copying is bound by memory latency, for
many batches at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...schema import Attribute
from ..order import Rows
from .base import Asked, Field
from .memory import Memory
from .parts import Array, Parts

LARGE_ROW = 1024  # bytes from which rows are copied batch by batch, by their addresses

_ROWS_A_PART = 16  # with fewer, a numpy call for each part costs more than it saves

CopyRows = Callable[[Parts, Rows, Rows, Array], None]
"""Copies large rows, whose places are given too, to a contiguous array of just their size."""


class Fixed:
    """See `Filler`; it makes arrays of shape (rows, *shape)."""

    def __init__(self, attribute: Attribute, copy_rows: CopyRows = Parts.take_into) -> None:
        self._attribute = attribute
        self._copy_rows = copy_rows

    def nbytes(self, rows: int) -> int:
        return rows * self._attribute.row_nbytes

    def fields(self, parts: Parts | None, asked: Asked) -> Mapping[str, Field]:
        return {self._attribute.name: self._field(parts, asked)}

    def _field(self, parts: Parts | None, asked: Asked) -> Field:
        if parts is None or asked.is_empty:
            return self._zeros(asked)
        if self._attribute.row_nbytes >= LARGE_ROW:
            return self._large(parts, asked)
        return self._small(parts, asked)

    def _zeros(self, asked: Asked) -> Field:
        def field(i: int, memory: Memory | None) -> Array:
            array = self._empty(asked.size, memory)
            array[...] = 0
            return array

        return field

    def _large(self, parts: Parts, asked: Asked) -> Field:
        places = parts.places(asked.rows)

        def field(i: int, memory: Memory | None) -> Array:
            if memory is None:
                array = parts.take(asked.rows[i], places[i])
            else:
                array = self._empty(asked.size, memory)
                self._copy_rows(parts, asked.rows[i], places[i], array)
            return asked.padded(array, i)

        return field

    def _small(self, parts: Parts, asked: Asked) -> Field:
        if len(asked.flat) < _ROWS_A_PART * len(parts.arrays):
            every = parts.take(asked.flat, parts.places(asked.flat))
        else:
            every = parts.take_sorted(asked.order)

        def field(i: int, memory: Memory | None) -> Array:
            array = asked.padded(every[i * asked.size : (i + 1) * asked.size], i)
            if memory is not None and memory.wants(array.nbytes):
                copied = self._empty(asked.size, memory)
                copied[...] = array
                return copied
            return array

        return field

    def _empty(self, rows: int, memory: Memory | None) -> Array:
        attribute = self._attribute
        if memory is None:
            return np.empty((rows, *attribute.item_shape), attribute.numpy_dtype)
        room = memory.empty(rows * attribute.row_nbytes)
        return room.view(attribute.numpy_dtype).reshape(rows, *attribute.item_shape)
