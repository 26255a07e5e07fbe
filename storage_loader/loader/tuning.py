"""What the speed of fetching depends on, and no user has to set.

`python -m benchmarks load_defaults` measures other values of each field beside its default; what
each is said to gain is from there. `change --before FOLDER` compares two checkouts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Sizes in bytes. A rate is that of an epoch, or of calls, beside the default's."""

    request_nbytes: int = 64 * 2**20
    """The longest request: an object of the default size is fetched by one. 8 MiB: 0.73."""
    stream_nbytes: int = 2**20
    """A longer request is written to the cache while it is received, by a work of its own; never:
    0.30."""
    gap_nbytes: int = 256 * 2**10
    """The widest gap bridged, where gaps are at most 1/8 of what is needed. None, a rank of 8:
    0.90."""
    work_requests: int = 16
    """Short requests that one work makes at once. 1: 0.78 by index, 0.83 for a rank of 8."""
    work_nbytes: int = 4 * 2**20
    """Brought into memory by one work. 1 MiB, rows of 150 KB by index: 0.81 from a server nearby,
    1.1 at 20 ms a request."""
    waiting_threads: int = 32
    """Threads for works that wait for a network more than they work. 8: 0.66 of 1,000 rows of
    150 KB by one call at 20 ms; 64: 0.81 of rows of 48 KiB by index."""
    whole_share: float = 1 / 8
    """An object of which a window needs so much may be fetched whole. Never: 0.60."""
    early_seconds: float = 10
    """Seconds of fetching, at the rate of the first rows, that may come early. 0: 0.75."""
    verified_early: int = 8
    """Bytes in memory that are verified early for each that is needed. 0, shuffle="global": 0.81
    of a new loader's first epoch."""


TUNING = Tuning()
