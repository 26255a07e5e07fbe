"""How much is brought before it is needed."""

from __future__ import annotations

import threading


class Early:
    """A budget of bytes: each that is needed allows some that are not needed yet.

    Objects are then brought whole, in few long requests, which bring 1.25 of what those of 4 MiB
    do; and nobody waits for more than in proportion to what it asked for.
    """

    def __init__(self, times: int) -> None:
        """`times`: bytes early for one that is needed."""
        self._times = times
        self._nbytes = 0
        self._lock = threading.Lock()

    def allow(self, nbytes: int) -> None:
        """So many more, whatever is needed."""
        with self._lock:
            self._nbytes += nbytes

    def takes(self, whole: int, needed: int) -> bool:
        """Whether `whole` bytes, of which `needed` are needed, are to be brought at once.

        If not, those that are needed are counted.
        """
        with self._lock:
            is_allowed = whole - needed <= self._nbytes
            self._nbytes += needed - whole if is_allowed else needed * self._times
        return is_allowed
