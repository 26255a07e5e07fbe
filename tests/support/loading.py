"""A process of its own that loads through a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import storage_loader.catalog.catalog as catalog
from storage_loader import DataConfig, DataLoader
from storage_loader.store import open_store
from tests.support.caches import LARGE
from tests.support.faulty import WatchedStore
from tests.support.own_process import FRESH
from tests.support.rows import numbers_in

Result = tuple[list[int], list[tuple[str, int, int]]]


class Loading:
    """A process that reads all rows through a cache, once `begin` is called.

    With `hold` it says "holding" amid its first download, and goes on at the next `begin`.
    """

    def __init__(self, the_config: DataConfig, cache_dir: Path, **how: Any) -> None:
        self._pipe, there = FRESH.Pipe()
        self._process = FRESH.Process(target=_load, args=(there, the_config, cache_dir, how))
        self._process.start()
        there.close()  # else its end is not seen

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_for(self, word: str) -> None:
        assert self._pipe.poll(500)
        assert self._pipe.recv() == word

    def begin(self) -> None:
        self._pipe.send("begin")

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def result(self) -> Result:
        """Rows in the order they came, and byte ranges of objects that were asked for."""
        assert self._pipe.poll(500)
        found: Result = self._pipe.recv()
        self._process.join(500)
        assert self._process.exitcode == 0
        return found


@contextmanager
def loading(*all_of_them: Loading) -> Iterator[None]:
    """None is left, whatever happens."""
    try:
        for one in all_of_them:
            one.wait_for("ready")
        yield
    finally:
        for one in all_of_them:
            one.kill()


def _load(pipe: Connection, config: DataConfig, cache_dir: Path, how: dict[str, Any]) -> None:
    opened: list[WatchedStore] = []

    class Store(WatchedStore):
        def stream(self, key: str, start: int, end: int) -> Iterator[Any]:
            for i, piece in enumerate(super().stream(key, start, end)):
                if i == 1 and key == loader.open().key(0) and how.pop("hold", False):
                    pipe.send("holding")
                    pipe.recv()
                yield piece

    def open_watched(config: DataConfig) -> Store:
        opened.append(Store(open_store(config), local=False))
        return opened[-1]

    catalog.open_store = open_watched
    settings = {name: value for name, value in how.items() if name != "hold"}
    loader = DataLoader(config, batch_size=16, cache_dir=cache_dir, **settings)
    loader.open()
    pipe.send("ready")
    pipe.recv()
    numbers = numbers_in(loader, LARGE)
    calls = [(c.key, *r) for s in opened for c in s.calls if "/objects/" in c.key for r in c.ranges]
    pipe.send((numbers, calls))
