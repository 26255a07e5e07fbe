"""A store whose objects are as old as a test says, whatever kind of place they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from storage_loader.config import DataConfig
from storage_loader.store import ObjectInfo, Store, open_store
from tests.support.faulty import WatchedStore

Ages = dict[str, timedelta]  # by key; a key that is not there has its own age


class AgedStore(WatchedStore):
    """A `WatchedStore` that makes objects older."""

    def __init__(self, inner: Store, ages: Ages, **settings: Any) -> None:
        super().__init__(inner, **settings)
        self._ages = ages

    def _older(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified=info.modified - self._ages.get(info.key, timedelta()))

    def head(self, key: str) -> ObjectInfo:
        return self._older(super().head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._older, super().list(prefix))

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._older, super().list_unfinished(prefix))


def age(monkeypatch: pytest.MonkeyPatch, ages: Ages, **settings: Any) -> list[AgedStore]:
    """Put an `AgedStore` before every store opened from now on; the list fills with them."""
    opened: list[AgedStore] = []

    def aged(config: DataConfig) -> Store:
        opened.append(AgedStore(open_store(config), ages, **settings))
        return opened[-1]

    monkeypatch.setattr("storage_loader.catalog.catalog.open_store", aged)
    return opened
