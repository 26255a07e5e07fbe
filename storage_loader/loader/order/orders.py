"""The order of rows in an epoch: a function of seed, epoch and position, nothing else.

Positions and rows count from 0. Nothing here knows of ranks, batches, threads or caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ...process import cached_property
from .permutation import (
    Permutation,
    in_a_row,
    permutation,
    random_words,
    shuffled,
)

Rows = npt.NDArray[np.int64]
Shuffle = Literal[False, True, "global"]

ARITHMETIC = 1
"""The number of what is computed here and in `permutation` and `partition`.

States carry it: another number, another order of rows for the same seed and settings.
"""

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
    blocks: it begins at a random row and goes round. Windows are equally long, up to a block,
    so that none is left with few blocks to mix.
    """

    num_rows: int
    seed: int
    block: int  # rows
    window: int  # rows at most, a multiple of block
    contiguous: ClassVar[bool] = False

    def rows(self, epoch: int, positions: Rows) -> Rows:
        pieces = []
        start = 0
        while start < len(positions):
            number = self._window_of(int(positions[start]))
            first, end = self._window_starts[number : number + 2].tolist()
            stop = int(np.searchsorted(positions, end))
            window = _window(self, epoch, number)
            pieces.append(window.rows(positions[start:stop] - first))
            start = stop
        if len(pieces) == 1:  # most often: large arrays are what an order costs
            return pieces[0]
        return np.concatenate([np.empty(0, np.int64), *pieces])

    def window_end(self, position: int) -> int | None:
        if position >= self.num_rows:
            return self.num_rows
        return int(self._window_starts[self._window_of(position) + 1])

    def settings(self) -> dict[str, int | str]:
        return {"shuffle": "True", "block": self.block, "window": self.window}

    @cached_property
    def _full_blocks(self) -> int:
        return self.num_rows // self.block

    @cached_property
    def _window_blocks(self) -> Rows:
        """First block of each window, and the number of blocks last."""
        blocks = -(-self.num_rows // self.block)
        windows = -(-blocks // (self.window // self.block))
        return np.arange(windows + 1) * blocks // max(1, windows)

    @cached_property
    def _window_starts(self) -> Rows:
        """First position of each window, and the number of rows last."""
        return np.minimum(self._window_blocks * self.block, self.num_rows)

    def _window_of(self, position: int) -> int:
        return int(np.searchsorted(self._window_starts, position, "right")) - 1

    def window_length(self, window: int) -> int:
        """Rows of a window."""
        start, end = self._window_starts[window : window + 2].tolist()
        return int(end - start)

    def window_rows(self, epoch: int, window: int) -> Rows:
        """All rows of a window in order."""
        return _Window(self, epoch, window).rows(np.arange(self.window_length(window)))

    def block_starts(self, epoch: int, window: int) -> Rows:
        """First rows of a window's blocks, as they are laid end to end.

        The dataset's last block, where it is short, stays last.
        """
        first, last = self._window_blocks[window : window + 2].tolist()
        full = np.arange(first, min(last, self._full_blocks))
        places = np.append(self._blocks(epoch)(full), np.arange(first + len(full), last))
        return places * self.block + self._shift(epoch)

    def _blocks(self, epoch: int) -> Permutation:
        return _epoch_permutation(self._full_blocks, self.seed, epoch)

    def _shift(self, epoch: int) -> int:
        return int(random_words(1, _SHIFT, self.seed, epoch)[0]) % self.num_rows


class _Window:
    """The rows of one window, by lanes: each is mixed when it is first asked for.

    So a rank among W computes about 1/W of it. Threads may share one: they write the same.
    The lanes of a window share one random order, which each begins at a random place: what
    they mix differs, and sorting a random word for every row would take twice as long.
    """

    def __init__(self, order: WindowShuffle, epoch: int, number: int) -> None:
        self._order = order
        self._key = order.seed, epoch, number
        self._blocks = order.block_starts(epoch, number)
        self._count = order.window_length(number)
        # Lane j holds count // LANES slots, one more where j < count % LANES; which part of the
        # window that is, is drawn too.
        least, longer = divmod(self._count, LANES)
        lengths = np.full(LANES, least) + (np.arange(LANES) < longer)
        lanes = shuffled(LANES, _LANES, *self._key)
        stops = np.cumsum(lengths[lanes])
        self._stops = dict(zip(lanes.tolist(), stops.tolist(), strict=True))
        self._lengths: list[int] = lengths.tolist()
        self._turns: list[int] = random_words(LANES, _TURNS, *self._key).tolist()
        self._mixes: dict[int, Rows] = {}
        self._rows = np.empty(self._count, np.int64)  # in order, of those lanes that are done
        self._done = np.zeros(LANES, bool)

    def rows(self, places: Rows) -> Rows:
        """Rows by their place in the window's order, each place at most once."""
        if not self._done.all():
            asked = ~self._done
            if len(places) <= self._count - self._lengths[-1]:  # else none is left out
                asked &= np.bincount(places % LANES, minlength=LANES) > 0
            for lane in np.flatnonzero(asked).tolist():
                self._rows[lane::LANES] = self._lane(lane)
                self._done[lane] = True
        return in_a_row(self._rows, places)

    def _lane(self, lane: int) -> Rows:
        """The rows of a lane in order."""
        block, num_rows = self._order.block, self._order.num_rows
        length, stop = self._lengths[lane], self._stops[lane]
        start = stop - length  # slot of the blocks laid end to end
        first = start // block
        starts = self._blocks[first : -(-stop // block)]
        rows = (starts[:, None] + np.arange(block)).reshape(-1)
        if len(starts) and starts.max() + block > num_rows:
            rows[rows >= num_rows] -= num_rows
        own = rows[start - first * block : stop - first * block]
        turn = self._turns[lane] % max(1, length)
        lane_rows: Rows = own[self._mixed(length)[turn : turn + length]]
        return lane_rows

    def _mixed(self, length: int) -> Rows:
        """0 .. length-1 in random order, twice over: a lane begins at any place of it."""
        if length not in self._mixes:
            once = shuffled(length, _MIX, length, *self._key)
            self._mixes[length] = np.concatenate([once, once])
        return self._mixes[length]


_BLOCKS, _MIX, _SHIFT, _LANES, _TURNS = range(5)  # which of an epoch's random streams


@lru_cache(maxsize=8)
def _epoch_permutation(count: int, seed: int, epoch: int) -> Permutation:
    return permutation(count, _BLOCKS, seed, epoch)


@lru_cache(maxsize=4)  # this window and the next, of two iterations
def _window(order: WindowShuffle, epoch: int, number: int) -> _Window:
    return _Window(order, epoch, number)


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
