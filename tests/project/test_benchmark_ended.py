"""A benchmark that is ended from outside, as `timeout` does it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.waiting import until


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "save_folder", "--quick", "--rounds=1000"]
    with subprocess.Popen([*command, f"--scratch={tmp_path}"], cwd=ROOT) as process:
        until(lambda: list(tmp_path.rglob("*.h5")) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
