"""Which pages of a map are in memory already."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np

_FEW = 64  # a page in so many may be missing


def is_resident(data: memoryview) -> bool:
    """Whether touching these mapped bytes reads nothing from a disk, but for a few pages."""
    mincore = _mincore()
    if mincore is None or not data.nbytes:
        return False
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    start = address - address % mmap.PAGESIZE
    pages = -(-(address + data.nbytes - start) // mmap.PAGESIZE)
    flags = np.empty(pages, np.uint8)
    if mincore(start, pages * mmap.PAGESIZE, flags.ctypes.data):
        return False
    missing = pages - int(np.count_nonzero(flags & 1))
    return bool(missing <= pages // _FEW)


@cache
def _mincore() -> Any:
    """Linux's and BSD's; None elsewhere."""
    try:
        function = ctypes.CDLL(None).mincore
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    return function
