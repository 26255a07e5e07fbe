"""Fields of attributes whose rows have no fixed size: ragged, padded, or as texts.

Rows are copied one after another by slices of memory: 575,000 rows/s of 4 KiB on one core, where
`np.take` of as many bytes in rows of one size does 1,025,000 and index arithmetic 230,000.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import FormatError
from ...process import cached_property
from ...ragged import Pad, Ragged
from ...schema import Attribute
from ..order import Rows
from .base import Asked, Field
from .memory import Memory
from .parts import Array, Parts, span_of, stretch

_STEPS = 8  # sizes of memory between a power of two and the next: batches differ in size


@dataclass(frozen=True)
class RaggedParts:
    """Where rows of one attribute lie in memory.

    Part i holds the dataset's rows from `firsts[i]` on: `ends[i]`, void items of 8 bytes, says for
    each how many items there are up to its end, and `values[i]` are the bytes of all items, uint8.
    Parts ascend; there is at least one.
    """

    attribute: Attribute
    firsts: Rows
    ends: Sequence[Array]
    values: Sequence[Array]

    @cached_property
    def _ends(self) -> Parts:
        return Parts(self.attribute.regions[0], self.firsts, self.ends)

    @cached_property
    def _memory(self) -> tuple[int, int, Rows]:
        """What has values: address and size, and by part its place there."""
        return span_of(self.values)

    @cached_property
    def octets(self) -> memoryview:
        """All memory from the lowest values to the highest."""
        address, nbytes, _ = self._memory
        return stretch(address, nbytes).data if nbytes else memoryview(b"")

    @cached_property
    def _counts(self) -> Rows:
        """By part, its items."""
        sizes = np.array([v.nbytes for v in self.values], np.int64)
        return sizes // self.attribute.item_nbytes

    def locate(self, rows: Rows) -> tuple[Rows, Rows]:
        """Where the items of rows begin in `octets`, bytes, and how many there are.

        Raises `FormatError` where what is stored leads outside the values.
        """
        places = self._ends.places(rows)
        part = np.searchsorted(self.firsts, rows, "right") - 1
        is_later = rows > self.firsts[part]
        stops = self._ends.take(rows, places)
        starts = self._ends.take(rows, places - is_later * self._ends.region.item_nbytes)
        starts = np.where(is_later, starts, 0)
        check_ends(self.attribute.name, starts, stops, self._counts[part])
        _, _, firsts = self._memory
        return firsts[part] + starts * self.attribute.item_nbytes, stops - starts


def check_ends(name: str, starts: Rows, stops: Rows, counts: Rows | int) -> None:
    """Raise `FormatError` where rows lie outside the `counts` items that there are."""
    wrong = (starts < 0) | (stops < starts) | (stops > counts)
    if wrong.any():
        i = int(wrong.argmax())
        count = int(np.broadcast_to(counts, wrong.shape)[i])
        raise FormatError(
            f"attribute {name!r}: a row is said to hold items {int(starts[i])} to {int(stops[i])} "
            f"of the {count} that its object has"
        )


def copy_stretches(source: memoryview, starts: Rows, nbytes: Rows, out: memoryview) -> None:
    """Copy stretches of memory to `out`, one after another. Both are of bytes."""
    if len(starts) > 1:  # what lies together goes at once
        breaks = np.flatnonzero(starts[1:] != (starts + nbytes)[:-1]) + 1
        firsts = np.append(0, breaks)
        starts, nbytes = starts[firsts], np.add.reduceat(nbytes, firsts)
    place = 0
    for start, count in zip(starts.tolist(), nbytes.tolist(), strict=True):
        stop = place + count
        out[place:stop] = source[start : start + count]
        place = stop


class _Located:
    """The rows that are asked for, as stretches of memory: arrays of shape (batches, rows)."""

    def __init__(self, parts: RaggedParts | None, asked: Asked) -> None:
        shape = asked.rows.shape
        if parts is None or asked.is_empty:
            self.octets = memoryview(b"")
            self.starts = self.counts = np.zeros(shape, np.int64)
            return
        starts, counts = parts.locate(asked.flat)
        self.octets = parts.octets
        self.starts, self.counts = starts.reshape(shape), counts.reshape(shape)
        if asked.padding is not None:
            self.counts = np.where(asked.padding, 0, self.counts)


def _room(nbytes: int, memory: Memory | None) -> Array:
    """Bytes of a batch, shape (nbytes,)."""
    if memory is None:
        return np.empty(nbytes, np.uint8)
    step = max(1, (1 << max(0, nbytes - 1).bit_length()) // _STEPS)
    return memory.empty(-(-nbytes // step) * step)[:nbytes]


class RaggedRows:
    """See `Filler`; it makes `Ragged`."""

    def __init__(self, attribute: Attribute) -> None:
        self._attribute = attribute

    def nbytes(self, rows: int) -> int:
        return 0

    def fields(self, parts: RaggedParts | None, asked: Asked) -> Mapping[str, Field]:
        attribute, located = self._attribute, _Located(parts, asked)

        def field(i: int, memory: Memory | None) -> Ragged:
            starts, counts = located.starts[i], located.counts[i]
            offsets = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            room = _room(int(offsets[-1]) * attribute.item_nbytes, memory)
            copy_stretches(located.octets, starts, counts * attribute.item_nbytes, room.data)
            return Ragged(_items(room, attribute), offsets)

        return {attribute.name: field}


class PaddedRows:
    """See `Filler`; it makes arrays of shape (rows, width, *shape of an item), and the lengths."""

    def __init__(self, attribute: Attribute, pad: Pad) -> None:
        self._attribute = attribute
        self._pad = pad

    def nbytes(self, rows: int) -> int:
        return 0

    def fields(self, parts: RaggedParts | None, asked: Asked) -> Mapping[str, Field]:
        attribute, pad, located = self._attribute, self._pad, _Located(parts, asked)
        kept, item = pad.kept(located.counts), attribute.item_nbytes
        starts = located.starts + pad.skipped(located.counts) * item

        def dense(i: int, memory: Memory | None) -> Array:
            counts = located.counts[i]
            width = pad.width(counts, attribute.name)
            room = _room(len(counts) * width * item, memory)
            made = _items(room, attribute).reshape(len(counts), width, *attribute.item_shape)
            made[...] = pad.value  # raises where it is none of the dtype
            source, out = located.octets, room.data
            places = (np.arange(len(counts)) * width + pad.places(kept[i], width)) * item
            sizes = (kept[i] * item).tolist()
            for start, place, size in zip(starts[i].tolist(), places.tolist(), sizes, strict=True):
                out[place : place + size] = source[start : start + size]
            return made

        def length(i: int, memory: Memory | None) -> Array:
            lengths: Array = kept[i].copy()
            return lengths

        return {attribute.name: dense, length_name(attribute.name): length}


def length_name(name: str) -> str:
    """The field that says how long the padded rows of an attribute are."""
    return f"{name}_length"


class TextRows:
    """See `Filler`; it makes lists of bytes, str or JSON values. Padding is empty, JSON's None."""

    def __init__(self, attribute: Attribute) -> None:
        self._attribute = attribute
        self._decode = _DECODERS[attribute.dtype]

    def nbytes(self, rows: int) -> int:
        return 0

    def fields(self, parts: RaggedParts | None, asked: Asked) -> Mapping[str, Field]:
        name, decode, located = self._attribute.name, self._decode, _Located(parts, asked)

        def field(i: int, memory: Memory | None) -> list[Any]:
            octets, starts, counts = located.octets, located.starts[i], located.counts[i]
            stops = (starts + counts).tolist()
            texts = [octets[a:b] for a, b in zip(starts.tolist(), stops, strict=True)]
            is_padding = None if asked.padding is None else asked.padding[i]
            if is_padding is not None or asked.is_empty:
                empty = is_padding.tolist() if is_padding is not None else [True] * len(texts)
                return [
                    _EMPTY[self._attribute.dtype] if e else _decoded(name, decode, text)
                    for e, text in zip(empty, texts, strict=True)
                ]
            try:
                return [decode(text) for text in texts]
            except (ValueError, RecursionError):
                return [_decoded(name, decode, text) for text in texts]  # says which

        return {name: field}


def _decoded(name: str, decode: Callable[[memoryview], Any], text: memoryview) -> Any:
    try:
        return decode(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"attribute {name!r}: a row is not what it should be: {error}") from error


def one_value(attribute: Attribute, data: memoryview) -> Any:
    """One row of no fixed size, copied from its bytes."""
    if attribute.is_text:
        return _decoded(attribute.name, _DECODERS[attribute.dtype], data)
    items = np.frombuffer(data, attribute.numpy_dtype) if data.nbytes else ()
    return np.array(items, attribute.numpy_dtype).reshape(-1, *attribute.item_shape)


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


def _json(data: memoryview) -> Any:
    return json.loads(str(data, "utf-8"), parse_constant=_no_json)


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    "bytes": memoryview.tobytes,
    "str": _text,
    "json": _json,
}
_EMPTY: dict[str, Any] = {"bytes": b"", "str": "", "json": None}


def _items(room: Array, attribute: Attribute) -> Array:
    items: Array = room.view(attribute.numpy_dtype).reshape(-1, *attribute.item_shape)
    return items
