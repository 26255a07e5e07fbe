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
    """Arrays of bytes of two sizes: whole objects, and the chunks that rows gather in.

    What is given back is kept for the next one as long as all there is stays within `most` bytes:
    to touch new pages takes as long as to fill them. Thread-safe.
    """

    def __init__(self, object_nbytes: int, chunk_nbytes: int, most: int) -> None:
        self._sizes = {True: object_nbytes, False: chunk_nbytes}
        self._free: dict[bool, list[Array]] = {True: [], False: []}
        self._most = most
        self._nbytes = 0  # of all arrays there are
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays there are, used or not, and of what is held elsewhere."""
        return self._nbytes

    def take(self, *, whole: bool) -> Array:
        """An array of an object's or of a chunk's size, of any content."""
        with self._lock:
            if self._free[whole]:
                return self._free[whole].pop()
            self._nbytes += self._sizes[whole]
            self._drop(not whole)
        return pages(self._sizes[whole])

    def count(self, nbytes: int) -> None:
        """So many bytes more, or fewer, are held elsewhere in place of arrays."""
        with self._lock:
            self._nbytes += nbytes
            self._drop(True)
            self._drop(False)

    def give(self, arrays: list[Array], *, whole: bool) -> None:
        """Arrays that nobody uses any more."""
        with self._lock:
            self._free[whole] += arrays
            self._drop(whole)

    def _drop(self, whole: bool) -> None:
        """Free what is too much, with the lock held."""
        while self._nbytes > self._most and self._free[whole]:
            self._free[whole].pop()
            self._nbytes -= self._sizes[whole]
