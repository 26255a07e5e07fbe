"""Locks of a cache: between threads and processes, and gone with the process that took them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_loader.loader.fetch.locks import LockFile, LockTimeoutError, lock_file
from storage_loader.loader.fetch.private import open_private
from tests.support.anywhere import everywhere
from tests.support.forked import forked, in_fork
from tests.support.waiting import until

NEVER = threading.Event()

pytestmark = pytest.mark.usefixtures("library_once")

HOLD = """
import os, sys, threading, time
from pathlib import Path
from storage_loader.loader.fetch.locks import lock_file
from storage_loader.loader.fetch.private import open_private
with open_private(Path(sys.argv[1])) as own:
    file = lock_file("locks", own)
with file.held("it", [(int(sys.argv[2]), int(sys.argv[3]))], threading.Event(), 0):
    orphan = os.fork() if sys.argv[4] == "fork" else 0
    if orphan or sys.argv[4] != "fork":
        print(orphan, flush=True)
    time.sleep(100)
"""


def file_in(folder: Path) -> LockFile:
    with open_private(folder) as own:
        return lock_file("locks", own)


def is_free(file: LockFile, *runs: tuple[int, int]) -> bool:
    try:
        with file.held("it", runs, NEVER, 0) as is_held:
            return is_held
    except LockTimeoutError:
        return False


@contextmanager
def holding(
    folder: Path, run: Sequence[int], *, fork: bool = False
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds these numbers, and the child that it has forked meanwhile."""
    arguments = [str(folder), *map(str, run), "fork" if fork else ""]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        try:
            yield process, orphan
        finally:
            process.kill()
            if orphan:
                os.kill(orphan, signal.SIGKILL)


def test_numbers_are_held_by_one(tmp_path: Path) -> None:
    file = file_in(tmp_path / "a")
    assert file_in(tmp_path / "a") is file
    elsewhere = file_in(tmp_path / "b")
    assert elsewhere is not file
    with file.held("it", [(3, 5), (2**60, 2**60 + 2)], NEVER, 0) as is_held:
        assert is_held
        for taken in (3, 4, 2**60, 2**60 + 1):
            assert not is_free(file, (taken, taken + 1))
            assert not forked(
                lambda taken=taken: is_free(file_in(tmp_path / "a"), (taken - 2, taken + 1))
            )
        assert is_free(file, (0, 3), (5, 100), (2**60 + 2, 2**60 + 3))
        assert forked(lambda: is_free(file_in(tmp_path / "a"), (0, 3), (5, 100)))
        assert is_free(elsewhere, (3, 5))
    assert is_free(file, (0, 100))
    assert forked(lambda: is_free(file_in(tmp_path / "a"), (0, 100)))


