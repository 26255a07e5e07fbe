"""Measuring two sides in turn: the ratio within each round, its median and quartiles."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

_DRAWS = 2000  # of the bootstrap
FINALISTS = 2  # plain sides that survive the trial


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Side:
    """One way to do a job. `work` is timed; `before` and `after` are not."""

    name: str
    work: Callable[[], object]
    before: Callable[[], object] = _nothing
    after: Callable[[], object] = _nothing

    def seconds(self) -> float:
        """Time of one run."""
        gc.collect()
        self.before()
        start = time.perf_counter()
        try:
            self.work()
            return time.perf_counter() - start
        finally:
            self.after()


@dataclass(frozen=True)
class Effort:
    """How long to measure: `rounds` of both sides, after `trials` of each plain side."""

    rounds: int = 11
    trials: int = 2
    quick: bool = False  # small data too: shows that it runs, not how fast


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)

    @classmethod
    def of_the_median(cls, values: Sequence[float]) -> Spread:
        """The median and its 95% interval, by bootstrap."""
        drawn = np.random.default_rng(0).choice(np.array(values), (_DRAWS, len(values)))
        low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975)).tolist()
        return cls(low, statistics.median(values), high)


@dataclass(frozen=True)
class Row:
    """A line of the table: a figure, and what it was measured against."""

    measure: str
    unit: str
    value: Spread
    plain: Spread | None = None
    plain_name: str = ""
    ratio: Spread | None = None
    rounds: int = 1
    at_least: float | None = None  # the target: of the ratio where there is one, else of the value
    at_most: float | None = None
    note: str = ""
    others: dict[str, Spread] = field(default_factory=dict)  # plain sides that were slower
    curve: Sequence[float | None] = ()  # of a value over time: medians of equal parts of it

    @property
    def holds(self) -> bool | None:
        """Whether the target is met by the median; None without a target."""
        judged = (self.ratio or self.value).median
        if self.at_least is not None:
            return judged >= self.at_least
        if self.at_most is not None:
            return judged <= self.at_most
        return None


def compare(
    measure: str,
    ours: Side,
    plain: Sequence[Side],
    *,
    amount: float,
    unit: str,
    effort: Effort,
    at_least: float | None = None,
    note: str = "",
) -> Row:
    """Rates (`amount` per second) of `ours` and of the best of `plain`.

    A trial finds the two fastest plain sides; they and ours then run in turn, each round in
    another order. Plain is the one with the better median of those rounds.
    """
    trial = {side.name: [side.seconds() for _ in range(effort.trials)] for side in plain}
    best = sorted(plain, key=lambda side: statistics.median(trial[side.name]))[:FINALISTS]
    sides = [ours, *best]
    ours.seconds()  # imports, connections and templates are not a saving's or an epoch's own time
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    for index in range(effort.rounds):
        for side in sides[index % len(sides) :] + sides[: index % len(sides)]:
            seconds[side.name].append(side.seconds())
    rates = {name: [amount / s for s in times] for name, times in seconds.items()}
    chosen = max(best, key=lambda side: statistics.median(rates[side.name]))
    ratios = [p / o for o, p in zip(seconds[ours.name], seconds[chosen.name], strict=True)]
    others = {s.name: Spread.of([amount / t for t in trial[s.name]]) for s in plain}
    others |= {s.name: Spread.of(rates[s.name]) for s in best}
    del others[chosen.name]
    return Row(
        measure,
        unit,
        Spread.of(rates[ours.name]),
        Spread.of(rates[chosen.name]),
        chosen.name,
        Spread.of(ratios),
        effort.rounds,
        at_least=at_least,
        note=note,
        others=others,
    )
