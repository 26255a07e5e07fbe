"""The examples, each run in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT

EXAMPLES = ROOT / "examples"

DIGITS = EXAMPLES / "digits.py"


def run(*options: str, example: Path = DIGITS, is_silent: bool = True, **environment: str) -> str:
    """What the example prints; it must end with an accuracy of 97% at least."""
    done = subprocess.run(
        [sys.executable, example, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},  # other tests run beside it
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert not is_silent or done.stderr == ""
    last = re.fullmatch(r"test accuracy: (\d+\.\d)%", done.stdout.splitlines()[-1])
    assert last, done.stdout
    assert float(last[1]) >= 97
    return done.stdout
