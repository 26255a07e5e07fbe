"""What a point is, and what it has to work with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..threads import Threads
from .own import OwnFolder
from .value import Found

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Effort:
    """How much is tried."""

    creators: int = 16  # of one key, at once
    rounds: int = 20  # of them
    fresh: int = 10  # objects that are listed right after they were put, and deleted
    listed: int = 1001  # objects: S3 lists 1,000 at a time
    race_seconds: float = 6.0  # at most
    speed_seconds: float = 1.5  # in each direction
    object_nbytes: int = 8 * 2**20  # of what is moved meanwhile


@dataclass(frozen=True)
class Trial:
    """A storage, and how far its points may go."""

    store: OwnFolder
    is_s3: bool
    end: float  # by time.monotonic(): no point goes beyond
    effort: Effort = field(default_factory=Effort)
    threads: Threads = field(default_factory=lambda: Threads(64, "storage_loader-check"))

    def until(self, seconds: float) -> float:
        """When a work of at most so many seconds must stop: the points after it have time, too."""
        now = time.monotonic()
        return now + min(seconds, (self.end - now) / 4)

    def all(self, call: Callable[[T], R], items: Sequence[T], *, at_once: int) -> list[R]:
        """The results of calls, so many at once; the first error is raised after all ended."""
        groups = [range(place, len(items), at_once) for place in range(min(at_once, len(items)))]

        def work(places: range) -> list[tuple[int, R]]:
            return [(place, call(items[place])) for place in places]

        futures = [self.threads.submit(work, group) for group in groups]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        found = dict(pair for future in futures for pair in future.result())
        return [found[place] for place in range(len(items))]


@dataclass(frozen=True)
class Point:
    """One thing that is relied on, and how it is tried."""

    name: str
    find: Callable[[Trial], Found]
    needs: tuple[str, ...] = ()  # names of points that must hold, else this one means nothing
    unless: tuple[str, ...] = ()  # names of points that, where they fall short, forbid this one
    writes: bool = True
