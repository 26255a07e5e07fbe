"""What a rank fetches: hardly more than its share of a dataset, in few requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, save
from storage_loader.loader.fetch.requests import spare_gap
from storage_loader.loader.order import Order, make_order
from storage_loader.loader.order.chunks import Epoch, chunks
from storage_loader.loader.order.orders import _window
from storage_loader.loader.order.partition import Partition
from storage_loader.loader.order.subset import Subset
from storage_loader.loader.tuning import TUNING
from tests.support.faulty import WatchedStore, watch

KIB = 2**10


@pytest.mark.parametrize(
    ("ranges", "gap"),
    [
        ([(0, 100)], 0),
        ([(0, 100), (100, 200)], 0),  # they touch
        ([(0, 100), (110, 200)], 10),
        ([(110, 200), (0, 100)], 10),  # in any order
        ([(0, 100), (124, 200)], 0),  # more than 1/8 of 176
        ([(0, 100), (110, 200), (225, 300)], 10),  # the second would be too much
        ([(0, 100), (110, 200), (210, 300), (310, 400)], 10),
        ([(0, 70), (80, 150), (160, 230)], 10),
        ([(0, 70), (80, 150), (160, 230), (240, 250)], 0),  # all of one width or none
        ([(0, 2**30), (2**30 + 256 * KIB, 2**31)], 256 * KIB),
        ([(0, 2**30), (2**30 + 256 * KIB + 1, 2**31)], 0),
    ],
)
def test_a_gap_is_bridged_where_it_wastes_little(ranges: list[tuple[int, int]], gap: int) -> None:
    assert spare_gap(ranges, TUNING.gap_nbytes) == gap


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch_size", [1, 3, 16, 100])
@pytest.mark.parametrize("start", [0, 5, 97])
def test_chunks_fetch_windows_to_their_ends(world: int, batch_size: int, start: int) -> None:
    order = make_order(True, num_rows=500, row_nbytes=1, seed=0, block=8, window=64)
    for rank in range(world):
        partition = Partition(500, batch_size, world, start=start)
        epoch = Epoch(0, order, partition, rank, Subset(500))
        windows = [{*order.window_rows(0, w).tolist()} for w in range(8)]
        fetched: set[int] = set()
        found = list(chunks(epoch, most=4))
        assert [c.first for c in found[1:]] == [c.stop for c in found[:-1]]
        for number, chunk in enumerate(found):
            rows = {*chunk.rows().reshape(-1).tolist()}
            beyond = {*chunk.rows_beyond().tolist()}
            assert not beyond & rows
            fresh = [w for w in windows if ((rows | beyond) - fetched) & w]
            if number > 1 and chunk.stop <= partition.num_full and batch_size * world <= 64:
                assert len(fresh) <= 1  # the second chunk may begin before a window's end
            fetched |= rows | beyond


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_rank_fetches_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int, shuffle: bool
) -> None:
    """Two windows of 24 MiB of 3 KiB rows, batches of 768 KiB; each rank has a cache of its own."""
    config = DataConfig("d", [("a", "uint8", (3 * KIB,))], storage=f"memory://{tmp_path}")
    rows = 16_416
    save(config, {"a": np.zeros((rows, 3 * KIB), np.uint8)})
    opened = watch(monkeypatch, local=False)
    for rank in range(world):
        loader = DataLoader(
            config,
            batch_size=64 if shuffle else 256,
            shuffle=shuffle,
            block=342,
            window=342 * 24,
            rank=rank,
            world_size=world,
            cache_dir=tmp_path / str(rank),
        )
        for _ in loader:
            pass
        fetched = sum(_fetched(store) for store in opened)
        opened.clear()
        assert fetched <= 1.3 * rows * 3 * KIB / world


def _fetched(store: WatchedStore) -> int:
    return sum(call.nbytes for call in store.calls if "/objects/" in call.key)


@pytest.mark.parametrize("world", [1, 2, 5, 8, 24])
@pytest.mark.parametrize("num_rows", [10, 500])
def test_a_rank_computes_the_same_rows_alone(world: int, num_rows: int) -> None:
    def make() -> Order:
        return make_order(True, num_rows=num_rows, row_nbytes=1, seed=1, block=8, window=64)

    whole = make().rows(3, np.arange(num_rows))
    for rank in range(world):
        own = np.arange(rank, num_rows, world)
        _window.cache_clear()  # else what was computed for others would do
        assert make().rows(3, own).tolist() == whole[own].tolist()
