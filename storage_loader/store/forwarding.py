"""The base of stores around stores: what one of them does not change goes to the store within."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from typing_extensions import Buffer, Self

from ..ranges import Range
from .base import WHOLE, Buffers, ObjectInfo, Store


class ForwardingStore(Store):
    """`inner`. A subclass overrides the verbs that it changes, and no more.

    `get_many`, `get_some`, `find`, `find_all`, `find_some` and `find_and_list` are not forwarded:
    they would pass by what the subclass does to `get` and `get_ranges`. One that is to keep their
    speed overrides them.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.url = inner.url
        self.is_local = inner.is_local
        self.ends_puts = inner.ends_puts

    @property
    def origin(self) -> str:
        return self._inner.origin

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._inner.get(key, limit=limit)

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        return self._inner.get_ranges(key, ranges)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        return self._inner.stream(key, start, end)

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        self._inner.put(key, data, create=create)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._inner.list_folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._inner.delete(keys)

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list_unfinished(prefix)

    def delete_unfinished(self, keys: Iterable[str]) -> None:
        self._inner.delete_unfinished(keys)

    def now(self, probe: str) -> datetime:
        return self._inner.now(probe)

    def prepare(self) -> None:
        self._inner.prepare()

    def absence(self) -> str:
        return self._inner.absence()

    def note_retry(self, key: str) -> None:
        self._inner.note_retry(key)

    def until(self, stop: threading.Event) -> Self:
        return self._around(self._inner.until(stop))

    def noting(self, note: Callable[[], None]) -> Self:
        return self._around(self._inner.noting(note))

    def _around(self, inner: Store) -> Self:
        """The same around another store."""
        other = copy.copy(self)
        other._inner = inner
        return other
