"""Loading from S3 with 20 ms added to every request, by a relay on this machine.

First epoch: as in `load_s3`, against plain GETs of the same objects with as many threads as the
loader has. By index: as there, in rows a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from storage_loader import DataLoader

from .data import IMAGES, TILES
from .load_s3 import BATCH, first_epoch, index_epoch, saved
from .runner import Row, Side, Spread
from .setting import Benchmark, Bucket, Setting

SECONDS = 0.02
THREADS = 8  # the loader's default


def run(setting: Setting) -> Sequence[Row]:
    with setting.bucket() as bucket:
        kinds = [
            ("tiles", TILES, setting.pick(8192, 2048), "48 KiB float32 rows"),
            ("images", IMAGES, setting.pick(7168, 1024), "150 KB uint8 rows"),
        ]
        for name, attributes, num_rows, _ in kinds:
            saved(bucket, name, attributes, num_rows)
        with bucket.server.far(SECONDS) as server:
            far = Bucket(server, bucket.name)
            rows = [_first_epoch(setting, far, name, words) for name, _, _, words in kinds]
            return [*rows, _by_index(setting, far)]


def _first_epoch(setting: Setting, bucket: Bucket, name: str, words: str) -> Row:
    measure = f"first epoch from S3, 20 ms a request, cold, shuffled, {words}"
    return first_epoch(setting, bucket, bucket.config(name), measure, (THREADS,), at_least=0.7)


def _by_index(setting: Setting, bucket: Bucket) -> Row:
    num_batches = setting.pick(128, 16)
    loader = DataLoader(bucket.config("tiles"), batch_size=BATCH, shuffle="global", index=True)
    side = Side("DataLoader", lambda: index_epoch(loader, num_batches))
    side.seconds()
    effort = replace(setting.effort, rounds=min(5, setting.effort.rounds))
    rates = [num_batches * BATCH / side.seconds() for _ in range(effort.rounds)]
    return Row(
        "random batches of 64 by index from S3, 20 ms a request, 48 KiB rows",
        "rows/s",
        Spread.of(rates),
        rounds=effort.rounds,
        at_least=2000,
    )


BENCHMARK = Benchmark("Loading from S3 far away", run)
