"""Memory that objects are assembled in: taken in a few sizes, given back, used again."""

from __future__ import annotations

import mmap

import numpy as np

from ..sync import Condition
from .cast import Array


def pages(nbytes: int) -> Array:
    """Memory from a page boundary on, which a folder store can write past the page cache.

    Small pages on purpose: 64 MiB of numpy's huge ones took 6 ms to touch, but 150 in a virtual
    machine whose host had taken the memory back; small ones 27 either way.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


class Memory:
    """Arrays of bytes of a few sizes, that rows gather in.

    What is given back is kept for the next one as long as all there is stays within `most` bytes:
    to touch new pages takes as long as to fill them. Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._free: dict[int, list[Array]] = {}  # by size
        self._most = most
        self._nbytes = 0
        self._used = 0
        self._given = Condition()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays there are, used or not."""
        return self._nbytes

    def take(self, nbytes: int, held: int | None = None) -> Array:
        """An array of a size, of any content.

        `held`: bytes that the caller holds already. If they are given and `most` does not suffice,
        it waits until others give back what they hold; the others must not wait in turn.
        """

        def taken() -> Array | None:
            if held is not None and self._used + nbytes > self._most and self._used != held:
                return None
            free = self._free.setdefault(nbytes, [])
            if free:
                array = free.pop()
            else:
                array = pages(nbytes)  # before it counts: there may be none
                self._nbytes += nbytes
                self._drop()
            self._used += nbytes
            return array

        return self._given.when(taken)

    def give(self, arrays: list[Array]) -> None:
        """Whole arrays that nobody uses any more."""
        with self._given.lock:
            for array in arrays:
                self._free[len(array)].append(array)
                self._used -= len(array)
            self._drop()
            self._given.notify_all()

    def _drop(self) -> None:
        """Free what is too much, with the lock held: large ones first, they are used least."""
        for size in sorted(self._free, reverse=True):
            while self._nbytes > self._most and self._free[size]:
                self._free[size].pop()
                self._nbytes -= size


class Share:
    """What one buffer holds of a `Memory`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0
        self.is_filling = True  # it waits for the others, which are being finished

    def take(self, nbytes: int) -> Array:
        """See `Memory`."""
        array = self._memory.take(nbytes, self._held if self.is_filling else None)
        self._held += nbytes
        return array

    def give(self, arrays: list[Array]) -> None:
        """See `Memory`."""
        self._held -= sum(map(len, arrays))
        self._memory.give(arrays)
