"""A process of its own that loads through a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage_loader import DataConfig
from tests.support import ROOT

LOAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import storage_loader.catalog.catalog as catalog
from tests.support.faulty import WatchedStore
from tests.support.rows import numbers_in
from tests.support.caches import LARGE
from storage_loader import DataConfig, DataLoader
from storage_loader.store import open_store

class Store(WatchedStore):
    def stream(self, key, start, end):
        for i, piece in enumerate(super().stream(key, start, end)):
            if i == 1 and key == loader.open().key(0) and how.pop("hold", False):
                print("holding", flush=True)
                sys.stdin.readline()
            yield piece

opened = []
def open_watched(config):
    opened.append(Store(open_store(config), local=False))
    return opened[-1]

catalog.open_store = open_watched
config, cache_dir, how = DataConfig.from_json(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
settings = {k: v for k, v in how.items() if k != "hold"}
loader = DataLoader(config, batch_size=16, cache_dir=cache_dir, **settings)
loader.open()
print("ready", flush=True)
sys.stdin.readline()
numbers = numbers_in(loader, LARGE)
calls = [(c.key, *r) for s in opened for c in s.calls if "/objects/" in c.key for r in c.ranges]
print(json.dumps([numbers, calls]))
"""

Result = tuple[list[int], list[tuple[str, int, int]]]


class Loading:
    """A process that reads all rows through a cache, once `begin` is called."""

    def __init__(self, the_config: DataConfig, cache_dir: Path, **how: Any) -> None:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": the_config.access_key or "",
            "AWS_SECRET_ACCESS_KEY": the_config.secret_key or "",
        }  # which are in no JSON
        self._process = subprocess.Popen(
            [sys.executable, "-c", LOAD, str(ROOT), the_config.to_json(),
             str(cache_dir), json.dumps(how)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, line: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{line}\n"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def result(self) -> Result:
        """Rows in the order they came, and byte ranges of objects that were asked for."""
        output, _ = self._process.communicate(timeout=500)
        assert self._process.returncode == 0
        numbers, calls = json.loads(output)
        return numbers, [tuple(call) for call in calls]


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
