"""A store around a store that asks again for what can succeed a moment later."""

from __future__ import annotations

import copy
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from typing_extensions import Buffer

from ..errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
)
from ..process import PerProcess
from ..ranges import Range
from ..threads import Threads
from .base import WHOLE, Buffers, Errors, Infos, ObjectInfo, Store, read_only
from .forwarding import ForwardingStore
from .guarded_http import SLOWEST
from .outage import Outage
from .s3_place import THREADS, ConflictError

T = TypeVar("T")
Results = list[T]  # in the class, `list` is the verb

_log = logging.getLogger(__name__)
_outages: weakref.WeakValueDictionary[tuple[int, str], Outage] = weakref.WeakValueDictionary()
_answered: set[str] = set()  # servers that answered this process, or the one it was forked from

FIRST_CONTACT = 3.0  # seconds: a typo in the endpoint is told soon
_SHORTEST = 0.1  # seconds of the first wait at most, then twice as long each time ...
_LONGEST = 5.0  # ... up to this: so long after an outage everything goes on
_DELETED_AT_ONCE = 10_000  # keys; ten requests
_REQUEST_TIME = 5.0  # seconds that an answer is worth: a server that gives one now and then ...
_KEY_TIME = 0.1  # ... or a key of a list, does not get on


def pause(
    error: StoreError, *, attempt: int, elapsed: float, patience: float, chance: float
) -> float | None:
    """Seconds to wait after a failed attempt (the first is 1) before the next; None: give up.

    `elapsed`: seconds since the operation began; the last attempt begins when they reach
    `patience`. `chance`: 0 to 1, random, so that many clients do not come back as one.
    """
    left = patience - elapsed
    if not error.is_transient or left <= 0:
        return None
    longest = min(_LONGEST, _SHORTEST * 2.0 ** min(attempt - 1, 30))
    return min(left, longest * (1 + chance) / 2)


