"""Saving rows of 32 bytes to a folder, against writing the same bytes to one file with fsync.

Ours: `DataSaver` in batches of 4,096 rows, its defaults, from the open to the commit. Plain: one
file by `os.write` from ready memory and one `os.fsync`, in pieces of a batch, of 1 MiB or whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from storage_loader import DataConfig, DataSaver

from .data import POINTS, batch, make_rows, memory, nbytes
from .runner import Row, Side, compare
from .save_folder import write_file
from .setting import Benchmark, Setting

BATCH = 4096


def run(setting: Setting) -> Sequence[Row]:
    rows = make_rows(POINTS, setting.pick(4096, 256) * BATCH)
    count = len(rows["number"])
    folder = setting.folder()
    config = DataConfig("bench", POINTS, storage=folder)

    def save() -> None:
        with DataSaver(config) as saver:
            for start in range(0, count, BATCH):
                saver(batch(rows, start, start + BATCH))

    def clear() -> None:
        shutil.rmtree(folder)
        os.sync()

    data = memoryview(b"".join(memory(array) for array in rows.values()))

    def plain(words: str, step: int) -> Side:
        pieces = [data[start : start + step] for start in range(0, len(data), step)]

        def work() -> None:
            write_file(str(folder / "file"), pieces)

        return Side(f"writes of {words}", work, before=folder.mkdir, after=clear)

    return [
        compare(
            "save 32 B rows to a folder, batches of 4,096",
            Side("DataSaver", save, after=clear),
            [
                plain("a batch", nbytes(rows) // count * BATCH),
                plain("1 MiB", 2**20),
                plain("all", len(data)),
            ],
            amount=nbytes(rows) / 1e6,
            unit="MB/s",
            effort=setting.effort,
            at_least=0.5,
            note=f"{count / 1e6:.3g} million rows",
        )
    ]


BENCHMARK = Benchmark("Saving small rows to a folder", run)
