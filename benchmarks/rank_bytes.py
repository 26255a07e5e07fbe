"""Bytes that each of W ranks fetches in a first epoch, each with an empty cache of its own.

A rank that read only its own rows would fetch 1/W of the dataset; the figure is the most that any
rank fetched, as a multiple of that. The dataset holds several windows. Each batch is checked: the
rows that it names are the rows that it holds, and over all ranks each row comes exactly once.

Some figures have no target, for reasons that no loader of this format can change: with
shuffle=False a rank reads a piece of each global batch, and blocks of 64 KiB at both its ends
beyond it, so that batches under 256 KiB cost up to 1.4; with shuffle=True a world_size that
does not divide 24 takes its rows from more lanes of a window than its share of them, and where
blocks of 64 KiB hold many rows fetches those lanes whole.

The store is a folder that says it is not local, so that the loader caches it like a network
store, behind a store that counts the bytes of objects.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from typing_extensions import Buffer

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver
from storage_loader.layout import BLOCK_NBYTES
from storage_loader.ranges import Range
from storage_loader.store import Store, open_store
from storage_loader.store.base import WHOLE, Buffers
from storage_loader.store.forwarding import ForwardingStore

from .data import TILES
from .runner import Row, Spread
from .setting import Benchmark, Setting

RECORDS = (Attribute("record", "float32", (750,)), Attribute("number", "int64"))  # 3,008 bytes
CASES = ((TILES, 64), (RECORDS, 256), (RECORDS, 64))  # attributes, rows of a batch
BOUND = 1.3
LEAST_BATCH_NBYTES = 4 * BLOCK_NBYTES  # of a rank's batch, for the bound under shuffle=False
BOUND_WORLDS = (1, 2, 4, 8)
OTHER_WORLDS = (3, 5, 6, 16)  # for information
SAVE_NBYTES = 16 * 2**20


def run(setting: Setting) -> Sequence[Row]:
    nbytes = setting.pick(2**30, 2**26)
    result = []
    for attributes in (TILES, RECORDS):
        folder = setting.folder()
        config = DataConfig("bench", attributes, storage=folder)
        row_nbytes = sum(a.row_nbytes for a in attributes)
        num_rows = nbytes // row_nbytes
        _save(config, num_rows, row_nbytes)
        for batch_size in (size for kind, size in CASES if kind is attributes):
            for shuffle in (True, False):
                for world in sorted((*BOUND_WORLDS, *OTHER_WORLDS)):
                    done = _epoch(setting.folder(), config, num_rows, world, batch_size, shuffle)
                    what = f"shuffle={shuffle}, {row_nbytes:,} B rows, batches of {batch_size}"
                    bound = BOUND if world in BOUND_WORLDS else None
                    if not shuffle and world > 1 and batch_size * row_nbytes < LEAST_BATCH_NBYTES:
                        bound = None
                    result.append(_row(what, done, num_rows * row_nbytes, bound))
        shutil.rmtree(folder)
    return result


@dataclass
class Count:
    """What was asked of a store's objects."""

    nbytes: int = 0
    requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: str, nbytes: int, requests: int = 1) -> None:
        if "/objects/" in key:
            with self._lock:
                self.nbytes += nbytes
                self.requests += requests


class CountingStore(ForwardingStore):
    """Counts the bytes of objects that it hands out; looks like a store on a network."""

    def __init__(self, inner: Store, count: Count) -> None:
        super().__init__(inner)
        self.is_local = False
        self.count = count

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        data = self._inner.get(key, limit=limit)
        self.count.add(key, data.nbytes)
        return data

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        self.count.add(key, sum(end - start for start, end in ranges), len(ranges))
        return self._inner.get_ranges(key, ranges)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        self.count.add(key, end - start)
        return self._inner.stream(key, start, end)


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count what loaders opened in this `with` read of objects."""
    count = Count()

    def open_counting(config: DataConfig) -> Store:
        return CountingStore(open_store(config), count)

    with mock.patch("storage_loader.catalog.catalog.open_store", open_counting):
        yield count


def _save(config: DataConfig, num_rows: int, row_nbytes: int) -> None:
    """Rows that carry their numbers: in `number`, and in all values of the other attribute."""
    assert config.attributes is not None
    data, _ = config.attributes
    step = max(1, SAVE_NBYTES // row_nbytes)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, step):
            numbers = np.arange(start, min(num_rows, start + step))
            values = np.empty((len(numbers), *data.shape), data.numpy_dtype)
            values[:] = numbers.reshape(-1, *(1 for _ in data.shape))  # below 2**24: exact
            saver({data.name: values, "number": numbers})


def _epoch(
    folder: Path, config: DataConfig, num_rows: int, world: int, batch_size: int, shuffle: bool
) -> list[Count]:
    """What each rank fetched in the first epoch."""
    counts = []
    seen = np.zeros(num_rows, np.int64)
    for rank in range(world):
        cache = folder / str(rank)
        with counted() as count:
            loader = DataLoader(
                config,
                batch_size=batch_size,
                shuffle=shuffle,
                rank=rank,
                world_size=world,
                cache_dir=cache,
                extras=("row", "valid"),
            )
            for batch in loader:
                _check(batch)
                np.add.at(seen, batch["row"][batch["valid"]], 1)
        counts.append(count)
        shutil.rmtree(cache)
    assert (seen == 1).all(), "not each row exactly once"
    return counts


def _check(batch: dict[str, Any]) -> None:
    data = next(iter(batch.values())).reshape(len(batch["row"]), -1)
    assert (batch["number"] == batch["row"]).all()
    assert (data[:, 0] == batch["row"]).all()
    assert (data[:, -1] == batch["row"]).all()


def _row(what: str, counts: list[Count], nbytes: int, bound: float | None) -> Row:
    world = len(counts)
    most = max(count.nbytes for count in counts) * world / nbytes
    total = sum(count.nbytes for count in counts)
    requests = sum(count.requests for count in counts)
    return Row(
        f"bytes fetched, {world} ranks, {what}",
        "of dataset / ranks",
        Spread.of([most]),
        at_most=bound,
        note=f"all ranks {total / nbytes:.3f} of the dataset, {total / requests / 1e6:.2g} MB "
        "a request",
    )


BENCHMARK = Benchmark("Bytes that each rank fetches in a first epoch", run)
