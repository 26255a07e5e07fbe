"""What is said of a store that fails for long: when that begins, now and then, and when it ends.

All loaders and savers of a process that use a store see the same outage, from many threads at once;
a line for each of their attempts would bury what there is to know.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable

from ..text import printable

LOUD = 5.0  # seconds: who waits longer for the store than this wants to know why
_AGAIN = 30.0  # seconds from one line to the next


class Outage:
    """Whether a store fails now, as its operations find. Any thread may tell.

    It begins when an operation has failed for `LOUD`. It ends when one succeeds and no other is
    still failing: where a server takes no puts, but answers gets, it goes on.
    """

    def __init__(
        self, url: str, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = printable(url)
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        # Those that have failed for long. One that is given up, or interrupted, goes by itself.
        self._waiting: weakref.WeakSet[object] = weakref.WeakSet()
        self._failed = 0  # requests since the store was fine
        self._since = 0.0
        self._said: float | None = None  # when the last line was; None: there is no outage

    def fails(self, operation: object, error: Exception, elapsed: float, deadline: float) -> None:
        """A request failed of an operation that began `elapsed` seconds ago, and is made again."""
        now = self._clock()
        with self._lock:
            self._since = min(self._since, now - elapsed) if self._failed else now - elapsed
            self._failed += 1
            if elapsed < LOUD:
                return
            self._waiting.add(operation)
            begins = self._said is None
            if self._said is not None and now - self._said < _AGAIN:
                return
            self._said = now
            seconds, failed, waiting = now - self._since, self._failed, len(self._waiting)
        if begins:
            self._log.warning(
                "%s has failed for %.0f s: %s; each operation is tried again for up to %.0f s",
                self._url, seconds, error, deadline,
            )  # fmt: skip
        else:
            self._log.warning(
                "%s has failed for %.0f s: %d requests failed, %d operations wait, the last "
                "error: %s",
                self._url, seconds, failed, waiting, error,
            )  # fmt: skip

    def succeeds(self, operation: object) -> None:
        """An operation has what it wanted."""
        if not self._failed:
            return
        now = self._clock()
        with self._lock:
            self._waiting.discard(operation)
            if self._waiting or not self._failed:
                return
            failed, self._failed = self._failed, 0
            said, self._said = self._said, None
            seconds = now - self._since
        if said is not None:
            self._log.warning(
                "%s answers again after %.0f s; %d requests had failed", self._url, seconds, failed
            )

    def gives_up(self, operation: object) -> None:
        """An operation is not tried any more: its error is the caller's."""
        with self._lock:
            self._waiting.discard(operation)
