"""Objects in columns: the same as objects one by one, whatever commits they come from."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig
from storage_loader.catalog import (
    Catalog,
    Commit,
    CommitId,
    Snapshot,
    StoredObject,
    StoredObjects,
    Version,
    live_commits,
)
from storage_loader.errors import FormatError
from storage_loader.hdf5 import template
from storage_loader.layout import (
    LEAST_BLOCK_NBYTES,
    MAX_ROWS,
    ObjectLayout,
    block_items,
    misfits,
)
from storage_loader.schema import Schema
from storage_loader.store import MemoryStore
from tests.support.rows import ATTRIBUTES, config

SCHEMA = Schema(ATTRIBUTES)
SCHEMAS = (
    SCHEMA,
    Schema((Attribute("x", "uint8"),)),
    Schema((Attribute("none", "int64", (0,)), Attribute("x", "int32", (3,)))),
    Schema((Attribute("none", "int64", (0,)),)),
)
MANY = 3000  # objects, each of a layout of its own


def stored_object(number: int, rows: int, key: str | None = None) -> StoredObject:
    key = key or f"objects/0123456789abcdef/89abcdef-{number:06d}.h5"
    layout = template(SCHEMA, rows).layout
    decoded = rows * SCHEMA.row_nbytes
    return StoredObject(key, number * 2**50, 2**64 - 1 - number, layout, decoded)


def shifted(number: int) -> StoredObject:
    """An object of a layout that no other number has."""
    layout = template(SCHEMA, 5).layout
    other = ObjectLayout(5, layout.nbytes + number, layout.columns, layout.directory_offset)
    return StoredObject(
        f"objects/w/a-{number:06d}.h5", number, number, other, 5 * SCHEMA.row_nbytes
    )


def columns(objects: Sequence[StoredObject]) -> StoredObjects:
    """The objects as they are read from a commit."""
    read = Commit.from_bytes(Commit(SCHEMA.hash, objects).to_bytes(), SCHEMA, place="here").objects
    assert isinstance(read, StoredObjects)
    return read


def snapshot_of(objects: StoredObjects, schema: Schema = SCHEMA) -> Snapshot:
    return Snapshot("rows/0", schema, Version(("a commit",)), objects, (len(objects),))


CASES = {
    "none": [],
    "one": [stored_object(0, 7)],
    "some": [stored_object(i, 1 + i % 3) for i in range(10)],
    "many": [shifted(i) for i in range(MANY)],
}


# A sequence as any other


@pytest.mark.parametrize("plain", CASES.values(), ids=CASES)
def test_columns_are_the_sequence_of_their_objects(plain: list[StoredObject]) -> None:
    lazy = columns(plain)
    count = len(plain)
    assert len(lazy) == count
    assert list(lazy) == plain
    assert list(reversed(lazy)) == plain[::-1]
    assert [lazy[i] for i in range(-count, count)] == plain + plain
    assert [lazy[np.int64(i)] for i in range(min(count, 3))] == plain[:3]
    for outside in (count, -count - 1, 2**40):
        with pytest.raises(IndexError):
            lazy[outside]
    for wrong in (1.0, "0", None):
        with pytest.raises(TypeError):
            lazy[wrong]  # type: ignore[call-overload]
    cuts = [slice(None), slice(1, 3), slice(-2, None), slice(None, None, -2), slice(5, 2)]
    for cut in cuts:
        assert isinstance(lazy[cut], StoredObjects)
        assert lazy[cut] == plain[cut]
    if plain:
        assert lazy.index(plain[-1]) == count - 1
        assert lazy.count(plain[0]) == 1
    assert stored_object(99, 9) not in lazy


@pytest.mark.parametrize("plain", CASES.values(), ids=CASES)
def test_columns_equal_lists_and_tuples_of_equal_objects(plain: list[StoredObject]) -> None:
    lazy, count = columns(plain), len(plain) + 1
    for same in (plain, tuple(plain), columns(plain), StoredObjects.joined(SCHEMA, [lazy])):
        assert lazy == same
        assert same == lazy
    longer = [*plain, stored_object(99, 9)]
    for other in (longer, tuple(longer), columns(longer), longer[-1:] * count, "", None, 5):
        assert lazy != other
        assert other != lazy
    with pytest.raises(TypeError, match="unhashable"):
        hash(lazy)
    assert repr(lazy).startswith(f"StoredObjects({count - 1} objects, ")


@pytest.mark.parametrize("plain", CASES.values(), ids=CASES)
def test_a_snapshot_counts_what_its_objects_hold(plain: list[StoredObject]) -> None:
    snapshot = snapshot_of(columns(plain))
    starts = [sum(o.rows for o in plain[:i]) for i in range(min(len(plain), 20) + 1)]
    assert snapshot.starts.dtype == np.int64
    assert snapshot.starts[:21].tolist() == starts
    assert snapshot.num_rows == sum(o.rows for o in plain)
    assert snapshot.nbytes == sum(o.nbytes for o in plain)
    assert [snapshot.key(i) for i in range(len(plain))] == [f"rows/0/{o.key}" for o in plain]


def test_objects_of_one_layout_share_it() -> None:
    part = columns(CASES["some"])
    objects = StoredObjects.joined(SCHEMA, [part, part])
    assert len({id(o.layout) for o in objects}) == 3


def test_layouts_that_are_not_kept_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_loader.catalog.objects._KEPT_NBYTES", 10_000)  # of seven layouts
    lazy = columns(CASES["many"])
    for _ in range(2):
        assert list(lazy) == CASES["many"]
        assert len(lazy._made_layouts) < 8


def test_a_pickled_snapshot_is_small_and_the_same() -> None:
    """Workers get it: 28 bytes an object, no more for what was looked at before."""
    snapshot = snapshot_of(columns([stored_object(i, 7) for i in range(MANY)]))
    before = pickle.dumps(snapshot)
    assert len(before) < 28 * MANY + 3000
    assert snapshot.num_rows == 7 * MANY
    assert snapshot.objects[5].layout.block_ranges.shape == (3, 2)
    after = pickle.dumps(snapshot)
    assert len(after) == len(before)
    copy = pickle.loads(after)
    assert copy.objects == snapshot.objects
    assert copy.starts.tolist() == snapshot.starts.tolist()


def test_more_rows_than_an_object_has_are_refused() -> None:
    schema = SCHEMAS[-1]
    layout = ObjectLayout.of(
        schema,
        rows=MAX_ROWS,
        nbytes=64,
        offsets={"none": 0},
        blocks={"none": 1},
        directory_offset=0,
    )
    objects = [StoredObject(f"objects/w/{i}.h5", 0, 0, layout, 0) for i in range(2)]
    body = Commit(schema.hash, objects).to_bytes()
    read = Commit.from_bytes(body, schema, place="here").objects
    assert isinstance(read, StoredObjects)
    assert snapshot_of(read, schema).num_rows == 2 * MAX_ROWS
    more = body.replace(str(MAX_ROWS).encode(), str(MAX_ROWS + 1).encode())
    with pytest.raises(FormatError, match=f"^here: object layout: 64 bytes, {MAX_ROWS + 1} rows, "):
        Commit.from_bytes(more, schema, place="here")


# What is wrong is named, wherever in a column it stands


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("key", "objects/w/../a.h5", "'objects/w/../a.h5' is no key of an object"),
        ("key", "objects/w/a-\u0660\u0661\u0662\u0663\u0664\u0665.h5", "is no key of an object"),
        ("key", "objects/w/a.h5\nobjects/w/b.h5", "is no key of an object"),
        ("rows", 0, "rows of {key} is 0, not a whole number from 1 up"),
        ("rows", True, "rows of {key} is True, not a whole number from 1 up"),
        ("rows", 7.0, "rows of {key} is 7.0, not a whole number from 1 up"),
        ("nbytes", -1, "nbytes of {key} is -1, not a whole number from 1 up"),
        ("nbytes", 2**63, f"nbytes of {{key}} is {2**63}, not a whole number from 1 up"),
        ("nbytes", 100, "object layout: "),
        ("layout", 1, "there is no layout 1"),
        ("layout", False, "layout of {key} is False, not a whole number from 0 up"),
        ("checksum", "0" * 15, f"checksum {'0' * 15!r} of {{key}} is not 16 hex digits"),
        ("checksum", "0" * 17, f"checksum {'0' * 17!r} of {{key}} is not 16 hex digits"),
        ("checksum", "A" * 16, f"checksum {'A' * 16!r} of {{key}} is not 16 hex digits"),
        ("directory_checksum", " 0" * 8, f"checksum {' 0' * 8!r} of {{key}} is not 16 hex digits"),
        ("directory_checksum", "0x" * 8, f"checksum {'0x' * 8!r} of {{key}} is not 16 hex digits"),
    ],
)
@pytest.mark.parametrize("place", [0, 499, 999])
def test_one_wrong_value_among_many_is_named(
    place: int, column: str, value: Any, message: str
) -> None:
    objects = [stored_object(i, 7) for i in range(1000)]
    document = json.loads(Commit(SCHEMA.hash, objects).to_bytes())
    document["objects"][column][place] = value
    with pytest.raises(FormatError) as caught:
        Commit.from_bytes(json.dumps(document).encode(), SCHEMA, place="here")
    assert str(caught.value).startswith("here: ")
    assert message.format(key=objects[place].key) in str(caught.value)


# Layouts checked in a table as one by one

PLACES = st.sampled_from([0, 1, 63, 64, 128, 192, 256, 1024, 2**20, 2**62, 2**63 - 64, 2**63 - 1])
COUNTS = st.sampled_from([1, 2, 7, 64, 1000, 2**31, 2**60, 2**62, 2**63 - 1])


Figures = tuple[int, int, list[int], list[int], int]


@st.composite
def tight(draw: st.DrawFn, schema: Schema) -> Figures:
    """rows, nbytes, offsets, block_items and directory_offset of a layout without a byte to spare,
    but that one figure may be off."""
    rows = draw(st.sampled_from([1, 7, 100, 5000, 2_000_000]))
    blocks = [draw(st.sampled_from([1, 3, 40, 1000, 11_000])) for _ in schema]
    num_checksums = sum(-(-rows // b) for a, b in zip(schema, blocks, strict=True) if a.row_nbytes)
    sizes = [*(rows * a.row_nbytes for a in schema), 8 * num_checksums]
    starts, end = [0] * len(sizes), 1
    order = draw(st.permutations(range(len(schema))))
    for part in draw(st.sampled_from([[len(schema), *order], [*order, len(schema)]])):
        starts[part] = -(-end // 64) * 64
        end = starts[part] + sizes[part]
    all_figures = [end, *starts]
    off = draw(st.integers(0, len(all_figures) - 1))
    all_figures[off] += draw(st.sampled_from([0, -1, 1, -64, 64, -all_figures[off]]))
    nbytes, *offsets, directory_offset = (max(0, figure) for figure in all_figures)
    return rows, max(1, nbytes), offsets, blocks, directory_offset


@st.composite
def wild(draw: st.DrawFn, schema: Schema) -> Figures:
    """The same of any size."""
    each = len(schema)
    return (
        draw(COUNTS),
        draw(PLACES | COUNTS) or 1,
        draw(st.lists(PLACES, min_size=each, max_size=each)),
        draw(st.lists(COUNTS, min_size=each, max_size=each)),
        draw(PLACES),
    )


def is_refused(schema: Schema, values: Figures) -> bool:
    rows, nbytes, offsets, blocks, directory_offset = values
    try:
        ObjectLayout.of(
            schema,
            rows=rows,
            nbytes=nbytes,
            offsets=dict(zip(schema.names, offsets, strict=True)),
            blocks=dict(zip(schema.names, blocks, strict=True)),
            directory_offset=directory_offset,
        )
    except FormatError:
        return True
    return False


@settings(max_examples=300)
@given(
    st.sampled_from(SCHEMAS).flatmap(
        lambda schema: st.tuples(
            st.just(schema), st.lists(tight(schema) | wild(schema), max_size=8)
        )
    )
)
# Two columns whose blocks are together 2**63: their number wraps, that they overlap does not.
@example((Schema.of([("a", "uint8"), ("b", "uint8")]), [(2**62, 2**63 - 1, [64, 64], [1, 1], 64)]))
def test_a_table_of_layouts_is_checked_as_each_of_them(
    case: tuple[Schema, list[Figures]],
) -> None:
    schema, layouts = case
    rows, nbytes, offsets, blocks, directory_offsets = (
        np.array([values[i] for values in layouts], np.int64) for i in range(5)
    )
    shape = (len(layouts), len(schema))
    found = misfits(
        schema,
        rows,
        nbytes,
        np.arange(len(layouts)),
        offsets=offsets.reshape(shape),
        blocks=blocks.reshape(shape),
        directory_offsets=directory_offsets,
    )
    assert found.tolist() == [is_refused(schema, values) for values in layouts]


@settings(max_examples=300)
@given(
    st.sampled_from(SCHEMAS).flatmap(
        lambda schema: st.tuples(
            st.just(schema),
            st.lists(tight(schema) | wild(schema), min_size=1, max_size=4),
            st.lists(
                st.tuples(COUNTS, st.sampled_from([100, 3000, 2**20, 2**40]), st.integers(0, 3)),
                max_size=12,
            ),
        )
    )
)
def test_objects_of_shared_layouts_are_refused_where_one_of_them_is(
    case: tuple[Schema, list[Figures], list[tuple[int, int, int]]],
) -> None:
    """With the rows and bytes of each layout's own, and others; what is named is refused."""
    schema, layouts, more = case
    forms = [(values[0], values[1], i) for i, values in enumerate(layouts)]
    forms += [(rows, nbytes, i % len(layouts)) for rows, nbytes, i in more]
    rows, nbytes, index = np.array(forms, np.int64).T
    offsets, blocks, directory_offsets = (
        np.array([values[i] for values in layouts], np.int64) for i in (2, 3, 4)
    )
    figures = {"offsets": offsets, "blocks": blocks, "directory_offsets": directory_offsets}
    found = misfits(schema, rows, nbytes, index, **figures).tolist()
    refused = [is_refused(schema, (r, n, *layouts[i][2:])) for r, n, i in forms]
    assert any(found) == any(refused)
    assert all(is_wrong for is_wrong, said in zip(refused, found, strict=True) if said)


