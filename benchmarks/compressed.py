"""What compression costs: zstd at level 3 with shuffle, and lz4.

Tokens: int32 of a fixed length and of any, drawn as words are (Zipf's law). Images: uint8, flat
tiles with some grain. Warm epochs from a folder whose files are in memory, against decoding each
block once, by the codec alone, on two threads; saving, against coding each block alone on two
threads. The note says by how much the bytes are fewer, and what `shuffle="global"` makes of a warm
epoch.
Every epoch is checked to have given every row.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset
from storage_loader.codecs import Codec
from storage_loader.layout import BLOCK_NBYTES

from .load_s3 import check_rows
from .runner import Row, Side, compare
from .setting import Benchmark, Setting

NUMBER = Attribute("number", "int64")
THREADS = 2
BATCH = 64
STEP = 1000  # rows of a batch that is saved
ZSTD = {"complib": "zstd", "complevel": 3, "shuffle": True}
LZ4 = {"complib": "lz4"}
AT_LEAST = 0.8


def run(setting: Setting) -> Iterable[Row]:
    count = setting.pick(200_000, 3000)  # a few objects, so that their ends weigh as they do in use
    rng = np.random.default_rng(0)
    words = (rng.zipf(1.3, count * 1024) % 32_000).astype(np.int32)
    fixed = Attribute("tokens", "int32", (1024,))
    yield from _measured(setting, "tokens", fixed, words.reshape(count, 1024), ZSTD)
    yield from _measured(setting, "tokens", fixed, words.reshape(count, 1024), LZ4)
    lengths = rng.integers(16, 2049, count // 2)
    values = words[: lengths.sum()]
    yield from _measured(
        setting,
        "tokens of any length",
        Attribute("tokens", "int32", (None,)),
        values,
        ZSTD,
        lengths,
    )
    side = 128
    tiles = rng.integers(0, 250, (setting.pick(8000, 300), side // 8, side // 8, 3))
    images = tiles.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)
    pixels = images + rng.integers(0, 2, (side, side, 3), np.uint8)  # the same grain in all
    shape = (side, side, 3)
    yield from _measured(setting, "images", Attribute("image", "uint8", shape), pixels, ZSTD)


def _measured(
    setting: Setting,
    what: str,
    attribute: Attribute,
    values: np.ndarray,
    compressor: dict[str, Any],
    lengths: np.ndarray | None = None,
) -> Iterable[Row]:
    count = len(values) if lengths is None else len(lengths)
    ends = None if lengths is None else np.append(0, np.cumsum(lengths))
    codec = Codec.of(compressor)
    folder = setting.folder()
    config = DataConfig(what.replace(" ", "-"), [attribute, NUMBER], storage=folder,
                        compressor=compressor)  # fmt: skip

    def save() -> None:
        with DataSaver(config) as saver:
            for start in range(0, count, STEP):
                stop = min(count, start + STEP)
                if ends is None or lengths is None:
                    rows: Any = values[start:stop]
                else:
                    rows = values[ends[start] : ends[stop]], lengths[start:stop]
                saver({attribute.name: rows, "number": np.arange(start, stop)})

    blocks = _blocks(values)
    itemsize = values.dtype.itemsize
    coded = _in_threads(lambda block: codec.encode(block, itemsize), blocks)

    def decode(block: bytes) -> None:
        codec.decode([memoryview(block)], np.empty(BLOCK_NBYTES, np.uint8).data, itemsize)

    def clear() -> None:
        shutil.rmtree(folder)

    ratio = values.nbytes / sum(map(len, coded))
    name = f"{what}, {codec.complib} {codec.complevel}"
    yield replace(
        compare(
            f"save {name} to a folder",
            Side("DataSaver", save, after=clear),
            [Side("coding alone", lambda: _in_threads(
                lambda block: codec.encode(block, itemsize), blocks) and None)],
            amount=values.nbytes / 1e6,
            unit="MB/s",
            effort=setting.effort,
            at_least=AT_LEAST,
        ),
        note=f"{ratio:.2f} times fewer bytes",
    )  # fmt: skip
    save()
    rates = {}
    for shuffle in (True, False, "global"):
        loader = DataLoader(config, BATCH, shuffle=shuffle)
        check_rows((batch["number"] for batch in loader), count)
        row = compare(
            f"warm epoch of a folder, {name}, shuffle={shuffle}",
            Side("DataLoader", lambda loader=loader: _through(loader)),
            [Side("decoding alone", lambda: _in_threads(decode, coded) and None)],
            amount=values.nbytes / 1e6,
            unit="MB/s",
            effort=setting.effort,
            at_least=AT_LEAST if shuffle is True else None,
        )
        rates[shuffle] = row.value.median
        yield replace(row, note=f"{rates[shuffle] / rates[True]:.3f} of shuffle=True")
    dataset = Dataset(config)
    chosen = np.random.default_rng(0).integers(0, count, 200)
    yield compare(
        f"one row by its number, warm folder, {name}",
        Side("Dataset", lambda: [dataset[int(row)] for row in chosen] and None),
        [
            Side(
                "decoding a block",
                lambda: [decode(coded[row % len(coded)]) for row in chosen] and None,
            )
        ],
        amount=len(chosen),
        unit="rows/s",
        effort=setting.effort,
    )  # fmt: skip
    shutil.rmtree(folder)


def _blocks(values: np.ndarray) -> list[memoryview]:
    memory = memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    stops = range(BLOCK_NBYTES, len(memory) + 1, BLOCK_NBYTES)  # of whole ones
    return [memory[stop - BLOCK_NBYTES : stop] for stop in stops]


def _in_threads(work: Callable[[Any], Any], blocks: list[Any]) -> list[Any]:
    """The results, of threads that take every second block."""
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(
            lambda first: [work(block) for block in blocks[first::THREADS]], range(THREADS)
        )
        return [result for part in parts for result in part]


def _through(loader: Iterable[Any]) -> None:
    for _ in loader:
        pass


BENCHMARK = Benchmark("What compression costs", run)
