"""Permutations of 0 .. n-1 that are a function of a key: the same on every machine.

Small ones are exact: numbers sorted by random keys, drawn from Philox, whose raw stream numpy
keeps stable (NEP 19, unlike `Generator.permutation`). Large ones are a Feistel network over the
smallest power-of-two domain, walked until it lands inside: "Ciphers with Arbitrary Finite
Domains", Black and Rogaway, 2002. They are computed at the positions asked for and store
nothing, but are not uniform below some thousand numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Permutation = Callable[[Numbers], Numbers]

EXACT = 2**20  # numbers up to which a permutation is exact, at 8 bytes each
_ROUNDS = 6
_PHILOX_WORDS = 4  # from one value of its counter
_CHUNK = 2**16  # positions at a time: temporary arrays stay in the processor's cache


def permutation(count: int, *key: int) -> Permutation:
    """The permutation of `count` numbers under a key: maps positions to numbers."""
    if count <= EXACT:
        table = shuffled_groups(np.zeros(count, np.int64), 1, *key)
        return lambda positions: in_a_row(table, positions)
    return _Feistel(count, *key)


def in_a_row(table: Numbers, positions: Numbers) -> Numbers:
    """`table[positions]` of positions that ascend; a view, without a copy, of consecutive ones."""
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1:
        return table[positions[0] : positions[-1] + 1]
    return table[positions]


def shuffled_groups(groups: Numbers, num_groups: int, *key: int) -> Numbers:
    """0 .. n-1 sorted by group (`groups`, shape (n,)), in random order within each.

    One sort of 64-bit words (group, random bits, number): 6 to 10 ns a number, where a
    Fisher-Yates shuffle takes 10 to 30. With n <= `EXACT` at least 32 random bits remain, so
    ties, which keep their order, are rare.
    """
    words = random_words(len(groups), *key)
    group_bits = (num_groups - 1).bit_length()
    number_bits = _number_bits(len(groups))
    _tag(words, 0, number_bits, group_bits)
    if group_bits:
        words |= groups.astype(np.uint64) << np.uint64(64 - group_bits)
    return _sorted_numbers(words, number_bits)


def shuffled_group(words: Words, start: int, count: int, num_groups: int) -> Numbers:
    """One group alone of `shuffled_groups` of `count` numbers: those from `start` on are in it.

    `words` are the group's part of the random words, and are used up.
    """
    number_bits = _number_bits(count)
    _tag(words, start, number_bits, (num_groups - 1).bit_length())
    return _sorted_numbers(words, number_bits)


def _number_bits(count: int) -> int:
    return max(1, (count - 1).bit_length())


def _tag(words: Words, start: int, number_bits: int, group_bits: int) -> None:
    """Make room for the group, and put numbers from `start` on in the lowest bits."""
    words >>= np.uint64(group_bits)
    words &= ~_mask(np.uint64(number_bits))
    words |= np.arange(start, start + len(words), dtype=np.uint64)


def _sorted_numbers(words: Words, number_bits: int) -> Numbers:
    words.sort()
    words &= _mask(np.uint64(number_bits))
    numbers: Numbers = words.view(np.int64)
    return numbers


class _Feistel:
    def __init__(self, count: int, *key: int) -> None:
        self._count = count
        bits = (count - 1).bit_length()
        self._right_bits = np.uint64(bits // 2)
        self._left_bits = np.uint64(bits - bits // 2)
        self._keys = list(random_words(_ROUNDS, *key))

    def __call__(self, positions: Numbers) -> Numbers:
        out = np.empty(positions.shape, np.int64)
        for start in range(0, len(positions), _CHUNK):
            chunk = positions[start : start + _CHUNK].astype(np.uint64)
            numbers = self._encrypt(chunk)
            outside = np.flatnonzero(numbers >= self._count)
            while len(outside):
                walked = self._encrypt(numbers[outside])
                numbers[outside] = walked
                outside = outside[walked >= self._count]
            out[start : start + _CHUNK] = numbers
        return out

    def _encrypt(self, numbers: Words) -> Words:
        """One pass over the power-of-two domain; the halves change size with each round."""
        left_bits, right_bits = self._left_bits, self._right_bits
        left = numbers >> right_bits
        right = numbers & _mask(right_bits)
        for key in self._keys:
            mixed = right + key
            mixed *= _MULTIPLIER
            mixed ^= mixed >> _SHIFT
            mixed *= _MULTIPLIER
            mixed >>= np.uint64(64) - left_bits
            left ^= mixed
            left, right = right, left
            left_bits, right_bits = right_bits, left_bits
        whole: Words = (left << right_bits) | right
        return whole


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio, odd
_SHIFT = np.uint64(32)


def _mask(bits: np.uint64) -> np.uint64:
    mask: np.uint64 = np.uint64(2 ** int(bits) - 1)
    return mask


def random_words(count: int, *key: int, start: int = 0) -> Words:
    """Random 64-bit words, the same for the same key of any whole numbers.

    They are `count` words of an endless row, from word `start` on.
    """
    text = ",".join(str(int(part)) for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    stream = np.random.Philox(key=np.frombuffer(digest, "<u8").astype(np.uint64))
    skipped = start % _PHILOX_WORDS
    if start:
        stream.advance(start // _PHILOX_WORDS)
    words: Words = stream.random_raw(skipped + count)
    return words[skipped:]
