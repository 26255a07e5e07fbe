"""A user's function called in threads on one item after another, ahead of use."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue
from typing import Generic, TypeVar

from ...sync import Event, Future, Semaphore
from ...threads import start

S = TypeVar("S")
T = TypeVar("T")

_SLOW = 16  # results in a row for which the consumer took ...
_PAYS = 4  # ... so many times as long as making them
_HANDOVER = 2e-4  # s; and longer than this: what a thread's help costs at most
_AHEAD = 2  # results that may be ready beyond the one asked for


def when_it_pays(
    items: Iterator[S], make: Callable[[S], T], stop: threading.Event
) -> Generator[T, None, None]:
    """Results of `make` for each item, in order; made here, or ahead for a slow consumer.

    Handing a result from thread to thread costs as much as copying a small batch, so results are
    made here until the consumer has taken several times as long for each of a few in a row. From
    then on they are made ahead, as by `Ahead`.
    """
    slow = 0
    while slow < _SLOW:
        begun = time.perf_counter()
        try:
            item = next(items)
        except StopIteration:
            return
        result = make(item)
        made = time.perf_counter()
        yield result
        pays = max(_HANDOVER, _PAYS * (made - begun))
        slow = slow + 1 if time.perf_counter() - made > pays else 0
    del item, result  # a batch lives no longer than its user wants
    with closing(Ahead(items, make, stop).results()) as results:
        yield from results


class Ahead(Generic[S, T]):
    """Results of `make` for each item, in the order of the items.

    A few threads take turns to get an item, one at a time, and call `make` at the same time.
    At most two results are made beyond the one that was asked for last.
    """

    def __init__(
        self,
        items: Iterator[S],
        make: Callable[[S], T],
        stop: threading.Event | None = None,
        *,
        threads: int = _AHEAD + 1,
    ) -> None:
        """`stop` is set once nobody wants results any more: `items` should end early then.
        `threads`: at most; more than the results that may be ahead are of no use.
        """
        self._items = items
        self._make = make
        self._stop = stop or Event()
        self._threads = min(threads, _AHEAD + 1, os.cpu_count() or 1)
        self._slots = Semaphore(_AHEAD)
        self._turn = threading.Lock()
        self._is_over = False
        self._begun: SimpleQueue[Future[T] | None] = SimpleQueue()

    def results(self) -> Generator[T, None, None]:
        """Close the iterator to end the threads; a call of `make` that runs is waited for.

        An error of `make`, or of the items, rises here at its place in the order.
        """
        threads: list[threading.Thread] = []
        # Called at the latest when the interpreter ends, while threads can still end in order.
        end = weakref.finalize(self, _end, self._stop, self._slots, threads)
        future = None
        try:
            for number in range(self._threads):
                name = f"storage_loader-ahead-{number}"
                threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                start(threads[-1])
            while (future := self._begun.get()) is not None:
                self._slots.release()
                yield future.result()
        finally:
            future = None  # an error refers to this frame, and would refer to itself
            end()

    def _run(self) -> None:
        while True:
            self._slots.acquire()
            begun = self._next()
            if begun is None:
                return
            item, future = begun
            try:
                future.set_result(self._make(item))
            except BaseException as error:  # it rises in the consumer
                future.set_exception(error)
            del begun, item, future  # a batch lives no longer than its user wants

    def _next(self) -> tuple[S, Future[T]] | None:
        """The next item, and where its result belongs; None where there is no more to do."""
        with self._turn:
            if self._is_over or self._stop.is_set():
                return None
            future: Future[T] = Future()
            try:
                item = next(self._items)
            except BaseException as error:  # it rises in the consumer
                self._is_over = True
                if not isinstance(error, StopIteration):
                    future.set_exception(error)
                    self._begun.put(future)
                self._begun.put(None)
                return None
            if self._stop.is_set():  # the item may not be whole
                return None
            self._begun.put(future)
            return item, future


def _end(stop: threading.Event, slots: Semaphore, threads: Sequence[threading.Thread]) -> None:
    stop.set()
    slots.release(_AHEAD + 1)
    for thread in threads:
        if thread.is_alive():
            thread.join()
