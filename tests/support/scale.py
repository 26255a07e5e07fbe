"""How large the tests that inject faults at random are: larger on demand than in CI."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("STORAGE_LOADER_TEST_SCALE") or 1)


def scaled(count: int) -> int:
    """`count` times what STORAGE_LOADER_TEST_SCALE says, default 1; at least one."""
    return max(1, round(count * SCALE))
