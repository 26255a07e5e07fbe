"""Many processes in one dataset, readers beside them, and processes that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier, Event
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, DataSaver, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.errors import DatasetNotFoundError
from tests.support.faulty import Call, watch
from tests.support.own_process import FRESH
from tests.support.rows import (
    ATTRIBUTES_1K,
    config,
    in_batches,
    kilobytes,
    make,
    numbers_of,
    stored,
)

SAVERS = 8
ROWS = 1000  # of each saver
COMMIT = 200


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest) -> dict[str, str]:
    """A storage that other processes reach."""
    return request.getfixturevalue("s3_storage" if request.param == "s3" else "folder")


def save_thousand(
    the_config: DataConfig, saver_number: int, together: Barrier, looked: Event
) -> None:
    first = saver_number * ROWS
    with DataSaver(the_config, num_worker_threads=2) as saver:
        together.wait(200)
        for numbers in in_batches(first, first + ROWS, 50):
            if numbers.stop == first + ROWS:  # a reader has seen some of the rows by then
                assert looked.wait(200)
            saver(make(numbers, ATTRIBUTES_1K))
            if numbers.stop % COMMIT == 0 and numbers.stop < first + ROWS:
                saver.commit()


def seen_of_each_saver(numbers: list[int]) -> dict[int, list[int]]:
    """The rows by the saver they came from, in the order of the dataset."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        found.setdefault(number // ROWS, []).append(number)
    return found


def test_savers_of_many_processes_lose_and_double_nothing(shared: dict[str, str]) -> None:
    the_config = kilobytes(shared)
    together, looked = FRESH.Barrier(SAVERS), FRESH.Event()
    processes = [
        FRESH.Process(target=save_thousand, args=(the_config, n, together, looked))
        for n in range(SAVERS)
    ]
    for process in processes:
        process.start()
    looks = 0
    lengths = set()
    try:
        while any(process.is_alive() for process in processes):
            try:
                numbers = stored(the_config, ATTRIBUTES_1K)
            except DatasetNotFoundError:
                time.sleep(0.02)
                continue
            for number, rows in seen_of_each_saver(numbers).items():
                # Whole commits, from the first one on, in the order of saving.
                assert rows == list(range(number * ROWS, number * ROWS + len(rows)))
                assert len(rows) % COMMIT == 0
            looks += 1
            lengths.add(len(numbers))
            if looks > 1:
                looked.set()
    finally:
        looked.set()
        for process in processes:
            process.join(200)
    assert [process.exitcode for process in processes] == [0] * SAVERS
    assert looks > 1
    numbers = stored(the_config, ATTRIBUTES_1K)
    assert sorted(numbers) == list(range(SAVERS * ROWS))
    assert seen_of_each_saver(numbers) == {
        n: list(range(n * ROWS, (n + 1) * ROWS)) for n in range(SAVERS)
    }
    assert len(Dataset(the_config).version.commits) == SAVERS * ROWS // COMMIT


def refresh_again_and_again(the_config: DataConfig, saver_number: int, together: Barrier) -> None:
    together.wait(200)
    for attempt in range(10):
        first = (saver_number * 10 + attempt) * 10
        save(the_config, make(range(first, first + 10)), refresh=True)


def test_of_refreshes_by_many_processes_a_reader_always_sees_one_whole(
    shared: dict[str, str],
) -> None:
    the_config = config(shared)
    save(the_config, make(range(1000, 1010)))
    together = FRESH.Barrier(4)
    processes = [
        FRESH.Process(target=refresh_again_and_again, args=(the_config, n, together))
        for n in range(4)
    ]
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes):
            numbers = stored(the_config)
            assert numbers == list(range(numbers[0], numbers[0] + 10))
    finally:
        for process in processes:
            process.join(200)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(stored(the_config)) == 10


# Threads of one reader


