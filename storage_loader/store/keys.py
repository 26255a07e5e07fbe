"""The keys that a function gives: asked for again before they expire, and once they are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from typing import TypeVar

from typing_extensions import Buffer

from ..credentials import Credentials, Provider
from ..errors import ConfigError, PermissionDeniedError
from ..ranges import Range
from .base import WHOLE, Buffers, Errors, ObjectInfo, Store
from .forwarding import ForwardingStore
from .s3_place import S3Place

T = TypeVar("T")

_MARGIN = 60.0  # s before the end at which keys are asked for again ...
_MARGIN_SHARE = 1 / 4  # ... and at most this part of what they had when they came
_IN_VAIN = 3.0  # s in which keys that came again, though refused, are not asked for by others


class Keys:
    """The current keys of a provider. Thread-safe: of many that need new ones, one asks."""

    def __init__(self, place: S3Place, provider: Provider) -> None:
        self._place = place
        self._provider = provider
        self._held: tuple[Credentials, float] | None = None  # good until (POSIX time)
        self._in_vain = -_IN_VAIN  # when the keys held now came instead of the same ones
        self._asking = threading.Lock()

    def current(self) -> Credentials:
        """Keys that are good for a while yet; `PermissionDeniedError` where there are none."""
        held = self._held
        if held is None or datetime.now(timezone.utc).timestamp() >= held[1]:
            held = self._asked_instead_of(held)
        return held[0]

    def replaced(self, refused: Credentials) -> bool:
        """Whether there are other keys than those that the server refused, which `current` gave."""
        held = self._held
        if time.monotonic() - self._in_vain < _IN_VAIN:
            return held is not None and held[0] != refused
        if held is not None and held[0] is refused:  # nobody has asked since
            held = self._asked_instead_of(held)
            if held[0] == refused:
                self._in_vain = time.monotonic()
        return held is not None and held[0] != refused

    def shown(self) -> S3Place:
        """The place with the keys that no message may show."""
        if self._held is None:
            return self._place
        keys = self._held[0]
        return replace(
            self._place,
            access_key=keys.access_key,
            secret_key=keys.secret_key,
            session_token=keys.token,
        )

    def _asked_instead_of(self, old: tuple[Credentials, float] | None) -> tuple[Credentials, float]:
        with self._asking:
            if self._held is not None and self._held is not old:  # another thread has asked
                return self._held
            try:
                keys = self._provider()
            except Exception as error:
                raise PermissionDeniedError(
                    f"{self._place.url} at {self._place.server}: the function credentials= "
                    f"failed with {type(error).__name__}"
                ) from error
            if not isinstance(keys, Credentials):
                raise ConfigError(
                    f"the function credentials= gave {type(keys).__name__}; "
                    "return storage_loader.Credentials(access_key, secret_key, token, expires)"
                )
            self._held = keys, _renewal(keys)
            return self._held


def _renewal(keys: Credentials) -> float:
    """When new keys are to be asked for."""
    if keys.expires is None:
        return float("inf")
    end = keys.expires.timestamp()
    left = end - datetime.now(timezone.utc).timestamp()
    return end - min(_MARGIN, max(0.0, left) * _MARGIN_SHARE)


class RenewedStore(ForwardingStore):
    """`inner`, asked once more with new keys where the server refused the ones it had."""

    def __init__(self, inner: Store, keys: Keys) -> None:
        super().__init__(inner)
        self._keys = keys

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._asked(lambda: self._inner.get(key, limit=limit))

    def find_some(
        self, keys: Sequence[str], found: dict[int, memoryview | None], *, limit: int = WHOLE
    ) -> Errors:
        return self._some(partial(self._inner.find_some, keys, found, limit=limit))

    def get_some(
        self, requests: Sequence[tuple[str, Sequence[Range]]], received: dict[int, Buffers]
    ) -> Errors:
        return self._some(partial(self._inner.get_some, requests, received))

    def _some(self, call: Callable[[], Errors]) -> Errors:
        used = self._keys.current()
        errors = call()
        refused = any(isinstance(error, PermissionDeniedError) for error in errors)
        if refused and self._keys.replaced(used):
            errors.clear()
            errors = call()
        return errors

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        return self._asked(lambda: self._inner.get_ranges(key, ranges))

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        return self._iterated(lambda: self._inner.stream(key, start, end))

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        self._asked(lambda: self._inner.put(key, data, create=create))

    def head(self, key: str) -> ObjectInfo:
        return self._asked(lambda: self._inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._iterated(lambda: self._inner.list(prefix))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._asked(lambda: self._inner.list_folders(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        wanted = tuple(keys)
        self._asked(lambda: self._inner.delete(wanted))

    def now(self, probe: str) -> datetime:
        return self._asked(lambda: self._inner.now(probe))

    def prepare(self) -> None:
        self._asked(self._inner.prepare)

    def _asked(self, call: Callable[[], T]) -> T:
        used = self._keys.current()
        try:
            return call()
        except PermissionDeniedError:
            if not self._keys.replaced(used):
                raise
        return call()

    def _iterated(self, call: Callable[[], Iterator[T]]) -> Iterator[T]:
        """What has begun is not begun again."""
        items, first = self._asked(lambda: _begun(call()))
        yield from first
        yield from items


def _begun(items: Iterator[T]) -> tuple[Iterator[T], tuple[T, ...]]:
    for first in items:
        return items, (first,)
    return items, ()
