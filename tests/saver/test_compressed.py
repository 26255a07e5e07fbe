"""Saving what is compressed: sizes, memory, threads, and what ends it early."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataSaver, Dataset
from storage_loader.codecs import COMPLIBS, Codec
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import DatasetNotFoundError, SaverError
from storage_loader.hdf5 import CodedRegion, coded_template
from storage_loader.layout import block_items
from storage_loader.saver import memory as saver_memory
from storage_loader.saver.gathered import GatheredBuffers
from storage_loader.saver.sizes import Sizes, coded_regions
from storage_loader.schema import DTYPES, TEXTS, Schema
from storage_loader.threads import Threads
from tests.support import ROOT
from tests.support.threads import running

# Sizes

codecs = st.none() | st.sampled_from(COMPLIBS)
shapes = st.lists(st.integers(0, 40), max_size=2).map(tuple) | st.sampled_from([(3000,), (70_000,)])
attributes = st.one_of(
    st.tuples(st.sampled_from(sorted(DTYPES)), shapes, codecs),
    st.tuples(
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.integers(1, 9), max_size=2).map(lambda inner: (None, *inner)),
        codecs,
    ),
    st.tuples(st.sampled_from(TEXTS), st.just(()), codecs),
)


@given(
    drawn=st.lists(attributes, min_size=1, max_size=6),
    rows=st.integers(1, 3000),
    counts=st.lists(st.integers(0, 200_000), min_size=6, max_size=6),
    noted=st.lists(st.sampled_from([0, 1, 40, 90, 200, 4096]), min_size=6, max_size=6),
    coded=st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_an_object_is_never_larger_than_was_thought(
    drawn: list[Any], rows: int, counts: list[int], noted: list[int], coded: Any
) -> None:
    """Whatever its blocks become: the bound less what coding saved is no less than the object."""
    schema = Schema.of(
        [
            Attribute(f"a{i}", dtype, shape, description="d" * length or None)
            for i, ((dtype, shape, _), length) in enumerate(zip(drawn, noted, strict=False))
        ]
    )
    of_attribute = {f"a{i}": Codec.of({"complib": c}) for i, (*_, c) in enumerate(drawn) if c}
    by_region = coded_regions(schema, of_attribute)
    if not by_region:
        return
    items = {a.name: count for a, count in zip(schema, counts, strict=False) if a.is_variable}
    sizes = Sizes(schema, 2**40, by_region)
    filled, saved = {}, 0
    for region in schema.regions:
        count = items[region.attribute] if region.role == "values" else rows
        if region.name in by_region and count * region.item_nbytes:
            whole = block_items(region.item_nbytes)
            blocks, nbytes = -(-count // whole), min(whole, count) * region.item_nbytes
            became = tuple(coded.choice((nbytes, coded.randint(1, nbytes))) for _ in range(blocks))
            filled[region.name] = CodedRegion(by_region[region.name], became)
            saved += blocks * nbytes - sum(became)
    layout = coded_template(schema, rows, tuple(items.values()), filled).layout
    most = int(sizes.of(rows, items)) - saved
    assert layout.nbytes <= most


def test_a_row_that_does_not_become_smaller_still_fits(memory: dict[str, str]) -> None:
    """Rows as large as an object takes, of noise."""
    attribute = Attribute("noise", "uint8", (None,))
    codec = {"noise": Codec.of({})}
    schema = Schema.of([attribute])
    sizes = Sizes(schema, MIN_OBJECT_SIZE, coded_regions(schema, codec))
    least = next(
        n for n in range(MIN_OBJECT_SIZE, 0, -1) if sizes.of(1, {"noise": n}) <= MIN_OBJECT_SIZE
    )
    config = DataConfig(
        "noise", [attribute], compressor={}, max_object_size=MIN_OBJECT_SIZE, **memory
    )
    noise = np.random.default_rng(0).integers(0, 256, (3, least), np.uint8)
    with DataSaver(config) as saver:
        saver({"noise": [*noise]})
    assert [row.tobytes() for row in Dataset(config)[:]["noise"]] == [n.tobytes() for n in noise]
    assert max(Dataset(config).open().objects.nbytes) <= MIN_OBJECT_SIZE


# Memory

ZEROS = Attribute("x", "uint8", (100,))
CODEC = Codec.of({})
ROWS = {"x": np.zeros((4000, 100), np.uint8)}

SAVED_NBYTES = int(os.environ.get("STORAGE_LOADER_TEST_SAVED_NBYTES", "512000000"))
THREADS = 4
CODER_NBYTES = 5 * 10**6  # of each thread that codes, mostly what malloc keeps for the next block

SAVE = f"""
import sys, time
import numpy as np
from storage_loader import DataConfig, DataSaver
from datetime import datetime, timezone
from storage_loader.store import MemoryStore, ObjectInfo

