"""Memory of one object whose rows have no fixed size: rows gather in chunks, by region.

Where a region begins is known when the object is complete. Then it is assembled, and its chunks
hold rows of the next one.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import SchemaError
from ..hdf5 import most_overhead, template
from ..layout import ALIGNMENT, MAX_ROWS, WORD_NBYTES, ObjectLayout, block_items, num_place_words
from ..ragged import Ragged
from ..schema import END, Attribute, Region, Schema
from .batch import Rows
from .buffer import write_directory
from .cast import Array
from .memory import Memory

_LARGEST_CHUNK = 2**20
_SMALLEST_CHUNK = 2**12
_CHUNKS = 16  # of a region in a full object, at least: what they leave empty is little


class VariableBuffers:
    """What the buffers of one saver share: how large an object may be, and memory.

    Of `num_buffers` buffers one is assembled at a time, so that they take no more than
    `num_buffers` + 1 times `max_nbytes`.
    """

    def __init__(self, schema: Schema, max_nbytes: int, num_buffers: int) -> None:
        self.schema = schema
        self.sizes = Sizes(schema, max_nbytes)
        share = max_nbytes // (_CHUNKS * len(schema.regions))
        chunk = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, share))
        chunk -= chunk % _SMALLEST_CHUNK  # whole pages, and whole items of 2, 4, 8 and 16 bytes
        self.memory = Memory(max_nbytes, chunk, (num_buffers + 1) * max_nbytes)
        self.assembling = threading.Lock()

    def buffer(self) -> VariableBuffer:
        """Room for one object's rows."""
        return VariableBuffer(self)


