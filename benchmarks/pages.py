"""Free memory that is at hand, before something is timed that takes much of it."""

from __future__ import annotations

import time
from pathlib import Path

_PIECE = 2**18
_MOST = 1600 * 10**6  # of more the kernel may hand some back while what follows is timed
# Counts the times that free memory was handed back to the host; not every Linux has it.
_PASSES = Path("/sys/module/page_reporting/parameters/passes")
_PASS = 2.5  # s; while there is anything to hand back, a pass begins every 2 s


def at_hand(folder: Path, nbytes: int) -> None:
    """Write a file of so many bytes, at most 1.6 GB, to the kernel's cache, and delete it.

    A virtual machine may hand memory back to its host soon after it became free, and each page then
    takes some 10 us of processor time to come again: 2.8 s a GB, fourteen times as much as to write
    it where another file has just been deleted. What was deleted last, by whom, would decide a
    comparison of caches that are filled. Where the kernel tells when it hands memory back, the file
    is deleted just after that, so that there are 2 s until the next time.
    """
    piece = bytes(_PIECE)
    path = folder / "at_hand"
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-min(nbytes, _MOST) // _PIECE)):
            file.write(piece)
    _wait_for_pass()
    path.unlink()


def _wait_for_pass() -> None:
    if not _PASSES.exists():
        return
    before, end = _PASSES.read_text(), time.monotonic() + _PASS
    while _PASSES.read_text() == before and time.monotonic() < end:
        time.sleep(0.005)
