"""What the order of rows costs: numbers per second, memory, and its part of loading time.

Numbers are asked for as the loader does: a window of the order at once for shuffle=True, 65,536
positions at once else; of a billion rows, some windows or pieces of several epochs. Memory is the
most that numpy and Python held at once. For shuffle=True also one of 8 ranks, which computes only
its own part of each window.

The part of loading time is what `Chunk.rows` (positions, order, subset) takes of the processor,
in whatever thread it runs, divided by the time of an epoch of rows of 3,008 bytes in batches of
256: from a folder in the second epoch, and from S3 in a first one. It runs beside fetching, so
the epoch is longer by less than that.
"""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import numpy as np

from storage_loader import DataConfig, DataLoader, DataSaver
from storage_loader.loader.order import Order, Rows, Shuffle, make_order
from storage_loader.loader.order.chunks import Chunk

from .data import batch, make_rows
from .rank_bytes import RECORDS
from .runner import Row, Spread
from .setting import Benchmark, Setting

PIECE = 65_536
SAMPLE = 2**23  # positions of a billion rows, over the epochs
EPOCHS = 4
BATCH = 256
BOUND = 0.02
SHUFFLES: tuple[Shuffle, ...] = (False, True, "global")


def run(setting: Setting) -> Sequence[Row]:
    rates = [
        _rate(setting, num_rows, shuffle, row_nbytes, world)
        for num_rows in (10**7, 10**9)
        for shuffle in SHUFFLES
        for row_nbytes in ((72, 3_008) if shuffle is True else (3_008,))
        for world in ((1, 8) if shuffle is True else (1,))
    ]
    return [*rates, *_shares(setting)]


def _rate(setting: Setting, num_rows: int, shuffle: Shuffle, row_nbytes: int, world: int) -> Row:
    order = make_order(shuffle, num_rows=num_rows, row_nbytes=row_nbytes, seed=0)
    asked = list(_asked(order, setting.pick(SAMPLE, SAMPLE // 8), world))
    count = sum(len(positions) for _, positions in asked)

    def work(turn: int) -> None:
        for epoch, positions in asked:
            order.rows(epoch + turn * EPOCHS, positions)

    def begin(turn: int) -> float:
        """Seconds that an epoch takes before its first row."""
        start = time.thread_time()
        for epoch in range(EPOCHS):
            order.rows(epoch + turn * EPOCHS, np.arange(1))
        return (time.thread_time() - start) / EPOCHS

    seconds, begins = [], []
    for turn in range(setting.effort.rounds):  # other epochs each time: nothing is kept
        begins.append(begin(turn))
        start = time.thread_time()  # one thread's work: what else the machine does matters less
        work(turn)
        seconds.append(time.thread_time() - start)
    peak = _peak(lambda: work(setting.effort.rounds))
    what = f", {row_nbytes:,} B rows, 1 of {world} ranks" if shuffle is True else ""
    return Row(
        f"order of {num_rows:,} rows, shuffle={shuffle}{what}",
        "million rows/s",
        Spread.of([count / s / 1e6 for s in seconds]),
        rounds=len(seconds),
        note=f"{peak / 2**20:.1f} MiB at most, {min(begins) * 1e3:.1f} ms before an epoch",
        others={"peak memory, MiB": Spread.of([peak / 2**20]), "begin, s": Spread.of(begins)},
    )


def _asked(order: Order, sample: int, world: int) -> Iterator[tuple[int, Rows]]:
    """Epochs and positions, `sample` of them in all or a little more."""
    size = order.window_end(0) or PIECE
    pieces = order.num_rows // size
    wanted = min(pieces * EPOCHS, -(-sample // size))
    for i in range(wanted):
        start = i * pieces // wanted * size
        yield i % EPOCHS, np.arange(start, start + size, world)


def _peak(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _shares(setting: Setting) -> Iterator[Row]:
    num_rows = setting.pick(200_000, 20_000)
    rows = make_rows(RECORDS, num_rows)

    def save(config: DataConfig) -> None:
        with DataSaver(config) as saver:
            for start in range(0, num_rows, 4096):
                saver(batch(rows, start, start + 4096))

    folder = DataConfig("bench", RECORDS, storage=setting.folder())
    save(folder)
    for shuffle in SHUFFLES:
        loader = DataLoader(folder, batch_size=BATCH, shuffle=shuffle)
        for _ in loader:  # maps and verifies
            pass
        shares = [_share(loader) for _ in range(setting.effort.rounds)]
        yield _share_row(f"a folder, warm, shuffle={shuffle}", shares, num_rows)
    with setting.bucket() as bucket:
        remote = DataConfig("bench", RECORDS, **bucket.settings)
        save(remote)
        for shuffle in SHUFFLES:
            shares = []
            for _ in range(max(3, setting.effort.rounds // 4)):
                cache = setting.folder()
                loader = DataLoader(remote, batch_size=BATCH, shuffle=shuffle, cache_dir=cache)
                loader.open()
                shares.append(_share(loader))
            yield _share_row(f"S3, first epoch, shuffle={shuffle}", shares, num_rows)


def _share(loader: DataLoader) -> tuple[float, float]:
    """Of one epoch: the order's seconds on a processor, and all seconds."""
    spent = 0.0
    lock = threading.Lock()
    plain = Chunk.rows

    def timed(chunk: Chunk) -> Rows:
        nonlocal spent
        start = time.thread_time()
        found = plain(chunk)
        with lock:
            spent += time.thread_time() - start
        return found

    with mock.patch.object(Chunk, "rows", timed):
        start = time.perf_counter()
        for _ in loader:
            pass
        return spent, time.perf_counter() - start


def _share_row(what: str, shares: Sequence[tuple[float, float]], num_rows: int) -> Row:
    rates = Spread.of([num_rows / whole for _, whole in shares])
    order = Spread.of([spent / num_rows * 1e9 for spent, _ in shares])
    return Row(
        f"the order's part of loading 3,008 B rows from {what}",
        "of the time",
        Spread.of([spent / whole for spent, whole in shares]),
        rounds=len(shares),
        at_most=BOUND,
        note=f"{order.median:.1f} ns a row; {rates.median / 1e6:.2f} million rows/s",
        others={"rows/s": rates, "order, ns a row": order},
    )


BENCHMARK = Benchmark("What the order of rows costs", run)
