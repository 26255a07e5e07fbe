"""A file that one thread of one process has at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import StoreTimeoutError
from ..process import PerProcess
from .files import check_regular

_log = logging.getLogger(__name__)

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_PATIENCE = 60.0  # s of waiting at most; who has it renames a file
_LONG = 10.0  # s of waiting after which the log says for what
_POLL = 0.005  # s between attempts

# Record locks end with the process that took them, whatever it forked, but keep no threads apart;
# and closing any descriptor of the file ends them, so that one thread at a time may have it open.
_one_thread: PerProcess[threading.Lock] = PerProcess()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep out all others that lock this file, which is made, or any at all in this process.

    Raises `StoreTimeoutError` where another process has it for a minute.
    """
    with _one_thread.get(threading.Lock):
        descriptor = os.open(path, _FLAGS, 0o666)
        try:
            check_regular(os.fstat(descriptor).st_mode)
            _wait_for(descriptor, path)
            yield
        finally:
            os.close(descriptor)


def _wait_for(descriptor: int, path: Path) -> None:
    begun, is_logged = time.monotonic(), False
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            seconds = time.monotonic() - begun
        else:
            return
        if seconds > _PATIENCE:
            raise StoreTimeoutError(
                f"{path}: another process has had this lock for {seconds:.0f} s; is it stopped, or "
                "does the file system hang? Find it with `fuser` or `lslocks`"
            )
        if seconds > _LONG and not is_logged:
            is_logged = True
            _log.warning("%s: another process has this lock; it is waited for", path)
        time.sleep(_POLL)
