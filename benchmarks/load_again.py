"""Loading what is on this machine already: fresh loaders, single rows, caches that hold a part.

Fresh loader: the first epoch of a new `DataLoader` on a folder whose files are in memory, against a
fresh map of the same files, hashed in blocks of 64 KiB and taken from by `np.take`. The files are
touched before each run, so that nothing that this process has verified before counts. Second
loader: that of files verified before, against a later epoch of the first one. Rows of `Dataset`:
one after another, and under torch's DataLoader against the same over one array mapped from a file.
By `Dataset[...]`: from S3, 20 ms a request, against `DataLoader(index=True)`. Part of a cache: what
a second epoch finds where there is room for half of the dataset.
Every epoch is checked to have given every row.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from storage_loader import DataConfig, DataLoader, DataSaver, Dataset

from .data import TILES, batch, make_rows
from .load_far import SECONDS
from .load_s3 import BATCH, check_rows, index_epoch, saved
from .runner import Row, Side, Spread, compare
from .setting import Benchmark, Bucket, Setting

BLOCK = 2**16
TORCH_BATCH = 128
SETTLED = 2.5  # s after which files that were written count as known


def run(setting: Setting) -> Sequence[Row]:
    num_rows = setting.pick(8192, 1024)
    folder = setting.folder()
    config = DataConfig("again", TILES, storage=folder)
    rows = make_rows(TILES, num_rows)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, 256):
            saver(batch(rows, start, start + 256))
    result = [
        *(_fresh(setting, config, folder, num_rows, shuffle) for shuffle in (True, "global")),
        _second(setting, config, num_rows),
        _single(setting, config, num_rows),
        *_torch(setting, config, rows, num_rows),
    ]
    shutil.rmtree(folder)
    with setting.bucket() as bucket:
        tiles = saved(bucket, "tiles", TILES, setting.pick(8192, 2048))
        result.append(_share(setting, tiles, setting.pick(8192, 2048)))
        with bucket.server.far(SECONDS) as server:
            result.append(_at_once(setting, Bucket(server, bucket.name).config("tiles")))
    return result


def _fresh(
    setting: Setting,
    config: DataConfig,
    folder: Path,
    num_rows: int,
    shuffle: Literal[True, "global"],
) -> Row:
    files = sorted(folder.rglob("*.h5"))
    columns = [object_.layout.columns["tile"] for object_ in Dataset(config).open().objects]
    order = np.random.default_rng(0).permutation(num_rows)

    def touch() -> None:
        for file in files:
            os.utime(file)

    def load() -> None:
        loader = DataLoader(config, batch_size=BATCH, shuffle=shuffle)
        check_rows((loaded["number"] for loaded in loader), num_rows)

    def take() -> None:
        arrays = []
        for file, column in zip(files, columns, strict=True):
            with file.open("rb") as opened:
                data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            for start in range(0, data.nbytes, BLOCK):
                xxhash.xxh3_64_intdigest(data[start : start + BLOCK])
            arrays.append(np.frombuffer(data[column.offset : column.end], f"V{column.item_nbytes}"))
        starts = np.cumsum([0, *map(len, arrays)])
        for start in range(0, num_rows, BATCH):
            chosen = order[start : start + BATCH]
            out = np.empty(len(chosen), arrays[0].dtype)
            of = np.searchsorted(starts, chosen, "right") - 1
            for i in np.unique(of).tolist():
                out[of == i] = arrays[i][chosen[of == i] - starts[i]]

    return compare(
        f"first epoch of a fresh loader, folder in memory, shuffle={shuffle!r}, 48 KiB rows",
        Side("DataLoader", load, before=touch),
        [Side("map, hash, take", take)],
        amount=num_rows,
        unit="rows/s",
        effort=setting.effort,
        at_least=0.6,
    )


def _second(setting: Setting, config: DataConfig, num_rows: int) -> Row:
    time.sleep(SETTLED)
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    first = DataLoader(config, **settings)

    def epoch(loader: DataLoader) -> None:
        check_rows((loaded["number"] for loaded in loader), num_rows)

    epoch(first)
    return compare(
        "first epoch of a second loader of the same files, 48 KiB rows",
        Side("second loader", lambda: epoch(DataLoader(config, **settings))),
        [Side("a later epoch of the first", lambda: epoch(first))],
        amount=num_rows,
        unit="rows/s",
        effort=setting.effort,
        at_least=0.9,
    )


def _single(setting: Setting, config: DataConfig, num_rows: int) -> Row:
    dataset = Dataset(config)
    order = np.random.default_rng(0).permutation(num_rows).tolist()
    assert [int(dataset[i]["number"]) for i in order] == order

    def rate() -> float:
        begun = time.perf_counter()
        for i in order:
            dataset[i]
        return (time.perf_counter() - begun) / num_rows * 1e6

    times = [rate() for _ in range(setting.effort.rounds)]
    return Row(
        "Dataset[i], a row of 48 KiB in memory",
        "us",
        Spread.of(times),
        rounds=len(times),
        at_most=50,
    )


def _torch(
    setting: Setting, config: DataConfig, rows: dict[str, Any], num_rows: int
) -> Iterator[Row]:
    import torch

    import storage_loader.torch

    path = setting.folder().with_suffix(".npy")
    np.save(path, rows["tile"])
    array = np.load(path, mmap_mode="r")

    class Mapped(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return num_rows

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"tile": torch.from_numpy(array[index].copy()), "number": torch.tensor(index)}

    ours = storage_loader.torch.Dataset(config)
    for row in ours:
        del row  # verified once, as the plain array's pages are in memory
    for workers in (0, 2):

        def epoch(dataset: Any, workers: int = workers) -> None:
            loader = torch.utils.data.DataLoader(
                dataset, batch_size=TORCH_BATCH, shuffle=True, num_workers=workers
            )
            check_rows((loaded["number"].numpy() for loaded in loader), num_rows)

        yield compare(
            f"torch's DataLoader over Dataset, batches of {TORCH_BATCH}, {workers} workers",
            Side("Dataset", lambda epoch=epoch: epoch(ours)),  # type: ignore[misc]
            [Side("one memory map", lambda epoch=epoch: epoch(Mapped()))],  # type: ignore[misc]
            amount=num_rows,
            unit="rows/s",
            effort=setting.effort,
            at_least=0.8,
        )
    path.unlink()


def _share(setting: Setting, config: DataConfig, num_rows: int) -> Row:
    found = []
    for shuffle in (True, "global"):
        cache = setting.folder()
        loader = DataLoader(
            config,
            batch_size=BATCH,
            shuffle=shuffle,  # type: ignore[arg-type]
            cache_dir=cache,
            cache_size=Dataset(config).open().nbytes // 2,
        )
        for _ in range(2):
            check_rows((loaded["number"] for loaded in loader), num_rows)
        found.append(1 - loader.stats.bytes_fetched / loader.open().nbytes)
        shutil.rmtree(cache)
    return Row(
        "found by a second epoch, room for half of the dataset, shuffle=True and 'global'",
        "of all bytes",
        Spread(min(found), sum(found) / 2, max(found)),
        at_least=0.45,
    )


def _at_once(setting: Setting, config: DataConfig) -> Row:
    count = setting.pick(1000, 200)
    loader = DataLoader(config, batch_size=BATCH, shuffle="global", index=True)
    generator = np.random.default_rng(0)
    chosen = [np.empty(0, np.int64)]

    def choose() -> None:
        chosen[0] = generator.choice(loader.num_rows, count, replace=False)

    def read() -> None:
        dataset = Dataset(config, cache_size=0)
        assert np.array_equal(dataset[chosen[0]]["number"], chosen[0])

    return compare(
        f"Dataset[{count:,} random rows] from S3, 20 ms a request, 48 KiB rows",
        Side("Dataset", read, before=choose),
        [Side("DataLoader(index=True)", lambda: index_epoch(loader, -(-count // BATCH)))],
        amount=count,
        unit="rows/s",
        effort=setting.effort,
        at_least=0.9,
    )


BENCHMARK = Benchmark("Loading what is on this machine already", run)
