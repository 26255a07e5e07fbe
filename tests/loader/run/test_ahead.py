"""Transforms in threads: the same rows in the same order, how far ahead, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, Dataset, save
from storage_loader.errors import TransformError
from storage_loader.loader.run import ahead
from storage_loader.loader.run.ahead import Ahead, when_it_pays
from tests.support.faulty import Call, Injected, fail_on, watch
from tests.support.rows import ROW, assert_rows, config, make, numbers_of, save_rows
from tests.support.threads import running
from tests.support.waiting import until

COUNT = 200


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("ahead"))})


def fill(storage: dict[str, str]) -> DataConfig:
    """Numbered rows, ten an object."""
    the_config = config(storage)
    return save_rows(the_config, COUNT, 10, commits=True)


@pytest.fixture(autouse=True)
def no_thread_remains() -> Iterator[None]:
    yield
    assert running("ahead", "fetch", "plan") == []


class Gate:
    """A transform that stops at one row until it is let through."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.reached = threading.Event()
        self.go = threading.Event()
        self.seen: list[int] = []  # first rows
        self.left: list[int] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        first = int(batch[ROW][0])
        self.seen.append(first)
        if self.row in batch[ROW]:
            self.reached.set()
            assert self.go.wait(60)
        self.left.append(first)
        return batch


# The stage alone


def test_results_come_in_order_whichever_is_ready_first() -> None:
    def slow(item: int) -> int:
        time.sleep((item % 3) / 500)
        return item * 2

    assert list(Ahead(iter(range(100)), slow).results()) == list(range(0, 200, 2))
    assert list(Ahead(iter([]), slow).results()) == []


@pytest.mark.parametrize("cpus", [None, 1, 2, 3, 64])
def test_at_most_two_are_made_ahead(monkeypatch: pytest.MonkeyPatch, cpus: int | None) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    drawn, made = [], []

    def items() -> Iterator[int]:
        for item in range(20):
            drawn.append(item)
            yield item

    results = Ahead(items(), lambda item: made.append(item) or item).results()
    for taken in range(15):
        assert next(results) == taken
        until(lambda taken=taken: len(made) >= taken + 3)
        time.sleep(0.01)
        assert sorted(made) == drawn == list(range(taken + 3))
    results.close()
    assert sorted(made) == drawn == list(range(17))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU, one thread")
def test_calls_overlap() -> None:
    meet = threading.Barrier(2, timeout=60)
    assert list(Ahead(iter(range(10)), lambda item: (meet.wait(), item)[1]).results()) == list(
        range(10)
    )


def test_one_item_at_a_time_is_got() -> None:
    inside = []

    def items() -> Iterator[int]:
        for item in range(50):
            inside.append(item)
            time.sleep(0.001)
            assert len(inside) == 1
            inside.clear()
            yield item

    assert list(Ahead(items(), lambda item: item).results()) == list(range(50))


@pytest.mark.parametrize("place", [0, 1, 5])
def test_an_error_rises_at_its_place(place: int) -> None:
    def fail(item: int) -> int:
        if item == place:
            raise KeyError(item)
        time.sleep(0.005)
        return item

    def items() -> Iterator[int]:
        yield from range(place)
        raise OSError("no more")

    for results, kind in (
        (Ahead(iter(range(10)), fail).results(), KeyError),
        (Ahead(items(), lambda item: item).results(), OSError),
    ):
        assert [next(results) for _ in range(place)] == list(range(place))
        with pytest.raises(kind):
            next(results)
        assert running("ahead", "fetch", "plan") == []
        assert list(results) == []


def test_what_no_except_clause_catches_rises_too() -> None:
    def leave(item: int) -> int:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(Ahead(iter([1]), leave).results())


# In a loader


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("batch_size", [None, 7, 64])
def test_the_same_rows_in_the_same_order(
    saved: DataConfig, shuffle: Any, batch_size: int | None
) -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        if batch[ROW].sum() % 5 == 0:
            time.sleep(0.002)
        return {**batch, "thread": threading.current_thread().name}

    settings: dict[str, Any] = {
        "batch_size": batch_size, "shuffle": shuffle, "seed": 5, "epochs": 2
    }  # fmt: skip
    plain = list(DataLoader(saved, **settings))
    batches = list(DataLoader(saved, transform=slow, **settings))
    assert len(batches) == len(plain)
    for batch, expected in zip(batches, plain, strict=True):
        assert batch.pop("thread").startswith("storage_loader-ahead")
        if batch_size is None:
            assert batch[ROW] == expected[ROW]
        else:
            assert_rows(batch, expected[ROW].tolist())


