"""`DataLoader`: the batches of an epoch, one after another."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ..catalog import Snapshot, Version
from ..config import DataConfig
from ..errors import ConfigError, LoaderAttributeError, LoaderError
from ..keywords import checked_keywords, flag, shown, whole_repr
from .dataset import Dataset
from .decode import Decode
from .feed import nobody
from .iteration import Iteration, Last, Reader
from .order import ARITHMETIC, Order, Shuffle
from .order.chunks import Epoch
from .order.partition import LastBatch, Partition
from .order.state import Start, StartHere, State
from .order.subset import Subset
from .run.stats import Stats
from .run.workers import Pool
from .settings import (
    Settings,
    cache_size_of,
    extras_of,
    last_batch_of,
    ranks_of,
    shuffle_of,
    whole,
    whole_or_none,
)
from .view import Transform, View

_log = logging.getLogger(__name__)

_DEFAULT_SEED = 0  # another one was asked for
DEFAULT_PREFETCH = 256 * 2**20

L = TypeVar("L", bound="DataLoader")


class DataLoader(View):
    """Iterates over batches, which are dicts by attribute.

    Rows of a fixed shape are an array of shape (batch_size, *shape), those that differ in length
    a `Ragged`, or an array by `pad`. Bytes, text and JSON are lists of `bytes`, `str` and values.

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
        batch_size: int | None = 1,
        *,
        shuffle: Shuffle = False,
        seed: int = _DEFAULT_SEED,
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
        pad: Mapping[str, Any] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        """`batch_size`: rows on each rank; None gives one row at a time, without the batch axis.
        `shuffle`: True mixes rows within windows of blocks, "global" over the whole dataset.
        `last_batch`: what becomes of a last global batch that is not full: "partial" splits it
        evenly over the ranks, "drop" leaves it out, "pad" fills it with zeros or empty rows, "wrap"
        with the epoch's first rows. `drop_last=True` is short for `last_batch="drop"`.
        `attributes`: read only these, in this order. `subset`: a fraction (float), a slice, a
        boolean mask or row numbers. `rank`, `world_size`: this process's part of each global
        batch; every rank gets the same number of batches. `version`: a `Version`, its hash or
        a list of commit ids instead of the newest. `transform` gets the batch, and a
        numpy Generator if it takes a second argument: made of seed, epoch, rank and the place of
        the global batch in the order. It runs ahead in a few threads, so it may be called from
        several at once. `num_workers`: processes that
        gather and transform instead, for a transform that holds the GIL. `as_tuple`: a tuple in
        attribute order instead of a dict. `extras`: adds "row" (int64, the rows' numbers,
        -1 for padding) and "valid" (bool, False for padding and repeats).
        `epochs`: how many one iteration runs through. `prefetch`: bytes fetched ahead,
        default 256 MiB. `threads`: fetching. `block`, `window`: rows, for `shuffle=True`.
        `cache_dir`: where objects of a network store are kept, default the user's cache
        directory. `cache_size`: bytes kept there at most, for all datasets; default what the
        disk has, less a twentieth; 0 keeps nothing. `index`: as `cache_size=0`, never fill the
        cache. `verify=False`: rows are given without a look at their checksums, those that an
        unclean shutdown left in the cache too. `pad`: by attribute whose rows differ in length,
        what fills the shorter ones, or a `Pad`: a batch then holds a dense array, and the lengths
        as `<name>_length`, instead of a `Ragged`. `decode`: by attribute of bytes, text or JSON, a
        function that gets one row's value; what it makes of the rows is stacked if these are arrays
        or numbers of one shape and dtype, and a list otherwise. It runs ahead in as many threads as
        there are processors, at most `threads`, or in the worker processes, before `transform`.
        """
        super().__init__(
            config,
            attributes=attributes,
            version=version,
            transform=transform,
            as_tuple=as_tuple,
            verify=verify,
            cache_dir=cache_dir,
            cache_size=cache_size_of(cache_size, flag("index", index)),
            pad=pad,
            decode=decode,
        )
        self._settings = Settings(
            batch_size=whole_or_none("batch_size", batch_size, 1),
            shuffle=shuffle_of(shuffle),
            last_batch=last_batch_of(last_batch, flag("drop_last", drop_last)),
            subset=subset,
            ranks=ranks_of(rank, world_size),
            extras=extras_of(extras),
            epochs=whole("epochs", epochs, 1),
            prefetch=whole("prefetch", prefetch, 1),
            threads=whole("threads", threads, 1),
            block=whole_or_none("block", block, 1),
            window=whole_or_none("window", window, 1),
            num_workers=whole("num_workers", num_workers, 0),
        )
        self._next: Start = StartHere(whole("seed", seed, 0))
        if self._settings.num_workers and config.storage.startswith("memory://"):
            raise ConfigError(f"num_workers: no other process can read {config.storage}")
        if self._settings.ranks is not None:
            self._feed = replace(self._feed, peers=nobody)
        self._pool = Pool()
        self._memory = None if self._feed.memory is None else self._feed.memory()
        self._begun: Iteration | None = None  # the last one
        self._last = Last()
        # A loaded state, which the next iteration goes on from, and what reads that one.
        self._resume: tuple[State, DataLoader] | None = None
        self._order: tuple[int, Order, Subset] | None = None  # and the seed it was made with

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        super()._checked(snapshot)
        names = snapshot.schema.select(self._attributes).names
        clash = set(self._settings.extras).intersection(names)
        if clash:
            raise ConfigError(f"extras {sorted(clash)}: attributes of the same name are read")
        return snapshot

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch on each rank; None: rows come one at a time."""
        return self._settings.batch_size

    @property
    def shuffle(self) -> Shuffle:
        """False, True or "global"."""
        return self._settings.shuffle

    @property
    def drop_last(self) -> bool:
        """Whether a last global batch that is not full is left out."""
        return self._settings.last_batch == "drop"

    @property
    def seed(self) -> int:
        """Of the next iteration; `load_state_dict` takes the state's."""
        return self._next.seed

    @property
    def dataset(self) -> Dataset:
        """The rows by their numbers: as this loader reads them, without `transform`.

        Not where `subset` is given: rows have other numbers then.
        """
        if self._settings.subset is not None:
            raise LoaderAttributeError(
                "dataset: this loader reads a subset, of loader.num_rows rows; for rows by their "
                "numbers make Dataset(config, version=loader.version)"
            )
        dataset: Dataset = (self._feed.dataset or Dataset)(
            self.config,
            attributes=self._attributes,
            verify=self._verify,
            cache_dir=self._cache_dir,
            cache_size=self._cache_size,
            pad=self._pad,
            decode=self._decode,
        )
        return dataset._reading_as(self)

    def __getitem__(self, index: object) -> Any:
        raise LoaderError(
            f"{type(self).__name__}[{shown(index)}]: a loader is iterated over. Rows by their "
            "numbers are Dataset(config)[...]; torch's DataLoader takes Dataset or IterableDataset "
            "of storage_loader.torch, and ours stands in its place"
        )

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
        self._next = self._next.set(epoch=whole("epoch", epoch, 0))
        self._last.iteration = None
        if self._resume is not None and self._resume[0].epoch != epoch:
            self._resume = None

    def _count_iterations(self, number: int) -> None:
        """Let the next iteration be one that so many others precede, without a loaded state."""
        if self._resume is None:
            self.set_epoch(number * self._settings.epochs)

    def __len__(self) -> int:
        """Batches of one `iter(loader)` on this rank."""
        return self._partition(0).num_batches * self._settings.epochs

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration that began or gave a batch last stands, in integers and strings.

        `rows` counts what was received, not what was fetched ahead. At an epoch's end it is
        the next epoch's row 0.
        """
        if self._resume is not None:
            state, _ = self._resume
        elif self._last.iteration is not None:
            state = self._last.iteration.state(self._start_state)
        else:
            state = self._start_state(self._next.epoch)
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next `iter` go on with exactly the row after `state`, at its version and seed.

        The version is that of the one iteration which `state` stands in. Where nothing of it
        was received yet, and from the one after it on, this loader's own is read, as without a
        state: `version`, or the newest at first use, which this is too. Seed and number of the
        epoch are counted on from the state's.

        On any world_size and batch_size. A seed that this loader was given goes, with a warning on
        the log. Raises `LoaderError` for a state of another dataset or other order settings,
        `VersionNotFoundError` where commits of its version are gone; the loader then is as it was.
        """
        loaded = State.from_dict(state)
        loaded.check_dataset(self.config.dataset_prefix)
        self.open()
        snapshot = self._at(loaded.pinned)
        order, subset = self._settings.order(snapshot, loaded.seed)
        loaded.check_order(_names_of(order, subset))
        if loaded.rows > order.num_rows or not (
            loaded.first_epoch <= loaded.epoch < loaded.stop_epoch
        ):
            raise LoaderError(
                f"the state stands at row {loaded.rows} of {order.num_rows} in epoch "
                f"{loaded.epoch}, up to {loaded.stop_epoch}: no loader made it"
            )
        self._ordered()  # what cannot follow is an error now, not at the end of the epoch
        if loaded.seed != self._next.seed != _DEFAULT_SEED:
            _log.warning(
                "the loaded state has seed %d, which this loader goes on with; its own was %d",
                loaded.seed,
                self._next.seed,
            )
        self._next = self._next.set(epoch=loaded.epoch, seed=loaded.seed)
        # One reader of several that take turns does not know how far the others had come.
        if loaded.has_begun or self._feed.share() is not None:
            self._resume = loaded, self._reading(snapshot)
        else:
            self._resume = replace(loaded, version=self.version.text), self

    def __iter__(self) -> Iterator[Any]:
        if not self._feed.is_lazy:
            return self._begin()
        self._last.iteration = None
        return self._begin_late()

    @property
    def stats(self) -> Stats:
        """What the iteration that was begun last did in this process, up to now."""
        return Stats() if self._begun is None else self._begun.stats

    def _begin_late(self) -> Generator[Any, None, None]:
        yield from self._begin()

    def _begin(self) -> Generator[Any, None, None]:
        """Begin an iteration now, from the loaded state if there is one."""
        state, loader = self._resume or (self._start_state(self._next.epoch), self)
        self._resume = None
        self._next = self._next.set(epoch=state.stop_epoch)
        self._begun = self._last.iteration = Iteration(state)
        # What is read, and by which workers, is the version's; all else is the same.
        reader = Reader(loader, self._settings, loader._memory, loader._pool, loader._epoch_of)
        return self._begun.run(reader, self._last)

    def _reading(self: L, snapshot: Snapshot) -> L:
        other = super()._reading(snapshot)
        if other is not self:
            other._pool = Pool()  # its workers end with it
            other._order = other._resume = None
        return other

    def _epoch_of(self, state: State) -> Epoch:
        order, subset = self._ordered(state.seed)
        rank, _ = self._ranks()
        partition = self._partition(state.rows)
        return Epoch(state.epoch, order, partition, rank, subset, state.seed)

    def _partition(self, start: int) -> Partition:
        order, _ = self._ordered()
        rank, world_size = self._ranks()
        share = self._feed.share() or (0, 1)
        partition = self._settings.partition(order, world_size, start, share)
        self._feed.check(partition, rank)
        return partition

    def _ranks(self) -> tuple[int, int]:
        """Rank and world_size."""
        return self._feed.ranks(self._settings.ranks)

    def _ordered(self, seed: int | None = None) -> tuple[Order, Subset]:
        """The order of this version's rows, and which rows they are."""
        seed = self._next.seed if seed is None else seed
        held = self._order
        if held is None or held[0] != seed:
            held = self._order = seed, *self._settings.order(self.open(), seed)
        return held[1:]

    def _start_state(self, epoch: int) -> State:
        """Of an iteration that begins with `epoch`."""
        return State(
            order=ARITHMETIC,
            dataset=self.config.dataset_prefix,
            version=self.version.text,
            **_names_of(*self._ordered()),
            seed=self._next.seed,
            first_epoch=epoch,
            epoch=epoch,
            stop_epoch=epoch + self._settings.epochs,
            rows=0,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": Last(self._last.iteration)}  # a copy has its own

    @whole_repr
    def __repr__(self) -> str:
        at = "" if self._snapshot is None else f", {self.num_rows} rows, {self.version}"
        size, shuffle = self._settings.batch_size, self._settings.shuffle
        return (
            f"DataLoader({self.config.dataset_name!r} in {self.config.storage}, "
            f"batch_size={size}, shuffle={shuffle!r}, epoch {self._next.epoch}{at})"
        )


def _names_of(order: Order, subset: Subset) -> dict[str, Any]:
    """What of a state names the order; a resumed run must have it in common."""
    return {"subset": subset.name, "shuffle": "", "block": 0, "window": 0, **order.settings()}
