"""Memory of one object whose places are known only at the end: rows gather by region.

That is so where rows have no fixed size, and where they are compressed. What is not compressed
gathers in chunks of memory; what is, in blocks, which threads code while more rows come in. When
the object is complete it is assembled, and its chunks hold rows of the next one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

import numpy as np

from ..catalog import Extreme
from ..codecs import Codec
from ..hdf5 import CodedRegion, coded_template, template
from ..layout import Column, ObjectLayout, block_items
from ..ragged import Ragged
from ..schema import END, Attribute, Region, Schema
from ..threads import Threads
from .batch import Rows
from .buffer import write_directory
from .cast import Array
from .extremes import Extremes
from .memory import Memory
from .sizes import Sizes, coded_regions

_LARGEST_CHUNK = 2**20
_SMALLEST_CHUNK = 2**12
_CHUNKS = 16  # of a region in a full object, at least: what they leave empty is little
_TOGETHER = 2**18  # bytes of blocks that a thread codes at once: a call costs 40 us
_CORES = os.cpu_count() or 1
_AHEAD = max(8, 2 * _CORES)  # such pieces of a region that wait to be coded
_FULL_SHARE = 64  # an object is full where less than such a part of it is left, and ...
_WAIT_SHARE = 16  # ... coding is waited for where less than such a part seems to be


class GatheredBuffers:
    """What the buffers of one saver share: how large an object may be, memory and threads.

    Of `num_buffers` buffers one is assembled at a time, so that they take no more than
    `num_buffers` + 1 times `max_nbytes`.
    """

    def __init__(
        self, schema: Schema, max_nbytes: int, num_buffers: int, codec_of: Mapping[str, Codec] = {}
    ) -> None:
        """`codec_of`: by attribute that is compressed."""
        self.schema = schema
        self.codecs = coded_regions(schema, codec_of)
        self.sizes = Sizes(schema, max_nbytes, self.codecs)
        share = max_nbytes // (_CHUNKS * len(schema.regions))
        chunk = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, share))
        # Whole pages, and whole items of 2, 4, 8 and 16 bytes.
        self.chunk_nbytes = chunk - chunk % _SMALLEST_CHUNK
        self.together = min(_TOGETHER, max_nbytes // _CHUNKS)
        kept = num_buffers + (0 if codec_of else 1)  # coding takes some beside blocks
        self.memory = Memory(kept * max_nbytes)
        self.assembling = threading.Lock()
        self.coders = Threads(_CORES, "storage_loader-code")

    def buffer(self) -> GatheredBuffer:
        """Room for one object's rows."""
        return GatheredBuffer(self)


