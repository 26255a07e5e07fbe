"""The bytes of an HDF5 object around its rows.

HDF5 writes only its headers here: the datasets are contiguous, allocated at once and not
filled, so their offsets are known before a row exists, and rows and checksums are copied
to those offsets without HDF5. The header is the same for every object of one layout,
whichever HDF5 library makes it.

A compressed dataset is chunked, a chunk for each block: HDF5 is told of chunks of the right sizes,
and says where it puts them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from h5py._objects import phil

from ..codecs import Codec, Filters
from ..errors import FormatError, SchemaError
from ..layout import (
    ALIGNMENT,
    CODED_BLOCK_WORDS,
    MAX_ROWS,
    WORD_NBYTES,
    ObjectLayout,
    Ranges,
    block_items,
    num_place_words,
)
from ..schema import Region, Schema
from .header import DEFLATE, filtered, settled, stand_ins

DIRECTORY = ".directory"  # no attribute's name begins with a dot
LEAST_HEADER = 256  # bytes; HDF5 writes 268 for each dataset, and more beside them


@dataclass(frozen=True)
class Template:
    """An object without its rows and checksums: where they go, and all other bytes."""

    layout: ObjectLayout
    pieces: tuple[tuple[int, bytes], ...]  # (offset, bytes); what lies between is padding
    headers: tuple[tuple[str, int, int], ...]  # attribute, bytes of its header, by their start


@dataclass(frozen=True)
class CodedRegion:
    """How a region is compressed, and to what."""

    codec: Codec
    sizes: tuple[int, ...]  # bytes of each block as stored; as many as decoded: it is not coded


@lru_cache(maxsize=64)
def template(
    schema: Schema,
    rows: int,
    values: tuple[int, ...] = (),
    blocks_of: tuple[int, ...] | None = None,
) -> Template:
    """The object that holds `rows` (at least 1) rows of `schema`. Takes about 2 ms.

    Small columns lie beside the directory at the front, so that one range has them all.
    `values`: of each attribute whose rows have no fixed size, how many values there are.
    `blocks_of`: items of a block by region, as `block_items` says by default.
    """
    return _template(schema, rows, values, blocks_of, {}, {})


def coded_template(
    schema: Schema,
    rows: int,
    values: tuple[int, ...],
    coded: Mapping[str, CodedRegion],
    codecs: Mapping[str, Codec],
    blocks_of: tuple[int, ...] | None = None,
) -> Template:
    """The same where regions have `codecs`; `coded` has those that have bytes.

    15 us more for each block.
    """
    with phil:  # h5py takes it in all its calls but the one that writes chunks
        return _template(schema, rows, values, blocks_of, coded, codecs)


def _template(
    schema: Schema,
    rows: int,
    values: tuple[int, ...],
    blocks_of: tuple[int, ...] | None,
    coded: Mapping[str, CodedRegion],
    codecs: Mapping[str, Codec],
) -> Template:
    file = _Recorder()
    regions = schema.regions
    counts = iter(values)
    items = {r.name: next(counts) if r.role == "values" else rows for r in regions}
    blocks = dict(
        zip(
            (r.name for r in regions),
            blocks_of or (block_items(r.item_nbytes) for r in regions),
            strict=True,
        )
    )
    words = sum(-(-items[r.name] // blocks[r.name]) for r in regions if r.item_nbytes)
    words *= CODED_BLOCK_WORDS if codecs else 1
    if schema.is_variable or codecs:
        words += num_place_words(len(regions))
    offsets, addresses, chunks = {}, {}, {}
    ranges: dict[str, Ranges] = {}
    with _created(file) as h5:
        directory_offset, addresses[""] = _create(h5, DIRECTORY, h5py.h5t.STD_U64LE, (words,))
        for region in sorted(regions, key=lambda r: r.item_nbytes * items[r.name]):
            name, count = region.name, items[region.name]
            if name in coded:
                chunks[name] = min(blocks[name], count)
                ranges[name], addresses[name] = _create_coded(
                    h5, file, region, count, chunks[name], coded[name]
                )
                offsets[name] = int(ranges[name][0, 0])
            else:
                shape = (count, *region.shape)
                offsets[name], addresses[name] = _create(h5, name, file_type(region.dtype), shape)
    headers = []
    for name, address in sorted(addresses.items(), key=lambda item: item[1]):
        header = settled(file.written.get(address, b""))
        if name in coded:
            [region] = (r for r in regions if r.name == name)
            header = filtered(header, _filters(region, chunks[name], coded[name]))
        file.written[address] = header
        headers.append((name.partition("/")[0], address, address + len(header)))
    layout = ObjectLayout.of(
        schema,
        rows=rows,
        nbytes=file.end,
        offsets=offsets,
        blocks=blocks,
        directory_offset=directory_offset,
        values=items,
        codecs=codecs,
        coded=ranges,
    )
    pieces = sorted([*file.written.items(), *_padding(file, layout)])
    return Template(layout, tuple(pieces), tuple(headers))


def _padding(file: _Recorder, layout: ObjectLayout) -> list[tuple[int, bytes]]:
    """Zeros for the few bytes that belong to nothing, so that equal rows give equal objects."""
    parts = [(start, start + len(piece)) for start, piece in file.written.items()]
    for column in layout.columns.values():
        coded = column.coded
        parts += [(column.offset, column.end)] if coded is None else map(tuple, coded.tolist())
    parts += [layout.directory_range, (layout.nbytes, layout.nbytes)]
    padding, place = [], 0
    for start, end in sorted(parts):
        if start > place:
            padding.append((place, bytes(start - place)))
        place = max(place, end)
    return padding


def capacity(schema: Schema, max_nbytes: int) -> int:
    """The most rows that an object of at most `max_nbytes` bytes holds.

    Raises `SchemaError` where not even one row fits.
    """
    least = template(schema, 1).layout.nbytes
    if least > max_nbytes:
        raise SchemaError(
            f"a row of {schema.row_nbytes} bytes needs an object of {least} bytes, but "
            f"max_object_size is {max_nbytes}; set max_object_size to {least} or more"
        )
    blocks = sum(WORD_NBYTES / block_items(r.item_nbytes) for r in schema.regions if r.item_nbytes)
    per_row = schema.row_nbytes + blocks
    if not per_row:
        return MAX_ROWS
    # But for alignment an object's size is linear in its rows: look near the line, then halve.
    near = int((max_nbytes - least) / per_row)
    spread = 1 + int(ALIGNMENT * (len(schema) + 1) / per_row)
    probes = [near + spread, near - spread]
    fits, too_many = 1, 1 + min(MAX_ROWS, int(max_nbytes / per_row))
    while too_many - fits > 1:
        rows = probes.pop() if probes else (fits + too_many) // 2
        if not fits < rows < too_many:
            continue
        if template(schema, rows).layout.nbytes <= max_nbytes:
            fits = rows
        else:
            too_many = rows
    return fits


@lru_cache(maxsize=64)
def most_overhead(schema: Schema) -> int:
    """The most bytes that an object has beside its regions and directory, each rounded up to 64.

    HDF5's headers are as long whatever the numbers of rows and values are; where they lie between
    the other parts may make some bytes of difference.
    """
    values = tuple(ALIGNMENT for region in schema.regions if region.role == "values")
    layout = template(schema, ALIGNMENT, values).layout
    parts = [*(c.nbytes for c in layout.columns.values()), layout.num_words * WORD_NBYTES]
    return layout.nbytes - sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in parts) + _SPREAD


@lru_cache(maxsize=64)
def _coded_overhead(schema: Schema, codecs: tuple[tuple[str, Codec], ...]) -> int:
    values = tuple(2 for region in schema.regions if region.role == "values")
    coded = {name: CodedRegion(codec, (1, 1)) for name, codec in codecs}
    blocks = (1,) * len(schema.regions)  # so that each region has two
    layout = coded_template(schema, 2, values, coded, dict(codecs), blocks).layout
    parts = [c.nbytes for c in layout.columns.values() if c.coded is None]
    parts += [1] * (2 * len(coded)) + [layout.num_words * WORD_NBYTES]
    return layout.nbytes - sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in parts) + _SPREAD


def coded_overhead(schema: Schema, codecs: Mapping[str, Codec]) -> int:
    """The most bytes that an object has beside regions, directory and what each coded block has.

    `codecs`: by region that is compressed.
    """
    return _coded_overhead(schema, tuple(codecs.items())) + ALIGNMENT * (len(codecs) + 1)


_SPREAD = 2 * ALIGNMENT


def _created(file: _Recorder) -> h5py.File:
    """An empty HDF5 file, of the same bytes at any time.

    HDF5 1.10 and later read it: of the newest format that HDF5 2 writes, 1.14 reads no complex.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(1, ALIGNMENT)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # of the root group
    return h5py.File(h5py.h5f.create(b"template", h5py.h5f.ACC_TRUNC, creation, access))


