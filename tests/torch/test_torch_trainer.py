"""The HF Trainer takes our datasets, on one process and on two, and resumes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader
from tests.support.rows import ROW

COUNT = 103
LIBRARY, MODULE = "transformers.trainer", "tests.torch.trainer_run"
ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}
# Rows that two ranks get twice, where batches of 8 do not come out even.
REPEATED = {
    "Dataset": 9,
    "batches, workers": 1,
    "batches, sharded": 8,
}

pytestmark = pytest.mark.timeout(500)


def test_one_process(saved: DataConfig, said: tuple[Any, list[Any]]) -> None:
    found, _ = said
    loader = DataLoader(saved, batch_size=8, **ORDER)
    expected = [batch[ROW].tolist() for _ in range(2) for batch in loader]
    assert found.pop("refused") == ""  # one rank's rows are all rows
    assert found.pop("anew") == expected[13:19]  # steps 21 to 26, from the epoch's first row
    remedy = (
        "the HF Trainer makes batches of those: give it data_collator=lambda batches: batches[0] "
        "and per_device_train_batch_size=1, or leave batch_size out here"
    )
    stacked = found.pop("stacked")
    assert len(stacked) == 3
    assert all(remedy in text for text in stacked)
    assert found.keys() == REPEATED.keys()
    for name, seen in found.items():
        batches = seen["batches"]
        if not name.startswith("Dataset"):
            assert batches == expected, name
        for epoch in (batches[:13], batches[13:]):
            assert sorted(n for batch in epoch for n in batch) == list(range(COUNT)), name
        assert seen["resumed"] == batches[20:], name


def test_two_processes(said: tuple[Any, list[Any]]) -> None:
    _, (first, second) = said
    for found in (first, second):
        assert "rank=0, world_size=1 and version=Dataset(config).version" in found.pop("refused")
        assert found.pop("anew") == found["batches, workers"]["batches"][7:11]
    assert first.keys() == second.keys() == REPEATED.keys()
    for name, repeated in REPEATED.items():
        one, two = first[name]["batches"], second[name]["batches"]
        assert len(one) == len(two) == 14, name
        for epoch in (slice(0, 7), slice(7, 14)):
            rows = Counter(n for batch in (*one[epoch], *two[epoch]) for n in batch)
            assert sorted(rows) == list(range(COUNT)), name
            assert rows.total() == COUNT + repeated, name
        assert first[name]["resumed"] == one[10:], name
        assert second[name]["resumed"] == two[10:], name
