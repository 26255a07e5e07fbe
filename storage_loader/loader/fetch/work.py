"""Pieces of work that make rows ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """A call that may run in any thread."""

    nbytes: int  # that it makes ready, to be held until they are used
    run: Callable[[], None]
    is_small: bool = False  # a few short requests: it waits more than it works
    waits: bool = True  # for a network or a disk


@dataclass(frozen=True)
class Preparation(Generic[T]):
    """What must be done before a result can be had: `works` in any order, then `finish`."""

    works: Sequence[Work]
    finish: Callable[[], T]

    @property
    def waits(self) -> bool:
        """Whether any of it waits for a network or a disk."""
        return any(work.waits for work in self.works)

    def now(self) -> T:
        """Do it here."""
        for work in self.works:
            work.run()
        return self.finish()


Prepare = Callable[[threading.Event], Preparation[T]]
"""Plans it; its works may end early once the event is set, since nobody wants them any more."""
