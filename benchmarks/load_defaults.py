"""How the loader's defaults were chosen: each beside other values, in turn, all else the default.

First epochs of 48 KiB rows from S3 with an empty cache, shuffled, for what concerns fetching;
random batches by index with 20 ms added to each request, for what is in flight; new loaders of a
folder in memory, for what is verified early; warm epochs of a folder, `shuffle="global"`, for what
concerns gathering. A field of `Tuning` that makes no difference here is one too many.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset
from storage_loader.loader.tuning import TUNING

from .data import TILES, VECTORS, batch, make_rows
from .load_s3 import BATCH, index_epoch, saved
from .runner import Row, Side, Spread
from .setting import Benchmark, Bucket, Setting

MIB = 2**20
KILOBYTE_ROWS = (Attribute("vector", "float32", (256,)), Attribute("number", "int64"))  # 1,032

_TUNING = "storage_loader.loader.view.View._tuning"

Choice = tuple[str, dict[str, Any], dict[str, Any]]  # words, keywords, constants


def _keyword(name: str, values: Sequence[int], unit: int = 1) -> list[Choice]:
    return [
        (f"{name}={value}{' MiB' * (unit == MIB)}", {name: value * unit}, {}) for value in values
    ]


def _tuned(field: str, *values: Any) -> list[Choice]:
    return [
        (f"{field}={value:,}", {}, {_TUNING: replace(TUNING, **{field: value})}) for value in values
    ]


def _constant(words: str, name: str, values: Sequence[Any]) -> list[Choice]:
    return [(f"{words} {value}", {}, {f"storage_loader.{name}": value}) for value in values]


FETCHING = [
    _keyword("threads", (1, 2, 4, 8, 16)),
    _keyword("prefetch", (64, 128, 256, 512), MIB),
    _constant("pieces of", "store.minio_s3.STREAM_CHUNK", (2**17, 2**19, 2**21)),
    _tuned("request_nbytes", 8 * MIB, 64 * MIB),
    _tuned("stream_nbytes", 2**18, MIB, 4 * MIB),
    _tuned("gap_nbytes", 0, 2**16, 2**18, MIB),
    _tuned("whole_share", 0.02, 1 / 8, 1 / 2, 2),
    _tuned("early_seconds", 0, 1, 10),
]
BY_INDEX = [
    _keyword("threads", (1, 8, 32)),
    _tuned("work_requests", 4, 16, 64),
    _tuned("work_nbytes", MIB, 8 * MIB),
    _tuned("waiting_threads", 8, 32, 64),
    _tuned("chunks", 4, 16, 64),
    _tuned("in_flight_share", 1 / 16, 1 / 8, 1 / 2),
    _constant("gap to bridge", "loader.fetch.direct._GAP", (0, 4096, 2**16)),
]
READ = [_tuned("read_nbytes", 2**18, MIB, 8 * MIB)]
FRESH = [_tuned("verified_early", 0, 8, 64)]
GATHERING = [
    _constant(
        "rows gathered together", "loader.fill.gather._GROUP_ROWS", (4096, 16_384, 32_768, 2**17)
    ),
    _constant(
        "rows copied by address from bytes", "loader.fill.fixed.LARGE_ROW", (1, 512, 1024, 4096)
    ),
]


def run(setting: Setting) -> Sequence[Row]:
    rows = []
    with setting.bucket() as bucket:
        config = saved(bucket, "tiles", TILES, setting.pick(8192, 1024))
        for choices in FETCHING:
            rows += _compared(setting, "first epoch", choices, _first_epoch(setting, config))
        with bucket.server.far(0.02) as server:
            far = Bucket(server, bucket.name).config("tiles")
            for choices in BY_INDEX:
                rows += _compared(setting, "by index, 20 ms", choices, _by_index(setting, far))
            for choices in READ:
                rows += _compared(setting, "Dataset[1,000 rows], 20 ms", choices, _read(far))
    fresh = _fresh(setting)
    for choices in FRESH:
        rows += _compared(setting, "first epoch of a fresh loader, folder", choices, fresh)
    for words, attributes, num_rows in (
        ("warm, 72 B rows", VECTORS, setting.pick(4_000_000, 200_000)),
        ("warm, 1 KB rows", KILOBYTE_ROWS, setting.pick(500_000, 20_000)),
    ):
        load = _warm(setting, attributes, num_rows)
        for choices in GATHERING:
            rows += _compared(setting, words, choices, load)
    return rows


Load = Callable[[dict[str, Any]], tuple[Callable[[], int], Callable[[], object]]]
"""For keywords: what loads and says how many rows, and what cleans up."""


def _compared(setting: Setting, words: str, choices: list[Choice], load: Load) -> list[Row]:
    """Rates of the choices, measured in turn."""
    counts: dict[str, int] = {}

    def side(choice: Choice) -> Side:
        name, keywords, constants = choice
        work, after = load(keywords)

        def patched() -> None:
            with ExitStack() as held:
                for constant, value in constants.items():
                    held.enter_context(mock.patch(constant, value))
                counts[name] = work()

        return Side(name, patched, after=after)

    sides = [side(choice) for choice in choices]
    seconds: dict[str, list[float]] = {one.name: [] for one in sides}
    for one in sides:
        one.seconds()
    rounds = min(5, setting.effort.rounds)
    for number in range(rounds):
        start = number % len(sides)
        for one in sides[start:] + sides[:start]:
            seconds[one.name].append(one.seconds())
    best = max(counts[name] / statistics.median(times) for name, times in seconds.items())
    rows = []
    for name, times in seconds.items():
        rates = [counts[name] / t for t in times]
        share = statistics.median(rates) / best
        measure = f"{words}, {name} ({share:.2f} of the best)"
        rows.append(Row(measure, "rows/s", Spread.of(rates), rounds=rounds))
    return rows


def _first_epoch(setting: Setting, config: DataConfig) -> Load:
    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        cache = setting.folder()

        def work() -> int:
            loader = DataLoader(config, batch_size=BATCH, shuffle=True, cache_dir=cache, **keywords)
            return sum(len(loaded["number"]) for loaded in loader)

        return work, lambda: shutil.rmtree(cache)

    return load


def _by_index(setting: Setting, config: DataConfig) -> Load:
    num_batches = setting.pick(64, 8)

    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        loader = DataLoader(config, batch_size=BATCH, shuffle="global", index=True, **keywords)

        def work() -> int:
            index_epoch(loader, num_batches)
            return num_batches * BATCH

        return work, nullcontext

    return load


def _read(config: DataConfig) -> Load:
    chosen = np.random.default_rng(0).choice(len(Dataset(config)), 1000, replace=False)

    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        dataset = Dataset(config, cache_size=0, **keywords)
        return lambda: len(dataset[chosen]["number"]), nullcontext

    return load


def _fresh(setting: Setting) -> Load:
    config = DataConfig("fresh", TILES, storage=setting.folder())
    rows = make_rows(TILES, setting.pick(4096, 256))
    with DataSaver(config) as saver:
        saver(batch(rows, 0, len(rows["number"])))

    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        def work() -> int:
            with mock.patch.dict("storage_loader.loader.fetch.verified._known", clear=True):
                loader = DataLoader(config, batch_size=BATCH, shuffle=True, **keywords)
                return sum(len(loaded["number"]) for loaded in loader)

        return work, nullcontext

    return load


def _warm(setting: Setting, attributes: tuple[Attribute, ...], num_rows: int) -> Load:
    config = DataConfig("warm", attributes, storage=setting.folder())
    rows = make_rows(attributes, num_rows)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, 2**15):
            saver(batch(rows, start, start + 2**15))
    loader = DataLoader(config, batch_size=4096, shuffle="global")

    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        return lambda: sum(len(loaded["number"]) for loaded in loader), nullcontext

    return load


BENCHMARK = Benchmark("How the loader's defaults were chosen", run)
