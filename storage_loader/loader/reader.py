"""The batches of an epoch on one rank: made ready chunk by chunk, then gathered."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
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
class Due:
    """Batches of one chunk that can be read now."""

    first: int  # global batch, from the epoch's start or the resumed row on
    rows: Rows  # numbers in the dataset, shape (batches, rows); -1 is padding
    valid: npt.NDArray[np.bool_]  # in the shape of `rows`

    def one(self, i: int) -> Due:
        """Batch `i` of these."""
        return Due(self.first + i, self.rows[i : i + 1], self.valid[i : i + 1])


@dataclass(frozen=True)
class Read:
    """A batch: arrays of shape (rows, *shape)."""

    number: int
    rows: Rows
    valid: npt.NDArray[np.bool_]
    arrays: Mapping[str, Array]


def due_batches(
    source: Source, epoch: Epoch, *, row_nbytes: int, prefetch: int, threads: int
) -> Generator[Due, None, None]:
    """The rank's batches in order, a chunk at a time. Close the iterator to end its threads.

    Where the source holds objects, a chunk's are fetched and verified ahead: about half
    `prefetch` bytes, or a window of the order. `row_nbytes` is that of what is read.
    """
    if not source.holds:
        for number in range(epoch.partition.num_batches):
            yield _due(Chunk(epoch, number, number + 1))
        return
    batch_nbytes = max(1, row_nbytes * epoch.partition.batch_size)
    plan = chunks(epoch, most=max(1, prefetch // 2 // batch_nbytes))
    if source.is_complete:  # nothing to overlap with: threads would only take from the gather
        yield from map(_due, plan)
        return
    stop = threading.Event()

    def prepare(chunk: Chunk) -> Due:
        due = _due(chunk)
        if not source.is_complete:
            fetched = np.append(due.rows, chunk.rows_beyond())
            for begun in [pool.submit(work) for work in source.missing(fetched, stop)]:
                begun.result()
        return due

    with ThreadPoolExecutor(threads, thread_name_prefix="storage_loader-fetch") as pool:
        ready = ahead(prepare, plan, depth=_AHEAD, threads=_AHEAD)
        try:
            yield from ready
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            ready.close()


def _due(chunk: Chunk) -> Due:
    return Due(chunk.first, chunk.rows(), chunk.valid())


def gathered(source: Source, due: Iterator[Due], *, row_nbytes: int) -> Generator[Read, None, None]:
    """The batches as arrays. Small ones are gathered together and sliced."""
    if not source.holds:
        with closing(
            ahead(lambda d: _reads(source, d), due, depth=_READ_AHEAD, threads=_READ_AHEAD)
        ) as groups:
            for reads in groups:
                yield from reads
        return
    for chunk in due:
        size = max(1, chunk.rows.shape[1])
        together = max(1, min(_GATHER_NBYTES // max(1, size * row_nbytes), _GATHER_ROWS // size))
        for i in range(0, len(chunk.rows), together):
            some = slice(i, i + together)
            yield from _reads(source, Due(chunk.first + i, chunk.rows[some], chunk.valid[some]))


def _reads(source: Source, due: Due) -> list[Read]:
    arrays = source.read(due.rows.reshape(-1))
    size = due.rows.shape[1]
    return [
        Read(
            due.first + i,
            rows,
            due.valid[i],
            {name: array[i * size : (i + 1) * size] for name, array in arrays.items()},
        )
        for i, rows in enumerate(due.rows)
    ]
