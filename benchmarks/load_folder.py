"""Loading from a folder whose files are in memory, against `np.take` from one array.

`DataLoader` over a folder that was read before, shuffled; plain: `np.take` of as many random rows
from one array in memory into a fresh batch, for each attribute. Batches of 64 large rows, of
4,096 small ones. Every epoch is checked to have given every row.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Literal

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver

from .data import IMAGES, TILES, VECTORS, Rows, batch, make_rows, nbytes
from .load_s3 import check_rows
from .runner import Row, Side, compare
from .setting import Benchmark, Setting

LARGE_BATCH, SMALL_BATCH = 64, 4096


def run(setting: Setting) -> Sequence[Row]:
    return [
        *_loaded(setting, TILES, setting.pick(8192, 1024), "48 KiB float32 rows", 0.85),
        *_loaded(setting, IMAGES, setting.pick(7168, 512), "150 KB uint8 rows", 0.85),
        *_loaded(setting, VECTORS, setting.pick(10_000_000, 500_000), "72 B rows", 0.4),
    ]


def _loaded(
    setting: Setting,
    attributes: tuple[Attribute, ...],
    num_rows: int,
    words: str,
    at_least: float,
) -> list[Row]:
    rows = make_rows(attributes, num_rows)
    folder = setting.folder()
    config = DataConfig("bench", attributes, storage=folder)
    step = max(256, 2**25 // (nbytes(rows) // num_rows))
    with DataSaver(config) as saver:
        for start in range(0, num_rows, step):
            saver(batch(rows, start, start + step))
    small = attributes is VECTORS
    size = SMALL_BATCH if small else LARGE_BATCH
    epochs = max(1, -(-setting.pick(300, 3) * size // num_rows))  # at least 300 batches
    shuffles: tuple[Literal[True, "global"], ...] = ("global", True) if small else ("global",)
    result = [
        _row(setting, config, rows, size, epochs, shuffle, words, at_least) for shuffle in shuffles
    ]
    shutil.rmtree(folder)
    return result


def _row(
    setting: Setting,
    config: DataConfig,
    rows: Rows,
    size: int,
    epochs: int,
    shuffle: Literal[True, "global"],
    words: str,
    at_least: float,
) -> Row:
    num_rows = len(next(iter(rows.values())))
    loader = DataLoader(config, batch_size=size, shuffle=shuffle)
    named = DataLoader(config, batch_size=size, shuffle=shuffle, extras=("row",))
    check_rows((loaded["row"] for loaded in named), num_rows)
    rng = np.random.default_rng(0)
    order = [np.empty(0, np.int64)]

    def load() -> None:
        for _ in range(epochs):
            for _ in loader:
                pass

    def shuffled() -> None:
        order[0] = np.concatenate([rng.permutation(num_rows) for _ in range(epochs)])

    def take() -> None:
        for start in range(0, len(order[0]), size):
            chosen = order[0][start : start + size]
            _ = {name: np.take(array, chosen, axis=0) for name, array in rows.items()}

    return compare(
        f"warm epoch of a folder, shuffle={shuffle!r}, {words}, batches of {size:,}",
        Side("DataLoader", load),
        [Side("np.take", take, before=shuffled)],
        amount=num_rows * epochs,
        unit="rows/s",
        effort=setting.effort,
        at_least=at_least,
    )


BENCHMARK = Benchmark("Loading from a folder that is in memory", run)
