"""Rows that differ in length: tokens and text, loaded and saved.

Tokens: int32, 16 to 2,048 of them a row, batches of 64. Warm, from a folder whose files are in
memory, shuffled: ragged, padded to the longest of the batch, and as torch's nested tensors, against
`np.take` of as many bytes in rows of the mean length from one array in memory. Text: 1 KB a row,
batches of 256, against slices of one memory decoded one by one. Saving to a folder, against the
same bytes written with fsync. Cold from S3, against plain GETs of the objects.
Every epoch is checked to have given every row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import storage_loader.torch
from storage_loader import Attribute, DataConfig, DataLoader, DataSaver

from .data import OBJECT_NBYTES
from .load_s3 import check_rows, first_epoch
from .runner import Row, Side, compare
from .save_folder import write_file
from .setting import Benchmark, Setting

NUMBER = Attribute("number", "int64")
TOKENS = (Attribute("tokens", "int32", (None,)), NUMBER)
TEXT = (Attribute("text", "str"), NUMBER)
LEAST, MOST = 16, 2048  # tokens of a row
BATCH, TEXT_BATCH = 64, 256
STEP = 1000  # rows of a batch that is saved

Save = Callable[[DataConfig], None]


def run(setting: Setting) -> Iterable[Row]:
    count = setting.pick(100_000, 4000)
    lengths = np.random.default_rng(0).integers(LEAST, MOST + 1, count)
    values = np.arange(lengths.sum(), dtype=np.int32)
    yield from _tokens(setting, values, lengths)
    yield from _text(setting, setting.pick(200_000, 4000))


def _tokens(setting: Setting, values: np.ndarray, lengths: np.ndarray) -> Iterable[Row]:
    ends = np.append(0, np.cumsum(lengths))
    count = len(lengths)

    def save(config: DataConfig) -> None:
        with DataSaver(config) as saver:
            for start in range(0, count, STEP):
                some = lengths[start : start + STEP]
                tokens = values[ends[start] : ends[start + len(some)]]
                saver({"tokens": (tokens, some), "number": np.arange(start, start + len(some))})

    folder = setting.folder()
    config = DataConfig("tokens", TOKENS, storage=folder)
    save(config)
    mean = values[: len(values) // count * count].reshape(count, -1)
    take = Side("np.take of the mean length", lambda: _take(mean, BATCH))
    ways: dict[str, tuple[Any, dict[str, Any], float]] = {
        "ragged": (DataLoader, {}, 0.3),
        "padded": (DataLoader, {"pad": {"tokens": 0}}, 0.25),
        "torch, nested": (storage_loader.torch.DataLoader, {}, 0.3),
        "torch, padded": (storage_loader.torch.DataLoader, {"pad": {"tokens": 0}}, 0.25),
    }
    for name, (kind, settings, at_least) in ways.items():
        loader = kind(config, BATCH, shuffle=True, **settings)
        check_rows((np.asarray(batch["number"]) for batch in loader), count)
        yield compare(
            f"warm epoch of a folder, shuffled, tokens, {name}",
            Side("DataLoader", lambda loader=loader: _through(loader)),
            [take],
            amount=count,
            unit="rows/s",
            effort=setting.effort,
            at_least=at_least,
        )
    shutil.rmtree(folder)
    memory = memoryview(values).cast("B")  # type: ignore[arg-type]
    yield _saved(setting, "tokens", TOKENS, save, memory)
    with setting.bucket() as bucket:
        stored = DataConfig("tokens", TOKENS, **bucket.settings)
        save(stored)
        measure = "first epoch from S3, cold, shuffled, tokens"
        yield first_epoch(setting, bucket, stored, measure, (1, 2, 3, 4, 6, 8), at_least=0.95)


def _text(setting: Setting, count: int) -> Iterable[Row]:
    texts = [f"{number:08d} " + "text " * (103 + number % 200) for number in range(count)]

    def save(config: DataConfig) -> None:
        with DataSaver(config) as saver:
            for start in range(0, count, STEP):
                some = texts[start : start + STEP]
                saver({"text": some, "number": np.arange(start, start + len(some))})

    folder = setting.folder()
    config = DataConfig("text", TEXT, storage=folder)
    save(config)
    loader = DataLoader(config, TEXT_BATCH, shuffle=True)
    check_rows((batch["number"] for batch in loader), count)
    joined = "".join(texts).encode()
    stops = np.cumsum([len(text) for text in texts])
    starts = np.append(0, stops[:-1])
    rng = np.random.default_rng(0)

    def decode() -> None:
        memory, order = memoryview(joined), rng.permutation(count)
        for first in range(0, count, TEXT_BATCH):
            chosen = order[first : first + TEXT_BATCH]
            places = zip(starts[chosen].tolist(), stops[chosen].tolist(), strict=True)
            _ = [str(memory[a:b], "utf-8") for a, b in places]

    yield compare(
        "warm epoch of a folder, shuffled, text of 1 KB",
        Side("DataLoader", lambda: _through(loader)),
        [Side("slices decoded", decode)],
        amount=count,
        unit="rows/s",
        effort=setting.effort,
    )
    shutil.rmtree(folder)
    yield _saved(setting, "text", TEXT, save, memoryview(joined))


def _saved(
    setting: Setting, name: str, attributes: Sequence[Attribute], save: Save, data: memoryview
) -> Row:
    folder = setting.folder()
    config = DataConfig(name, attributes, storage=folder)

    def clear() -> None:
        shutil.rmtree(folder)
        os.sync()

    def plain(threads: int) -> Side:
        def write(start: int) -> None:
            write_file(str(Path(folder, str(start))), [data[start : start + OBJECT_NBYTES]])

        def work() -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(write, range(0, len(data), OBJECT_NBYTES)))

        return Side(f"{threads} threads", work, before=folder.mkdir, after=clear)

    return compare(
        f"save {name} to a folder, batches of {STEP:,}",
        Side("DataSaver", lambda: save(config), after=clear),
        [plain(threads) for threads in (1, 2, 4)],
        amount=len(data) / 1e6,
        unit="MB/s",
        effort=setting.effort,
        at_least=0.5,
    )


def _take(rows: np.ndarray, size: int) -> None:
    order = np.random.default_rng(0).permutation(len(rows))
    for start in range(0, len(order), size):
        np.take(rows, order[start : start + size], axis=0)


def _through(loader: Iterable[Any]) -> None:
    for _ in loader:
        pass


BENCHMARK = Benchmark("Rows that differ in length", run)
