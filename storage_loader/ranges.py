"""Byte ranges: half open (start, end), merged into fewer requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
"""First byte, and first byte no longer in the range."""


@dataclass(frozen=True)
class Coalesced:
    """`requests` to make: sorted and disjoint."""

    requests: list[Range]
    sources: npt.NDArray[np.int64]  # (n, 2): of each range asked for its request and offset in it


def coalesce(ranges: npt.ArrayLike, *, gap: int = 0) -> Coalesced:
    """Merge ranges, shape (n, 2), that overlap, touch, or lie at most `gap` bytes apart.

    Their order is free.
    """
    asked = np.asarray(ranges, np.int64).reshape(-1, 2)
    if not len(asked):
        return Coalesced([], asked)
    order = np.argsort(asked[:, 0])
    starts, ends = asked[order].T
    ends = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] > ends[:-1] + gap) + 1
    firsts = starts[np.append(0, cuts)]
    lasts = ends[np.append(cuts - 1, len(asked) - 1)]
    sources = np.empty_like(asked)
    counts = np.diff(cuts, prepend=0, append=len(asked))
    sources[order, 0] = np.repeat(np.arange(len(firsts)), counts)
    sources[:, 1] = asked[:, 0] - firsts[sources[:, 0]]
    return Coalesced(list(zip(firsts.tolist(), lasts.tolist(), strict=True)), sources)
