"""Loading to a GPU, against the rate at which it copies from pinned memory.

`DataLoader(device="cuda")`, shuffled, batches of 64, from a folder that was read before and from a
cache that holds a dataset of an S3 server; plain: as many batches of the same size copied from
four pinned buffers to memory of the device, by a stream of its own. A training step is a kernel of
1.2 times the copy of a batch, the host never more than a step ahead; the share of time waited is
what the steps do not account for. Beside it torch's DataLoader over the same rows in one .npy
file, with pin_memory and the best of some numbers of workers. Without CUDA there is no result.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from storage_loader import Attribute, DataConfig, DataSaver
from storage_loader.torch import DataLoader

from .data import IMAGES, TILES, batch, make_rows
from .load_s3 import check_rows
from .runner import Row, Side, Spread, compare
from .setting import NAMES, VARIABLE, Benchmark, Setting

BATCH = 64
STEP = 1.2  # times the copy of a batch
WORKERS = (2, 4, 8, 16)
KEYS = {"access_key": "benchmark", "secret_key": "benchmark", "region": "us-east-1"}


def run(setting: Setting) -> Sequence[Row]:
    if not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no CUDA device here: no figures, no result file")
        return []
    return measure(setting, torch.device("cuda", torch.cuda.current_device()))


def measure(setting: Setting, device: torch.device) -> Sequence[Row]:
    """The figures; on a CPU they are those of copies in its own memory, and show that this runs."""
    rows: list[Row] = []
    for attributes, count, words in (
        (IMAGES, setting.pick(7168, 128), "150 KB uint8 rows"),
        (TILES, setting.pick(16384, 128), "48 KiB float32 rows"),
    ):
        rows += _of(setting, device, attributes, count, words)
    return rows


def _of(
    setting: Setting,
    device: torch.device,
    attributes: tuple[Attribute, ...],
    num_rows: int,
    words: str,
) -> list[Row]:
    values = make_rows(attributes, num_rows)
    nbytes = BATCH * sum(a.row_nbytes for a in attributes)
    num_batches = num_rows // BATCH
    epochs = setting.pick(4, 1)
    folder, cache, arrays = setting.folder(), setting.folder(), setting.folder()
    copies = _Copies(device, nbytes)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    result = []
    with _bucket(setting) as place:
        stored = {
            "the folder": (DataConfig(attributes[0].name, attributes, storage=str(folder)), {}),
            "the cache": (
                DataConfig(attributes[0].name, attributes, **place),
                {"cache_dir": cache},
            ),
        }
        for place_words, (config, how) in stored.items():
            with DataSaver(config) as saver:
                for start in range(0, num_rows, 256):
                    saver(batch(values, start, start + 256))
            settings = {"batch_size": BATCH, "shuffle": "global", "device": device, **how}
            named = DataLoader(config, extras=("row",), **settings)
            check_rows((given["row"].cpu().numpy() for given in named), num_rows)
            loader = DataLoader(config, **settings)
            result.append(
                compare(
                    f"from {place_words} to the device, warm, {words}",
                    Side("DataLoader", lambda loader=loader: _load(loader, device, epochs)),
                    [Side("pinned copies", lambda: copies.run(epochs * num_batches))],
                    amount=epochs * num_batches * BATCH,
                    unit="rows/s",
                    effort=setting.effort,
                    at_least=0.9,
                    note=name,
                )
            )
            del named
        result.append(
            compare(
                f"to the device beside torch's DataLoader with pin_memory, {words}",
                Side("DataLoader", lambda: _load(loader, device, 1)),
                list(_torch_sides(setting, values, arrays, device)),
                amount=num_batches * BATCH,
                unit="rows/s",
                effort=setting.effort,
                note=name,
            )
        )
        result.append(_waited(setting, device, loader, copies, words, name))
    for made in (folder, cache, arrays):
        shutil.rmtree(made, ignore_errors=True)
    return result


def _load(batches: Iterable[Any], device: torch.device, epochs: int) -> None:
    for _ in range(epochs):
        for _ in batches:
            pass
    _finish(device)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Copies:
    """The device's own rate: from four pinned buffers to as many of the device."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._from = [torch.ones(nbytes, dtype=torch.uint8) for _ in range(4)]
        if self._is_cuda:
            self._from = [tensor.pin_memory() for tensor in self._from]
        self._to = [torch.empty(nbytes, dtype=torch.uint8, device=device) for _ in range(4)]

    def run(self, count: int) -> None:
        stream = torch.cuda.Stream(self._device) if self._is_cuda else None
        with torch.cuda.stream(stream) if self._is_cuda else contextlib.nullcontext():
            for i in range(count):
                self._to[i % 4].copy_(self._from[i % 4], non_blocking=True)
        _finish(self._device)

    def seconds(self) -> float:
        """Of one copy."""
        self.run(8)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            self.run(64)
            times.append((time.perf_counter() - start) / 64)
        return statistics.median(times)


