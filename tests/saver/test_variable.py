"""What a saver takes for rows of numbers that differ in length, and the text of each refusal."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader.errors import CastError, SchemaError
from storage_loader.ragged import Ragged
from storage_loader.schema import DTYPES
from tests.support.ragged import taken

THREE = [[1, 2], [], [3]]
VALUES, LENGTHS = np.array([1, 2, 3]), np.array([2, 0, 1])
OBJECTS = np.empty(3, object)
OBJECTS[:] = THREE


@pytest.mark.parametrize(
    "value",
    [
        THREE,
        tuple(THREE),
        [np.array(row, np.int64) for row in THREE],
        [np.array([1, 2], np.uint8), [], (3,)],
        [np.array([1, 2], np.uint64), np.array([], np.float64), np.array([3], np.int8)],
        [[1, 2], np.zeros((0,), "O"), range(3, 4)],
        (VALUES, LENGTHS),
        (VALUES.astype(np.int8), LENGTHS.astype(np.uint8)),
        OBJECTS,
        pd.Series(THREE),
        pd.Series([np.array(row) for row in THREE], index=[7, 7, 1]),
        Ragged.of_lengths(VALUES, LENGTHS),
        Ragged(np.array([0, 1, 2, 3, 4]), np.array([1, 3, 3, 4], np.int32)),
        Ragged.of_lengths(np.array([9, 1, 2, 3]), [1, 2, 0, 1])[1:],
    ],
    ids=range(14),
)
def test_rows_that_differ_in_length(value: object) -> None:
    assert taken(value, "int32", (None,)) == THREE


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6).reshape(3, 2),
        np.asfortranarray(np.arange(6).reshape(3, 2)),
        np.arange(12).reshape(3, 4)[:, ::2] // 2 + np.arange(3)[:, None] * 0,
    ],
    ids=range(3),
)
def test_rows_of_one_length(value: np.ndarray) -> None:
    assert taken(value, "int16", (None,)) == value.tolist()


def test_items_have_a_shape() -> None:
    boxes = [[[1, 2, 3, 4], [5, 6, 7, 8]], [], [[9, 9, 9, 9]]]
    flat = np.concatenate([np.reshape(row, (-1, 4)) for row in boxes])
    for value in (boxes, [np.reshape(row, (-1, 4)) for row in boxes], (flat, LENGTHS)):
        assert taken(value, "float32", (None, 4)) == boxes
    assert taken(np.ones((2, 3, 4)), "float32", (None, 4)) == [[[1] * 4] * 3] * 2


@pytest.mark.parametrize("value", [[], (), np.zeros(0), np.zeros(0, "O"), pd.Series([], dtype="O")])
@pytest.mark.parametrize("shape", [(None,), (None, 4)])
def test_no_rows(value: object, shape: tuple[int | None, ...]) -> None:
    assert taken(value, "float32", shape) == []


def test_rows_without_values() -> None:
    assert taken([[], []], "int32", (None,)) == [[], []]
    assert taken(np.zeros((2, 0), np.int32), "int32", (None,)) == [[], []]
    assert taken((np.zeros(0, np.int32), np.zeros(3, np.int64)), "int32", (None,)) == [[], [], []]


def test_a_tuple_of_two_arrays_is_values_and_lengths() -> None:
    """A list is rows always, and so is a tuple where the second holds no lengths."""
    values = np.array([4, 5, 6])
    assert taken((values, np.array([1, 2, 0])), "int32", (None,)) == [[4], [5, 6], []]
    assert taken((values, np.array([3])), "int32", (None,)) == [[4, 5, 6]]
    two = [values, np.array([1, 2])]
    assert taken(two, "int32", (None,)) == [[4, 5, 6], [1, 2]]
    assert taken(tuple(row.tolist() for row in two), "int32", (None,)) == [[4, 5, 6], [1, 2]]
    assert taken((values, np.array([-1, 4])), "int32", (None,)) == [[4, 5, 6], [-1, 4]]
    assert taken((values * 1.0, values * 1.0), "float32", (None,)) == [[4, 5, 6], [4, 5, 6]]


@pytest.mark.parametrize(
    ("lengths", "text"),
    [
        ([1, 2], "may be (values, lengths) or two rows; give Ragged.of_lengths"),
        ([2, 3], "these lengths sum to 5, but there are 3 values. Two rows are given as a list"),
        ([1, 1, 2], "these lengths sum to 4, but there are 3 values"),
    ],
)
def test_a_tuple_that_may_be_two_rows_is_refused(lengths: list[int], text: str) -> None:
    """As `zip(*samples)` makes of two samples: what was meant nobody knows."""
    with pytest.raises(SchemaError, match=re.escape(text)):
        taken((np.array([4, 5, 6]), np.array(lengths)), "int32", (None,))


def test_values_of_the_stored_dtype_are_not_copied() -> None:
    from storage_loader.saver.batch import as_arrays
    from storage_loader.schema import Schema

    values = np.arange(6, dtype=np.int32)
    schema = Schema.of([("x", "int32", (None,))])
    for value in ((values, np.array([2, 4, 0])), values.reshape(2, 3)):
        arrays, _ = as_arrays({"x": value}, schema)
        assert np.shares_memory(arrays["x"].values, values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    numpy_dtype = DTYPES[dtype]
    rows = [np.array([1, 0, 1], numpy_dtype), np.array([], numpy_dtype), np.array([1], numpy_dtype)]
    expected = [row.tolist() for row in rows]
    assert taken(rows, dtype, (None,)) == expected
    assert taken([row.astype(bool) for row in rows], dtype, (None,)) == expected


# Casts


def test_rows_of_several_dtypes_are_cast_one_by_one() -> None:
    """numpy's common dtype of these is float64, which holds neither."""
    rows = [np.array([2**63 + 1], np.uint64), np.array([1], np.int64)]
    assert taken(rows, "uint64", (None,)) == [[2**63 + 1], [1]]
    assert taken([[2**63, 1], [2**53 + 1]], "uint64", (None,)) == [[2**63, 1], [2**53 + 1]]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        ([[1], [], [2, 300]], "uint8", "row 2 holds 300 (int64), out of range in uint8"),
        ((np.array([1, 2, -1]), np.array([0, 1, 0, 2])), "uint8", "row 3 holds -1 (int64), out of"),
        ([[1], [0.5]], "int32", "row 1 holds 0.5 (float64), but the dataset stores int32"),
        ([[], [0.5, 1]], "int32", "row 1 holds 0.5 (float64), but the dataset stores int32"),
        ([[1.0], [1.0, float("nan")]], "int8", "row 1 holds nan (float64), which int8 cannot hold"),
        ([[1], [2**24 + 1]], "float32", "row 1 holds 16777217 (int64), not exact in float32"),
        ([[0.5], [1.0, 1e300]], "float32", "row 1 holds 1e+300 (float64), would become inf in"),
        ([[0.5], [1j]], "float32", "row 1 holds 1j (complex128), but the dataset stores float32"),
        (np.array([[1, 2], [3, -4]]), "uint8", "row 1 holds -4 (int64), out of range in uint8"),
    ],
)
def test_a_cast_that_loses_names_row_and_value(value: object, dtype: str, text: str) -> None:
    with pytest.raises(CastError) as error:
        taken(value, dtype, (None,))
    assert str(error.value).startswith(f"attribute 'x': {text}")


