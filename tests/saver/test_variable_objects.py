"""Objects whose rows have no fixed size: what they hold, how large they get, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
    Ragged,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, Commit
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import SchemaError
from storage_loader.hdf5 import template
from storage_loader.layout import MAX_ROWS
from storage_loader.saver.batch import as_arrays
from storage_loader.saver.memory import Memory, Share
from storage_loader.saver.sizes import Sizes
from storage_loader.schema import DTYPES, Schema
from storage_loader.store import MemoryStore, xxh3
from storage_loader.threads import Threads
from tests.support import ROOT
from tests.support.ragged import KINDS, ROW, TOKENS, assert_equal, rows_of, stored_rows


def config_of(folder: dict[str, str], *attributes: Attribute, **settings: Any) -> DataConfig:
    return DataConfig("ragged", attributes or KINDS, **{**folder, **settings})


def objects(config: DataConfig) -> list[Path]:
    root = Path(config.storage.removeprefix("file://"))
    return sorted((root / config.dataset_prefix).glob("objects/*/*.h5"))


# Rows come back


@pytest.mark.parametrize("size", [1, 7, 400])
def test_all_kinds(folder: dict[str, str], size: int) -> None:
    config = config_of(folder, max_object_size=MIN_OBJECT_SIZE)
    with DataSaver(config) as saver:
        for first in range(0, 400, size):
            saver(rows_of(range(first, min(first + size, 400))))
        assert saver.rows_pending == 400
    assert_equal(stored_rows(config), rows_of(range(400)))
    assert len(objects(config)) > 1
    verified = verify_dataset(config)
    assert (verified.problems, verified.num_rows) == ((), 400)


def test_objects_are_the_same_however_rows_come(folder: dict[str, str]) -> None:
    bodies = []
    for name, size in (("one", 1), ("many", 100), ("all", 400)):
        config = DataConfig(name, KINDS, **folder, max_object_size=MIN_OBJECT_SIZE)
        with DataSaver(config) as saver:
            for first in range(0, 400, size):
                saver(rows_of(range(first, first + size)))
        bodies.append([path.read_bytes() for path in objects(config)])
    assert bodies[0] == bodies[1] == bodies[2]


def test_one_batch_and_one_object_of_each_size(folder: dict[str, str]) -> None:
    """From no value to as many as one object holds, and rows of an object each."""
    most = (MIN_OBJECT_SIZE - 2048) // 4
    lengths = [0, 1, 0, most, most, 0, 5, most // 2, most // 2 + 100, most, 0]
    rows = [np.arange(n, n + length, dtype=np.int32) for n, length in enumerate(lengths)]
    config = config_of(folder, TOKENS, max_object_size=MIN_OBJECT_SIZE)
    save(config, {"tokens": rows})
    assert_equal(stored_rows(config), {"tokens": rows})
    assert all(path.stat().st_size <= MIN_OBJECT_SIZE for path in objects(config))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(folder: dict[str, str], dtype: str) -> None:
    config = config_of(folder, Attribute("x", dtype, (None,)), Attribute("y", dtype, (None, 2, 3)))
    values = np.arange(60).astype(DTYPES[dtype])
    rows = {
        "x": [values[:7], values[:0], values[7:8]],
        "y": [
            values[:0].reshape(0, 2, 3),
            values[:18].reshape(3, 2, 3),
            values[6:12].reshape(1, 2, 3),
        ],
    }
    save(config, rows)
    assert_equal(stored_rows(config), rows)


@pytest.mark.parametrize("count", [1, 1000])
def test_rows_that_are_all_empty(folder: dict[str, str], count: int) -> None:
    attributes = [*KINDS[1:5], Attribute("nothing", "float64", (0,))]
    config = config_of(folder, *attributes)
    empty: dict[str, Any] = {"tokens": [[]] * count, "boxes": [[]] * count}
    empty |= {"raw": [b""] * count, "caption": [""] * count, "nothing": np.zeros((count, 0))}
    save(config, empty)
    found = stored_rows(config)
    assert list(found) == list(empty)
    for rows in found.values():
        assert [len(row) for row in rows] == [0] * count
    assert verify_dataset(config).problems == ()
    [path] = objects(config)
    with h5py.File(path) as h5:
        assert h5["tokens/values"].shape == (0,)
        assert h5["boxes/values"].shape == (0, 4)
        assert h5["tokens/ends"][...].tolist() == [0] * count


def test_no_rows_publish_nothing(memory: dict[str, str]) -> None:
    config = DataConfig("ragged", KINDS, **memory)
    with DataSaver(config) as saver:
        saver({name: [] for name in config.schema.names})
        assert saver.commit() is None


@given(
    batches=st.lists(
        st.lists(st.integers(0, 60) | st.sampled_from([0, 1, 4000, 9000, 15_000]), max_size=12),
        max_size=8,
    ),
    commit=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_any_batches(
    batches: list[list[int]], commit: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = DataConfig(
        "any", [ROW, TOKENS, Attribute("c", "str")], storage=tmp_path_factory.mktemp("any"),
        max_object_size=MIN_OBJECT_SIZE,
    )  # fmt: skip
    number = 0
    expected: dict[str, list[Any]] = {"row": [], "tokens": [], "c": []}
    with DataSaver(config, writer="w") as saver:
        for lengths in batches:
            numbers = np.arange(number, number + len(lengths))
            number += len(lengths)
            batch: dict[str, Any] = {"row": numbers}
            batch["tokens"] = [np.arange(n, dtype=np.int32) for n in lengths]
            batch["c"] = [f"é{n}" * (n % 3) for n in lengths]
            saver(batch)
            if commit:
                saver.commit()
            for name in expected:
                expected[name] += [*batch[name]]
    found = stored_rows(config)
    if commit:  # objects of several commits go by the attempt's name, in the order of numbers
        assert [int(n) for n in found["row"]] == list(range(number))
    assert_equal(found, expected)
    assert all(path.stat().st_size <= MIN_OBJECT_SIZE for path in objects(config))
    if number:
        assert verify_dataset(config).problems == ()


# What the commit and the directory say


def test_a_commit_says_what_the_specification_says(memory: dict[str, str]) -> None:
    config = DataConfig("ragged", [ROW, TOKENS], **memory)
    save(config, {"row": [5, 6, 7], "tokens": [[1, 2], [], [3]]})
    store = MemoryStore(memory["storage"])
    [commit] = [i.key for i in store.list() if "/metadata/" in i.key]
    value = json.loads(bytes(store.get(commit)))
    [layout], columns = value["layouts"], value["objects"]
    assert layout == {"blocks": {"row": 8192, "tokens/ends": 8192, "tokens/values": 16384}}
    data = bytes(store.get(f"{config.dataset_prefix}/{columns['key'][0]}"))
    start = columns["directory"][0]
    directory = data[start : start + columns["directory_nbytes"][0]]
    assert f"{xxh3(directory):016x}" == columns["directory_checksum"][0]
    assert f"{xxh3(data):016x}" == columns["checksum"][0]
    assert columns["decoded"] == [3 * 8 + 3 * 8 + 3 * 4]
    words = np.frombuffer(directory, "<u8").tolist()
    assert words[0] == 0
    places = [words[1 + 3 * i : 4 + 3 * i] for i in range(3)]
    assert [place[1:] for place in places] == [[3, 24], [3, 24], [3, 12]]
    parts = [data[offset : offset + nbytes] for offset, _, nbytes in places]
    assert np.frombuffer(parts[0], "<i8").tolist() == [5, 6, 7]
    assert np.frombuffer(parts[1], "<i8").tolist() == [2, 2, 3]
    assert np.frombuffer(parts[2], "<i4").tolist() == [1, 2, 3]
    assert words[10:] == [xxh3(part) for part in parts]
    schema = config.schema
    assert Commit.from_bytes(json.dumps(value).encode(), schema, place="x").objects.decoded == [60]


PLAIN = """
import json, pathlib, sys
import h5py
assert not [name for name in sys.modules if name.startswith("storage_loader")]
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.h5")):
    with h5py.File(path) as h5:
        for name in sorted(h5):
            if name == ".directory":
                continue
            if isinstance(h5[name], h5py.Dataset):
                found.setdefault(name, []).extend(h5[name][...].tolist())
                continue
            start = 0
            for end in h5[name]["ends"]:
                row = h5[name]["values"][start:end]
                found.setdefault(name, []).append(row.tolist())
                start = end
