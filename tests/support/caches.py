"""Datasets whose loading shows what a cache does, and what lies in the cache."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Attribute, DataConfig, DataLoader
from storage_loader.store import Store, open_store
from storage_loader.store.base import WHOLE
from storage_loader.store.forwarding import ForwardingStore
from tests.support.faulty import WatchedStore
from tests.support.rows import ROW, config, numbers_in, save_rows

LARGE = (Attribute("pixels", "uint8", (9000,)), Attribute(ROW, "int64"))  # 7 rows a block

ROWS = 400


def fill(
    storage: dict[str, Any], rows: int = ROWS, *, max_object_size: int = 8 * 2**20, **how: Any
) -> DataConfig:
    the_config = config(storage, attributes=LARGE, max_object_size=max_object_size, **how)
    return save_rows(the_config, rows, 200)


def cached_files(cache_dir: Path) -> list[Path]:
    return sorted(cache_dir.rglob("*.cached"))


def read(the_config: DataConfig, cache_dir: Path, rows: Sequence[int] | range, **how: Any) -> None:
    """Read these rows in order through the cache, and check each bit."""
    how = {"batch_size": 10, **how}
    loader = DataLoader(the_config, subset=list(rows), cache_dir=cache_dir, **how)
    found = numbers_in(loader, LARGE)
    assert (sorted(found) if how.get("shuffle") else found) == list(rows)


def ranges(opened: Sequence[WatchedStore]) -> list[tuple[str, int, int]]:
    """All byte ranges of objects that were asked for."""
    calls = [call for store in opened for call in store.calls if "/objects/" in call.key]
    assert not [call for call in calls if call.verb == "get"]
    return [(call.key, start, end) for call in calls for start, end in call.ranges]


def assert_disjoint(fetched: Sequence[tuple[str, int, int]]) -> None:
    ordered = sorted(fetched)
    for (key, _, end), (next_key, start, _) in itertools.pairwise(ordered):
        assert key != next_key or end <= start, "fetched twice"


def table_of(the_config: DataConfig) -> tuple[int, int]:
    return DataLoader(the_config).open().objects[0].layout.directory_range


def pixels_of(the_config: DataConfig) -> tuple[int, int]:
    column = DataLoader(the_config).open().objects[0].layout.columns["pixels"]
    return column.offset, column.end


class Altered(ForwardingStore):
    """A store around a store that answers with other bytes, as `alter` makes them."""

    def __init__(self, inner: Store, alter: Callable[[str, int, bytearray], Any]) -> None:
        super().__init__(inner)
        self.is_local = False
        self._alter = alter

    def _altered(self, key: str, start: int, data: memoryview) -> memoryview:
        changed = bytearray(data)
        if "/objects/" in key:
            self._alter(key, start, changed)
        return memoryview(bytes(changed))

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._altered(key, 0, self._inner.get(key, limit=limit))

    def get_ranges(self, key: str, ranges: Any) -> list[memoryview]:
        found = self._inner.get_ranges(key, ranges)
        return [self._altered(key, r[0], data) for r, data in zip(ranges, found, strict=True)]

    def stream(self, key: str, start: int, end: int) -> Iterator[Any]:
        whole = self._altered(key, start, self._inner.get_ranges(key, [(start, end)])[0])
        for place in range(0, len(whole), 100_000):
            yield whole[place : place + 100_000]

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        raise AssertionError

    def delete(self, keys: Any) -> None:
        raise AssertionError


def alter(monkeypatch: pytest.MonkeyPatch, how: Callable[[str, int, bytearray], Any]) -> None:
    monkeypatch.setattr(
        "storage_loader.catalog.catalog.open_store", lambda c: Altered(open_store(c), how)
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that was logged at WARNING or above."""
    found = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert {r.name for r in found} <= {"storage_loader.loader.fetch.cache"}
    return [r.getMessage() for r in found]


def used(folder: Path) -> int:
    """Bytes of the disk that cache files take."""
    total = 0
    for path in cached_files(folder):
        with suppress(FileNotFoundError):  # evicted just now
            total += path.lstat().st_blocks * 512
    return total


@contextmanager
def never_above(monkeypatch: pytest.MonkeyPatch, folder: Path, limit: int) -> Iterator[list[int]]:
    """Look after each write of a cache file; the list fills with what was found."""
    found: list[int] = []
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        written = real(descriptor, data, offset)
        found.append(used(folder))
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        yield found
    found.append(used(folder))
    assert max(found) <= limit, f"{max(found):,} bytes"
