"""Free memory that is at hand, before something is timed that takes much of it."""

from __future__ import annotations

from pathlib import Path

_PIECE = 2**18
_MOST = 1200 * 10**6  # of more the kernel may hand some back while what follows is timed


def at_hand(folder: Path, nbytes: int) -> None:
    """Write a file of so many bytes, at most 1.2 GB, to the kernel's cache, and delete it.

    A virtual machine may hand memory back to its host as soon as it is free, and each page then
    takes some 10 us of processor time to come again: 2.8 s a GB, eight times as much as to write it
    where another file has just been deleted. What was deleted last, and by whom, would decide a
    comparison of caches that are filled.
    """
    piece = bytes(_PIECE)
    path = folder / "at_hand"
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-min(nbytes, _MOST) // _PIECE)):
            file.write(piece)
    path.unlink()
