"""An epoch on one rank, cut into chunks of batches that are made ready together. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import Order, Rows
from .partition import Partition
from .subset import Subset


@dataclass(frozen=True)
class Epoch:
    """What an epoch on one rank is made of."""

    number: int
    order: Order
    partition: Partition
    rank: int
    subset: Subset
    seed: int = 0  # of the loader, for what its transform draws

    def place(self, batch: int) -> tuple[int, ...]:
        """What no other batch of the dataset has, of any rank, epoch or seed."""
        return self.seed, self.number, self.partition.position(batch), self.rank

    def rows(self, positions: Rows) -> Rows:
        """Rows of the dataset at these positions, of any order and shape; -1 stays -1."""
        ascending, back = np.unique(positions, return_inverse=True)
        padding = int(np.searchsorted(ascending, 0))
        rows = self.subset.to_dataset(self.order.rows(self.number, ascending[padding:]))
        return np.append(np.full(padding, -1), rows)[back].reshape(positions.shape)


@dataclass(frozen=True)
class Chunk:
    """Batches `first` on of an epoch."""

    epoch: Epoch
    first: int
    stop: int
    end: int = 0  # position up to which this rank's rows are fetched together

    def rows(self) -> Rows:
        """Row numbers in the dataset: shape (batches, rows of a batch)."""
        epoch = self.epoch
        if self.stop > epoch.partition.num_full:
            return epoch.rows(epoch.partition.batch(self.first, epoch.rank).positions)[None]
        positions = epoch.partition.full_batches(self.first, self.stop, epoch.rank)
        flat = positions.reshape(-1)  # ascends: ranks and batches count upwards
        rows = epoch.subset.to_dataset(epoch.order.rows(epoch.number, flat))
        return rows.reshape(positions.shape)

    def rows_beyond(self) -> Rows:
        """Row numbers of the next batch before `end`, to fetch with this chunk: shape (n,).

        That batch has rows in two windows. Were those of this window fetched later and those of
        the next one sooner than the rest, each would be a small request of its own.
        """
        partition = self.epoch.partition
        if self.stop >= partition.num_batches or partition.position(self.stop) >= self.end:
            return np.empty(0, np.int64)
        batch = partition.batch(self.stop, self.epoch.rank)
        positions = batch.positions[batch.valid]
        return self.epoch.rows(positions[positions < self.end])

    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows are neither repeats nor padding, in the shape of `rows`."""
        partition = self.epoch.partition
        if self.stop > partition.num_full:
            return partition.batch(self.first, self.epoch.rank).valid[None]
        return np.ones((self.stop - self.first, partition.batch_size), bool)


def chunks(epoch: Epoch, *, most: int) -> Iterator[Chunk]:
    """All batches of the epoch, in order.

    The first chunk is one batch, so that it is there soon. Later ones end with the last whole
    batch of a window of the order: each of a window's batches needs parts of all its blocks,
    which are best fetched at once. Where the order has no windows, a chunk doubles up to `most`
    batches. A last batch that is not full is a chunk of its own.
    """
    partition = epoch.partition
    first, size = 0, 1
    while first < partition.num_full:
        whole = partition.position(first) + partition.global_size
        end = epoch.order.window_end(whole - 1)
        if first == 0:
            length, end = 1, 0
        elif end is None:
            length = size = min(most, size * 2)
        else:
            length = 1 + (end - whole) // partition.stride
        stop = min(partition.num_full, first + length)
        yield Chunk(epoch, first, stop, end or 0)
        first = stop
    for number in range(first, partition.num_batches):
        yield Chunk(epoch, number, number + 1)
