"""The benchmark of GPUs runs without one: it says so, or measures a CPU where it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

pytest.importorskip("torch")

ON_CPU = """
import torch
from benchmarks.gpu import measure
from benchmarks.runner import Effort
from benchmarks.setting import Setting

with Setting(Effort(rounds=1, trials=1, quick=True)) as setting:
    for row in measure(setting, torch.device("cpu")):
        print(row.measure, row.value.median > 0 or row.unit == "%", row.plain_name, sep="; ")
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("torch_once")
def test_on_a_cpu_every_figure_is_measured() -> None:
    lines = [line for line in run("-c", ON_CPU).splitlines() if "; " in line]
    assert len(lines) == 8
    for words in ("150 KB uint8 rows", "48 KiB float32 rows"):
        folder, cache, beside, waited = [line for line in lines if words in line]
        assert folder == f"from the folder to the device, warm, {words}; True; pinned copies"
        assert cache == f"from the cache to the device, warm, {words}; True; pinned copies"
        assert beside.endswith("; True; torch's DataLoader, 1 workers")
        assert waited == f"time waited, steps of 1.2 times the copy, {words}; True; "


@pytest.mark.usefixtures("torch_once")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    hidden = f"import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''; import benchmarks.__main__ as m; raise SystemExit(m.main(['gpu', '--out', {str(tmp_path / 'out')!r}]))"  # noqa: E501
    assert "finds no CUDA device here: no figures, no result file" in run("-c", hidden)
    assert not (tmp_path / "out").exists()
