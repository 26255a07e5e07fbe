"""`verify_dataset`: what is right is found right, and whatever is wrong is found and named."""

from __future__ import annotations

import io
import json
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import (
    Attribute,
    DataConfig,
    DataSaver,
    Dataset,
    Problem,
    Version,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, StoredObject
from storage_loader.catalog.scan import scanned
from storage_loader.config import MIN_OBJECT_SIZE, canonical_json
from storage_loader.errors import (
    ConfigError,
    DatasetNotFoundError,
    FormatError,
    VersionNotFoundError,
)
from storage_loader.hdf5 import header_problems, template
from storage_loader.layout import ObjectLayout, Outline
from storage_loader.schema import DTYPES, Schema
from storage_loader.store import open_store, xxh3
from tests.support import ROOT
from tests.support.damage import flipped
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, watch
from tests.support.ragged import BOXES, ROW, TOKENS
from tests.support.rows import ATTRIBUTES, WITH_PIXELS, config, make
from tests.support.threads import running

EMPTY = Attribute("empty", "float64", (0, 4))
ALL = (*WITH_PIXELS, EMPTY)
COUNT = 200
GOLDEN = ROOT / "tests" / "format" / "golden" / "store"


def saved(storage: dict[str, str], name: str = "rows", start: int = 0) -> DataConfig:
    """Two commits of several objects."""
    the_config = config(storage, name, attributes=ALL, max_object_size=2 * MIN_OBJECT_SIZE)
    for first in (start, start + COUNT // 2):
        save(the_config, make(range(first, first + COUNT // 2), ALL))
    return the_config


NO_INFO = {
    "overflows": b"1e999",
    "overflows below": b'{"a": [-1e999]}',
    "half a character": rb'"\ud800"',
    "half a key": rb'{"\udfff": 1}',
    "digits": b"1" * 5000,
    "nested": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("info", NO_INFO.values(), ids=NO_INFO)
@pytest.mark.parametrize("what", ["dataset.json", "metadata/*.json"])
def test_numbers_and_texts_that_are_none_are_problems(
    folder: dict[str, str], what: str, info: bytes
) -> None:
    the_config = config(folder)
    save(the_config, make(range(3)))
    root = Path(folder["storage"]) / the_config.dataset_prefix
    [path] = root.glob(what)
    value = {**json.loads(path.read_bytes()), "info": "HERE"}
    path.write_bytes(canonical_json(value).replace(b'"HERE"', info))
    verified = verify_dataset(the_config)
    assert len(verified.problems) == 1
    assert verified.problems[0].what.startswith(f"file://{path}: not JSON: ")
    with pytest.raises(FormatError, match="not JSON: "):
        Dataset(the_config).open()


@pytest.mark.parametrize("depth", [*range(100, 1000, 30), 2000, 20_000])
def test_a_nested_info_is_right_or_a_problem(folder: dict[str, str], depth: int) -> None:
    """However deep the stack is that one of two steps, reading and writing, needs more of."""
    the_config = config(folder)
    save(the_config, make(range(3)))
    path = Path(folder["storage"]) / the_config.dataset_prefix / "dataset.json"
    body = canonical_json({**json.loads(path.read_bytes()), "info": "HERE"})
    path.write_bytes(body.replace(b'"HERE"', b"[" * depth + b"]" * depth))
    verified = verify_dataset(the_config)
    assert len(verified.problems) <= 1
    assert verified.num_rows == (0 if verified.problems else 3)
    for problem in verified.problems:
        assert str(path) in problem.what


def test_dataset_json_is_read_once(folder: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another that takes its place meanwhile is never taken for the one that was checked."""
    the_config = config(folder)
    save(the_config, make(range(3)))
    path = Path(folder["storage"]) / the_config.dataset_prefix / "dataset.json"
    stores = watch(monkeypatch)

    parse = Catalog.schema_of

    def changing(self: Catalog, data: Any) -> Any:
        path.write_bytes(b"[" * 100_000)
        return parse(self, data)

    monkeypatch.setattr(Catalog, "schema_of", changing)
    assert verify_dataset(the_config).problems == ()
    assert sum(store.kinds().count("get dataset") for store in stores) == 1


@pytest.fixture
def place(near_or_far: dict[str, str]) -> DataConfig:
    """In a folder, or in what looks like a network store."""
    return saved(near_or_far)


class Found:
    """One object of the newest version, and where its rows are."""

    def __init__(self, the_config: DataConfig, index: int) -> None:
        self.config = the_config
        catalog = Catalog(the_config)
        self.snapshot = catalog.snapshot()
        self.store = catalog.store
        self.stored: StoredObject = self.snapshot.objects[index]
        self.key = self.snapshot.key(index)
        self.first = int(self.snapshot.starts[index])
        schema = self.snapshot.schema
        commits = catalog.read_commits(schema, catalog.commit_ids())
        self.commit = next(
            str(i) for i, c in commits.items() if self.stored.key in {o.key for o in c.objects}
        )

    @property
    def where(self) -> str:
        return f"dataset 'rows', commit {self.commit}, object {self.stored.key}"

    @property
    def rows(self) -> str:
        return f"rows {self.first} to {self.first + self.stored.rows - 1}"

    def change(self, damage: Callable[[bytes], bytes]) -> None:
        self.store.put(self.key, damage(bytes(self.store.get(self.key))))


def lines(the_config: DataConfig, **more: Any) -> list[str]:
    """The problems; `found` and the result say the same."""
    heard: list[Problem] = []
    verified = verify_dataset(the_config, found=heard.append, **more)
    assert tuple(heard) == verified.problems
    assert all("\n" not in str(problem) for problem in heard)
    return [str(problem) for problem in heard]


# What is right


def test_a_dataset_as_it_was_stored(storage: dict[str, str]) -> None:
    the_config = saved(storage)
    snapshot = Dataset(the_config).open()
    seen: list[tuple[int, int]] = []
    verified = verify_dataset(the_config, progress=lambda done, total: seen.append((done, total)))
    assert verified.problems == ()
    assert verified.version == snapshot.version
    assert (verified.num_rows, verified.num_objects) == (COUNT, len(snapshot.objects))
    assert verified.nbytes == snapshot.nbytes
    assert len(snapshot.objects) > 4
    done = np.cumsum([0, *snapshot.objects.nbytes.tolist()]).tolist()
    assert seen == [(n, snapshot.nbytes) for n in done]


def test_every_dtype(memory: dict[str, str]) -> None:
    attributes = [(f"x {dtype}", dtype, (2, i)) for i, dtype in enumerate(DTYPES)]
    the_config = DataConfig("dtypes", attributes, **memory)
    with DataSaver(the_config) as saver:
        for rows in (1, 5, 3000):
            saver({a.name: np.zeros((rows, *a.shape), a.numpy_dtype) for a in the_config.schema})
            saver.commit()
    assert lines(the_config) == []
    without_bytes = DataConfig("none", [("a", "int8", (0,))], **memory)
    save(without_bytes, {"a": np.zeros((7, 0), np.int8)})
    assert verify_dataset(without_bytes).num_rows == 7
    assert lines(without_bytes) == []


def test_the_golden_dataset() -> None:
    assert lines(DataConfig("golden", storage=str(GOLDEN), additional=golden_additional())) == []


def golden_additional() -> Any:
    return json.loads(next(GOLDEN.glob("golden/*/dataset.json")).read_text())["additional"]


@pytest.mark.parametrize("num_threads", [1, 2, 50])
def test_no_rows(memory: dict[str, str], num_threads: int) -> None:
    the_config = config(memory)
    with pytest.raises(DatasetNotFoundError):
        verify_dataset(the_config)
    Catalog(the_config).create(Schema(ATTRIBUTES))
    assert verify_dataset(the_config, num_threads=num_threads).problems == ()
    save(the_config, make([1]))
    assert verify_dataset(the_config, num_threads=num_threads).num_rows == 1


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_wrong_settings(memory: dict[str, str], wrong: Any) -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        verify_dataset(config(memory), num_threads=wrong)


def test_nothing_is_changed(place: DataConfig) -> None:
    store = open_store(place)
    before = {i.key: (bytes(store.get(i.key)), i.modified) for i in store.list()}
    verify_dataset(place)
    assert {i.key: (bytes(store.get(i.key)), i.modified) for i in store.list()} == before


def test_an_earlier_version(folder: dict[str, str]) -> None:
    the_config = saved(folder)
    version = Dataset(the_config).version
    found = Found(the_config, 3)
    save(the_config, make(range(5), ALL), refresh=True)
    found.change(lambda body: body[:-1])
    assert lines(the_config) == []
    for form in (version, version.hash, list(version.commits), version.commits[-1]):
        assert len(lines(the_config, version=form)) == 1
    assert lines(the_config, version=Version(())) == []
    for missing in (["000000000009-w-000000"], "0" * 16, "000000000009-w-000000"):
        with pytest.raises(VersionNotFoundError):
            verify_dataset(the_config, version=missing)


# Objects


@pytest.mark.parametrize("index", [0, 3, -1])
@pytest.mark.parametrize("name", ["image", "row", "weight", "pixels"])
def test_a_flipped_bit_in_rows(place: DataConfig, name: str, index: int) -> None:
    found = Found(place, index % len(Dataset(place).open().objects))
    column = found.stored.layout.columns[name]
    row = column.items - 1
    found.change(flipped(column.offset + row * column.item_nbytes))
    start = row // column.block_items * column.block_items
    assert lines(place) == [
        f"{found.where}, attribute {name!r}, rows {found.first + start} to "
        f"{found.first + column.items - 1}: differ from their checksum"
    ]


def test_neighbouring_blocks_are_one_line(place: DataConfig) -> None:
    found = Found(place, 1)
    column = found.stored.layout.columns["pixels"]
    rows = column.block_items
    assert column.num_blocks > 1
    for row in (0, rows):
        found.change(flipped(column.offset + row * column.item_nbytes))
    stop = min(2 * rows, column.items)
    assert lines(place) == [
        f"{found.where}, attribute 'pixels', rows {found.first} to {found.first + stop - 1}: "
        "differ from their checksum"
    ]


def test_a_flipped_bit_in_the_checksums(place: DataConfig) -> None:
    found = Found(place, 2)
    found.change(flipped(found.stored.layout.directory_range[0] + 3))
    assert lines(place) == [
        f"{found.where}, {found.rows}: the directory differs from its own checksum in the commit"
    ]


@pytest.mark.parametrize("offset", [0, 8, 50])
def test_a_flipped_bit_in_the_header(place: DataConfig, offset: int) -> None:
    found = Found(place, 2)
    found.change(flipped(offset))
    assert lines(place) == [
        f"{found.where}, {found.rows}: the HDF5 header differs: all rows are right, the whole "
        "object's checksum is not"
    ]


@given(data=st.data())
@settings(max_examples=40)
def test_any_flipped_bit_is_found_and_its_rows_named(data: st.DataObject) -> None:
    the_config = DataConfig("rows", ALL, storage="memory://flipped", max_object_size=2**17)
    if not list(open_store(the_config).list()):
        saved({"storage": the_config.storage})
    found = Found(the_config, data.draw(st.integers(0, 3)))
    offset = data.draw(st.integers(0, found.stored.nbytes - 1))
    found.change(flipped(offset))
    try:
        [problem] = verify_dataset(the_config).problems
    finally:
        found.change(flipped(offset))
    assert (problem.commit, problem.key) == (found.commit, found.stored.key)
    assert problem.rows is not None
    for name, column in found.stored.layout.columns.items():
        if column.offset <= offset < column.end:
            row = found.first + (offset - column.offset) // column.item_nbytes
            assert problem.attribute == name
            assert problem.rows[0] <= row < problem.rows[1]


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_an_object_cut_short(place: DataConfig, kept: float) -> None:
    found = Found(place, 2)
    nbytes = found.stored.nbytes
    size = int(nbytes * kept) if kept == 0.5 else int(kept) % nbytes
    found.change(lambda body: body[:size])
    expected = []
    for name, column in found.stored.layout.columns.items():
        if column.end > size and column.nbytes:
            lost = [
                row
                for row in range(column.items)
                if column.offset + (row + 1) * column.item_nbytes > size
            ]
            first, last = found.first + lost[0], found.first + column.items - 1
            rows = f"row {last}" if first == last else f"rows {first} to {last}"
            expected.append(
                f"{found.where}, attribute {name!r}, {rows}: the object has {size} bytes, its "
                f"commit says {nbytes}"
            )
    assert lines(place) == expected
    assert expected


def test_an_object_with_more_bytes(place: DataConfig) -> None:
    found = Found(place, 2)
    found.change(lambda body: body + b"x")
    nbytes = found.stored.nbytes
    assert lines(place) == [
        f"{found.where}, {found.rows}: the object has {nbytes + 1} bytes, its commit says {nbytes}"
    ]


def test_a_missing_object(place: DataConfig) -> None:
    found, last = Found(place, 2), Found(place, 4)
    found.store.delete([found.key, last.key])
    assert lines(place) == [f"{f.where}, {f.rows}: is missing" for f in (found, last)]


def test_an_object_that_goes_while_it_is_read(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(memory)
    found = Found(the_config, 2)

    def gone(call: Call) -> None:
        if call.verb == "stream" and call.key == found.key:
            found.store.delete([found.key])

    watch(monkeypatch, before=gone)
    monkeypatch.setattr(WatchedStore, "note_retry", lambda *_: None)
    assert lines(the_config) == [f"{found.where}, {found.rows}: is missing"]


def test_an_object_of_another_dataset_under_the_right_name(storage: dict[str, str]) -> None:
    """Of the very same size, and right in itself."""
    the_config = saved(storage)
    other = saved(storage, "other", start=1000)
    found, foreign = Found(the_config, 2), Found(other, 2)
    found.change(lambda body: bytes(foreign.store.get(foreign.key)))
    [line] = lines(the_config)
    assert line == (
        f"{found.where}, {found.rows}: the directory differs from its own checksum in the commit"
    )
    assert lines(other) == []


def test_all_problems_are_found(place: DataConfig) -> None:
    """Not the first one only, and in the order of rows."""
    found = [Found(place, index) for index in (0, 2, 4)]
    for one in found:
        one.change(flipped(one.stored.layout.columns["row"].offset))
    for num_threads in (1, 3):
        said = lines(place, num_threads=num_threads)
        assert [line.split(", attribute")[0] for line in said] == [one.where for one in found]


def test_what_is_damaged_on_the_way_is_fetched_once_more(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(memory)
    found = Found(the_config, 1)
    times: list[int] = []
    right = WatchedStore.stream

    def stream(self: WatchedStore, key: str, start: int, end: int) -> Any:
        pieces = right(self, key, start, end)
        if key != found.key:
            return pieces
        times.append(1)
        body = b"".join(pieces)
        return iter([flipped(7000)(body) if len(times) == 1 else body])

    monkeypatch.setattr(WatchedStore, "stream", stream)
    retried: list[str] = []
    monkeypatch.setattr(WatchedStore, "note_retry", lambda self, key: retried.append(key))
    watch(monkeypatch)
    assert lines(the_config) == []
    assert (len(times), retried) == (2, [found.key])


@pytest.mark.parametrize("size", [1, 7, 4096, 10**9])
def test_pieces_of_any_size(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    the_config = config(memory)
    save(the_config, make(range(50)))
    right = WatchedStore.stream

    def stream(self: WatchedStore, key: str, start: int, end: int) -> Any:
        body = b"".join(right(self, key, start, end))
        return iter([body[at : at + size] for at in range(0, len(body), size)])

    monkeypatch.setattr(WatchedStore, "stream", stream)
    watch(monkeypatch)
    assert lines(the_config) == []


def test_a_store_that_sends_more_than_was_asked_for(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(memory)
    save(the_config, make(range(50)))
    found = Found(the_config, 0)
    right = WatchedStore.stream
    monkeypatch.setattr(WatchedStore, "stream", lambda *args: iter([*right(*args), b"more"]))
    monkeypatch.setattr(WatchedStore, "note_retry", lambda *_: None)
    watch(monkeypatch)
    nbytes = found.stored.nbytes
    assert lines(the_config) == [
        f"{found.where}, {found.rows}: the object has {nbytes + 4} bytes, its commit says {nbytes}"
    ]


def test_rows_are_not_kept() -> None:
    """A large object takes no more memory than a small one, but for 8 bytes a block."""
    schema = Schema.of([("x", "uint8", (65536,)), ("id", "int64")])
    layout = template(schema, 4096).layout  # 256 MiB
    piece = bytes(2**18)
    pieces = (piece[: layout.nbytes - at] for at in range(0, layout.nbytes, len(piece)))
    tracemalloc.start()
    try:
        scan = scanned(pieces, schema, layout, threading.Event())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert scan.nbytes == layout.nbytes > 2**28
    assert peak < 4 * 2**20


# Threads


def test_many_objects_are_read_at_once_but_no_more_than_asked(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(memory)
    active, most, lock = [0], [0], threading.Lock()
    together = threading.Barrier(3, timeout=60)
    first: list[int] = []

    def before(call: Call) -> None:
        if call.verb == "stream":
            with lock:
                active[0] += 1
                most[0] = max(most[0], active[0])
                first.append(1)
                is_first = len(first) <= 3
            if is_first:
                together.wait()

    def after(call: Call) -> None:
        if call.verb == "stream":
            with lock:
                active[0] -= 1

    watch(monkeypatch, before=before, after=after)
    assert lines(the_config, num_threads=3) == []
    assert most[0] == 3


def test_a_store_that_fails_ends_it_and_all_threads(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(memory)

    def fail(call: Call) -> None:
        if call.verb == "stream":
            raise Injected("the disk is on fire")

    [*_] = watch(monkeypatch, before=fail)
    with pytest.raises(Injected, match="the disk is on fire"):
        verify_dataset(the_config)
    assert running("verify") == []


def test_an_error_of_the_caller_ends_all_threads(memory: dict[str, str]) -> None:
    the_config = saved(memory)

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_dataset(the_config, progress=interrupt)
    assert running("verify") == []


# Commits and dataset.json


def rewrite(the_config: DataConfig, place: int, change: Callable[[Any], Any]) -> str:
    """Change the JSON of a commit; its id."""
    catalog = Catalog(the_config)
    commit_id = catalog.commit_ids()[place]
    key = catalog.commit_key(commit_id)
    value = json.loads(bytes(catalog.store.get(key)))
    change(value)
    catalog.store.put(key, canonical_json(value))
    return str(commit_id)


def test_a_damaged_commit(place: DataConfig) -> None:
    catalog = Catalog(place)
    first, second = catalog.commit_ids()
    key = catalog.commit_key(first)
    body = bytes(catalog.store.get(key))
    catalog.store.put(key, body[: len(body) // 2])
    [line] = lines(place)
    assert line.startswith(f"dataset 'rows', commit {first}: {catalog.store.url}/{key}: not JSON")
    verified = verify_dataset(place)  # the other commit is looked at all the same
    assert (verified.num_rows, verified.version.commits) == (COUNT // 2, (str(second),))


def test_a_commit_that_says_what_is_not_so(place: DataConfig) -> None:
    def change(value: Any) -> None:
        objects = value["objects"]
        objects["checksum"][0] = "0" * 16
        objects["directory_checksum"][1] = "1" * 16

    rewrite(place, 0, change)
    first, second = Found(place, 0), Found(place, 1)
    assert lines(place) == [
        f"{first.where}, {first.rows}: the HDF5 header differs: all rows are right, the whole "
        "object's checksum is not",
        f"{second.where}, {second.rows}: the directory differs from its own checksum in the commit",
    ]


def test_a_key_that_is_named_twice(place: DataConfig) -> None:
    catalog = Catalog(place)
    first, second = catalog.commit_ids()
    value = json.loads(bytes(catalog.store.get(catalog.commit_key(first))))

    def change(other: Any) -> None:
        other["layouts"], other["objects"] = value["layouts"], value["objects"]

    rewrite(place, 1, change)
    said = lines(place)
    count = len(value["objects"]["key"])
    assert len(said) == count
    assert said[0] == (
        f"dataset 'rows', commit {second}, object {value['objects']['key'][0]}, rows {COUNT // 2} "
        f"to {COUNT // 2 + value['objects']['rows'][0] - 1}: is named twice, before by commit "
        f"{first}"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body[:-1], "not JSON"),
        (lambda body: b"", "not JSON"),
        (lambda body: body.replace(b'"format":1', b'"format":2'), "format 2"),
        (lambda body: body.replace(b'"rows"', b'"wors"', 1), "describes another dataset"),
        (lambda body: body.replace(b'"int64"', b'"int65"'), "unknown dtype 'int65'"),
        (lambda body: body.replace(b'","', b'", "'), "not canonical JSON"),
    ],
)
def test_a_damaged_dataset_json(
    folder: dict[str, str], change: Callable[[bytes], bytes], message: str
) -> None:
    the_config = saved(folder)
    key = Catalog(the_config).schema_key
    store = open_store(the_config)
    body = bytes(store.get(key))
    changed = change(body)
    assert changed != body
    store.put(key, changed)
    [line] = lines(DataConfig("rows", **folder))
    assert line.startswith(f"dataset 'rows': {store.url}/{key}: ")
    assert message in line


# HDF5


def beside(layout: ObjectLayout, body: bytes) -> bytes:
    """The bytes of an object that are neither rows nor checksums."""
    parts = [c for c in ((c.offset, c.end) for c in layout.columns.values()) if c[0] < c[1]]
    parts += [layout.directory_range, (layout.nbytes, layout.nbytes)]
    kept, place = [], 0
    for start, end in sorted(parts):
        kept.append(body[place:start])
        place = end
    return b"".join(kept)


def problems_of(body: bytes, schema: Schema, layout: ObjectLayout) -> list[tuple[str, str]]:
    return header_problems(schema, layout, beside(layout, body))


def rewritten(the_config: DataConfig, body: bytes) -> Found:
    """The first object is this one; its commit has the right checksum for it."""
    found = Found(the_config, 0)
    found.store.put(found.key, body)
    checksum = f"{xxh3(body):016x}"
    rewrite(the_config, 0, lambda value: value["objects"]["checksum"].__setitem__(0, checksum))
    return found


def test_a_header_of_other_attributes(memory: dict[str, str]) -> None:
    """Sizes, offsets and checksums are right; HDF5 would show signed numbers."""
    the_config = config(memory, attributes=[Attribute("a", "uint32", (2,))])
    save(the_config, {"a": np.ones((10, 2), np.uint32)})
    made = template(Schema.of([("a", "int32", (2,))]), 10)
    found = Found(the_config, 0)
    body = bytearray(found.store.get(found.key))
    for offset, piece in made.pieces:
        body[offset : offset + len(piece)] = piece
    found = rewritten(the_config, bytes(body))
    [(_, start, end)] = [header for header in made.headers if header[0] == "a"]
    signed = next(
        o
        for o, (a, b) in enumerate(zip(body, whole(Schema(found.snapshot.schema), 10), strict=True))
        if a != b and start <= o < end
    )
    assert lines(the_config) == [
        f"{found.where}, attribute 'a', rows 0 to 9: the HDF5 header differs from what "
        f"storage_loader writes, from byte {signed} on; {PERHAPS}"
    ]


PERHAPS = "HDF5 may show other rows than this library gives"
ELSEWHERE = f"its parts do not lie where this version of storage_loader puts them; {PERHAPS}"
SCHEMA = Schema.of([("a", "int16", (3,)), ("b", "float32")])


def whole(schema: Schema, rows: int, blocks: tuple[int, ...] | None = None) -> bytes:
    """An object of zeros."""
    made = template(schema, rows, (), blocks)
    body = bytearray(made.layout.nbytes)
    for offset, piece in made.pieces:
        body[offset : offset + len(piece)] = piece
    return bytes(body)


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
def test_what_hdf5_may_show_instead(tmp_path: Path, libver: str) -> None:
    """Files of h5py that hold the rows at the recorded places, and lead elsewhere."""
    secret = tmp_path / "other.h5"
    with h5py.File(secret, "w") as h5:
        h5.create_dataset("a", data=np.ones((5, 3), "<i2"))
    layout = template(SCHEMA, 5).layout
    ones = np.ones((5, 3), "<i2")
    cases: list[Callable[[h5py.File], Any]] = [
        lambda h5: h5.__setitem__("a", h5py.ExternalLink(str(secret), "/a")),
        lambda h5: h5.__setitem__("a", h5py.SoftLink("/b")),
        lambda h5: h5.create_dataset("a", data=ones, external=[(str(secret), 0, 30)]),
        lambda h5: h5.create_virtual_dataset("a", virtual(secret)),
        lambda h5: h5.create_group("a"),
        lambda h5: h5.create_dataset("a", data=ones, chunks=(5, 3), compression="gzip"),
        lambda h5: h5.create_dataset("a", data=np.ones((5, 4), "<i2")),
        lambda h5: h5.create_dataset("a", data=ones.astype(">i2")),
        lambda h5: h5.create_dataset("a", data=ones),  # HDF5 would show what is meant
        lambda h5: None,
    ]
    for make_it in cases:
        file = io.BytesIO()
        with h5py.File(file, "w", libver=libver) as h5:
            h5.create_dataset(".directory", data=np.ones(2, "<u8"))
            h5.create_dataset("b", data=np.ones(5, "<f4"))
            make_it(h5)
        body = file.getvalue()[: layout.nbytes].ljust(layout.nbytes, b"\0")
        assert PERHAPS in problems_of(body, SCHEMA, layout)[0][1]
        there = replace(layout, nbytes=len(file.getvalue()) + 4096)
        body = file.getvalue().ljust(there.nbytes, b"\0")
        assert problems_of(body, SCHEMA, there) == [("", ELSEWHERE)]


def virtual(path: Path) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((5, 3), "<i2")
    layout[:] = h5py.VirtualSource(str(path), "a", (5, 3))
    return layout


def test_a_header_that_is_none() -> None:
    layout = template(SCHEMA, 5).layout
    body = whole(SCHEMA, 5)
    assert problems_of(body, SCHEMA, layout) == []
    what = f"the HDF5 header differs from what storage_loader writes, from byte 0 on; {PERHAPS}"
    assert problems_of(b"PK" + body[2:], SCHEMA, layout) == [("", what)]
    nothing = problems_of(bytes(len(body)), SCHEMA, layout)
    assert nothing[0] == ("", what)
    assert {name for name, _ in nothing} == {"", "a", "b"}
    other = Schema.of([("a", "int16", (3,)), ("c", "float32")])
    [(name, what)] = problems_of(body, other, template(other, 5).layout)
    assert (name, what.endswith(PERHAPS)) == ("", True)
    many = Schema.of([(f"x{i}", "uint8", (0,)) for i in range(1000)])
    assert header_problems(many, template(many, 5).layout, bytes(100)) == [("", ELSEWHERE)]


def test_no_long_header_is_made_to_compare_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever dataset.json says: texts of 16 MiB would take seconds."""
    noted = Schema.of([Attribute(f"x{i}", "uint8", description="é" * 4096) for i in range(50)])
    layout = template(noted, 5).layout
    whole_header = beside(layout, whole(noted, 5))
    assert header_problems(noted, layout, whole_header) == []

    def unwanted(*args: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("storage_loader.hdf5.check.template", unwanted)
    assert header_problems(noted, layout, bytes(50 * 8192)) == [("", ELSEWHERE)]


def test_any_changed_byte_of_a_header_is_a_problem() -> None:
    """Each of them, in a file of one and in one of many attributes."""
    for count in (1, 12):
        schema = Schema.of([(f"x{i}", "uint8", (i % 3,)) for i in range(1, count + 1)])
        made = template(schema, 5)
        header = beside(made.layout, whole(schema, 5))
        offsets = [o for start, piece in made.pieces for o in range(start, start + len(piece))]
        assert len(offsets) == len(header)
        for place, offset in enumerate(offsets):
            changed = header[:place] + bytes([header[place] ^ 1]) + header[place + 1 :]
            [(name, what)] = header_problems(schema, made.layout, changed)
            assert f"from byte {offset} on" in what
            owners = [n for n, start, end in made.headers if start <= offset < end]
            assert [name] == (owners or [""])


def test_blocks_of_another_size_are_right() -> None:
    """The format leaves it to the writer how many rows a block has."""
    blocks = (5, 4)
    layout = template(SCHEMA, 20, (), blocks).layout
    assert layout.num_checksums == 4 + 5
    assert problems_of(whole(SCHEMA, 20, blocks), SCHEMA, layout) == []
    assert problems_of(whole(SCHEMA, 20), SCHEMA, layout) != []


def test_one_header_is_compared_for_all_objects_of_a_layout(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(memory)
    compared: list[int] = []

    def counting(*args: Any) -> Any:
        compared.append(1)
        return header_problems(*args)

    monkeypatch.setattr("storage_loader.catalog.verify.header_problems", counting)
    assert lines(the_config, num_threads=1) == []
    forms = {o.rows for o in Dataset(the_config).open().objects}
    assert len(compared) == len(forms) < len(Dataset(the_config).open().objects)


def test_a_listing_that_fails(memory: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    the_config = saved(memory)
    watch(monkeypatch, before=FailAt("list metadata"))
    with pytest.raises(Injected):
        verify_dataset(the_config)


# Rows of no fixed size

RAGGED = [ROW, TOKENS, BOXES, Attribute("text", "str"), Attribute("wide", "uint8", (100,))]
RAGGED_COUNT = 4000


def saved_ragged(storage: dict[str, str]) -> DataConfig:
    """Two objects, whose regions have several blocks each; some rows have no values."""
    the_config = DataConfig("ragged", RAGGED, **storage, max_object_size=2**22)
    numbers = np.arange(RAGGED_COUNT)
    lengths = numbers % 50 * (numbers % 3 > 0)
    values = np.repeat(numbers, lengths)
    for half in (slice(0, 2500), slice(2500, None)):
        places = np.cumsum([0, *lengths])
        inside = values[places[:-1][half][0] : places[1:][half][-1]]
        save(
            the_config,
            {
                "row": numbers[half],
                "tokens": (inside, lengths[half]),
                "boxes": [np.full((int(n) % 9, 4), n) for n in numbers[half]],
                "text": [f"{n} é" * (n % 40) for n in numbers[half].tolist()],
                "wide": np.zeros((len(numbers[half]), 100), np.uint8),
            },
        )
    return the_config


class RaggedObject:
    """The second object, its layout and its rows' ends, as they are without our reading of them."""

    def __init__(self, the_config: DataConfig) -> None:
        self.store = open_store(the_config)
        self.stored = Dataset(the_config).open().objects[1]
        self.key = f"{the_config.dataset_prefix}/{self.stored.key}"
        self.body = bytes(self.store.get(self.key))
        assert isinstance(self.stored.layout, Outline)
        start, end = self.stored.layout.directory_range
        self.layout = self.stored.layout.layout(
            Schema(tuple(RAGGED)), memoryview(self.body[start:end])
        )
        self.ends = {
            name: np.frombuffer(self.body[column.offset : column.end], "<i8")
            for name, column in self.layout.columns.items()
            if name.endswith("/ends")
        }

    def damage(self, *offsets: int) -> None:
        body = bytearray(self.body)
        for offset in offsets:
            body[offset] ^= 1
        self.store.delete([self.key])
        self.store.put(self.key, bytes(body))

    def rows_of_block(self, name: str, block: int) -> list[int]:
        """The rows of the object that have a byte in a block of values."""
        column = self.layout.columns[f"{name}/values"]
        first = block * column.block_items
        stop = min(first + column.block_items, column.items)
        ends = self.ends[f"{name}/ends"]
        starts = [0, *ends[:-1]]
        return [i for i in range(len(ends)) if starts[i] < stop and ends[i] > first]


@pytest.mark.parametrize("name", ["tokens", "boxes", "text"])
@pytest.mark.parametrize("block", [0, 1, -1])
def test_a_damaged_block_of_values_names_its_rows(
    memory: dict[str, str], name: str, block: int
) -> None:
    the_config = saved_ragged(memory)
    assert verify_dataset(the_config).problems == ()
    found = RaggedObject(the_config)
    column = found.layout.columns[f"{name}/values"]
    assert column.num_blocks > 1
    block %= column.num_blocks
    found.damage(column.block_range(block)[0] + 5)
    [problem] = verify_dataset(the_config).problems
    rows = found.rows_of_block(name, block)
    assert (problem.attribute, problem.key) == (name, found.stored.key)
    assert problem.rows == (2500 + rows[0], 2500 + rows[-1] + 1)
    assert problem.what == "differ from their checksum"


def test_damaged_ends_leave_the_rows_of_values_unknown(memory: dict[str, str]) -> None:
    the_config = saved_ragged(memory)
    found = RaggedObject(the_config)
    ends = found.layout.columns["tokens/ends"]
    values = found.layout.columns["tokens/values"]
    found.damage(ends.offset + 8, values.end - 1)
    problems = verify_dataset(the_config).problems
    assert [(p.attribute, p.rows) for p in problems] == [("tokens", (2500, 4000))] * 2
    found.damage(found.layout.columns["wide"].offset)
    [problem] = verify_dataset(the_config).problems
    assert (problem.attribute, problem.rows) == ("wide", (2500, 2500 + 655))


@pytest.mark.parametrize("word", [0, 1, 5, 20, -1])
def test_a_damaged_directory(memory: dict[str, str], word: int) -> None:
    the_config = saved_ragged(memory)
    found = RaggedObject(the_config)
    start, end = found.layout.directory_range
    found.damage(start + 8 * word if word >= 0 else end + 8 * word)
    [problem] = verify_dataset(the_config).problems
    assert (problem.attribute, problem.rows) == (None, (2500, 4000))
    assert problem.what == "the directory differs from its own checksum in the commit"


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_ragged_object_cut_short(memory: dict[str, str], size: int) -> None:
    the_config = saved_ragged(memory)
    found = RaggedObject(the_config)
    body = found.body[: size % len(found.body)]
    found.store.delete([found.key])
    found.store.put(found.key, body)
    [problem] = verify_dataset(the_config).problems
    assert problem.rows == (2500, 4000)
    assert problem.what.startswith(f"the object has {len(body)} bytes, its commit says ")


def resealed(the_config: DataConfig, change: Callable[[RaggedObject, bytearray], None]) -> None:
    """Change the second object, and make all checksums right again."""
    found = RaggedObject(the_config)
    body = bytearray(found.body)
    change(found, body)
    start, end = found.layout.directory_range
    sums = [xxh3(bytes(body[a:b])) for a, b in found.layout.block_ranges.tolist()]
    body[end - 8 * len(sums) : end] = np.array(sums, "<u8").tobytes()
    found.store.delete([found.key])
    found.store.put(found.key, bytes(body))
    catalog = Catalog(the_config)
    key = catalog.commit_key(catalog.commit_ids()[1])
    value = json.loads(bytes(found.store.get(key)))
    value["objects"]["checksum"] = [f"{xxh3(bytes(body)):016x}"]
    value["objects"]["directory_checksum"] = [f"{xxh3(bytes(body[start:end])):016x}"]
    found.store.delete([key])
    found.store.put(key, canonical_json(value))


@pytest.mark.parametrize(
    ("row", "end"), [(0, -1), (0, 10**6), (700, 0), (-1, 0), (-1, 2**40), (5, 2**63 - 1)]
)
def test_ends_that_do_not_ascend_are_a_problem(memory: dict[str, str], row: int, end: int) -> None:
    """With all checksums right: a writer was wrong, or means no good."""
    the_config = saved_ragged(memory)

    def change(found: RaggedObject, body: bytearray) -> None:
        column = found.layout.columns["tokens/ends"]
        place = column.offset + row % column.items * 8
        body[place : place + 8] = end.to_bytes(8, "little", signed=True)

    resealed(the_config, change)
    [problem] = verify_dataset(the_config).problems
    assert (problem.attribute, problem.rows) == ("tokens", (2500, 4000))
    assert "the ends of its rows do not ascend to its" in problem.what


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        (0, 1, "it needs what this version of storage_loader does not know (0x1): upgrade it"),
        (1, 2**63, "is larger than any object"),
        (2, 1499, "'row' has 1499 items in"),
        (1, 0, "lies outside or is not on a 64-byte boundary"),
        (7, 64, "overlaps another part"),
    ],
)
def test_a_directory_that_says_what_cannot_be(
    memory: dict[str, str], word: int, value: int, text: str
) -> None:
    the_config = saved_ragged(memory)

    def change(found: RaggedObject, body: bytearray) -> None:
        place = found.layout.directory_range[0] + 8 * word
        body[place : place + 8] = value.to_bytes(8, "little")

    resealed(the_config, change)
    [problem] = verify_dataset(the_config).problems
    assert problem.rows == (2500, 4000)
    assert text in problem.what


def test_another_header_of_a_ragged_object_is_a_problem(memory: dict[str, str]) -> None:
    the_config = saved_ragged(memory)

    def change(found: RaggedObject, body: bytearray) -> None:
        name = body.index(b"text")
        body[name : name + 4] = b"TEXT"

    resealed(the_config, change)
    [problem] = verify_dataset(the_config).problems
    assert "HDF5 may show other rows" in problem.what


# What a commit says of the rows


NUMBERS = [
    ROW,
    *(Attribute(f"a {name}", name) for name in DTYPES if not name.startswith("complex")),
    Attribute("wide", "int8", (2,)),
    Attribute("wave", "complex64"),
    Attribute("text", "str"),
]
FIXED = NUMBERS[:-1]
CODED = {"complib": "zstd"}


def numbers(count: int, first: int = 0) -> dict[str, Any]:
    n = np.arange(first, first + count)
    batch = {a.name: (n % 2).astype(a.numpy_dtype) for a in NUMBERS[:-3]}
    extreme = {
        "row": n,
        "a int64": n + np.iinfo(np.int64).min,
        "a uint64": np.uint64(2**64 - 1) - n.astype("u8"),
    }
    text = [f"{i}" for i in n.tolist()]
    return {**batch, **extreme, "wide": np.zeros((count, 2), np.int8), "wave": n * 1j, "text": text}


def saved_numbers(
    storage: dict[str, str], attributes: list[Attribute] = NUMBERS, compressor: Any = None
) -> DataConfig:
    """Two commits, of 2 objects and of 1."""
    the_config = DataConfig("rows", attributes, compressor=compressor, **storage)
    with DataSaver(the_config) as saver:
        for first in (0, 600, 1200):
            batch = numbers(600, first)
            saver({a.name: batch[a.name] for a in attributes})
            if first == 0:
                saver._hand_over()  # an object more
            else:
                saver.commit()
    assert [len(c.objects) for c in read_again(the_config)] == [2, 1]
    return the_config


def read_again(the_config: DataConfig) -> list[Any]:
    catalog = Catalog(the_config)
    schema = catalog.require_schema()
    return list(catalog.read_commits(schema, catalog.commit_ids()).values())


@pytest.mark.parametrize("compressor", [None, CODED])
@pytest.mark.parametrize("attributes", [NUMBERS, FIXED], ids=["text too", "fixed"])
def test_what_is_said_of_rows_is_right(
    memory: dict[str, str], attributes: list[Attribute], compressor: Any
) -> None:
    the_config = saved_numbers(memory, attributes, compressor)
    assert lines(the_config) == []
    assert lines(the_config, num_threads=1) == []


@pytest.mark.parametrize("compressor", [None, CODED])
@pytest.mark.parametrize(
    "values",
    [
        [np.nan, 1.0],
        [np.nan] * 3,
        [1.0, -np.inf],
        [np.inf, 2.0, np.nan],
        [-0.0],
        [0.0, -0.0],
        [-0.0, 0.0],
        [5e-324, -5e-324],
        [1.7976931348623157e308],
        [0.1, -0.1],
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_numbers_that_are_not_finite_and_zeros_are_right(
    memory: dict[str, str], dtype: str, values: list[float], compressor: Any
) -> None:
    the_config = DataConfig("rows", [("x", dtype)], compressor=compressor, **memory)
    with np.errstate(over="ignore"):
        array = np.array(values).astype(Attribute("x", dtype).numpy_dtype)
    save(the_config, {"x": array})
    assert lines(the_config) == []


WRONG = [
    ("row", "least", -1),
    ("row", "most", 1198),
    ("row", "most", 1200),
    ("row", "least", None),
    ("row", "least", 600.5),
    ("row", "least", "600"),
    ("row", "least", [600]),
    ("row", "most", 10**400),
    ("row", "most", True),
    ("a bool", "least", 0),
    ("a bool", "most", False),
    ("a int8", "most", True),
    ("a uint64", "most", float(2**64)),
    ("a int64", "least", -(2**63)),
    ("a float16", "most", 1.0000001),
    ("a bfloat16", "least", 1e-300),
    ("a float64", "least", {}),
]


@pytest.mark.parametrize("compressor", [None, CODED])
@pytest.mark.parametrize(("name", "what", "value"), WRONG, ids=str)
def test_a_wrong_smallest_or_largest_value(
    memory: dict[str, str], name: str, what: str, value: Any, compressor: Any
) -> None:
    the_config = saved_numbers(memory, NUMBERS, compressor)
    before = lines(the_config)
    rewrite(the_config, 0, lambda v: v["objects"][what][name].__setitem__(1, value))
    [problem] = verify_dataset(the_config).problems
    stored = Dataset(the_config).open().objects[1]
    assert before == []
    assert (problem.attribute, problem.key, problem.rows) == (name, stored.key, (600, 1200))
    assert problem.what.startswith("its commit says that the values are ")
    assert problem.what.endswith(
        "; the rows themselves are right, save them again before a reader goes by it"
    )
    assert len(problem.what) < 400
    assert len(Dataset(the_config)[:]["row"]) == 1800  # nothing reads them yet


def test_what_is_wrong_of_values_is_said(memory: dict[str, str]) -> None:
    the_config = saved_numbers(memory, FIXED)
    rewrite(the_config, 1, lambda v: v["objects"]["most"]["row"].__setitem__(0, 5))
    found = Found(the_config, 2)
    assert lines(the_config) == [
        f"{found.where}, attribute 'row', rows 1200 to 1799: its commit says that the values are "
        "1200 to 5, they are 1200 to 1799; the rows themselves are right, save them again before a "
        "reader goes by it"
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda objects: objects.pop("least"),
        lambda objects: objects.pop("most"),
        lambda objects: objects.__setitem__("least", None),
        lambda objects: objects.__setitem__("most", [1, 2]),
        lambda objects: objects["most"].pop("row"),
        lambda objects: objects["least"].__setitem__("row", 5),
        lambda objects: objects["least"].__setitem__("row", [0]),
        lambda objects: objects["least"].__setitem__("row", [0, 600, 1]),
    ],
)
def test_a_commit_without_smallest_or_largest_values(
    memory: dict[str, str], change: Callable[[Any], Any]
) -> None:
    the_config = saved_numbers(memory)
    commit_id = rewrite(the_config, 0, lambda value: change(value["objects"]))
    [problem] = verify_dataset(the_config).problems
    assert (problem.commit, problem.key, problem.rows) == (commit_id, None, None)
    assert "has no list of " in problem.what


@pytest.mark.parametrize("depth", [10, *range(100, 1000, 100), 100_000])
def test_nested_values_of_a_commit_end_nothing(memory: dict[str, str], depth: int) -> None:
    the_config = saved_numbers(memory, FIXED)
    catalog = Catalog(the_config)
    key = catalog.commit_key(catalog.commit_ids()[0])
    body = bytes(catalog.store.get(key))
    at = body.index(b'"row":[', body.index(b'"least"')) + len(b'"row":[')
    catalog.store.put(key, body[:at] + b"[" * depth + b"]" * depth + body[body.index(b",", at) :])
    assert len(verify_dataset(the_config).problems) == 1


@pytest.mark.parametrize("attributes", [NUMBERS, FIXED], ids=["text too", "fixed"])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_wrong_number_of_decoded_bytes(
    memory: dict[str, str], attributes: list[Attribute], more: int
) -> None:
    the_config = saved_numbers(memory, attributes, CODED)
    stored = Dataset(the_config).open().objects[1]
    said = stored.decoded + more
    rewrite(the_config, 0, lambda v: v["objects"]["decoded"].__setitem__(1, said))
    [problem] = verify_dataset(the_config).problems
    assert (problem.attribute, problem.key, problem.rows) == (None, stored.key, (600, 1200))
    assert problem.what == (
        f"its commit says that its rows have {said} bytes, they have {stored.decoded}; the rows "
        "themselves are right, save them again before a reader goes by it"
    )


def test_damaged_rows_are_told_before_what_is_said_of_them(memory: dict[str, str]) -> None:
    the_config = saved_numbers(memory, FIXED)
    rewrite(the_config, 0, lambda v: v["objects"]["most"]["row"].__setitem__(0, -5))
    found = Found(the_config, 0)
    found.change(flipped(found.stored.layout.columns["row"].offset))
    [problem] = verify_dataset(the_config).problems
    assert problem.what == "differ from their checksum"


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_values_are_right_whatever_the_pieces(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([name for name in DTYPES if not name.startswith("complex")]))
    attribute = Attribute("x", dtype)
    count = data.draw(st.integers(1, 50))
    octets = data.draw(
        st.binary(min_size=count * attribute.item_nbytes, max_size=count * attribute.item_nbytes)
    )
    values = np.frombuffer(octets, attribute.numpy_dtype)
    if dtype == "bool":
        values = np.frombuffer(octets, np.uint8) % 2 == 1
    the_config = DataConfig("rows", [attribute, ROW], storage=f"memory://{uuid.uuid4().hex}")
    save(the_config, {"x": values, "row": np.arange(count)})
    right, size = WatchedStore.stream, data.draw(st.integers(1, 100))

    def stream(self: WatchedStore, key: str, start: int, end: int) -> Any:
        body = b"".join(right(self, key, start, end))
        return iter([body[at : at + size] for at in range(0, len(body), size)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchedStore, "stream", stream)
        watch(patch)
        assert lines(the_config) == []
