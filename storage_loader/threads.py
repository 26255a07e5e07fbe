"""Threads that do calls, and that a call which never ends does not keep the process from ending.

Python joins those of a `ThreadPoolExecutor` when it exits, whatever they wait for: after Ctrl-C, a
server that stays silent would keep the process until its requests time out.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

LEFT = 1.0  # seconds that those who give up wait for requests under way

_Task = tuple[Future[Any], Callable[[], Any]]


class Threads:
    """At most `most` threads, each started when a call finds none idle."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._is_over = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Do a call; its result is the future's."""
        future: Future[T] = Future()
        with self._starting:
            if self._is_over:
                raise RuntimeError("these threads have ended")
            self._tasks.put((future, lambda: call(*arguments)))
            if not self._idle.acquire(blocking=False) and len(self._started) < self._most:
                self._start()
        return future

    def _start(self) -> None:
        name = f"{self._name}_{len(self._started)}"
        thread = threading.Thread(
            target=_work, args=(self._tasks, self._idle), name=name, daemon=True
        )
        try:
            self._started.append(thread)
            thread.start()
        except BaseException:  # Ctrl-C: the next call starts another one
            self._started.remove(thread)
            raise

    def map(self, call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """The results, in order; all calls are begun now."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def end(self, *, seconds: float | None = None) -> None:
        """Drop what has not begun, and wait until the rest is done: for so long, or None: always.

        A thread whose call takes longer ends after it.
        """
        with self._starting:
            self._is_over = True
        while True:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                break
            if task is not None:
                task[0].cancel()
        self._tasks.put(None)
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._started:
            if thread.ident is not None:  # Ctrl-C may have come before it was started
                thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _work(tasks: SimpleQueue[_Task | None], idle: threading.Semaphore) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:  # whoever waits gets it
                _settle(future.set_exception, error)
            else:
                _settle(future.set_result, result)
                del result
        del task, future, call  # what they hold, before the next is waited for
        idle.release()
    tasks.put(None)  # for the next thread


def _settle(how: Callable[[Any], None], value: Any) -> None:
    """Say how a call ended, and be there for the next one."""
    try:
        how(value)
    except RuntimeError as error:
        # A wait that Ctrl-C ended at the wrong moment lets go of a lock that this thread holds:
        # Python's conditions are not proof against it. Nobody waits there any more.
        _log.debug("a thread of %s: %s", threading.current_thread().name, error)