def wide_commit(schema: Schema, layouts: int, count: int) -> bytes:
    """A commit of objects that all differ in rows and bytes, of few layouts."""
    names = schema.names
    blocks = dict.fromkeys(names, 50)
    written = [
        {
            "offsets": {name: 2**20 + 64 * shift + 2**10 * i for i, name in enumerate(names)},
            "blocks": blocks,
            "directory": 64,
        }
        for shift in range(layouts)
    ]
    columns = {
        "key": [f"objects/w/a-{i:06d}.h5" for i in range(count)],
        "rows": [1 + i % 100 for i in range(count)],
        "nbytes": [4 * 10**9 + i for i in range(count)],
        "checksum": ["0" * 16] * count,
        "directory_checksum": ["0" * 16] * count,
        "layout": [i % layouts for i in range(count)],
    }
    document = {"format": 1, "schema": schema.hash, "replaces": [], "info": {}}
    return json.dumps({**document, "layouts": written, "objects": columns}).encode()


@pytest.mark.parametrize("shape", [(0,), ()], ids=["without bytes", "of a byte"])
def test_memory_and_time_are_those_of_the_json(shape: tuple[int, ...]) -> None:
    """Not of objects times attributes: 1.3 MB of JSON took 4.7 GiB and 28 s."""
    schema = Schema.of([(f"x{i}", "uint8", shape) for i in range(3000)])
    body = wide_commit(schema, layouts=2, count=3000)
    begun = time.monotonic()
    objects = Commit.from_bytes(body, schema, place="here").objects
    assert isinstance(objects, StoredObjects)
    joined = StoredObjects.joined(schema, [objects])
    assert joined.rows.tolist() == [1 + i % 100 for i in range(3000)]
    tracemalloc.start()
    try:
        parts = [Commit.from_bytes(body, schema, place="here").objects]
        snapshot = snapshot_of(StoredObjects.joined(schema, parts), schema)
        _, opening = tracemalloc.get_traced_memory()
        for stored in snapshot.objects[:75]:
            assert len(stored.layout.columns) == 3000
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opening < 60 * len(body)
    assert held < most < 32 * 2**20  # 75 layouts of 0.5 MB, of which at most 54 are kept
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(("block", "is_refused"), [(1, True), (40, True), (79, False)])
def test_small_blocks_are_few(block: int, is_refused: bool) -> None:
    """2^18 blocks of a byte took 9 MiB for each object of 2 MiB."""
    schema = Schema.of([("x", "uint8"), ("y", "uint8", (2**15,))])
    rows = 10_000
    figures = {"x": block, "y": 1}
    num_checksums = sum(-(-rows // b) for b in figures.values())
    place = 64 + -(-8 * num_checksums // 64) * 64
    layout = {"rows": rows, "nbytes": 2**30, "directory_offset": 64, "blocks": figures}
    offsets = {"x": place, "y": place + 2**14}
    if is_refused:
        with pytest.raises(FormatError, match=r"'x' has \d+ blocks of \d+ bytes; an object has at"):
            ObjectLayout.of(schema, offsets=offsets, **layout)
    else:
        assert ObjectLayout.of(schema, offsets=offsets, **layout).num_checksums == num_checksums


def test_savers_make_no_small_blocks() -> None:
    for nbytes in (1, 7, 1000, 32767, 32768, 40000, 65536, 65537, 10**6):
        rows = block_items(nbytes)
        assert rows * nbytes >= LEAST_BLOCK_NBYTES


# Whole datasets

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True) | st.sampled_from(
    ["a-000000", "a-000001", "a-1000000", "000001", "a-0000000", "a-00001", "a.h5000001"]
)
WRITERS = ("a", "B.1")


@st.composite
def histories(draw: st.DrawFn) -> tuple[Schema, dict[CommitId, Commit]]:
    schema = draw(st.sampled_from(SCHEMAS[:3]))
    commits: dict[CommitId, Commit] = {}
    some_keys = st.tuples(st.sampled_from(WRITERS), NAMES)
    keys = iter(draw(st.lists(some_keys, unique=True, min_size=30, max_size=30)))
    for seq in range(draw(st.integers(0, 5))):
        objects = tuple(
            StoredObject(
                "objects/{}/{}.h5".format(*next(keys)),
                draw(st.integers(0, 2**64 - 1)),
                draw(st.integers(0, 2**64 - 1)),
                template(schema, rows).layout,
                rows * schema.row_nbytes,
            )
            for rows in draw(st.lists(st.sampled_from([1, 2, 7, 5000]), max_size=6))
        )
        replaces = tuple(i for i in commits if draw(st.integers(0, 3)) == 0)
        commits[CommitId(seq + 1, draw(st.sampled_from(WRITERS)), 0)] = Commit(
            schema.hash, objects, replaces
        )
    return schema, commits


def one_by_one(bodies: Sequence[bytes]) -> list[tuple[Any, ...]]:
    """Key, sizes, checksums and places of each object, read without the library's columns."""
    found = []
    for body in bodies:
        document = json.loads(body)
        listed = document["objects"]
        for i, key in enumerate(listed["key"]):
            layout = document["layouts"][listed["layout"][i]]
            sums = [int(listed[name][i], 16) for name in ("checksum", "directory_checksum")]
            found.append((key, listed["rows"][i], listed["nbytes"][i], *sums, layout))
    return found


def as_listed(stored: StoredObject) -> tuple[Any, ...]:
    layout = {
        "offsets": {name: c.offset for name, c in stored.layout.columns.items()},
        "blocks": {name: c.block_items for name, c in stored.layout.columns.items()},
        "directory": stored.layout.directory_offset,
    }
    sizes = (stored.rows, stored.nbytes)
    return (stored.key, *sizes, stored.checksum, stored.directory_checksum, layout)


@given(histories())
def test_a_snapshot_is_what_its_commits_say_one_by_one(
    history: tuple[Schema, dict[CommitId, Commit]],
) -> None:
    schema, commits = history
    bodies = {i: commit.to_bytes() for i, commit in commits.items()}
    the_config = DataConfig("rows", schema, storage="memory://never-opened")
    catalog = Catalog(the_config, MemoryStore("memory://of-this-test-alone"))
    catalog.create(schema)
    folder = f"{the_config.dataset_prefix}/metadata"
    for i, body in bodies.items():
        catalog.store.put(f"{folder}/{i}.json", body)
    try:
        live = live_commits(commits)
        snapshot = catalog.snapshot()
        read = {i: Commit.from_bytes(bodies[i], schema, place="here") for i in live}
        assert snapshot.version == Version.of(read)
        oracle = one_by_one([bodies[i] for i in live])
        for copy in (snapshot, pickle.loads(pickle.dumps(snapshot))):
            assert [as_listed(o) for o in copy.objects] == oracle
            assert [as_listed(copy.objects[i]) for i in range(len(oracle))] == oracle
            assert [copy.key(i) for i in range(len(oracle))] == [
                f"{the_config.dataset_prefix}/{key}" for key, *_ in oracle
            ]
            ends = np.cumsum([rows for _, rows, *_ in oracle], dtype=np.int64)
            assert copy.starts.tolist() == [0, *ends.tolist()]
            assert copy.nbytes == sum(nbytes for _, _, nbytes, *_ in oracle)
            assert all(
                o.layout.columns[a.name].items == o.rows for o in copy.objects for a in schema
            )
        for i in commits:
            assert catalog.read_commits(schema, [i])[i] == commits[i]
    finally:
        catalog.store.delete([info.key for info in list(catalog.store.list())])


def test_a_dataset_of_many_commits_keeps_their_order(memory: dict[str, str]) -> None:
    catalog = Catalog(config(memory))
    catalog.create(SCHEMA)
    expected = []
    for number in range(30):
        objects = [stored_object(8 * number + i, 1 + (number + i) % 4) for i in range(number % 5)]
        catalog.publish(SCHEMA, objects, writer=f"w{number % 3}", number=number)
        expected += objects
    assert catalog.snapshot().objects == expected
