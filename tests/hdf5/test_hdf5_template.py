"""Object bytes: plain HDF5, and flat arrays at the offsets that a layout says."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from dataclasses import replace

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader.codecs import Codec
from storage_loader.errors import FormatError, SchemaError
from storage_loader.hdf5 import (
    DIRECTORY,
    CodedRegion,
    Template,
    capacity,
    coded_overhead,
    coded_template,
    most_overhead,
    template,
)
from storage_loader.hdf5.header import lookup3, settle
from storage_loader.hdf5.template import MAX_ROWS
from storage_loader.layout import ALIGNMENT
from storage_loader.schema import DTYPES, TEXTS, Attribute, Schema

names = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_.\- ]{0,20}[A-Za-z0-9_.\-])?", fullmatch=True)
notes = st.none() | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
)
attributes = st.builds(
    Attribute,
    names,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    unit=notes.map(lambda text: text and text[:64]),
    description=notes | st.integers(1, 4096).map(lambda length: "é" * length),
)
schemas = st.lists(attributes, min_size=1, max_size=12, unique_by=lambda a: a.name).map(Schema.of)


def filled(made: Template, seed: int) -> bytearray:
    """A whole object: the template, and random bytes where rows and checksums go."""
    layout = made.layout
    data = bytearray(np.random.default_rng(seed).bytes(layout.nbytes))
    for offset, piece in made.pieces:
        data[offset : offset + len(piece)] = piece
    return data


def check(schema: Schema, rows: int, seed: int) -> None:
    """h5py finds the arrays where the layout has them, and every byte belongs to one part."""
    made = template(schema, rows)
    layout = made.layout
    parts = [(offset, offset + len(piece)) for offset, piece in made.pieces]
    parts += [(c.offset, c.end) for c in layout.columns.values() if c.nbytes]
    parts += [layout.directory_range] if layout.num_checksums else []
    parts.sort()
    assert [end for _, end in parts] == [*(start for start, _ in parts[1:]), layout.nbytes]
    assert parts[0][0] == 0

    data = filled(made, seed)
    with h5py.File(io.BytesIO(data), "r") as h5:
        assert set(h5) == {DIRECTORY, *schema.names}
        table = h5[DIRECTORY]
        assert (table.shape, table.dtype) == ((layout.num_checksums,), np.dtype("<u8"))
        start, end = layout.directory_range
        assert table[...].tobytes() == data[start:end]
        for a in schema:
            assert_shown(h5, a)
            column = layout.columns[a.name]
            dataset = h5[a.name]
            assert dataset.shape == (rows, *a.shape)
            assert (column.items, column.item_nbytes) == (rows, a.row_nbytes)
            if not a.row_nbytes:
                assert column.offset == 0
                continue
            assert dataset.chunks is None
            assert dataset.id.get_offset() == column.offset
            assert dataset.id.get_storage_size() == column.nbytes
            assert column.offset % ALIGNMENT == 0
            if a.dtype != "bfloat16":
                assert dataset.dtype == a.numpy_dtype.newbyteorder("<")
                # Random bytes as numbers: h5py reads them as they are, NaNs' payloads too.
                assert dataset[...].tobytes() == data[column.offset : column.end]


def assert_shown(h5: h5py.File, a: Attribute) -> None:
    """HDF5 shows what the attribute is, and its notes."""
    found = dict(h5[a.name].attrs)
    shape = found.pop("shape")
    assert (shape.dtype, shape.shape) == (np.dtype("<i8"), (len(a.shape),))
    assert tuple(None if axis < 0 else axis for axis in shape.tolist()) == a.shape
    assert {name: text.decode() for name, text in found.items()} == {"dtype": a.dtype, **a.notes}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (0,)], ids=str)
@pytest.mark.parametrize("rows", [1, 7])
def test_every_dtype(dtype: str, shape: tuple[int, ...], rows: int) -> None:
    check(Schema.of([("x", dtype, shape)]), rows, seed=rows)


@settings(max_examples=150)
@given(schemas, st.integers(1, 300), st.integers(0, 2**32))
def test_any_schema(schema: Schema, rows: int, seed: int) -> None:
    check(schema, rows, seed)


@pytest.mark.parametrize("rows", [1, 7, 20_000])
@pytest.mark.parametrize("items", [0, 1, 100_000])
def test_rows_of_no_fixed_size(rows: int, items: int) -> None:
    """h5py finds ends and values of each attribute where the layout has them."""
    schema = Schema.of(
        [
            Attribute("a", "int16", (None, 3), unit="µm"),
            Attribute("b", "str", description="é" * 4096),
            ("c", "uint8", (2,)),
            Attribute("d", "float64", (None,), unit="m", description="long"),
        ]
    )
    counts = {"a": items, "b": 5, "d": 2 * items}
    made = template(schema, rows, tuple(counts.values()))
    layout = made.layout
    data = filled(made, seed=items)
    parts = [(offset, offset + len(piece)) for offset, piece in made.pieces]
    parts += [(c.offset, c.end) for c in layout.columns.values() if c.nbytes]
    parts = sorted([*parts, layout.directory_range])
    assert [end for _, end in parts] == [*(start for start, _ in parts[1:]), layout.nbytes]
    with h5py.File(io.BytesIO(data), "r") as h5:
        assert set(h5) == {DIRECTORY, "a", "b", "c", "d"}
        assert h5[DIRECTORY].shape == (1 + 3 * 7 + layout.num_checksums,)
        for a in schema:
            assert_shown(h5, a)
        for region in schema.regions:
            dataset, column = h5[region.name], layout.columns[region.name]
            count = counts[region.attribute] if region.role == "values" else rows
            assert (dataset.shape, column.items) == ((count, *region.shape), count)
            assert dataset.chunks is None
            assert (dataset.id.get_offset() or 0) == column.offset
            assert dataset[...].tobytes() == data[column.offset : column.end]


@pytest.mark.parametrize("num", [8, 9, 100])
def test_many_attributes(num: int) -> None:
    """HDF5 keeps nine and more names in another structure than eight."""
    schema = Schema.of([(f"x{i}", "int16", (i % 5,)) for i in range(num)])
    check(schema, 10, seed=num)
    rows = capacity(schema, 2**20)
    assert template(schema, rows).layout.nbytes <= 2**20 < template(schema, rows + 1).layout.nbytes


@settings(max_examples=150)
@given(schemas, st.integers(1, 3000), st.integers(0, 3000))
def test_with_fewer_rows_no_column_lies_later(schema: Schema, rows: int, more: int) -> None:
    """So that a partly filled buffer can be closed up by moving columns down."""
    small, large = template(schema, rows).layout, template(schema, rows + more).layout
    assert small.nbytes <= large.nbytes
    assert small.directory_offset <= large.directory_offset
    for name in schema.names:
        assert small.columns[name].offset <= large.columns[name].offset


def test_small_columns_lie_beside_the_checksums() -> None:
    schema = Schema.of([("image", "uint8", (3, 224, 224)), ("id", "int64"), ("label", "int16")])
    layout = template(schema, 100).layout
    offsets = {name: column.offset for name, column in layout.columns.items()}
    assert layout.directory_offset < offsets["label"] < offsets["id"] < offsets["image"]
    assert list(layout.columns) == list(schema.names)


def test_the_header_is_small() -> None:
    """4,096 would make it 20 KB; 64 is what alignment is for."""
    attributes = [Attribute("image", "uint8", (3, 224, 224)), Attribute("target", "int64")]
    noted = [replace(a, unit="m", description="what it is" * 10) for a in attributes]
    for schema, most in ((Schema.of(attributes), 1400), (Schema.of(noted), 2048)):
        layout = template(schema, 100).layout
        assert layout.nbytes - 100 * schema.row_nbytes - 8 * layout.num_checksums < most


@pytest.mark.parametrize("dtype", ["int8", "str"])
def test_headers_of_several_mebibytes(dtype: str) -> None:
    """HDF5's cache of what it writes begins with two: what it drops from there, it reads again."""
    schema = Schema.of([Attribute(f"x{i}", dtype, description="é" * 4096) for i in range(400)])
    made = template(schema, 3, tuple(range(400)) if dtype == "str" else ())
    layout = made.layout
    parts = [(offset, offset + len(piece)) for offset, piece in made.pieces]
    parts += [(c.offset, c.end) for c in layout.columns.values() if c.nbytes]
    parts = sorted([*parts, layout.directory_range])
    assert [end for _, end in parts] == [*(start for start, _ in parts[1:]), layout.nbytes]
    with h5py.File(io.BytesIO(filled(made, seed=0)), "r") as h5:
        for a in schema:
            assert_shown(h5, a)


