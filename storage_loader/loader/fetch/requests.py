"""Blocks cut into pieces of work, and those into requests. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ...ranges import Range
from ..tuning import Tuning
from .verified import Blocks

_SPARE = 8  # gaps are at most this part of what is needed: ranks share a dataset


def portions(
    block_ranges: npt.NDArray[np.int64], mask: Blocks, *, most: int, tuning: Tuning
) -> Iterator[tuple[int, Blocks]]:
    """Blocks cut into pieces of work of about `most` bytes, with the bytes of each.

    `block_ranges`: see `ObjectLayout`.
    """
    places = np.flatnonzero(mask)
    if not len(places):
        return
    ranges = block_ranges[places]
    sizes = ranges[:, 1] - ranges[:, 0]
    # Requests lie far from each other; a long one is a piece of work of its own.
    breaks = np.append(True, ranges[1:, 0] - ranges[:-1, 1] > tuning.gap_nbytes)
    breaks[1:] |= np.diff(np.cumsum(sizes) // tuning.request_nbytes) > 0
    request = np.cumsum(breaks) - 1
    totals = np.bincount(request, weights=sizes)
    works = np.empty(len(totals), np.int64)
    work, nbytes, count = 0, 0, 0
    for i, total in enumerate(totals.tolist()):
        if count and (nbytes + total > most or count == tuning.work_requests):
            work, nbytes, count = work + 1, 0, 0
        works[i] = work
        nbytes, count = nbytes + total, count + 1
    for number in range(work + 1):
        chosen = works[request] == number
        some = np.zeros_like(mask)
        some[places[chosen]] = True
        yield int(sizes[chosen].sum()), some


def runs(numbers: npt.NDArray[Any]) -> list[Range]:
    """Ascending numbers as half-open runs."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, cuts)]


def spare_gap(ranges: Sequence[Range], widest: int) -> int:
    """The widest gap to bridge between disjoint `ranges`, so that few requests waste few bytes.

    At most `widest`, and all gaps up to it together at most 1/8 of the ranges' bytes. Without
    the second limit, each of two ranks that take turns of 192 KiB would fetch everything.
    """
    starts, ends = np.sort(np.asarray(ranges, np.int64), axis=0).T
    gaps = starts[1:] - ends[:-1]
    widths, counts = np.unique(gaps[gaps <= widest], return_counts=True)
    fits = np.cumsum(widths * counts) <= (ends - starts).sum() // _SPARE
    return int(widths[fits].max(initial=0))


def inside(wanted: list[Range], start: int, end: int) -> Iterator[Range]:
    """The parts of ascending disjoint ranges that lie between `start` and `end`."""
    for place in range(bisect_right(wanted, start, key=itemgetter(1)), len(wanted)):
        first, last = max(start, wanted[place][0]), min(end, wanted[place][1])
        if first >= last:
            break
        yield first, last


def pages_nbytes(ranges: npt.NDArray[np.int64], page: int) -> int:
    """Bytes of the pages, of `page` bytes each, that hold any byte of disjoint ranges."""
    starts, ends = np.sort(ranges, axis=0).T
    first, stop = starts // page, -(-ends // page)
    shared = np.maximum(stop[:-1] - first[1:], 0)
    return int((stop - first).sum() - shared.sum()) * page
