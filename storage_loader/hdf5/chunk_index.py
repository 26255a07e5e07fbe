"""Where a dataset's chunks lie, told to HDF5 in few calls.

To tell it of one chunk takes 9 us, and an object has thousands. So HDF5 is told of chunks that
stand for many, and what its index says of them is replaced: a fixed array, which the specification
of HDF5's file format describes (version 3.0, VII.C). Only what was just written is changed here,
never what was read from storage.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..layout import Ranges
from .header import Parts, chunk_index, with_checksum

_TOGETHER = 128  # HDF5 takes a chunk that is 255 times as large as its values
_LARGE = 2**23  # bytes of values of a chunk; HDF5 takes no chunk of 4 GiB
_HEADER, _DATA = b"FAHD\0\1", b"FADB\0\1"  # with the version, and that chunks have filters
_PREFIX_NBYTES = 14  # of the data before the entries, or before the bits of pages
_START_NBYTES, _MASK_NBYTES, _CHECKSUM_NBYTES = 8, 4, 4


class Chunks(NamedTuple):
    """All chunks of a dataset."""

    ranges: Ranges  # where they lie
    masks: npt.NDArray[np.int64]  # a bit of each for each filter that was left out


def told_together(count: int, nbytes: int) -> list[tuple[int, int]]:
    """Chunks (first, last + 1) that HDF5 is told of as one, of `count` with `nbytes` of values.

    The first one by itself, for behind it HDF5 puts the index; and any page of the index, of 1,024
    chunks, begins with one that HDF5 is told of.
    """
    together = _TOGETHER if nbytes <= _LARGE else 1
    firsts = sorted(first for first in {1, *range(0, count, together)} if first < count)
    return list(zip(firsts, [*firsts[1:], count], strict=True))


def list_chunks(written: Parts, address: int, chunks: Chunks) -> None:
    """Give the dataset whose header begins at `address` an index of these chunks.

    Raises `FormatError` where what HDF5 wrote has another form than it makes here.
    """
    count = len(chunks.masks)
    if count == 1:  # it has none
        return
    place = chunk_index(written, address)
    header = written.get(place, b"")
    if not header.startswith(_HEADER):
        raise FormatError(_OTHER)
    entry_nbytes, page_bits = header[len(_HEADER) : len(_HEADER) + 2]
    (place,) = struct.unpack_from("<Q", header, 16)
    data = written.get(place, b"")
    entries, most = _entries(chunks, entry_nbytes), entry_nbytes << page_bits
    if len(entries) <= most:
        pages, start = [entries], _PREFIX_NBYTES
    else:
        pages, start = [entries[i : i + most] for i in range(0, len(entries), most)], 0
        place += len(data)
    for page in pages:
        old = written.get(place, b"")
        if len(old) != start + len(page) + _CHECKSUM_NBYTES or not data.startswith(_DATA):
            raise FormatError(_OTHER)
        written[place] = with_checksum(old[:start] + page)
        place += len(old)


def _entries(chunks: Chunks, nbytes: int) -> bytes:
    """An entry of `nbytes` bytes for each chunk: where it begins, how long it is, its mask."""
    starts, ends = chunks.ranges.T
    fields = [(starts, _START_NBYTES), (ends - starts, nbytes - _START_NBYTES - _MASK_NBYTES)]
    fields.append((chunks.masks, _MASK_NBYTES))
    parts = [
        values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width] for values, width in fields
    ]
    return np.concatenate(parts, axis=1).tobytes()


_OTHER = "HDF5 made an index of chunks of another form; its version is too new"
