"""Memory of one object: rows are copied once, straight to where they will be stored."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping

import numpy as np

from ..hdf5 import template
from ..layout import ObjectLayout
from ..schema import Schema
from ..store import xxh3
from .cast import Array


class ObjectBuffer:
    """Room for `capacity` rows in the layout of a full object; used again after `seal`."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        self._schema = schema
        self._layout = template(schema, capacity).layout
        self._bytes = _pages(self._layout.nbytes)
        self._columns = {
            a.name: self._bytes[column.offset : column.end]
            .view(a.numpy_dtype)
            .reshape(capacity, *a.shape)
            for a in schema
            if (column := self._layout.columns[a.name]).nbytes
        }
        self.rows = 0

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self._layout.rows - self.rows

    def append(self, arrays: Mapping[str, Array], start: int, stop: int) -> None:
        """Copy rows start to stop of `arrays`; at most `room` of them."""
        end = self.rows + stop - start
        for name, column in self._columns.items():
            column[self.rows : end] = arrays[name][start:stop]
        self.rows = end

    def seal(self) -> tuple[memoryview, ObjectLayout, int]:
        """The finished object's bytes, its layout, and the checksum of its directory.

        The bytes are valid until the next `append`.
        """
        made = template(self._schema, self.rows)
        layout = made.layout
        if self.rows < self._layout.rows:
            self._close_gaps(layout)
        for offset, piece in made.pieces:
            self._bytes[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        start, end = layout.directory_range
        view = memoryview(self._bytes)  # type: ignore[arg-type]
        checksums = [
            xxh3(view[first:last])
            for column in layout.columns.values()
            for first, last in map(column.block_range, range(column.num_blocks))
        ]
        self._bytes[start:end].view("<u8")[:] = checksums
        self.rows = 0
        return view[: layout.nbytes], layout, xxh3(view[start:end])

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


def _pages(nbytes: int) -> Array:
    """Memory from a page boundary on, which a folder store can write past the page cache.

    Small pages on purpose: 64 MiB of numpy's huge ones took 6 ms to touch, but 150 in a virtual
    machine whose host had taken the memory back; small ones 27 either way.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)
