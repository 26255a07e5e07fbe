"""One reading of an object from its first byte to its last. Pure.

Everything is hashed, the whole and each block; blocks that are coded are decoded, and the values of
some regions are looked at. Rows are not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ..errors import FormatError
from ..layout import Column, ObjectLayout
from ..schema import Region, Schema
from ..store import Buffer
from .bounds import Bounds, has_bounds


@dataclass(frozen=True)
class Scan:
    """What one reading of an object gave."""

    nbytes: int
    checksum: int  # of all bytes
    blocks: npt.NDArray[np.uint64]  # checksum of each block, by its place in the directory
    directory: bytes
    header: bytes  # what is of no row and not of the directory, in order
    ends: dict[str, Ends]  # by region
    bounds: dict[str, Bounds]  # by attribute of single numbers
    undecoded: dict[int, str]  # blocks, by place in the directory, that are not what was coded


def scanned(
    pieces: Iterable[Buffer], schema: Schema, layout: ObjectLayout, stop: threading.Event
) -> Scan:
    """Read the pieces of an object of `schema`, as they come; it ends early once `stop` is set."""
    whole, block = xxhash.xxh3_64(), xxhash.xxh3_64()
    blocks = np.zeros(layout.num_checksums, np.uint64)
    directory: list[bytes] = []
    header: list[bytes] = []
    undecoded: dict[int, str] = {}
    ends = {r.name: Ends() for r in schema.regions if r.role == "ends"}
    bounds = {a.name: Bounds() for a in schema if has_bounds(a)}
    looks: dict[str, _Look] = {name: one.add for name, one in ends.items()}
    looks |= {name: _anywhere(one) for name, one in bounds.items()}
    values = {r.name: _Values(r, layout.columns[r.name], looks.get(r.name)) for r in schema.regions}
    of_block = [(values[n], i) for n, c in layout.columns.items() for i in range(c.num_blocks)]
    sections = _Sections(layout)
    for piece in pieces:
        if stop.is_set():
            break
        view = memoryview(piece).cast("B")
        whole.update(view)
        for what, part, is_last in sections.cut(view):
            if what == _DIRECTORY:
                directory.append(bytes(part))
            elif what == _HEADER:
                header.append(bytes(part))
            else:
                block.update(part)
                column, number = of_block[what]
                error = column.add(part, number, is_last=is_last)
                if error is not None:
                    undecoded[what] = error
                if is_last:
                    blocks[what] = block.intdigest()
                    block.reset()
    return Scan(
        sections.place,
        whole.intdigest(),
        blocks,
        b"".join(directory),
        b"".join(header),
        ends,
        bounds,
        undecoded,
    )


_DIRECTORY, _HEADER = -1, -2


class _Sections:
    """The sections of an object: blocks by their place in the directory, that, and headers."""

    def __init__(self, layout: ObjectLayout) -> None:
        self.place = 0  # bytes so far
        self._rest = _sections(layout)
        self._end, self._what = next(self._rest)

    def cut(self, piece: memoryview) -> Iterator[tuple[int, memoryview, bool]]:
        """Of the bytes that follow: section, part of it, and whether it is the last one."""
        while piece.nbytes:
            part = piece[: self._end - self.place]
            self.place += part.nbytes
            piece = piece[part.nbytes :]
            yield self._what, part, self.place == self._end
            if self.place == self._end:
                self._end, self._what = next(self._rest, _BEYOND)


_BEYOND = (2**63, _HEADER)  # of a store that sends more than was asked for


def _sections(layout: ObjectLayout) -> Iterator[tuple[int, int]]:
    """(end, what) of all sections in order."""
    parts = [(*ends, block) for block, ends in enumerate(layout.block_ranges.tolist())]
    if layout.num_words:
        parts.append((*layout.directory_range, _DIRECTORY))
    place = 0
    for start, end, what in sorted(parts):
        if start > place:
            yield start, _HEADER
        yield end, what
        place = end
    if layout.nbytes > place:
        yield layout.nbytes, _HEADER


_Look = Callable[[npt.NDArray[Any], int], None]
"""Gets some values of a region, and the number of their first item."""


def _anywhere(bounds: Bounds) -> _Look:
    return lambda values, _: bounds.add(values)


class _Values:
    """The values of a region: blocks that are coded are decoded, one at a time."""

    def __init__(self, region: Region, column: Column, look: _Look | None) -> None:
        self._dtype, self._column, self._look = region.dtype, column, look
        self._parts: list[bytes] = []  # of a block that is coded
        self._rest = b""  # of a value
        self._place = 0  # bytes of those that are not coded, up to that value

    def add(self, part: memoryview, block: int, *, is_last: bool) -> str | None:
        """Part of a block, perhaps its last one. What is wrong, if the block cannot be decoded."""
        codec = self._column.codec
        if codec is None:
            octets = self._rest + part if self._look is not None else b""
            whole = len(octets) - len(octets) % self._dtype.itemsize
            self._rest = octets[whole:]
            self._see(octets[:whole], self._place)
            self._place += whole
            return None
        self._parts.append(bytes(part))
        if not is_last:
            return None
        coded, self._parts = b"".join(self._parts), []
        nbytes = self._column.block_nbytes
        out = np.empty(nbytes, np.uint8)
        try:
            codec.decode([memoryview(coded)], out.data, self._dtype.itemsize)
            codec.check_end(memoryview(coded), nbytes)
        except FormatError as error:
            return str(error)
        place = block * nbytes
        self._see(out[: self._column.nbytes - place].data, place)  # without values of no row
        return None

    def _see(self, octets: bytes | memoryview, place: int) -> None:
        if self._look is not None:
            self._look(np.frombuffer(octets, self._dtype), place // self._dtype.itemsize)


class Ends:
    """Whether ends of rows ascend from 0 to the number of values, in whatever order they come."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []  # number of the first, which, the last one
        self._ascend = True

    def add(self, ends: npt.NDArray[Any], first: int) -> None:
        """Look at some, of which the first is that of a row's number in the object."""
        if len(ends):
            self._ascend &= bool((ends[1:] >= ends[:-1]).all())
            self._runs.append((first, int(ends[0]), int(ends[-1])))

    def ascend_to(self, items: int) -> bool:
        """Whether all that came do, and end with this number."""
        last = 0
        for _, first_end, last_end in sorted(self._runs):
            if first_end < last:
                return False
            last = last_end
        return self._ascend and last == items
