"""Rows copied by torch: by several threads, and without the GIL, once all rows are here."""

from __future__ import annotations

import os

import numpy as np
import torch

from ..loader.fill.memory import AlignedMemory
from ..loader.fill.parts import Array, Parts
from ..loader.order import Rows

_WIDEST = 16  # bytes of the widest item that torch copies, complex128
_ITEMS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_WORTH = 2**18  # bytes of a batch from which several threads are worth their start

_pid = os.getpid()  # of the process that imported this


class TensorMemory(AlignedMemory):
    """Memory in which torch gathers large rows; see `AlignedMemory`."""

    def wants(self, nbytes: int) -> bool:
        return False


def select_rows(parts: Parts, rows: Rows, places: Rows, out: Array) -> None:
    """See `CopyRows`.

    `index_select` copies the rows of a 2-D tensor whose rows overlap, one at each place.
    48 KiB rows on 2 cores: 37 GB/s, one thread 23, numpy 22, a loop over rows 19.
    """
    address, span = parts.span
    nbytes = parts.region.item_nbytes
    can_count = span < 2**62 // nbytes
    # In a process that was forked, torch would wait for threads that are not there. After a call
    # its threads spin for milliseconds, on cores that those who fetch need.
    is_worth_it = out.nbytes >= _WORTH and os.getpid() == _pid and not parts.frees_gil
    if not is_worth_it or not can_count:
        parts.take_into(rows, places, out)
        return
    bits = address | nbytes | int(np.bitwise_or.reduce(places))
    width = min(_WIDEST, bits & -bits)
    item = _ITEMS[width]
    memory = torch.from_numpy(parts.octets).view(item)
    torch.index_select(
        memory.as_strided(((span - nbytes) // width + 1, nbytes // width), (1, 1)),
        0,
        torch.from_numpy(places // width),
        out=torch.from_numpy(out.reshape(-1).view(np.uint8)).view(item).view(len(rows), -1),
    )