class Sizes:
    """The bytes of objects, before they are made: never too few, and at most 400 too many."""

    def __init__(self, schema: Schema, max_nbytes: int) -> None:
        self._max_nbytes = max_nbytes
        self._schema = schema
        self._overhead = most_overhead(schema)
        self._fixed = [(r, block_items(r.item_nbytes)) for r in schema.regions if _is_by_row(r)]
        self._values = [
            (r, block_items(r.item_nbytes)) for r in schema.regions if not _is_by_row(r)
        ]
        least = int(self.of(1, {r.attribute: 0 for r, _ in self._values}))
        if least > max_nbytes:
            raise SchemaError(
                f"a row without any values needs an object of {least} bytes, but max_object_size "
                f"is {max_nbytes}; set max_object_size to {least} or more"
            )

    def of(self, rows: int, items: Mapping[str, Any]) -> Any:
        """Bytes of an object of so many rows and values by attribute; or of many objects."""
        nbytes: Any = self._overhead
        words: Any = num_place_words(len(self._schema.regions))
        counts: list[tuple[Any, Region, int]] = [(rows, *one) for one in self._fixed]
        counts += [(items[one[0].attribute], *one) for one in self._values]
        for count, region, block in counts:
            if region.item_nbytes:
                nbytes = nbytes + _aligned(count * region.item_nbytes)
                words = words + -(-count // block)
        return nbytes + _aligned(words * WORD_NBYTES)

    def fits(
        self, arrays: Mapping[str, Rows], start: int, stop: int, rows: int, items: Mapping[str, int]
    ) -> int:
        """The first of rows `start` to `stop` that an object of so much already has no room for."""
        firsts = {name: int(a.offsets[start]) for name, a in _ragged(arrays)}

        def nbytes(end: int) -> int:
            added = {n: int(a.offsets[end]) - firsts[n] + items[n] for n, a in _ragged(arrays)}
            return int(self.of(rows + end - start, added))

        stop = min(stop, start + MAX_ROWS - rows)
        if nbytes(stop) <= self._max_nbytes:
            return stop
        return start + bisect_right(range(start + 1, stop), self._max_nbytes, key=nbytes)

    def check(self, arrays: Mapping[str, Rows], rows: int) -> None:
        """Raise `SchemaError` where a row fits no object."""
        if self.fits(arrays, 0, rows, 0, {name: 0 for name, _ in _ragged(arrays)}) == rows:
            return
        nbytes = self.of(1, {name: a.lengths for name, a in _ragged(arrays)})
        row = int(nbytes.argmax())
        if nbytes[row] > self._max_nbytes:
            parts = {n: int(a.lengths[row]) * a.values[:1].nbytes for n, a in _ragged(arrays)}
            attribute, most = max(parts.items(), key=itemgetter(1))
            raise SchemaError(
                f"row {row} of the batch needs an object of {nbytes[row]} bytes, {most} of them "
                f"for attribute {attribute!r}, but max_object_size is {self._max_nbytes}; set "
                f"max_object_size to {nbytes[row]} or more, or divide the row"
            )


class VariableBuffer:
    """Rows of one object, in chunks of the memory that buffers share; used again after `clear`."""

    def __init__(self, shared: VariableBuffers) -> None:
        self._shared = shared
        self._regions = {r.name: _Gathered(shared.memory) for r in shared.schema.regions}
        self._items: dict[str, int] = {}
        self._data: list[Array] = []  # the finished object, while it is one
        self.rows = 0
        self._empty()

    is_full = False  # a row without values may fit

    def _empty(self) -> None:
        self._items = {a.name: 0 for a in self._shared.schema if a.is_variable}
        self.rows = 0

    def fits(self, arrays: Mapping[str, Rows], start: int, stop: int) -> int:
        """See `Buffer`."""
        return self._shared.sizes.fits(arrays, start, stop, self.rows, self._items)

    def append(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """See `Buffer`."""
        for attribute in self._shared.schema:
            self._append(attribute, arrays[attribute.name], start, stop)
        self.rows += stop - start

    def _append(self, attribute: Attribute, rows: Rows, start: int, stop: int) -> None:
        name = attribute.name
        if not isinstance(rows, Ragged):
            self._regions[name].append(rows[start:stop])
            return
        first, last = int(rows.offsets[start]), int(rows.offsets[stop])
        ends = rows.offsets[start + 1 : stop + 1] + (self._items[name] - first)
        self._regions[f"{name}/ends"].append(ends.astype(END, copy=False))
        self._regions[f"{name}/values"].append(rows.values[first:last])
        self._items[name] += last - first

    def seal(self) -> tuple[memoryview, ObjectLayout, int]:
        """See `Buffer`."""
        made = template(self._shared.schema, self.rows, tuple(self._items.values()))
        layout = made.layout
        with self._shared.assembling:
            data = self._shared.memory.take(whole=True)
            self._data.append(data)
            for name, column in layout.columns.items():
                self._regions[name].move_to(data[column.offset : column.end])
        self._empty()
        for offset, piece in made.pieces:
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        checksum = write_directory(data, layout)
        return memoryview(data)[: layout.nbytes], layout, checksum  # type: ignore[arg-type]

    def clear(self) -> None:
        """See `Buffer`."""
        self._shared.memory.give(self._data, whole=True)
        self._data = []
        for region in self._regions.values():
            region.clear()
        self._empty()


class _Gathered:
    """The bytes of one region so far."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._chunks: list[Array] = []
        self._room = 0  # bytes of the last chunk that are free

    def append(self, items: Array) -> None:
        octets = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
        while len(octets):
            if self._room == 0:
                self._chunks.append(self._memory.take(whole=False))
                self._room = len(self._chunks[-1])
            chunk = self._chunks[-1]
            place = len(chunk) - self._room
            part = octets[: len(chunk) - place]
            chunk[place : place + len(part)] = part
            self._room -= len(part)
            octets = octets[len(part) :]

    def move_to(self, out: Array) -> None:
        """Copy all bytes and hold none any more."""
        place = 0
        for chunk in self._chunks:
            part = out[place : place + len(chunk)]
            part[:] = chunk[: len(part)]
            place += len(part)
        self.clear()

    def clear(self) -> None:
        self._memory.give(self._chunks, whole=False)
        self._chunks = []
        self._room = 0


def _ragged(arrays: Mapping[str, Rows]) -> list[tuple[str, Ragged]]:
    return [(name, rows) for name, rows in arrays.items() if isinstance(rows, Ragged)]


def _is_by_row(region: Region) -> bool:
    return region.role != "values"


def _aligned(nbytes: Any) -> Any:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
