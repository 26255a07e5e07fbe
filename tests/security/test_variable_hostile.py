"""Rows of no fixed size from a hostile writer: every checksum is right, what they cover is not.

Nothing outside an object's own values is ever read, and what is wrong is a `FormatError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset, verify_dataset
from storage_loader.errors import FormatError
from tests.support.crafted import Change, publish

ROWS = 40
COUNT = 5 * ROWS  # items of all rows

READS: dict[str, Callable[[DataConfig, dict[str, Any]], object]] = {
    "row": lambda c, kw: [Dataset(c, **kw)[i] for i in range(ROWS)],
    "rows": lambda c, kw: Dataset(c, **kw)[[3, 30, 7, 17, 0, 39]],
    "every row": lambda c, kw: Dataset(c, **kw)[:],
    "loader": lambda c, kw: list(DataLoader(c, 8, **kw)),
    "shuffled": lambda c, kw: list(DataLoader(c, 8, shuffle="global", **kw)),
    "padded": lambda c, kw: list(DataLoader(c, 8, pad={"x": 0}, attributes=["x"], **kw)),
}


Way = tuple[dict[str, str], dict[str, Any]]  # see conftest.py


def the_config(storage: dict[str, str], dtype: str = "int32") -> DataConfig:
    shape = () if dtype in ("bytes", "str", "json") else (None,)
    return DataConfig("hostile", [("x", dtype, shape), ("row", "int64")], **storage)


def columns(ends: np.ndarray, values: np.ndarray | None = None) -> dict[str, np.ndarray]:
    values = np.arange(COUNT) if values is None else values
    return {"x/ends": ends, "x/values": values, "row": np.arange(len(ends))}


RIGHT = np.arange(1, ROWS + 1) * 5


def ends_with(change: Callable[[np.ndarray], None]) -> np.ndarray:
    ends = RIGHT.copy()
    change(ends)
    return ends


def _set(place: int, value: int) -> Callable[[np.ndarray], None]:
    def change(ends: np.ndarray) -> None:
        ends[place] = value

    return change


WRONG_ENDS = {
    "beyond": _set(-1, COUNT + 1),
    "far beyond": _set(17, 2**62),
    "negative": _set(0, -1),
    "most negative": _set(30, -(2**63)),
    "descending": _set(7, 0),
    "largest": _set(3, 2**63 - 1),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("wrong", WRONG_ENDS)
def test_ends_that_lead_elsewhere(way: Way, wrong: str, read: str) -> None:
    storage, settings = way
    config = the_config(storage)
    publish(config, columns(ends_with(WRONG_ENDS[wrong])))
    with pytest.raises(FormatError, match="attribute 'x': a row is said to hold items"):
        READS[read](config, settings)


def test_right_ends_are_read(way: Way) -> None:
    """What the other tests craft is what a saver makes, but for what they change."""
    storage, settings = way
    config = the_config(storage)
    publish(config, columns(RIGHT))
    batch = Dataset(config, **settings)[:]
    np.testing.assert_array_equal(batch["x"].values, np.arange(COUNT))
    np.testing.assert_array_equal(batch["x"].lengths, 5)
    assert not verify_dataset(config).problems


def _word(place: int, value: int) -> Change:
    def change(words: list[int]) -> None:
        words[place] = value

    return change


# Entries: requires; of x/ends, x/values and row each: offset, items, bytes; then the checksums.
WRONG_DIRECTORIES = {
    "requires": (_word(0, 1), "needs what this version of storage_loader does not know"),
    "offset in the header": (_word(1, 64), "overlaps another part"),
    "offset on another": (lambda words: _word(1, words[4])(words), "overlaps another part"),
    "offset beyond": (_word(4, 2**40), "is larger than any object"),
    "offset outside": (_word(4, 2**20), "lies outside"),
    "offset unaligned": (lambda words: _word(4, words[4] + 1)(words), "64-byte boundary"),
    "more items": (_word(5, COUNT + 1), "items in"),
    "items of all memory": (_word(5, 2**63), "is larger than any object"),
    "rows": (
        lambda words: (_word(2, ROWS - 1)(words), _word(3, 8 * (ROWS - 1))(words)),
        "items in",
    ),
    "bytes": (_word(6, 7), "items in"),
    "much, told alike": (
        lambda w: (_word(5, 2**30)(w), _word(6, 2**32)(w)),
        "lies outside|at most",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_DIRECTORIES)
def test_a_directory_that_lies(way: Way, wrong: str) -> None:
    storage, settings = way
    config = the_config(storage)
    change, text = WRONG_DIRECTORIES[wrong]
    publish(config, columns(RIGHT), change)
    for read in READS.values():
        with pytest.raises(FormatError, match=text):
            read(config, settings)
    assert verify_dataset(config).problems


TEXTS = {
    "half a character": ("str", b"ab\xc3"),
    "surrogate": ("str", b"\xed\xa0\x80"),
    "no JSON": ("json", b"{]"),
    "no number of JSON": ("json", b"[NaN]"),
    "deep": ("json", b"[" * 100_000),
    "long number": ("json", b"1" * 100_000),
    "empty": ("json", b""),
}


@pytest.mark.parametrize("wrong", TEXTS)
def test_texts_that_are_none(way: Way, wrong: str) -> None:
    storage, settings = way
    dtype, text = TEXTS[wrong]
    config = the_config(storage, dtype)
    texts = [b"1"] * ROWS
    texts[17] = text
    ends = np.cumsum([len(t) for t in texts])
    publish(config, columns(ends, np.frombuffer(b"".join(texts), np.uint8)))
    for name, read in READS.items():
        if name != "padded":
            with pytest.raises(FormatError, match="attribute 'x': a row is not what it should be"):
                read(config, settings)