class GatheredBuffer:
    """Rows of one object; used again after `clear`. See `Buffer`."""

    is_full = False  # a row without values may fit

    def __init__(self, shared: GatheredBuffers) -> None:
        self._shared = shared
        self._regions = {r.name: self._new(r) for r in shared.schema.regions}
        self._items: dict[str, int] = {}
        self._data: list[Array] = []  # the finished object, while it is one
        self.rows = 0
        self._extremes = Extremes(shared.schema)
        self._empty()

    def _new(self, region: Region) -> _Gathered:
        shared = self._shared
        codec = shared.codecs.get(region.name)
        if codec is None:
            return _Chunks(shared.memory, shared.chunk_nbytes)
        return _Blocks(region, codec, shared.coders, shared.memory, shared.together)

    def _empty(self) -> None:
        self._items = {a.name: 0 for a in self._shared.schema if a.is_variable}
        self.rows = 0

    def fits(self, arrays: Mapping[str, Rows], start: int, stop: int) -> int:
        """See `Buffer`. Waits for blocks that are being coded where that may make room."""
        sizes, regions = self._shared.sizes, self._regions.values()
        rows, items = self.rows, self._items
        enough = sizes.max_nbytes // _WAIT_SHARE if self._shared.codecs else 0
        while True:
            saved = sum(region.saved for region in regions)
            room = sizes.room(rows, items, saved) if rows else sizes.max_nbytes
            if room >= enough:
                end = sizes.fits(arrays, start, stop, rows=rows, items=items, saved=saved)
                if end > start:
                    return end
            if not any(region.wait() for region in regions):
                break
        if rows and room < sizes.max_nbytes // _FULL_SHARE:
            return start
        return sizes.fits(arrays, start, stop, rows=rows, items=items, saved=saved)

    def append(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """See `Buffer`."""
        for attribute in self._shared.schema:
            self._append(attribute, arrays[attribute.name], start, stop)
        self._extremes.add(arrays, start, stop)
        self.rows += stop - start

    def extremes(self) -> dict[str, tuple[Extreme, Extreme]]:
        """See `Buffer`."""
        return self._extremes.taken()

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
        schema, values = self._shared.schema, tuple(self._items.values())
        if self._shared.codecs:
            coded = {name: region.coded() for name, region in self._regions.items()}
            filled = {name: one for name, one in coded.items() if one is not None}
            made = coded_template(schema, self.rows, values, filled)
        else:
            made = template(schema, self.rows, values)
        layout = made.layout
        with self._shared.assembling:
            data = self._shared.memory.take(self._shared.sizes.max_nbytes)
            self._data.append(data)
            for name, column in layout.columns.items():
                self._regions[name].move_to(data, column)
        self._empty()
        for offset, piece in made.pieces:
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        checksum = write_directory(data, layout)
        return memoryview(data)[: layout.nbytes], layout, checksum  # type: ignore[arg-type]

    def clear(self) -> None:
        """See `Buffer`."""
        self._shared.memory.give(self._data)
        self._data = []
        for region in self._regions.values():
            region.clear()
        self._empty()


class _Gathered(Protocol):
    """The bytes of one region so far."""

    saved: int  # bytes by which coding has made them fewer, as far as is known

    def append(self, items: Array) -> None:
        """Copy items."""

    def wait(self) -> bool:
        """Wait until more is known of `saved`; False: all of it is."""

    def coded(self) -> CodedRegion | None:
        """How its blocks are coded, which are all there; None where they are not, or none is."""

    def move_to(self, out: Array, column: Column) -> None:
        """Copy all bytes to where the object has the column, and hold none any more."""

    def clear(self) -> None:
        """Hold nothing."""


class _Chunks(_Gathered):
    """Of a region that is stored as it is."""

    saved = 0

    def __init__(self, memory: Memory, chunk_nbytes: int) -> None:
        self._memory, self._chunk_nbytes = memory, chunk_nbytes
        self._chunks: list[Array] = []
        self._room = 0  # bytes of the last chunk that are free

    def append(self, items: Array) -> None:
        octets = _octets(items)
        while len(octets):
            if self._room == 0:
                self._chunks.append(self._memory.take(self._chunk_nbytes))
                self._room = self._chunk_nbytes
            chunk = self._chunks[-1]
            place = len(chunk) - self._room
            part = octets[: len(chunk) - place]
            chunk[place : place + len(part)] = part
            self._room -= len(part)
            octets = octets[len(part) :]

    def wait(self) -> bool:
        return False

    def coded(self) -> CodedRegion | None:
        return None

    def move_to(self, out: Array, column: Column) -> None:
        place = column.offset
        for chunk in self._chunks:
            part = out[place : min(place + len(chunk), column.end)]
            part[:] = chunk[: len(part)]
            place += len(part)
        self.clear()

    def clear(self) -> None:
        self._memory.give(self._chunks)
        self._chunks = []
        self._room = 0


class _Blocks(_Gathered):
    """Of a region that is compressed."""

    def __init__(
        self, region: Region, codec: Codec, coders: Threads, memory: Memory, together: int
    ) -> None:
        """`together`: bytes of blocks that one call codes, if a block is not larger."""
        self._codec, self._coders, self._memory = codec, coders, memory
        self._itemsize = region.dtype.itemsize
        self._nbytes = block_items(region.item_nbytes) * region.item_nbytes
        self._room_nbytes = max(1, together // self._nbytes) * self._nbytes
        self._room: Array | None = None  # for a few blocks, which is being filled ...
        self._filled = 0  # ... so far
        self._being_coded: deque[tuple[Future[list[bytes]], Array]] = deque()
        self._coded: list[bytes] = []
        self._held = 0  # their bytes, and as many as the others may become
        self.saved = 0

    def append(self, items: Array) -> None:
        octets = _octets(items)
        while len(octets):
            if self._room is None:
                self._room = self._memory.take(self._room_nbytes)
            part = octets[: self._room_nbytes - self._filled]
            self._room[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            octets = octets[len(part) :]
            if self._filled == self._room_nbytes:
                self._code(self._filled)
            while len(self._being_coded) > _AHEAD:
                self._take()

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes
        self._memory.count(nbytes)

    def _code(self, nbytes: int) -> None:
        """Have so many bytes of what was gathered coded, and go on with the rest elsewhere."""
        room, rest = self._room, self._filled - nbytes
        assert room is not None
        self._room, self._filled = None, 0
        self._hold(nbytes)
        self._being_coded.append((self._coders.submit(self._encoded, room[:nbytes]), room))
        if rest:
            self.append(room[nbytes : nbytes + rest])

    def _encoded(self, octets: Array) -> list[bytes]:
        blocks = (octets[i : i + self._nbytes].data for i in range(0, len(octets), self._nbytes))
        # Copied where coding made it no smaller, so that the memory is free for others.
        return [bytes(self._codec.encode(block, self._itemsize)) for block in blocks]

    def _take(self) -> None:
        coding, room = self._being_coded.popleft()
        coded = coding.result()
        self._coded += coded
        saved = len(coded) * self._nbytes - sum(map(len, coded))
        self.saved += saved
        self._memory.give([room])
        self._hold(-saved)

    def wait(self) -> bool:
        whole = self._filled - self._filled % self._nbytes
        if not self._being_coded and whole:
            self._code(whole)
        if not self._being_coded:
            return False
        self._take()
        return True

    def coded(self) -> CodedRegion | None:
        if self._filled and self._room is not None:
            rest = -self._filled % self._nbytes
            if rest and (self._being_coded or self._coded or self._filled > self._nbytes):
                self._room[self._filled : self._filled + rest] = 0  # HDF5's chunks are all as long
                self._filled += rest
            self._code(self._filled)
        while self.wait():
            pass
        sizes = tuple(map(len, self._coded))
        return CodedRegion(self._codec, sizes) if sizes else None

    def move_to(self, out: Array, column: Column) -> None:
        places = () if column.coded is None else column.coded.tolist()
        blocks, self._coded = self._coded[::-1], []
        for start, end in places:  # each is freed at once, so that the object is not there twice
            out[start:end] = np.frombuffer(blocks.pop(), np.uint8)
        assert not blocks
        self.clear()

    def clear(self) -> None:
        used = [] if self._room is None else [self._room]
        for coding, room in self._being_coded:  # one that is being coded is not filled again
            used += [room] if coding.cancel() else []
        self._memory.give(used)
        self._room, self._filled, self.saved = None, 0, 0
        self._being_coded.clear()
        self._coded = []
        self._hold(-self._held)


def _octets(items: Array) -> Array:
    octets: Array = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
    return octets
