"""The loader of each framework against the numpy loader: what handing batches over costs.

Batches of 64 rows in `shuffle="global"` from a folder that was read before. Of each batch one
value is read, no more. Every loader has a process of its own, as in use: frameworks change how
memory is given out in theirs. The processes run an epoch each in turn, and the ratio is to the
numpy loader's rate. Every loader is checked to give every row.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataSaver

from .data import IMAGES, TILES, batch, make_rows
from .load_s3 import check_rows
from .runner import Row, Side, compare
from .setting import Benchmark, Setting

BATCH = 64
STEP = 512  # rows saved at once
NUMPY = "numpy"
SHARDED = "jax, sharding="
BY_HAND = "numpy, and jax.device_put of each batch"
# By what is measured: the module of its loader, the framework it needs, the least ratio.
LOADERS: dict[str, tuple[str, str, float | None]] = {
    "torch": ("storage_loader.torch", "torch", 0.95),
    "tensorflow": ("storage_loader.tensorflow", "tensorflow", 0.7),
    "tensorflow, as_dataset()": ("storage_loader.tensorflow", "tensorflow", None),
    "jax": ("storage_loader.jax", "jax", 0.7),
    SHARDED: ("storage_loader.jax", "jax", 0.7),
    BY_HAND: ("storage_loader", "jax", None),
}


def run(setting: Setting) -> Sequence[Row]:
    return [
        *_loaded(setting, TILES, setting.pick(8192, 1024), "48 KiB float32 rows"),
        *_loaded(setting, IMAGES, setting.pick(2688, 512), "150 KB uint8 rows"),
    ]


def _loaded(
    setting: Setting, attributes: tuple[Attribute, ...], num_rows: int, words: str
) -> Iterator[Row]:
    rows = make_rows(attributes, num_rows)
    folder = setting.folder()
    config = DataConfig("bench", attributes, storage=folder)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, STEP):
            saver(batch(rows, start, start + STEP))
    del rows
    epochs = max(1, -(-setting.pick(300, 30) * BATCH // num_rows))  # at least 300 batches
    found = [name for name, (_, needed, _) in LOADERS.items() if find_spec(needed) is not None]
    with ExitStack() as held:
        side = {
            name: Side(name, partial(held.enter_context(_epochs_of(name, config)), epochs))
            for name in (NUMPY, *found)
        }
        for name in found:
            yield compare(
                f"DataLoader of {name}, {words}",
                side[name],
                [side[NUMPY]],
                amount=num_rows * epochs,
                unit="rows/s",
                effort=setting.effort,
                at_least=LOADERS[name][2],
            )
    shutil.rmtree(folder)


@contextmanager
def _epochs_of(name: str, config: DataConfig) -> Iterator[Callable[[int], None]]:
    """A function that has the loader run through so many epochs, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, config), daemon=True)
    process.start()
    theirs.close()
    ours.recv()  # it has imported and checked: nothing of that beside what is measured

    def epochs(count: int) -> None:
        ours.send(count)
        if ours.recv() != count:
            raise RuntimeError(f"{name}: not every epoch was run")

    try:
        yield epochs
    finally:
        ours.close()  # ends the process
        process.join()


def _serve(connection: Connection, name: str, config: DataConfig) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    module = importlib.import_module("storage_loader" if name == NUMPY else LOADERS[name][0])
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": "global"}
    if name == SHARDED:
        jax = importlib.import_module("jax")
        settings["sharding"] = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    check = module.DataLoader(config, extras=("row",), **settings)
    check_rows((np.asarray(loaded["row"]) for loaded in check), check.num_rows)
    loader: Iterable[Any] = module.DataLoader(config, **settings)
    place = importlib.import_module("jax").device_put if name == BY_HAND else None
    if name.endswith("as_dataset()"):
        loader = module.DataLoader(config, **settings).as_dataset()
    first = next(iter(check.spec))
    connection.send(0)
    while True:
        try:
            count = connection.recv()
        except EOFError:
            return
        for _ in range(count):
            for loaded in loader:
                taken = loaded if place is None else place(loaded)
                np.asarray(taken[first]).flat[0]
        connection.send(count)


BENCHMARK = Benchmark("The loaders of the frameworks beside that of numpy", run)
