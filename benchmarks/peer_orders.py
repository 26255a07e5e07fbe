"""Orders of rows of other loaders: run by a Python that has them, imports nothing of ours.

`python peer_orders.py OUT` reads a JSON list of datasets (num_rows, shard_rows, epochs, batch)
from standard input, writes OUT/<i>-<loader>-<epoch>.npy for each, and prints versions and
settings as JSON. Only the modules that decide the order are imported, so that neither needs all
it depends on: mosaicml-streaming needs numpy here; litdata torch, lightning-utilities, boto3,
obstore, requests and tifffile.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    out = Path(sys.argv[1])
    datasets = json.load(sys.stdin)
    about = {}
    for name, (package, settings, order) in PEERS.items():
        for i, dataset in enumerate(datasets):
            for epoch in range(dataset["epochs"]):
                shards = _shards(dataset["num_rows"], dataset["shard_rows"])
                np.save(out / f"{i}-{name}-{epoch}.npy", order(shards, dataset["batch"], epoch))
        about[name] = {"package": package, "version": version(package), "settings": settings}
    json.dump(about, sys.stdout)


def _shards(num_rows: int, shard_rows: int) -> list[int]:
    return [min(shard_rows, num_rows - start) for start in range(0, num_rows, shard_rows)]


def _streaming(algorithm: str, nodes: int) -> Any:
    """As StreamingDataset calls it on one machine with nothing but shuffle=True given."""

    def order(shards: list[int], batch: int, epoch: int) -> Any:
        _bare_package("streaming", "streaming.base")
        shuffle = importlib.import_module("streaming.base.shuffle")
        block = max(4_000_000 // nodes, 1 << 18)
        return shuffle.get_shuffle(algorithm, np.array(shards), nodes, 9176, epoch, block)

    return order


def _litdata(shards: list[int], batch: int, epoch: int) -> Any:
    """As StreamingDataset(shuffle=True) goes through its chunks in one process of one rank."""
    shuffle = importlib.import_module("litdata.streaming.shuffle")
    environment = importlib.import_module("litdata.utilities.env")._DistributedEnv(1, 0, 1)
    ends = np.cumsum(shards)
    intervals = [(end - n, end - n, end, end) for n, end in zip(shards, ends.tolist(), strict=True)]
    chunks = [{"chunk_bytes": 1} for _ in shards]
    config = types.SimpleNamespace(_chunks=chunks)
    reader = types.SimpleNamespace(_config=config, _max_cache_size=2**40)
    cache = types.SimpleNamespace(get_chunk_intervals=lambda: intervals, _reader=reader)
    shuffler = shuffle.FullShuffle(cache, 42, False)
    found = shuffler.get_chunks_and_intervals_per_workers(environment, 1, batch, epoch + 1)
    rows: list[int] = []
    for chunk, interval in zip(found[0][0], found[1][0], strict=True):
        part = np.arange(interval[1], interval[2])
        rows += shuffler(part, len(shards), epoch + 1, int(chunk))
    return np.array(rows)


def _bare_package(*names: str) -> None:
    """Packages that find their modules without running their own `__init__`."""
    for name in names:
        if name not in sys.modules:
            top, *rest = name.split(".")
            spec = importlib.util.find_spec(top) if not rest else None
            places = spec.submodule_search_locations if spec else sys.modules[top].__path__
            module = types.ModuleType(name)
            module.__path__ = [str(Path(place, *rest)) for place in places or ()]
            sys.modules[name] = module


# name -> package, what it is at, and the function of (rows of each shard, batch, epoch)
PEERS = {
    "py1e": ("mosaicml-streaming", "default: blocks of 4,000,000 rows", _streaming("py1e", 1)),
    "py1br": ("mosaicml-streaming", "blocks of 4,000,000 rows", _streaming("py1br", 1)),
    "py1s": ("mosaicml-streaming", "64 canonical nodes, their default", _streaming("py1s", 64)),
    "litdata": ("litdata", "FullShuffle, default item window of 256", _litdata),
}

if __name__ == "__main__":
    main()
