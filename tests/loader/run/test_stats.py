"""`loader.stats`: every figure by a clock of the test or by exact counts, no timing."""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset, Stats, save
from storage_loader.loader.run.stats import Meter
from storage_loader.store import CountedStore, Counter, MemoryStore, Store, Traffic
from storage_loader.store.forwarding import ForwardingStore
from tests.support.caches import alter
from tests.support.damage import Wrong
from tests.support.faulty import Call, WatchedStore, watch
from tests.support.rows import ATTRIBUTES, ROW, config, make, numbers_in

COUNT = 100
ROW_NBYTES = sum(a.row_nbytes for a in ATTRIBUTES)


class Clock:
    """Stands still but for `tick`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("storage_loader.loader.iteration.Meter", lambda *_: Meter(clock))
    return clock


def filled(storage: dict[str, str]) -> DataConfig:
    the_config = config(storage)
    for start in range(0, COUNT, 25):
        save(the_config, make(range(start, start + 25)))
    return the_config


def check_identities(stats: Stats) -> None:
    assert stats.wait_seconds + stats.user_seconds == pytest.approx(stats.seconds)
    assert 0 <= stats.wait_share <= 1
    assert 0 <= stats.hit_share <= 1


# The meter


def test_a_wait_is_split_by_what_it_was_for() -> None:
    clock = Clock()
    meter = Meter(clock)
    assert meter.stats() == Stats()
    meter.begin(10, Counter())
    clock.tick(2)
    meter.ready = clock()
    clock.tick(3)
    meter.gathered = clock()
    clock.tick(4)
    meter.give(7)
    clock.tick(5)
    stats = meter.stats()
    assert (stats.wait_fetch, stats.wait_gather, stats.wait_transform) == (2, 3, 4)
    assert (stats.seconds, stats.user_seconds, stats.wait_seconds) == (14, 5, 9)
    assert (stats.batches, stats.rows, stats.nbytes) == (1, 7, 70)
    assert (stats.rows_per_second, stats.bytes_per_second) == (0.5, 5)
    assert stats.wait_share == 9 / 14
    meter.waits()
    clock.tick(1)
    assert meter.stats() == stats  # a wait that is not over
    meter.give(7)  # made long ago
    assert meter.stats().wait_transform == 5
    meter.end()
    clock.tick(100)
    assert meter.stats().seconds == 15
    assert dataclasses.replace(stats).hit_share == 1.0


@pytest.mark.parametrize(
    ("ready", "gathered", "waits"),
    [
        (0, 0, (0, 0, 10)),
        (0, 1004, (0, 4, 6)),
        (0, float("inf"), (0, 10, 0)),
        (1003, 0, (3, 0, 7)),
        (1003, float("inf"), (3, 7, 0)),
        (1010, 1010, (10, 0, 0)),
    ],
)
def test_moments_before_and_after_the_wait(
    ready: float, gathered: float, waits: tuple[float, float, float]
) -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin(1, Counter())
    clock.tick(10)
    meter.ready, meter.gathered = ready, gathered
    meter.give(1)
    stats = meter.stats()
    assert (stats.wait_fetch, stats.wait_gather, stats.wait_transform) == waits
    check_identities(stats)


# A loader


def test_before_the_first_iteration_all_is_zero(memory: dict[str, str]) -> None:
    loader = DataLoader(filled(memory), batch_size=10)
    zero = Stats()
    assert loader.stats == zero
    len(loader)
    iterator = iter(loader)
    assert loader.stats == zero
    assert set(dataclasses.asdict(zero).values()) == {0}
    figures = (zero.wait_share, zero.hit_share, zero.rows_per_second, zero.bytes_per_second)
    assert figures == (0, 0, 0, 0)
    next(iterator)
    assert loader.stats.batches == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        zero.rows = 1  # type: ignore[misc]


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_what_was_given_is_counted(folder: dict[str, str], clock: Clock, transform: Any) -> None:
    loader = DataLoader(filled(folder), batch_size=30, epochs=2, transform=transform)
    given = 0
    for number, batch in enumerate(loader):
        given += len(batch[ROW])
        clock.tick(0.5)  # the user's own time
        stats = loader.stats
        assert (stats.batches, stats.rows, stats.nbytes) == (number + 1, given, given * ROW_NBYTES)
        assert stats.seconds == stats.user_seconds == (number + 1) / 2
        assert stats.wait_share == 0
    assert given == 2 * COUNT  # it covers the iteration
    assert loader.stats == stats
    assert (stats.bytes_fetched, stats.requests, stats.retries) == (0, 0, 0)
    assert (stats.hit_share, stats.bytes_found) == (1, stats.nbytes)
    next(iter(loader))
    assert loader.stats.rows == 30  # the iteration begun last


def test_an_iteration_that_ends_early_keeps_its_figures(
    folder: dict[str, str], clock: Clock
) -> None:
    loader = DataLoader(filled(folder), batch_size=30)
    for _ in loader:
        clock.tick(2)
        break
    clock.tick(10)
    assert (loader.stats.seconds, loader.stats.user_seconds, loader.stats.rows) == (2, 2, 30)

    def fail(batch: Any) -> Any:
        clock.tick(3)
        raise ValueError

    loader = DataLoader(filled(folder), batch_size=500, transform=fail)
    with pytest.raises(Exception, match="transform failed"):
        next(iter(loader))
    assert (loader.stats.batches, loader.stats.wait_share) == (0, 1)
    check_identities(loader.stats)


def test_waits_of_a_loader(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: Clock
) -> None:
    the_config = filled(memory)

    def fetch(call: Call) -> None:
        if call.kind.endswith(" object"):
            clock.tick(3)

    watch(monkeypatch, local=False, before=fetch)

    def transform(batch: Any) -> Any:
        clock.tick(4)
        return batch

    loader = DataLoader(the_config, batch_size=COUNT, transform=transform, cache_dir=tmp_path)
    list(loader)
    stats = loader.stats
    assert (stats.wait_fetch, stats.wait_gather, stats.wait_transform) == (3 * 4, 0, 4)
    assert stats.wait_share == 1
    list(loader)
    stats = loader.stats
    assert (stats.seconds, stats.wait_fetch, stats.wait_transform) == (4, 0, 4)


def asked(stores: list[WatchedStore]) -> tuple[int, int]:
    """Requests for objects, and the bytes of them."""
    calls = [c for s in stores for c in s.calls if c.kind.endswith(" object")]
    ranges = [r for c in calls for r in c.ranges if r[1] > r[0]]
    return len(ranges), sum(end - start for start, end in ranges)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("index", [False, True])
def test_requests_and_bytes_are_those_the_store_saw(
    memory: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shuffle: Any,
    index: bool,
) -> None:
    the_config = filled(memory)
    stores = watch(monkeypatch, local=False)
    loader = DataLoader(the_config, batch_size=9, shuffle=shuffle, index=index, cache_dir=tmp_path)
    before = (0, 0)
    for epoch in range(2):
        assert sorted(numbers_in(loader)) == list(range(COUNT))
        stats, now = loader.stats, asked(stores)
        assert (stats.requests, stats.bytes_fetched) == (now[0] - before[0], now[1] - before[1])
        assert (stats.requests > 0) is (epoch == 0)  # small columns are kept with `index`, too
        assert stats.hit_share == epoch
        before = now


def test_half_of_the_rows_in_the_cache(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    the_config = filled(memory)
    watch(monkeypatch, local=False)
    half = DataLoader(the_config, batch_size=25, subset=slice(0, 50), cache_dir=tmp_path)
    list(half)
    whole = DataLoader(the_config, batch_size=25, cache_dir=tmp_path)
    list(whole)
    assert whole.stats.bytes_fetched == half.stats.bytes_fetched
    assert whole.stats.bytes_found == whole.stats.nbytes - whole.stats.bytes_fetched
    assert 0 < whole.stats.hit_share < 0.5  # checksums were fetched, too


@pytest.mark.parametrize("index", [False, True])
def test_what_came_damaged_and_was_fetched_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: bool
) -> None:
    the_config = filled(memory)
    snapshot = Dataset(the_config).open()
    offset = snapshot.objects[1].layout.columns["image"].offset
    wrong = Wrong(offset, 1)
    alter(monkeypatch, wrong)
    loader = DataLoader(the_config, batch_size=9, index=index, cache_dir=tmp_path)
    assert numbers_in(loader) == list(range(COUNT))
    assert wrong.seen > 1
    assert loader.stats.retries == 1


def test_workers_hand_back_what_they_fetched(s3_storage: dict[str, str], tmp_path: Path) -> None:
    the_config = filled(s3_storage)
    alone = DataLoader(the_config, batch_size=COUNT, index=True)
    list(alone)
    loader = DataLoader(the_config, batch_size=COUNT, index=True, num_workers=1)
    list(loader)
    assert loader.stats.requests == alone.stats.requests > 0
    assert loader.stats.bytes_fetched == alone.stats.bytes_fetched > 0
    check_identities(loader.stats)
    del loader


def test_any_thread_may_look_at_any_time(folder: dict[str, str]) -> None:
    loader = DataLoader(filled(folder), batch_size=1, epochs=20)
    over = threading.Event()
    seen: list[Stats] = []

    def look() -> None:
        while not over.is_set():
            seen.append(loader.stats)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in loader:
        pass
    over.set()
    thread.join()
    for stats in seen:
        assert stats.rows == stats.batches
        check_identities(stats)
    assert [s.rows for s in seen] == sorted(s.rows for s in seen)


def test_a_copy_and_a_fork_begin_at_zero(folder: dict[str, str]) -> None:
    loader = DataLoader(filled(folder), batch_size=10)
    list(loader)
    assert pickle.loads(pickle.dumps(loader)).stats == Stats()
    assert pickle.loads(pickle.dumps(loader.stats)) == loader.stats
    pid = os.fork()
    if not pid:
        os._exit(0 if loader.stats == Stats() else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_text_is_readable() -> None:
    stats = Stats(2.0, 3, 3000, 2**21, 0.5, 0.25, 0.05, 2**20, 1234, 1)
    assert str(stats) == (
        "3,000 rows in 2.00 s: 1,500 rows/s, 1.0 MiB/s; waited 40% (fetch 25%, gather 12%, "
        "transform 2%); found 50%, fetched 1.0 MiB in 1,234 requests, 1 retries"
    )
    assert repr(stats).startswith("Stats(seconds=2.0, batches=3, rows=3000, nbytes=2097152, ")


# The store that counts


@pytest.fixture
def counted(memory: dict[str, str]) -> tuple[CountedStore, Counter]:
    counter = Counter()
    store = MemoryStore(memory["storage"])
    store.put("a/b", bytes(1000))
    store.put("a/c", bytes(500))
    return CountedStore(store, counter), counter


def test_each_verb_is_counted_and_handed_on(counted: tuple[CountedStore, Counter]) -> None:
    store, counter = counted

    def added() -> Iterator[tuple[int, int, int]]:
        last = counter.total
        while True:
            now = counter.total
            yield dataclasses.astuple(now - last)
            last = now

    new = added()
    next(new)
    assert store.get("a/b").nbytes == 1000
    assert next(new) == (1, 1000, 0)
    assert [b.nbytes for b in store.get_ranges("a/b", [(0, 10), (5, 5), (20, 50)])] == [10, 0, 30]
    assert next(new) == (2, 40, 0)
    many = store.get_many([("a/b", [(0, 1)]), ("a/c", [(0, 2), (3, 6)])])
    assert [[b.nbytes for b in buffers] for buffers in many] == [[1], [2, 3]]
    assert next(new) == (3, 6, 0)
    assert [b.nbytes for b in store.find_all(["a/b", "a/c"])] == [1000, 500]
    assert next(new) == (2, 1500, 0)
    assert sum(np.frombuffer(p, np.uint8).size for p in store.stream("a/b", 10, 20)) == 10
    assert next(new) == (1, 10, 0)
    assert store.head("a/c").nbytes == 500
    assert {info.key for info in store.list("a")} == {"a/b", "a/c"}
    assert list(store.list_folders()) == ["a"]
    store.put("d", b"x")
    store.delete(["d"])
    assert next(new) == (5, 0, 0)
    store.note_retry("a/b")
    store.prepare()
    assert next(new) == (0, 0, 1)
    with pytest.raises(FileNotFoundError):
        store.get("none")
    assert next(new) == (1, 0, 0)


def test_a_counted_store_is_the_same_place(counted: tuple[CountedStore, Counter]) -> None:
    store, _ = counted
    inner = store._inner
    assert (store.url, store.origin, store.is_local) == (inner.url, inner.origin, inner.is_local)
    assert repr(store) == f"CountedStore({inner.url!r})"


def test_counts_of_many_threads_add_up() -> None:
    counter = Counter()

    def count() -> None:
        for _ in range(2000):
            counter.add(requests=1, nbytes=3)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.total == Traffic(8000, 24000, 0)


def test_stats_of_worker_processes_count_rows(folder: dict[str, str]) -> None:
    loader = DataLoader(filled(folder), batch_size=30, num_workers=1, transform=dict)
    assert sum(len(batch[ROW]) for batch in loader) == COUNT
    assert (loader.stats.rows, loader.stats.batches) == (COUNT, 4)
    assert loader.stats.wait_gather == 0
    check_identities(loader.stats)
    del loader


def test_what_counts_forwards_all_that_a_store_does_in_its_own_way() -> None:
    """A verb that is not forwarded would be the slow one of `Store`, silently."""
    composed = {"find", "once"}  # of verbs that are forwarded
    public = {
        name
        for kind in (*Store.__subclasses__(), *ForwardingStore.__subclasses__())
        if kind.__module__.startswith("storage_loader.")
        for name in vars(kind)
        if not name.startswith("_") and hasattr(Store, name)
    }
    assert {"get_many", "find_and_list", "noting", "until", "ends_puts"} <= public
    assert public - composed <= {
        *vars(ForwardingStore), *vars(CountedStore), *vars(counted_anew())
    }  # fmt: skip


def counted_anew() -> CountedStore:
    return CountedStore(MemoryStore("memory://anew"), Counter())
