"""What threads wait for, whole after a Ctrl-C at any moment.

Python runs the handler of a signal in the main thread, after any call. The futures, conditions,
semaphores and events of the standard library are Python code: an exception between two of their
steps leaves their lock taken, and then the other threads wait for ever
(https://github.com/python/cpython/issues/74174). These use `with lock` and single calls of C code,
which no handler divides; `Future.cancel` alone has such a moment, and says so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, TimeoutError
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

_LOOK = 1.0  # s


class Future(Generic[T]):
    """What a call in another thread gives. One thread at a time may wait for it."""

    def __init__(self) -> None:
        self._begun = threading.Lock()  # taken by who makes the call, or cancels it
        self._pending = threading.Lock()  # free once it is done
        self._pending.acquire()
        self._is_done = False
        self._result: T
        self._error: BaseException | None = None

    def begin(self) -> bool:
        """Whether the call is to be made; then it cannot be cancelled any more."""
        return self._begun.acquire(blocking=False)

    def cancel(self) -> None:
        """Have the call not made, unless it has begun; its result is a `CancelledError` then.

        After Ctrl-C in here it may neither be made nor be done.
        """
        if self.begin():
            self.set_exception(CancelledError())

    def set_result(self, result: T) -> None:
        self._result = result
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def _settle(self) -> None:
        self._is_done = True
        self._pending.release()

    def done(self) -> bool:
        """Whether it has a result or an exception."""
        return self._is_done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done, at most so many seconds; whether it is."""
        # Who is interrupted between these two leaves the lock taken: nobody needs it any more.
        seconds = -1 if timeout is None else max(0.0, timeout)
        if not self._is_done and self._pending.acquire(timeout=seconds):
            self._pending.release()
        return self._is_done

    def exception(self) -> BaseException | None:
        """What the call raised; waits for it."""
        self.wait()
        return self._error

    def result(self, timeout: float | None = None) -> T:
        """What the call returned; raises what it raised.

        Waits for it; `concurrent.futures.TimeoutError` after so many seconds.
        """
        if not self.wait(timeout):
            raise TimeoutError
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # the error refers to this frame, and would refer to itself


def wait(futures: Iterable[Future[T]], timeout: float) -> bool:
    """Wait until all are done, at most so many seconds; whether they are."""
    until = time.monotonic() + timeout
    return all(future.wait(until - time.monotonic()) for future in futures)


class Semaphore:
    """A number of permits, to be taken and given back by any thread."""

    def __init__(self, permits: int = 0) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        self.release(permits)

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take a permit, waiting for one; or, not `blocking`, whether there was one."""
        try:
            self._free.get(block=blocking)
        except Empty:
            return False
        return True

    def release(self, permits: int = 1) -> None:
        """Give permits, back or new ones."""
        for _ in range(permits):
            self._free.put(None)


class Event(threading.Event):
    """A `threading.Event` that is set once and for all."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        self._waiting: list[SimpleQueue[None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        tell = _telling(self._waiting)
        self._is_set = True
        deque(tell, maxlen=0)  # no call comes between: whoever waits is told

    def clear(self) -> None:
        """Not to be had."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> bool:
        told: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(told)
        try:
            if not self._is_set:  # after it waits: who sets it sees one of both
                told.get(timeout=None if timeout is None else max(0.0, timeout))
        except Empty:
            pass
        finally:
            self._waiting.remove(told)
        return self._is_set


def _telling(waiting: list[SimpleQueue[None]]) -> Iterator[None]:
    """Tells who waits when it is gone through: in one call all, or none."""
    return map(SimpleQueue.put, waiting, repeat(None))


class Condition:
    """A lock, and a way to wait for a change of what it protects."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._waiting: list[SimpleQueue[None]] = []

    def when(self, attempt: Callable[[], T | None]) -> T:
        """What `attempt` returns first that is not None: it is called with the lock held, now and
        after each change."""
        change: SimpleQueue[None] = SimpleQueue()
        while True:
            with self.lock:
                if change in self._waiting:
                    self._waiting.remove(change)
                result = attempt()
                if result is not None:
                    return result
                self._waiting.append(change)
            with contextlib.suppress(Empty):  # who was to tell may have been interrupted just then
                change.get(timeout=_LOOK)

    def notify_all(self) -> None:
        """Tell those who wait that something has changed, with the lock held."""
        deque(_telling(self._waiting), maxlen=0)
        self._waiting.clear()
