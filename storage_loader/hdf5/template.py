"""The bytes of an HDF5 object around its rows.

HDF5 writes only its headers here: the datasets are contiguous, allocated at once and not
filled, so their offsets are known before a row exists, and rows and checksums are copied
to those offsets without HDF5. The header is the same for every object of one layout,
whichever HDF5 library makes it.

A compressed dataset is chunked, a chunk for each block: HDF5 is told of chunks of the right sizes,
and says where it puts them. See chunk_index.py.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

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
    block_items,
    num_place_words,
)
from ..schema import Attribute, Region, Schema
from .chunk_index import Chunks, list_chunks, told_together
from .header import DEFLATE, filter_by, header_parts, settle, stand_ins
from .shown import show

DIRECTORY = ".directory"  # no attribute's name begins with a dot
LEAST_HEADER = 256  # bytes; HDF5 writes 268 for each dataset, and more beside them


@dataclass(frozen=True)
class Template:
    """An object without its rows and checksums: where they go, and all other bytes."""

    layout: ObjectLayout
    pieces: tuple[tuple[int, bytes], ...]  # (offset, bytes); what lies between is padding
    headers: tuple[tuple[str, int, int], ...]  # attribute, bytes of its headers, by their start


@dataclass(frozen=True)
class CodedRegion:
    """How a region is compressed, and to what."""

    codec: Codec
    sizes: tuple[int, ...]  # bytes of each block as stored; as many as decoded: it is not coded


P = ParamSpec("P")
T = TypeVar("T")


def _kept(make: Callable[P, T]) -> Callable[P, T]:
    """Keep results by the arguments, of which the first is a schema, and by its notes.

    These make no schema another one, but the header.
    """

    @lru_cache(maxsize=64)
    def known(notes: object, *args: Any, **kwargs: Any) -> T:
        return make(*args, **kwargs)

    @wraps(make)
    def kept(*args: P.args, **kwargs: P.kwargs) -> T:
        schema: Any = args[0]
        notes = tuple((attribute.unit, attribute.description) for attribute in schema)
        return known(notes, *args, **kwargs)  # type: ignore[arg-type]  # they are

    return kept


@_kept
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
    return _template(schema, rows, values, blocks_of, {})


def coded_template(
    schema: Schema,
    rows: int,
    values: tuple[int, ...],
    coded: Mapping[str, CodedRegion],
    blocks_of: tuple[int, ...] | None = None,
) -> Template:
    """The same where regions are compressed: `coded`, at least one, all of which have bytes.

    2 us more for each block.
    """
    with phil:  # h5py takes it in all its calls but the one that writes chunks
        return _template(schema, rows, values, blocks_of, coded)


def _template(
    schema: Schema,
    rows: int,
    values: tuple[int, ...],
    blocks_of: tuple[int, ...] | None,
    coded: Mapping[str, CodedRegion],
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
    words *= CODED_BLOCK_WORDS if coded else 1
    if schema.is_variable or coded:
        words += num_place_words(len(regions))
    offsets, datasets, chunks, filters = {}, {}, {}, {}
    with _created(file) as h5:
        places = _Places(h5, schema)
        directory = _Place(h5.id, DIRECTORY)
        directory_offset, datasets[""] = _create(directory, h5py.h5t.STD_U64LE, (words,))
        for region in sorted(regions, key=lambda r: r.item_nbytes * items[r.name]):
            name, shape = region.name, (items[region.name], *region.shape)
            place, kind = places.of(region), file_type(region.dtype)
            if name in coded:
                chunk = min(blocks[name], items[name])
                filters[name] = coded[name].codec.filters(
                    region.dtype.itemsize, chunk * region.item_nbytes
                )
                chunks[name], datasets[name] = _create_coded(
                    place, kind, shape, file, chunk, coded[name].sizes, filters[name]
                )
                offsets[name] = int(chunks[name].ranges[0, 0])
            else:
                offsets[name], datasets[name] = _create(place, kind, shape)
    for name, address in datasets.items():
        settle(file.written, address)
        if name in filters:
            filter_by(file.written, address, filters[name])
            list_chunks(file.written, address, chunks[name])
    owned = [(name.partition("/")[0], address) for name, address in datasets.items()]
    owned += [(name, address) for name, (_, address) in places.groups.items()]
    headers = [
        (name, start, start + nbytes)
        for name, address in owned
        for start, nbytes in header_parts(file.written, address)
    ]
    layout = ObjectLayout.of(
        schema,
        rows=rows,
        nbytes=file.end,
        offsets=offsets,
        blocks=blocks,
        directory_offset=directory_offset,
        values=items,
        codecs={name: region.codec for name, region in coded.items()},
        coded={name: some.ranges for name, some in chunks.items()},
    )
    pieces = sorted([*file.written.items(), *_padding(file, layout)])
    headers.sort(key=itemgetter(1))
    return Template(layout, tuple(pieces), tuple(headers))


def _padding(file: _Recorder, layout: ObjectLayout) -> list[tuple[int, bytes]]:
    """Zeros for the few bytes that belong to nothing, so that equal rows give equal objects."""
    parts = [(start, start + len(piece)) for start, piece in file.written.items()]
    parts += [layout.directory_range, (layout.nbytes, layout.nbytes)]
    columns = layout.columns.values()
    parts += [(column.offset, column.end) for column in columns if column.coded is None]
    coded = [column.coded for column in columns if column.coded is not None]
    starts, ends = np.sort(np.concatenate([np.array(parts), *coded]), axis=0).T
    gaps = np.flatnonzero(starts[1:] > ends[:-1])
    places = zip(ends[gaps].tolist(), starts[gaps + 1].tolist(), strict=True)
    return [(start, bytes(end - start)) for start, end in places]


@_kept
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


@_kept
def most_overhead(schema: Schema) -> int:
    """The most bytes that an object has beside its regions and directory, each rounded up to 64.

    HDF5's headers are as long whatever the numbers of rows and values are; where they lie between
    the other parts may make some bytes of difference.
    """
    values = tuple(ALIGNMENT for region in schema.regions if region.role == "values")
    layout = template(schema, ALIGNMENT, values).layout
    parts = [*(c.nbytes for c in layout.columns.values()), layout.num_words * WORD_NBYTES]
    return layout.nbytes - sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in parts) + _SPREAD


@_kept
def _coded_overhead(schema: Schema, codecs: tuple[tuple[str, Codec], ...]) -> int:
    values = tuple(2 for region in schema.regions if region.role == "values")
    coded = {name: CodedRegion(codec, (1, 1)) for name, codec in codecs}
    blocks = (1,) * len(schema.regions)  # so that each region has two
    layout = coded_template(schema, 2, values, coded, blocks).layout
    parts = [c.nbytes for c in layout.columns.values() if c.coded is None]
    parts += [1] * (2 * len(coded)) + [layout.num_words * WORD_NBYTES]
    return layout.nbytes - sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in parts) + _SPREAD


def coded_overhead(schema: Schema, codecs: Mapping[str, Codec]) -> int:
    """The most bytes that an object has beside regions, directory and what each coded block has.

    `codecs`: by region that is compressed.
    """
    return _coded_overhead(schema, tuple(codecs.items())) + ALIGNMENT * (len(codecs) + 1)


_SPREAD = 4 * ALIGNMENT


def _created(file: _Recorder) -> h5py.File:
    """An empty HDF5 file, of the same bytes at any time.

    HDF5 1.10 and later read it: of the newest format that HDF5 2 writes, 1.14 reads no complex.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(1, ALIGNMENT)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    cache = access.get_mdc_config()  # HDF5 keeps all of the header, and writes it once
    cache.evictions_enabled = False
    cache.incr_mode = cache.flash_incr_mode = cache.decr_mode = 0
    access.set_mdc_config(cache)
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)  # of the root group
    return h5py.File(h5py.h5f.create(b"template", h5py.h5f.ACC_TRUNC, creation, access))


