"""Transforms for worker processes, in a module that imports little: each worker imports it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] * 2, "pid": os.getpid(), "text": "kept"}


def noisy(batch: dict[str, Any], rng: Any) -> dict[str, Any]:
    return {**batch, "noise": rng.random(len(batch["id"]))}


def keep(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


def fail_at_70(batch: dict[str, Any]) -> dict[str, Any]:
    if 70 in batch["id"]:
        raise ZeroDivisionError("seventy")
    return batch


def die_at_70(batch: dict[str, Any]) -> dict[str, Any]:
    if 70 in batch["id"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def unpicklable_result(batch: dict[str, Any]) -> Any:
    return lambda: batch


def exit_at_70(batch: dict[str, Any]) -> dict[str, Any]:
    if 70 in batch["id"]:
        os._exit(3)
    return batch


def _outlive() -> None:
    """A process that holds every file of this one for a while."""
    if not os.fork():
        time.sleep(60)
        os._exit(0)


def die_at_70_with_a_child(batch: dict[str, Any]) -> dict[str, Any]:
    if 70 in batch["id"]:
        _outlive()
    return die_at_70(batch)


def die_at_70_in_a_message(batch: dict[str, Any]) -> dict[str, Any]:
    """Half of what a worker sends: the byte without its descriptor."""
    if 70 in batch["id"]:
        frame = sys._getframe()
        while not isinstance(frame.f_locals.get("connection"), socket.socket):
            assert frame.f_back is not None
            frame = frame.f_back
        _outlive()
        frame.f_locals["connection"].send(b".")
    return die_at_70(batch)


def sleep_at_70(batch: dict[str, Any]) -> dict[str, Any]:
    if 70 in batch["id"]:
        time.sleep(300)
    return {**batch, "pid": os.getpid()}


def _load_not_here() -> None:
    raise ImportError("no module named moon")


class NotHere:
    """A transform that no worker can load."""

    def __call__(self, batch: Any) -> Any:
        return batch

    def __reduce__(self) -> Any:
        return _load_not_here, ()


def held(batch: dict[str, Any]) -> dict[str, Any]:
    return batch