class SlowAndForgetful(MemoryStore):
    # Of objects it keeps no bytes, only how many there were.

    def put(self, key, data, *, create=False):
        if key.endswith("dataset.json"):
            super().put(key, data, create=create)
        time.sleep(0.05)
        sizes[key] = memoryview(data).nbytes

    def head(self, key):
        return ObjectInfo(key, sizes[key], datetime.now(timezone.utc))

    def list(self, prefix=""):
        return (self.head(key) for key in sizes if key.startswith(prefix + "/"))

sizes = {{}}
object_nbytes, saved_nbytes, content = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

import storage_loader.catalog.catalog as catalog
catalog.open_store = lambda config: SlowAndForgetful(config.storage)

def memory(name):
    [line] = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

config = DataConfig(
    "big", [("image", "uint8", (3, 224, 224)), ("row", "int64")], storage="memory://nothing",
    max_object_size=object_nbytes, compressor={{"complib": "zstd", "complevel": 1}},
)
noise = np.random.default_rng(0).integers(0, 256, (64, 3, 224, 224), np.uint8)
if content == "half":
    noise[:, :, ::2] = 0
if content == "zeros":
    noise[:] = 0
batch = {{"image": noise, "row": np.arange(64)}}
with DataSaver(config, num_worker_threads={THREADS}) as saver:
    saver({{name: array[:1] for name, array in batch.items()}})
before = memory("VmRSS")
rows = 0
with DataSaver(config, num_worker_threads={THREADS}) as saver:
    while rows * noise[0].nbytes < saved_nbytes:
        saver(batch)
        rows += 64
assert saver.rows_committed == rows
assert max(sizes.values()) <= object_nbytes
print(memory("VmHWM") - before, sum(sizes.values()))
"""


@pytest.mark.parametrize("content", ["noise", "half", "zeros"])
@pytest.mark.parametrize("object_nbytes", [2 * 2**20, 4 * 2**20, 16 * 2**20, 64 * 2**20])
def test_the_peak_is_within_the_bound(object_nbytes: int, content: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(object_nbytes), str(SAVED_NBYTES), content],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    growth, stored = map(int, done.stdout.split())
    bound = (THREADS + 2) * object_nbytes
    if object_nbytes < 16 * 2**20:  # larger ones have room for what coding itself takes
        bound += CODER_NBYTES * (os.cpu_count() or 1)
    assert bound < SAVED_NBYTES  # else it would say nothing
    print(f"{stored:,} bytes of {SAVED_NBYTES:,}: peak {growth:,} bytes, the bound is {bound:,}")
    assert growth <= bound


@pytest.mark.parametrize("rows", [1, 655, 656, 3000])
def test_memory_in_use_is_counted_whole(rows: int) -> None:
    """Also where a block is short: what an array too many is freed by is no less than there is."""
    shared = GatheredBuffers(Schema.of([ZEROS]), 2**20, {"x": CODEC})
    buffer = shared.buffer()
    buffer.append({"x": ROWS["x"][:rows]}, 0, rows)
    taken = shared.memory.nbytes
    assert taken >= rows * 100
    buffer.seal()
    buffer.clear()
    assert shared.memory.nbytes == sum(
        len(array) for free in shared.memory._free.values() for array in free
    )
    shared.coders.end()


# What ends it early

Broken = Callable[..., bytes]


def zeros(memory: dict[str, str]) -> DataConfig:
    name = uuid.uuid4().hex
    return DataConfig(name, [ZEROS], compressor={}, max_object_size=MIN_OBJECT_SIZE, **memory)


def breaking(monkeypatch: pytest.MonkeyPatch, nth: int, error: BaseException) -> None:
    """Coding fails from the nth block on, from 0."""
    coded, blocks, lock = Codec.encode, iter(range(10**9)), threading.Lock()

    def encode(self: Codec, values: memoryview, itemsize: int, *shuffled: memoryview) -> bytes:
        with lock:
            number = next(blocks)
        if number >= nth:
            raise error
        return coded(self, values, itemsize, *shuffled)

    monkeypatch.setattr(Codec, "encode", encode)


@pytest.mark.parametrize("nth", [0, 3, 30])
def test_an_error_in_a_thread_that_codes_reaches_the_caller(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    config = zeros(memory)
    breaking(monkeypatch, nth, MemoryError("no room to code"))
    saver = DataSaver(config)
    with pytest.raises((SaverError, MemoryError), match="no room to code"), saver:
        for _ in range(20):
            saver(ROWS)
    with pytest.raises(DatasetNotFoundError):
        len(Dataset(config))
    assert saver.rows_committed == 0
    assert running("save", "code") == []


def test_after_an_error_of_coding_nothing_is_committed(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = zeros(memory)
    with monkeypatch.context() as patch:
        saver = DataSaver(config)
        saver(ROWS)
        saver.commit()
        breaking(patch, 2, MemoryError("no room to code"))
        with contextlib.suppress(SaverError, MemoryError):
            for _ in range(20):
                saver(ROWS)
    for _ in range(2):
        with pytest.raises(SaverError, match="no room to code"):
            saver(ROWS)
        with pytest.raises(SaverError, match="no room to code"):
            saver.commit()
    saver.abort()
    assert len(Dataset(config)) == saver.rows_committed == 4000
    assert running("save", "code") == []


@pytest.mark.parametrize("what", ["pages", "submit"])
def test_an_object_that_cannot_be_finished_keeps_nobody_waiting_for_its_memory(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The system gives no memory, or no thread, once; who fills the next object waits for all."""
    place: Any = saver_memory if what == "pages" else Threads
    real, failed = getattr(place, what), threading.Event()

    def once(*arguments: Any) -> Any:
        is_sealing = "storage_loader-save" in threading.current_thread().name
        if is_sealing and not failed.is_set():
            failed.set()
            raise OSError("cannot allocate memory")
        return real(*arguments)

    monkeypatch.setattr(place, what, once)
    names = [f"a{i}" for i in range(6)]
    attributes = [
        Attribute(name, "uint8", (5000,), compressor={"complib": "zstd", "complevel": 1})
        for name in names
    ]
    config = DataConfig("noise", attributes, **memory, max_object_size=2**18)
    rows = np.random.default_rng(0).integers(0, 255, (20, 5000)).astype(np.uint8)
    with pytest.raises(SaverError, match="cannot allocate"), DataSaver(config) as saver:
        for _ in range(50):
            saver(dict.fromkeys(names, rows))
    assert failed.is_set()


