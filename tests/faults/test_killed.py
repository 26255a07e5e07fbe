"""SIGKILL at random moments: jobs that go on, readers beside them, and readers of one cache."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig
from storage_loader.errors import DatasetNotFoundError
from tests.support import ROOT, killing
from tests.support.caches import fill
from tests.support.rows import ATTRIBUTES_1K, kilobytes, stored
from tests.support.scale import scaled

pytestmark = pytest.mark.usefixtures("library_once")


def start(kind: str, the_config: DataConfig, **how: Any) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AWS_ACCESS_KEY_ID": the_config.access_key or "",
        "AWS_SECRET_ACCESS_KEY": the_config.secret_key or "",
    }  # which are in no JSON
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            killing.__name__,
            kind,
            json.dumps({"config": the_config.to_json(), **how}),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def result_of(program: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = program.communicate(timeout=1000)
    assert program.returncode == 0
    result: dict[str, Any] = json.loads(output)
    print(result)  # pytest -rP shows it
    return result


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("place", ["folder", pytest.param("s3_storage", marks=pytest.mark.s3)])
def test_jobs_that_are_killed_and_started_again_save_each_row_once(
    request: pytest.FixtureRequest, place: str
) -> None:
    """Meanwhile a reader opens the newest version again and again."""
    kills, rounds, most = scaled(6), 0, 0
    while kills or most <= 2:  # a reader that was too slow to see commits come saw nothing
        # A dataset for some kills: one of 500 commits is mostly opened, and hit at that.
        the_config = kilobytes(request.getfixturevalue(place), name=f"round-{rounds}")
        most = max(most, save_while_killed(the_config, min(kills, 25) or 6, seed=rounds))
        kills -= min(kills, 25)
        rounds += 1


def save_while_killed(the_config: DataConfig, kills: int, seed: int) -> int:
    """How many lengths of the dataset the reader saw."""
    lengths = {0}
    program = start("save", the_config, kills=kills, seed=seed)
    try:
        while program.poll() is None:
            with contextlib.suppress(DatasetNotFoundError):
                numbers = stored(the_config, ATTRIBUTES_1K)
                # Whole commits, in the order of saving, and never fewer than before.
                assert numbers == list(range(len(numbers)))
                assert len(numbers) % killing.COMMIT == 0
                assert len(numbers) >= max(lengths)
                lengths.add(len(numbers))
        result = result_of(program)
    finally:
        program.kill()
        program.communicate()
    assert stored(the_config, ATTRIBUTES_1K) == list(range(result["rows"]))
    assert result["kills"] >= kills
    print(f"the reader saw {len(lengths)} lengths")
    return len(lengths)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("place", ["folder", pytest.param("s3_storage", marks=pytest.mark.s3)])
def test_readers_that_are_killed_leave_a_cache_that_is_right_and_of_use(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    the_config = fill(request.getfixturevalue(place), 2000, max_object_size=2**20)
    kills = scaled(5)
    program = start(
        "read", the_config, kills=kills, seed=kills, rows=2000, cache_dir=str(tmp_path / "cache")
    )
    try:
        result = result_of(program)
    finally:
        program.kill()
        program.communicate()
    assert result["kills"] >= kills
    assert result["half_filled"] >= 1
