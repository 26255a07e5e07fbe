"""What an iteration did so far: how fast, and what its consumer waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...store import Counter, Traffic


@dataclass(frozen=True)
class Stats:
    """One iteration of a loader in this process and its workers, up to a moment.

    `seconds` is `wait_fetch + wait_gather + wait_transform + user_seconds`; a wait that is not
    over does not count yet. Of a local store nothing is fetched. Iterations of one loader that
    run at the same time count each other's requests, too.
    """

    seconds: float = 0.0  # since the first batch was asked for
    batches: int = 0  # given to the consumer
    rows: int = 0  # of these batches, repeats and padding too
    nbytes: int = 0  # of these rows
    wait_fetch: float = 0.0  # seconds the consumer waited for rows to be made ready
    wait_gather: float = 0.0  # seconds it waited for rows to be copied into a batch
    wait_transform: float = 0.0  # seconds it waited for the transform, or for worker processes
    bytes_fetched: int = 0  # from a network store, what was fetched ahead and checksums too
    requests: int = 0  # to it; a range is one
    retries: int = 0  # times that a request failed, or its bytes came damaged, and it was repeated

    @property
    def wait_seconds(self) -> float:
        """Seconds the consumer waited for us."""
        return self.wait_fetch + self.wait_gather + self.wait_transform

    @property
    def user_seconds(self) -> float:
        """Seconds the consumer spent on its own."""
        return max(0.0, self.seconds - self.wait_seconds)

    @property
    def wait_share(self) -> float:
        """0 to 1: the part of the time that the consumer waited for us."""
        return _ratio(self.wait_seconds, self.seconds)

    @property
    def rows_per_second(self) -> float:
        """The consumer's own time included."""
        return _ratio(self.rows, self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the rows given; the consumer's own time included."""
        return _ratio(self.nbytes, self.seconds)

    @property
    def bytes_found(self) -> int:
        """Bytes of the rows given that were in the cache or lie in a local store."""
        return max(0, self.nbytes - self.bytes_fetched)

    @property
    def hit_share(self) -> float:
        """0 to 1: bytes found, of those found and those fetched."""
        return _ratio(self.bytes_found, self.bytes_found + self.bytes_fetched)

    def __str__(self) -> str:
        waits = {"fetch": self.wait_fetch, "gather": self.wait_gather}
        waits["transform"] = self.wait_transform
        causes = ", ".join(f"{k} {_ratio(v, self.seconds):.0%}" for k, v in waits.items())
        return (
            f"{self.rows:,} rows in {self.seconds:.2f} s: {self.rows_per_second:,.0f} rows/s, "
            f"{size_text(self.bytes_per_second)}/s; waited {self.wait_share:.0%} ({causes}); "
            f"found {self.hit_share:.0%}, fetched {size_text(self.bytes_fetched)} in "
            f"{self.requests:,} requests, {self.retries} retries"
        )


class Meter:
    """Counts one iteration: `waits`, `give` and so on in turn, then `end`; `stats` at any time.

    The consumer's thread tells it what happens. What a wait was for follows from two moments of
    the batch that ended it: a wait before `ready` was for fetching, one up to `gathered` for
    copying, the rest for the transform.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.ready = 0.0  # when the rows of the batch that is given next were there
        self.gathered = float("inf")  # when it was copied; inf: at the moment it is given
        self.row_nbytes = 0
        self._counter = Counter()
        self._before = Traffic()
        self._traffic: Traffic | None = None  # of an iteration that is over
        self._elsewhere = Counter()  # requests of worker processes
        self._start: float | None = None
        self._last = 0.0  # moment at which the consumer began to wait, or ceased to
        self._is_waiting = False
        self._batches = self._rows = 0
        self._fetch = self._gather = self._transform = 0.0
        self._lock = threading.Lock()

    def begin(self, row_nbytes: int, counter: Counter) -> None:
        """The first batch is asked for. `counter` counts this process's requests."""
        with self._lock:
            self.row_nbytes = row_nbytes
            self._counter, self._before = counter, counter.total
            self._start = self._last = self.clock()
            self._is_waiting = True

    def waits(self) -> None:
        """The consumer asks for the next batch."""
        self._last = self.clock()
        self._is_waiting = True

    def give(self, rows: int) -> None:
        """The consumer gets a batch."""
        now = self.clock()
        with self._lock:
            self._waited(now)
            self._batches += 1
            self._rows += rows

    def _waited(self, now: float) -> None:
        since, ready, gathered = self._last, min(self.ready, now), self.gathered
        if ready > since:
            self._fetch += ready - since
            since = ready
        if gathered > now:
            gathered = now
        if gathered > since:
            self._gather += gathered - since
            since = gathered
        self._transform += now - since
        self._last = now
        self._is_waiting = False

    def add_traffic(self, traffic: Traffic) -> None:
        """Of a worker process."""
        self._elsewhere.add(
            requests=traffic.requests, nbytes=traffic.nbytes, retries=traffic.retries
        )

    def end(self) -> None:
        """The iteration is over, in whatever way."""
        now = self.clock()
        with self._lock:
            if self._is_waiting:  # for the end, or for what failed
                self._waited(now)
            self._last = now
            self._traffic = self._counter.total - self._before
            self._counter = Counter()

    def stats(self) -> Stats:
        """Up to now, or up to the end."""
        with self._lock:
            if self._start is None:
                return Stats()
            over = self._traffic is not None or self._is_waiting
            traffic = self._traffic
            if traffic is None:
                traffic = self._counter.total - self._before
            traffic += self._elsewhere.total
            return Stats(
                (self._last if over else self.clock()) - self._start,
                self._batches,
                self._rows,
                self._rows * self.row_nbytes,
                self._fetch,
                self._gather,
                self._transform,
                traffic.nbytes,
                traffic.requests,
                traffic.retries,
            )


def size_text(nbytes: float) -> str:
    """Bytes as a person reads them: 64.0 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
