"""Hugging Face Accelerate takes our datasets and loaders, on one process and on two."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader
from tests.support.rows import ROW
from tests.support.spawned import TORCH, imported_once

COUNT = 103
LIBRARY, MODULE = "accelerate", "tests.torch.accelerate_run"
RESUMED = 3
ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}

# Rows that two ranks get twice, where batches of 8 do not come out even: 103 is 6 * 16 + 7.
REPEATED = {
    "DataLoader": 0,
    "Dataset": 9,  # up to whole batches
    "Dataset, workers": 9,
    "Dataset, split": 1,
    "Dataset, dispatched": 1,
    "batches": 1,
    "batches, workers": 1,
    "batches, sharded": 8,  # the odd batch has the first one beside it
    "rows": 1,
    "rows, split": 1,
    "rows, sharded": 9,
}

pytestmark = pytest.mark.timeout(500)


def test_one_process(saved: DataConfig, said: tuple[Any, list[Any]]) -> None:
    found, _ = said
    assert found.pop("refused") == [""] * 3  # one rank's rows are all rows
    loader = DataLoader(saved, batch_size=8, **ORDER)
    expected = [[batch[ROW].tolist() for batch in loader] for _ in range(3)]
    assert found.pop("beside") == expected[0]
    assert found.keys() == REPEATED.keys()
    for name, seen in found.items():
        if not name.startswith("Dataset"):
            assert seen["epochs"] == expected, name
        for epoch in seen["epochs"]:
            assert len(epoch) == seen["len"] == 13
            assert sorted(n for batch in epoch for n in batch) == list(range(COUNT)), name
        assert seen["resumed"] == [seen["epochs"][1][RESUMED:], seen["epochs"][2]], name


def test_launch_on_cpus_starts_one_process(tmp_path: Path) -> None:
    """As docs/pytorch.md warns: it is the launcher's, and a later one may start several."""
    script = tmp_path / "count.py"
    script.write_text("from accelerate import Accelerator\nprint(Accelerator().num_processes)\n")
    launcher = Path(sys.executable).with_name("accelerate")
    command = [sys.executable, launcher, "launch", "--cpu", "--num_processes", "2", script]
    with imported_once(*TORCH, starts=True):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.split() == ["1"]


def test_two_processes(said: tuple[Any, list[Any]]) -> None:
    _, (first, second) = said
    for refused in first.pop("refused") + second.pop("refused"):
        assert "rank=0, world_size=1 and version=Dataset(config).version" in refused
    beside = first.pop("beside") + second.pop("beside")
    assert sorted(n for batch in beside for n in batch) == list(range(COUNT))
    assert first.keys() == second.keys() == REPEATED.keys()
    for name, repeated in REPEATED.items():
        one, two = first[name], second[name]
        for epoch in range(3):
            mine, others = one["epochs"][epoch], two["epochs"][epoch]
            assert len(mine) == len(others), name
            rows = Counter(n for batch in (*mine, *others) for n in batch)
            assert sorted(rows) == list(range(COUNT)), name
            assert rows.total() == COUNT + repeated, name
        assert one["epochs"][0] != one["epochs"][1]
        if name == "Dataset, dispatched":
            continue  # skip_first_batches counts each rank's batches there, and goes half as far
        for rank in (one, two):
            assert rank["resumed"] == [rank["epochs"][1][RESUMED:], rank["epochs"][2]], name
