"""Large rows straight from a store: they stay in the memory into which they were received."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, DataLoader, Dataset
from storage_loader.loader.fetch.engine import Engine
from storage_loader.loader.fetch.objects import Objects
from storage_loader.store import Buffer, Store, open_store
from storage_loader.store.base import Buffers
from tests.support.faulty import WatchedStore, watch
from tests.support.rows import ROW, assert_rows, config, save_rows

COUNT = 60


class Received(WatchedStore):
    """A network store that keeps what it gave for ranges."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner, local=False)
        self.given: list[Buffer] = []

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        given = super().get_ranges(key, ranges)
        self.given += given
        return given


def saved(folder: Path, nbytes: int) -> tuple[DataConfig, list[Attribute]]:
    attributes = [Attribute("pixels", "uint8", (nbytes,)), Attribute(ROW, "int64")]
    the_config = config({"storage": str(folder)}, attributes=attributes, max_object_size=400_000)
    save_rows(the_config, COUNT, 7)
    return the_config, attributes


# Blocks of four rows, of two, of one, and of one that is larger than a block otherwise is.
@pytest.mark.parametrize("nbytes", [16_383, 16_384, 32_768, 32_769, 65_536, 65_537])
def test_large_rows_of_a_store_are_those_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    watch(monkeypatch, local=False)
    the_config, attributes = saved(tmp_path, nbytes)
    assert len(Dataset(the_config).open().objects) > 1
    dataset = Dataset(the_config, cache_size=0)
    rng = np.random.default_rng(nbytes)
    for count in (1, 2, 30, COUNT, 3 * COUNT):
        numbers = rng.integers(0, COUNT, count)
        assert_rows(dataset[numbers], numbers, attributes)
    assert_rows(dataset[:], np.arange(COUNT), attributes)
    for settings in ({"shuffle": "global"}, {"shuffle": True}, {}):
        loader = DataLoader(the_config, batch_size=7, index=True, seed=1, **settings)
        batches = list(loader)
        found = np.concatenate([batch[ROW] for batch in batches])
        assert sorted(found.tolist()) == list(range(COUNT))
        for batch in batches:
            assert_rows(batch, batch[ROW], attributes)


@pytest.mark.parametrize(
    ("nbytes", "rows", "stays"),
    [
        (40_000, [3, 9, 10, 11, 50], True),
        (16_384, list(range(COUNT)), True),
        (16_384, [3, 9, 50], False),  # with each come three others, which would stay in memory
        (16_383, list(range(COUNT)), False),  # too small to gain by it
    ],
)
def test_large_rows_are_not_copied_where_little_else_came_with_them(
    tmp_path: Path, nbytes: int, rows: list[int], stays: bool
) -> None:
    the_config, _ = saved(tmp_path, nbytes)
    snapshot = Dataset(the_config).open()
    store = Received(open_store(the_config))
    engine = Engine(Objects(store, snapshot, snapshot.schema), None)
    ready = engine.prepare(np.array(rows), threading.Event()).now()
    given = [np.frombuffer(each, np.uint8) for each in store.given]
    for array in ready.parts["pixels"].arrays:
        assert any(np.shares_memory(array.view(np.uint8), each) for each in given) == stays
