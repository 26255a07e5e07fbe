"""A program that forks checks of a storage and kills them at random moments.

    python -m tests.support.checking KILLS SEED '{"storage": ..., ...}'

It uses no store itself: what a client starts may not survive a fork. It prints how many were
killed, and how many ended before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from storage_loader import DataConfig
from storage_loader.checks.examine import examine, points_of
from storage_loader.checks.trial import Effort
from storage_loader.store import open_store

# Less of each, so that the kills meet all points.
EFFORT = Effort(rounds=3, fresh=3, listed=100, speed_seconds=0.1, object_nbytes=2**20)


def checked_in_child(seconds: float | None, **settings: str) -> bool:
    """Whether the child ended by itself before it was killed."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            config = DataConfig("any", **settings)
            examine(open_store(config), points_of(config), effort=EFFORT)
            status = 0
        finally:
            os._exit(status)
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"a check failed: wait status {status}"
            return True
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def main(kills: int, seed: int, **settings: str) -> None:
    chance = random.Random(seed)
    began = time.monotonic()
    checked_in_child(None, **settings)
    longest = time.monotonic() - began
    ended = 0
    killed = 0
    while killed < kills:
        if checked_in_child(chance.uniform(0, longest), **settings):
            ended += 1
        else:
            killed += 1
    print(json.dumps({"killed": killed, "ended": ended}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), **json.loads(sys.argv[3]))
