"""The point `speed`: how long small requests take, and how much is moved in a second."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence

from .promises import listed_keys
from .trial import Point, Trial
from .value import Found, holds
from .verbs import BODY, KEPT

_SAVING = 4  # puts at once, as a saver's
_LOADING = 32  # reads at once, as a loader's
_SMALL = 40  # requests whose median time is told


def _speed(trial: Trial) -> Found:
    puts, gets, lists = _small(trial)
    up, down = _moved(trial)
    return holds(
        f"median of a small PUT {_ms(puts)}, GET {_ms(gets)}, LIST {_ms(lists)}; {up:.0f} MB/s up "
        f"({_SAVING} at once), {down:.0f} MB/s down ({_LOADING} at once)"
    )


def _small(trial: Trial) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each of some small puts, gets and listings, one after another."""
    folder = trial.store.key("small")
    end = trial.until(trial.effort.speed_seconds)
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    for number in range(_SMALL):
        key = f"{folder}/{number}"
        found[0].append(_seconds(lambda key=key: trial.store.put(key, BODY)))  # type: ignore[misc]
        found[1].append(_seconds(lambda key=key: trial.store.get(key)))  # type: ignore[misc]
        found[2].append(_seconds(lambda: listed_keys(trial, folder)))
        if time.monotonic() > end:
            break
    return found


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _moved(trial: Trial) -> tuple[float, float]:
    """MB/s of puts by as many threads as a saver has, and of reads by as many as a loader has."""
    seconds, nbytes = trial.effort.speed_seconds, trial.effort.object_nbytes
    body = BODY * (nbytes // len(BODY))
    keys = [trial.store.key(f"large-{number}") for number in range(_LOADING)]
    written: list[str] = []

    def up(key: str) -> int:
        if written and time.monotonic() > end:
            return 0
        trial.store.put(key, body)
        written.append(key)
        return len(body)

    def down(key: str) -> int:
        moved = 0
        while not moved or time.monotonic() < end:
            for piece in trial.store.stream(key, 0, len(body)):
                moved += memoryview(piece).nbytes
                if time.monotonic() > end:
                    break
        return moved

    end = trial.until(seconds)
    up_rate = _rate(trial, up, keys, _SAVING)
    end = trial.until(seconds)
    reads = [key for key, _ in zip(itertools.cycle(written), keys, strict=False)]
    return up_rate, _rate(trial, down, reads, _LOADING)


def _rate(trial: Trial, move: Callable[[str], int], keys: Sequence[str], at_once: int) -> float:
    began = time.perf_counter()
    moved = sum(trial.all(move, keys, at_once=at_once))
    return moved / (time.perf_counter() - began) / 1e6


def _ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms"


SPEED = Point("speed", _speed, needs=("list", "range", "delete"), unless=KEPT)
