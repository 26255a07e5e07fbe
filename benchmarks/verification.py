"""What verification costs: the same loading with `verify=True`, the default, and `verify=False`.

First epochs of a new loader each time: of a folder whose files are in memory, of S3 into an empty
cache, of S3 through memory with rows by their number; and a first epoch of a cache that another
loader has filled, where every block is hashed again. The ratio is that of the rates, within each
round. Later epochs of a loader hash nothing, so they have no line here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from storage_loader import DataConfig, DataLoader, DataSaver

from .data import TILES, batch, make_rows
from .load_s3 import check_rows, saved
from .runner import Row, Side, compare
from .setting import Benchmark, Setting

BATCH = 64


def run(setting: Setting) -> Sequence[Row]:
    num_rows = setting.pick(8192, 1024)
    return [_folder(setting, num_rows), *_s3(setting, num_rows)]


def _row(
    setting: Setting,
    measure: str,
    load: Callable[[bool], None],
    amount: int,
    before: Callable[[], object] = lambda: None,
) -> Row:
    return compare(
        f"cost of verification, {measure}, 48 KiB float32 rows",
        Side("verify=True", partial(load, True), before=before),
        [Side("verify=False", partial(load, False), before=before)],
        amount=amount,
        unit="rows/s",
        effort=setting.effort,
    )


def _load(config: DataConfig, num_rows: int, how: dict[str, Any], verify: bool) -> None:
    loader = DataLoader(config, batch_size=BATCH, verify=verify, extras=("row",), **how)
    check_rows((loaded["row"] for loaded in loader), num_rows)


def _folder(setting: Setting, num_rows: int) -> Row:
    folder = setting.folder()
    config = DataConfig("tiles", TILES, storage=folder)
    rows = make_rows(TILES, num_rows)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, 256):
            saver(batch(rows, start, start + 256))
    del rows
    load = partial(_load, config, num_rows, {"shuffle": True})
    load(True)  # the files are in memory from here on
    row = _row(setting, "a folder in memory", load, num_rows)
    shutil.rmtree(folder)
    return row


def _s3(setting: Setting, num_rows: int) -> list[Row]:
    with setting.bucket() as bucket:
        config = saved(bucket, "tiles", TILES, num_rows)
        cache = setting.folder()
        cached = partial(_load, config, num_rows, {"shuffle": True, "cache_dir": cache})
        index = partial(_load, config, num_rows, {"shuffle": "global", "index": True})
        rows = [
            _row(setting, "S3, empty cache", cached, num_rows, partial(_emptied, cache)),
            _row(setting, "S3, cache filled before", cached, num_rows),
            _row(setting, "S3, index=True", index, num_rows),
        ]
        shutil.rmtree(cache)
    return rows


def _emptied(cache: Path) -> None:
    shutil.rmtree(cache, ignore_errors=True)


BENCHMARK = Benchmark("The cost of verification", run)
