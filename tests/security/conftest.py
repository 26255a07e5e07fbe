from __future__ import annotations

from typing import Any

import pytest

from tests.support.faulty import watch


@pytest.fixture(params=["mapped", "unverified", "fetched", "cached"])
def way(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, memory: dict[str, str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Where the rows lie, and how they are read: each path of bytes by itself."""
    if request.param in ("fetched", "cached"):
        watch(monkeypatch, local=False)
    settings = {"unverified": {"verify": False}, "fetched": {"cache_size": 0}}
    return memory, settings.get(request.param, {})