def test_what_equal_schemas_differ_in_is_not_mixed_up() -> None:
    """Templates are kept by schema, and two are equal whatever their notes are."""
    plain = Schema.of([("x", "int8"), ("text", "str")])
    noted = Schema.of([Attribute("x", "int8", unit="m"), Attribute("text", "str")])
    longer = Schema.of([Attribute("x", "int8"), Attribute("text", "str", description="d" * 4096)])
    assert plain == noted == longer
    codec = Codec.of({})
    for _ in range(2):
        for schema in (plain, noted, longer):
            coded = coded_template(schema, 5, (8,), {"x": CodedRegion(codec, (3,))})
            for made in (template(schema, 5, (8,)), coded):
                with h5py.File(io.BytesIO(filled(made, seed=0)), "r") as h5:
                    for a in schema:
                        assert_shown(h5, a)
        assert most_overhead(longer) > most_overhead(noted) + 4000
        assert coded_overhead(longer, {"x": codec}) > coded_overhead(noted, {"x": codec}) + 4000
    fixed, described = (
        plain.select(["x"]),
        Schema.of([Attribute("x", "int8", description="d" * 4096)]),
    )
    assert capacity(fixed, 2**16) > capacity(described, 2**16) + 4000


def test_bfloat16_is_a_float_to_plain_h5py() -> None:
    schema = Schema.of([("x", "bfloat16", (4,))])
    made = template(schema, 4096)
    values = np.arange(2**16, dtype=np.uint16)[: 4096 * 4]
    values = np.concatenate([values[:8192], values[:8192] + 2**15]).reshape(4096, 4)
    data = filled(made, seed=0)
    column = made.layout.columns["x"]
    data[column.offset : column.end] = values.tobytes()
    with h5py.File(io.BytesIO(data), "r") as h5:
        read = h5["x"].astype("float32")[...]
        assert h5["x"].id.get_type().get_size() == 2
    np.testing.assert_array_equal(read, values.view(ml_dtypes.bfloat16).astype(np.float32))


