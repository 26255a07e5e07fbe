"""Peak memory of saving 2 GB: through a store that takes 50 ms for a PUT, and to S3.

Measured in a process of its own: the peak of its resident memory less what it held after a first
small save. The bound is (num_worker_threads + 2) * max_object_size. For information, the same of
nothing but four PUTs of 64 MiB at once by obstore: whether the client copies what it sends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any
from unittest import mock

import numpy as np
import obstore
from typing_extensions import Buffer

from storage_loader import DataConfig, DataSaver
from storage_loader.store import MemoryStore, ObjectInfo, Store

from .data import IMAGES, OBJECT_NBYTES, batch, make_rows, memory, nbytes
from .process import in_process, resident
from .runner import Row, Spread
from .setting import Benchmark, Bucket, Server, Setting

BATCH = 256
THREADS = 4
BOUND = (THREADS + 2) * OBJECT_NBYTES
PUT_SECONDS = 0.05


def run(setting: Setting) -> Sequence[Row]:
    amount = setting.pick(2 * 10**9, 10**9)
    slow = in_process(_save_slowly, amount)
    with setting.bucket() as bucket:
        s3 = in_process(_save_to_s3, bucket.server, bucket.name, amount)
        bucket.clear()
        client = in_process(_put, bucket.server, bucket.name)
    folder = in_process(_save_to_folder, str(setting.folder()), amount)
    words = f"peak memory of saving {amount / 1e9:g} GB"
    return [
        _row(f"{words}, 50 ms a PUT", slow, BOUND),
        _row(f"{words} to S3", s3, BOUND),
        _row(f"{words} to a folder", folder, BOUND),
        _row("peak memory of obstore alone, four PUTs of 64 MiB at once", client, None),
    ]


def _row(measure: str, growth: int, bound: int | None) -> Row:
    most = None if bound is None else bound / 1e6
    return Row(measure, "MB", Spread.of([growth / 1e6]), at_most=most)


class _Slow(MemoryStore):
    """Takes its time for an object and forgets all but its size, which a saver looks at."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._sizes: dict[str, int] = {}

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        if "/objects/" in key:
            time.sleep(PUT_SECONDS)
            self._sizes[key] = memoryview(data).nbytes
        else:
            super().put(key, data, create=create)

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, self._sizes[key], datetime.now(timezone.utc))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from super().list(prefix)
        yield from (self.head(key) for key in self._sizes if key.startswith(f"{prefix}/"))


def _save_slowly(amount: int) -> int:
    def open_slow(config: DataConfig) -> Store:
        return _Slow(config.storage)

    with mock.patch("storage_loader.catalog.catalog.open_store", open_slow):
        return _growth_of_saving({"storage": "memory://slow"}, amount)


def _save_to_s3(server: Server, bucket: str, amount: int) -> int:
    return _growth_of_saving(Bucket(server, bucket).settings, amount)


def _save_to_folder(folder: str, amount: int) -> int:
    return _growth_of_saving({"storage": folder}, amount)


def _growth_of_saving(settings: dict[str, Any], amount: int) -> int:
    rows = make_rows(IMAGES, BATCH)

    def save(name: str, batches: int, count: int) -> None:
        with DataSaver(DataConfig(name, IMAGES, **settings), num_worker_threads=THREADS) as saver:
            for _ in range(batches):
                saver(batch(rows, 0, count))

    save("first", 1, 1)
    before = resident("VmRSS")
    save("measured", -(-amount // nbytes(rows)), BATCH)
    return resident("VmHWM") - before


def _put(server: Server, name: str) -> int:
    bucket = Bucket(server, name)
    data = memory(np.ones(OBJECT_NBYTES, np.uint8))
    obstore.put(bucket.client, "first", data[:1])
    before = resident("VmRSS")
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda i: _put_one(bucket, i, data), range(THREADS)))
    return resident("VmHWM") - before


def _put_one(bucket: Bucket, index: int, data: memoryview) -> None:
    obstore.put(bucket.client, f"object/{index}", data, use_multipart=False)


BENCHMARK = Benchmark("Peak memory of saving", run)
