"""Values that must be made anew in each process: threads, locks, connections."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_locking = threading.RLock()


def _renew_lock() -> None:
    global _locking  # noqa: PLW0603  a lock held at the moment of the fork is never released
    _locking = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class PerProcess(Generic[T]):
    """A value made at first use and again after a fork. Thread-safe.

    Its maker may wait for other threads that make other ones. What makes it is not kept: an
    owner's own method would tie owner and value in a cycle, and files or processes would stay
    open until a garbage collection.
    """

    def __init__(self) -> None:
        self._held: tuple[int, T] | None = None
        self._making: tuple[int, threading.RLock] | None = None

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process, made by `make` where there is none yet."""
        held = self._held
        if held is None or held[0] != os.getpid():
            with self._lock():
                held = self._held
                if held is None or held[0] != os.getpid():
                    held = self._held = (os.getpid(), make())
        return held[1]

    def peek(self) -> T | None:
        """The value of this process, or None where none was made."""
        held = self._held
        return held[1] if held is not None and held[0] == os.getpid() else None

    def _lock(self) -> threading.RLock:
        with _locking:
            if self._making is None or self._making[0] != os.getpid():
                self._making = (os.getpid(), threading.RLock())
            return self._making[1]
