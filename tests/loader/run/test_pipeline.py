"""The pipeline: results in order, a budget that is kept, and an end that comes at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import DataLoader
from storage_loader.loader.fetch.work import Preparation, Work
from storage_loader.loader.run.pipeline import Pipeline, _Begun, _Budget
from tests.support.caches import LARGE, fill
from tests.support.faulty import Call, watch
from tests.support.rows import numbers_in
from tests.support.threads import running
from tests.support.waiting import until

Sizes = list[list[int]]  # of the works of each preparation


class Recorded:
    """Preparations of works with these sizes; result i is i, once all of its works have run."""

    def __init__(self, sizes: Sizes, small: Callable[[int], bool] = lambda size: False) -> None:
        self.sizes = sizes
        self._small = small
        self.planned = 0
        self.begun: list[tuple[int, int]] = []
        self.done: list[tuple[int, int]] = []
        self.asked = 0  # results that the consumer asked for
        self.ahead: list[list[int]] = []  # sizes that ran or had run ahead, at each begin
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Callable[[threading.Event], Preparation[int]]]:
        for i in range(len(self.sizes)):
            yield lambda stop, i=i: self.prepare(i)  # type: ignore[misc]

    def prepare(self, i: int) -> Preparation[int]:
        self.planned += 1
        works = [
            Work(size, lambda i=i, j=j: self.run(i, j), is_small=self._small(size))  # type: ignore[misc]
            for j, size in enumerate(self.sizes[i])
        ]
        return Preparation(works, lambda: self.finish(i))

    def run(self, i: int, j: int) -> None:
        with self._lock:
            self.begun.append((i, j))
            self.ahead.append([self.sizes[a][b] for a, b in self.begun if a >= self.asked])
        with self._lock:
            self.done.append((i, j))

    def finish(self, i: int) -> int:
        assert {j for a, j in self.done if a == i} == set(range(len(self.sizes[i])))
        return i


@given(
    sizes=st.lists(st.lists(st.integers(0, 12) | st.just(1000), max_size=6), max_size=12),
    nbytes=st.integers(0, 30),
    num_threads=st.integers(1, 4),
)
@settings(max_examples=80)
def test_results_come_in_order_whatever_the_sizes(
    sizes: Sizes, nbytes: int, num_threads: int
) -> None:
    recorded = Recorded(sizes, small=lambda size: size % 2 == 1)
    pipeline = Pipeline(recorded, nbytes=nbytes, threads=num_threads)
    assert list(pipeline.results()) == list(range(len(sizes)))
    assert sorted(recorded.done) == [(i, j) for i, w in enumerate(sizes) for j in range(len(w))]
    assert len(recorded.done) == len(set(recorded.done))
    assert running("fetch", "plan") == []


@given(
    sizes=st.lists(st.lists(st.integers(0, 12) | st.just(1000), max_size=6), max_size=12),
    taken=st.integers(0, 12),
)
@settings(max_examples=60)
def test_an_early_end_hangs_nowhere(sizes: Sizes, taken: int) -> None:
    with closing(Pipeline(Recorded(sizes), nbytes=20, threads=2).results()) as results:
        for i, result in zip(range(taken), results, strict=False):
            assert result == i
    assert running("fetch", "plan") == []


@pytest.mark.parametrize("taken", [1, 2, 5])
def test_an_early_end_of_many_preparations_without_works(taken: int) -> None:
    """The planner waits for a slot then: it must not wait for another."""
    recorded = Recorded([[]] * 100)
    results = Pipeline(recorded, nbytes=20, threads=2).results()
    assert [next(results) for _ in range(taken)] == list(range(taken))
    until(lambda: recorded.planned == taken + 4)
    results.close()
    assert running("fetch", "plan") == []
    assert recorded.planned < taken + 10


@given(
    sizes=st.lists(st.lists(st.integers(0, 12) | st.just(50), max_size=5), min_size=1, max_size=10),
    nbytes=st.integers(0, 30),
)
@settings(max_examples=60)
def test_the_budget_is_kept_but_for_one_work(sizes: Sizes, nbytes: int) -> None:
    """Of results that nobody asked for: at most `nbytes`, or one work alone."""
    recorded = Recorded(sizes)
    asked = 0
    with closing(Pipeline(recorded, nbytes=nbytes, threads=3).results()) as results:
        while True:
            recorded.asked = asked + 1  # before it asks, so that `ahead` never counts too much
            if next(results, None) is None:
                break
            asked += 1
    for ahead in recorded.ahead:
        counted = [size for size in ahead if size]
        assert sum(counted) <= nbytes or len(counted) == 1


def test_what_is_ahead_fills_the_budget_and_waits_there() -> None:
    recorded = Recorded([[1], [10], [10], [10], [10]])
    results = Pipeline(recorded, nbytes=25, threads=2).results()
    assert next(results) == 0
    until(lambda: len(recorded.done) == 3)
    assert sorted(recorded.done) == [(0, 0), (1, 0), (2, 0)]
    assert recorded.planned <= 4
    assert next(results) == 1
    until(lambda: len(recorded.done) == 4)
    assert sorted(recorded.done)[-1] == (3, 0)
    results.close()
    assert (4, 0) not in recorded.done
    assert running("fetch", "plan") == []


def test_few_preparations_are_begun_ahead_even_if_they_need_nothing() -> None:
    recorded = Recorded([[]] * 1000)
    results = Pipeline(recorded, nbytes=2**30, threads=2).results()
    assert next(results) == 0
    until(lambda: recorded.planned == 5)
    assert [next(results) for _ in range(10)] == list(range(1, 11))
    until(lambda: recorded.planned == 15)
    results.close()


@contextmanager
def consumed(recorded: Recorded, *held: tuple[int, int]) -> Iterator[None]:
    """Another thread asks for all results; these works do not run before the `with` is left."""
    go = threading.Event()
    real = recorded.run

    def run(i: int, j: int) -> None:
        if (i, j) in held:
            assert go.wait(60)
        real(i, j)

    recorded.run = run  # type: ignore[method-assign]
    results = Pipeline(recorded, nbytes=100, threads=3).results()
    consumer = threading.Thread(target=lambda: list(results))
    consumer.start()
    try:
        yield
    finally:
        go.set()
        consumer.join(60)


def test_the_first_is_made_ready_alone() -> None:
    recorded = Recorded([[5], [5], [5]])
    with consumed(recorded, (0, 0)):
        until(lambda: recorded.planned == 1)
        assert recorded.begun == []
    assert recorded.begun[0] == (0, 0)
    assert sorted(recorded.begun) == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("blocked", [(0, 0), (0, 1), (0, 2)])
def test_nothing_is_planned_before_the_first_is_ready(blocked: tuple[int, int]) -> None:
    recorded = Recorded([[1, 2, 3], [5], [5]])
    with consumed(recorded, blocked):
        until(lambda: len(recorded.done) == 2)
        time.sleep(0.05)
        assert recorded.planned == 1
        assert {preparation for preparation, _ in recorded.done} == {0}
    assert len(recorded.done) == 5


def test_the_budget_by_itself() -> None:
    """What the consumer waits for is admitted, however much is taken."""
    budget, stop = _Budget(10), threading.Event()
    first, second = (_Begun(Preparation[int]([], lambda: 0)) for _ in range(2))
    budget.take(1000, first, stop)  # more than there is, but alone
    admitted = threading.Event()

    def take() -> None:
        for size in (1, 0, 500, 3):
            budget.take(size, second, stop)
        admitted.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not admitted.wait(0.05)
    budget.want(second)
    assert admitted.wait(60)
    thread.join()
    assert second.taken == 0
    budget.want(first)
    assert budget._free == 10


# Errors


PLACES = ["planning", "a work", "finish", "the iterable"]


class Failing(Recorded):
    """Fails at result `at`."""

    def __init__(self, where: str, at: int, error: BaseException) -> None:
        super().__init__([[3, 3, 3]] * 8)
        self._where, self._at, self._failure = where, at, error

    def _fail(self, where: str, i: int) -> None:
        if (where, i) == (self._where, self._at):
            raise self._failure

    def __iter__(self) -> Iterator[Callable[[threading.Event], Preparation[int]]]:
        for i, prepare in enumerate(super().__iter__()):
            self._fail("the iterable", i)
            yield prepare

    def prepare(self, i: int) -> Preparation[int]:
        self._fail("planning", i)
        return super().prepare(i)

    def run(self, i: int, j: int) -> None:
        if j == 1:
            self._fail("a work", i)
        super().run(i, j)

    def finish(self, i: int) -> int:
        self._fail("finish", i)
        return super().finish(i)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("at", [0, 1, 5, 7])
@pytest.mark.parametrize("error", [ZeroDivisionError("here"), SystemExit(3)], ids=["error", "exit"])
def test_an_error_rises_in_the_consumer(where: str, at: int, error: BaseException) -> None:
    seen: list[int] = []
    with pytest.raises(type(error)) as caught:
        seen.extend(Pipeline(Failing(where, at, error), nbytes=10, threads=2).results())
    assert caught.value is error
    assert seen == list(range(len(seen)))
    assert len(seen) <= at
    assert running("fetch", "plan") == []


def blocked(release: threading.Event) -> tuple[Recorded, threading.Event]:
    """Preparations whose works from the second result on wait for `release`."""
    recorded, waits = Recorded([[1], *[[1, 1]] * 20]), threading.Event()
    real = recorded.run

    def run(i: int, j: int) -> None:
        if i:
            waits.set()
            release.wait(60)
        real(i, j)

    recorded.run = run  # type: ignore[method-assign]
    return recorded, waits


@pytest.mark.parametrize("how", ["close", "exception", "dropped"])
def test_leaving_early_ends_all_threads_at_once(how: str) -> None:
    """Those that run are waited for, what waits never begins."""
    release = threading.Event()
    recorded, waits = blocked(release)
    pipeline = Pipeline(recorded, nbytes=100, threads=2)
    join = pipeline._planner.join

    def let_go_and_join(seconds: float) -> None:  # what waits has been cancelled before
        release.set()
        join()

    pipeline._planner.join = let_go_and_join  # type: ignore[assignment, method-assign]
    results: Any = pipeline.results()
    del pipeline

    def leave() -> None:
        nonlocal results
        with closing(results):
            assert next(results) == 0
            assert waits.wait(60)
            if how == "exception":
                raise ZeroDivisionError
            if how == "dropped":
                results = None

    if how == "exception":
        with pytest.raises(ZeroDivisionError):
            leave()
    else:
        leave()
    assert running("fetch", "plan") == []
    assert len(recorded.begun) <= 3


@pytest.mark.parametrize("what", ["a result", "a work"])
def test_ctrl_c_ends_all_threads(what: str) -> None:
    """In the main thread, while it waits for the planner's next, or for a work to end."""
    release, waiting = threading.Event(), threading.Event()

    def run() -> None:
        waiting.set()
        release.wait(60)

    def prepare(stop: threading.Event) -> Preparation[int]:
        if what == "a result":
            run()
        return Preparation([Work(1, run)], lambda: 0)

    def interrupt() -> None:
        waiting.wait(60)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        release.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(Pipeline([prepare] * 10, nbytes=10, threads=2).results())
    thread.join()
    assert running("fetch", "plan") == []


