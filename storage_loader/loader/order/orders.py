"""The order of rows in an epoch: a function of seed, epoch and position, nothing else.

Positions and rows count from 0. Nothing here knows of ranks, batches, threads or caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .permutation import Permutation, permutation, random_words, shuffled_groups

Rows = npt.NDArray[np.int64]
Shuffle = Literal[False, True, "global"]

LANES = 24  # a rank among 2, 3, 4, 6, 8, 12 or 24 reads its own lanes of a window and no others
_BLOCK_NBYTES = 4 * 2**20
_WINDOW_BLOCKS = 48
_MAX_WINDOW_ROWS = 2**20  # of small rows; more would only cost time to sort


class Order(Protocol):
    """The rows of an epoch by position."""

    @property
    def num_rows(self) -> int:
        """Rows of an epoch."""
        ...

    @property
    def contiguous(self) -> bool:
        """Whether neighbours in the order are neighbours in the dataset."""
        ...

    def rows(self, epoch: int, positions: Rows) -> Rows:
        """The rows at these positions, which ascend."""
        ...

    def window_end(self, position: int) -> int | None:
        """The position from which other rows of the dataset are mixed; None without windows."""
        ...

    def settings(self) -> dict[str, int | str]:
        """What a resumed run must have in common with this one, besides the seed."""
        ...


def default_block(row_nbytes: int) -> int:
    """Rows of a block: 4 MiB of them, fewer where a window would exceed a million rows."""
    rows = max(1, _BLOCK_NBYTES // max(1, row_nbytes))
    return min(rows, _MAX_WINDOW_ROWS // _WINDOW_BLOCKS)


def default_window(block: int) -> int:
    """Rows of a window: 48 blocks."""
    return block * _WINDOW_BLOCKS


@dataclass(frozen=True)
class StoredOrder:
    """Rows as they were saved."""

    num_rows: int
    contiguous: ClassVar[bool] = True

    def rows(self, epoch: int, positions: Rows) -> Rows:
        return positions

    def window_end(self, position: int) -> int | None:
        return None

    def settings(self) -> dict[str, int | str]:
        return {"shuffle": "False"}


@dataclass(frozen=True)
class GlobalShuffle:
    """A permutation of all rows, uniform up to a million of them and never stored above."""

    num_rows: int
    seed: int
    contiguous: ClassVar[bool] = False

    def rows(self, epoch: int, positions: Rows) -> Rows:
        return _epoch_permutation(self.num_rows, self.seed, epoch)(positions)

    def window_end(self, position: int) -> int | None:
        return None

    def settings(self) -> dict[str, int | str]:
        return {"shuffle": "global"}


@dataclass(frozen=True)
class WindowShuffle:
    """Blocks of rows in random order, then the rows of each window of blocks in random order.

    A window's rows come from few places, so that a first epoch reads large pieces. The blocks
    of a window are laid end to end and cut into `LANES` lanes; position k takes its row from
    lane k mod `LANES`. So a rank that takes every W-th position reads only some of the lanes,
    and neighbours in a lane are far apart in the order. Each epoch cuts the dataset into other
    blocks: it begins at a random row and goes round.
    """

    num_rows: int
    seed: int
    block: int  # rows
    window: int  # rows, a multiple of block
    contiguous: ClassVar[bool] = False

    def rows(self, epoch: int, positions: Rows) -> Rows:
        out = np.empty(len(positions), np.int64)
        start = 0
        while start < len(positions):
            window = int(positions[start]) // self.window
            stop = int(np.searchsorted(positions, (window + 1) * self.window))
            table = _window_rows(self, epoch, window)
            out[start:stop] = table[positions[start:stop] - window * self.window]
            start = stop
        return out

    def window_end(self, position: int) -> int | None:
        return min(self.num_rows, (position // self.window + 1) * self.window)

    def settings(self) -> dict[str, int | str]:
        return {"shuffle": "True", "block": self.block, "window": self.window}

    @cached_property
    def _full_blocks(self) -> int:
        return self.num_rows // self.block

    def window_rows(self, epoch: int, window: int) -> Rows:
        """All rows of a window in order."""
        first = window * self.window // self.block
        last = min(first + self.window // self.block, -(-self.num_rows // self.block))
        full = np.arange(first, min(last, self._full_blocks))
        places = np.append(self._blocks(epoch)(full), np.arange(first + len(full), last))
        rows = (places[:, None] * self.block + np.arange(self.block)).reshape(-1)
        count = min(len(rows), self.num_rows - window * self.window)
        rows = rows[:count]  # the dataset's last block, where it is short, stays last
        rows += self._shift(epoch)
        rows[rows >= self.num_rows] -= self.num_rows
        # Lane j holds count // LANES slots, one more where j < count % LANES; which part of the
        # window that is, is drawn too.
        least, longer = divmod(count, LANES)
        lengths = np.full(LANES, least) + (np.arange(LANES) < longer)
        lanes = shuffled_groups(_ONE_GROUP, 1, _LANES, self.seed, epoch, window)
        groups = np.repeat(lanes, lengths[lanes])
        shuffled = rows[shuffled_groups(groups, LANES, _WINDOW, self.seed, epoch, window)]
        starts = np.cumsum(lengths) - lengths
        out = np.empty(count, np.int64)
        for lane, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            out[lane::LANES] = shuffled[start : start + length]
        return out

    def _blocks(self, epoch: int) -> Permutation:
        return _epoch_permutation(self._full_blocks, self.seed, epoch)

    def _shift(self, epoch: int) -> int:
        return int(random_words(1, _SHIFT, self.seed, epoch)[0]) % self.num_rows


_BLOCKS, _WINDOW, _SHIFT, _LANES = range(4)  # which of an epoch's random streams
_ONE_GROUP = np.zeros(LANES, np.int64)


@lru_cache(maxsize=8)
def _epoch_permutation(count: int, seed: int, epoch: int) -> Permutation:
    return permutation(count, _BLOCKS, seed, epoch)


@lru_cache(maxsize=4)  # this window and the next, of two iterations
def _window_rows(order: WindowShuffle, epoch: int, window: int) -> Rows:
    return order.window_rows(epoch, window)


def make_order(
    shuffle: Shuffle,
    *,
    num_rows: int,
    row_nbytes: int,
    seed: int,
    block: int | None = None,
    window: int | None = None,
) -> Order:
    """The order of `shuffle`. `block` and `window` are rows; None follows from `row_nbytes`.

    `row_nbytes` is that of the stored schema, whatever attributes are read. A window is made
    of whole blocks, at least one.
    """
    if shuffle == "global":
        return GlobalShuffle(num_rows, seed)
    if not shuffle:
        return StoredOrder(num_rows)
    block = block or default_block(row_nbytes)
    window = window or default_window(block)
    return WindowShuffle(num_rows, seed, block, max(1, window // block) * block)
