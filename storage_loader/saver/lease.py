"""A lease: it says to `gc` that an attempt lives, however long it takes to its next commit."""

from __future__ import annotations

import logging
import os
import threading
import time

from ..errors import StorageLoaderError
from ..store import Store

_log = logging.getLogger(__name__)

# Ten minutes, far less than gc's grace (24 hours unless told otherwise). Within the grace objects
# are spared for their own age, so the first lease is due only after ten minutes: most savers
# never ask their store for one.
RENEW_SECONDS = 600.0


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
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._due: float | None = None  # None while it is not held
        self._ended = False
        self._written = False

    def hold(self) -> None:
        """There are objects without a commit."""
        with self._changed:
            if self._due is not None or self._ended:
                return
            self._due = time.monotonic() + RENEW_SECONDS
            if self._thread is None:
                # A saver that was forgotten must not keep its process alive for ten minutes.
                self._thread = threading.Thread(
                    target=self._keep, name="storage_loader-save-lease", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def release(self) -> None:
        """All objects belong to a commit."""
        with self._changed:
            self._due = None
            self._changed.notify()

    def abandon(self) -> None:
        """Let the thread end by itself; the object stays and grows old."""
        if self._pid == os.getpid():  # the lock of a forked process may be held for ever
            with self._changed:
                self._ended = True
                self._changed.notify()

    def end(self) -> None:
        """End the thread, and delete the object where there is one."""
        self.abandon()
        if self._thread is not None and self._thread.is_alive():  # Ctrl-C may come before `start`
            self._thread.join()
        if self._written:
            self._written = False
            try:
                self._store.delete([self._key])
            except StorageLoaderError as error:
                _log.warning("the lease of an ended saver remains: %s", error)

    def _keep(self) -> None:
        while self._wait_until_due():
            wait = RENEW_SECONDS
            try:
                self._store.put(self._key, b"{}")
                self._written = True
            except StorageLoaderError as error:
                wait /= 10
                _log.warning("a saver's lease was not renewed, it tries again: %s", error)
            with self._changed:
                if self._due is not None:
                    self._due = time.monotonic() + wait

    def _wait_until_due(self) -> bool:
        """Whether it is to be renewed now; False at the end."""
        with self._changed:
            while not self._ended:
                left = None if self._due is None else self._due - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
            return False