@dataclass(frozen=True)
class _Place:
    """Where an HDF5 object goes, and the attribute that it shows."""

    parent: h5py.h5g.GroupID
    name: str
    shown: Attribute | None = None

    def put(self, made: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> int:
        """Name a new object; returns where its header begins.

        First of all it gets what it shows: nothing else lies behind its header yet, so that its
        length depends on nothing else.
        """
        if self.shown is not None:
            show(self.shown, made)
        h5py.h5o.link(made, self.parent, self.name.encode())
        return int(h5py.h5o.get_info(made).addr)


class _Places:
    """Where regions go: into the root, or those of an attribute into a group of its name."""

    def __init__(self, h5: h5py.File, schema: Schema) -> None:
        self._root = h5.id
        self._attributes = {attribute.name: attribute for attribute in schema}
        self.groups: dict[str, tuple[h5py.h5g.GroupID, int]] = {}  # and where its header begins

    def of(self, region: Region) -> _Place:
        attribute = self._attributes[region.attribute]
        if region.role == "rows":
            return _Place(self._root, region.name, attribute)
        if attribute.name not in self.groups:
            properties = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
            properties.set_obj_track_times(False)
            group = h5py.h5g.create(self._root, None, gcpl=properties)
            address = _Place(self._root, attribute.name, attribute).put(group)
            self.groups[attribute.name] = group, address
        return _Place(self.groups[attribute.name][0], region.role)


def _create(place: _Place, kind: h5py.h5t.TypeID, shape: tuple[int, ...]) -> tuple[int, int]:
    """An empty contiguous dataset; returns where its bytes begin, 0 where it has none, and where
    its header does."""
    properties = _properties()
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(place.parent, None, kind, space, properties)
    offset = dataset.get_offset()
    if offset is None and 0 not in shape:
        raise FormatError(f"HDF5 gave no offset for dataset {place.name!r} of shape {shape}")
    return offset or 0, place.put(dataset)


def _create_coded(
    place: _Place,
    kind: h5py.h5t.TypeID,
    shape: tuple[int, ...],
    file: _Recorder,
    chunk: int,
    sizes: tuple[int, ...],
    filters: Filters,
) -> tuple[Chunks, int]:
    """A dataset of chunks of these sizes, each of `chunk` items; returns where they lie and where
    its header begins."""
    properties = _properties()
    properties.set_chunk((chunk, *shape[1:]))
    for count in stand_ins(filters):
        properties.set_filter(DEFLATE, h5py.h5z.FLAG_OPTIONAL, (0,) * count)
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(place.parent, None, kind, space, properties)
    address = place.put(dataset)
    whole, origin = chunk * math.prod(shape[1:]) * kind.get_size(), (0,) * len(shape[1:])
    nbytes = np.array(sizes, np.int64)
    masks = np.where(nbytes == whole, (1 << len(filters)) - 1, 0)  # filters that HDF5 leaves out
    places = np.append(0, np.cumsum(-(-nbytes // ALIGNMENT) * ALIGNMENT))
    starts = np.empty(len(sizes), np.int64)
    for first, last in told_together(len(sizes), whole):
        some = places[first:last] - places[first]
        with file.awaiting(int(some[-1]) + sizes[last - 1]) as data:
            dataset.write_direct_chunk((first * chunk, *origin), data, int(masks[first]))
        starts[first:last] = file.found + some
    chunks = Chunks(np.stack([starts, starts + nbytes], axis=1), masks)
    return chunks, address


def _properties() -> h5py.h5p.PropDCID:
    """Of a dataset whose bytes HDF5 does not write."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)
    return properties


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
        self.found = -1  # where the bytes that were awaited are
        self._awaited = -1  # address in memory of bytes of which only the place is remembered
        self._place = 0

    @contextlib.contextmanager
    def awaiting(self, nbytes: int) -> Iterator[mmap.mmap]:
        """So many bytes to write, which take no memory; then `found` is their place."""
        data = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        self.found, self._awaited = -1, _address(data)
        yield data
        self._awaited = -1
        if self.found < 0:
            raise FormatError("HDF5 did not write a chunk by itself; its version is too new")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.end}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: object) -> int:
        raise FormatError("HDF5 read back what it was writing; the header cannot be recorded")

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        if _address(view) == self._awaited:
            self.found = self._place
        else:
            self.written[self._place] = bytes(view)
        self._place += view.nbytes
        self.end = max(self.end, self._place)
        return view.nbytes

    def truncate(self, size: int | None = None) -> int:
        self.end = self._place if size is None else size
        return self.end

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _address(data: Any) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