# What is refused


@pytest.mark.parametrize(
    ("value", "shape", "text"),
    [
        ([1, 2], (None,), "row 0 is 1; a batch is a list of rows of shape (items,)"),
        ([[1], "ab"], (None,), "row 1: values of dtype 'str64' cannot be stored; the dataset"),
        ([[1], None], (None,), "row 1 has no value (None); fill it, or leave the row out"),
        ([[1], float("nan")], (None,), "row 1 has no value (nan); fill it, or leave the row out"),
        (pd.Series([[1], pd.NA]), (None,), "row 1 has no value (<NA>); fill it, or leave the row"),
        ([[1], [2, None]], (None,), "row 1: NoneType objects cannot be stored"),
        ([[1], [2, 2**70]], (None,), "row 1: int beyond 64 bits objects cannot be stored"),
        (
            [[1], [[2]]],
            (None,),
            "row 1 has shape (1, 1); a batch is a list of rows of shape (items",
        ),
        (
            [[[1, 2]]],
            (None, 4),
            "row 0 has shape (1, 2); a batch is a list of rows of shape (items, ",
        ),
        ([[1], [2, [3]]], (None,), "row 1: not an array: "),
        (np.arange(3), (None,), "shape (3,); rows that differ in length are a list of arrays, and"),
        (np.ones((3, 2, 5)), (None, 4), "items have shape (5,), the dataset stores (4,) of each"),
        (np.array([["a"]]), (None,), "values of dtype 'str32' cannot be stored"),
        (7, (None,), "shape (); rows that differ in length are a list of arrays, and those of one"),
        (None, (None,), "shape (); rows that differ in length are a list of arrays"),
        ({"a": [1]}, (None,), "shape (); rows that differ in length are a list of arrays"),
        (
            (np.ones((3, 4)), np.array([1, 1])),
            (None, 4),
            "a tuple of two arrays is (values, lengths); these lengths sum to 2, but there are 3",
        ),
        (np.ma.masked_array([[1, 2]], [[0, 1]]), (None,), "masked values cannot be stored; fill"),
        (
            Ragged(VALUES, np.array([0, 2, 1, 3])),
            (None,),
            "offsets are one more than there are rows",
        ),
        (Ragged(VALUES, np.array([0, 4])), (None,), "offsets are one more than there are rows"),
        (Ragged(VALUES, np.array([-1, 3])), (None,), "offsets are one more than there are rows"),
        (Ragged(VALUES, np.array([], int)), (None,), "offsets are one more than there are rows"),
        (Ragged(VALUES, np.array([0.0, 3.0])), (None,), "offsets are one more than there are rows"),
    ],
)
def test_what_is_no_column_of_rows(value: object, shape: Any, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        taken(value, "int32", shape)
    assert str(error.value).startswith(f"attribute 'x': {text}")


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=8))
def test_any_lists(rows: list[list[int]]) -> None:
    assert taken(rows, "int32", (None,)) == rows
    flat = np.array([v for row in rows for v in row], np.int32)
    lengths = np.array([len(row) for row in rows], np.int64)
    if len(rows) != 2:
        assert taken((flat, lengths), "int32", (None,)) == rows
    assert taken(Ragged.of_lengths(flat, lengths), "int32", (None,)) == rows
    assert taken([np.array(row, ml_dtypes.bfloat16) for row in rows], "bfloat16", (None,)) == [
        np.array(row, ml_dtypes.bfloat16).tolist() for row in rows
    ]
