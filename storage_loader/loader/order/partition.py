"""Which positions of an epoch make which batch on which rank. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from . import Rows

LastBatch = Literal["partial", "drop", "pad", "wrap"]

LAST_BATCH: tuple[LastBatch, ...] = ("partial", "drop", "pad", "wrap")


@dataclass(frozen=True)
class Batch:
    """One rank's batch: its positions in the epoch, and which of them are not repeats."""

    positions: Rows  # -1 is padding
    valid: npt.NDArray[np.bool_]  # False: a row wrapped round to, or padding


@dataclass(frozen=True)
class Partition:
    """The batches of the positions `start` to `num_rows` of an epoch, for any rank.

    Global batch b holds the world_size * batch_size positions from start + b times that on.
    A rank takes a contiguous part of it where the order is that of storage, so that it reads
    a contiguous part of the dataset; else every world_size-th position. The last global batch
    may hold fewer: `partial` splits it evenly (a rank that would get no row wraps round to the
    epoch's first), `drop` leaves it out, `pad` and `wrap` fill it up. Every rank gets the same
    number of batches.

    `share` (i, n) is every n-th of these batches from batch i on, for n readers that take turns;
    batches are then numbered within the share.
    """

    num_rows: int
    batch_size: int
    world_size: int = 1
    last_batch: LastBatch = "partial"
    contiguous: bool = False
    start: int = 0
    share: tuple[int, int] = (0, 1)

    @property
    def global_size(self) -> int:
        """Positions of a full global batch."""
        return self.world_size * self.batch_size

    @property
    def stride(self) -> int:
        """Positions from the beginning of a global batch to that of the share's next one."""
        return self.global_size * self.share[1]

    def position(self, batch: int) -> int:
        """The first position of global batch `batch`."""
        return self.start + self.share[0] * self.global_size + batch * self.stride

    def _shared(self, batches: int) -> int:
        """How many of so many batches are the share's."""
        first, step = self.share
        return -(-max(0, batches - first) // step)

    @property
    def num_batches(self) -> int:
        """Batches of each rank."""
        left = max(0, self.num_rows - self.start)
        if self.last_batch == "drop":
            return self._shared(left // self.global_size)
        return self._shared(-(-left // self.global_size))

    def rows_after(self, batch: int) -> int:
        """Rows of the epoch that were received once global batch `batch` was.

        Of a share: from which row on the same share goes on with its next batch.
        """
        return min(self.num_rows, self.start + (batch + 1) * self.stride)

    @property
    def num_full(self) -> int:
        """Batches of each rank that hold batch_size rows of their own."""
        return self._shared(max(0, self.num_rows - self.start) // self.global_size)

    def full_batches(self, first: int, stop: int, rank: int) -> Rows:
        """The rank's positions in global batches `first` to `stop`, all full: (batches, rows)."""
        if self.stride == self.batch_size:
            start, end = self.position(first), self.position(stop)
            return np.arange(start, end).reshape(-1, self.batch_size)
        starts = self.position(first) + np.arange(stop - first)[:, None] * self.stride
        if self.contiguous:
            return starts + rank * self.batch_size + np.arange(self.batch_size)
        return starts + rank + np.arange(0, self.global_size, self.world_size)

    def batch(self, number: int, rank: int) -> Batch:
        """The rank's part of global batch `number`, from 0 to num_batches - 1."""
        first = self.position(number)
        count = min(self.global_size, self.num_rows - first)
        if count == self.global_size or self.last_batch == "partial":
            positions = self._split(first, max(count, self.world_size), rank)
        else:
            positions = self._split(first, self.global_size, rank)
        valid = positions < self.num_rows
        if not valid.all():
            fill = -1 if self.last_batch == "pad" else (positions - first - count) % self.num_rows
            positions = np.where(valid, positions, fill)
        return Batch(positions, valid)

    def _split(self, first: int, count: int, rank: int) -> Rows:
        """A rank's share of the `count` positions from `first` on."""
        if not self.contiguous:
            return np.arange(first + rank, first + count, self.world_size)
        least, longer = divmod(count, self.world_size)
        start = first + rank * least + min(rank, longer)
        return np.arange(start, start + least + (rank < longer))
