"""Calls that Ctrl-C gets through.

Python acts on a signal in the main thread alone, between any two of its steps: where a connection
is between two hands, it would be lost, and what waits in C may not even notice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from .threads import start

T = TypeVar("T")


def interruptible(call: Callable[[], T]) -> T:
    """What `call` gives or raises. In the main thread Ctrl-C ends the wait, and not the call.

    `ThreadError` where there is no thread for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    try:
        helper.tasks.put(call)
        result, error = helper.results.get()
    except BaseException:
        helper.tasks.put(None)  # after its call, which nobody waits for
        raise
    _idle.append(helper)
    if error is None:
        return result  # type: ignore[no-any-return]
    try:
        raise error
    finally:
        del error  # it holds this frame


class _Helper:
    """A thread that makes one call after the other, and does not keep the process from ending."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        start(threading.Thread(target=self._run, name="storage_loader-call", daemon=True))

    def _run(self) -> None:
        while (call := self.tasks.get()) is not None:
            try:
                self.results.put((call(), None))
            except BaseException as error:  # the caller's
                self.results.put((None, error))
            del call


_idle: list[_Helper] = []  # of the main thread
os.register_at_fork(after_in_child=_idle.clear)  # their threads are the parent's
