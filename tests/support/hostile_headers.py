"""HDF5 objects whose headers someone changed, with right checksums everywhere else.

`mutated` changes one header in one to four places, choosing by `pick(n)`, a number from 0 to n - 1;
`try_objects` verifies a dataset of such objects. Whoever calls it does so in a process that may
die: before headers were compared, an HDF5 library parsed them, which ended the process at some
(`free(): invalid pointer`) and at others never came back.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import h5py
import numpy as np

from storage_loader import Attribute, DataConfig, verify_dataset
from storage_loader.catalog import Catalog, StoredObject
from storage_loader.hdf5 import DIRECTORY, template
from storage_loader.hdf5.header import lookup3
from storage_loader.layout import ALIGNMENT, ObjectLayout, block_items
from storage_loader.schema import Schema
from storage_loader.store import MemoryStore, xxh3
from tests.support.crafted import extremes_of

Pick = Callable[[int], int]

ROWS = 5
NOTED = Attribute("weight", "float32", (2,), unit="kg", description="as it was weighed" * 20)
FEW = Schema.of([("image", "uint8", (3, 5)), ("row", "int64"), NOTED])
MANY = Schema.of([(f"x{i}", "int16", (i % 4 + 1,)) for i in range(12)])
KINDS = Schema.of([("flag", "bool"), ("wave", "complex64", (2,)), ("half", "float16")])
MARKS = (b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"BTHD", b"BTLF", b"BTIN", b"\x89HDF")
ODD = (0, 1, 2, 3, 7, 8, 48, 64, 255, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Base:
    """An object as it was before someone changed it."""

    schema: Schema
    layout: ObjectLayout
    body: bytes
    is_ours: bool
    header: tuple[int, ...]  # the bytes that are neither rows nor checksums
    sealed: tuple[tuple[int, int], ...]  # ranges whose last four bytes are HDF5's own checksum


@cache
def bases() -> dict[str, Base]:
    """By who wrote it: this library, or h5py with this `libver`; with superblock 0, 2 and 3."""
    found = {"ours": _ours(FEW), "ours, many": _ours(MANY)}
    for libver in ("earliest", "v108", "latest"):
        found[libver] = _by_h5py(FEW, libver)
    found["ours, enum and compound"] = _ours(KINDS)
    for name, schema in (("many", MANY), ("enum and compound", KINDS)):
        found[f"earliest, {name}"] = _by_h5py(schema, "earliest")
    for libver in ("earliest", "latest"):
        found[f"{libver}, in place of rows"] = _by_h5py(FEW, libver, _strange)
    return found


def _strange(h5: h5py.File, name: str) -> None:
    """What HDF5 has the most to parse for, under an attribute's name."""
    text = h5py.string_dtype()
    kind = np.dtype([("a", "i4"), ("b", text), ("c", h5py.enum_dtype({"x": 1, "y": 2}))])
    if name == "image":
        h5.create_dataset(name, (ROWS,), kind, chunks=(2,), compression="gzip", shuffle=True)
    elif name == "row":
        h5.create_dataset(name, (ROWS,), text, fillvalue="text of variable length")
    else:
        h5[name] = h5py.ExternalLink("other.h5", "/weight")
    h5.attrs[name] = "an HDF5 attribute"


def _ours(schema: Schema) -> Base:
    made = template(schema, ROWS)
    body = bytearray(made.layout.nbytes)
    for offset, piece in made.pieces:
        body[offset : offset + len(piece)] = piece
    return _base(schema, made.layout, body, is_ours=True)


def _by_h5py(
    schema: Schema, libver: str, make: Callable[[h5py.File, str], None] | None = None
) -> Base:
    """Rows are where the layout says; with `make`, what HDF5 shows under their names is not."""
    file = io.BytesIO()
    offsets = {}
    how = {"libver": libver, "alignment_threshold": 1, "alignment_interval": ALIGNMENT}
    with h5py.File(file, "w", **how) as h5:
        table = h5.create_dataset(DIRECTORY, data=np.zeros(len(schema), "<u8"))
        directory_offset = table.id.get_offset()
        for a in sorted(schema, key=lambda a: a.row_nbytes):
            rows = np.zeros((ROWS, *a.shape), a.numpy_dtype)
            place = h5.create_dataset(a.name if make is None else f"at {a.name}", data=rows)
            offsets[a.name] = place.id.get_offset()
            if make is not None:
                make(h5, a.name)
    blocks = {a.name: block_items(a.row_nbytes) for a in schema}
    nbytes = len(file.getvalue())
    layout = ObjectLayout.of(
        schema,
        rows=ROWS,
        nbytes=nbytes,
        offsets=offsets,
        blocks=blocks,
        directory_offset=directory_offset,
    )
    return _base(schema, layout, bytearray(file.getvalue()), is_ours=False)


