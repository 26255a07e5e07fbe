"""One side of `change`: saves and loads with whichever storage_loader the process finds.

`python change_side.py` answers each line of standard input, a JSON job, by one JSON line: a job
{"do": name, "settings": {...}} is one of the functions below, called with the settings, and gives
{"seconds"}. An error is {"error": text}. Every epoch is checked to have given every row once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save

IMAGES = (Attribute("image", "uint8", (3, 224, 224)), Attribute("number", "int64"))  # 150,536 bytes
TILES = (Attribute("tile", "float32", (3, 64, 64)), Attribute("number", "int64"))  # 49,160
VECTORS = (Attribute("vector", "float32", (16,)), Attribute("number", "int64"))  # 72
KINDS = {"images": IMAGES, "tiles": TILES, "vectors": VECTORS}
FRESH = """
import json, sys
from storage_loader import DataConfig, DataLoader
place = json.loads(sys.argv[1])
rows = 0
for batch in DataLoader(DataConfig("tiles", **place), batch_size=64, shuffle=True):
    rows += len(batch["number"])
print(rows)
"""

_rows: dict[tuple[str, int], dict[str, Any]] = {}
_loaders: dict[str, DataLoader] = {}


def saving(*, kind: str, num_rows: int, place: dict[str, Any], name: str) -> float:
    """Save rows of a kind, in batches of 256."""
    rows = _made(kind, num_rows)
    config = DataConfig(name, KINDS[kind], **place)
    start = time.perf_counter()
    with DataSaver(config) as saver:
        for first in range(0, num_rows, 256):
            saver({key: values[first : first + 256] for key, values in rows.items()})
    return time.perf_counter() - start


def commits(*, count: int, place: dict[str, Any], name: str) -> float:
    """Save one row a commit, `count` times."""
    config = DataConfig(name, [("number", "int64")], **place)
    start = time.perf_counter()
    for number in range(count):
        save(config, {"number": [number]})
    return time.perf_counter() - start


def opening(*, rounds: int, place: dict[str, Any], name: str) -> float:
    """Open a dataset `rounds` times."""
    config = DataConfig(name, **place)
    start = time.perf_counter()
    for _ in range(rounds):
        DataLoader(config).open()
    return time.perf_counter() - start


def warm(*, epochs: int, batch_size: int, num_rows: int, place: dict[str, Any], name: str) -> float:
    """Further epochs of one loader."""
    loader = _loaders.get(name)
    if loader is None:
        loader = _loaders[name] = DataLoader(
            DataConfig(name, **place), batch_size=batch_size, shuffle=True
        )
        _check(loader, num_rows)
    start = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return time.perf_counter() - start


def fresh_loader(*, num_rows: int, place: dict[str, Any], name: str) -> float:
    """The first epoch of a new loader in this process."""
    start = time.perf_counter()
    _check(DataLoader(DataConfig(name, **place), batch_size=64, shuffle=True), num_rows)
    return time.perf_counter() - start


def fresh_process(*, num_rows: int, place: dict[str, Any], name: str) -> float:
    """An epoch in a process of its own, from its start to its end."""
    assert name == "tiles"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(place)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == num_rows
    return time.perf_counter() - start


def dataset(*, batches: int, num_rows: int, place: dict[str, Any], name: str) -> float:
    """64 random rows by `Dataset[...]`, many times."""
    found = Dataset(DataConfig(name, **place))
    rng = np.random.default_rng(0)
    chosen = [rng.integers(0, num_rows, 64) for _ in range(batches)]
    start = time.perf_counter()
    for rows in chosen:
        assert (found[rows]["number"] == rows).all()
    return time.perf_counter() - start


def first_epoch(
    *, num_rows: int, place: dict[str, Any], name: str, cache: str, batch_size: int
) -> float:
    """An epoch of a network store with an empty cache."""
    start = time.perf_counter()
    _check(
        DataLoader(DataConfig(name, **place), batch_size=batch_size, shuffle=True, cache_dir=cache),
        num_rows,
    )
    seconds = time.perf_counter() - start
    shutil.rmtree(cache)
    return seconds


def first_batch(*, place: dict[str, Any], name: str, cache: str) -> float:
    """The first batch of a network store with an empty cache."""
    start = time.perf_counter()
    batches = iter(
        DataLoader(DataConfig(name, **place), batch_size=64, shuffle=True, cache_dir=cache)
    )
    numbers = next(batches)["number"]
    seconds = time.perf_counter() - start
    assert len(set(numbers.tolist())) == 64
    del batches
    shutil.rmtree(cache)
    return seconds


def by_index(*, num_rows: int, place: dict[str, Any], name: str) -> float:
    """An epoch of random rows over the network; nothing is kept."""
    config = DataConfig(name, **place)
    start = time.perf_counter()
    _check(DataLoader(config, batch_size=64, shuffle="global", index=True), num_rows)
    return time.perf_counter() - start


JOBS: dict[str, Callable[..., float]] = {
    job.__name__: job
    for job in (
        saving,
        commits,
        opening,
        warm,
        fresh_loader,
        fresh_process,
        dataset,
        first_epoch,
        first_batch,
        by_index,
    )
}


def _made(kind: str, num_rows: int) -> dict[str, Any]:
    key = kind, num_rows
    if key not in _rows:
        _rows.clear()
        rng = np.random.default_rng(0)
        values: dict[str, Any] = {}
        for a in KINDS[kind]:
            if a.name == "number":
                values[a.name] = np.arange(num_rows)
            elif a.dtype == "float32":
                values[a.name] = rng.random((num_rows, *a.shape), np.float32)
            else:
                values[a.name] = rng.integers(0, 256, (num_rows, *a.shape), np.uint8)
        _rows[key] = values
    return _rows[key]


def _check(batches: Iterable[dict[str, Any]], num_rows: int) -> None:
    numbers = np.concatenate([batch["number"] for batch in batches])
    assert len(numbers) == num_rows
    assert (np.bincount(numbers, minlength=num_rows) == 1).all()


def main() -> None:
    root = str(Path(sys.modules["storage_loader"].__file__ or "").parents[1])
    for line in sys.stdin:
        job = json.loads(line)
        try:
            do = job["do"]
            answer = {"root": root} if do == "root" else {"seconds": JOBS[do](**job["settings"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
