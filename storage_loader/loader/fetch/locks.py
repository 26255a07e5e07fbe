"""Locks that processes and their threads share, and that end with the process that took them.

A lock of an open file (flock, or fcntl's for open files) is inherited by every child that is
forked meanwhile. It lives as long as the child, or a map that the child inherited, even if the
process that took it is killed. These are POSIX record locks instead, which belong to the
process. They have two edges: they keep no threads apart, so a set of numbers does that here; and
closing any descriptor of the file releases all of them, so a process has one open.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from ...process import PerProcess
from ...ranges import Range
from .private import open_file

_log = logging.getLogger(__name__)

PATIENCE = 60.0  # s of waiting at most: what 64 MiB take at 1 MB/s
_LONG = 10.0  # s of waiting after which the log says for whom
_POLL = 0.001  # s between attempts to get a lock that is held elsewhere ...
_MAX_POLL = 0.1  # ... doubling up to here


class LockTimeoutError(Exception):
    """Another process or thread held a lock for too long."""


def lock_file(name: str, folder: int) -> LockFile:
    """The file of this name in an open folder, made where it is missing."""
    return _process.get(_LockFiles).get(name, folder)


class LockFile:
    """A file; ranges of numbers can be locked by it. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._held: set[int] = set()  # by threads of this process
        self._changing = threading.Lock()

    @contextmanager
    def held(
        self, what: str, runs: Sequence[Range], stop: threading.Event, patience: float
    ) -> Iterator[bool]:
        """Hold the numbers of `runs`, which ascend; False where `stop` was set before.

        Raises `LockTimeoutError` after `patience` (s). `what` is held, for the log.
        """
        numbers = {number for first, end in runs for number in range(first, end)}
        claimed: set[int] = set()
        wait = _Wait(what, stop, patience)
        firsts, lengths = [first for first, _ in runs], [end - first for first, end in runs]
        unlock_all = map(partial(fcntl.lockf, self.descriptor, fcntl.LOCK_UN), lengths, firsts)
        try:  # from before the claim on: Ctrl-C may come right after it
            yield wait.until(partial(self._claim, numbers, claimed), os.getpid) and all(
                wait.until(partial(self._lock, *run), partial(self._holder, *run)) for run in runs
            )
        finally:
            try:
                if claimed:
                    deque(unlock_all, maxlen=0)  # one call: all or none
            finally:  # also where Ctrl-C comes just then; without the lock: a wait for it could end
                self._held -= claimed

    def _claim(self, numbers: set[int], claimed: set[int]) -> bool:
        """Keep out other threads; `claimed` becomes `numbers` then."""
        with self._changing:
            is_free = self._held.isdisjoint(numbers)
            if is_free:
                claimed |= numbers
                self._held |= numbers
            return is_free

    def _lock(self, first: int, end: int) -> bool:
        """Keep out other processes."""
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, end - first, first)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def _holder(self, first: int, end: int) -> int:
        """The process that has some of these; 0 where the system does not tell."""
        if sys.platform != "linux":
            return 0
        layout = "hhqqi4x"
        asked = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, first, end - first, 0)
        answer = fcntl.fcntl(self.descriptor, fcntl.F_GETLK, asked)
        return int(struct.unpack(layout, answer)[-1])


class _Wait:
    """Attempts until one succeeds, nobody wants it any more, or the time is over."""

    def __init__(self, what: str, stop: threading.Event, patience: float) -> None:
        self._what = what
        self._stop = stop
        self._patience = patience
        self._begun = time.monotonic()
        self._is_logged = False

    def until(self, attempt: Callable[[], bool], holder: Callable[[], int]) -> bool:
        """Whether it succeeded; False once `stop` is set."""
        pause = _POLL
        while not attempt():
            seconds = time.monotonic() - self._begun
            if seconds >= self._patience:
                if self._patience:
                    self._log(logging.WARNING, holder(), "it is not waited for any longer")
                raise LockTimeoutError
            if seconds >= _LONG and not self._is_logged:
                self._is_logged = True
                self._log(logging.INFO, holder(), "it is waited for")
            if self._stop.wait(pause):
                return False
            pause = min(2 * pause, _MAX_POLL)
        return True

    def _log(self, level: int, process: int, what_now: str) -> None:
        who = f"process {process}" if process > 0 else "another process"
        seconds = time.monotonic() - self._begun
        _log.log(level, "%s has had %s for %.0f s; %s", who, self._what, seconds, what_now)


class _LockFiles:
    """The lock files that this process has open: one descriptor each."""

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[tuple[int, int], LockFile]
        self._open = weakref.WeakValueDictionary()  # by device and inode
        self._left: deque[tuple[tuple[int, int], int]] = deque()  # descriptors to be closed
        self._opening = threading.Lock()

    def get(self, name: str, folder: int) -> LockFile:
        with self._opening:
            self._close_left()
            with suppress(FileNotFoundError):
                found = self._open.get(_key(os.stat(name, dir_fd=folder, follow_symlinks=False)))
                if found is not None:
                    return found
            descriptor = open_file(name, folder, os.O_CREAT)
            made = LockFile(descriptor)
            key = _key(os.fstat(descriptor))
            # Not closed at once by whoever drops it: another thread may open the file meanwhile.
            weakref.finalize(made, self._left.append, (key, descriptor)).atexit = False
            return self._open.setdefault(key, made)

    def _close_left(self) -> None:
        for _ in range(len(self._left)):
            key, descriptor = self._left.popleft()
            if key in self._open:  # closing this would release what that one holds
                self._left.append((key, descriptor))
            else:
                os.close(descriptor)


# A child that is forked opens its own: closing there what it inherited would release its locks.
_process: PerProcess[_LockFiles] = PerProcess()


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
