"""Opening a dataset: its commits listed, read, checked and put in order. No object is read.

Commits are published by the catalog with objects that are nowhere: opening knows them from the
commits alone. As a saver leaves them, all objects of a commit but the last hold equally many rows;
"of all sizes" is a harder case, objects of 1 to 445 rows in turn. Time is that of
`DataLoader(config).open()`. Memory is the peak of resident memory in a process of its own, less
what it held after opening another, small dataset. The pickled size is that of the loader, which
carries what it has opened to each worker process.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from storage_loader import DataConfig, DataLoader
from storage_loader.catalog import Catalog, StoredObject
from storage_loader.hdf5 import capacity, template
from storage_loader.layout import ObjectLayout
from storage_loader.schema import Schema

from .data import IMAGES, OBJECT_NBYTES
from .process import in_process, resident
from .runner import Row, Spread
from .setting import Benchmark, Setting

ROUNDS = 5
SCHEMA = Schema(IMAGES)


@dataclass(frozen=True)
class Shape:
    """How many objects a dataset has, and which."""

    num_commits: int
    num_objects: int  # of each commit
    of_all_sizes: bool = False

    def __str__(self) -> str:
        count = f"{self.num_commits * self.num_objects:,}"
        sizes = " of all sizes" if self.of_all_sizes else ""
        return f"{count} objects{sizes} in {self.num_commits:,} commits"

    def config(self, settings: dict[str, Any]) -> DataConfig:
        """Of a dataset for this shape alone."""
        return DataConfig("opened", IMAGES, {"shape": str(self)}, **settings)


SMALL = Shape(1, 1)


def run(setting: Setting) -> Sequence[Row]:
    few = Shape(setting.pick(100, 10), 100)
    many = Shape(setting.pick(1000, 20), 1000)
    varied = Shape(setting.pick(1000, 20), 1000, of_all_sizes=True)
    with setting.bucket() as bucket:
        rows = [
            *_measured(bucket.settings, "S3", few, seconds=1),
            *_measured(bucket.settings, "S3", many, seconds=10),
        ]
    folder = {"storage": str(setting.folder())}
    return [
        *rows,
        *_measured(folder, "a folder", few, seconds=1),
        *_measured(folder, "a folder", many, seconds=10),
        *_measured(folder, "a folder", varied, seconds=10),
    ]


def _publish(settings: dict[str, Any], shape: Shape) -> None:
    catalog = Catalog(shape.config(settings))
    catalog.store.prepare()
    catalog.create(SCHEMA)
    layouts = _layouts()
    rng = np.random.default_rng(0)
    for number in range(shape.num_commits):
        writer, attempt = rng.bytes(8).hex(), rng.bytes(4).hex()  # each commit by a job of its own
        checksums = rng.integers(0, 2**64, (shape.num_objects, 2), np.uint64).tolist()
        objects = []
        for index in range(shape.num_objects):
            is_full = not shape.of_all_sizes and index < shape.num_objects - 1
            layout = layouts[-1 if is_full else (number + index) % len(layouts)]
            key = f"objects/{writer}/{attempt}-{index:06d}.h5"
            decoded = layout.rows * SCHEMA.row_nbytes
            objects.append(StoredObject(key, *checksums[index], layout, decoded))
        catalog.publish(SCHEMA, objects, writer=writer, number=0)


@cache
def _layouts() -> Sequence[ObjectLayout]:
    """Of objects of 1 row up to as many as they hold."""
    return [template(SCHEMA, n).layout for n in range(1, capacity(SCHEMA, OBJECT_NBYTES) + 1)]


def _measured(settings: dict[str, Any], place: str, shape: Shape, *, seconds: int) -> Sequence[Row]:
    _publish(settings, SMALL)
    _publish(settings, shape)
    config = shape.config(settings)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        snapshot = DataLoader(config).open()
        times.append(time.perf_counter() - start)
        assert len(snapshot.objects) == shape.num_commits * shape.num_objects
        del snapshot
    growth = in_process(_growth_of_opening, settings, shape)
    pickled = in_process(_pickled_nbytes, settings, shape)
    words = f"{shape} from {place}"
    return [
        Row(f"opening {words}", "s", Spread.of(times), rounds=ROUNDS, at_most=seconds),
        Row(f"peak memory of opening {words}", "MB", Spread.of([growth / 1e6]), at_most=1000),
        Row(f"pickled loader of {words}", "MB", Spread.of([pickled / 1e6])),
    ]


def _growth_of_opening(settings: dict[str, Any], shape: Shape) -> int:
    DataLoader(SMALL.config(settings)).open()
    before = resident("VmRSS")
    DataLoader(shape.config(settings)).open()
    return resident("VmHWM") - before


def _pickled_nbytes(settings: dict[str, Any], shape: Shape) -> int:
    loader = DataLoader(shape.config(settings))
    assert loader.num_rows  # as a training loop asks
    return len(pickle.dumps(loader))


BENCHMARK = Benchmark("Opening a dataset", run)