@pytest.mark.parametrize("kind", [Dataset, DataLoader])
def test_threads_that_use_it_first_while_someone_commits_fix_one_version(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """One thread has seen the old version and fixed none; another one looks after a commit."""
    the_config = config(folder)
    save(the_config, make(range(20)))
    looked, told = threading.Event(), threading.Event()
    snapshot = Catalog.snapshot

    def slowly(catalog: Catalog, version: Any = None) -> Any:
        found = snapshot(catalog, version)
        if threading.current_thread() is reader:
            looked.set()
            told.wait(1)  # for the other one, which may well wait for us
        return found

    def read() -> None:
        parts = [one[:]] if kind is Dataset else one
        seen.extend(number for part in parts for number in numbers_of(part))

    def tell() -> None:
        versions.append(one.version)
        told.set()

    monkeypatch.setattr(Catalog, "snapshot", slowly)
    one = kind(the_config) if kind is Dataset else kind(the_config, batch_size=7)
    seen: list[int] = []
    versions: list[Any] = []
    reader, teller = threading.Thread(target=read), threading.Thread(target=tell)
    reader.start()
    assert looked.wait(100)
    save(the_config, make(range(20, 30)))
    teller.start()
    for thread in (reader, teller):
        thread.join(100)
    assert versions == [one.version]
    assert seen == numbers_of(Dataset(the_config, version=versions[0])[:])
    assert len(seen) == one.num_rows


# Killed


def save_until_killed(the_config: DataConfig, kind: str, nth: int, refresh: bool, at: Any) -> None:
    """Save 2,000 rows; say so and wait for the end at the nth call of a kind."""
    seen = 0

    def stop(call: Call) -> None:
        nonlocal seen
        if call.kind == kind:
            seen += 1
            if seen > nth:
                at.send(call.kind)
                time.sleep(600)

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, before=stop)
        with DataSaver(the_config, refresh=refresh, num_worker_threads=2) as saver:
            for numbers in in_batches(5000, 7000, 50):
                saver(make(numbers, ATTRIBUTES_1K))


def what_readers_see(the_config: DataConfig) -> Iterator[Any]:
    """The rows, the version, and every small object of a dataset."""
    store = Catalog(the_config).store
    keys = sorted(i.key for i in store.list(the_config.dataset_prefix) if "/objects/" not in i.key)
    yield [(key, bytes(store.get(key))) for key in keys]
    try:
        dataset = Dataset(the_config)
        yield numbers_of(dataset[:], ATTRIBUTES_1K)
        yield dataset.version
    except DatasetNotFoundError:
        yield None


@pytest.mark.parametrize("refresh", [False, True], ids=["append", "refresh"])
@pytest.mark.parametrize("before", [0, 500], ids=["new", "existing"])
@pytest.mark.parametrize(
    ("kind", "nth"), [("put object", 0), ("put object", 7), ("list metadata", 0), ("put commit", 0)]
)
def test_a_saver_that_is_killed_leaves_the_dataset_as_it_was(
    folder: dict[str, str], kind: str, nth: int, before: int, refresh: bool
) -> None:
    assert_killed_leaves_nothing(folder, kind, nth, before, refresh)


@pytest.mark.parametrize(("kind", "nth"), [("put object", 7), ("put commit", 0)])
def test_a_saver_that_is_killed_leaves_the_dataset_on_s3_as_it_was(
    s3_storage: dict[str, str], kind: str, nth: int
) -> None:
    assert_killed_leaves_nothing(s3_storage, kind, nth, before=500, refresh=False)


def assert_killed_leaves_nothing(
    storage: dict[str, str], kind: str, nth: int, before: int, refresh: bool
) -> None:
    the_config = kilobytes(storage)
    if before:
        save(the_config, make(range(before), ATTRIBUTES_1K))
    as_it_was = list(what_readers_see(the_config))
    here, there = FRESH.Pipe()
    process = FRESH.Process(target=save_until_killed, args=(the_config, kind, nth, refresh, there))
    process.start()
    try:
        assert here.poll(200)
        assert here.recv() == kind
    finally:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(200)
    now = list(what_readers_see(the_config))
    if before or kind.startswith("put object"):
        assert now == as_it_was
    else:  # dataset.json is written just before the commit: the dataset exists and is empty
        assert now[1] == []
        assert [key.rsplit("/", 1)[1] for key, _ in now[0]] == ["dataset.json"]
    # And nothing stands in the way of the next saver.
    save(the_config, make(range(before, before + 100), ATTRIBUTES_1K), refresh=refresh)
    kept = [] if refresh else list(range(before))
    assert stored(the_config, ATTRIBUTES_1K) == [*kept, *range(before, before + 100)]
