"""What is fetched of rows that have no fixed size: directory, ends, and their own blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, DataLoader, Dataset, Ragged
from storage_loader.layout import BLOCK_NBYTES
from tests.support.caches import assert_disjoint, ranges
from tests.support.faulty import watch
from tests.support.rows import ROW, assert_rows, config, numbers_in, save_rows

TOKENS = Attribute("tokens", "int32", (None,))
KINDS = (TOKENS, Attribute(ROW, "int64"), Attribute("pixels", "uint8", (3000,)))
ROWS = 20_000  # so many that their ends are no small column


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """One object of some megabytes, of which ends and tokens have several blocks each."""
    folder = tmp_path_factory.mktemp("store")
    the_config = config({"storage": str(folder)}, attributes=KINDS[:2])
    return save_rows(the_config, ROWS, 5000)


@pytest.mark.parametrize("verify", [True, False])
def test_a_row_by_its_number_takes_two_requests_and_its_own_blocks(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    opened = watch(monkeypatch, local=False)
    dataset = Dataset(saved, attributes=["tokens"], cache_size=0, verify=verify)
    dataset[0]
    before = len(ranges(opened))
    numbers = np.random.default_rng(0).integers(0, ROWS, 20).tolist()
    for number in numbers:
        assert_rows(_batch(dataset[number]), [number], [TOKENS])
        fetched = ranges(opened)[before:]
        before += len(fetched)
        assert len(fetched) <= 2
        assert sum(end - start for _, start, end in fetched) <= 4 * BLOCK_NBYTES
    assert sum(len(dataset[n]["tokens"]) > 0 for n in numbers) > 10


def _batch(row: dict[str, Any]) -> dict[str, Any]:
    return {name: Ragged.of_lengths(value, [len(value)]) for name, value in row.items()}


def test_nothing_is_fetched_twice_and_a_filled_cache_needs_nothing(
    saved: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new loader, as in a new process, finds the directory in the cache, too."""
    opened = watch(monkeypatch, local=False)
    settings: dict[str, Any] = {"shuffle": True, "cache_dir": tmp_path / "cache"}
    loader = DataLoader(saved, 64, **settings)
    for _ in range(2):
        assert sorted(numbers_in(loader, KINDS[:2])) == list(range(ROWS))
    assert_disjoint(ranges(opened))
    count = len(ranges(opened))
    assert sorted(numbers_in(DataLoader(saved, 64, **settings), KINDS[:2])) == list(range(ROWS))
    assert len(ranges(opened)) == count


def test_an_attribute_alone_fetches_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config({"storage": str(tmp_path / "store")}, attributes=KINDS)
    save_rows(the_config, 3000, 1000)
    nbytes = Dataset(the_config).open().nbytes
    opened = watch(monkeypatch, local=False)
    loader = DataLoader(the_config, 100, attributes=["tokens"], cache_size=0)
    assert sum(len(batch["tokens"]) for batch in loader) == 3000
    fetched = sum(end - start for _, start, end in ranges(opened))
    tokens = sum(batch["tokens"].values.nbytes for batch in loader)
    assert tokens < fetched < nbytes / 10


def test_a_directory_is_fetched_once_for_all_threads(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = watch(monkeypatch, local=False)
    loader = DataLoader(saved, 500, shuffle="global", index=True)
    assert sorted(numbers_in(loader, KINDS[:2])) == list(range(ROWS))
    start, _ = loader.open().objects[0].layout.directory_range
    assert sum(first <= start < end for _, first, end in ranges(opened)) == 1