assert not [name for name in sys.modules if name.startswith("storage_loader")]
print(json.dumps(found))
"""


def test_plain_h5py_reads_the_objects(folder: dict[str, str], tmp_path: Path) -> None:
    config = config_of(folder, max_object_size=MIN_OBJECT_SIZE)
    save(config, rows_of(range(300)))
    done = subprocess.run(
        [sys.executable, "-I", "-c", PLAIN, str(objects(config)[0].parent)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    found = json.loads(done.stdout)
    rows = rows_of(range(300))
    assert found["row"] == rows["row"]
    assert found["tokens"] == [row.tolist() for row in rows["tokens"]]
    assert found["boxes"] == [row.tolist() for row in rows["boxes"]]
    assert [bytes(row) for row in found["raw"]] == rows["raw"]
    assert [bytes(row).decode() for row in found["caption"]] == rows["caption"]
    assert [json.loads(bytes(row)) for row in found["meta"]] == rows["meta"]


# How large objects are


def sizes(config: DataConfig) -> list[int]:
    return [path.stat().st_size for path in objects(config)]


def test_objects_are_full(folder: dict[str, str]) -> None:
    """Less than 0.1% of an object stays empty, beside the row that did not fit."""
    most = 2**20
    config = config_of(folder, ROW, TOKENS, Attribute("text", "str"), max_object_size=most)
    count = 60_000
    lengths = np.arange(count) * 7919 % 40
    values = np.arange(lengths.sum(), dtype=np.int32)
    texts = ["x" * int(n) for n in lengths % 7]
    row_nbytes = 8 + 8 + 8 + 40 * 4 + 7
    with DataSaver(config) as saver:
        for first in range(0, count, 5000):
            part = Ragged.of_lengths(values, lengths)[first : first + 5000]
            numbers = np.arange(first, first + 5000)
            saver({"row": numbers, "tokens": part, "text": texts[first : first + 5000]})
    found = sizes(config)
    assert len(found) > 4
    assert max(found) <= most
    assert min(found[:-1]) > most * 0.999 - row_nbytes


SHAPES = st.sampled_from(
    [
        [("t", "int32", (None,))],
        [
            ("t", "complex128", (None, 3)),
            ("s", "str"),
            ("n", "uint8", (3,)),
            ("none", "int8", (0,)),
        ],
        [(f"a{i}", ["json", "bool", "bytes"][i % 3]) for i in range(12)],
        [(f"a{i}", "float16", (None,)) for i in range(40)],
    ]
)


@given(SHAPES, st.data())
@settings(max_examples=60, deadline=None)
def test_the_bytes_of_an_object_are_known_before_it_is_made(
    attributes: list[Any], data: st.DataObject
) -> None:
    """Never less than it has, and few more."""
    lengths = st.sampled_from([0, 1, 40, 90, 200, 4096])  # of notes, which headers hold
    schema = Schema.of(
        [replace(a, description="d" * data.draw(lengths) or None) for a in Schema.of(attributes)]
    )
    names = [a.name for a in schema if a.is_variable]
    counts = st.sampled_from([0, 1, 2, 63, 64, 65, 1000, 8191, 8192, 8193, 70_001, 10**6])
    rows = data.draw(counts.filter(bool))
    items = {name: data.draw(counts) for name in names}
    bound = Sizes(schema, 2**40).of(rows, items)
    nbytes = template(schema, rows, tuple(items.values())).layout.nbytes
    assert nbytes <= bound <= nbytes + 400


def test_a_row_that_fits_no_object_is_refused_before_its_batch_is_stored(
    folder: dict[str, str],
) -> None:
    config = config_of(
        folder, ROW, TOKENS, Attribute("text", "str"), max_object_size=MIN_OBJECT_SIZE
    )
    good: dict[str, Any] = {"row": [0, 1], "tokens": [[1], [2]], "text": ["a", "b"]}
    with DataSaver(config) as saver:
        saver(good)
        bad = {"row": [2, 3, 4], "tokens": [[1] * 9000, [1] * 16_000, [2]], "text": ["", "ab", ""]}
        with pytest.raises(SchemaError) as error:
            saver(bad)
        assert saver.rows_pending == 2
        text = str(error.value)
        assert text.startswith("row 1 of the batch needs an object of ")
        assert "64000 of them for attribute 'tokens', but max_object_size is 65536" in text
        enough = int(text.rpartition("set max_object_size to ")[2].partition(" ")[0])
        saver({"row": [2], "tokens": [[3]], "text": ["é" * 30_000]})
    found = stored_rows(config)
    assert found["row"] == [0, 1, 2]
    assert found["text"][2] == "é" * 30_000
    larger = config_of(
        folder, ROW, TOKENS, Attribute("text", "str"), max_object_size=enough, additional={"n": 1}
    )
    save(larger, bad)
    assert max(sizes(larger)) <= enough
    with pytest.raises(SchemaError, match="row 1 of the batch needs an object of"):
        save(config_of(folder, ROW, TOKENS, Attribute("text", "str"), max_object_size=enough - 1,
                       additional={"n": 2}), bad)  # fmt: skip


def test_max_object_size_must_hold_a_row_without_values(folder: dict[str, str]) -> None:
    config = config_of(
        folder, TOKENS, Attribute("fixed", "uint8", (70_000,)), max_object_size=MIN_OBJECT_SIZE
    )
    with pytest.raises(SchemaError, match="a row without any values needs an object of 7"):
        DataSaver(config).open()


def test_an_object_has_no_more_rows_than_the_format_allows() -> None:
    schema = Schema.of([("x", "int8", (None,))])
    arrays, _ = as_arrays({"x": [[1], [2], [3]]}, schema)
    assert Sizes(schema, 2**60).fits(arrays, 0, 3, rows=MAX_ROWS - 2, items={"x": 0}) == 2


def test_the_largest_attribute_is_another_one_later(folder: dict[str, str]) -> None:
    """Than in the first rows of an object, by which it is decided what gathers where."""
    attributes = TOKENS, replace(TOKENS, name="more")
    config = config_of(folder, *attributes, max_object_size=MIN_OBJECT_SIZE)
    ramp = np.arange(7000, dtype=np.int32)
    few, many = [ramp[:3]], [ramp[n : n + 900] for n in range(40)]
    batches = [(many[:1], few), *(([ramp[:n]], [row]) for n, row in enumerate(many)), (many, many)]
    with DataSaver(config) as saver:
        for tokens, more in batches:
            saver({"tokens": tokens, "more": more})
    assert len(objects(config)) > 3
    found = Dataset(config)[:]
    for place, name in enumerate(("tokens", "more")):
        wanted = [row.tolist() for batch in batches for row in batch[place]]
        assert [row.tolist() for row in found[name]] == wanted
    assert verify_dataset(config).problems == ()


# Memory


def test_who_fills_waits_for_memory_that_others_are_about_to_give_back() -> None:
    memory = Memory(100)
    filling, finishing = Share(memory), Share(memory)
    lent = finishing.take(60)
    finishing.is_filling = False
    held = filling.take(40)
    taking = Threads(1, "taking").submit(filling.take, 40)
    more = finishing.take(80)  # it waits for nobody
    assert not taking.wait(0.1)
    finishing.give([lent, more])
    held_too = taking.result(timeout=10)
    assert len(filling.take(200)) == 200  # nobody else has any
    filling.give([held, held_too])


SAVE = """
import sys
from dataclasses import replace
import numpy as np
from storage_loader import DataConfig, DataSaver, Ragged
from storage_loader.store import MemoryStore, ObjectInfo
from datetime import datetime, timezone
import time

