"""Where batches and windows of rows are put, if not in new arrays of numpy's."""

from __future__ import annotations

import weakref
from typing import Protocol

import numpy as np

from .parts import Array

ALIGNMENT = 64  # bytes; from there TensorFlow and JAX take an array's memory without a copy

_LARGE_NBYTES = 2**16  # below, malloc has memory at hand
_KEPT = 2  # free pieces: a consumer holds one batch while the next is made


class Memory(Protocol):
    """Memory of one batch, which is asked for one attribute at a time."""

    def wants(self, nbytes: int) -> bool:
        """Whether small rows, gathered for many batches at once, must be copied there too.

        `nbytes`: of one batch's. Where they need not, a batch has its slice of what was gathered.
        """

    def empty(self, nbytes: int) -> Array:
        """Bytes, shape (nbytes,), of this batch alone and of no attribute given before."""


class ReusedMemory:
    """Memory that is given again once nothing refers to it, neither an array nor a tensor on it.

    Fresh pages of the kernel's cost several times what copying to them does: half the time of an
    epoch that is decoded went there before its windows were made of this.
    """

    def __init__(self) -> None:
        self._free: list[Array] = []

    @property
    def num_free(self) -> int:
        """Large pieces that nothing refers to."""
        return len(self._free)

    def empty(self, nbytes: int) -> Array:
        """Bytes, shape (nbytes,), on a 64-byte boundary; reused where what is free is enough."""
        if nbytes < _LARGE_NBYTES:
            return _aligned(nbytes)
        try:
            room = self._free.pop()
        except IndexError:
            room = _aligned(nbytes)
        if len(room) < nbytes:
            room = _aligned(nbytes)
        loan = _Loan(room)
        weakref.finalize(loan, _give_back, self._free, room).atexit = False
        return np.asarray(loan)[:nbytes]


class AlignedMemory:
    """Memory that begins on a 64-byte boundary for each attribute; see `Memory`.

    One may serve all batches of a loader: large pieces are reused, by size. TensorFlow, once
    `from_generator` was used, has malloc give every large piece back at once: 2 ms against 0.2 ms
    for 3 MB.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, ReusedMemory] = {}  # by size

    @property
    def num_free(self) -> int:
        """Large pieces that nothing refers to."""
        return sum(pieces.num_free for pieces in self._pieces.values())

    def wants(self, nbytes: int) -> bool:
        return nbytes >= _LARGE_NBYTES  # a framework copies less as fast as we would

    def empty(self, nbytes: int) -> Array:
        if nbytes < _LARGE_NBYTES:
            return _aligned(nbytes)
        return self._pieces.setdefault(nbytes, ReusedMemory()).empty(nbytes)

    def __reduce__(self) -> tuple[type[AlignedMemory], tuple[()]]:
        return type(self), ()


class _Loan:
    """What arrays on `room` refer to, so that its end is theirs."""

    def __init__(self, room: Array) -> None:
        self.__array_interface__ = room.__array_interface__


def _give_back(free: list[Array], room: Array) -> None:
    """Called in any thread, also in the middle of `empty`: it takes no lock."""
    if len(free) < _KEPT:
        free.append(room)


def _aligned(nbytes: int) -> Array:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start:][:nbytes]
