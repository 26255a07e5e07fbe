"""One run through a loader's epochs: the path of its batches, where it stands, and what it did.

chunks of rows made ready (`due_batches`), by threads ahead of use
-> arrays of a batch (`read_batches`)
-> the user's batch (`_batch`), here, in threads ahead or in worker processes
-> on its way to a device, where there is one (`feed.ring`)
-> received or placed, counted, given (`Iteration.run`)
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ..process import PerProcess
from ..sync import Event
from .decode import Each, InThreads
from .feed import Ring
from .fetch.engine import one_row
from .fill.gather import Fillers
from .fill.memory import Memory
from .order import Rows
from .order.chunks import Epoch
from .order.partition import Partition
from .order.state import State
from .run.ahead import Ahead, when_it_pays
from .run.prefetch import Due, Read, due_batches, read_batches, unprepared
from .run.stats import Meter, Stats
from .run.workers import Job, Pool
from .settings import Settings
from .view import View

T = TypeVar("T")

Made = tuple[int, Rows, Any]  # a finished batch, with its number and its rows' numbers
Timed = tuple[T, float, float]  # with the moments when its rows were ready and gathered

_AHEAD = 1  # batches placed beyond the one in use


@dataclass
class Last:
    """The iteration of a loader that began or gave a batch last."""

    iteration: Iteration | None = None


class Iteration:
    """Where one run through a loader's epochs stands, and its meter. Refers to no loader."""

    def __init__(self, state: State) -> None:
        self._begun = state
        self._given: tuple[State, Partition, int] | None = None  # the last batch's
        self._meter: PerProcess[Meter] = PerProcess()

    def state(self, start: Callable[[int], State]) -> State:
        """After the last batch that was given; `start(epoch)` is that of the next iteration."""
        if self._given is None:
            return self._begun
        state, partition, number = self._given
        if number + 1 < partition.num_batches:
            return replace(state, rows=partition.rows_after(number))
        epoch = state.epoch + 1
        return replace(state, epoch=epoch, rows=0) if epoch < state.stop_epoch else start(epoch)

    @property
    def stats(self) -> Stats:
        """What it did in this process so far."""
        meter = self._meter.peek()
        return Stats() if meter is None else meter.stats()

    def run(self, reader: Reader, last: Last) -> Generator[Any, None, None]:
        """The batches, as the user gets them."""
        meter, state = self._meter.get(Meter), self._begun
        meter.begin(reader.view._row_nbytes, reader.view._counter)
        try:
            while True:
                epoch = reader.epoch(state)
                with closing(reader.batches(epoch, meter)) as batches:
                    for number, rows, batch in batches:
                        self._given = state, epoch.partition, number
                        last.iteration = self
                        meter.give(len(rows))
                        yield batch
                        meter.waits()
                if not epoch.partition.num_batches:
                    self._given = state, epoch.partition, -1
                if state.epoch + 1 >= state.stop_epoch:
                    return
                state = replace(state, epoch=state.epoch + 1, rows=0)
        finally:
            meter.end()