def _create(
    h5: h5py.File, name: str, file_type: h5py.h5t.TypeID, shape: tuple[int, ...]
) -> tuple[int, int]:
    """An empty contiguous dataset; returns where its bytes begin, 0 where it has none, and where
    its header does."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    parent, own = _parent(h5, name)
    dataset = h5py.h5d.create(parent, own, file_type, space, properties)
    offset = dataset.get_offset()
    if offset is None and 0 not in shape:
        raise FormatError(f"HDF5 gave no offset for dataset {name!r} of shape {shape}")
    return offset or 0, h5py.h5o.get_info(dataset).addr


def _create_coded(
    h5: h5py.File, file: _Recorder, region: Region, items: int, chunk: int, coded: CodedRegion
) -> tuple[Ranges, int]:
    """A dataset of chunks of these sizes; returns where they lie and where its header begins."""
    filters = _filters(region, chunk, coded)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((chunk, *region.shape))
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    for count in stand_ins(filters):
        properties.set_filter(DEFLATE, h5py.h5z.FLAG_OPTIONAL, (0,) * count)
    parent, own = _parent(h5, region.name)
    space = h5py.h5s.create_simple((items, *region.shape))
    dataset = h5py.h5d.create(parent, own, file_type(region.dtype), space, properties)
    whole, origin = chunk * region.item_nbytes, (0,) * len(region.shape)
    uncoded = (1 << len(filters)) - 1  # a bit for each filter that HDF5 is to leave out
    starts = []
    for i, nbytes in enumerate(coded.sizes):
        file.awaited = _MARK * nbytes
        mask = uncoded if nbytes == whole else 0
        dataset.write_direct_chunk((i * chunk, *origin), file.awaited, mask)
        starts.append(file.found)
    file.awaited = None
    begin = np.array(starts, np.int64)
    ranges = np.stack([begin, begin + np.array(coded.sizes, np.int64)], axis=1)
    return ranges, h5py.h5o.get_info(dataset).addr


_MARK = b"\xa5"  # what stands for the bytes of chunks: no metadata is made of it alone


def _filters(region: Region, chunk: int, coded: CodedRegion) -> Filters:
    return coded.codec.filters(region.dtype.itemsize, chunk * region.item_nbytes)


def _parent(h5: h5py.File, name: str) -> tuple[Any, bytes]:
    """Where a region's dataset is made, and its name there."""
    group, _, own = name.rpartition("/")
    return (_group(h5, group) if group else h5.id), own.encode()


