"""PyTorch Lightning takes our loaders as they are, on one process and on two."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import ROW, config, save_rows

from storage_loader import DataConfig, DataLoader

COUNT = 103
SCRIPT = Path(__file__).with_name("lightning_run.py")
ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}


@pytest.fixture
def saved(folder: dict[str, str]) -> DataConfig:
    the_config = config(folder)
    return save_rows(the_config, COUNT, 40, commits=True)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, SCRIPT, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, errors = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def test_one_process(saved: DataConfig, tmp_path: Path) -> None:
    found = answer(start(saved.storage, str(tmp_path)))
    loader = DataLoader(saved, batch_size=8, **ORDER)
    expected = [[batch[ROW].tolist() for batch in loader] for _ in range(2)]
    assert found["DataLoader"] == found["IterableDataset"] == found["workers"] == expected
    for epoch in found["Dataset"]:
        assert sorted(n for batch in epoch for n in batch) == list(range(COUNT))
    assert found["resumed"] == [expected[0][5:], expected[1]]  # from its checkpoint of step 5


def test_two_processes(saved: DataConfig) -> None:
    with socket.socket() as held:  # bound and not listening: nobody but rank 0 gets the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        ranks = [
            start(
                saved.storage,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(held.getsockname()[1]),
                NODE_RANK="0",
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
            )
            for rank in range(2)
        ]
        try:
            first, second = [answer(rank) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    for name in ("DataLoader", "IterableDataset", "Dataset"):
        for one, two in zip(first[name], second[name], strict=True):
            assert [len(b) for b in one][:-1] == [len(b) for b in two][:-1] == [8] * 6
            rows = [n for batch in (*one, *two) for n in batch]
            # 103 rows: torch's sampler repeats one, ours gives a rank one more.
            assert sorted(set(rows)) == list(range(COUNT))
            assert len(rows) == COUNT + (name == "Dataset")
        assert first[name][0] != first[name][1]
