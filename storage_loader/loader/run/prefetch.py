"""The batches of an epoch on one rank: made ready chunk by chunk, then gathered."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from ...schema import Schema
from ..fetch.engine import Engine
from ..fetch.work import Preparation, Prepare
from ..fill.gather import Fillers, gathered
from ..fill.memory import Memory
from ..fill.parts import Array
from ..fill.ready import Ready
from ..order import Rows
from ..order.chunks import Chunk, Epoch, chunks
from .pipeline import AHEAD, Pipeline

_DECODED_AHEAD = 1  # chunk, where there are no delays to bridge: two pieces of memory take turns
_CHUNKS = 16  # parts of `prefetch` that are made ready together, where the order has no windows
_IN_FLIGHT = 8  # one part in so many of `prefetch` is for what is being fetched
_HERE = 4  # times as much is planned together where nothing is fetched: it costs less


@dataclass(frozen=True)
class Due:
    """Batches of one chunk that can be read now."""

    first: int  # global batch, from the epoch's start or the resumed row on
    rows: Rows  # numbers in the dataset, shape (batches, rows); -1 is padding
    valid: npt.NDArray[np.bool_]  # in the shape of `rows`
    ready: Ready | None = None  # None: read them from the engine

    def one(self, i: int) -> Due:
        """Batch `i` of these, for another process to read."""
        return Due(self.first + i, self.rows[i : i + 1], self.valid[i : i + 1])


@dataclass(frozen=True)
class Read:
    """A batch: arrays of shape (rows, *shape)."""

    number: int
    rows: Rows
    valid: npt.NDArray[np.bool_]
    arrays: dict[str, Array]
    memory: Memory | None = None  # that the arrays lie in; None: numpy's own


def due_batches(
    engine: Engine,
    epoch: Epoch,
    stop: threading.Event,
    *,
    row_nbytes: int,
    prefetch: int,
    threads: int,
) -> Generator[Due, None, None]:
    """The rank's batches in order, a chunk at a time. Close the iterator to end its threads.

    Up to `prefetch` bytes are fetched and verified ahead. `row_nbytes` is that of what is read.
    Once `stop` is set, whoever waits here gets a chunk soon, which may not be whole.
    """
    ahead = AHEAD
    if engine.only_decodes:  # more threads than cores would only fight for Python's lock
        threads, ahead = min(threads, os.cpu_count() or 1), _DECODED_AHEAD
    batch_nbytes = max(1, row_nbytes * epoch.partition.batch_size)
    tuning = engine.tuning
    chunk_nbytes = prefetch // _CHUNKS * (_HERE if engine.is_complete else 1)
    plan = chunks(epoch, most=max(1, chunk_nbytes // batch_nbytes))
    in_flight = prefetch // _IN_FLIGHT
    prepared = partial(
        _prepared, engine, work_nbytes=max(1, min(tuning.work_nbytes, in_flight // threads))
    )
    planned: deque[Preparation[Due]] = deque()
    for chunk in plan:
        planned.append(prepared(chunk, stop))
        if planned[-1].waits:
            break
        # Nothing to overlap with: threads would only take from the gather. But the next chunk is
        # planned before this one is used, so that it is fetched meanwhile; not before the first.
        if len(planned) > 1 or not chunk.first:
            yield planned.popleft().now()
    else:
        while planned:
            yield planned.popleft().now()
        return
    given = (_given(planned.popleft()) for _ in range(len(planned)))  # and hold none any more
    later: Iterator[Prepare[Due]] = (partial(prepared, chunk) for chunk in plan)
    pipeline = Pipeline(
        chain(given, later),
        nbytes=prefetch - in_flight,
        threads=threads,
        waiting_threads=tuning.waiting_threads,
        ahead=ahead,
        stop=stop,
    )
    with closing(pipeline.results()) as results:
        yield from results


def _prepared(
    engine: Engine, chunk: Chunk, stop: threading.Event, *, work_nbytes: int
) -> Preparation[Due]:
    rows = chunk.rows()
    fetched = rows
    if engine.holds and not engine.is_complete:
        fetched = np.append(rows, chunk.rows_beyond())
    epoch = chunk.epoch
    share = None
    is_alone = epoch.partition.world_size == 1 and 2 * epoch.order.num_rows >= engine.num_rows
    if is_alone and chunk.first:  # nothing comes early before the first batch
        share = engine.tuning.whole_share if chunk.end else 0.0
    ready = engine.prepare(fetched, stop, work_nbytes=work_nbytes, whole_share=share)
    due = Due(chunk.first, rows, chunk.valid())
    return Preparation(ready.works, lambda: replace(due, ready=ready.finish()))


def _given(preparation: Preparation[Due]) -> Prepare[Due]:
    return lambda _: preparation


def unprepared(epoch: Epoch) -> Iterator[Due]:
    """The rank's batches in order, one by one, for other processes to read from the store."""
    for number in range(epoch.partition.num_batches):
        chunk = Chunk(epoch, number, number + 1)
        yield Due(chunk.first, chunk.rows(), chunk.valid())


def read_batches(
    schema: Schema,
    due: Iterator[Due],
    new_memory: Callable[[], Memory | None],
    made_by: Fillers,
) -> Iterator[Read]:
    """The batches as arrays."""
    for chunk in due:
        yield from _reads(schema, chunk, new_memory, made_by)
        del chunk  # its rows, before the next one's are waited for


def _reads(
    schema: Schema, chunk: Due, new_memory: Callable[[], Memory | None], made_by: Fillers
) -> Iterator[Read]:
    assert chunk.ready is not None
    batches = gathered(schema, chunk.ready, chunk.rows, new_memory, made_by)
    for i, (arrays, memory) in enumerate(batches):
        yield Read(chunk.first + i, chunk.rows[i], chunk.valid[i], arrays, memory)