# In a loader


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("taken", [1, 3])
def test_an_early_exit_of_an_epoch_that_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool, taken: int
) -> None:
    """Half of a dataset is read, so that it is here, but the dataset is not complete."""
    the_config = fill({"storage": str(tmp_path / "store")}, 200, max_object_size=2**20)
    watch(monkeypatch, local=local)
    loader = DataLoader(
        the_config, subset=slice(0, 100), cache_dir=tmp_path / "cache", prefetch=10**5
    )
    assert numbers_in(loader, LARGE) == list(range(100))
    assert not loader._engine.is_complete
    seen = []
    for batch in loader:
        seen += numbers_in([batch], LARGE)
        if len(seen) == taken:
            break
    assert seen == list(range(taken))
    assert running("fetch", "plan") == []
    assert numbers_in(loader, LARGE) == list(range(100))


@pytest.mark.parametrize("how", [{}, {"cache_size": 0}, {"cache_size": 10**6}], ids=str)
@pytest.mark.parametrize("where", ["in the loop", "while it waits"])
def test_ctrl_c_ends_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, int], where: str
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 400, max_object_size=2**20)
    release, waiting = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if "/objects/" in call.key and seen:
            waiting.set()
            release.wait(60)

    def interrupt() -> None:
        assert waiting.wait(60)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.05)
        release.set()

    watch(monkeypatch, local=False, before=hold)
    loader = DataLoader(
        the_config, batch_size=8, cache_dir=tmp_path / "cache", prefetch=10**5, **how
    )
    seen: list[int] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        for batch in loader:
            seen += numbers_in([batch], LARGE)
            if where == "in the loop":
                waiting.set()
                time.sleep(10)
    thread.join()
    assert running("fetch", "plan") == []
    assert seen == list(range(len(seen)))
    assert numbers_in(loader, LARGE) == list(range(400))


def test_a_long_wait_says_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    go, logged = threading.Event(), []

    def log(text: str, *values: object) -> None:
        logged.append(text % values)
        if "1 of 2" in logged[-1]:  # where the machine is busy, it may wait for the first one too
            go.set()

    monkeypatch.setattr("storage_loader.loader.run.pipeline._LONG", 0.05)
    monkeypatch.setattr("storage_loader.loader.run.pipeline._log.info", log)

    def prepare(stop: threading.Event) -> Preparation[int]:
        return Preparation([Work(1, lambda: None), Work(1, lambda: go.wait(60) and None)], int)

    assert list(Pipeline([prepare], nbytes=10, threads=2).results()) == [0]
    assert logged[-1] == "loading has waited 0 s for rows: 1 of 2 pieces of work are done"
    assert len(logged) <= 3