def test_without_a_transform_there_are_no_threads(saved: DataConfig) -> None:
    for _ in range(2):
        iterator = iter(DataLoader(saved, batch_size=10))
        next(iterator)
    assert running("ahead") == []
    iterator.close()  # type: ignore[attr-defined]


def test_the_state_counts_what_was_received(saved: DataConfig) -> None:
    gate = Gate(20)
    loader = DataLoader(saved, batch_size=10, transform=gate)
    iterator = iter(loader)
    for received in (1, 2, 3):
        next(iterator)
        if received == 1:
            assert gate.reached.wait(60)  # two ahead
            gate.go.set()
        assert loader.state_dict()["rows"] == 10 * received
    resumed = DataLoader(saved, batch_size=25)
    resumed.load_state_dict(loader.state_dict())
    iterator.close()  # type: ignore[attr-defined]
    assert numbers_of(next(iter(resumed))) == list(range(30, 55))


def test_an_error_names_the_rows_and_keeps_the_users_own(saved: DataConfig) -> None:
    def fail_at_70(batch: dict[str, Any]) -> dict[str, Any]:
        if 70 in batch[ROW]:
            raise ZeroDivisionError("seventy")
        return batch

    got = []
    loader = DataLoader(saved, batch_size=20, transform=fail_at_70)
    with pytest.raises(
        TransformError, match=r"on rows 60, 61, .* 'rows': ZeroDivisionError: seventy$"
    ) as e:
        for batch in loader:
            got += numbers_of(batch)
    assert got == list(range(60))
    cause = e.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert "fail_at_70" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert running("ahead", "fetch", "plan") == []


@pytest.mark.parametrize("how", ["close", "exception", "dropped"])
def test_leaving_waits_for_a_running_transform_and_begins_no_other(
    saved: DataConfig, how: str
) -> None:
    gate = Gate(10)
    threading.Timer(0.2, gate.go.set).start()
    iterator = iter(DataLoader(saved, batch_size=10, transform=gate))
    next(iterator)
    assert gate.reached.wait(60)
    if how == "close":
        iterator.close()  # type: ignore[attr-defined]
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            iterator.throw(ZeroDivisionError)  # type: ignore[attr-defined]
    else:
        del iterator
    assert running("ahead", "fetch", "plan") == []
    assert gate.go.is_set()
    assert sorted(gate.left) == sorted(gate.seen)
    assert set(gate.seen) <= {0, 10, 20}


