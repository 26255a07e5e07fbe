"""Loading from S3: a first epoch with an empty cache, the first batch of it, and random rows.

First epoch: `DataLoader(batch_size=64, shuffle=True)` with a new cache folder each time, from its
construction to the last batch, against plain concurrent GETs (`.bytes()`, 1 to 8 threads) of the
same objects by the same client, both with memory at hand (pages.py). First batch: the same until
its first batch, less the time of a listing, one commit and one object. By index:
`DataLoader(shuffle="global", index=True)`, nothing kept, against one range GET a row in a pool of
16 to 64 threads, which never waits for a batch.
Every run is checked to have given every row.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import obstore

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver
from storage_loader.catalog import Snapshot

from .data import IMAGES, TILES, batch, make_rows
from .pages import at_hand
from .runner import Row, Side, Spread, compare
from .setting import Benchmark, Bucket, Setting

BATCH = 64


def run(setting: Setting) -> Sequence[Row]:
    with setting.bucket() as bucket:
        tiles = saved(bucket, "tiles", TILES, setting.pick(8192, 2048))
        images = saved(bucket, "images", IMAGES, setting.pick(7168, 1024))
        return [
            _first_epoch(setting, bucket, tiles, "48 KiB float32 rows"),
            _first_epoch(setting, bucket, images, "150 KB uint8 rows"),
            _first_batch(setting, bucket, tiles),
            _by_index(setting, bucket, tiles),
        ]


def saved(
    bucket: Bucket, name: str, attributes: tuple[Attribute, ...], num_rows: int
) -> DataConfig:
    config = DataConfig(name, attributes, **bucket.settings)
    rows = make_rows(attributes, num_rows)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, 256):
            saver(batch(rows, start, start + 256))
    return config


def _first_epoch(setting: Setting, bucket: Bucket, config: DataConfig, words: str) -> Row:
    measure = f"first epoch from S3, cold, shuffled, {words}"
    return first_epoch(setting, bucket, config, measure, (1, 2, 3, 4, 6, 8), at_least=1.0)


def first_epoch(
    setting: Setting,
    bucket: Bucket,
    config: DataConfig,
    measure: str,
    threads: Sequence[int],
    *,
    at_least: float,
) -> Row:
    """An epoch with an empty cache against GETs of all objects by the best number of `threads`."""
    snapshot = DataLoader(config).open()
    cache = setting.folder()
    memory = partial(at_hand, setting.scratch, 2 * snapshot.nbytes)

    def load() -> None:
        loader = DataLoader(
            config, batch_size=BATCH, shuffle=True, cache_dir=cache, extras=("row",)
        )
        check_rows((loaded["row"] for loaded in loader), snapshot.num_rows)

    return compare(
        measure,
        Side("DataLoader", load, memory, lambda: shutil.rmtree(cache)),
        [replace(_get_all(bucket, snapshot, count), before=memory) for count in threads],
        amount=snapshot.num_rows,
        unit="rows/s",
        effort=setting.effort,
        at_least=at_least,
    )


def _get_all(bucket: Bucket, snapshot: Snapshot, threads: int) -> Side:
    """Plain GETs of all objects."""
    keys = [snapshot.key(i) for i in range(len(snapshot.objects))]

    def get(key: str) -> None:
        obstore.get(bucket.client, key).bytes()

    def work() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(get, keys))

    return Side(f"GETs, {threads} threads", work)


def _first_batch(setting: Setting, bucket: Bucket, config: DataConfig) -> Row:
    prefix = config.dataset_prefix
    first_object = DataLoader(config).open().key(0)

    def ours() -> float:
        cache = setting.folder()
        start = time.perf_counter()
        batches = iter(DataLoader(config, batch_size=BATCH, shuffle=True, cache_dir=cache))
        next(batches)
        seconds = time.perf_counter() - start
        batches.close()  # type: ignore[attr-defined]
        shutil.rmtree(cache)
        return seconds

    def plain() -> float:
        start = time.perf_counter()
        [page] = obstore.list(bucket.client, f"{prefix}/metadata", chunk_size=1000)
        obstore.get(bucket.client, page[0]["path"]).bytes()
        obstore.get(bucket.client, first_object).bytes()
        return time.perf_counter() - start

    ours()
    rounds = setting.effort.rounds
    pairs = [(ours(), plain()) for _ in range(rounds)]
    return Row(
        "first batch from S3, cold, more than a listing, one commit and one object take",
        "ms",
        Spread.of([(a - b) * 1e3 for a, b in pairs]),
        rounds=rounds,
        at_most=50,
        note=f"it takes {np.median([a for a, _ in pairs]) * 1e3:.0f} ms, "
        f"those {np.median([b for _, b in pairs]) * 1e3:.0f}",
    )


def _by_index(setting: Setting, bucket: Bucket, config: DataConfig) -> Row:
    num_batches = setting.pick(128, 16)  # an epoch's
    loader = DataLoader(config, batch_size=BATCH, shuffle="global", index=True)
    snapshot = loader.open()
    rng = np.random.default_rng(0)

    def plain(threads: int) -> Side:
        def get(row: int) -> None:
            index = int(np.searchsorted(snapshot.starts, row, "right")) - 1
            column = snapshot.objects[index].layout.columns["tile"]
            start = column.offset + (row - int(snapshot.starts[index])) * column.item_nbytes
            obstore.get_range(
                bucket.client, snapshot.key(index), start=start, length=column.item_nbytes
            )

        def work() -> None:
            rows = rng.integers(0, snapshot.num_rows, num_batches * BATCH).tolist()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(get, rows))

        return Side(f"range GETs, {threads} threads", work)

    return compare(
        "random batches of 64 by index from S3, 48 KiB rows",
        Side("DataLoader", lambda: index_epoch(loader, num_batches)),
        [plain(threads) for threads in (8, 16, 32, 64)],
        amount=num_batches * BATCH,
        unit="rows/s",
        effort=setting.effort,
        at_least=0.9,
    )


def index_epoch(loader: DataLoader, num_batches: int) -> None:
    """Some random batches of an epoch, each of other rows."""
    seen = [loaded["number"] for loaded in itertools.islice(loader, num_batches)]
    assert len(np.unique(np.concatenate(seen))) == num_batches * BATCH


def check_rows(batches: Iterable[np.ndarray], num_rows: int) -> None:
    """Every row once."""
    rows = np.concatenate(list(batches))
    assert len(rows) == num_rows
    assert (np.bincount(rows, minlength=num_rows) == 1).all()


BENCHMARK = Benchmark("Loading from S3", run)
