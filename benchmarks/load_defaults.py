"""How the loader's defaults were chosen: other values beside each, in turn, all else the default.

First epochs from S3 with an empty cache, of the whole dataset and of one of 8 ranks, without and
with 20 ms added to each request, for what concerns fetching; random batches by index and `Dataset`
with those 20 ms, for what is in flight; new loaders of a folder in memory, for what is verified
early; warm epochs of a folder, `shuffle="global"`, for what concerns gathering.

The ratio is the default's time over that with the other value, taken within each round: below 1,
the default is faster. Its brackets hold the 95% interval of the median, by bootstrap. A field of
`Tuning` of which no value makes a difference anywhere is one too many.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset
from storage_loader.loader.tuning import TUNING

from . import report
from .data import IMAGES, TILES, VECTORS, batch, make_rows
from .load_s3 import BATCH, index_epoch, saved
from .runner import Row, Side, Spread
from .setting import Benchmark, Bucket, Setting

MIB = 2**20
NOISE = 0.03  # a difference below this is none
NUMBERED_IMAGES = (*IMAGES, Attribute("number", "int64"))
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


RANK = {"rank": 3, "world_size": 8}  # reads an eighth of each window
NOTHING: Choice = ("the defaults", {}, {})

FETCHING = [
    *_keyword("threads", (1, 4, 16)),
    *_keyword("prefetch", (64, 512), MIB),
    *_tuned("request_nbytes", 8 * MIB),
    *_tuned("stream_nbytes", 2**17, 8 * MIB, 2**40),
    *_tuned("whole_share", 0.01, 2),
    *_tuned("early_seconds", 0),
    *_tuned("work_nbytes", MIB, 64 * MIB),
    *_constant("pieces of", "store.minio_s3.STREAM_CHUNK", (2**17, 2**21)),
]
FETCHING_FAR = [
    *_tuned("request_nbytes", 8 * MIB),
    *_tuned("stream_nbytes", 2**40),
    *_tuned("whole_share", 2),
    *_tuned("early_seconds", 0),
    *_tuned("waiting_threads", 8),
    *_keyword("threads", (1, 4, 16)),
]
FETCHING_PART = [
    *_tuned("gap_nbytes", 0, MIB),
    *_tuned("whole_share", 0.01, 2),
    *_tuned("work_requests", 1, 4, 64),
]
BY_INDEX = [
    *_keyword("threads", (1, 32)),
    *_tuned("work_requests", 1, 4, 64),
    *_tuned("work_nbytes", MIB, 64 * MIB),
    *_tuned("waiting_threads", 8, 64),
    *_constant("parts of prefetch", "loader.run.prefetch._CHUNKS", (4, 64)),
    *_constant("of it in flight one in", "loader.run.prefetch._IN_FLIGHT", (2, 32)),
    *_constant("gap to bridge", "loader.fetch.direct._GAP", (0, 2**16)),
]
BY_INDEX_LARGE = [*_tuned("work_nbytes", MIB), *_tuned("waiting_threads", 8)]
READ = [*_tuned("work_nbytes", MIB, 64 * MIB), *_tuned("waiting_threads", 8, 64)]
FRESH = [*_tuned("verified_early", 0, 64)]
GATHERING = [
    *_constant("rows gathered together", "loader.fill.gather._GROUP_ROWS", (4096, 2**17)),
    *_constant("rows copied by address from bytes", "loader.fill.fixed.LARGE_ROW", (1, 512, 4096)),
]


def run(setting: Setting) -> Sequence[Row]:
    rows: list[Row] = []

    def compared(words: str, choices: Sequence[Choice], load: Load) -> None:
        chosen = [one for one in choices if setting.wants(f"{words}, {one[0]}")]
        if chosen:
            rows.extend(_compared(setting, words, chosen, load))

    with setting.bucket() as bucket:
        config = saved(bucket, "tiles", TILES, setting.pick(8192, 1024))
        compared("first epoch", FETCHING, _first_epoch(setting, config))
        compared("first epoch of a rank of 8", FETCHING_PART, _first_epoch(setting, config, **RANK))
        with bucket.server.far(0.02) as server:
            far = Bucket(server, bucket.name).config("tiles")
            compared("first epoch, 20 ms", FETCHING_FAR, _first_epoch(setting, far))
            words = "first epoch of a rank of 8, 20 ms"
            compared(words, FETCHING_PART, _first_epoch(setting, far, **RANK))
            compared("by index, 20 ms", BY_INDEX, _by_index(setting, far))
            compared("Dataset[1,000 rows], 20 ms", READ, _read(far))
            saved(bucket, "images", NUMBERED_IMAGES, setting.pick(4096, 1024))
            far = Bucket(server, bucket.name).config("images")
            compared("by index, 150 KB rows, 20 ms", BY_INDEX_LARGE, _by_index(setting, far))
            compared("Dataset[1,000 rows of 150 KB], 20 ms", READ, _read(far))
    for shuffle in (True, "global"):
        words = f"first epoch of a fresh loader, folder, {shuffle=}"
        compared(words, FRESH, _fresh(setting, shuffle))
    for words, attributes, num_rows in (
        ("warm, 72 B rows", VECTORS, setting.pick(4_000_000, 200_000)),
        ("warm, 1 KB rows", KILOBYTE_ROWS, setting.pick(500_000, 20_000)),
    ):
        compared(words, GATHERING, _warm(setting, attributes, num_rows))
    return rows


Load = Callable[[dict[str, Any]], tuple[Callable[[], int], Callable[[], object]]]
"""For keywords: what loads and says how many rows, and what cleans up."""


def _compared(setting: Setting, words: str, choices: Sequence[Choice], load: Load) -> list[Row]:
    """Rates of the choices beside that of the defaults, measured in turn."""
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

    sides = [side(choice) for choice in (NOTHING, *choices)]
    seconds: dict[str, list[float]] = {one.name: [] for one in sides}
    for one in sides:
        one.seconds()
    for number in range(setting.effort.rounds):
        start = number % len(sides)
        for one in sides[start:] + sides[:start]:
            seconds[one.name].append(one.seconds())
    rates = {name: [counts[name] / t for t in times] for name, times in seconds.items()}
    default = rates.pop(NOTHING[0])
    rows = []
    for name, others in rates.items():
        ratio = Spread.of_the_median([o / d for o, d in zip(others, default, strict=True)])
        note = "slower" if ratio.high < 1 - NOISE else "faster" if ratio.low > 1 + NOISE else ""
        rows.append(
            Row(
                f"{words}, {name}",
                "rows/s",
                Spread.of(others),
                Spread.of(default),
                NOTHING[0],
                ratio,
                setting.effort.rounds,
                note=note,
            )
        )
        print(report.line(rows[-1]), note, flush=True)
    return rows


def _first_epoch(setting: Setting, config: DataConfig, **of_all: Any) -> Load:
    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        cache = setting.folder()

        def work() -> int:
            chosen = {"shuffle": True, "cache_dir": cache, **of_all, **keywords}
            loader = DataLoader(config, batch_size=BATCH, **chosen)
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


def _fresh(setting: Setting, shuffle: bool | str) -> Load:
    config = DataConfig("fresh", TILES, storage=setting.folder())
    rows = make_rows(TILES, setting.pick(4096, 256))
    with DataSaver(config) as saver:
        saver(batch(rows, 0, len(rows["number"])))

    def load(keywords: dict[str, Any]) -> tuple[Callable[[], int], Callable[[], object]]:
        def work() -> int:
            with mock.patch.dict("storage_loader.loader.fetch.verified._known", clear=True):
                chosen = {"shuffle": shuffle, **keywords}
                loader = DataLoader(config, batch_size=BATCH, **chosen)
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
