"""A lease: it says to `gc` that an attempt lives, however long it takes to its next commit."""

from __future__ import annotations

import logging
import os
import threading
import time
from queue import Empty, SimpleQueue

from ..errors import StorageLoaderError
from ..store import Store
from ..threads import start

_log = logging.getLogger(__name__)

# Ten minutes, far less than gc's grace (24 hours unless told otherwise). Within the grace objects
# are spared for their own age, so the first lease is due only after ten minutes: most savers
# never ask their store for one.
RENEW_SECONDS = 600.0

_END = -1.0


class Lease:
    """Keeps the object under `key` fresh, in a thread, while it is held.

    First put `RENEW_SECONDS` after `hold`, then put again at that interval until `release`. A put
    that fails is logged and tried again in a tenth of the interval. The thread starts at the first
    `hold` and ends at `end`, which deletes the object.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._pid = os.getpid()
        # When it is due, None while it is not held, or `_END`. Not a condition: Ctrl-C within one
        # leaves its lock behind, and the thread that is joined would wait for it for ever.
        self._told: SimpleQueue[float | None] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_held = False
        self._written = False

    def hold(self) -> None:
        """There are objects without a commit."""
        if self._is_held:
            return
        self._is_held = True
        self._told.put(time.monotonic() + RENEW_SECONDS)
        with self._starting:
            if self._thread is None:
                # A saver that was forgotten must not keep its process alive for ten minutes.
                self._thread = threading.Thread(
                    target=self._keep, name="storage_loader-save-lease", daemon=True
                )
                start(self._thread)

    def release(self) -> None:
        """All objects belong to a commit."""
        self._is_held = False
        self._told.put(None)

    def abandon(self) -> None:
        """Let the thread end by itself; the object stays and grows old."""
        if self._pid == os.getpid():  # a forked process has no such thread
            self._told.put(_END)

    def end(self, *, seconds: float | None = None) -> None:
        """End the thread, and delete the object where there is one.

        Given `seconds`, it waits no longer, and the object stays and grows old.
        """
        self.abandon()
        if self._thread is not None and self._thread.is_alive():  # Ctrl-C may come before `start`
            self._thread.join(seconds)
        if self._written and seconds is None:
            self._written = False
            try:
                self._store.delete([self._key])
            except StorageLoaderError as error:
                _log.warning("the lease of an ended saver remains: %s", error)

    def _keep(self) -> None:
        due: float | None = None
        while due != _END:
            left = None if due is None else max(0.0, due - time.monotonic())
            try:
                due = self._told.get(timeout=left)
            except Empty:
                due = time.monotonic() + self._renewed()

    def _renewed(self) -> float:
        """Put the object; seconds until that is due again."""
        try:
            self._store.put(self._key, b"{}")
        except StorageLoaderError as error:
            _log.warning("a saver's lease was not renewed, it tries again: %s", error)
            return RENEW_SECONDS / 10
        self._written = True
        return RENEW_SECONDS
