"""Byte ranges: half open (start, end), merged into fewer requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Range = tuple[int, int]
"""First byte, and first byte no longer in the range."""


def are_apart(ranges: Sequence[Range]) -> bool:
    """Whether each is a request of its own: they ascend, and none touches another or is empty."""
    return all(0 <= start < end for start, end in ranges) and all(
        one[1] < other[0] for one, other in pairwise(ranges)
    )


def coalesce(ranges: npt.ArrayLike, *, gap: int = 0) -> list[Range]:
    """Requests, sorted and disjoint, for ranges, shape (n, 2), in any order.

    Those that overlap, touch, or lie at most `gap` bytes apart are one.
    """
    asked = np.asarray(ranges, np.int64).reshape(-1, 2)
    if not len(asked):
        return []
    starts, ends = asked.T
    if (starts[1:] < starts[:-1]).any():
        starts, ends = asked[np.argsort(starts)].T
    ends = np.maximum.accumulate(ends)
    is_first = np.ones(len(asked) + 1, bool)  # and the one after the last
    np.greater(starts[1:], ends[:-1] + gap, out=is_first[1:-1])
    return list(zip(starts[is_first[:-1]].tolist(), ends[is_first[1:]].tolist(), strict=True))
