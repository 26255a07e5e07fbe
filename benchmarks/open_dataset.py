"""Opening a dataset: its commits listed, read, checked and put in order. No object is read.

Commits are published by the catalog with objects that are nowhere: opening knows them from the
commits alone. As a saver leaves them, all objects of a commit but the last hold equally many rows;
"of all sizes" is a harder case, objects of 1 to 445 rows in turn. "Of variable length" are tokens
that differ in length from row to row: each object has its own number of rows and of bytes, and the
commit says of each where its directory lies, and the smallest and largest of a number; with zstd,
blocks are compressed and directories three times as large. Time is that of
`DataLoader(config).open()`. Memory is the peak of resident memory in a process of its own, less
what it held after opening another, small dataset. The pickled size is that of the loader, which
carries what it has opened to each worker process.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader
from storage_loader.catalog import Catalog, Extreme, StoredObject
from storage_loader.codecs import Codec
from storage_loader.hdf5 import capacity, template
from storage_loader.layout import (
    ALIGNMENT,
    BLOCK_NBYTES,
    CODED_BLOCK_WORDS,
    WORD_NBYTES,
    ObjectLayout,
    Outline,
    block_items,
    num_place_words,
)
from storage_loader.schema import Schema

from .data import IMAGES, OBJECT_NBYTES
from .process import in_process, resident
from .runner import Row, Spread
from .setting import Benchmark, Setting

ROUNDS = 5
TOKENS = (Attribute("tokens", "int32", (None,)), Attribute("number", "int64"))
VARIABLE, CODED = "of variable length", "of variable length, zstd"
ZSTD = Codec("zstd", 3, True)


@dataclass(frozen=True)
class Shape:
    """How many objects a dataset has, and which."""

    num_commits: int
    num_objects: int  # of each commit
    kind: str = ""  # or "of all sizes", VARIABLE, CODED

    def __str__(self) -> str:
        count = f"{self.num_commits * self.num_objects:,}"
        return f"{count} objects {self.kind} in {self.num_commits:,} commits".replace("  ", " ")

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Of its rows."""
        return TOKENS if self.kind in (VARIABLE, CODED) else IMAGES

    def config(self, settings: dict[str, Any]) -> DataConfig:
        """Of a dataset for this shape alone."""
        return DataConfig("opened", self.attributes, {"shape": str(self)}, **settings)


SMALL = Shape(1, 1)


def run(setting: Setting) -> Iterator[Row]:
    few = Shape(setting.pick(100, 10), 100)
    many = Shape(setting.pick(1000, 20), 1000)
    with setting.bucket() as bucket:
        for shape in (few, many, replace(many, kind=VARIABLE)):
            yield from _measured(setting, bucket.settings, "S3", shape)
    folder = {"storage": str(setting.folder())}
    kinds = [replace(many, kind=kind) for kind in ("of all sizes", VARIABLE, CODED)]
    for shape in (few, many, *kinds):
        yield from _measured(setting, folder, "a folder", shape)


def _publish(settings: dict[str, Any], shape: Shape) -> None:
    catalog = Catalog(shape.config(settings))
    catalog.store.prepare()
    schema = Schema(shape.attributes)
    catalog.create(schema)
    rng = np.random.default_rng(0)
    made = _objects if shape.attributes is IMAGES else _variable_objects
    for number in range(shape.num_commits):
        writer, attempt = rng.bytes(8).hex(), rng.bytes(4).hex()  # each commit by a job of its own
        keys = [f"objects/{writer}/{attempt}-{i:06d}.h5" for i in range(shape.num_objects)]
        checksums = rng.integers(0, 2**64, (shape.num_objects, 2), np.uint64).tolist()
        objects = [
            StoredObject(key, *pair, *figures)
            for key, pair, figures in zip(keys, checksums, made(shape, number, rng), strict=True)
        ]
        catalog.publish(schema, objects, writer=writer, number=0)


Figures = tuple[ObjectLayout | Outline, int, dict[str, tuple[Extreme, Extreme]]]


def _objects(shape: Shape, number: int, rng: np.random.Generator) -> Iterator[Figures]:
    layouts = _layouts()
    for index in range(shape.num_objects):
        is_full = shape.kind != "of all sizes" and index < shape.num_objects - 1
        layout = layouts[-1 if is_full else (number + index) % len(layouts)]
        yield layout, layout.rows * Schema(IMAGES).row_nbytes, {}


@cache
def _layouts() -> Sequence[ObjectLayout]:
    """Of objects of 1 row up to as many as they hold."""
    schema = Schema(IMAGES)
    return [template(schema, n).layout for n in range(1, capacity(schema, OBJECT_NBYTES) + 1)]


def _variable_objects(shape: Shape, number: int, rng: np.random.Generator) -> Iterator[Figures]:
    """As savers fill them: 64 MiB but for a row or so that did not fit."""
    regions = Schema(TOKENS).regions
    blocks = {region.name: block_items(region.item_nbytes) for region in regions}
    is_coded = shape.kind == CODED
    codecs = dict.fromkeys(blocks, ZSTD) if is_coded else {}
    factor, per_block = (4, CODED_BLOCK_WORDS) if is_coded else (1, 1)  # of bytes, once decoded
    nbytes = OBJECT_NBYTES - rng.integers(0, 8192, shape.num_objects)
    rows = factor * rng.integers(15_000, 17_000, shape.num_objects)  # of 1,032 tokens in the mean
    columns = np.cumsum(rows).tolist(), rows.tolist(), nbytes.tolist()
    for last, count, size in zip(*columns, strict=True):
        words = num_place_words(len(regions)) + factor * size // BLOCK_NBYTES * per_block
        start = ALIGNMENT * (32 + count % 32)
        outline = Outline(count, size, (start, start + words * WORD_NBYTES), blocks, codecs)
        yield outline, factor * size, {"number": (last - count, last - 1)}


def _measured(
    setting: Setting, settings: dict[str, Any], place: str, shape: Shape
) -> Iterator[Row]:
    words = f"{shape} from {place}"
    if not setting.wants(words):
        return
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
    seconds = 10 if shape.num_objects == 1000 else 1
    yield Row(f"opening {words}", "s", Spread.of(times), rounds=ROUNDS, at_most=seconds)
    yield Row(f"peak memory of opening {words}", "MB", Spread.of([growth / 1e6]), at_most=1000)
    yield Row(f"pickled loader of {words}", "MB", Spread.of([pickled / 1e6]))


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