@pytest.mark.parametrize("end", ["abort", "close", "exception"])
def test_the_end_leaves_no_thread(memory: dict[str, str], end: str) -> None:
    saver = DataSaver(zeros(memory))
    with contextlib.suppress(ZeroDivisionError), saver:
        for _ in range(5):
            saver(ROWS)
        assert running("code")
        if end == "abort":
            saver.abort()
        elif end == "exception":
            raise ZeroDivisionError
    assert running("save", "code") == []


def test_abort_does_not_wait_for_all_that_is_to_be_coded(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coded, begun = Codec.encode, []

    def encode(self: Codec, values: memoryview, itemsize: int, *shuffled: memoryview) -> bytes:
        begun.append(1)
        time.sleep(0.5)
        return coded(self, values, itemsize, *shuffled)

    monkeypatch.setattr(Codec, "encode", encode)
    x = Attribute("x", "uint8", (100,))
    saver = DataSaver(DataConfig("slow", [x], compressor={}, **memory))
    for _ in range(5):
        saver(ROWS)  # 30 blocks, which take 7 s on two cores
    start = time.monotonic()
    saver.abort()
    assert time.monotonic() - start < 5
    assert len(begun) < 20
    assert running("save", "code") == []


@pytest.mark.parametrize("delay", [0.05, 0.3, 0.8])
def test_ctrl_c_while_coding(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    coded = Codec.encode

    def encode(self: Codec, values: memoryview, itemsize: int, *shuffled: memoryview) -> bytes:
        time.sleep(0.01)
        return coded(self, values, itemsize, *shuffled)

    monkeypatch.setattr(Codec, "encode", encode)
    config = zeros(memory)
    main = threading.main_thread().ident
    timer = threading.Timer(delay, signal.pthread_kill, [main, signal.SIGINT])
    saver = DataSaver(config)
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), saver:
        while True:
            saver(ROWS)
    assert time.monotonic() - start < delay + 5
    timer.join()
    assert saver.rows_committed == 0
    with pytest.raises(DatasetNotFoundError):
        len(Dataset(config))
    deadline = time.monotonic() + 5
    while running("save", "code") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert running("save", "code") == []
