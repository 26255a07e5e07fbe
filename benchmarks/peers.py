"""Loading speed beside other libraries: mosaicml-streaming, litdata, webdataset, Lance, torch.

All read the same rows, in shards of at most 64 MiB (ours: objects). Ours runs in this process, a
peer's loader in one of its own that it keeps (peer_loaders.py). Each peer's ways (processes, and
settings of its own) run in a trial first; the fastest that gives all rows then runs in turn with
ours and the other peers, each round in another order. Every epoch is checked: each row once, with
its own values. Ways that lose or double rows, or fail, stand in the note.

- first epoch: from S3, shuffled as each can, with an empty cache on local disk and memory at hand
  (pages.py), timed from the loader's construction to its last batch. Lance keeps no cache, and
  its scan is not shuffled within fragments.
- second epoch: with the cache that the first one filled, by the same loader, timed alone. Shuffled
  globally by ours, streaming (one canonical node, blocks of 4 million rows), Lance (takes of
  random rows from a local copy) and torch; litdata shuffles chunks, and windows of 256 rows within
  them; webdataset shards, and a buffer of 1,000 rows or 64 MiB.
- random batches by index from S3, nothing kept: `shuffle="global", index=True` beside Lance's take.
- small rows: from local folders. Those that decode row by row get 100,000 of 10 million rows.

peer_sweep.py has first and second epochs over the size of a row.

torch is its DataLoader over numpy memory maps: it gets a sampler of batches, and gathers a batch
by `np.take`. How the other peers are helped stands in peer_loaders.py.

The peers need a Python of their own, since streaming wants an older numpy than others. In a new
virtual environment, torch first and alone, since any other order fetches CUDA:

    python3.11 -m venv PEERS
    PEERS/bin/pip install -r requirements/torch.txt
    PEERS/bin/pip install --no-deps -r requirements/peers.txt
    python -m benchmarks peers --peers PEERS/bin/python

Instead of `--peers` the variable STORAGE_LOADER_BENCH_PEERS may name it. Without it only torch is
measured, in this Python.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from storage_loader import Attribute
from storage_loader.torch import DataLoader

from .data import TILES, VECTORS
from .peer_loaders import Spec, timed
from .peer_race import COLD, TAKE, WARM, Found, race, table_rows
from .peer_stored import Data, Group, Stored, rows_of, stored_in_all_formats
from .runner import Row
from .setting import Benchmark, Setting

LARGE_BATCH, SMALL_BATCH = 64, 4096
NUMBER = Attribute("number", "int64")
IMAGES = (Attribute("image", "uint8", (3, 224, 224)), NUMBER)  # 150,536 bytes a row


Part = Callable[[Stored], list[Found]]  # measures a dataset


def run(setting: Setting) -> Iterator[Row]:
    group = Group(setting)
    tiles = Data("tiles", "48 KiB float32 rows", TILES, setting.pick(8192, 1024), LARGE_BATCH)
    images = Data("images", "150 KB uint8 rows", IMAGES, setting.pick(7168, 256), LARGE_BATCH)
    vectors = Data("vectors", "72 B rows", VECTORS, setting.pick(10_000_000, 50_000), SMALL_BATCH)
    on_s3: dict[str, Part] = {
        "first epoch from S3, cold, shuffled, {words}": _first_epoch,
        "second epoch, warm, shuffled, {words}": _second_epoch,
    }
    by_index: dict[str, Part] = {"random batches of {batch} by index from S3, {words}": _by_index}
    local: dict[str, Part] = {"warm epoch of a folder, {words}, batches of {batch:,}": _small_rows}
    yield from _parts(group, tiles, on_s3 | by_index, on_s3=True)
    if not setting.effort.quick:
        yield from _parts(group, images, on_s3, on_s3=True)
    yield from _parts(group, vectors, local, on_s3=False)


def _parts(group: Group, data: Data, parts: Mapping[str, Part], *, on_s3: bool) -> Iterator[Row]:
    """Rows of those `parts`, by title, that are asked for; the data are stored for these."""
    titles = {title.format(**vars(data)): part for title, part in parts.items()}
    wanted = {title: part for title, part in titles.items() if group.setting.wants(title)}
    if wanted:
        with stored_in_all_formats(group, data, on_s3=on_s3) as stored:
            for title, part in wanted.items():
                yield from table_rows(title, part(stored))


def _first_epoch(stored: Stored) -> list[Found]:
    return race(stored, COLD, cold_epoch(stored), cold=True)


def _second_epoch(stored: Stored) -> list[Found]:
    with warm_epoch(stored) as ours:
        return race(stored, WARM, ours, cold=False)


def _by_index(stored: Stored) -> list[Found]:
    data = stored.data
    limit = stored.group.setting.pick(128, 4)
    part = replace(stored, spec=replace(stored.spec, limit=limit), local={})
    loader = DataLoader(stored.config, batch_size=data.batch, shuffle="global", index=True)

    def ours() -> float:
        return _checked(part.spec, time.perf_counter(), loader)

    return race(part, TAKE, ours, cold=False)


def _small_rows(stored: Stored) -> list[Found]:
    data = stored.data
    with warm_epoch(stored) as ours:
        found = race(stored, WARM, ours, cold=False)
    for entry in found:
        count = rows_of(entry.name, data)
        if count < data.rows:
            entry.words += f", {count:,} of {data.rows:,} rows"
    return found


def cold_epoch(stored: Stored) -> Callable[[], float]:
    """Our first epoch: its seconds."""
    cache = stored.group.setting.folder()

    def load() -> float:
        stored.group.peers.memory_at_hand(stored.spec)
        start = time.perf_counter()
        loader = DataLoader(
            stored.config,
            batch_size=stored.data.batch,
            shuffle=True,
            cache_dir=cache,
            extras=("row",),
        )
        try:
            return _checked(stored.spec, start, loader)
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    return load


@contextlib.contextmanager
def warm_epoch(stored: Stored) -> Iterator[Callable[[], float]]:
    """Our epochs: their seconds. The first fills the cache."""
    cache = stored.group.setting.folder()
    loader = DataLoader(
        stored.config, batch_size=stored.data.batch, shuffle="global", cache_dir=cache
    )
    try:
        yield lambda: _checked(stored.spec, time.perf_counter(), loader)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _checked(spec: Spec, start: float, loader: DataLoader) -> float:
    """Seconds of our epoch; its rows must be right."""
    value = next(name for name in loader.spec if name != "number")
    batches = ((batch[value], batch["number"]) for batch in loader)
    seconds, fault = timed(spec, start, batches)
    if fault:
        raise AssertionError(fault)
    return seconds


BENCHMARK = Benchmark("Loading beside other libraries", run)
