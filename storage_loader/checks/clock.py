"""The point `clock`: whether the storage's time is this machine's."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from .trial import Point, Trial
from .value import Found, holds, short
from .verbs import WRITING

_SKEW = timedelta(minutes=1)


def _clock(trial: Trial) -> Found:
    before = datetime.now(timezone.utc)
    there = trial.store.now(trial.store.key("clock"))
    return judged_clock(there, before, datetime.now(timezone.utc))


def judged_clock(there: datetime, before: datetime, after: datetime) -> Found:
    """Whether the store's clock, looked at between two moments of ours, is as ours."""
    ahead = there - after if there > after else min(timedelta(0), there - before)
    if abs(ahead) <= _SKEW:
        return holds(f"{max(0.0, abs(ahead.total_seconds()) - 1):.0f} s apart")
    word = "ahead of" if ahead > timedelta(0) else "behind"
    return short(
        f"the storage's clock is {abs(ahead.total_seconds()):.0f} s {word} this machine's",
        cost="from 15 minutes on S3 servers refuse every request; times in `log` are wrong",
        remedy="set both clocks by NTP",
    )


CLOCK = Point("clock", _clock, needs=WRITING)
