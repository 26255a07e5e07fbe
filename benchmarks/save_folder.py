"""Saving 150 KB rows to a folder, against writing the same bytes to files with fsync.

Ours: `DataSaver` in batches of 256 rows, its defaults, from the open to the commit. Plain: files
of an object's size by `os.write` from one array in memory and `os.fsync`, 1 to 8 threads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from storage_loader import DataConfig, DataSaver

from .data import IMAGES, OBJECT_NBYTES, batch, make_rows, memory, nbytes
from .runner import Row, Side, compare
from .setting import Benchmark, Setting

BATCH = 256


def run(setting: Setting) -> Sequence[Row]:
    rows = make_rows(IMAGES, setting.pick(28, 2) * BATCH)
    folder = setting.folder()
    config = DataConfig("bench", IMAGES, storage=folder)

    def save() -> None:
        with DataSaver(config) as saver:
            for start in range(0, len(rows["image"]), BATCH):
                saver(batch(rows, start, start + BATCH))

    def clear() -> None:
        shutil.rmtree(folder)
        os.sync()

    def plain(threads: int) -> Side:
        data = memory(rows["image"])

        def write(start: int) -> None:
            write_file(str(folder / str(start)), [data[start : start + OBJECT_NBYTES]])

        def work() -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(write, range(0, len(data), OBJECT_NBYTES)))

        return Side(f"{threads} threads", work, before=folder.mkdir, after=clear)

    return [
        compare(
            "save 150 KB rows to a folder, batches of 256",
            Side("DataSaver", save, after=clear),
            [plain(threads) for threads in (1, 2, 3, 4, 8)],
            amount=nbytes(rows) / 1e6,
            unit="MB/s",
            effort=setting.effort,
            at_least=0.8,
        )
    ]


def write_file(path: str, pieces: Sequence[memoryview]) -> None:
    """A new file of these bytes, durable."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in pieces:
            while piece:
                piece = piece[os.write(descriptor, piece) :]  # noqa: PLW2901
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


BENCHMARK = Benchmark("Saving large rows to a folder", run)
