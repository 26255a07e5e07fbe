"""The examples, each run in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.spawned import JAX, SKLEARN, TENSORFLOW, imported_once

EXAMPLES = ROOT / "examples"

DIGITS = EXAMPLES / "digits.py"
IMPORTS = {"storage_loader.tensorflow": TENSORFLOW, "storage_loader.jax": JAX}  # else torch


def run_example(
    example: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """An example that has ended well."""
    text = example.read_text()
    modules = next((IMPORTS[name] for name in IMPORTS if name in text), SKLEARN)
    with imported_once(*modules, starts="spawn(" in text):
        done = subprocess.run(
            [sys.executable, example, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},  # other tests run beside it
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr
    return done


def run(*options: str, example: Path = DIGITS, is_silent: bool = True, **environment: str) -> str:
    """What the example prints; it must end with an accuracy of 97% at least."""
    done = run_example(example, *options, **environment)
    assert not is_silent or done.stderr == ""
    last = re.fullmatch(r"test accuracy: (\d+\.\d)%", done.stdout.splitlines()[-1])
    assert last, done.stdout
    assert float(last[1]) >= 97
    return done.stdout
