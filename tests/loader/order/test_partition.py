"""Which positions make which batch on which rank: disjoint, complete, equally many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader.loader.order.partition import LAST_BATCH, Batch, LastBatch, Partition


@st.composite
def partitions(draw: st.DrawFn, last_batch: LastBatch | None = None) -> Partition:
    num_rows = draw(st.integers(0, 3000))
    return Partition(
        num_rows,
        draw(st.integers(1, 40) | st.integers(1, 4000)),
        draw(st.integers(1, 9)),
        last_batch or draw(st.sampled_from(LAST_BATCH)),
        draw(st.booleans()),
        draw(st.just(0) | st.integers(0, num_rows)),
    )


def batches(partition: Partition, rank: int) -> list[Batch]:
    return [partition.batch(number, rank) for number in range(partition.num_batches)]


def globally(partition: Partition) -> list[list[Batch]]:
    """By global batch, each rank's part."""
    return [
        [partition.batch(number, rank) for rank in range(partition.world_size)]
        for number in range(partition.num_batches)
    ]


@settings(max_examples=200)
@given(partitions())
def test_ranks_share_the_positions(partition: Partition) -> None:
    """Valid positions: each one once, from the start on, in global batches that follow."""
    place = partition.start
    for number, parts in enumerate(globally(partition)):
        valid = np.concatenate([part.positions[part.valid] for part in parts])
        count = min(partition.global_size, partition.num_rows - place)
        assert sorted(valid.tolist()) == list(range(place, place + count))
        for part in parts:
            assert (np.diff(part.positions[part.valid]) > 0).all()
            assert len(part.positions) == len(part.valid) > 0
        place += count
        assert partition.rows_after(number) == place
    if partition.last_batch == "drop":
        assert partition.num_rows - place < partition.global_size
    else:
        assert place == partition.num_rows


@settings(max_examples=200)
@given(partitions())
def test_all_batches_but_the_last_are_full(partition: Partition) -> None:
    for number, parts in enumerate(globally(partition)):
        full = number < partition.num_full or partition.last_batch != "partial"
        for part in parts:
            assert len(part.positions) <= partition.batch_size
            assert not full or len(part.positions) == partition.batch_size
            assert number >= partition.num_full or part.valid.all()
    assert partition.num_batches - partition.num_full in (0, 1)


@settings(max_examples=100)
@given(partitions())
def test_full_batches_together_are_the_batches(partition: Partition) -> None:
    for rank in range(partition.world_size):
        whole = partition.full_batches(0, partition.num_full, rank)
        assert whole.shape == (partition.num_full, partition.batch_size)
        for number, positions in enumerate(whole):
            assert positions.tolist() == partition.batch(number, rank).positions.tolist()
        assert (np.diff(whole.reshape(-1)) > 0).all()


@settings(max_examples=200)
@given(partitions("partial"))
def test_partial_splits_the_last_evenly(partition: Partition) -> None:
    if partition.num_batches == 0:
        return
    parts = globally(partition)[-1]
    sizes = [len(part.positions) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    left = sum(part.valid.sum() for part in parts)
    assert sum(sizes) == max(left, partition.world_size)
    wrapped = np.concatenate([part.positions[~part.valid] for part in parts])
    assert wrapped.tolist() == [i % partition.num_rows for i in range(len(wrapped))]


@settings(max_examples=100)
@given(partitions("pad"))
def test_pad_fills_with_minus_one(partition: Partition) -> None:
    for parts in globally(partition):
        for part in parts:
            assert (part.positions[~part.valid] == -1).all()
            assert (part.positions[part.valid] >= 0).all()


@settings(max_examples=100)
@given(partitions("wrap"))
def test_wrap_fills_with_the_first_of_the_epoch(partition: Partition) -> None:
    if partition.num_batches == 0:
        return
    parts = globally(partition)[-1]
    wrapped = np.concatenate([part.positions[~part.valid] for part in parts])
    expected = [i % partition.num_rows for i in range(len(wrapped))]
    assert sorted(wrapped.tolist()) == sorted(expected)
    assert len(wrapped) == partition.num_batches * partition.global_size - (
        partition.num_rows - partition.start
    )


@settings(max_examples=100)
@given(st.integers(0, 3000), st.integers(1, 40), st.integers(1, 9), st.booleans(), st.data())
def test_a_later_start_goes_on_with_the_next_position(
    num_rows: int, batch_size: int, world_size: int, contiguous: bool, data: st.DataObject
) -> None:
    """Stopped after any batch and gone on with other ranks and batches: nothing lost or twice."""
    before = Partition(num_rows, batch_size, world_size, "partial", contiguous)
    done = data.draw(st.integers(0, before.num_batches))
    start = before.rows_after(done - 1) if done else 0
    after = Partition(
        num_rows,
        data.draw(st.integers(1, 40)),
        data.draw(st.integers(1, 9)),
        "partial",
        contiguous,
        start,
    )
    seen = [p for parts in globally(before)[:done] for part in parts
            for p in part.positions[part.valid].tolist()]  # fmt: skip
    seen += [p for parts in globally(after) for part in parts
             for p in part.positions[part.valid].tolist()]  # fmt: skip
    assert sorted(seen) == list(range(num_rows))


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(
    ("last_batch", "expected"),
    [
        ("partial", [[8], [9], [0]]),
        ("pad", [[8, -1], [9, -1], [-1, -1]]),
        ("wrap", [[8, 1], [9, 2], [0, 3]]),
    ],
)
def test_two_rows_for_three_ranks(
    last_batch: LastBatch, expected: list[list[int]], contiguous: bool
) -> None:
    partition = Partition(8 + 2, 2, 3, last_batch, contiguous, start=8)
    found = [partition.batch(0, rank) for rank in range(3)]
    if contiguous and last_batch != "partial":  # a rank's part is one piece
        expected = {"pad": [[8, 9], [-1, -1], [-1, -1]], "wrap": [[8, 9], [0, 1], [2, 3]]}[
            last_batch
        ]
    assert [part.positions.tolist() for part in found] == expected
    assert [part.valid.tolist() for part in found] == [
        [p >= 8 for p in positions] for positions in expected
    ]


def test_stored_order_gives_each_rank_one_piece_of_a_global_batch() -> None:
    pieces = Partition(24, 4, 3, contiguous=True)
    assert pieces.batch(1, 1).positions.tolist() == [16, 17, 18, 19]
    dealt = Partition(24, 4, 3)
    assert dealt.batch(1, 1).positions.tolist() == [13, 16, 19, 22]


def test_a_start_at_or_after_the_end_leaves_nothing() -> None:
    for last_batch in LAST_BATCH:
        assert Partition(10, 3, 2, last_batch, start=10).num_batches == 0
        assert Partition(0, 3, 2, last_batch).num_batches == 0
