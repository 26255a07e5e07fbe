"""Transforms for worker processes, in a module that imports little: each worker imports it."""

from __future__ import annotations

import os
import signal
from typing import Any


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "x": batch["x"] * 2, "pid": os.getpid(), "text": "kept"}


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


def held(batch: dict[str, Any]) -> dict[str, Any]:
    return batch
