"""How much of an object is brought before it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...process import cached_property
from ..tuning import Tuning
from .cache import Cache
from .mapped import MappedObject
from .verified import Blocks
from .work import Work


class Early:
    """Whether objects are brought whole. Thread-safe.

    Whole objects come in few long requests, which bring 1.25 of what those of 4 MiB do. But nobody
    should wait for more than in proportion to what it asked for, so bytes that are needed allow
    some that are not needed yet:

    - An object in memory is verified whole while 8 bytes early come on each that was needed.
    - One that is to be fetched is fetched whole if the cache has room for the dataset, if enough
      of it is needed (`share`), and while no more has come early than was needed so far and 10
      seconds of fetching bring, at the rate at which the first rows came.
    """

    def __init__(self, cache: Cache | None, nbytes: int, tuning: Tuning) -> None:
        """`nbytes`: of the dataset. `cache` None: all of it lies on this machine."""
        self._cache, self._nbytes, self._tuning = cache, nbytes, tuning
        self._fetched = self._verified = 0  # bytes that may come early
        self._is_rate_known = False
        self._lock = threading.Lock()

    @cached_property
    def _has_room(self) -> bool:
        """Whether what comes early will still be here when it is needed."""
        return self._cache is not None and self._cache.holds(self._nbytes)

    def blocks(self, held: MappedObject, needed: Blocks, share: float | None) -> Blocks:
        """The blocks to bring: `needed`, or every one. `share` None: nothing comes early."""
        missing, every = held.missing_nbytes(needed), held.every_block
        if missing:
            if share is None or missing < share * held.nbytes or not self._has_room:
                self._allow(missing)
                return needed
            whole = held.missing_nbytes(every)
            with self._lock:
                is_allowed = whole - missing <= self._fetched
                self._fetched += missing - whole if is_allowed else missing
        else:
            if share is None or not held.is_resident:
                return needed
            whole, part = held.unverified_nbytes(every), held.unverified_nbytes(needed)
            with self._lock:
                is_allowed = whole - part <= self._verified
                self._verified += part - whole if is_allowed else part * self._tuning.verified_early
        return every if is_allowed else needed

    def timed(self, works: Sequence[Work]) -> Sequence[Work]:
        """The works, the first of which to end tells how much may be fetched early.

        They run beside each other and share what the network brings: by then as much has come of
        all of them.
        """
        if self._is_rate_known:
            return works
        total = sum(work.nbytes for work in works)
        begun = time.perf_counter()

        def run(work: Work) -> None:
            work.run()
            if work.nbytes and not self._is_rate_known:
                self._is_rate_known = True
                seconds = time.perf_counter() - begun
                self._allow(int(total / seconds * self._tuning.early_seconds))

        return [replace(work, run=partial(run, work)) for work in works]

    def _allow(self, nbytes: int) -> None:
        with self._lock:
            self._fetched += nbytes
