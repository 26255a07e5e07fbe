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
_CHUNK = 2**16  # positions at a time: temporary arrays stay in the processor's cache


def permutation(count: int, *key: int) -> Permutation:
    """The permutation of `count` numbers under a key: maps positions to numbers."""
    if count <= EXACT:
        table = shuffled(count, *key)
        return lambda positions: in_a_row(table, positions)
    return _Feistel(count, *key)


def in_a_row(table: Numbers, positions: Numbers) -> Numbers:
    """`table[positions]` of positions that ascend; a view, without a copy, of consecutive ones."""
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1:
        return table[positions[0] : positions[-1] + 1]
    return table[positions]


def shuffled(count: int, *key: int) -> Numbers:
    """0 .. count-1 in random order.

    One sort of 64-bit words (random bits, number): 6 to 10 ns a number, where a Fisher-Yates
    shuffle takes 10 to 30. With count <= `EXACT` at least 44 random bits remain, so ties, which
    keep their order, are rare.
    """
    number_bits = np.uint64(max(1, (count - 1).bit_length()))
    words = random_words(count, *key)
    words &= ~_mask(number_bits)
    words |= np.arange(count, dtype=np.uint64)
    words.sort()
    words &= _mask(number_bits)
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


def random_words(count: int, *key: int) -> Words:
    """Random 64-bit words, the same for the same key of any whole numbers."""
    text = ",".join(str(int(part)) for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    stream = np.random.Philox(key=np.frombuffer(digest, "<u8").astype(np.uint64))
    words: Words = stream.random_raw(count)
    return words