def _base(schema: Schema, layout: ObjectLayout, body: bytearray, *, is_ours: bool) -> Base:
    """With the checksums of its rows put in."""
    start, end = layout.directory_range
    blocks = [xxh3(bytes(body[a:b])) for a, b in layout.block_ranges.tolist()]
    body[start:end] = np.array(blocks, "<u8").tobytes()
    data = bytes(body)
    parts = [(start, end), *((c.offset, c.end) for c in layout.columns.values())]
    header = tuple(i for i in range(len(data)) if not any(a <= i < b for a, b in parts))
    return Base(schema, layout, data, is_ours, header, tuple(_sealed(data)))


def _sealed(body: bytes) -> list[tuple[int, int]]:
    """Where HDF5's own checksums stand: found by trying every length after every mark."""
    found = []
    for mark in MARKS:
        start = body.find(mark)
        while start >= 0:
            for end in range(start + 16, min(start + 600, len(body))):
                if lookup3(body[start : end - 4]) == int.from_bytes(body[end - 4 : end], "little"):
                    found.append((start, end))
                    break
            start = body.find(mark, start + 1)
    return found


def mutated(base: Base, pick: Pick) -> bytes:
    """The object with its header changed, and mostly HDF5's own checksums made right again."""
    body = bytearray(base.body)
    for _ in range(1 + pick(4)):
        place = base.header[pick(len(base.header))]
        size = (1, 1, 2, 4, 8)[pick(5)]
        kind = pick(4)
        old = int.from_bytes(body[place : place + size], "little")
        if kind == 0:
            new = old ^ 1 << pick(8 * size)
        elif kind == 1:
            new = old + (1, -1, 8, -8, 64)[pick(5)]
        elif kind == 2:
            new = ODD[pick(len(ODD))]
        else:
            other = base.header[pick(len(base.header))]
            new = int.from_bytes(body[other : other + size], "little")
        allowed = set(base.header)
        for i, byte in enumerate((new % 256**size).to_bytes(size, "little")):
            if place + i in allowed:
                body[place + i] = byte
    if pick(4):
        for start, end in base.sealed:
            body[end - 4 : end] = lookup3(bytes(body[start : end - 4])).to_bytes(4, "little")
    return bytes(body)


def try_objects(name: str, bodies: Sequence[bytes]) -> None:
    """Verify a dataset of these objects: each that is not as we write it is a problem, by key."""
    base = bases()[name]
    store = MemoryStore("memory://hostile-headers")
    store.delete([info.key for info in list(store.list())])
    config = DataConfig("headers", base.schema, storage=store.url)
    catalog = Catalog(config)
    catalog.create(base.schema)
    start, end = base.layout.directory_range
    table = xxh3(base.body[start:end])
    zeros = {a.name: np.zeros(ROWS, a.numpy_dtype) for a in base.schema}
    extremes = extremes_of(base.schema, zeros)
    decoded = ROWS * base.schema.row_nbytes
    objects = []
    for number, body in enumerate(bodies):
        key = f"objects/w/a-{number:06d}.h5"
        store.put(f"{config.dataset_prefix}/{key}", body)
        objects.append(StoredObject(key, xxh3(body), table, base.layout, decoded, extremes))
    catalog.publish(base.schema, objects, writer="w", number=0)
    expected = {
        o.key
        for o, body in zip(objects, bodies, strict=True)
        if not (base.is_ours and body == base.body)
    }
    problems = verify_dataset(config, num_threads=1).problems
    assert {problem.key for problem in problems} == expected
    assert all("HDF5 may show other rows" in problem.what for problem in problems)


def try_many(name: str, count: int, seed: int) -> None:
    """Verify so many changed objects, and the one that was not changed."""
    pick = random.Random(seed).randrange
    try_objects(name, [bases()[name].body, *(mutated(bases()[name], pick) for _ in range(count))])
