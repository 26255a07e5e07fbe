"""`DataLoader`: the batches of an epoch, one after another."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from ..catalog import Snapshot, Version
from ..config import DataConfig
from ..errors import ConfigError, LoaderError
from ..keywords import checked_keywords, flag, shown, whole, whole_repr
from ..process import PerProcess
from .fill.memory import Memory
from .order import Order, Shuffle, make_order
from .order.chunks import Epoch
from .order.partition import LAST_BATCH, LastBatch, Partition
from .order.state import State
from .order.subset import Subset, make_subset
from .run.ahead import Ahead, when_it_pays
from .run.prefetch import Due, Read, due_batches, read_batches, unprepared
from .run.stats import Meter, Stats
from .run.workers import Job, Workers
from .view import Transform, View, one_row

EXTRAS = ("row", "valid")
DEFAULT_PREFETCH = 256 * 2**20

T = TypeVar("T")
L = TypeVar("L", bound="DataLoader")
Result = tuple[int, int, Any]  # a finished batch with its number and rows
Timed = tuple[T, float, float]  # with the moments when its rows were ready and gathered


class DataLoader(View):
    """Iterates over batches: dicts of arrays of shape (batch_size, *shape).

    Each `iter(loader)` runs the loader's next epoch, also after an early exit; `set_epoch`
    chooses it. Row k of an epoch is a function of seed, epoch, version and order settings
    alone: the same for any number of ranks and threads, any batch size and any state of the
    cache. A batch is the caller's own. One iteration belongs to one thread; a loader may run
    several.
    """

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        *,
        batch_size: int | None = 1,
        shuffle: Shuffle = False,
        seed: int = 0,
        last_batch: LastBatch = "partial",
        drop_last: bool = False,
        attributes: Sequence[str] | None = None,
        subset: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        version: Version | str | Sequence[str] | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        as_tuple: bool = False,
        extras: Sequence[str] = (),
        epochs: int = 1,
        prefetch: int = DEFAULT_PREFETCH,
        threads: int = 8,
        block: int | None = None,
        window: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        index: bool = False,
        verify: bool = True,
    ) -> None:
        """`batch_size`: rows on each rank; None gives one row at a time, without the batch axis.
        `shuffle`: True mixes rows within windows of blocks, "global" over the whole dataset.
        `last_batch`: what becomes of a last global batch that is not full: "partial" splits it
        evenly over the ranks, "drop" leaves it out, "pad" fills it with zeros, "wrap" with the
        epoch's first rows. `drop_last=True` is short for `last_batch="drop"`.
        `attributes`: read only these, in this order. `subset`: a fraction (float), a slice, a
        boolean mask or row numbers. `rank`, `world_size`: this process's part of each global
        batch; every rank gets the same number of batches. `version`: a `Version`, its hash or
        a list of commit ids instead of the newest. `transform` gets the batch; it runs ahead in
        a few threads, so it may be called from several at once. `num_workers`: processes that
        gather and transform instead, for a transform that holds the GIL. `as_tuple`: a tuple in
        attribute order instead of a dict. `extras`: adds "row" (int64, the rows' numbers,
        -1 for padding) and "valid" (bool, False for padding and repeats).
        `epochs`: how many one iteration runs through. `prefetch`: bytes fetched ahead,
        default 256 MiB. `threads`: fetching. `block`, `window`: rows, for `shuffle=True`.
        `cache_dir`: where objects of a network store are kept, default the user's cache
        directory. `cache_size`: bytes kept there at most, for all datasets; default what the
        disk has, less a twentieth; 0 keeps nothing. `index`: as `cache_size=0`, never fill the
        cache. `verify=False`: rows are given without a look at their checksums, those that an
        unclean shutdown left in the cache too.
        """
        super().__init__(
            config,
            attributes=attributes,
            version=version,
            transform=transform,
            as_tuple=as_tuple,
            verify=verify,
            cache_dir=cache_dir,
            cache_size=_cache_size(cache_size, flag("index", index)),
        )
        self._single_rows = batch_size is None
        self._batch_size = 1 if batch_size is None else whole("batch_size", batch_size, 1)
        if not (isinstance(shuffle, bool) or shuffle == "global"):
            raise ConfigError(f"shuffle {shown(shuffle)}: False, True or 'global'")
        self._shuffle: Shuffle = shuffle
        self._seed = whole("seed", seed, 0)
        self._last_batch = _last_batch(last_batch, flag("drop_last", drop_last))
        self._subset = subset
        self._given_ranks = _ranks(rank, world_size)
        self._extras = _extras(extras)
        self._epochs = whole("epochs", epochs, 1)
        self._prefetch = whole("prefetch", prefetch, 1)
        self._threads = whole("threads", threads, 1)
        self._block = None if block is None else whole("block", block, 1)
        self._window = None if window is None else whole("window", window, 1)
        self._num_workers = whole("num_workers", num_workers, 0)
        if self._num_workers and config.storage.startswith("memory://"):
            raise ConfigError(f"num_workers: no other process can read {config.storage}")
        self._pools: PerProcess[list[Workers[Due]]] = PerProcess()  # idle ones
        weakref.finalize(self, _close_pools, self._pools)
        self._meters: PerProcess[Meter] = PerProcess()  # of the iteration begun last
        self._epoch = 0
        # Of the iteration that began or gave a batch last: where it began, and the batch.
        self._given: tuple[State, Partition, int] | None = None
        self._state: State | None = None  # the same where no batch was given
        # A loaded state, which the next iteration goes on from, and what reads that one.
        self._resume: tuple[State, DataLoader] | None = None
        self._order: tuple[int, Order, Subset] | None = None  # and the seed it was made with

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        super()._checked(snapshot)
        clash = set(self._extras) & set(snapshot.schema.select(self._attributes).names)
        if clash:
            raise ConfigError(f"extras {sorted(clash)}: attributes of the same name are read")
        return snapshot

    @property
    def num_rows(self) -> int:
        """Rows of an epoch: of the dataset, or of `subset`.

        As `len` and `version`, that of every epoch but one resumed at another version.
        """
        return self._ordered()[0].num_rows

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter` begins with.

        Where a loaded state stands within this epoch, the next `iter` still goes on from there.
        """
        self._epoch = whole("epoch", epoch, 0)
        self._given = self._state = None
        if self._resume is not None and self._resume[0].epoch != epoch:
            self._resume = None

    def __len__(self) -> int:
        """Batches of one `iter(loader)` on this rank."""
        return self._partition(0).num_batches * self._epochs

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration that began or gave a batch last stands, in integers and strings.

        `rows` counts what was received, not what was fetched ahead. At an epoch's end it is
        the next epoch's row 0.
        """
        given = None if self._given is None else self._after(*self._given)
        resumed = None if self._resume is None else self._resume[0]
        return (resumed or given or self._state or self._start_state()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter` go on with exactly the row after `state`, at its version and seed.

        The version is that of the one iteration which `state` stands in. Where nothing of it
        was received yet, and from the one after it on, this loader's own is read, as without a
        state: `version`, or the newest at first use, which this is too. Seed and number of the
        epoch are counted on from the state's.

        On any world_size and batch_size. Raises `LoaderError` for a state of another dataset
        or other order settings, `VersionNotFoundError` where commits of its version are gone;
        the loader then is as it was.
        """
        loaded = State.from_dict(state)
        loaded.check_dataset(self.config.dataset_prefix)
        self.open()
        snapshot = self._at(loaded.pinned)
        order, subset = self._order_of(snapshot, loaded.seed)
        loaded.check_order(_settings(order, subset))
        if loaded.rows > order.num_rows or not (
            loaded.first_epoch <= loaded.epoch < loaded.stop_epoch
        ):
            raise LoaderError(
                f"the state stands at row {loaded.rows} of {order.num_rows} in epoch "
                f"{loaded.epoch}, up to {loaded.stop_epoch}: no loader made it"
            )
        self._ordered()  # what cannot follow is an error now, not at the end of the epoch
        self._seed = loaded.seed
        self._epoch = loaded.epoch
        if self._has_begun(loaded):
            self._resume = loaded, self._reading(snapshot)
        else:
            self._resume = replace(loaded, version=self._start_state().version), self

    def _has_begun(self, state: State) -> bool:
        """Whether something of the iteration that a state stands in may have been received."""
        return state.has_begun

    def _reading(self: L, snapshot: Snapshot) -> L:
        other = super()._reading(snapshot)
        if other is not self:
            other._pools = PerProcess()  # its workers end with it
            weakref.finalize(other, _close_pools, other._pools)
            other._order = other._resume = None
        return other

    def __iter__(self) -> Iterator[Any]:
        state, reader = self._resume or (self._start_state(), self)
        self._resume = None
        self._epoch = state.stop_epoch
        self._given, self._state = None, state
        self._meters = PerProcess()
        return self._iterate(state, reader, self._meters.get(Meter))

    @property
    def stats(self) -> Stats:
        """What the iteration that was begun last did in this process, up to now."""
        meter = self._meters.peek()
        return Stats() if meter is None else meter.stats()

    def _iterate(
        self, state: State, reader: DataLoader, meter: Meter
    ) -> Generator[Any, None, None]:
        meter.begin(self.schema.row_nbytes, self._counter)
        try:
            yield from self._epochs_from(state, reader, meter)
        finally:
            meter.end()

    def _epochs_from(
        self, state: State, reader: DataLoader, meter: Meter
    ) -> Generator[Any, None, None]:
        while True:
            epoch = reader._epoch_of(state)
            with closing(reader._batches(epoch, meter)) as batches:
                for number, rows, batch in batches:
                    self._given = state, epoch.partition, number
                    meter.give(rows)
                    yield batch
                    meter.waits()
            if not epoch.partition.num_batches:
                self._given, self._state = None, self._next_epoch(state)
            if state.epoch + 1 >= state.stop_epoch:
                return
            state = replace(state, epoch=state.epoch + 1, rows=0)

    def _batches(self, epoch: Epoch, meter: Meter) -> Generator[Result, None, None]:
        """Finished batches of one epoch, with their numbers and rows."""
        if self._num_workers:
            yield from self._worked(epoch, meter)
            return
        stop = threading.Event()
        with closing(self._due(epoch, stop)) as due:
            moments = Meter(meter.clock)  # of what is read, perhaps ahead of what is given
            reads = (
                (read, moments.ready, meter.clock())
                for read in read_batches(self.schema, _stamped(due, moments), self._new_memory)
            )
            with closing(self._results(reads, stop)) as results:
                for result, meter.ready, meter.gathered in results:
                    yield result

    def _results(
        self, reads: Iterator[Timed[Read]], stop: threading.Event
    ) -> Generator[Timed[Result], None, None]:
        """`_made` of each, in order: here or ahead in threads."""
        if self._transform is None:
            return when_it_pays(reads, self._made, stop)
        return Ahead(reads, self._made, stop).results()

    def _new_memory(self) -> Memory | None:
        """Where the next batch is put; None: new arrays. Not asked in worker processes."""
        return None

    def _made(self, timed: Timed[Read]) -> Timed[Result]:
        """A batch with its number and rows, and the moments when it was ready and gathered."""
        read, ready, gathered = timed
        result = read.number, len(read.rows), self._batch(read)
        return result, ready, gathered if self._transform else float("inf")

    def _worked(self, epoch: Epoch, meter: Meter) -> Generator[Result, None, None]:
        """The same from worker processes, for which this one fetches ahead into the cache."""
        with closing(self._due(epoch, threading.Event())) as chunks:
            meter.gathered = 0.0  # in the workers
            due = _stamped(chunks, meter)
            singles = (chunk.one(i) for chunk in due for i in range(len(chunk.rows)))
            with self._workers() as workers:
                for one, (batch, traffic) in workers.map(
                    singles if self._source.holds else unprepared(epoch)
                ):
                    meter.add_traffic(traffic)
                    yield one.first, one.rows.size, batch

    def _due(self, epoch: Epoch, stop: threading.Event) -> Generator[Due, None, None]:
        return due_batches(
            self._source,
            epoch,
            stop,
            row_nbytes=self.schema.row_nbytes,
            prefetch=self._prefetch,
            threads=self._threads,
        )

    @contextmanager
    def _workers(self) -> Iterator[Workers[Due]]:
        """Worker processes of this loader: kept for its next epoch if all went well."""
        idle = self._pools.get(list)
        workers = idle.pop() if idle else Workers(Job(self._make, self._reduce), self._num_workers)
        try:
            yield workers
        except BaseException:
            workers.close()
            raise
        idle.append(workers)

    def _make(self, due: Due) -> Any:
        """In a worker: the finished batch, and what was fetched for it."""
        (rows,), (valid,) = due.rows, due.valid
        before = self._counter.total
        batch = self._batch(Read(due.first, rows, valid, self._source.read(rows)))
        return batch, self._counter.total - before

    def _batch(self, read: Read) -> Any:
        arrays: dict[str, Any] = dict(read.arrays)
        if "row" in self._extras:
            arrays["row"] = read.rows.copy()
        if "valid" in self._extras:
            arrays["valid"] = read.valid.copy()
        return self._finish(one_row(arrays, 0) if self._single_rows else arrays, read.rows)

    def _after(self, state: State, partition: Partition, batch: int) -> State:
        """The state once a batch was received."""
        if batch + 1 < partition.num_batches:
            return replace(state, rows=partition.rows_after(batch))
        return self._next_epoch(state)

    def _next_epoch(self, state: State) -> State:
        epoch = state.epoch + 1
        if epoch < state.stop_epoch:
            return replace(state, epoch=epoch, rows=0)
        return self._start_state(epoch)

    def _epoch_of(self, state: State) -> Epoch:
        order, subset = self._ordered(state.seed)
        rank, _ = self._ranks()
        return Epoch(state.epoch, order, self._partition(state.rows), rank, subset)

    def _partition(self, start: int) -> Partition:
        order, _ = self._ordered()
        return Partition(
            order.num_rows,
            self._batch_size,
            self._ranks()[1],
            self._last_batch,
            order.contiguous,
            start,
        )

    def _ranks(self) -> tuple[int, int]:
        """Rank and world_size: as given, else of a process alone."""
        return self._given_ranks or (0, 1)

    def _ordered(self, seed: int | None = None) -> tuple[Order, Subset]:
        """The order of this version's rows, and which rows they are."""
        seed = self._seed if seed is None else seed
        held = self._order
        if held is None or held[0] != seed:
            held = self._order = seed, *self._order_of(self.open(), seed)
        return held[1:]

    def _order_of(self, snapshot: Snapshot, seed: int) -> tuple[Order, Subset]:
        subset = make_subset(self._subset, snapshot.num_rows)
        order = make_order(
            self._shuffle,
            num_rows=subset.num_rows,
            row_nbytes=snapshot.schema.row_nbytes,
            seed=seed,
            block=self._block,
            window=self._window,
        )
        return order, subset

    def _start_state(self, epoch: int | None = None) -> State:
        """Of an iteration that begins with `epoch`, the next one by default."""
        epoch = self._epoch if epoch is None else epoch
        return State(
            dataset=self.config.dataset_prefix,
            version=self.version.text,
            **_settings(*self._ordered()),
            seed=self._seed,
            first_epoch=epoch,
            epoch=epoch,
            stop_epoch=epoch + self._epochs,
            rows=0,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k not in ("_pools", "_meters")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._pools = PerProcess()
        self._meters = PerProcess()
        weakref.finalize(self, _close_pools, self._pools)

    @whole_repr
    def __repr__(self) -> str:
        at = "" if self._snapshot is None else f", {self.num_rows} rows, {self.version}"
        size = None if self._single_rows else self._batch_size
        return (
            f"DataLoader({self.config.dataset_name!r} in {self.config.storage}, "
            f"batch_size={size}, shuffle={self._shuffle!r}, epoch {self._epoch}{at})"
        )


def _stamped(chunks: Iterator[Due], meter: Meter) -> Iterator[Due]:
    """Notes when each chunk is there."""
    for chunk in chunks:
        meter.ready = meter.clock()
        yield chunk
        del chunk  # its rows, before the next one's are waited for


def _settings(order: Order, subset: Subset) -> dict[str, Any]:
    """What of a state names the order; a resumed run must have it in common."""
    return {"subset": subset.name, "shuffle": "", "block": 0, "window": 0, **order.settings()}


def _close_pools(pools: PerProcess[list[Workers[Due]]]) -> None:
    idle = pools.peek() or []
    while idle:
        idle.pop().close()


def _cache_size(cache_size: int | None, index: bool) -> int | None:
    if cache_size is not None:
        cache_size = whole("cache_size", cache_size, 0)
    return 0 if index else cache_size


def _last_batch(last_batch: str, drop_last: bool) -> LastBatch:
    for known in LAST_BATCH:
        if last_batch == known:
            if drop_last and known not in ("partial", "drop"):
                raise ConfigError(f"drop_last=True contradicts last_batch={known!r}")
            return "drop" if drop_last else known
    raise ConfigError(f"last_batch {shown(last_batch)}: one of {', '.join(map(repr, LAST_BATCH))}")


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ConfigError("rank and world_size go together; give both or neither")
    world_size = whole("world_size", world_size, 1)
    rank = whole("rank", rank, 0)
    if rank >= world_size:
        raise ConfigError(f"rank {rank}: from 0 to {world_size - 1} of world_size {world_size}")
    return rank, world_size


def _extras(extras: Sequence[str]) -> tuple[str, ...]:
    if isinstance(extras, str) or any(name not in EXTRAS for name in extras):
        raise ConfigError(
            f"extras {shown(extras)}: a list of some of {', '.join(map(repr, EXTRAS))}"
        )
    return tuple(extras)