def test_every_bfloat16_reads_as_its_float32() -> None:
    schema = Schema.of([("x", "bfloat16")])
    made = template(schema, 2**16)
    data = filled(made, seed=0)
    column = made.layout.columns["x"]
    bits = np.arange(2**16, dtype=np.uint16)
    data[column.offset : column.end] = bits.tobytes()
    with h5py.File(io.BytesIO(data), "r") as h5:
        read = h5["x"].astype("float32")[:]
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(np.signbit(read), np.signbit(expected))


PROGRAM = """
import hashlib
from storage_loader.hdf5 import template
from storage_loader.schema import DTYPES, Schema

schema = Schema.of([(f"x {dtype}", dtype, (2, i)) for i, dtype in enumerate(DTYPES)])
made = template(schema, 1000)
print(hashlib.sha256(repr(made).encode()).hexdigest())
"""


def test_a_template_is_the_same_in_every_process() -> None:
    schema = Schema.of([(f"x {dtype}", dtype, (2, i)) for i, dtype in enumerate(DTYPES)])
    first = template(schema, 1000)
    assert template.__wrapped__(schema, 1000) == first  # type: ignore[attr-defined]  made anew
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(repr(first).encode()).hexdigest()


def test_equal_rows_give_equal_objects() -> None:
    """Nothing of a template depends on what memory held: its padding is zeros."""
    schema = Schema.of([("a", "uint8", (3,)), ("b", "float64", (2,)), ("c", "bool")])
    made = template(schema, 33)
    objects = [filled(made, seed) for seed in (1, 2)]
    parts = [(c.offset, c.end) for c in made.layout.columns.values()]
    for start, end in [*parts, made.layout.directory_range]:
        for data in objects:
            data[start:end] = bytes(end - start)
    assert objects[0] == objects[1]


# Whichever HDF5 library made it

EVERY_DTYPE = "0e00d26dbe955fd5"
EVERY_RAGGED = "5c2b71e41adb785d"
WITH_NOTES = "1f5184e308bb2447"


def test_a_template_is_the_same_with_every_hdf5_library() -> None:
    """What was made with HDF5 1.14.4, 1.14.6 and 2.0.0: `verify` compares it.

    Where this fails with a new HDF5, look at what it writes otherwise and settle that, too.
    """
    schema = Schema.of([(f"x {dtype}", dtype, (2, i)) for i, dtype in enumerate(DTYPES)])
    made = template(schema, 1000)
    assert digest_of(made) == EVERY_DTYPE
    ragged = [
        *((f"x {dtype}", dtype, (None, 2)) for dtype in DTYPES),
        *((f"x {t}", t) for t in TEXTS),
    ]
    counts = tuple(range(0, 500 * len(ragged), 500))
    assert digest_of(template(Schema.of(ragged), 1000, counts)) == EVERY_RAGGED
    noted = [
        Attribute(
            name,
            dtype,
            shape[0] if shape else (),
            unit="µ",
            description="é" * (1, 23, 529, 4096)[i % 4],
        )
        for i, (name, dtype, *shape) in enumerate(ragged)
    ]
    assert digest_of(template(Schema.of(noted), 1000, counts)) == WITH_NOTES