@dataclass(frozen=True)
class Reader:
    """The batches of a loader at one version.

    It refers to the loader, whose files and workers end with it. So a loader keeps none.
    """

    view: View
    settings: Settings
    memory: Memory | None  # see `Feed.memory`
    pool: Pool
    epoch: Callable[[State], Epoch]  # that a state stands in

    def batches(self, epoch: Epoch, meter: Meter) -> Generator[Made, None, None]:
        """Those of one epoch, where they are used."""
        feed = self.view._feed
        ring = None if feed.ring is None else feed.ring()
        made = self._worked if self.settings.num_workers else self._gathered
        batches = made(epoch, meter, ring)
        if ring is not None:
            return _received(batches, ring)
        return batches if feed.place is None else _placed(batches, feed.place, feed.places_ahead())

    def _gathered(
        self, epoch: Epoch, meter: Meter, ring: Ring | None
    ) -> Generator[Made, None, None]:
        """Made in this process: in the consumer's thread, or ahead of it in others."""
        if not self.view._decode:
            yield from self._gathered_by(map, epoch, meter, ring)
            return
        with closing(InThreads(min(self.settings.threads, os.cpu_count() or 1))) as each:
            yield from self._gathered_by(each, epoch, meter, ring)

    def _gathered_by(
        self, each: Each, epoch: Epoch, meter: Meter, ring: Ring | None
    ) -> Generator[Made, None, None]:
        """The same; `each` does what is to be decoded."""
        view, transforms = self.view, self.view._runs_user_code
        made_by = view._fillers()

        def make(timed: Timed[Read]) -> Timed[Made]:
            read, ready, gathered = timed
            batch = _batch(view, self.settings, read, epoch.place(read.number), each)
            if ring is not None:
                batch = ring.send(batch, read.memory)
            made = read.number, read.rows, batch
            return made, ready, gathered if transforms else float("inf")

        stop = Event()
        with closing(self._due(epoch, stop)) as due:
            moments = Meter(meter.clock)  # of what is read, perhaps ahead of what is given
            reads = (
                (read, moments.ready, meter.clock())
                for read in read_batches(
                    view.schema, _stamped(due, moments), self._memory(made_by, ring), made_by
                )
            )
            if transforms:
                results = Ahead(reads, make, stop).results()
            elif ring is not None:  # one: torch has more to gather
                results = Ahead(reads, make, stop, threads=1).results()
            else:
                results = when_it_pays(reads, make, stop)
            with closing(results):
                for made, meter.ready, meter.gathered in results:
                    yield made

    def _memory(self, made_by: Fillers, ring: Ring | None) -> Callable[[], Memory | None]:
        """Gives the memory of the next batch; None: new arrays."""
        if ring is None:
            return lambda: self.memory
        if self.view._runs_user_code:  # which may keep what it gets
            return lambda: None
        rows = self.settings.num_rows
        extras = 16 * rows  # bytes at most
        sizes = [filler.nbytes(rows) for filler in made_by.values()]
        return partial(ring.take, [*sizes, extras, extras])

    def _worked(self, epoch: Epoch, meter: Meter, ring: Ring | None) -> Generator[Made, None, None]:
        """Made in worker processes, for which this one fetches ahead into the cache."""
        with closing(self._from_workers(epoch, meter)) as batches:
            if ring is None:
                yield from batches
                return
            ahead = Ahead(batches, lambda m: (*m[:2], ring.send(m[2], None)), threads=1)
            with closing(ahead.results()) as results:
                yield from results

    def _from_workers(self, epoch: Epoch, meter: Meter) -> Generator[Made, None, None]:
        job = Job(partial(_make, self.view, self.settings), self.view._feed.reduce)
        with closing(self._due(epoch, Event())) as chunks:
            meter.gathered = 0.0  # in the workers
            due = _stamped(chunks, meter)
            singles = (chunk.one(i) for chunk in due for i in range(len(chunk.rows)))
            ready = singles if self.view._engine.holds else unprepared(epoch)
            tasks = ((one, epoch.place(one.first)) for one in ready)
            with self.pool.workers(job, self.settings.num_workers) as workers:
                for (one, _), (batch, traffic) in workers.map(tasks):
                    meter.add_traffic(traffic)
                    yield one.first, one.rows[0], batch

    def _due(self, epoch: Epoch, stop: threading.Event) -> Generator[Due, None, None]:
        return due_batches(
            self.view._engine,
            epoch,
            stop,
            row_nbytes=self.view._row_nbytes,
            prefetch=self.settings.prefetch,
            threads=self.settings.threads,
        )


def _received(batches: Generator[Made, None, None], ring: Ring) -> Generator[Made, None, None]:
    try:
        with closing(batches):
            for number, rows, sent in batches:
                yield number, rows, ring.receive(sent)
    finally:
        ring.clear()


def _placed(
    batches: Generator[Made, None, None], place: Callable[[Any, Rows], Any], ahead: bool
) -> Generator[Made, None, None]:
    with closing(batches):
        placed = ((n, rows, place(batch, rows)) for n, rows, batch in batches)
        yield from _taken_ahead(placed) if ahead else placed


def _make(view: View, settings: Settings, task: tuple[Due, tuple[int, ...]]) -> Any:
    """In a worker: the finished batch, and what was fetched for it."""
    due, place = task
    (rows,), (valid,) = due.rows, due.valid
    before = view._counter.total
    read = Read(due.first, rows, valid, view._engine.read(rows, view._fillers()))
    batch = _batch(view, settings, read, place)
    return batch, view._counter.total - before


def _batch(
    view: View, settings: Settings, read: Read, place: tuple[int, ...], each: Each = map
) -> Any:
    """What the user gets of the arrays that were read; `place` is the batch's, see `Epoch`."""
    arrays: dict[str, Any] = dict(read.arrays)
    if "row" in settings.extras:
        arrays["row"] = read.rows.copy()
    if "valid" in settings.extras:
        arrays["valid"] = read.valid.copy()
    is_row = settings.batch_size is None
    given = one_row(arrays, 0) if is_row else arrays
    return view._finish(given, read.rows, place, is_row=is_row, each=each)


def _stamped(chunks: Iterator[Due], meter: Meter) -> Iterator[Due]:
    """Notes when each chunk is there."""
    for chunk in chunks:
        meter.ready = meter.clock()
        yield chunk
        del chunk  # its rows, before the next one's are waited for


def _taken_ahead(items: Iterator[T]) -> Iterator[T]:
    """Items, each taken when the one before it is wanted; the first is given at once."""
    waiting: deque[T] = deque()
    ahead = 0
    try:
        for item in items:
            waiting.append(item)
            if len(waiting) > ahead:
                ahead = _AHEAD
                yield waiting.popleft()
    except Exception:  # it comes after the batches before it
        yield from waiting
        raise
    yield from waiting
