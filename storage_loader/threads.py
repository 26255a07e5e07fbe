"""Threads that do calls, and that a call which never ends does not keep the process from ending.

Python joins those of a `ThreadPoolExecutor` when it exits, whatever they wait for: after Ctrl-C, a
server that stays silent would keep the process until its requests time out.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from .errors import ThreadError
from .sync import Future, Semaphore

T = TypeVar("T")
R = TypeVar("R")

LEFT = 1.0  # seconds that those who give up wait for requests under way

_Task = tuple[Future[Any], Callable[[], Any]]


def start(thread: threading.Thread) -> None:
    """Start a thread; after Ctrl-C it may start all the same. `ThreadError` where it cannot.

    `Thread.start` is not whole after Ctrl-C, and the thread may wait for ever: in the main thread
    another one calls it.
    """
    started: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            thread.start()
        except BaseException as error:  # raised below
            started.put(error)
        else:
            started.put(None)

    try:
        if threading.current_thread() is threading.main_thread():
            _thread.start_new_thread(run, ())
        else:
            run()
        error = started.get()
        if error is not None:
            raise error
    except RuntimeError as error:
        raise ThreadError(
            "no thread could be started; this user or container may have no more of them "
            "(ulimit -u), or no memory for one"
        ) from error


class Threads:
    """At most `most` threads, each started when a call finds none idle."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._idle = Semaphore()
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
            start(thread)
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
            if thread.is_alive():  # Ctrl-C may have come before it was started
                thread.join(None if until is None else max(0.0, until - time.monotonic()))


def _work(tasks: SimpleQueue[_Task | None], idle: Semaphore) -> None:
    while (task := tasks.get()) is not None:
        future, call = task
        if future.begin():
            try:
                result = call()
            except BaseException as error:  # whoever waits gets it
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, call  # what they hold, before the next is waited for
        idle.release()
    tasks.put(None)  # for the next thread
