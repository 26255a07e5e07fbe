"""The batches of an epoch on one rank, as arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .gather import Array
from .order import Rows
from .plan import Chunk, Epoch, chunks
from .prefetch import ahead
from .source import Source

_AHEAD = 2  # chunks being made ready while one is consumed
_GATHER_NBYTES = 4 * 2**20  # small batches are gathered together and sliced
_GATHER_ROWS = 65_536
_READ_AHEAD = 3  # batches read at once where nothing is held


@dataclass(frozen=True)
class Read:
    """A batch: arrays of shape (rows, *shape)."""

    number: int  # of the global batch, from the epoch's start or the resumed row on
    rows: Rows  # numbers in the dataset; -1 is padding
    valid: npt.NDArray[np.bool_]
    arrays: dict[str, Array]


def read_epoch(
    source: Source, epoch: Epoch, *, row_nbytes: int, prefetch: int, threads: int
) -> Iterator[Read]:
    """The rank's batches in order. Close the iterator to end its threads.

    `row_nbytes` is that of what is read. Where the source holds objects, chunks of batches
    are made ready ahead, of about half `prefetch` bytes each or a window of the order; else
    batches are read ahead.
    """
    batch_nbytes = max(1, row_nbytes * epoch.partition.batch_size)
    if not source.holds:
        return _read_remote(source, epoch)
    most = max(1, prefetch // 2 // batch_nbytes)
    return _read_held(source, epoch, most=most, batch_nbytes=batch_nbytes, threads=threads)


def _read_held(
    source: Source, epoch: Epoch, *, most: int, batch_nbytes: int, threads: int
) -> Iterator[Read]:
    stop = threading.Event()
    rows = epoch.partition.batch_size
    together = max(1, min(_GATHER_NBYTES // batch_nbytes, _GATHER_ROWS // rows))

    def prepare(chunk: Chunk) -> tuple[Chunk, Rows]:
        rows = chunk.rows()
        if not source.is_complete:
            fetched = np.append(rows, chunk.rows_beyond())
            for begun in [pool.submit(work) for work in source.missing(fetched, stop)]:
                begun.result()
        return chunk, rows

    with ThreadPoolExecutor(threads, thread_name_prefix="storage_loader-fetch") as pool:
        ready = ahead(prepare, chunks(epoch, most=most), depth=_AHEAD, threads=_AHEAD)
        try:
            for chunk, numbers in ready:
                valid = chunk.valid()
                for first in range(0, len(numbers), together):
                    some = numbers[first : first + together]
                    arrays = source.gather(some.reshape(-1))
                    yield from _sliced(chunk.first + first, some, valid[first:], arrays)
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            ready.close()  # type: ignore[attr-defined]  # a generator


def _sliced(
    number: int, rows: Rows, valid: npt.NDArray[np.bool_], arrays: dict[str, Array]
) -> Iterator[Read]:
    """Batches gathered together, one by one: each has its own part of the memory."""
    size = rows.shape[1]
    for i, batch in enumerate(rows):
        own = {name: array[i * size : (i + 1) * size] for name, array in arrays.items()}
        yield Read(number + i, batch, valid[i], own)


def _read_remote(source: Source, epoch: Epoch) -> Iterator[Read]:
    def read(chunk: Chunk) -> Read:
        rows = chunk.rows()[0]
        return Read(chunk.first, rows, chunk.valid()[0], source.read(rows))

    singles = (Chunk(epoch, n, n + 1) for n in range(epoch.partition.num_batches))
    with closing(ahead(read, singles, depth=_READ_AHEAD, threads=_READ_AHEAD)) as reads:  # type: ignore[type-var]
        yield from reads
