"""`PerProcess`: one value for each process, made once, whoever asks."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage_loader.process import PerProcess
from tests.support.forked import Forked, forked


def test_it_is_made_at_first_use_and_kept() -> None:
    count = itertools.count()
    value: PerProcess[int] = PerProcess()
    assert value.peek() is None
    assert [value.get(count.__next__) for _ in range(3)] == [0, 0, 0]
    assert value.peek() == 0


def test_a_failure_is_not_kept() -> None:
    value: PerProcess[str] = PerProcess()

    def fail() -> str:
        raise ValueError("not yet")

    with pytest.raises(ValueError, match="not yet"):
        value.get(fail)
    assert value.peek() is None
    assert value.get(lambda: "made") == "made"


def test_none_is_a_value_too() -> None:
    made: list[int] = []
    value: PerProcess[None] = PerProcess()
    for _ in range(2):
        assert value.get(lambda: made.append(1)) is None  # type: ignore[func-returns-value]
    assert made == [1]


def test_a_maker_waits_for_a_thread_that_makes_another_one() -> None:
    outer: PerProcess[str] = PerProcess()
    inner: PerProcess[str] = PerProcess()

    def make() -> str:
        with ThreadPoolExecutor(1) as pool:
            return "outer of " + pool.submit(inner.get, lambda: "inner").result(timeout=60)

    assert outer.get(make) == "outer of inner"


def test_many_threads_get_one_value() -> None:
    for _ in range(20):
        barrier = threading.Barrier(8)
        value: PerProcess[object] = PerProcess()

        def make() -> object:
            time.sleep(0.001)
            return object()

        def get(_: int, barrier=barrier, value=value, make=make) -> object:
            barrier.wait()
            return value.get(make)

        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(get, range(8)))
        assert len(set(map(id, got))) == 1


def test_one_may_be_made_from_another() -> None:
    inner: PerProcess[int] = PerProcess()
    outer: PerProcess[int] = PerProcess()
    assert outer.get(lambda: inner.get(lambda: 1) + 1) == 2


def test_a_pickled_one_is_still_to_be_made() -> None:
    value: PerProcess[object] = PerProcess()
    value.get(threading.Lock)
    for other in (pickle.loads(pickle.dumps(value)), copy.copy(value)):
        assert other.peek() is None
        assert other.get(lambda: 1) == 1
    assert value.peek() is not None


def test_a_child_makes_its_own() -> None:
    value: PerProcess[int] = PerProcess()
    parent = value.get(os.getpid)

    def child() -> tuple[int | None, int, int, int]:
        before = value.peek()
        own = value.get(os.getpid)
        return before, own, os.getpid(), forked(lambda: value.get(os.getpid))

    before, own, pid, grandchild = forked(child)
    assert before is None
    assert own == pid
    assert len({parent, own, grandchild}) == 3
    assert value.peek() == parent == os.getpid()


def test_a_fork_while_a_thread_makes_a_value() -> None:
    """The lock is held at that moment, and nobody in the child will ever release it."""
    value: PerProcess[str] = PerProcess()
    making, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        making.set()
        assert go_on.wait(60)
        return "of the parent"

    with ThreadPoolExecutor(1) as pool:
        parent = pool.submit(value.get, slow)
        assert making.wait(60)
        children = [Forked(lambda: value.get(lambda: "of the child")) for _ in range(3)]
        assert [child.result() for child in children] == ["of the child"] * 3
        other: PerProcess[str] = PerProcess()
        assert forked(lambda: other.get(lambda: "other")) == "other"
        go_on.set()
        assert parent.result(60) == "of the parent"
