"""PyTorch Lightning takes our loaders as they are, on one process and on two."""

from __future__ import annotations

from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader
from tests.support.rows import ROW

COUNT = 103
LIBRARY, MODULE = "pytorch_lightning", "tests.torch.lightning_run"
ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}

pytestmark = pytest.mark.timeout(500)


def test_one_process(saved: DataConfig, said: tuple[Any, list[Any]]) -> None:
    found, _ = said
    loader = DataLoader(saved, batch_size=8, **ORDER)
    expected = [[batch[ROW].tolist() for batch in loader] for _ in range(2)]
    assert found["DataLoader"] == found["IterableDataset"] == found["workers"] == expected
    for epoch in found["Dataset"]:
        assert sorted(n for batch in epoch for n in batch) == list(range(COUNT))
    for epoch in found["overfit, subset"]:
        assert sorted(n for batch in epoch for n in batch) == list(range(16))
    assert found["overfit"] == [epoch[:2] for epoch in expected]  # other rows in each epoch
    assert found["resumed"] == [expected[0][5:], expected[1]]  # from its checkpoint of step 5


def test_a_loader_made_anew_for_each_epoch_goes_on(
    saved: DataConfig, said: tuple[Any, list[Any]]
) -> None:
    found, _ = said
    loader = DataLoader(saved, batch_size=8, **ORDER)
    expected = [[batch[ROW].tolist() for batch in loader] for _ in range(4)]
    assert found["reloaded"] == expected[:2]
    assert found["reloaded, epochs=2"] == [expected[0] + expected[1], expected[2] + expected[3]]
    assert found["reloaded, resumed at 5"] == [expected[0][5:], *expected[1:3]]
    assert found["reloaded, resumed at 13"] == expected[1:3]


def test_two_processes(said: tuple[Any, list[Any]]) -> None:
    _, (first, second) = said
    for name in ("DataLoader", "IterableDataset", "Dataset"):
        for one, two in zip(first[name], second[name], strict=True):
            assert [len(b) for b in one][:-1] == [len(b) for b in two][:-1] == [8] * 6
            rows = [n for batch in (*one, *two) for n in batch]
            # 103 rows: torch's sampler repeats one, ours gives a rank one more.
            assert sorted(set(rows)) == list(range(COUNT))
            assert len(rows) == COUNT + (name == "Dataset")
        assert first[name][0] != first[name][1]
