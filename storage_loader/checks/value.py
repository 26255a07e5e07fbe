"""What a check of a storage returns: an entry for each point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["holds", "falls short", "not tried"]


@dataclass(frozen=True)
class Check:
    """One point: what was tried, and what came of it."""

    name: str  # one word or two, the same in each run
    state: State
    detail: str = ""  # what was found, or why it could not be tried
    cost: str = ""  # where it falls short: what that costs
    remedy: str = ""  # where it falls short, or was not tried: what to do


@dataclass(frozen=True)
class Checked:
    """A storage's points, in the order in which they were tried."""

    storage: str
    points: tuple[Check, ...]
    seconds: float
    left: str = ""  # the folder below the storage that could not be removed; "" where all is gone
    swept: int = 0  # earlier checks that were killed, and whose leavings this one removed

    @property
    def falls_short(self) -> tuple[Check, ...]:
        """The points that do not hold."""
        return tuple(point for point in self.points if point.state == "falls short")

    @property
    def not_tried(self) -> tuple[Check, ...]:
        """The points that nothing is known of."""
        return tuple(point for point in self.points if point.state == "not tried")

    def __getitem__(self, name: str) -> Check:
        """The point of this name."""
        return next(point for point in self.points if point.name == name)


@dataclass(frozen=True)
class Found:
    """What a point found: a `Check` without its name."""

    state: State
    detail: str = ""
    cost: str = ""
    remedy: str = ""


def holds(detail: str = "") -> Found:
    """The point holds."""
    return Found("holds", detail)


def short(detail: str, *, cost: str, remedy: str) -> Found:
    """The point does not hold."""
    return Found("falls short", detail, cost, remedy)


def untried(detail: str, remedy: str = "") -> Found:
    """The point could not be tried."""
    return Found("not tried", detail, remedy=remedy)
