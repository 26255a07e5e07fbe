"""`Threads`: calls in a few threads, whatever becomes of them and whenever Ctrl-C comes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from storage_loader import save
from storage_loader.errors import SaverError, ThreadError
from storage_loader.threads import Threads
from tests.support.anywhere import everywhere
from tests.support.rows import config, make


def test_results_come_in_order_from_no_more_threads_than_may_be() -> None:
    seen: set[str] = set()
    meet = threading.Barrier(3, timeout=20)

    def call(number: int) -> int:
        if number < 3:
            meet.wait()  # three at once
        seen.add(threading.current_thread().name)
        return number * 2

    threads = Threads(3, "some")
    assert list(threads.map(call, range(50))) == list(range(0, 100, 2))
    assert seen == {"some_0", "some_1", "some_2"}
    threads.end()


def test_an_idle_thread_is_used_again() -> None:
    threads = Threads(8, "one")
    names = set()
    for _ in range(20):
        names.add(threads.submit(lambda: threading.current_thread().name).result(20))
        time.sleep(0.005)  # it is idle once it says so
    assert len(names) < 8
    threads.end()


def test_an_error_is_the_caller_s() -> None:
    threads = Threads(1, "some")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(20)
    assert threads.submit(lambda: 1).result(20) == 1
    threads.end()


def test_the_end_drops_what_has_not_begun_and_waits_for_the_rest() -> None:
    threads = Threads(1, "some")
    begun, go_on = threading.Event(), threading.Event()
    done = []

    def first() -> None:
        begun.set()
        go_on.wait(20)
        done.append(1)

    futures = [threads.submit(first), threads.submit(done.append, 2)]
    assert begun.wait(20)
    threading.Timer(0.05, go_on.set).start()
    threads.end()
    assert done == [1]
    with pytest.raises(CancelledError):
        futures[1].result(20)
    with pytest.raises(RuntimeError, match="have ended"):
        threads.submit(print)
    threads.end()  # once more


def test_the_end_waits_no_longer_than_it_is_told() -> None:
    threads = Threads(1, "some")
    go_on = threading.Event()
    future = threads.submit(go_on.wait, 30)
    begun = time.monotonic()
    threads.end(seconds=0.05)
    assert time.monotonic() - begun < 10
    assert not future.done()
    go_on.set()
    assert future.result(20)


def test_ctrl_c_anywhere() -> None:
    threads: list[Threads] = []

    def call() -> None:
        threads[:] = [Threads(1, "some")]
        assert threads[0].submit(lambda: 7).result(20) == 7
        assert list(threads[0].map(abs, [-1, -2])) == [1, 2]

    def check() -> None:
        for some in threads:
            assert some.submit(lambda: 8).result(20) == 8
            some.end()

    everywhere(call, check)


@pytest.mark.parametrize("starts", [False, True])
def test_ctrl_c_while_a_thread_is_started(monkeypatch: pytest.MonkeyPatch, starts: bool) -> None:
    """Before or after it runs: another call is done all the same, and the end does not fail."""
    threads = Threads(1, "some")
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if starts:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.submit(int)
    monkeypatch.undo()
    assert threads.submit(lambda: 7).result(20) == 7
    threads.end()


@pytest.mark.parametrize("what", ["save", "call"])
def test_no_more_threads(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls: dict[str, Callable[[], object]] = {
        "save": lambda: save(config(memory), make(range(3))),
        "call": lambda: Threads(1, "some").submit(int),
    }
    with (
        monkeypatch.context() as patch,
        pytest.raises((SaverError, ThreadError), match="ulimit -u"),
    ):
        patch.setattr(threading.Thread, "start", refused)
        calls[what]()
    calls[what]()


def test_one_that_was_never_started_is_not_waited_for() -> None:
    threads = Threads(2, "some")
    assert threads.submit(lambda: 7).result(20) == 7
    threads._started.append(threading.Thread())  # as where Ctrl-C comes just before its start
    threads.end()


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    script = (
        "import threading; from storage_loader.threads import Threads\n"
        "begun = threading.Event()\n"
        "def call():\n"
        "    begun.set(); threading.Event().wait()\n"
        "threads = Threads(1, 'some'); threads.submit(call); begun.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
