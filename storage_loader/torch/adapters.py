"""`DataLoader` and `Dataset` for PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch.utils.data

from .. import loader
from ..catalog import Version
from ..config import DataConfig
from ..keywords import checked_keywords, handed_on
from ..loader.decode import Decode
from ..loader.feed import Feed
from ..loader.loader import DEFAULT_PREFETCH
from ..loader.order import Shuffle
from ..loader.order.partition import LastBatch
from ..loader.view import Transform
from . import distributed
from .collate import Kinds, marked
from .device import cuda_device
from .gather import TensorMemory, select_rows
from .ring import Rings
from .tensors import as_tensors, reduce_tensor, stack


def _dataset(*arguments: Any, **settings: Any) -> Dataset:
    return Dataset(*arguments, **settings)


FEED = Feed(
    convert=as_tensors,
    stack=stack,
    reduce=reduce_tensor,
    memory=TensorMemory,
    copy_rows=select_rows,
    peers=distributed.peers,
    ranks=distributed.ranks,
    dataset=_dataset,
    # Lightning and torchdata make iterators that they never ask: those are no epochs.
    is_lazy=True,
)


class Dataset(loader.Dataset, torch.utils.data.Dataset[Any]):
    """`storage_loader.Dataset` whose rows are dicts of tensors: a map-style torch dataset.

    Rows that differ in length are tensors of their own lengths, of a batch a nested tensor; bytes,
    text and JSON are no tensors.
    Works under `torch.utils.data.DataLoader` with workers of any start method; a batch of
    rows is read at once, and collated as `collate` says. Under `torch.distributed` all ranks
    read rank 0's version.
    """

    _feed = FEED

    def __getitem__(self, index: Any) -> Any:
        given = super().__getitem__(index)
        return given if _is_batch(index) else marked(given, Kinds.of(self))

    def rows(self, index: Sequence[int]) -> list[Any]:
        kinds = Kinds.of(self)
        return [marked(row, kinds) for row in super().rows(index)]

    def __getitems__(self, index: Sequence[int]) -> list[Any]:
        """The rows of a batch; torch's DataLoader calls this where it exists."""
        return self.rows(index)


def _is_batch(index: Any) -> bool:
    return isinstance(index, (slice, list)) or np.ndim(index) > 0


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors.

    Rows that differ in length are a nested tensor of the jagged layout, or a dense one by `pad`;
    bytes, text and JSON are lists.
    Without `rank` and `world_size` those of `torch.distributed` hold, where it is initialised
    when the loader is first used; all ranks then read rank 0's version, so every rank must
    make the loader and use it. An iteration begins when its first batch is asked for.
    """

    _feed = FEED

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        batch_size: int | None = 1,
        *,
        device: str | int | torch.device | None = None,
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
        pad: Mapping[str, Any] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        """`device`: where batches are put ahead of use, "cuda" or "cuda:0" for example; None or
        "cpu": they stay in the host's memory, without a copy. `transform` runs before, on
        tensors in the host's memory. The other keywords are those of `storage_loader.DataLoader`.
        """
        super().__init__(**handed_on(locals(), loader.DataLoader))
        cuda = cuda_device(device)
        if cuda is not None:
            self._feed = replace(self._feed, ring=Rings(cuda))

    @property
    def batch_sampler(self) -> CountedEpochs:
        """What PyTorch Lightning tells the number of the epoch that it begins."""
        return CountedEpochs(self)


class CountedEpochs:
    """Takes a trainer's count of epochs where a torch DataLoader has its sampler.

    So a loader that is made anew for each epoch goes on with the next order.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    @property
    def sampler(self) -> CountedEpochs:
        """Where Lightning looks for `set_epoch`.

        The loader itself has no `sampler`: Lightning would say that it replaces that one.
        """
        return self

    @property
    def batch_size(self) -> int | None:
        """The loader's."""
        return self._loader.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be the trainer's epoch; a loaded state goes first.

        `epoch`: counted in iterations, each of which may run through several of the loader's.
        """
        self._loader._count_iterations(epoch)


__all__ = ["DataLoader", "Dataset"]
