"""Permutations under a key: bijective, uniform, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader.loader.order.permutation import (
    EXACT,
    permutation,
    random_words,
    shuffled,
)

# From Philox's raw stream (NEP 19), sorted; or six Feistel rounds above EXACT.
GOLDEN_WORDS = [9128836730931116671, 16406408025171037603, 15052254283217646671]
GOLDEN_TEN = [4, 0, 3, 7, 1, 9, 2, 8, 6, 5]
GOLDEN_THOUSAND = [949, 369, 247, 556, 770, 632, 333, 697]
GOLDEN_EXACT = [53753, 234500, 31172, 145712, 461442, 444650]
GOLDEN_FEISTEL = [141804, 689628, 983606, 54734, 50348, 498859]
GOLDEN_BILLION = [257105409, 750082286, 452155056, 636025333, 631578472, 921269143]


def numbers(count: int, *key: int) -> list[int]:
    """All numbers of a permutation in order."""
    return permutation(count, *key)(np.arange(count)).tolist()


@given(st.integers(0, 5000), st.integers(0, 2**64), st.integers(0, 100))
def test_every_number_stands_at_one_position(count: int, seed: int, epoch: int) -> None:
    assert sorted(numbers(count, seed, epoch)) == list(range(count))


@pytest.mark.parametrize("count", [EXACT - 1, EXACT, EXACT + 1, EXACT + 12345, 2**21, 2**21 + 1])
def test_large_ones_are_bijections_too(count: int) -> None:
    found = permutation(count, 1, 2)(np.arange(count))
    assert found.dtype == np.int64
    assert (np.bincount(found, minlength=count) == 1).all()
    assert len(np.bincount(found)) == count


@pytest.mark.parametrize("count", [EXACT + 1, 10**9, 2**40 + 1])
def test_walked_ones_take_any_positions(count: int) -> None:
    permuted = permutation(count, 7)
    positions = np.unique(np.random.Generator(np.random.Philox(0)).integers(0, count, 200_000))
    found = permuted(positions)
    assert len(np.unique(found)) == len(positions)
    assert 0 <= found.min() <= found.max() < count
    some = positions[::-7]
    assert (permuted(some) == found[::-7]).all()
    assert permuted(positions[:1]).tolist() == found[:1].tolist()
    assert permuted(positions[:0]).tolist() == []
    # Each tenth of the numbers gets a tenth of the positions: 9 degrees of freedom.
    parts = np.bincount(found * 10 // count, minlength=10)
    expected = len(positions) / 10
    assert ((parts - expected) ** 2 / expected).sum() < 35


def test_they_never_change() -> None:
    """A change here silently changes the order of every resumed run: never edit the figures."""
    assert random_words(3, 0, 0, 0).tolist() == GOLDEN_WORDS
    assert numbers(10, 0, 0) == GOLDEN_TEN
    assert permutation(1000, 0, 5, 1)(np.arange(8)).tolist() == GOLDEN_THOUSAND
    assert permutation(EXACT, 3)(np.arange(6)).tolist() == GOLDEN_EXACT
    assert permutation(EXACT + 1, 3)(np.arange(6)).tolist() == GOLDEN_FEISTEL
    assert permutation(10**9, 3)(np.arange(6)).tolist() == GOLDEN_BILLION


@pytest.mark.parametrize("count", [2, 3, 7, 24])
def test_each_element_is_anywhere_equally_often(count: int) -> None:
    keys = 4000
    seen = np.zeros((count, count))
    for key in range(keys):
        seen[np.arange(count), numbers(count, key)] += 1
    expected = keys / count
    freedom = (count - 1) ** 2
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_each_order_of_four_is_equally_likely() -> None:
    keys = 6000
    orders: dict[tuple[int, ...], int] = {}
    for key in range(keys):
        order = tuple(numbers(4, 9, key))
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 24
    expected = keys / 24
    chi_square = sum((n - expected) ** 2 / expected for n in orders.values())
    assert chi_square < 23 + 5 * np.sqrt(2 * 23)


@pytest.mark.parametrize("count", [1000, EXACT + 1])
def test_other_keys_give_other_permutations(count: int) -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1), (10,), (2**63,), (2**64,), (2**70 + 1,)]
    positions = np.arange(1000)
    found = [permutation(count, *key)(positions) for key in keys]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert (one == other).mean() < 0.02


def test_a_large_one_looks_random() -> None:
    """No trend, and neighbours part: what six rounds are for."""
    count = EXACT + 54321
    found = permutation(count, 11)(np.arange(count)).astype(float)
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 5 / np.sqrt(count)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 5 / np.sqrt(count)
    moved = np.abs(np.diff(found))
    assert abs(moved.mean() / count - 1 / 3) < 0.005
    assert (moved == 1).sum() < 20


@settings(max_examples=20)
@given(st.integers(0, 3000), st.integers(0, 10_000))
def test_shuffled_numbers_are_mixed(count: int, key: int) -> None:
    found = shuffled(count, key)
    assert sorted(found.tolist()) == list(range(count))
    if count > 250:
        assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.4


def test_words_depend_on_the_whole_key_alone() -> None:
    assert random_words(5, 1, 2).tolist() == random_words(9, 1, 2)[:5].tolist()
    assert random_words(5, 12).tolist() != random_words(5, 1, 2).tolist()
    assert len(random_words(0, 1)) == 0
    assert random_words(4, np.int64(3)).tolist() == random_words(4, 3).tolist()
