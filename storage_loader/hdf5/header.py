"""Dataset headers with the same bytes, whichever HDF5 library wrote them.

HDF5 1.10 to 1.14 write version 4 of the message that says where a contiguous dataset lies, HDF5 2
writes version 3. Both mean the same, all of them read both, and nothing else differs: so version 4
it is. Only what was just written is changed here, never what was read from storage.

A filter's message holds the filter's name where the process happens to have that filter, and none
where it has not: so datasets are made with stand-ins, which every HDF5 library has and nothing
applies, and the message of as many bytes is put in their place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..codecs import Filters
from ..errors import FormatError

LAYOUT_VERSION = 4
DEFLATE = 1  # the filter that stands in for others

_SIGNATURE, _CONTINUATION = b"OHDR\2", b"OCHK"
_LAYOUT, _PIPELINE, _CONTINUED = 8, 11, 16  # types of messages
_PIPELINE_VERSION = 2
_OPTIONAL = 1  # flag of a filter
_NAMED = 256  # filters from this number on may have a name in the message
_TIMES, _PHASES, _ORDERED = 0x20, 0x10, 0x04  # flags: what else a header holds
_CHECKSUM_NBYTES = 4


Parts = dict[int, bytes]
"""What a file holds, by place."""


def settle(written: Parts, address: int, version: int = LAYOUT_VERSION) -> None:
    """Give the dataset whose header begins at `address` this version of its layout message.

    Raises `FormatError` where the header has another form than HDF5 makes here.
    """
    part, place, _ = _message(written, address, _LAYOUT)
    if written[part][place] != version:
        written[part] = _changed(written[part], place, bytes([version]))


def stand_ins(filters: Filters) -> list[int]:
    """How many values each of some stand-ins has, so that their message is as long as that of
    `filters`, of which at most one may have a name."""
    named = sum(number >= _NAMED for number, _ in filters)
    values = sum(len(some) for _, some in filters)  # at least one
    return [values - named, *[0] * (len(filters) + named - 1)]


def filter_by(written: Parts, address: int, filters: Filters) -> None:
    """Give the dataset whose header begins at `address` these filters instead of stand-ins.

    Raises `FormatError` where the header has another form than HDF5 makes here.
    """
    message = struct.pack("<BB", _PIPELINE_VERSION, len(filters))
    for number, values in filters:
        name = b"" if number < _NAMED else struct.pack("<H", 0)
        message += struct.pack("<H", number) + name
        message += struct.pack(f"<HH{len(values)}I", _OPTIONAL, len(values), *values)
    part, place, nbytes = _message(written, address, _PIPELINE)
    if nbytes != len(message):
        raise FormatError("HDF5 made a dataset's filters of another form; its version is too new")
    written[part] = _changed(written[part], place, message)


def header_parts(written: Parts, address: int) -> list[tuple[int, int]]:
    """Place and bytes of each part of the object header that begins at `address`.

    What does not fit into its first part stands in others. Raises `FormatError` where it has
    another form than HDF5 makes here.
    """
    places = [address]
    for part in places:
        for kind, place, _ in _messages(written, address, part):
            if kind == _CONTINUED:
                places += struct.unpack_from("<Q", written[part], place)
    return [(part, len(written[part])) for part in places]


def chunk_index(written: Parts, address: int) -> int:
    """Where the index of the chunks of the dataset begins whose header is at `address`."""
    part, place, nbytes = _message(written, address, _LAYOUT)
    (index,) = struct.unpack_from("<Q", written[part], place + nbytes - 8)
    return int(index)


def with_checksum(body: bytes) -> bytes:
    """Metadata of HDF5, complete."""
    return body + struct.pack("<I", lookup3(body))


def _changed(part: bytes, place: int, message: bytes) -> bytes:
    """With other bytes at a place, and the checksum right."""
    return with_checksum(part[:place] + message + part[place + len(message) : -_CHECKSUM_NBYTES])


def _message(written: Parts, address: int, kind: int) -> tuple[int, int, int]:
    """Of the header's message of a kind: which part it stands in, its place there, its bytes."""
    for part, _ in header_parts(written, address):
        for found, place, nbytes in _messages(written, address, part):
            if found == kind:
                return part, place, nbytes
    raise FormatError(_OTHER)


def _messages(written: Parts, address: int, part: int) -> Iterator[tuple[int, int, int]]:
    """Kind, place and bytes of each message in a part of the header that begins at `address`."""
    header, body = written.get(address, b""), written.get(part, b"")
    if not header.startswith(_SIGNATURE) or not body.startswith((_SIGNATURE, _CONTINUATION)):
        raise FormatError(_OTHER)
    flags = header[len(_SIGNATURE)]
    place = len(_CONTINUATION)
    if part == address:
        place = 6 + (16 if flags & _TIMES else 0) + (4 if flags & _PHASES else 0)
        place += 1 << (flags & 3)  # the bytes that say how long the first part is
    overhead = 6 if flags & _ORDERED else 4
    while place + overhead < len(body) - _CHECKSUM_NBYTES:
        kind, nbytes = struct.unpack_from("<BH", body, place)
        yield kind, place + overhead, nbytes
        place += overhead + nbytes


_OTHER = "HDF5 made a dataset's header of another form; its version is too new"


def lookup3(data: bytes) -> int:
    """Bob Jenkins' hash `hashlittle` (lookup3.c, 2006) from 0: the checksum of HDF5's metadata."""
    a = b = c = 0xDEADBEEF + len(data) & _MASK
    padded = data + bytes(-len(data) % 12)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    last = len(words) - 3
    for i in range(0, last, 3):  # 1.7 us
        x, y, z = words[i : i + 3]
        a, b, c = a + x, b + y, c + z & _MASK
        a = (a - c & _MASK) ^ (c << 4 & _MASK | c >> 28)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 6 & _MASK | a >> 26)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 8 & _MASK | b >> 24)
        b = b + a & _MASK
        a = (a - c & _MASK) ^ (c << 16 & _MASK | c >> 16)
        c = c + b & _MASK
        b = (b - a & _MASK) ^ (a << 19 & _MASK | a >> 13)
        a = a + c & _MASK
        c = (c - b & _MASK) ^ (b << 4 & _MASK | b >> 28)
        b = b + a & _MASK
    if words:
        a, b, c = a + words[-3] & _MASK, b + words[-2] & _MASK, c + words[-1] & _MASK
        c = (c ^ b) - _turned(b, 14) & _MASK
        a = (a ^ c) - _turned(c, 11) & _MASK
        b = (b ^ a) - _turned(a, 25) & _MASK
        c = (c ^ b) - _turned(b, 16) & _MASK
        a = (a ^ c) - _turned(c, 4) & _MASK
        b = (b ^ a) - _turned(a, 14) & _MASK
        c = (c ^ b) - _turned(b, 24) & _MASK
    return c


_MASK = 2**32 - 1


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
