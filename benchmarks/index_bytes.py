"""What the server is asked for when random rows are read by index.

64 random rows of 48 KiB of 100,000 in S3, by `Dataset[...]`, counted by a proxy before the server:
bytes of bodies, as a multiple of the rows' own. The second read touches the same objects, whose
small columns and checksum tables are known by then; the first also fetches those, once for each
object. The target is for what remains of the first when they are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage_loader import DataConfig, DataSaver, Dataset

from .data import TILES, make_rows
from .proxy import Traffic, counting_proxy
from .runner import Row, Spread
from .setting import Benchmark, Bucket, Setting

ROWS = 64
SAVED_AT_ONCE = 1000
AT_MOST = 1.05


def run(setting: Setting) -> Sequence[Row]:
    num_rows = setting.pick(100_000, 4_000)
    with setting.bucket() as bucket:
        config = DataConfig("bench", TILES, **bucket.settings)
        _save(config, num_rows)
        with counting_proxy(bucket.server.endpoint) as (endpoint, traffic):
            behind = Bucket(bucket.server.at(endpoint), bucket.name)
            return _count(DataConfig("bench", **behind.settings), num_rows, traffic)


def _save(config: DataConfig, num_rows: int) -> None:
    rows = make_rows(TILES, SAVED_AT_ONCE)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, SAVED_AT_ONCE):
            rows["number"] = np.arange(start, start + SAVED_AT_ONCE)
            rows["tile"][:, 0, 0, 0] = rows["number"]  # below 2**24: exact
            saver(rows)


def _count(config: DataConfig, num_rows: int, traffic: Traffic) -> Sequence[Row]:
    rng = np.random.default_rng(0)
    rows = rng.choice(num_rows, ROWS, replace=False)
    own = ROWS * sum(a.row_nbytes for a in TILES)
    dataset = Dataset(config)
    objects = dataset.open().objects
    starts = dataset.open().starts
    touched = {int(i) for i in np.searchsorted(starts, rows, "right") - 1}
    once = sum(
        objects[i].layout.num_checksums * 8
        + sum(objects[i].layout.columns[name].nbytes for name in objects[i].layout.small)
        for i in touched
    )
    other = _other_rows(rng, rows, starts)
    words = f"bytes asked of S3 for {ROWS} random rows of 48 KiB out of {num_rows:,}"
    result = []
    for moment, wanted, known in (("first read", rows, once), ("same objects again", other, 0)):
        traffic.clear()
        batch = dataset[wanted]
        assert (batch["number"] == wanted).all()
        assert (batch["tile"][:, 0, 0, 0] == wanted).all()
        requests = [line for line in traffic.requests if "/objects/" in line]
        assert len(requests) == len(traffic.requests), "only objects are read by now"
        result.append(
            Row(
                f"{words}, {moment}",
                "of the rows' own",
                Spread.of([(traffic.body_nbytes - known) / own]),
                at_most=AT_MOST,
                note=f"{traffic.body_nbytes:,} bytes in {len(requests)} requests"
                + (
                    f"; {known:,} of {len(touched)} objects' small parts taken off" if known else ""
                ),
            )
        )
    return result


def _other_rows(rng: np.random.Generator, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """For each row another one of the same object."""
    objects = np.searchsorted(starts, rows, "right") - 1
    return np.array([rng.integers(starts[i], starts[i + 1]) for i in objects])


BENCHMARK = Benchmark("Bytes of index loading", run)
