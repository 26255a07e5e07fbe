"""`Ragged` and `Pad`: rows that differ in length, and made equal."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import Pad, Ragged
from storage_loader.errors import ConfigError, LoaderError, UnknownNameError

ROWS = Ragged.of_lengths(np.arange(9, dtype=np.int32), [3, 0, 1, 5])


def test_rows_by_their_numbers() -> None:
    assert len(ROWS) == 4
    assert ROWS.lengths.tolist() == [3, 0, 1, 5]
    assert [row.tolist() for row in ROWS] == [[0, 1, 2], [], [3], [4, 5, 6, 7, 8]]
    assert ROWS[-1].tolist() == [4, 5, 6, 7, 8]
    assert ROWS[np.int64(2)].tolist() == [3]
    assert ROWS[0].base is not None  # the values' memory
    for number in (4, -5):
        with pytest.raises(IndexError, match=f"row {number} of 4 rows"):
            ROWS[number]


@given(
    st.lists(st.integers(0, 5), max_size=8),
    st.integers(-10, 10) | st.none(),
    st.integers(-10, 10) | st.none(),
)
def test_a_slice_is_that_of_a_list(lengths: list[int], start: int | None, stop: int | None) -> None:
    rows = Ragged.of_lengths(np.arange(sum(lengths)), lengths)
    some = rows[start:stop]
    assert [row.tolist() for row in some] == [row.tolist() for row in [*rows]][start:stop]
    assert some.offsets[0] == 0
    assert len(some.values) == some.offsets[-1]


def test_a_slice_has_no_step() -> None:
    with pytest.raises(IndexError, match="without a step"):
        ROWS[::2]


def test_a_pickled_one_is_the_same() -> None:
    again = pickle.loads(pickle.dumps(ROWS))
    assert (again.values.tolist(), again.offsets.tolist()) == (
        ROWS.values.tolist(),
        ROWS.offsets.tolist(),
    )


def test_padding() -> None:
    assert ROWS.pad(-1).tolist() == [
        [0, 1, 2, -1, -1],
        [-1] * 5,
        [3, -1, -1, -1, -1],
        [4, 5, 6, 7, 8],
    ]
    assert ROWS.pad(-1, side="left")[0].tolist() == [-1, -1, 0, 1, 2]
    assert ROWS.pad(multiple_of=4).shape == (4, 8)
    assert ROWS.pad(length=7).shape == (4, 7)
    assert ROWS.pad(length=2, truncate=True).tolist() == [[0, 1], [0, 0], [3, 0], [4, 5]]
    assert ROWS.pad(length=2, truncate=True, side="left").tolist() == [
        [1, 2], [0, 0], [0, 3], [7, 8]
    ]  # fmt: skip
    boxes = Ragged.of_lengths(np.ones((3, 2, 4), np.float32), [1, 2])
    assert boxes.pad().shape == (2, 2, 2, 4)
    assert Ragged.of_lengths(np.empty(0, np.int8), []).pad().shape == (0, 0)


def test_a_row_that_is_too_long_is_named() -> None:
    with pytest.raises(LoaderError, match=r"row 3 of the batch has 5 items, pad says length 4"):
        ROWS.pad(length=4)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"length": -1}, "length -1: a whole number from 0 up"),
        ({"length": True}, "length True"),
        ({"multiple_of": 0}, "multiple_of 0: a whole number from 1 up"),
        ({"side": "middle"}, "side 'middle': 'right' or 'left'"),
        ({"truncate": True}, "truncate=True needs length="),
        ({"length": 10, "multiple_of": 4}, "length 10 is no multiple of 4: .* give length=12"),
    ],
)
def test_wrong_settings(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Pad(0, **settings)  # type: ignore[arg-type]


def test_an_unknown_keyword_has_a_hint() -> None:
    with pytest.raises(UnknownNameError, match="unknown Pad keyword 'len'; did you mean 'length'"):
        Pad(0, len=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownNameError, match="unknown Pad keyword 'sides'; did you mean 'side'"):
        ROWS.pad(sides="left")


@given(
    st.lists(st.integers(0, 9), max_size=6),
    st.integers(0, 3) | st.none(),
    st.integers(1, 5),
    st.sampled_from(["right", "left"]),
)
def test_padded_rows_hold_their_items(
    lengths: list[int], multiples: int | None, multiple_of: int, side: str
) -> None:
    """And nothing else but the value."""
    length = None if multiples is None else multiples * multiple_of
    rows = Ragged.of_lengths(np.arange(1, 1 + sum(lengths)), lengths)
    truncate = length is not None
    pad = Pad(0, length, multiple_of, side, truncate)  # type: ignore[arg-type]
    dense = pad.dense(rows)
    assert dense.shape[1] % multiple_of == 0
    for row, items in zip(dense, rows, strict=True):
        kept = items if length is None else items[:length] if side == "right" else items[
            max(0, len(items) - length) :
        ]  # fmt: skip
        placed = row[: len(kept)] if side == "right" else row[len(row) - len(kept) :]
        assert placed.tolist() == kept.tolist()
        assert np.count_nonzero(row) == len(kept)


def test_one_of_anything_can_be_shown() -> None:
    assert repr(ROWS) == "Ragged(4 rows, 9 items of int32 ())"
    assert repr(Ragged((9,), (5,))) == "Ragged((9,), (5,))"  # type: ignore[arg-type]
