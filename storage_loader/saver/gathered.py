"""Memory of one object whose places are known only at the end: rows gather by region.

That is so where rows have no fixed size, and where they are compressed. The largest region gathers
at the beginning of the object's memory, and is moved up to its place when the object is complete;
the others gather in chunks of memory. What is compressed gathers in blocks before, which threads
code while more rows come in.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from ..catalog import Extreme
from ..codecs import Codec
from ..hdf5 import CodedRegion, coded_template, template
from ..layout import ALIGNMENT, Column, ObjectLayout, block_items
from ..ragged import Ragged
from ..ranges import Range
from ..schema import END, Attribute, Region, Schema
from ..store import xxh3
from ..sync import Future
from ..threads import Threads
from .batch import Rows
from .buffer import write_directory
from .cast import Array
from .extremes import Extremes
from .memory import Memory, Share, pages
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

    They take no more than `max_nbytes` each, and as much together.
    """

    def __init__(self, schema: Schema, max_nbytes: int, codec_of: Mapping[str, Codec] = {}) -> None:
        """`codec_of`: by attribute that is compressed."""
        self.schema = schema
        self.codecs = coded_regions(schema, codec_of)
        self.sizes = Sizes(schema, max_nbytes, self.codecs)
        share = max_nbytes // (_CHUNKS * len(schema.regions))
        chunk = min(_LARGEST_CHUNK, max(_SMALLEST_CHUNK, share))
        # Whole pages, and whole items of 2, 4, 8 and 16 bytes.
        self.chunk_nbytes = chunk - chunk % _SMALLEST_CHUNK
        self.together = min(_TOGETHER, max_nbytes // _CHUNKS)
        self.memory = Memory(max_nbytes)
        self.object_nbytes = -(-max_nbytes // ALIGNMENT) * ALIGNMENT
        self.coders = Threads(_CORES, "storage_loader-code")

    def buffer(self) -> GatheredBuffer:
        """Room for one object's rows."""
        return GatheredBuffer(self)


class GatheredBuffer:
    """Rows of one object; used again after `clear`. See `Buffer`."""

    is_full = False  # a row without values may fit

    def __init__(self, shared: GatheredBuffers) -> None:
        self._shared = shared
        self._data = pages(shared.object_nbytes)
        self._memory = Share(shared.memory)
        self._regions = {r.name: self._new(r) for r in shared.schema.regions}
        self._largest = ""  # region, as it seems
        self._items: dict[str, int] = {}
        self.rows = 0
        self._extremes = Extremes(shared.schema)
        self._empty()

    def _new(self, region: Region) -> _Gathered:
        shared = self._shared
        codec = shared.codecs.get(region.name)
        chunks = _Chunks(self._memory, shared.chunk_nbytes)
        if codec is None:
            return chunks
        return _Blocks(region, codec, shared.coders, self._memory, chunks, shared.together)

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
        if not self.rows:
            self._largest = _largest(arrays, start, stop)
            self._regions[self._largest].begin_in(self._data)
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
        self._memory.is_filling = False
        schema, values = self._shared.schema, tuple(self._items.values())
        if self._shared.codecs:
            coded = {name: region.coded() for name, region in self._regions.items()}
            filled = {name: one for name, one in coded.items() if one is not None}
            made = coded_template(schema, self.rows, values, filled)
        else:
            made = template(schema, self.rows, values)
        layout = made.layout
        checksums = {name: region.checksums() for name, region in self._regions.items()}
        data = self._data
        for name in sorted(layout.columns, key=lambda name: name != self._largest):
            self._regions[name].move_to(data, layout.columns[name])
        self._empty()
        for offset, piece in made.pieces:
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
        checksum = write_directory(data, layout, checksums)
        return memoryview(data)[: layout.nbytes], layout, checksum  # type: ignore[arg-type]

    def clear(self) -> None:
        """See `Buffer`."""
        for region in self._regions.values():
            region.clear()
        self._memory.is_filling = True
        self._empty()


class _Gathered(Protocol):
    """The bytes of one region so far."""

    saved: int  # bytes by which coding has made them fewer, as far as is known

    def begin_in(self, data: Array) -> None:
        """Gather in memory that has room for all, from its beginning; called before `append`."""

    def append(self, items: Array) -> None:
        """Copy items."""

    def wait(self) -> bool:
        """Wait until more is known of `saved`; False: all of it is."""

    def coded(self) -> CodedRegion | None:
        """How its blocks are coded, which are all there; None where they are not, or none is."""

    def checksums(self) -> Sequence[int]:
        """Those of its blocks, where they are coded."""

    def move_to(self, out: Array, column: Column) -> None:
        """Put all bytes to where the object has the column, and hold none any more.

        First those of the region that gathered in the object's memory.
        """

    def clear(self) -> None:
        """Hold nothing."""


class _Chunks(_Gathered):
    """Of a region that is stored as it is."""

    saved = 0

    def __init__(self, memory: Share, chunk_nbytes: int) -> None:
        self._memory, self._chunk_nbytes = memory, chunk_nbytes
        self._chunks: list[Array] = []
        self._is_at_place = False  # the only chunk is the object's memory
        self._room = 0  # bytes of the last chunk that are free

    def begin_in(self, data: Array) -> None:
        self._chunks, self._is_at_place, self._room = [data], True, len(data)

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

    def checksums(self) -> Sequence[int]:
        return ()

    def move_to(self, out: Array, column: Column) -> None:
        self.move(out, [(column.offset, column.end)])

    def move(self, out: Array, ranges: Sequence[Range]) -> None:
        """Put all bytes to these ranges of `out`, one after another, and hold none any more."""
        if self._is_at_place:
            _move_up(out, ranges)
            ranges = ()
        place = 0  # in the first chunk
        for start, end in ranges:
            rest = out[start:end]
            while len(rest):
                part = self._chunks[0][place : place + len(rest)]
                rest[: len(part)] = part
                rest, place = rest[len(part) :], place + len(part)
                if place == self._chunk_nbytes:  # free at once: the object is not there twice
                    self._memory.give([self._chunks.pop(0)])
                    place = 0
        self.clear()

    def clear(self) -> None:
        if not self._is_at_place:
            self._memory.give(self._chunks)
        self._chunks = []
        self._is_at_place = False
        self._room = 0


def _move_up(out: Array, ranges: Sequence[Range]) -> None:
    """Move what lies at the beginning of `out` to these ranges, ascending and disjoint."""
    base = out.ctypes.data
    place = sum(end - start for start, end in ranges)
    for start, end in reversed(ranges):
        place -= end - start
        ctypes.memmove(base + start, base + place, end - start)


class _Coded(NamedTuple):
    """A few blocks, coded in their place."""

    octets: Array  # each from a multiple of 64 on, as in the object; what lies between is any
    sizes: list[int]  # bytes of each
    checksums: list[int]
    saved: int  # bytes by which coding has made them fewer


class _Blocks(_Gathered):
    """Of a region that is compressed."""

    def __init__(
        self,
        region: Region,
        codec: Codec,
        coders: Threads,
        memory: Share,
        stored: _Chunks,
        together: int,
    ) -> None:
        """`stored`: for what is coded. `together`: bytes of blocks that one call codes, if a block
        is not larger."""
        self._codec, self._coders, self._memory = codec, coders, memory
        self._itemsize = region.dtype.itemsize
        self._nbytes = block_items(region.item_nbytes) * region.item_nbytes
        count = max(1, together // self._nbytes)
        # A room holds blocks from here on, so that each when coded ends before the next one.
        self._first = count * ALIGNMENT
        self._room_nbytes = self._first + count * self._nbytes
        self._room: Array | None = None  # which is being filled ...
        self._filled = 0  # ... with so many bytes so far
        self._being_coded: deque[tuple[Future[_Coded], Array]] = deque()
        self._stored = stored
        self._sizes: list[int] = []  # of blocks stored
        self._checksums: list[int] = []
        self.saved = 0

    def begin_in(self, data: Array) -> None:
        self._stored.begin_in(data)

    def append(self, items: Array) -> None:
        octets = _octets(items)
        while len(octets):
            if self._room is None:
                self._room = self._memory.take(self._room_nbytes)
            room = self._room[self._first + self._filled :]
            part = octets[: len(room)]
            room[: len(part)] = part
            self._filled += len(part)
            octets = octets[len(part) :]
            if len(part) == len(room):
                self._code(self._filled)
            while len(self._being_coded) > _AHEAD:
                self._take()

    def _code(self, nbytes: int) -> None:
        """Have so many bytes of what was gathered coded, and go on with the rest elsewhere."""
        room, last = self._room, self._first + self._filled
        assert room is not None
        self._being_coded.append((self._coders.submit(self._encoded, room, nbytes), room))
        self._room, self._filled = None, 0
        self.append(room[self._first + nbytes : last])

    def _encoded(self, room: Array, nbytes: int) -> _Coded:
        # All at once: a call that lets go of Python's lock waits to get it back (lz4: 1.08 of the
        # rate).
        memory, values = room.data, room[self._first : self._first + nbytes].data
        size = min(self._nbytes, nbytes)  # a block that is shorter is the only one
        shuffled = self._codec.shuffled(values, size, self._itemsize)
        sizes, checksums, place = [], [], 0
        for start in range(0, nbytes, size):
            block, data = values[start : start + size], shuffled[start : start + size]
            coded = self._codec.encode(block, self._itemsize, data)
            end = place + len(coded)
            sizes.append(len(coded))
            checksums.append(xxh3(coded))  # before it is copied: it may be the block itself
            memory[place:end] = coded
            place = -(-end // ALIGNMENT) * ALIGNMENT
        return _Coded(room[:place], sizes, checksums, nbytes - sum(sizes))

    def _take(self) -> None:
        coding, room = self._being_coded[0]
        coded = coding.result()  # after an error, here or below, `clear` gives the room back
        self._stored.append(coded.octets)
        self._being_coded.popleft()
        self._memory.give([room])
        self._sizes += coded.sizes
        self._checksums += coded.checksums
        self.saved += coded.saved

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
            if rest and (self._being_coded or self._sizes or self._filled > self._nbytes):
                last = self._first + self._filled
                self._room[last : last + rest] = 0  # HDF5's chunks are all as long
                self._filled += rest
            self._code(self._filled)
        while self.wait():
            pass
        return CodedRegion(self._codec, tuple(self._sizes)) if self._sizes else None

    def checksums(self) -> Sequence[int]:
        return self._checksums

    def move_to(self, out: Array, column: Column) -> None:
        if column.coded is not None:
            starts, ends = column.coded.T
            ends = -(-ends // ALIGNMENT) * ALIGNMENT
            is_first = np.append(True, starts[1:] != ends[:-1])
            is_last = np.append(is_first[1:], True)
            self._stored.move(out, np.stack([starts[is_first], ends[is_last]], 1).tolist())
        self.clear()

    def clear(self) -> None:
        used = [] if self._room is None else [self._room]
        for coding, room in self._being_coded:
            coding.cancel()
            coding.wait()  # it writes there
            used.append(room)
        self._memory.give(used)
        self._room, self._filled, self.saved = None, 0, 0
        self._being_coded.clear()
        self._stored.clear()
        self._sizes, self._checksums = [], []


def _octets(items: Array) -> Array:
    octets: Array = np.ascontiguousarray(items).reshape(-1).view(np.uint8)
    return octets


def _largest(arrays: Mapping[str, Rows], start: int, stop: int) -> str:
    """The region that has the most bytes of these rows."""
    nbytes = {}
    for name, rows in arrays.items():
        if isinstance(rows, Ragged):
            values = rows.values[rows.offsets[start] : rows.offsets[stop]]
            nbytes[f"{name}/values"] = values.nbytes
        else:
            nbytes[name] = rows[start:stop].nbytes
    return max(nbytes, key=nbytes.__getitem__)