class RetriedStore(ForwardingStore):
    """`inner`, asking again for what failed in a way that can pass; see docs/faults.md.

    An operation that gets on too slowly is tried for `deadline` seconds, with growing waits in
    between; until `server` has answered this process for the first time, whichever store asked,
    for at most 3 s. A final error
    names the number of attempts and the seconds; its cause is the last one. Of many requests at
    once only those that failed are made again. Waits are in the caller's own thread: Ctrl-C
    ends them, and so does the event given to `until`.
    """

    def __init__(self, inner: Store, deadline: float, server: str | None = None) -> None:
        """`server`: its name among those that stores ask; None: no other store asks it."""
        super().__init__(inner)
        self._deadline = deadline
        name = f"{inner.origin} {inner.url}"
        self._server = _Server(name, inner.url, name if server is None else server)
        self._stop: threading.Event | None = None
        self._notes: tuple[Callable[[], None], ...] = ()

    def until(self, stop: threading.Event) -> RetriedStore:
        other = copy.copy(self)
        other._stop = stop
        return other

    def noting(self, note: Callable[[], None]) -> RetriedStore:
        other = copy.copy(self)
        other._notes = (*self._notes, note)
        return other

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._asked(lambda: self._inner.get(key, limit=limit))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        return self._asked(_Ranges(self._inner, key, ranges))

    def get_many(self, requests: Sequence[tuple[str, Sequence[Range]]]) -> Sequence[Buffers]:
        calls = [_Ranges(self._inner, key, ranges) for key, ranges in requests]
        return self._all(calls, lambda received: self._inner.get_some(requests, received))

    def find_all(self, keys: Sequence[str], *, limit: int = WHOLE) -> list[memoryview | None]:
        calls = [partial(self._inner.find, key, limit=limit) for key in keys]
        return self._all(calls, lambda found: self._inner.find_some(keys, found, limit=limit))

    def find_and_list(
        self, key: str, prefix: str, *, limit: int = WHOLE
    ) -> tuple[memoryview | None, Infos]:
        finding = self._server.pool.submit(partial(self._inner.find, key, limit=limit))
        infos = [*self.list(prefix)]
        try:
            return finding.result(), infos
        except StoreError:  # asked again from here, where Ctrl-C ends the waits
            return self.find(key, limit=limit), infos

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        attempts = _Attempts(self)
        while start < end:
            received = 0
            try:
                for piece in self._inner.stream(key, start, end):
                    received += memoryview(piece).nbytes
                    yield piece
                attempts.succeeded()
                return
            except StoreError as error:
                start += received  # what is left is an operation of its own
                attempts.progressed(received / SLOWEST)
                if start < end and not attempts.again(error):
                    raise

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        attempts = _Attempts(self)
        may_have_arrived = False
        while True:
            try:
                self._inner.put(key, data, create=create)
            except ObjectExistsError:
                if not (may_have_arrived and self._holds(key, data)):
                    raise
            except StoreError as error:
                may_have_arrived |= not isinstance(error, ConflictError)
                if not attempts.again(error):
                    raise
                continue
            attempts.succeeded()
            return

    def _holds(self, key: str, data: Buffer) -> bool:
        """Whether an object that exists is the one whose put was not answered."""
        try:
            body = read_only(data)
            return self.get(key, limit=body.nbytes) == body
        except (ObjectNotFoundError, ObjectTooLargeError):  # deleted since, or another's
            return False

    def head(self, key: str) -> ObjectInfo:
        return self._asked(lambda: self._inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        attempts = _Attempts(self)
        seen: set[str] = set()
        while True:
            before = len(seen)
            try:
                for info in self._inner.list(prefix):
                    if info.key not in seen:
                        seen.add(info.key)
                        yield info
                attempts.succeeded()
                return
            except StoreError as error:
                attempts.progressed((len(seen) - before) * _KEY_TIME)
                if not attempts.again(error):
                    raise

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._asked(lambda: self._inner.list_folders(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        for start in range(0, len(wanted), _DELETED_AT_ONCE):
            some = wanted[start : start + _DELETED_AT_ONCE]
            self._asked(partial(self._inner.delete, some))

    def now(self, probe: str) -> datetime:
        return self._asked(lambda: self._inner.now(probe))

    def prepare(self) -> None:
        self._asked(self._inner.prepare)

    def _asked(self, call: Callable[[], T]) -> T:
        attempts = _Attempts(self)
        while True:
            try:
                result = call()
            except StoreError as error:  # noqa: PERF203  the loop is for this
                if not attempts.again(error):
                    raise
            else:
                attempts.succeeded()
                return result

    def _all(
        self,
        calls: Sequence[Callable[[], T]],
        first: Callable[[dict[int, T]], Errors] = lambda results: [],
    ) -> Results[T]:
        """The results of all calls, in threads: rounds of those that have none yet.

        `first` is asked before, for what it can give.
        """
        if len(calls) == 1:
            return [self._asked(calls[0])]
        attempts = _Attempts(self)
        results: dict[int, T] = {}
        errors = first(results)
        before = 0
        while True:
            try:
                if len(results) > before:
                    self._server.answered()
                    attempts.progressed((len(results) - before) * _REQUEST_TIME)
                if errors and not attempts.again(min(errors, key=lambda e: e.is_transient)):
                    raise min(errors, key=lambda e: e.is_transient)
            finally:
                errors.clear()  # they refer to this frame, and would refer to themselves
            if len(results) == len(calls):
                break
            todo = [place for place in range(len(calls)) if place not in results]
            before = len(results)
            errors = self._server.round(calls, todo, results)
        attempts.succeeded()
        return [results[place] for place in range(len(calls))]


class _Server:
    """What is known of the store, and the threads that ask it: shared by all views of it."""

    def __init__(self, name: str, url: str, server: str) -> None:
        self._server = server
        self._name = name  # the same for all that use this store
        self._url = url
        self._outage: PerProcess[Outage] = PerProcess()
        self._threads: PerProcess[Threads] = PerProcess()

    @property
    def has_answered(self) -> bool:
        """Whether it answered any store of this process: its address is no typo."""
        return self._server in _answered

    def answered(self) -> None:
        """Note that it did."""
        _answered.add(self._server)

    def round(
        self, calls: Sequence[Callable[[], T]], todo: Sequence[int], results: dict[int, T]
    ) -> list[StoreError]:
        """Make the calls `todo`, many at once; after the first failure no more begin."""
        errors: list[StoreError] = []

        def make(place: int) -> None:
            if errors:
                return
            try:
                results[place] = calls[place]()
            except StoreError as error:
                errors.append(error)

        for _ in self.pool.map(make, todo):
            pass
        return errors

    @property
    def outage(self) -> Outage:
        """What this process says of the store's failures."""
        return self._outage.get(
            lambda: _outages.setdefault(
                (os.getpid(), self._name), Outage(self._url, _log, time.monotonic)
            )
        )

    @property
    def pool(self) -> Threads:
        """This process's threads for requests."""
        return self._threads.get(lambda: Threads(THREADS, "storage_loader-s3"))


class _Ranges:
    """`get_ranges` of one object; called again, it asks range by range for what did not come."""

    def __init__(self, store: Store, key: str, ranges: Sequence[Range]) -> None:
        self._store = store
        self._key = key
        self._ranges = ranges
        self._received: dict[int, memoryview] | None = None

    def __call__(self) -> Buffers:
        if self._received is None:
            self._received = {}
            return self._store.get_ranges(self._key, self._ranges)
        for place, wanted in enumerate(self._ranges):
            if place not in self._received:
                [self._received[place]] = self._store.get_ranges(self._key, [wanted])
        return [self._received[place] for place in range(len(self._ranges))]


class _Attempts:
    """The attempts of one operation, since it began or got on."""

    def __init__(self, store: RetriedStore) -> None:
        self._store = store
        self._count = 0
        self._began = self._attempted = time.monotonic()

    def succeeded(self) -> None:
        """The operation has all that it wanted."""
        self._store._server.answered()
        self._store._server.outage.succeeds(self)

    def progressed(self, seconds: float) -> None:
        """What came was worth so many: if the attempt took no longer, what is left has all the
        time again.
        """
        now = time.monotonic()
        if 0 < seconds >= now - self._attempted:
            self._count = 0
            self._began = now

    def again(self, error: StoreError) -> bool:
        """Note a failed attempt; True, after a wait, where another one is due.

        False: this error is final. It is raised from here, with what was done about it, where
        there was more than one attempt.
        """
        store, stop = self._store, self._store._stop
        self._count += 1
        elapsed = time.monotonic() - self._began
        silent = isinstance(error, (StoreConnectionError, StoreTimeoutError))
        if not silent:
            store._server.answered()
        patience = store._deadline
        if not store._server.has_answered:
            patience = min(patience, FIRST_CONTACT)
        seconds = pause(
            error,
            attempt=self._count,
            elapsed=elapsed,
            patience=patience,
            chance=random.random(),
        )
        if seconds is not None and (stop is None or not stop.is_set()):
            store._server.outage.fails(self, error, elapsed, store._deadline)
            _log.info(
                "%s; attempt %d failed after %.1f s, the next one follows in %.1f s",
                error,
                self._count,
                elapsed,
                seconds,
            )
            if stop is None:
                time.sleep(seconds)
            elif stop.wait(seconds):
                return False
            for note in store._notes:
                note()
            self._attempted = time.monotonic()
            return True
        store._server.outage.gives_up(self)
        if self._count == 1:
            return False
        raise type(error)(
            f"{error}; gave up after {self._count} attempts in {elapsed:.1f} s"
        ) from error.with_traceback(None)  # frames of ours, which say nothing
