"""What the speed of fetching depends on, and no user has to set.

`python -m benchmarks load_defaults` compares values of each field; `change --before FOLDER` two
checkouts that differ in one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Sizes in bytes; the defaults are what was measured to be best, or to be enough."""

    request_nbytes: int = 64 * 2**20
    """The longest request: an object of the default size is fetched by one."""
    stream_nbytes: int = 2**20
    """A longer request is written to the cache while it is received, by a work of its own."""
    gap_nbytes: int = 256 * 2**10
    """The widest gap bridged, where gaps are at most 1/8 of what is needed."""
    work_requests: int = 16
    """Short requests that one work makes at once."""
    work_nbytes: int = 8 * 2**20
    """Brought into memory by one work."""
    read_nbytes: int = 2**20
    """The same where one call reads rows: more works, so that more requests are in flight."""
    waiting_threads: int = 32
    """Threads for works that wait for a network more than they work."""
    whole_share: float = 1 / 8
    """An object of which a window needs so much may be fetched whole."""
    early_seconds: float = 10
    """Seconds of fetching, at the rate of the first rows, that may come early."""
    verified_early: int = 8
    """Bytes in memory that are verified early for each that is needed."""
    chunks: int = 16
    """Parts of `prefetch` that are made ready together, where the order has no windows."""
    in_flight_share: float = 1 / 8
    """Of `prefetch`, for what is being fetched."""


TUNING = Tuning()
