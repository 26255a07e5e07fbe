"""Work in a process of its own, and the memory a process has."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_process(work: Callable[..., int], *arguments: Any) -> int:
    """What `work` returns in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def resident(name: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name)]
    return int(line.split()[1]) * 1024
