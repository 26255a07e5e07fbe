"""Free memory that the kernel has at hand, before something is timed."""

from __future__ import annotations

import mmap
import os

PAGE = os.sysconf("SC_PAGE_SIZE")


def at_hand(nbytes: int) -> None:
    """Touch so many bytes of memory, or half of what is free, and give them back.

    A virtual machine may hand memory that was free for some seconds back to its host, from where
    each page takes some 10 us of processor time to come again. An epoch into an empty cache took
    four times as long then as right after another, so who came after whom decided a comparison.
    """
    nbytes = min(nbytes, os.sysconf("SC_AVPHYS_PAGES") * PAGE // 2) // PAGE * PAGE
    if nbytes:
        with mmap.mmap(-1, nbytes) as room:
            for start in range(0, nbytes, PAGE):
                room[start] = 1