def _group(h5: h5py.File, name: str) -> h5py.h5g.GroupID:
    if name.encode() in h5.id:
        return h5py.h5g.open(h5.id, name.encode())
    properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    properties.set_obj_track_times(False)
    return h5py.h5g.create(h5.id, name.encode(), gcpl=properties)


def file_type(dtype: np.dtype[Any]) -> h5py.h5t.TypeID:
    """The HDF5 type of values of a storable dtype: little-endian on every machine."""
    if dtype == ml_dtypes.bfloat16:
        kind = h5py.h5t.IEEE_F32LE.copy()  # sign 1, exponent 8, mantissa 7 bits: half a float32
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_size(2)
        kind.set_ebias(127)
        return kind
    return h5py.h5t.py_create(dtype.newbyteorder("<"), logical=True)


class _Recorder(io.RawIOBase):
    """A file that only remembers what was written where, and how long it became."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}
        self.end = 0
        self.awaited: bytes | None = None  # of these only the place is remembered
        self.found = -1
        self._place = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.end}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: object) -> int:
        raise FormatError("HDF5 read back what it was writing; the header cannot be recorded")

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        if piece == self.awaited:
            self.found = self._place
        else:
            self.written[self._place] = piece
        self._place += len(piece)
        self.end = max(self.end, self._place)
        return len(piece)

    def truncate(self, size: int | None = None) -> int:
        self.end = self._place if size is None else size
        return self.end

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
