"""The order of rows in an epoch: a function of seed, epoch and position, nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Shuffle = Literal[False, True, "global"]

BLOCK_NBYTES = 2**20  # rows that lie together and are moved together: one good-sized read
WINDOW_BLOCKS = 64  # blocks whose rows are mixed with each other


class Order(Protocol):
    """Row numbers of an epoch by position."""

    num_rows: int

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """The rows at positions `start` to `stop`."""
        ...


def make_order(shuffle: Shuffle, *, num_rows: int, row_nbytes: int, seed: int) -> Order:
    """The order of `shuffle`; `row_nbytes` is that of the stored schema."""
    if shuffle == "global":
        return GlobalShuffle(num_rows, seed)
    if shuffle:
        return WindowShuffle(num_rows, seed, block=max(1, BLOCK_NBYTES // max(1, row_nbytes)))
    return StoredOrder(num_rows)


class StoredOrder:
    """Rows as they were saved."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        return np.arange(start, stop, dtype=np.int64)


class GlobalShuffle:
    """A uniform permutation of all rows. Holds 8 bytes a row."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows = num_rows
        self._seed = seed
        self._epoch: tuple[int, Rows] | None = None

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        held = self._epoch
        if held is None or held[0] != epoch:
            held = self._epoch = epoch, _permutation(self.num_rows, self._seed, epoch, 0)
        return held[1][start:stop]


class WindowShuffle:
    """Blocks of `block` rows permuted, then the rows of each window of blocks permuted.

    A window's rows lie in few objects, so a first epoch reads in large pieces; each epoch
    makes other windows.
    """

    def __init__(
        self, num_rows: int, seed: int, *, block: int, window: int = WINDOW_BLOCKS
    ) -> None:
        self.num_rows = num_rows
        self._seed = seed
        self._block = block
        self._window = window
        self._plan: tuple[int, Rows, Rows] | None = None
        self._rows: tuple[int, int, Rows] | None = None

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        blocks, starts = self._blocks(epoch)
        first = int(np.searchsorted(starts, start, "right")) - 1
        pieces = []
        while start < stop:
            end = min(stop, int(starts[first + 1]))
            low = int(starts[first])
            pieces.append(self._window_rows(epoch, first, blocks)[start - low : end - low])
            start, first = end, first + 1
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _blocks(self, epoch: int) -> tuple[Rows, Rows]:
        """The epoch's order of blocks, and the position at which each window begins."""
        held = self._plan
        if held is None or held[0] != epoch:
            count = -(-self.num_rows // self._block)
            blocks = _permutation(count, self._seed, epoch, 0)
            lengths = np.minimum(self.num_rows - blocks * self._block, self._block)
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:: self._window]
            starts = np.unique(np.append(starts, self.num_rows))
            held = self._plan = epoch, blocks, starts
        return held[1], held[2]

    def _window_rows(self, epoch: int, window: int, blocks: Rows) -> Rows:
        held = self._rows
        if held is None or held[:2] != (epoch, window):
            members = blocks[window * self._window : (window + 1) * self._window]
            rows = (members[:, None] * self._block + np.arange(self._block)).reshape(-1)
            rows = rows[rows < self.num_rows]
            rows = rows[_permutation(len(rows), self._seed, epoch, window + 1)]
            held = self._rows = epoch, window, rows
        return held[2]


def _permutation(count: int, seed: int, epoch: int, stream: int) -> Rows:
    bits = np.random.Philox(np.random.SeedSequence((seed, epoch, stream)))
    return np.random.Generator(bits).permutation(count)


def walk(order: Order, epoch: int, *, chunk: int) -> Iterator[Rows]:
    """All rows of an epoch in order, `chunk` at a time."""
    for start in range(0, order.num_rows, chunk):
        yield order.rows(epoch, start, min(start + chunk, order.num_rows))
