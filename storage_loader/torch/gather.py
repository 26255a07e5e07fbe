"""Rows copied by torch: by several threads, and without the GIL, once all rows are here.

Where other processes work on the same cores, one of torch's threads waits for another that has
none: 11 ms for a batch that one thread copies in 0.4 (three trainings on 2 cores). So each call is
timed, and after a slow one a single thread copies for a while.
"""

from __future__ import annotations

import math
import os
import time

import numpy as np
import torch

from ..loader.fill.memory import AlignedMemory
from ..loader.fill.parts import Array, Parts
from ..loader.order import Rows

_WIDEST = 16  # bytes of the widest item that torch copies, complex128
_ITEMS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_WORTH = 2**18  # bytes of a batch from which several threads are worth their start

_SLOW = 3  # times as long as one thread computes: the cores are somebody else's
_REST = 50  # times what a slow call lost, in which one thread copies: that costs 2% at most

_pid = os.getpid()  # of the process that imported this


class Pace:
    """Whether torch's threads have the cores that they need, as far as the last copies tell.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._alone: dict[int, float] = {}  # by a row's bytes, seconds a byte that one thread took
        self._rests_until = -math.inf

    def allows(self, row_nbytes: int, now: float) -> bool:
        """Whether several threads are to copy rows of this size."""
        return row_nbytes in self._alone and now >= self._rests_until

    def copied_alone(self, row_nbytes: int, nbytes: int, seconds: float) -> None:
        """One thread copied so many bytes of such rows, in so much time on its core."""
        self._alone[row_nbytes] = seconds / nbytes

    def copied(self, row_nbytes: int, nbytes: int, start: float, stop: float) -> None:
        """Several threads did, from `start` to `stop`."""
        lost = stop - start - self._alone[row_nbytes] * nbytes
        if stop - start > _SLOW * self._alone[row_nbytes] * nbytes:
            self._rests_until = stop + _REST * lost


_pace = Pace()


class TensorMemory(AlignedMemory):
    """Memory in which torch gathers large rows; see `AlignedMemory`."""

    def wants(self, nbytes: int) -> bool:
        return False


def select_rows(parts: Parts, rows: Rows, places: Rows, out: Array) -> None:
    """See `CopyRows`.

    `index_select` copies the rows of a 2-D tensor whose rows overlap, one at each place.
    48 KiB rows on 2 cores: 37 GB/s, one thread 23, numpy 22, a loop over rows 19.
    """
    nbytes = parts.region.item_nbytes
    can_count = parts.span[1] < 2**62 // nbytes
    # In a process that was forked, torch would wait for threads that are not there. After a call
    # its threads spin for milliseconds, on cores that those who fetch need.
    is_worth_it = out.nbytes >= _WORTH and os.getpid() == _pid and not parts.frees_gil
    if not is_worth_it or not can_count:
        parts.take_into(rows, places, out)
        return
    start = time.perf_counter()
    if _pace.allows(nbytes, start):
        _index_select(parts, places, out)
        _pace.copied(nbytes, out.nbytes, start, time.perf_counter())
    else:
        start = time.thread_time()  # passes over what others do on this thread's core
        parts.take_into(rows, places, out)
        _pace.copied_alone(nbytes, out.nbytes, time.thread_time() - start)


def _index_select(parts: Parts, places: Rows, out: Array) -> None:
    address, span = parts.span
    nbytes = parts.region.item_nbytes
    bits = address | nbytes | int(np.bitwise_or.reduce(places))
    width = min(_WIDEST, bits & -bits)
    item = _ITEMS[width]
    memory = torch.from_numpy(parts.octets).view(item)
    torch.index_select(
        memory.as_strided(((span - nbytes) // width + 1, nbytes // width), (1, 1)),
        0,
        torch.from_numpy(places // width),
        out=torch.from_numpy(out.reshape(-1).view(np.uint8)).view(item).view(len(places), -1),
    )
