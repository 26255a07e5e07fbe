"""Memory of one object: rows are copied once, straight to where they will be stored.

Rows of fixed size, that is; gathered.py holds those whose places are known only at the end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from ..catalog import Extreme
from ..hdf5 import template
from ..layout import ObjectLayout
from ..schema import Schema
from ..store import xxh3
from .batch import Rows
from .cast import Array
from .extremes import Extremes
from .memory import pages


class Buffer(Protocol):
    """Rows of one object, as they come in."""

    rows: int  # held now

    def fits(self, arrays: Mapping[str, Rows], start: int, stop: int) -> int:
        """The first of rows `start` to `stop` that has no room any more; `stop` if all have."""

    def append(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """Copy rows `start` to `stop` of `arrays`, which fit."""

    @property
    def is_full(self) -> bool:
        """Whether it is known that no row fits any more."""

    def extremes(self) -> dict[str, tuple[Extreme, Extreme]]:
        """As `Extremes.taken`, of these rows; to be asked before `seal`."""

    def seal(self) -> tuple[memoryview, ObjectLayout, int]:
        """The finished object's bytes, its layout, and the checksum of its directory.

        The bytes are valid until `clear`.
        """

    def clear(self) -> None:
        """Hold no rows; those of the last object may be overwritten."""


def write_directory(
    data: Array, layout: ObjectLayout, coded: Mapping[str, Sequence[int]] = {}
) -> int:
    """Put the directory into an object that is complete but for it; returns its checksum.

    `coded`: by region that is compressed, the checksums of its blocks.
    """
    view = memoryview(data)  # type: ignore[arg-type]
    checksums: list[int] = []
    for name, column in layout.columns.items():
        if column.coded is not None:
            checksums += coded[name]
        elif column.nbytes:
            size, end = column.block_nbytes, column.end
            checksums += [
                xxh3(view[first : min(first + size, end)])
                for first in range(column.offset, end, size)
            ]
    start, end = layout.directory_range
    data[start:end].view("<u8")[:] = layout.words(np.array(checksums, np.uint64))
    return xxh3(view[start:end])


class ObjectBuffer:
    """Room for `capacity` rows in the layout of a full object; used again after `seal`."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self._schema = schema
        self._layout = template(schema, capacity).layout
        self._bytes = pages(self._layout.nbytes)
        self._columns = {
            a.name: self._bytes[column.offset : column.end]
            .view(a.numpy_dtype)
            .reshape(capacity, *a.item_shape)
            for a in schema
            if (column := self._layout.columns[a.name]).nbytes
        }
        self.rows = 0

    @property
    def is_full(self) -> bool:
        """Whether no row fits any more."""
        return self.rows == self._layout.rows

    def fits(self, arrays: Mapping[str, Rows], start: int, stop: int) -> int:
        """See `Buffer`."""
        return min(stop, start + self._layout.rows - self.rows)

    def append(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """See `Buffer`."""
        end, given = self.rows + stop - start, cast("Mapping[str, Array]", arrays)
        for name, column in self._columns.items():
            column[self.rows : end] = given[name][start:stop]
        self.rows = end

    def extremes(self) -> dict[str, tuple[Extreme, Extreme]]:
        """See `Buffer`. Of all rows at once: batch by batch took as long as to copy small rows."""
        found = Extremes(self._schema)
        found.add(self._columns, 0, self.rows)
        return found.taken()

    def seal(self) -> tuple[memoryview, ObjectLayout, int]:
        """See `Buffer`."""
        made = template(self._schema, self.rows)
        layout = made.layout
        if self.rows < self._layout.rows:
            self._close_gaps(layout)
        for offset, piece in made.pieces:
            self._bytes[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        checksum = write_directory(self._bytes, layout)
        self.rows = 0
        view = memoryview(self._bytes)  # type: ignore[arg-type]
        return view[: layout.nbytes], layout, checksum

    def clear(self) -> None:
        """See `Buffer`."""
        self.rows = 0

    def _close_gaps(self, layout: ObjectLayout) -> None:
        """Move the columns of a partly filled object down to where its own layout has them."""
        base = self._bytes.ctypes.data
        moves = [
            (column.offset, self._layout.columns[name].offset, column.nbytes)
            for name, column in layout.columns.items()
            if column.nbytes
        ]
        for to, origin, nbytes in sorted(moves):  # downwards, lowest first: nothing is overrun
            ctypes.memmove(base + to, base + origin, nbytes)
