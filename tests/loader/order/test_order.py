"""The orders: each epoch a permutation, by position, from few places at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_loader.loader.order import ARITHMETIC, LANES, Order, Shuffle, make_order
from storage_loader.loader.order.orders import (
    GlobalShuffle,
    StoredOrder,
    WindowShuffle,
    default_block,
    default_window,
)

GOLDEN_WINDOW = [561, 164, 495, 765, 488, 746, 525, 934, 487, 745, 986, 733]
GOLDEN_WINDOW_EPOCH_1 = [872, 729, 906, 115, 565, 902, 685, 991, 108, 388, 579, 560]
GOLDEN_WINDOW_END = [370, 372, 855, 336, 803, 610]
GOLDEN_SHORT_BLOCK = [990, 302, 291, 295, 988, 306]
GOLDEN_GLOBAL = [550, 329, 89, 194, 62, 340, 86, 445]
GOLDEN_GLOBAL_EPOCH_1 = [55, 281, 442, 328, 304, 456, 580, 666]
GOLDEN_GLOBAL_LARGE = [194460526, 593529917, 944903310]
GOLDEN_DEFAULT_LARGE = [193033758, 181163155, 359343331]


def sequence(order: Order, epoch: int = 0) -> list[int]:
    """All rows of an epoch in order."""
    return order.rows(epoch, np.arange(order.num_rows)).tolist()


def windows(order: Order) -> list[range]:
    """The positions of each window."""
    found: list[range] = []
    while (start := found[-1].stop if found else 0) < order.num_rows:
        end = order.window_end(start)
        assert end is not None
        found.append(range(start, end))
    return found


@st.composite
def orders(draw: st.DrawFn) -> Order:
    shuffle = draw(st.sampled_from([False, True, "global"]))
    return make_order(
        shuffle,
        num_rows=draw(st.integers(0, 3000)),
        row_nbytes=draw(st.sampled_from([0, 1, 72, 3000, 150_000, 10**7])),
        seed=draw(st.integers(0, 2**64)),
        block=draw(st.none() | st.integers(1, 400)),
        window=draw(st.none() | st.integers(1, 4000)),
    )


@settings(max_examples=150)
@given(orders(), st.integers(0, 1000))
def test_an_epoch_is_every_row_once(order: Order, epoch: int) -> None:
    assert sorted(sequence(order, epoch)) == list(range(order.num_rows))


@settings(max_examples=150)
@given(orders(), st.integers(0, 5), st.data())
def test_rows_at_some_positions_are_those_of_the_whole(
    order: Order, epoch: int, data: st.DataObject
) -> None:
    whole = np.array(sequence(order, epoch), np.int64)
    mask = np.random.Generator(np.random.Philox(data.draw(st.integers(0, 1000)))).random(
        order.num_rows
    ) < data.draw(st.floats(0, 1))
    positions = np.flatnonzero(mask)
    assert order.rows(epoch, positions).tolist() == whole[positions].tolist()
    if order.num_rows:
        first = data.draw(st.integers(0, order.num_rows - 1))
        part = np.arange(first, min(first + data.draw(st.integers(0, 700)), order.num_rows))
        assert order.rows(epoch, part).tolist() == whole[part].tolist()


@pytest.mark.parametrize("shuffle", [True, "global"])
def test_epochs_and_seeds_differ_and_repeat(shuffle: Shuffle) -> None:
    def make(seed: int) -> Order:
        return make_order(shuffle, num_rows=2000, row_nbytes=8, seed=seed, block=20, window=200)

    found = {(s, e): sequence(make(s), e) for s in (0, 1, 10) for e in (0, 1, 2, 10)}
    for key, one in found.items():
        assert sequence(make(key[0]), key[1]) == one
        for other_key, other in found.items():
            if key != other_key:
                same = sum(a == b for a, b in zip(one, other, strict=True))
                assert same < 20, (key, other_key)


def test_stored_order_is_the_same_every_epoch() -> None:
    order = make_order(False, num_rows=50, row_nbytes=8, seed=3)
    assert sequence(order, 0) == sequence(order, 7) == list(range(50))
    assert order.contiguous


def test_the_orders_never_change() -> None:
    """A change here changes the order of resumed runs, silently but for another `ARITHMETIC`."""
    assert ARITHMETIC == 1  # never edit it or the figures alone
    window = WindowShuffle(1000, 0, 10, 100)
    assert sequence(window)[:12] == GOLDEN_WINDOW
    assert sequence(window, 1)[:12] == GOLDEN_WINDOW_EPOCH_1
    assert sequence(window)[-6:] == GOLDEN_WINDOW_END
    assert sequence(WindowShuffle(1003, 7, 8, 40))[-6:] == GOLDEN_SHORT_BLOCK
    assert sequence(GlobalShuffle(1000, 0))[:8] == GOLDEN_GLOBAL
    assert sequence(GlobalShuffle(1000, 0), 1)[:8] == GOLDEN_GLOBAL_EPOCH_1
    large = GlobalShuffle(10**9, 5)
    assert large.rows(2, np.array([0, 1, 10**9 - 1])).tolist() == GOLDEN_GLOBAL_LARGE
    default = make_order(True, num_rows=10**9, row_nbytes=3000, seed=5)
    assert default.rows(2, np.array([0, 1, 10**9 - 1])).tolist() == GOLDEN_DEFAULT_LARGE
    # What a state holds too: a change refuses every state that was made before.
    assert default.settings() == {"shuffle": "True", "block": 1398, "window": 67104}
    assert large.settings() == {"shuffle": "global"}
    assert StoredOrder(3).settings() == {"shuffle": "False"}


# Windows


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(1, 200), st.integers(1, 12), st.integers(0, 99))
@example(num_rows=7, block=10, blocks=1, epoch=0)
@example(num_rows=100, block=10, blocks=10, epoch=0)
def test_a_window_is_made_of_a_few_blocks(
    num_rows: int, block: int, blocks: int, epoch: int
) -> None:
    """Rows of a window form at most `blocks` runs of `block` rows, but for where the dataset
    ends, which lies within a block: it goes round."""
    order = WindowShuffle(num_rows, 3, block, block * blocks)
    rows = np.array(sequence(order, epoch))
    for positions in windows(order):
        assert len(positions) <= order.window
        assert order.window_end(positions[-1]) == positions.stop
        window = np.sort(rows[positions.start : positions.stop])
        runs = 1 + np.count_nonzero(np.diff(window) > 1)
        short = num_rows % block > 0 and positions.stop == num_rows
        assert runs <= min(blocks, -(-len(window) // block)) + 1 + short


@settings(max_examples=100)
@given(st.integers(1, 3000), st.integers(1, 50), st.integers(1, 12))
def test_windows_are_equally_long(num_rows: int, block: int, blocks: int) -> None:
    """Up to a block, or two where the last one is short: else the last would mix few blocks."""
    lengths = [len(window) for window in windows(WindowShuffle(num_rows, 0, block, block * blocks))]
    assert sum(lengths) == num_rows
    assert len(lengths) == math.ceil(math.ceil(num_rows / block) / blocks)
    assert max(lengths) - min(lengths) < 2 * block


def test_blocks_are_cut_anew_each_epoch() -> None:
    """Else rows of one block would meet in one window for ever."""
    order = WindowShuffle(10_000, 0, 100, 500)
    together = []
    for epoch in range(20):
        window_of = np.empty(10_000, np.int64)
        window_of[sequence(order, epoch)] = np.arange(10_000) // 500
        together.append(window_of[4999] == window_of[5000])
    assert sum(together) > 0
    starts = {min(sequence(order, e)[:500]) % 100 for e in range(20)}
    assert len(starts) > 10


@pytest.mark.parametrize("world_size", [w for w in range(1, LANES + 1) if LANES % w == 0])
def test_a_rank_reads_only_its_lanes(world_size: int) -> None:
    """Positions r, r + W, ... of a window come from few runs of rows, and other ranks' from
    others: so that each rank fetches about 1/W of the dataset."""
    block, blocks = 48, 24
    num_rows = block * blocks * 4 + 17
    order = WindowShuffle(num_rows, 1, block, block * blocks)
    rows = np.array(sequence(order))
    for positions in windows(order):
        window = rows[positions.start : positions.stop]
        slots = np.sort(window)  # ranks share the slots of the blocks, laid end to end
        seen: set[int] = set()
        for rank in range(world_size):
            mine = np.sort(window[rank::world_size])
            assert not seen & set(mine.tolist())
            seen |= set(mine.tolist())
            runs = 1 + np.count_nonzero(np.diff(np.searchsorted(slots, mine)) > 1)
            most = (LANES // world_size) + blocks  # a lane is one run; a block's end cuts one
            assert runs <= most
        assert len(seen) == len(window)


def test_neighbours_seldom_share_a_batch() -> None:
    order = make_order(True, num_rows=200_000, row_nbytes=3000, seed=0)
    assert isinstance(order, WindowShuffle)
    place = np.empty(200_000, np.int64)
    place[sequence(order)] = np.arange(200_000)
    batch = place // 256
    shared = (batch[1:] == batch[:-1]).mean()
    # By chance: 256 of the 67,104 rows of a window, 0.4%.
    assert shared < 0.01


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_rows_of_a_batch_come_from_the_whole_window(world_size: int) -> None:
    order = WindowShuffle(48_000, 0, 1000, 24_000)
    rows = np.array(sequence(order))
    window = np.sort(rows[:24_000])
    batch = np.searchsorted(window, rows[: 64 * world_size])
    parts = np.bincount(batch * 4 // 24_000, minlength=4)
    assert (parts > 64 * world_size / 4 * 0.5).all()


# Defaults


@pytest.mark.parametrize(
    ("row_nbytes", "block"),
    [(0, 21845), (1, 21845), (72, 21845), (192, 21845), (193, 21732), (3000, 1398)]
    + [(150_528, 27), (2**22, 1), (2**22 + 1, 1), (10**9, 1)],
)
def test_defaults_follow_from_the_size_of_a_row(row_nbytes: int, block: int) -> None:
    assert default_block(row_nbytes) == block
    assert default_window(block) == 48 * block <= 2**20
    order = make_order(True, num_rows=10, row_nbytes=row_nbytes, seed=0)
    assert isinstance(order, WindowShuffle)
    assert (order.block, order.window) == (block, 48 * block)


@pytest.mark.parametrize(
    ("block", "window", "made"), [(10, None, 480), (10, 100, 100), (10, 109, 100), (10, 9, 10)]
)
def test_a_window_is_whole_blocks(block: int, window: int | None, made: int) -> None:
    order = make_order(True, num_rows=10, row_nbytes=8, seed=0, block=block, window=window)
    assert isinstance(order, WindowShuffle)
    assert (order.block, order.window) == (block, made)
