"""How fast a dataset loads here: epochs of a loader, their stats, and a plot of them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .catalog import Snapshot
from .config import DataConfig
from .errors import ConfigError
from .loader import DataLoader, Stats
from .loader.fetch.cache import cache_folder

_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Sample:
    """A point of the plot: since the sample before it."""

    seconds: float  # since the first epoch began
    rows_per_second: float
    wait_share: float


@dataclass
class Measured:
    """What was measured so far: the stats of each epoch begun, and samples of all of them."""

    epochs: list[Stats] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def measure(
    loader: DataLoader,
    measured: Measured,
    *,
    epochs: int,
    seconds: float | None = None,
    progress: Callable[[int], object] = lambda rows: None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Run epochs, each for at most `seconds`; `measured` is up to date however this ends."""
    begun = clock()
    for _ in range(epochs):
        start, last = clock(), Stats()
        sampled = start
        measured.epochs.append(last)
        with closing(_batches(loader)) as batches:
            try:
                rows = 0
                for _ in batches:
                    now = clock()
                    if now - sampled >= _SAMPLE_SECONDS:
                        stats = loader.stats
                        measured.samples.append(_sample(now - begun, last, stats))
                        progress(stats.rows - rows)
                        sampled, last, rows = now, stats, stats.rows
                    if seconds is not None and now - start >= seconds:
                        break
                progress(loader.stats.rows - rows)
            finally:
                measured.epochs[-1] = stats = loader.stats
                if stats.rows > last.rows:
                    measured.samples.append(_sample(clock() - begun, last, stats))


def _batches(loader: DataLoader) -> Generator[Any, None, None]:
    yield from loader


def _sample(at: float, last: Stats, now: Stats) -> Sample:
    seconds = max(now.seconds - last.seconds, 1e-9)
    waited = now.wait_seconds - last.wait_seconds
    return Sample(at, (now.rows - last.rows) / seconds, min(1.0, max(0.0, waited / seconds)))


@contextmanager
def cold_cache(cache_dir: str | os.PathLike[str] | None) -> Iterator[str]:
    """A folder for an empty cache, on the disk of the usual one; it goes in the end."""
    usual = cache_folder(cache_dir)
    os.makedirs(usual, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=usual) as folder:
        yield folder


def forget_pages(config: DataConfig, snapshot: Snapshot) -> None:
    """Let the system drop what it has in memory of a dataset in a folder, as far as it can."""
    if not (config.storage.startswith("file://") and hasattr(os, "posix_fadvise")):
        return
    folder = Path(config.storage.removeprefix("file://"))
    for index in range(len(snapshot.objects)):
        descriptor = os.open(folder / snapshot.key(index), os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def require_plot(path: str | os.PathLike[str]) -> None:
    """Raises `ConfigError` where nothing can be plotted, before anything is measured."""
    folder = Path(path).absolute().parent
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--plot {os.fspath(path)}: no file can be made in {folder}")
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"--plot {os.fspath(path)}: it will be a PNG image; name it .png")
    try:
        import matplotlib.figure  # noqa: F401, PLC0415  optional
    except ImportError as error:
        raise ConfigError("--plot needs matplotlib: pip install 'storage-loader[plot]'") from error


def plot(samples: Sequence[Sample], title: str, path: str | os.PathLike[str]) -> None:
    """Rows per second and the share of waiting over time, as a PNG file."""
    from matplotlib.figure import Figure  # noqa: PLC0415  optional

    figure = Figure(figsize=(8, 5), layout="constrained")
    rates, waits = figure.subplots(2, 1, sharex=True)
    seconds = [sample.seconds for sample in samples]
    rates.plot(seconds, [sample.rows_per_second for sample in samples], marker=".")
    rates.set(title=title, ylabel="rows/s")
    rates.set_ylim(bottom=0)
    waits.plot(seconds, [sample.wait_share for sample in samples], marker=".", color="tab:red")
    waits.set(xlabel="seconds", ylabel="share of time waited", ylim=(0, 1.05))
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"--plot {os.fspath(path)}: {error.strerror or error}") from error
