"""`IterableDataset`: a loader's batches or rows, shared out among torch's workers."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

import torch.utils.data

from .. import loader
from ..catalog import Snapshot, Version
from ..config import DataConfig
from ..errors import ConfigError, LoaderError
from ..keywords import checked_keywords, handed_on
from ..loader.decode import Decode
from ..loader.iteration import Iteration, Last
from ..loader.loader import DEFAULT_PREFETCH
from ..loader.order import Shuffle
from ..loader.order.partition import LastBatch
from ..loader.order.state import State
from ..loader.view import Transform
from ..process import PerProcess
from . import distributed
from .adapters import DataLoader
from .collate import Kinds, marked_rows
from .epochs import Epochs
from .resharding import collated_by, is_resharded

P = ParamSpec("P")


_TORCHS = (
    "device",
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "persistent_workers",
    "collate_fn",
    "worker_init_fn",
    "multiprocessing_context",
    "timeout",
    "in_order",
)


def _without_torchs(init: Callable[P, None]) -> Callable[P, None]:
    """Refuses what torch's DataLoader has for itself."""

    @functools.wraps(init)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in _TORCHS:
            if name in kwargs:
                raise ConfigError(f"{name}: torch's DataLoader does that; leave it out here")
        init(*args, **kwargs)

    return call


