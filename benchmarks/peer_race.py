"""Loaders that run in turn, each peer by its fastest way, and the table's rows from their rates."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .peer_loaders import PEERS
from .peer_process import PATIENCE, Contender, PeerError
from .peer_stored import Stored, Way
from .runner import Row, Spread


def _ways(*peers: str) -> tuple[Way, ...]:
    return tuple(Way(peer, workers) for peer in peers for workers in (0, 2))


COLD = (
    *_ways("streaming", "litdata", "webdataset"),
    Way("streaming", 0, "blocks"),
    Way("streaming", 2, "blocks"),
    Way("lance", 0, "scan"),
)
WARM = (
    *_ways("streaming", "litdata", "webdataset", "torch"),
    Way("lance", 0),
    Way("lance", 4),
)
TAKE = (Way("lance", 0), Way("lance", 4), Way("lance", 16))

_SHORTEST_TRIAL = 60.0  # seconds for an epoch that a way has in any case, and ...
_FAR_SLOWER = 20  # ... as many times as long as the peer's fastest way so far


@dataclass
class Found:
    """What was measured of one loader."""

    name: str  # e.g. "litdata"
    words: str = ""  # its settings
    rates: list[float] = field(default_factory=list)  # rows/s, a round each
    faults: list[str] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        """Of the rates; there must be some."""
        return Spread.of(self.rates)


def race(
    stored: Stored,
    ways: Sequence[Way],
    ours: Callable[[], float],
    *,
    cold: bool,
    trial: int = 0,  # batches of an epoch in the trial; 0: all
) -> list[Found]:
    """Our rates, then those of each peer by its fastest way."""
    group = stored.group
    effort = group.setting.effort
    ours()  # imports, connections, and the first of warm epochs
    first = Found("ours")
    found = [first]
    racing: list[tuple[Found, Contender]] = []
    try:
        for name in dict.fromkeys(way.peer for way in ways if way.peer in group.names):
            found.append(Found(name))
            try:
                tried = [way for way in ways if way.peer == name]
                contender, wrong = _fastest(stored, tried, effort.trials, trial, cold=cold)
                found[-1].faults += wrong
            except PeerError as error:
                found[-1].faults.append(f"no way works: {error}")
            else:
                racing.append((found[-1], contender))
        for index in range(effort.rounds):
            turns: list[tuple[Found, Contender | None]] = [(first, None), *racing]
            shift = index % len(turns)
            for entry, other in turns[shift:] + turns[:shift]:
                gc.collect()
                try:
                    seconds = other.seconds() if other else ours()
                except PeerError as error:
                    entry.faults.append(f"fails: {error}")
                    racing = [pair for pair in racing if pair[0] is not entry]
                    if other is not None:
                        other.close()
                    continue
                spec = other.spec if other else stored.spec
                entry.rates.append(spec.rows_of_epoch / seconds)
        for entry, contender in racing:
            entry.words = contender.name
            if contender.faults:
                count = len(contender.faults)
                entry.faults.append(f"{count} epochs gave wrong rows: {contender.faults[0]}")
    finally:
        for _, contender in racing:
            contender.close()
    return found


def _fastest(
    stored: Stored, ways: Sequence[Way], trials: int, trial: int, *, cold: bool
) -> tuple[Contender, list[str]]:
    """A contender of the fastest way that gives all rows, and what was wrong with other ways.

    A way that took twice as long as another is not tried again, one that takes far longer not to
    the end. PeerError where none works.
    """
    best: dict[Way, float] = {}
    wrong: list[str] = []
    for way in ways:
        contender = _contender(stored, way, trial, cold=cold)
        least = min(best.values(), default=PATIENCE)
        contender.patience = min(PATIENCE, max(_SHORTEST_TRIAL, _FAR_SLOWER * least))
        try:
            times = [contender.seconds()]
            if times[0] < 2 * least:
                times += [contender.seconds() for _ in range(trials - 1)]
        except PeerError as error:
            wrong.append(f"{way.words} fails: {error}")
        else:
            wrong += [f"{way.words} gives wrong rows: {fault}" for fault in contender.faults[:1]]
            if not contender.faults:
                best[way] = statistics.median(times)
        finally:
            contender.close()
    if not best:
        raise PeerError("; ".join(wrong))
    return _contender(stored, min(best, key=best.__getitem__), cold=cold), wrong


def _contender(stored: Stored, way: Way, trial: int = 0, *, cold: bool) -> Contender:
    spec = stored.of(way, local=not cold)
    spec = replace(spec, limit=trial or spec.limit)
    words = f"{PEERS[way.peer].package} {stored.versions[way.peer]}, {way.words}"
    cached = spec.source.startswith("s3://") and way.peer != "lance"
    return stored.group.peers.contender(words, spec, cold=cold, cached=cached)


def table_rows(title: str, found: Sequence[Found]) -> list[Row]:
    """A row for each peer."""
    ours, *peers = found
    return [_row(f"{title}, beside {peer.name}", ours, peer) for peer in peers]


def _row(measure: str, ours: Found, peer: Found) -> Row:
    note = "; ".join(word for word in (peer.words, *peer.faults) if word)
    if len(peer.rates) < len(ours.rates):  # it failed
        return Row(measure, "rows/s", ours.spread, rounds=len(ours.rates), note=note)
    ratios = [a / b for a, b in zip(ours.rates, peer.rates, strict=True)]
    return Row(
        measure,
        "rows/s",
        ours.spread,
        peer.spread,
        peer.name,
        Spread.of(ratios),
        len(ours.rates),
        note=note,
    )


def joined_row(measure: str, found: Sequence[Found]) -> Row:
    """One row for all peers: the fastest beside ours, the others in `others`."""
    ours, *peers = found
    ran = [peer for peer in peers if len(peer.rates) == len(ours.rates)]
    faults = "; ".join(f"{peer.name}, {fault}" for peer in peers for fault in peer.faults)
    if not ran:
        return Row(measure, "rows/s", ours.spread, rounds=len(ours.rates), note=faults)
    best = max(ran, key=lambda peer: peer.spread.median)
    row = _row(measure, ours, best)
    words = "; ".join(peer.words for peer in ran)
    return replace(
        row,
        note="; ".join(word for word in (words, faults) if word),
        others={peer.name: peer.spread for peer in ran if peer is not best},
    )