def digest_of(made: Template) -> str:
    text = repr((made.layout.nbytes, made.pieces))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("num", [1, 30])
def test_a_header_of_hdf5_2_is_settled(num: int) -> None:
    """HDF5 2 gives the layout message version 3; h5py shows the same arrays."""
    schema = Schema.of(
        [
            Attribute(f"x{i}", dtype, (3,) * (i % 9), description="d" * (10 * i % 4097) or None)
            for i, dtype in enumerate([*DTYPES] * num)
        ][:num]
    )
    made = template(schema, 7)
    data = filled(made, seed=0)
    other = bytearray(data)
    assert {name for name, *_ in made.headers} == {"", *schema.names}
    written = {start: bytes(data[start:end]) for _, start, end in made.headers}
    for start, header in written.items():
        assert lookup3(header[:-4]).to_bytes(4, "little") == header[-4:]
        if not header.startswith(b"OHDR"):
            continue
        parts = dict(written)
        settle(parts, start, 3)
        [(place, older)] = parts.items() - written.items()
        changed = zip(older[:-4], written[place][:-4], strict=True)
        assert sum(a != b for a, b in changed) == 1
        other[place : place + len(older)] = older
        for _ in range(2):
            settle(parts, start)
            assert parts == written
    with h5py.File(io.BytesIO(other), "r") as h5, h5py.File(io.BytesIO(data), "r") as same:
        for name in (DIRECTORY, *schema.names):
            assert h5[name].dtype == same[name].dtype
            assert h5[name].id.get_offset() == same[name].id.get_offset()
            assert h5[name][...].tobytes() == same[name][...].tobytes()


CONTINUED = b"\x10\x10\0\0" + (1000).to_bytes(8, "little") + bytes(8)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"OHDR\1" + bytes(300),
        b"OHDR\2" + bytes(300),
        b"OHDR\2" + bytes(2) + CONTINUED + bytes(300),  # where nothing is
    ],
)
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    with pytest.raises(FormatError, match="its version is too new"):
        settle({64: header}, 64)


def test_lookup3_is_that_of_its_author() -> None:
    """The figures of lookup3.c's own driver, with an initial value of 0."""
    text = b"Four score and seven years ago"
    assert (lookup3(b""), lookup3(text)) == (0xDEADBEEF, 0x17770551)


# Capacity


@settings(max_examples=150)
@given(schemas, st.integers(2**16, 2**20))
def test_capacity_is_the_most_rows_that_fit(schema: Schema, max_nbytes: int) -> None:
    least = template(schema, 1).layout.nbytes
    if least > max_nbytes:
        with pytest.raises(SchemaError, match="needs an object of"):
            capacity(schema, max_nbytes)
        return
    rows = capacity(schema, max_nbytes)
    assert template(schema, rows).layout.nbytes <= max_nbytes
    if schema.row_nbytes:
        assert template(schema, rows + 1).layout.nbytes > max_nbytes
    else:
        assert rows == MAX_ROWS


@pytest.mark.parametrize("row_nbytes", [1, 8, 3000, 65535, 65536, 65537, 150528])
@pytest.mark.parametrize("max_nbytes", [2**20, 2**26])
def test_capacity_of_images_and_ids(row_nbytes: int, max_nbytes: int) -> None:
    schema = Schema.of([("image", "uint8", (row_nbytes,)), ("id", "int64"), ("flag", "bool")])
    rows = capacity(schema, max_nbytes)
    assert template(schema, rows).layout.nbytes <= max_nbytes
    assert template(schema, rows + 1).layout.nbytes > max_nbytes


def test_the_smallest_object_that_holds_a_row() -> None:
    schema = Schema.of([("x", "uint8", (2**20,))])
    least = template(schema, 1).layout.nbytes
    assert capacity(schema, least) == 1
    with pytest.raises(SchemaError) as error:
        capacity(schema, least - 1)
    assert str(error.value) == (
        f"a row of 1048576 bytes needs an object of {least} bytes, but max_object_size is "
        f"{least - 1}; set max_object_size to {least} or more"
    )


def test_rows_without_bytes() -> None:
    schema = Schema.of([("x", "float32", (3, 0))])
    assert capacity(schema, 2**16) == MAX_ROWS
    check(schema, MAX_ROWS, seed=0)