class _Step:
    """A kernel of a given length; the host waits until the one before it is over."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._is_cuda = device.type == "cuda"
        self._seconds = seconds
        self._before: Any = None
        if self._is_cuda:
            self._cycles = 10**7
            self._sleep()  # the first one loads it
            times = []
            for _ in range(5):
                start = time.perf_counter()
                self._sleep()
                times.append(time.perf_counter() - start)
            self._cycles = int(self._cycles * seconds / statistics.median(times))

    def _sleep(self) -> None:
        torch.cuda._sleep(self._cycles)
        torch.cuda.synchronize()

    def __call__(self) -> None:
        if not self._is_cuda:
            time.sleep(self._seconds)
            return
        torch.cuda._sleep(self._cycles)
        now = torch.cuda.Event(blocking=True)
        now.record()
        if self._before is not None:
            self._before.synchronize()
        self._before = now


def _waited(
    setting: Setting,
    device: torch.device,
    loader: DataLoader,
    copies: _Copies,
    words: str,
    name: str,
) -> Row:
    """What a training loop takes beyond its steps; both measured in turn."""
    step = _Step(device, STEP * copies.seconds())
    count = len(loader)

    def timed(work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        _finish(device)
        return time.perf_counter() - start

    def steps() -> None:
        for _ in range(count):
            step()

    def train() -> None:
        for _ in loader:
            step()

    shares, hosts = [], []
    for _ in range(setting.effort.rounds):
        alone = timed(steps)
        shares.append(100 * max(0.0, 1 - alone / timed(train)))
        hosts.append(100 * loader.stats.wait_share)
    return Row(
        f"time waited, steps of {STEP} times the copy, {words}",
        "%",
        Spread.of(shares),
        rounds=setting.effort.rounds,
        at_most=2.0,
        note=f"{name}; the host waited {statistics.median(hosts):.2g}%",
    )


class _Rows(torch.utils.data.Dataset[Any]):
    """Rows of one memory map, an item each: as torch's DataLoader collates them."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._arrays = {
            name: np.load(f"{folder}/{name}.npy", mmap_mode="c") for name in names
        }  # copy on write: torch takes no read-only memory

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: torch.from_numpy(a[index, ...]) for name, a in self._arrays.items()}


def _torch_sides(
    setting: Setting, values: dict[str, np.ndarray], folder: Any, device: torch.device
) -> Iterator[Side]:
    os.makedirs(folder)
    for name, array in values.items():
        np.save(f"{folder}/{name}.npy", array)
    dataset = _Rows(str(folder), list(values))
    cores = os.cpu_count() or 1
    for workers in [n for n in WORKERS if n <= cores] if not setting.effort.quick else [1]:
        given = torch.utils.data.DataLoader(
            dataset,
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
        )

        def load(given: Any = given) -> None:
            for loaded in given:
                for tensor in loaded.values():
                    tensor.to(device, non_blocking=True)
            _finish(device)

        yield Side(f"torch's DataLoader, {workers} workers", load)


@contextlib.contextmanager
def _bucket(setting: Setting) -> Iterator[dict[str, Any]]:
    """A bucket of the server that STORAGE_LOADER_TEST_S3_* name, else of moto in this process.

    The cache is filled from it once; nothing of it is measured.
    """
    if all(os.environ.get(VARIABLE + name) for name in NAMES):
        with setting.bucket() as bucket:
            yield bucket.settings
        return
    import logging

    from minio import Minio
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        keys = {name: value for name, value in KEYS.items() if name != "region"}
        Minio(f"{host}:{port}", **keys, region=KEYS["region"], secure=False).make_bucket("bench")
        yield {"storage": "s3://bench", "endpoint": f"http://{host}:{port}", **KEYS}
    finally:
        server.stop()


BENCHMARK = Benchmark("Loading to a GPU", run)
