"""`sync`: futures, semaphores and conditions that no Ctrl-C leaves locked."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from concurrent.futures import CancelledError, TimeoutError
from queue import SimpleQueue

import pytest

from storage_loader.sync import Condition, Event, Future, Semaphore, wait
from tests.support.anywhere import everywhere


def test_a_future_gives_what_was_set() -> None:
    futures: list[Future[int]] = [Future(), Future(), Future()]
    assert not any(future.done() for future in futures)
    assert not futures[0].wait(0.001)
    with pytest.raises(TimeoutError):
        futures[0].result(0.001)
    with pytest.raises(TimeoutError):
        futures[0].result(-1)
    for future in futures[:2]:
        assert future.begin()
        assert not future.begin()
        future.cancel()  # too late
    threading.Timer(0.01, futures[0].set_result, [7]).start()
    assert futures[0].result() == futures[0].result(0) == 7
    assert futures[0].exception() is None
    futures[1].set_exception(ZeroDivisionError())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            futures[1].result()
    assert isinstance(futures[1].exception(), ZeroDivisionError)
    futures[2].cancel()
    assert not futures[2].begin()
    futures[2].cancel()
    with pytest.raises(CancelledError):
        futures[2].result()
    assert all(future.done() for future in futures)


def test_an_error_does_not_keep_its_future() -> None:
    future: Future[int] = Future()
    future.set_exception(ValueError())
    with contextlib.suppress(ValueError):
        future.result()
    gone = weakref.ref(future)
    del future
    assert gone() is None


def test_all_are_waited_for_together() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    assert wait([], 0)
    futures[1].set_result(1)
    begun = time.monotonic()
    assert not wait(futures, 0.05)
    assert 0.05 <= time.monotonic() - begun < 10
    threading.Timer(0.01, lambda: [futures[i].set_result(i) for i in (0, 2)]).start()
    assert wait(futures, 20)


def test_a_semaphore_gives_each_permit_once() -> None:
    semaphore = Semaphore(2)
    assert [semaphore.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    threading.Timer(0.01, semaphore.release, [3]).start()
    assert semaphore.acquire()
    assert [semaphore.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def test_a_condition_wakes_all_whose_turn_it_is() -> None:
    condition, number, seen = Condition(), [0], []

    def reached(wanted: int) -> int | None:
        return wanted if number[0] >= wanted else None

    def wait_for(wanted: int) -> None:
        seen.append(condition.when(lambda: reached(wanted)))

    threads = [threading.Thread(target=wait_for, args=(i,)) for i in (1, 2, 2, 3)]
    for thread in threads:
        thread.start()
    for now, expected in ((1, [1]), (2, [1, 2, 2]), (3, [1, 2, 2, 3])):
        assert len(seen) < len(expected)
        with condition.lock:
            number[0] = now
            condition.notify_all()
        for thread in threads[: len(expected)]:
            thread.join(20)
        assert seen == expected
    assert condition.when(lambda: 0) == 0


def test_an_event_wakes_all() -> None:
    event = Event()
    assert not event.is_set()
    for seconds in (0, -1, 0.01):
        assert not event.wait(seconds)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(event.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert not woken
    event.set()
    event.set()
    for thread in threads:
        thread.join(20)
    assert woken == [True] * 3
    assert event.wait()
    with pytest.raises(NotImplementedError):
        event.clear()


def test_ctrl_c_anywhere_in_an_event() -> None:
    events: list[Event] = []

    def call() -> None:
        events[:] = [Event()]
        events[0].wait(0)
        events[0].set()

    def check() -> None:
        for event in events:
            event.set()
            assert event.wait(20)

    everywhere(call, check)


def test_ctrl_c_anywhere_in_an_event_that_is_waited_for() -> None:
    begun: SimpleQueue[Event] = SimpleQueue()
    woken: SimpleQueue[Event] = SimpleQueue()
    latest: list[Event] = []

    def work() -> None:
        while True:
            event = begun.get()
            event.wait()
            woken.put(event)

    def call() -> None:
        latest[:] = [Event()]
        begun.put(latest[0])
        while not latest[0]._waiting:
            time.sleep(0.0001)
        latest[0].set()

    def check() -> None:
        if not latest[0].is_set():
            latest[0].set()
        begun.put(latest[0])  # it may not have come so far
        while woken.get(timeout=20) is not latest[0]:
            pass

    threading.Thread(target=work, daemon=True).start()
    latest.append(Event())
    begun.put(latest[0])
    everywhere(call, check)


def test_ctrl_c_anywhere_in_a_wait_for_a_future() -> None:
    begun: SimpleQueue[Future[int]] = SimpleQueue()
    latest: list[Future[int]] = []

    def settle() -> None:
        while True:
            future = begun.get()
            time.sleep(0.0005)
            future.set_result(7)

    def call() -> None:
        latest[:] = [Future()]
        begun.put(latest[0])
        assert latest[0].result(20) == 7

    def check() -> None:
        assert not latest or latest[0].done() or latest[0].result() == 7

    threading.Thread(target=settle, daemon=True).start()
    everywhere(call, check)


def test_ctrl_c_anywhere_in_a_semaphore() -> None:
    semaphore = Semaphore(1)

    def call() -> None:
        semaphore.acquire(blocking=False)
        semaphore.release()

    def check() -> None:
        semaphore.acquire(blocking=False)
        semaphore.release()
        semaphore.acquire()
        semaphore.release()

    everywhere(call, check)


def test_ctrl_c_anywhere_in_a_condition() -> None:
    condition = Condition()

    def call() -> None:
        condition.when(lambda: True)
        with condition.lock:
            condition.notify_all()

    def check() -> None:
        with condition.lock:
            condition.notify_all()

    everywhere(call, check)
