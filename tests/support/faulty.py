"""A store around a store: it writes down what is asked of it, and breaks or waits as told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from storage_loader.config import DataConfig
from storage_loader.errors import StoreError
from storage_loader.store import ObjectInfo, Store, open_store
from storage_loader.store.base import WHOLE

Range = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """One verb on one key."""

    verb: str
    key: str
    ranges: tuple[Range, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes asked for by ranges."""
        return sum(end - start for start, end in self.ranges)

    @property
    def kind(self) -> str:
        """`put object`, `put claim`, `get commit`, `list metadata` and so on, or the verb alone."""
        if self.key.endswith((".claim", ".lease")):
            return f"{self.verb} {self.key[-5:]}"
        if "/objects/" in self.key:
            return f"{self.verb} object"
        if "/metadata/" in self.key:
            return f"{self.verb} commit"
        if self.key.endswith("/metadata"):
            return f"{self.verb} metadata"
        return f"{self.verb} dataset" if self.key.endswith("/dataset.json") else self.verb


Hook = Callable[[Call], None]


class WatchedStore(Store):
    """`before` and `after` see each call, and may wait or raise; `calls` holds all of them.

    `local=False` makes a local store look like one on a network, so that a cache is put before it.
    """

    def __init__(
        self,
        inner: Store,
        *,
        before: Hook | None = None,
        after: Hook | None = None,
        local: bool | None = None,
    ) -> None:
        self.inner = inner
        self.url = inner.url
        self.is_local = inner.is_local if local is None else local  # type: ignore[misc]
        self.before = before or (lambda call: None)
        self.after = after or (lambda call: None)
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    @property
    def origin(self) -> str:
        return self.inner.origin

    def kinds(self, start: str = "") -> list[str]:
        """The kinds of all calls that begin with `start`, in order."""
        with self._lock:
            return [call.kind for call in self.calls if call.kind.startswith(start)]

    def _watched(self, call: Call, work: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls.append(call)
        self.before(call)
        result = work()
        self.after(call)
        return result

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._watched(Call("get", key), lambda: self.inner.get(key, limit=limit))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> list[memoryview]:
        call = Call("get_ranges", key, tuple(ranges))
        return self._watched(call, lambda: self.inner.get_ranges(key, ranges))

    def stream(self, key: str, start: int, end: int) -> Iterator[Any]:
        call = Call("stream", key, ((start, end),))
        return self._watched(call, lambda: self.inner.stream(key, start, end))

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        self._watched(Call("put", key), lambda: self.inner.put(key, data, create=create))

    def head(self, key: str) -> ObjectInfo:
        return self._watched(Call("head", key), lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._watched(Call("list", prefix), lambda: iter([*self.inner.list(prefix)]))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._watched(Call("list_folders", prefix), lambda: self.inner.list_folders(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._watched(Call("delete", key), lambda key=key: self.inner.delete([key]))

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        call = Call("list_unfinished", prefix)
        return self._watched(call, lambda: iter([*self.inner.list_unfinished(prefix)]))

    def delete_unfinished(self, keys: Iterable[str]) -> None:
        for key in keys:
            call = Call("delete_unfinished", key)
            self._watched(call, lambda key=key: self.inner.delete_unfinished([key]))

    def prepare(self) -> None:
        self._watched(Call("prepare", ""), self.inner.prepare)


def watch(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[WatchedStore]:
    """Put a `WatchedStore` before every store opened from now on; the list fills with them."""
    opened: list[WatchedStore] = []

    def watched(config: DataConfig) -> Store:
        opened.append(WatchedStore(open_store(config), **settings))
        return opened[-1]

    monkeypatch.setattr("storage_loader.catalog.catalog.open_store", watched)
    monkeypatch.setattr("storage_loader.catalog.listing.open_store", watched)
    return opened


class Injected(StoreError):
    """What a broken store raises here."""


class FailAt:
    """A hook that raises at the `nth` call (from 0) of a kind, with `onwards` at later ones too."""

    def __init__(self, kind: str, nth: int = 0, *, onwards: bool = False) -> None:
        self._kind = kind
        self._nth = nth
        self._onwards = onwards
        self._seen = 0
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        if call.kind != self._kind:
            return
        with self._lock:
            place, self._seen = self._seen, self._seen + 1
        if place == self._nth or (self._onwards and place > self._nth):
            raise Injected(f"{call.verb} {call.key}: the disk is on fire")


def fail_on(key: str) -> Hook:
    """A hook that raises at each call on this key, unless it lists."""

    def fail(call: Call) -> None:
        if call.verb != "list" and call.key == key:
            raise Injected(f"{call.key}: the disk is on fire")

    return fail
