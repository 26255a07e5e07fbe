"""Saving 150 KB rows to S3, against plain concurrent PUTs of the same bytes.

Ours: `DataSaver` in batches of 256 rows, its defaults, from the open to the commit. Plain: the
same bytes from one array in memory, as objects of the same size, by obstore in a thread pool:
1 to 8 threads with a single PUT each, and in parts of 16 MiB, four at once. Both sides sign
payloads, which is obstore's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore

from storage_loader import DataConfig, DataSaver

from .data import IMAGES, OBJECT_NBYTES, Array, batch, make_rows, memory, nbytes
from .runner import Row, Side, compare
from .setting import Benchmark, Bucket, Setting

BATCH = 256
SINGLE: dict[str, Any] = {"use_multipart": False}
PARTS: dict[str, Any] = {
    "use_multipart": True,
    "chunk_size": 16 * 2**20,
    "max_concurrency": 4,
}


def run(setting: Setting) -> Sequence[Row]:
    rows = make_rows(IMAGES, setting.pick(56, 2) * BATCH)
    count = len(rows["image"])
    with setting.bucket() as bucket:
        config = DataConfig("bench", IMAGES, **bucket.settings)

        def save() -> None:
            with DataSaver(config) as saver:
                for start in range(0, count, BATCH):
                    saver(batch(rows, start, start + BATCH))

        plain = [_plain(bucket, rows["image"], t, "single PUT", SINGLE) for t in (1, 2, 3, 4, 6, 8)]
        plain += [_plain(bucket, rows["image"], t, "16 MiB parts", PARTS) for t in (1, 2, 4)]
        return [
            compare(
                "save 150 KB rows to S3, batches of 256",
                Side("DataSaver", save, after=bucket.clear),
                plain,
                amount=nbytes(rows) / 1e6,
                unit="MB/s",
                effort=setting.effort,
                at_least=0.8,
            )
        ]


def _plain(bucket: Bucket, rows: Array, threads: int, words: str, options: dict[str, Any]) -> Side:
    data = memory(rows)
    starts = range(0, len(data), OBJECT_NBYTES)

    def put(start: int) -> None:
        body = data[start : start + OBJECT_NBYTES]
        obstore.put(bucket.client, f"plain/{start}", body, **options)

    def work() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(put, starts))

    return Side(f"{threads} threads, {words}", work, after=bucket.clear)


BENCHMARK = Benchmark("Saving large rows to S3", run)