def test_a_killed_process_leaves_nothing_to_its_child(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    with holding(tmp_path, (3, 5), fork=True) as (process, orphan):
        assert not is_free(file, (4, 5))
        process.kill()
        process.wait(20)
        assert is_free(file, (3, 5))
        os.kill(orphan, 0)


def test_a_child_lets_go_of_nothing(tmp_path: Path) -> None:
    """Whatever it does with what it inherited: locks, unlocks, drops it."""
    file = file_in(tmp_path)

    def child() -> bool:
        nonlocal file
        with file.held("it", [(7, 9)], NEVER, 0):
            pass
        os.close(file.descriptor)
        del file
        return is_free(file_in(tmp_path), (3, 5))

    with file.held("it", [(3, 5)], NEVER, 0):
        assert not forked(child)
        assert not forked(lambda: is_free(file_in(tmp_path), (3, 5)))
        assert forked(lambda: is_free(file_in(tmp_path), (5, 6)))


def test_a_file_that_is_dropped_and_opened_again_holds_what_it_held(tmp_path: Path) -> None:
    """Closing any descriptor of a file would release all locks of this process."""
    for _ in range(50):
        first = file_in(tmp_path)
        number = first.descriptor
        threads = [threading.Thread(target=file_in, args=(tmp_path,)) for _ in range(4)]
        del first
        for thread in threads:
            thread.start()
        file = file_in(tmp_path)
        with file.held("it", [(3, 5)], NEVER, 0):
            for thread in threads:
                thread.join()
            file_in(tmp_path / "other")  # which closes what was dropped
            assert not forked(lambda: is_free(file_in(tmp_path), (3, 5)))
        del file
    assert number < 200, "descriptors are left open"


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    with file.held("it", [(3, 5)], NEVER, 0):
        (tmp_path / "locks").unlink()
        again = file_in(tmp_path)
        assert again is not file
        assert is_free(again, (3, 5))
        assert not is_free(file, (3, 5))
        with holding(tmp_path, (5, 6)):
            assert not is_free(again, (5, 6))


def test_a_wait_ends_when_the_lock_is_free(tmp_path: Path) -> None:
    file, seen = file_in(tmp_path), threading.Event()

    def wait() -> None:
        with file.held("it", [(3, 5)], NEVER, 100) as is_held:
            assert is_held
            seen.set()

    with holding(tmp_path, (4, 5)) as (process, _), file.held("it", [(3, 4)], NEVER, 0):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not seen.wait(0.3)
    thread.join(100)
    assert seen.is_set()
    assert process.returncode


def test_a_wait_ends_when_nobody_wants_it(tmp_path: Path) -> None:
    file, stop = file_in(tmp_path), threading.Event()
    with holding(tmp_path, (4, 5)):
        threading.Timer(0.3, stop.set).start()
        begun = time.monotonic()
        with file.held("it", [(3, 4), (4, 5)], stop, 100) as is_held:
            assert not is_held
        assert time.monotonic() - begun < 20
        assert is_free(file, (3, 4))
        assert not is_free(file, (4, 5))


@pytest.mark.parametrize("by", ["a thread", "a process"])
def test_a_wait_that_takes_long_says_for_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("storage_loader.loader.fetch.locks._LONG", 0.1)
    caplog.set_level("INFO", "storage_loader")
    file = file_in(tmp_path)
    with holding(tmp_path, (4, 5)) as (process, _), file.held("it", [(8, 9)], NEVER, 0):
        run = (3, 5) if by == "a process" else (8, 10)
        with pytest.raises(LockTimeoutError), file.held("what is wanted", [run], NEVER, 0.5):
            pytest.fail("it is not held")
        pid = process.pid if by == "a process" else os.getpid()
        assert is_free(file, (3, 4), (9, 10))
    found = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert [level for level, _ in found] == ["INFO", "WARNING"]
    for _, text in found:
        assert text.startswith(f"process {pid} has had what is wanted for ")


def test_threads_and_processes_take_turns(tmp_path: Path) -> None:
    """Of many that add one to a number, none is lost."""
    (tmp_path / "number").write_text("0")

    def add(times: int) -> None:
        file = file_in(tmp_path)
        for _ in range(times):
            with file.held("it", [(2, 4), (6, 7)], NEVER, 100) as is_held:
                assert is_held
                number = int((tmp_path / "number").read_text())
                time.sleep(0.001)
                (tmp_path / "number").write_text(str(number + 1))

    def child() -> None:
        threads = [threading.Thread(target=add, args=(10,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    processes = [threading.Thread(target=lambda: forked(child)) for _ in range(3)]
    for process in processes:
        process.start()
    add(10)
    for process in processes:
        process.join(100)
    until(lambda: (tmp_path / "number").read_text() == "100")


def test_numbers_are_given_back_without_a_wait(tmp_path: Path) -> None:
    """Ctrl-C ends waits for a lock, too."""
    file = file_in(tmp_path)
    with file.held("it", [(0, 2)], NEVER, 0):
        file._changing.acquire()
    file._changing.release()
    assert is_free(file, (0, 2))


def test_ctrl_c_anywhere_leaves_nothing_held(tmp_path: Path) -> None:
    file = file_in(tmp_path)

    def hold() -> None:
        with file.held("it", [(0, 2), (5, 6)], NEVER, 0) as is_held:
            assert is_held

    def check() -> None:
        assert in_fork(lambda: is_free(file_in(tmp_path), (0, 6))) == "True"
        assert is_free(file, (0, 6))

    everywhere(hold, check)
