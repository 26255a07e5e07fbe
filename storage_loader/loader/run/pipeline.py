"""The pipeline that does pieces of work ahead of use."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from ...sync import Condition, Event, Future, Semaphore
from ...threads import LEFT, Threads, start
from ..fetch.work import Preparation, Prepare
from ..tuning import TUNING

T = TypeVar("T")

_log = logging.getLogger(__name__)

AHEAD = 4  # preparations begun ahead, even where they need nothing fetched
_LONG = 10.0  # seconds of waiting after which the log says for what


class _Begun(Generic[T]):
    """A preparation whose works are being admitted."""

    def __init__(self, preparation: Preparation[T]) -> None:
        self.preparation = preparation
        self.futures: list[Future[None]] = []
        self.is_wanted = False  # the consumer waits for it
        self.is_admitted = Event()  # all its works are
        self.taken = 0  # bytes of the budget

    def wait(self) -> None:
        """Wait until its works are done; raises what one of them raised."""
        if not self.is_admitted.wait(_LONG):
            self._log_wait()
            self.is_admitted.wait()
        for future in self.futures:
            if not future.wait(_LONG):
                self._log_wait()
            future.result()

    def _log_wait(self) -> None:
        _log.info(
            "loading has waited %.0f s for rows: %d of %d pieces of work are done",
            _LONG,
            sum(future.done() for future in self.futures),
            len(self.preparation.works),
        )


class _Budget:
    """Bytes that may be ready ahead of use.

    One piece of work is always admitted, and whatever the consumer waits for.
    """

    def __init__(self, nbytes: int) -> None:
        self._free = self._nbytes = nbytes
        self._changed = Condition()

    def take(self, nbytes: int, begun: _Begun[T], stop: threading.Event) -> None:
        """Wait for room for a work of `begun`, until `stop` is set."""

        def is_admitted() -> bool | None:
            if begun.is_wanted or stop.is_set():
                return True
            if nbytes > self._free < self._nbytes:
                return None
            self._free -= nbytes
            begun.taken += nbytes
            return True

        self._changed.when(is_admitted)

    def want(self, begun: _Begun[T]) -> None:
        """The consumer waits for this: it is no longer ahead of use."""
        with self._changed.lock:
            begun.is_wanted = True
            self._free += begun.taken
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed.lock:
            self._changed.notify_all()


class Pipeline(Generic[T]):
    """Results of preparations in order, made ready ahead by a planning thread and `threads`.

    At most `nbytes` are ready or being made ready beyond the result that was asked for last.
    The first result's works are begun alone, so that it is there soon; the next ones are planned
    once they are done. Nobody polls: whoever waits is woken by what it waits for.
    """

    def __init__(
        self,
        preparations: Iterable[Prepare[T]],
        *,
        nbytes: int,
        threads: int,
        waiting_threads: int = TUNING.waiting_threads,
        ahead: int = AHEAD,
        stop: threading.Event | None = None,
    ) -> None:
        """Each of `preparations` is called in the planning thread, at most `ahead` beyond the one
        whose result was asked for last.

        Set `stop` from any thread to end the works early: results are then worth nothing.
        """
        self.stop = stop or Event()
        self._preparations = preparations
        self._budget = _Budget(nbytes)
        self._is_first_ready = Event()
        self._slots = Semaphore(ahead)
        self._begun: SimpleQueue[_Begun[T] | None] = SimpleQueue()
        self._error: BaseException | None = None  # of planning
        name = "storage_loader-fetch"
        self._pool = Threads(threads, name)
        self._wide_pool = Threads(max(waiting_threads, threads), name)
        self._pools = (self._pool, self._wide_pool)
        self._planner = threading.Thread(target=self._plan, name="storage_loader-plan", daemon=True)

    def results(self) -> Generator[T, None, None]:
        """Close the iterator to end the threads; an error of any of them rises here."""
        # Called at the latest when the interpreter ends: a thread that is killed then may abort it.
        ending = (
            self.stop,
            self._is_first_ready,
            self._budget,
            self._slots,
            self._pools,
            self._planner,
        )
        end = weakref.finalize(self, _end, *ending)
        try:
            start(self._planner)
            while (begun := self._begun.get()) is not None:
                self._budget.want(begun)
                self._slots.release()
                begun.wait()
                if self._error is not None:
                    break
                self._is_first_ready.set()
                yield begun.preparation.finish()
                del begun  # what it made ready, before the next is waited for
            if self._error is not None:
                raise self._error
        finally:
            end()

    def _plan(self) -> None:
        begun = None
        try:
            for prepare in self._preparations:
                self._slots.acquire()
                if self.stop.is_set():  # nobody would release another slot
                    return
                is_first, begun = begun is None, _Begun(prepare(self.stop))
                self._begun.put(begun)
                for work in begun.preparation.works:
                    self._budget.take(work.nbytes, begun, self.stop)
                    if self.stop.is_set():
                        return
                    pool = self._wide_pool if work.is_small else self._pool
                    begun.futures.append(pool.submit(work.run))
                begun.is_admitted.set()
                if is_first:
                    self._is_first_ready.wait()
        except BaseException as error:  # it rises in the consumer
            self._error = error
        finally:
            if begun is not None:
                begun.is_admitted.set()
            self._begun.put(None)


def _end(
    stop: threading.Event,
    is_first_ready: threading.Event,
    budget: _Budget,
    slots: Semaphore,
    pools: Sequence[Threads],
    planner: threading.Thread,
) -> None:
    stop.set()
    is_first_ready.set()
    budget.wake()
    slots.release()
    for pool in pools:
        pool.end(seconds=0)
    with suppress(RuntimeError):  # Ctrl-C may have come before it was started
        planner.join(LEFT)
    for pool in pools:
        pool.end(seconds=LEFT / len(pools))