class SlowAndForgetful(MemoryStore):
    # Of objects it keeps no bytes, only how many there were.

    def put(self, key, data, *, create=False):
        if key.endswith("dataset.json"):
            super().put(key, data, create=create)
        time.sleep(0.03)
        sizes[key] = memoryview(data).nbytes

    def head(self, key):
        return ObjectInfo(key, sizes[key], datetime.now(timezone.utc))

    def list(self, prefix=""):
        return (self.head(key) for key in sizes if key.startswith(prefix + "/"))

sizes = {}
object_nbytes, saved_nbytes, threads, count = map(int, sys.argv[1:])

import storage_loader.catalog.catalog as catalog
catalog.open_store = lambda config: SlowAndForgetful(config.storage)

def memory(name):
    [line] = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

lengths = np.arange(2000) % 997
values = np.arange(lengths.sum(), dtype=np.int32)
names = [f"tokens {i}" for i in range(count)]
batch = dict.fromkeys(names, Ragged.of_lengths(values, lengths))
config = DataConfig(
    "big", [(name, "int32", (None,)) for name in names], storage="memory://nothing",
    max_object_size=object_nbytes,
)
with DataSaver(config, num_worker_threads=threads) as saver:
    saver({name: rows[:1] for name, rows in batch.items()})
before = memory("VmRSS")
saved = 0
with DataSaver(config, num_worker_threads=threads) as saver:
    while saved < saved_nbytes:
        saver(batch)
        saved += count * values.nbytes
