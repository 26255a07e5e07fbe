"""How `Dataset` fetches from a store that is far: many requests at once, and into the cache."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, DataLoader, Dataset
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import ConfigError, StoreError
from storage_loader.store import Store, open_store
from storage_loader.store.retried import RetriedStore
from tests.support.faulty import Call, WatchedStore, watch
from tests.support.rows import ROW, assert_rows, config, make, numbers_in, save_rows

LARGE = (Attribute("pixels", "uint8", (3000,)), Attribute(ROW, "int64"))
OBJECTS = 20
ROWS = OBJECTS * 21
AT_ONCE = 8  # requests that must be in flight together, for rows of all objects

CACHES: list[dict[str, Any]] = [{"cache_size": 0}, {}]


@pytest.fixture
def rows(tmp_path: Path) -> DataConfig:
    the_config = config(
        {"storage": str(tmp_path / "store")}, attributes=LARGE, max_object_size=MIN_OBJECT_SIZE
    )
    save_rows(the_config, ROWS, 21, commits=True)
    assert len(Dataset(the_config).open().objects) == OBJECTS
    return the_config


class Together:
    """A hook that lets the first requests for rows go on once so many are in flight."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(AT_ONCE)
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, call: Call) -> None:
        if call.verb in ("get_ranges", "stream"):
            with self._lock:
                self.count += 1
                waits = self.count <= AT_ONCE
            if waits:
                self._barrier.wait(60)


def far(monkeypatch: pytest.MonkeyPatch, before: Callable[[Call], None]) -> None:
    def opened(the_config: DataConfig) -> Store:
        return RetriedStore(WatchedStore(open_store(the_config), before=before, local=False), 60)

    monkeypatch.setattr("storage_loader.catalog.catalog.open_store", opened)


@pytest.mark.parametrize("cache", CACHES, ids=["no cache", "cache"])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_rows_of_many_objects_are_asked_for_at_once(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, cache: dict[str, Any], one_by_one: bool
) -> None:
    """Each request waits for seven others: one after another, none would ever come."""
    far(monkeypatch, Together())
    dataset = Dataset(rows, **cache)
    numbers = np.random.default_rng(0).permutation(ROWS)
    if one_by_one:
        got = dataset.rows(numbers.tolist())
        assert [int(row[ROW]) for row in got] == numbers.tolist()
    else:
        assert_rows(dataset[numbers], numbers, LARGE)


def test_what_a_full_cache_refuses_is_asked_for_at_once(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    far(monkeypatch, Together())
    dataset = Dataset(rows, cache_dir=tmp_path / "cache", cache_size=1)
    assert_rows(dataset[:], range(ROWS), LARGE)


@pytest.mark.parametrize("cache", CACHES, ids=["no cache", "cache"])
def test_an_error_of_one_request_is_raised_and_the_next_read_is_whole(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, cache: dict[str, Any]
) -> None:
    broken = threading.Event()
    broken.set()

    def fail(call: Call) -> None:
        if broken.is_set() and call.verb in ("get_ranges", "stream"):
            raise StoreError("broken on purpose")

    far(monkeypatch, fail)
    dataset = Dataset(rows, **cache)
    with pytest.raises(StoreError, match="broken on purpose"):
        dataset[:]
    broken.clear()
    assert_rows(dataset[:], range(ROWS), LARGE)


def test_a_dataset_fills_the_cache_that_loaders_use(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = watch(monkeypatch, local=False)
    cache = {"cache_dir": tmp_path / "cache"}
    dataset = Dataset(rows, **cache)
    assert_rows(dataset[:], range(ROWS), LARGE)
    assert opened[0].kinds("get_ranges") or opened[0].kinds("stream")
    opened[0].calls.clear()
    assert_rows(dataset[::-1], range(ROWS)[::-1], LARGE)
    for number in (0, 20, 21, ROWS - 1, -1):
        row = {name: value[None] for name, value in dataset[number].items()}
        assert_rows(row, [number % ROWS], LARGE)
    assert opened[0].calls == []
    loader = DataLoader(rows, batch_size=10, shuffle=True, **cache)
    assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert loader.stats.requests == 0


@pytest.mark.parametrize("size", [-1, 1.5, True, "1"])
def test_a_wrong_cache_size_is_an_error(rows: DataConfig, size: Any) -> None:
    with pytest.raises(ConfigError, match="cache_size"):
        Dataset(rows, cache_size=size)


# One row


KINDS = (
    Attribute(ROW, "int64"),
    Attribute("nothing", "float32", (3, 0)),
    Attribute("flag", "bool"),
    Attribute("wide", "float64", (2, 3, 4)),
    Attribute("half", "float16", (5,)),
    Attribute("pixels", "uint8", (3000,)),
)


@pytest.mark.parametrize("verify", [True, False])
def test_one_row_is_the_same_however_often_it_is_read(
    storage: dict[str, Any], verify: bool
) -> None:
    the_config = config(storage, attributes=KINDS, max_object_size=MIN_OBJECT_SIZE)
    save_rows(the_config, 100, 33)
    dataset = Dataset(the_config, verify=verify)
    for number in [*range(100), *range(-100, 0), np.int8(7), np.uint64(99)] * 2:
        row = dataset[number]
        expected = make([int(number) % 100], KINDS)
        assert list(row) == list(expected)
        for name, array in expected.items():
            assert isinstance(row[name], np.ndarray)
            assert (row[name].dtype, row[name].shape) == (array.dtype, array.shape[1:])
            assert row[name].tobytes() == array[0].tobytes()
            row[name][...] = 0  # the caller's own
    for number in (100, -101, 2**70):
        with pytest.raises(IndexError, match="of a dataset of 100 rows"):
            dataset[number]


def test_one_row_through_a_transform_and_as_a_tuple(storage: dict[str, Any]) -> None:
    the_config = save_rows(config(storage, attributes=LARGE), 10, 10)
    dataset = Dataset(the_config, transform=lambda row: {"n": int(row[ROW])}, as_tuple=True)
    assert [dataset[i] for _ in range(2) for i in range(10)] == [(i,) for i in range(10)] * 2