class IterableDataset(DataLoader, torch.utils.data.IterableDataset[Any]):
    """The batches of a `DataLoader`, or its rows, for `torch.utils.data.DataLoader`.

    Give `batch_size` here and `batch_size=None` to torch's, which then gets whole batches; or
    the other way round, and it collates rows. Torch's workers take turns: the batches and their
    order are those of one process, for any number of workers; each worker fetches ahead by
    itself. Every rank gets the same number of them. Each iteration is the next epoch,
    reshuffled, with workers that persist and ones that do not; `set_epoch` chooses it. (Workers
    that do not persist know a new iteration by the seed that torch draws for it: whoever seeds
    torch alike before each calls `set_epoch`, too.)

    Without `rank` and `world_size` those of `torch.distributed` hold, as it is when an iteration
    begins. What shards by itself, as Accelerate does, needs rank=0 and world_size=1; under a
    loader that Accelerate prepared, any other is a `LoaderError`.

    A state that a worker makes is for the same worker of as many, as
    `torchdata.stateful_dataloader.StatefulDataLoader` has it; any other is a `DataLoader`'s.
    """

    @_without_torchs
    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        batch_size: int | None = None,
        *,
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
        """`batch_size`: None gives rows. The other keywords are those of `DataLoader`, but for
        `device` and `num_workers`, which are torch's. `prefetch` is for each worker.
        """
        super().__init__(**handed_on(locals(), DataLoader))
        self._feed = replace(self._feed, ranks=distributed.Inherited().ranks, share=_share)
        self._next = self._shared = Epochs(self._next.seed)
        self._met: PerProcess[None] = PerProcess()
        self._number = 0  # iterations in this process
        self._stop_epoch: int | None = None  # of the one begun last
        self._is_over: bool | None = None  # what the state that a worker was given says of it
        # Torch forks workers without a call: the version must be fixed by then, and here is the
        # one place before. Ranks that meet later agree on one at their first use instead.
        self._is_provisional = self._wanted_version is None and self._feed.peers() is None
        if not self._may_have_to_meet:
            self.open()

    @property
    def _may_have_to_meet(self) -> bool:
        """Whether there are other ranks, and no version on which they agree."""
        return self._is_provisional and int(os.environ.get("WORLD_SIZE") or 1) > 1

    def __getstate__(self) -> dict[str, Any]:
        # Without a version a worker says that ranks have to meet first: see `open`.
        is_known = self._snapshot is not None or distributed.group() is not None
        if is_known or not self._may_have_to_meet:
            return super().__getstate__()
        return {**self.__dict__, "_last": Last(self._last.iteration)}

    def open(self) -> Snapshot:
        if self._is_provisional:
            shared = self._settings.ranks is None and self._ranks()[1] > 1
            if _share() and (shared or self._snapshot is None):
                raise LoaderError(
                    "IterableDataset: call open() on every rank once torch.distributed is "
                    "initialised and before torch starts workers, which cannot agree on a version"
                )
            if shared:
                self._met.get(self._meet)
        return super().open()

    def _meet(self) -> None:
        """In one thread: the ranks then agree on a version once."""
        self._unpin()
        self._order = None
        self._is_provisional = False

    def set_epoch(self, epoch: int) -> None:
        # Accelerate calls this as an iteration begins, on every rank: all raise, and none waits.
        world_size = self._ranks()[1]
        if world_size > 1 and is_resharded(self):
            raise LoaderError(
                f"IterableDataset: each of {world_size} ranks gets its own rows here, and "
                "Accelerate would share those out again and lose the others': make it with "
                "rank=0, world_size=1 and version=Dataset(config).version, or use its loader "
                "without accelerator.prepare"
            )
        super().set_epoch(epoch)
        self._shared.start(epoch, resumes=self._resume is not None)

    def state_dict(self) -> dict[str, Any]:
        share = _share()
        if share is None:
            self._drop_resumed()
            if self._stop_epoch != self._shared.epoch:  # workers have gone on since
                self._last.iteration = None
        state = super().state_dict()
        if share is None:
            return state
        is_over = self._stop_epoch is not None and state["epoch"] >= self._stop_epoch
        return {**state, "worker": share[0], "num_workers": share[1], "is_over": is_over}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        worker = {name: state[name] for name in _WORKER if name in state}
        share = _share()
        if worker and (worker["worker"], worker["num_workers"]) != share:
            raise LoaderError(
                f"the state is of worker {worker['worker']} of {worker['num_workers']}; "
                "torchdata's StatefulDataLoader hands it to that one"
            )
        super().load_state_dict({k: v for k, v in state.items() if k not in worker})
        if share is None:
            self._shared.start(self._shared.epoch, resumes=True)
        else:
            self._is_over = bool(worker.get("is_over"))

    def __iter__(self) -> Iterator[Any]:
        collated = collated_by(self, sys._getframe(1))
        if collated is not None and self.batch_size is not None:
            raise ConfigError(
                f"IterableDataset(batch_size={self.batch_size}) gives whole batches, and "
                f"{collated}, or leave batch_size out here"
            )
        if _share() is None:
            self._last.iteration = None
            return self._begun_here()
        resumed = self._begin_in_worker()
        if resumed is None:
            return iter(())
        self._resume, self._stop_epoch = resumed, resumed[0].stop_epoch
        return self._marked(self._begin())  # now, before another iteration begins

    def _begun_here(self) -> Generator[Any, None, None]:
        self._drop_resumed()
        self._shared.set(resumes=False)
        batches = self._marked(self._begin())
        self._stop_epoch = self._shared.epoch
        yield from batches

    def _marked(self, given: Generator[Any, None, None]) -> Generator[Any, None, None]:
        """What the loader gives; rows so that torch can collate them."""
        kinds = Kinds.of(self) if self.batch_size is None else None
        return given if kinds is None else marked_rows(given, kinds)

    def _drop_resumed(self) -> None:
        """Forget a state from which workers went on."""
        if not self._shared.resumes:
            self._resume = None

    def _begin_in_worker(self) -> tuple[State, loader.DataLoader] | None:
        """Where this iteration begins, and what reads it; None where this worker's share of it
        is over.
        """
        info = torch.utils.data.get_worker_info()
        assert info is not None
        group, number = info.seed - info.id, self._number
        self._number += 1
        resumed, is_over = self._resume, self._is_over
        self._resume = self._is_over = None
        loaded = None if resumed is None else resumed[0]
        if is_over is not None:
            assert loaded is not None
            following = loaded.epoch if is_over else loaded.stop_epoch
            self._shared.join(group, number, following)
            if not is_over:
                return resumed
            self._last.iteration, self._stop_epoch = Iteration(loaded), loaded.epoch
            self._shared.set(epoch=loaded.epoch)
            return None
        epoch, resumes = self._shared.begin(
            group, number, None if loaded is None else loaded.stop_epoch, self._settings.epochs
        )
        if resumes and resumed is not None:
            return resumed
        return self._start_state(epoch), self


_WORKER = ("worker", "num_workers", "is_over")


def _share() -> tuple[int, int] | None:
    """Which of torch's workers this process is, and of how many; None where it is none."""
    info = torch.utils.data.get_worker_info()
    return None if info is None else (info.id, info.num_workers)
