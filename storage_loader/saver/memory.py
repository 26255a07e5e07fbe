"""Memory that objects are assembled in: taken in a few sizes, given back, used again."""

from __future__ import annotations

import mmap
import threading

import numpy as np

from .cast import Array


def pages(nbytes: int) -> Array:
    """Memory from a page boundary on, which a folder store can write past the page cache.

    Small pages on purpose: 64 MiB of numpy's huge ones took 6 ms to touch, but 150 in a virtual
    machine whose host had taken the memory back; small ones 27 either way.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)


class Memory:
    """Arrays of bytes of a few sizes: whole objects, and what rows gather in.

    What is given back is kept for the next one as long as all there is stays within `most` bytes:
    to touch new pages takes as long as to fill them. Thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._free: dict[int, list[Array]] = {}  # by size
        self._most = most
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays there are, used or not."""
        return self._nbytes

    def take(self, nbytes: int) -> Array:
        """An array of a size, of any content."""
        with self._lock:
            free = self._free.setdefault(nbytes, [])
            if free:
                return free.pop()
            self._nbytes += nbytes
            self._drop()
        return pages(nbytes)

    def give(self, arrays: list[Array]) -> None:
        """Whole arrays that nobody uses any more."""
        with self._lock:
            for array in arrays:
                self._free[len(array)].append(array)
            self._drop()

    def _drop(self) -> None:
        """Free what is too much, with the lock held: large ones first, they are used least."""
        for size in sorted(self._free, reverse=True):
            while self._nbytes > self._most and self._free[size]:
                self._free[size].pop()
                self._nbytes -= size
