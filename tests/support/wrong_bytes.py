"""What makes bytes come wrong, for `alter` of tests/support/caches.py, and ways to load them."""

from __future__ import annotations

import threading
from typing import Any


class Wrong:
    """Flips a bit of the byte at `place` in the first `times` answers that hold it."""

    def __init__(self, place: int, times: float) -> None:
        self.place, self.times, self.seen = place, times, 0
        self._lock = threading.Lock()

    def __call__(self, key: str, start: int, data: bytearray) -> None:
        if start <= self.place < start + len(data):
            with self._lock:
                self.seen += 1
                if self.seen <= self.times:
                    data[self.place - start] ^= 4


class WrongAnywhere:
    """Every answer is wrong somewhere, unless one that held any of its wrong bytes was before."""

    def __init__(self) -> None:
        self.flipped: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, key: str, start: int, data: bytearray) -> None:
        with self._lock:
            if data and not any(start <= place < start + len(data) for place in self.flipped):
                place = hash((start, len(data))) % len(data)
                data[place] ^= 1
                self.flipped.append(start + place)


def paths(rows: int) -> dict[str, dict[str, Any]]:
    """Settings of a loader of so many rows, for each way that bytes take."""
    return {
        "held": {},
        "held, all at once": {"batch_size": rows},
        "held, global": {"shuffle": "global"},
        "copied": {"cache_size": 200_000},
        "remote": {"index": True},
        "remote, global": {"index": True, "shuffle": "global"},
    }
