"""Waiting for what another thread or process is about to do."""

import time
from collections.abc import Callable

SECONDS = 100  # after which it never happens: far more than a loaded machine takes


def until(condition: Callable[[], object]) -> None:
    """Return once `condition` holds; fail where it never does."""
    late = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < late, "it never happened"
        time.sleep(0.002)