assert sum(sizes.values()) > saved_nbytes and max(sizes.values()) <= object_nbytes
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize(
    ("object_nbytes", "threads", "count"), [(2**22, 4, 1), (2**25, 2, 1), (2**25, 4, 4)]
)
def test_memory_is_bounded(object_nbytes: int, threads: int, count: int) -> None:
    """However much is saved: that of each thread's object, the one that fills, and one more.

    Also of several attributes that take as much.
    """
    saved = 400_000_000
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(object_nbytes), str(saved), str(threads), str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    growth, bound = int(done.stdout), (threads + 2) * object_nbytes
    print(f"saved {saved:,} bytes: peak {growth:,} bytes, the bound is {bound:,}")
    beside = 12 * 2**20  # of a batch while it is checked, and of malloc for each thread: 4 to 9
    assert bound + beside < saved
    assert growth <= bound + beside


def test_a_failed_saver_and_the_next_one(memory: dict[str, str]) -> None:
    """Nothing of what an interrupted batch left is stored with other rows."""
    config = DataConfig("ragged", [ROW, TOKENS], **memory, max_object_size=MIN_OBJECT_SIZE)
    saver = DataSaver(config)
    saver({"row": [1], "tokens": [[1]]})
    saver.abort()
    save(config, {"row": [2], "tokens": [[2, 3]]})
    [commit] = [Catalog(config).read_commits(config.schema, Catalog(config).commit_ids())]
    assert [c.num_rows for c in commit.values()] == [1]
