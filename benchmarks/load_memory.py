"""Memory of loading: the peak of a process's own memory, for little data and for much.

A fresh process loads one epoch of 150 KB rows from S3 in windows, once through a cache folder and
once with `cache_size=0`, where the window in use and the next one pass through memory. Counted is
anonymous memory (RssAnon, sampled), less what it was after a first batch of another dataset: the
pages of cache files are the kernel's, and it may drop them. The bound is what the loader promises:
`prefetch`, two batches, and a window where nothing is cached.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from storage_loader import DataConfig, DataLoader, DataSaver
from storage_loader.loader.order import make_order

from .data import IMAGES, batch, make_rows
from .process import in_process, resident
from .runner import Row, Spread
from .setting import Benchmark, Bucket, Server, Setting

BATCH = 64
PREFETCH = 256 * 2**20
INTERVAL = 0.002  # s between samples
STEP = 256  # rows saved at once


def run(setting: Setting) -> Sequence[Row]:
    rows = []
    for amount in (0.2e9, setting.pick(int(4e9), int(0.4e9))):
        with setting.bucket() as bucket:
            for name, size in (("first", 4 * STEP * 150_528), ("measured", int(amount))):
                _save(bucket, name, size)
            for cache_size, words in ((None, "a cache"), (0, "cache_size=0")):
                folder = str(setting.folder())
                growth = in_process(_load, bucket.server, bucket.name, folder, cache_size)
                bound = PREFETCH + 2 * BATCH * 150_528
                if cache_size == 0:
                    bound += _window_nbytes(int(amount))
                rows.append(
                    Row(
                        f"own memory of loading {amount / 1e9:g} GB, {words}",
                        "MB",
                        Spread.of([growth / 1e6]),
                        at_most=bound / 1e6,
                    )
                )
    return rows


def _save(bucket: Bucket, name: str, amount: int) -> None:
    rows = make_rows(IMAGES, STEP)
    with DataSaver(DataConfig(name, IMAGES, **bucket.settings)) as saver:
        for _ in range(max(1, amount // (STEP * 150_528))):
            saver(batch(rows, 0, STEP))


def _window_nbytes(amount: int) -> int:
    """Bytes of the longest window."""
    num_rows = max(1, amount // (STEP * 150_528)) * STEP
    order = make_order(True, num_rows=num_rows, row_nbytes=150_528, seed=0)
    end = order.window_end(0)
    assert end is not None
    return end * 150_528


def _load(server: Server, name: str, cache_dir: str, cache_size: int | None) -> int:
    bucket = Bucket(server, name)

    def loader(dataset: str) -> DataLoader:
        return DataLoader(
            DataConfig(dataset, **bucket.settings),
            batch_size=BATCH,
            shuffle=True,
            prefetch=PREFETCH,
            cache_dir=cache_dir,
            cache_size=cache_size,
        )

    for _ in loader("first"):
        break
    before = resident("RssAnon")
    with _peak() as peak:
        for _ in loader("measured"):
            pass
    return max(peak) - before


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Anonymous memory of this process, sampled by a thread."""
    found = [resident("RssAnon")]
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(INTERVAL):
            found.append(max(found.pop(), resident("RssAnon")))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        ended.set()
        sampler.join()


BENCHMARK = Benchmark("Memory of loading", run)