def test_leaving_while_rows_are_fetched(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Threads end with the requests that are on their way; no transform sees half a batch."""
    the_config = fill(memory)
    first = Dataset(the_config).open().key(0)
    asked, go = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if call.kind.endswith(" object") and call.key != first:
            asked.set()
            assert go.wait(60)

    real = ahead._end

    def end(stop: threading.Event, *rest: Any) -> None:
        threading.Thread(target=lambda: (stop.wait(60), go.set())).start()
        real(stop, *rest)

    monkeypatch.setattr(ahead, "_end", end)
    stores = watch(monkeypatch, local=False, before=hold)
    seen: list[int] = []
    loader = DataLoader(
        the_config,
        batch_size=10,
        cache_dir=tmp_path,
        threads=1,
        transform=lambda batch: seen.extend(numbers_of(batch)),
    )
    iterator = iter(loader)
    next(iterator)
    assert asked.wait(60)
    iterator.close()  # type: ignore[attr-defined]
    assert running("ahead", "fetch", "plan") == []
    assert seen == list(range(10))
    calls = len(stores[0].calls)
    time.sleep(0.05)
    assert len(stores[0].calls) == calls


def test_leaving_where_little_needs_fetching(memory: dict[str, str]) -> None:
    """The thread that plans waits for room, and later chunks have nothing to be done."""
    the_config = config(memory, "one-object")
    save(the_config, make(range(5000)))
    for transform in (None, lambda batch: batch):
        iterator = iter(DataLoader(the_config, batch_size=5, prefetch=5 * 31, transform=transform))
        next(iterator)
        time.sleep(0.1)
        iterator.close()  # type: ignore[attr-defined]
        assert running("ahead", "fetch", "plan") == []


def test_an_error_of_the_store_rises_at_its_place(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    the_config = fill(memory)
    watch(monkeypatch, local=False, before=fail_on(Dataset(the_config).open().key(8)))
    for index in (False, True):
        got: list[int] = []
        loader = DataLoader(
            the_config,
            batch_size=5,
            index=index,
            prefetch=1,
            cache_dir=tmp_path,
            transform=lambda b: b,
        )
        with pytest.raises(Injected, match="the disk is on fire"):
            for batch in loader:
                got += numbers_of(batch)
        assert got
        assert got == list(range(len(got)))
        assert len(got) <= 80


@pytest.mark.usefixtures("library_once")
def test_ctrl_c_ends_the_threads(saved: DataConfig) -> None:
    program = f"""
import os, signal, threading, time
from storage_loader import DataConfig, DataLoader
interrupted = threading.Event()
def interrupt(*args):
    interrupted.set()
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def transform(batch):
    if batch["row"][0] == 20:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(60)
    return batch
got = []
try:
    for batch in DataLoader(DataConfig("rows", storage={saved.storage!r}), batch_size=10,
                            transform=transform):
        got.append(int(batch["row"][0]))
        time.sleep(0.02)
    print("no KeyboardInterrupt")
except KeyboardInterrupt:
    names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    print(names, set(got) <= {{0, 10}})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[] True\n", "", 0)


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("transform", ["None", "lambda b: b"])
def test_a_process_ends_although_an_iterator_is_left(saved: DataConfig, transform: str) -> None:
    """Some of several, where the interpreter ends while a thread of ours runs."""
    program = f"""
from storage_loader import DataConfig, DataLoader
loader = DataLoader(DataConfig("rows", storage={saved.storage!r}), transform={transform})
iterator = iter(loader)
next(iterator)
"""
    started = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    done = [(process.communicate(timeout=500)[1], process.returncode) for process in started]
    assert done == [("", 0)] * 4


# Ahead only for a slow consumer


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("storage_loader.loader.run.ahead.time.perf_counter", lambda: self.now)


@pytest.mark.parametrize(
    ("making", "consuming", "in_threads"),
    [(1.0, 3.9, False), (1.0, 4.1, True), (0.0, 0.0, False), (0.0, 1.0, True)],
)
def test_batches_are_made_ahead_once_the_consumer_is_slow(
    monkeypatch: pytest.MonkeyPatch, making: float, consuming: float, in_threads: bool
) -> None:
    clock = Clock(monkeypatch)
    here = threading.get_ident()
    makers = []

    def make(item: int) -> int:
        makers.append(threading.get_ident())
        if threading.get_ident() == here:
            clock.now += making
        return item

    seen = []
    for item in when_it_pays(iter(range(100)), make, threading.Event()):
        seen.append(item)
        clock.now += consuming
    assert seen == list(range(100))
    assert len(makers) == 100
    assert makers[:16] == [here] * 16
    assert (here not in makers[16:]) == in_threads
    assert in_threads or set(makers) == {here}


def test_one_slow_moment_does_not_make_a_slow_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    here = threading.get_ident()

    def make(item: int) -> int:
        assert threading.get_ident() == here
        clock.now += 1
        return item

    for item in when_it_pays(iter(range(100)), make, threading.Event()):
        clock.now += 0 if item % 16 == 15 else 100


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_a_slow_consumer_gets_the_same_rows(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, shuffle: Any
) -> None:
    expected = [numbers_of(b) for b in DataLoader(saved, batch_size=7, shuffle=shuffle)]
    monkeypatch.setattr("storage_loader.loader.run.ahead._SLOW", 2)
    monkeypatch.setattr("storage_loader.loader.run.ahead._PAYS", 0)
    loader = DataLoader(saved, batch_size=7, shuffle=shuffle)
    seen = []
    for batch in loader:
        seen.append(numbers_of(batch))
        if len(seen) == 20:
            state = loader.state_dict()
    assert seen == expected
    resumed = DataLoader(saved, batch_size=7, shuffle=shuffle)
    resumed.load_state_dict(state)
    assert [numbers_of(b) for b in resumed] == expected[20:]
    for _ in loader:  # left in the middle of the next epoch
        if running("ahead", "fetch", "plan"):
            break
