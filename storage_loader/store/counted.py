"""A store around a store that counts what is asked of it and what comes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from typing_extensions import Buffer

from ..ranges import Range
from .base import WHOLE, Buffers, Errors, Infos, ObjectInfo, Store
from .forwarding import ForwardingStore


@dataclass(frozen=True)
class Traffic:
    """Totals of a store's verbs."""

    requests: int = 0  # a range is one, however often it is tried
    nbytes: int = 0  # received
    retries: int = 0  # times that something failed, or came damaged, and was asked for again

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.requests + other.requests,
            self.nbytes + other.nbytes,
            self.retries + other.retries,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return self + Traffic(-other.requests, -other.nbytes, -other.retries)


class Counter:
    """Adds up traffic. Thread-safe."""

    def __init__(self) -> None:
        self._total = Traffic()
        self._lock = threading.Lock()

    @property
    def total(self) -> Traffic:
        """What was added so far."""
        return self._total

    def add(self, *, requests: int = 0, nbytes: int = 0, retries: int = 0) -> None:
        """Called once a request, not once a row."""
        with self._lock:
            self._total += Traffic(requests, nbytes, retries)


class CountedStore(ForwardingStore):
    """`inner`, with every request and every byte received added to `counter`."""

    def __init__(self, inner: Store, counter: Counter) -> None:
        super().__init__(inner.noting(lambda: counter.add(retries=1)))
        self._counter = counter

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        self._counter.add(requests=1)
        return self._received([self._inner.get(key, limit=limit)])[0]

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        self._counter.add(requests=_count(ranges))
        return self._received(self._inner.get_ranges(key, ranges))

    def get_many(self, requests: Sequence[tuple[str, Sequence[Range]]]) -> Sequence[Buffers]:
        self._counter.add(requests=sum(_count(ranges) for _, ranges in requests))
        received = self._inner.get_many(requests)
        self._received([buffer for buffers in received for buffer in buffers])
        return received

    def find_all(self, keys: Sequence[str], *, limit: int = WHOLE) -> list[memoryview | None]:
        self._counter.add(requests=len(keys))
        found = self._inner.find_all(keys, limit=limit)
        self._received([data for data in found if data is not None])
        return found

    def find_some(
        self, keys: Sequence[str], found: dict[int, memoryview | None], *, limit: int = WHOLE
    ) -> Errors:
        before = set(found)
        errors = self._inner.find_some(keys, found, limit=limit)
        new = [data for place, data in found.items() if place not in before]
        self._counter.add(requests=len(new) + len(errors))
        self._received([data for data in new if data is not None])
        return errors

    def get_some(
        self, requests: Sequence[tuple[str, Sequence[Range]]], received: dict[int, Buffers]
    ) -> Errors:
        before = set(received)
        errors = self._inner.get_some(requests, received)
        new = [place for place in received if place not in before]
        self._counter.add(requests=sum(_count(requests[place][1]) for place in new) + len(errors))
        self._received([buffer for place in new for buffer in received[place]])
        return errors

    def find_and_list(
        self, key: str, prefix: str, *, limit: int = WHOLE
    ) -> tuple[memoryview | None, Infos]:
        self._counter.add(requests=2)
        data, infos = self._inner.find_and_list(key, prefix, limit=limit)
        if data is not None:
            self._received([data])
        return data, infos

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        self._counter.add(requests=1)
        for piece in self._inner.stream(key, start, end):
            self._counter.add(nbytes=memoryview(piece).nbytes)
            yield piece

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        self._counter.add(requests=1)
        self._inner.put(key, data, create=create)

    def head(self, key: str) -> ObjectInfo:
        self._counter.add(requests=1)
        return self._inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._counter.add(requests=1)
        return self._inner.list(prefix)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        self._counter.add(requests=1)
        return self._inner.list_folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._counter.add(requests=1)
        self._inner.delete(keys)

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._counter.add(requests=1)
        return self._inner.list_unfinished(prefix)

    def delete_unfinished(self, keys: Iterable[str]) -> None:
        self._counter.add(requests=1)
        self._inner.delete_unfinished(keys)

    def now(self, probe: str) -> datetime:
        self._counter.add(requests=1)
        return self._inner.now(probe)

    def note_retry(self, key: str) -> None:
        self._counter.add(retries=1)
        self._inner.note_retry(key)

    def _received(self, buffers: Buffers) -> Buffers:
        self._counter.add(nbytes=sum(buffer.nbytes for buffer in buffers))
        return buffers


def _count(ranges: Sequence[Range]) -> int:
    """Ranges that are asked for: an empty one is not."""
    return sum(end > start for start, end in ranges)
