"""What a saver takes as a batch, and the text of each refusal."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage_loader.errors import CastError, SchemaError
from storage_loader.saver.batch import as_arrays
from storage_loader.schema import DTYPES
from tests.support.batches import IMAGES, SCHEMA, TARGETS, check_both, refused, taken

# Kinds of batch

FIXED_LISTS = pa.FixedShapeTensorArray.from_numpy_ndarray(IMAGES)


@pytest.mark.parametrize(
    "batch",
    [
        {"image": IMAGES, "target": TARGETS},
        {"target": TARGETS, "image": IMAGES},
        MappingProxyType({"image": IMAGES, "target": TARGETS}),
        {"image": IMAGES.tolist(), "target": TARGETS.tolist()},
        {"image": tuple(IMAGES), "target": tuple(TARGETS)},
        {"image": list(IMAGES), "target": range(4)},
        {"image": IMAGES.astype(np.int32), "target": TARGETS.astype(np.uint8)},
        {"image": IMAGES, "target": pd.Series(TARGETS, index=[9, 8, 7, 6])},
        {"image": memoryview(IMAGES), "target": np.ma.masked_array(TARGETS)},
        pd.DataFrame({"image": list(IMAGES), "target": TARGETS}),
        pd.DataFrame({"target": TARGETS, "image": IMAGES.tolist()}, index=[3, 3, 3, 3]),
        pd.DataFrame({"image": list(IMAGES), "target": pd.array([0, 1, 2, 3], dtype="Int64")}),
        pd.DataFrame({"image": list(IMAGES), "target": pd.Series([0, 1, 2, 3], dtype=object)}),
        pd.DataFrame({"image": list(IMAGES), "target": pd.Categorical([0, 1, 2, 3])}),
        [{"image": i, "target": t} for i, t in zip(IMAGES, TARGETS, strict=True)],
        [{"target": int(t), "image": i.tolist()} for i, t in zip(IMAGES, TARGETS, strict=True)],
        pa.table({"image": IMAGES.tolist(), "target": TARGETS}),
        pa.concat_tables(
            [
                pa.table({"image": [i.tolist()], "target": [t]})
                for i, t in zip(IMAGES, TARGETS, strict=True)
            ]
        ),
        pa.RecordBatch.from_pydict({"target": TARGETS, "image": FIXED_LISTS}),
        {"image": FIXED_LISTS, "target": pa.array(TARGETS)},
    ],
    ids=range(20),
)
def test_kinds_of_batch(batch: object) -> None:
    check_both(batch)


@pytest.mark.parametrize("shape", [(0,), (0, 2, 3)])
def test_no_rows_of_objects(shape: tuple[int, ...]) -> None:
    assert taken(np.zeros(shape, object), "float32", (2, 3)).shape == (0, 2, 3)


def test_an_npz_file_is_a_batch(tmp_path) -> None:
    np.savez(tmp_path / "batch.npz", image=IMAGES, target=TARGETS)
    with np.load(tmp_path / "batch.npz") as batch:
        check_both(batch)


def test_arrays_of_the_stored_dtype_are_not_copied() -> None:
    arrays, _ = as_arrays({"image": IMAGES, "target": TARGETS}, SCHEMA)
    assert np.shares_memory(arrays["image"], IMAGES)
    assert np.shares_memory(arrays["target"], TARGETS)


@given(
    st.sampled_from([name for name in DTYPES if name != "bfloat16"]).flatmap(
        lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=4, min_side=0, max_side=4))
    )
)
def test_any_array_comes_back_the_same(array: np.ndarray) -> None:
    name, shape = array.dtype.name, array.shape[1:]
    raw = array.tobytes()
    for form in (
        array,
        array.astype(array.dtype.newbyteorder(">")),
        np.asfortranarray(array),
        np.repeat(array, 2, axis=0)[::2],
        array[::-1].copy()[::-1],
    ):
        assert taken(form, name, shape).tobytes() == raw


# Lists and objects


@pytest.mark.parametrize(
    ("value", "dtype", "values"),
    [
        ([1, 2**63], "uint64", [1, 2**63]),
        ([2**64 - 1, 0], "uint64", [2**64 - 1, 0]),
        ([2**63], "uint64", [2**63]),
        ([1, 2.5], "float32", [1.0, 2.5]),
        ([True, 2], "int8", [1, 2]),
        (np.array([1, 2], object), "int8", [1, 2]),
        (np.array([1, 2.5], object), "float64", [1.0, 2.5]),
        (np.array([1, np.inf], object), "float64", [1.0, np.inf]),
        (pa.array([1, 2]), "float64", [1.0, 2.0]),
        (pa.chunked_array([[1], [2, 3]]), "int8", [1, 2, 3]),
        (pa.array([True, False]), "bool", [True, False]),
        (pa.chunked_array([], pa.int64()), "int8", []),
        (pd.Series([1.5, 2.5], dtype="Float32"), "float32", [1.5, 2.5]),
        ([np.float16(1.5)], "float64", [1.5]),
        ([ml_dtypes.bfloat16(1.5)], "bfloat16", [1.5]),
    ],
)
def test_lists_and_objects(value: object, dtype: str, values: list[object]) -> None:
    assert taken(value, dtype).tolist() == values


def test_objects_of_any_depth() -> None:
    inner = np.empty((2, 2), object)
    for i in range(4):
        inner.flat[i] = np.array([i, i + 10])
    expected = [[[0, 10], [1, 11]], [[2, 12], [3, 13]]]
    assert taken(inner, "int32", (2, 2)).tolist() == expected


@pytest.mark.parametrize("empty", [[], (), np.zeros(0), np.zeros(0, object), pd.Series([])])
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_no_rows(empty: object, shape: tuple[int, ...], dtype: str) -> None:
    assert len(taken(empty, dtype, shape)) == 0


def test_no_rows_in_other_forms() -> None:
    for batch in [
        {"image": np.zeros((0, 2, 3)), "target": np.zeros(0)},
        {"image": [], "target": []},
        pd.DataFrame({"image": [], "target": []}),
        pd.DataFrame({"image": list(IMAGES), "target": TARGETS})[:0],
    ]:
        arrays, rows = as_arrays(batch, SCHEMA)
        assert rows == 0
        assert arrays["image"].shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("value", "shape", "reason"),
    [
        ([[1, 2], [3]], (2,), "row 1 has shape (1,), the dataset stores (2,)"),
        ([np.zeros(2), np.zeros(3)], (2,), "row 1 has shape (3,), the dataset stores (2,)"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], (2, 4), "row 0 has shape (2, 3), the dataset stor"),
        ([[1, 2], None], (2,), "row 1 has no value (None); fill it, or leave the row out"),
        ([[1, [2, 3]], [1, 2]], (2,), "not an array: setting an array element with a sequence."),
        (["a", "b"], (), "values of dtype 'str32' cannot be stored; the dataset stores int64"),
        ([b"a"], (), "values of dtype 'bytes8' cannot be stored; the dataset stores int64"),
        ([1, "a"], (), "values of dtype 'str"),
        (pd.Series(["a"], dtype=object), (), "values of dtype 'str32' cannot be stored; the data"),
        (np.array(["2020-01-01"], "M8[D]"), (), "values of dtype 'datetime64[D]' cannot be stored"),
        (np.zeros(2, [("a", "i4")]), (), "values of dtype 'void32' cannot be stored; the dataset"),
        ([None], (), "row 0 has no value (None); fill it, or leave the row out"),
        (None, (), "NoneType objects cannot be stored; give numbers of one dtype and shape"),
        ({1, 2}, (), "set objects cannot be stored; give numbers of one dtype and shape"),
        ([{"a": 1}], (), "dict objects cannot be stored; give numbers of one dtype and shape"),
        ([2**70], (), "int beyond 64 bits objects cannot be stored; give numbers of one dtype and"),
        (np.array([1, pd.NA], object), (), "row 1 has no value (<NA>); fill it, or leave"),
        (np.ma.masked_array([1, 2], [0, 1]), (), "masked values cannot be stored; fill them"),
        (
            pd.Series([np.zeros(2), np.zeros(3)]),
            (2,),
            "row 1 has shape (3,), the dataset stores (2,)",
        ),
        (pd.Series([np.zeros(2), 5]), (2,), "row 1 has shape (), the dataset stores (2,)"),
    ],
)
def test_what_is_no_array_is_refused(value: object, shape: tuple[int, ...], reason: str) -> None:
    assert refused(value, "int64", shape).startswith(reason)


# Shapes, names and rows


@pytest.mark.parametrize(
    ("value", "shape", "reason"),
    [
        (5, (), "shape () is one row; a batch has a leading axis, (rows,)"),
        (np.zeros(1), (1,), "shape (1,) is one row; a batch has a leading axis, (rows, 1)"),
        (np.zeros((2, 3)), (2, 3),
         "shape (2, 3) is one row; a batch has a leading axis, (rows, 2, 3)"),
        (np.zeros((2, 3)), (), "rows have shape (3,), the dataset stores ()"),
        (np.zeros((2, 1)), (), "rows have shape (1,), the dataset stores ()"),
        (np.zeros(2), (1,), "rows have shape (), the dataset stores (1,)"),
        (np.zeros((5, 8, 8)), (8, 8, 1), "rows have shape (8, 8), the dataset stores (8, 8, 1)"),
        (np.zeros((0, 4)), (3,), "rows have shape (4,), the dataset stores (3,)"),
        (5, (1,), "rows have shape (), the dataset stores (1,)"),
    ],
)  # fmt: skip
def test_wrong_shapes_are_refused(value: object, shape: tuple[int, ...], reason: str) -> None:
    assert refused(value, "int64", shape) == reason


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            {"image": IMAGES, "taget": TARGETS},
            "the batch holds 'taget', which is no attribute; did you mean 'target'?",
        ),
        (
            {"image": IMAGES, "target": TARGETS, "zz": TARGETS},
            "the batch holds 'zz', which is no attribute; valid: 'image', 'target'",
        ),
        (
            {"image": IMAGES, "target": TARGETS, 5: TARGETS},
            "the batch holds 5, which is no attribute; valid: 'image', 'target'",
        ),
        ({"image": IMAGES}, "the batch lacks attribute 'target'"),
        ({}, "the batch lacks attribute 'image'"),
        (pd.DataFrame({"target": TARGETS}), "the batch lacks attribute 'image'"),
        (
            {"image": IMAGES, "target": TARGETS[:3]},
            "attributes 'image' and 'target' have 4 and 3 rows; a batch has one number of rows",
        ),
        (
            {"image": IMAGES[:0], "target": TARGETS},
            "attributes 'image' and 'target' have 0 and 4 rows; a batch has one number of rows",
        ),
        (
            [IMAGES, TARGETS],
            "a batch is a dict of attribute name to array, a list of dicts, one a row, or a table "
            "of pandas or pyarrow, not list",
        ),
        (
            [{"image": IMAGES[0], "target": 1}, {"image": IMAGES[0]}],
            "row 1 of the batch lacks 'target', row 0 does not; each row is a dict of all "
            "attributes",
        ),
        (
            [{"image": IMAGES[0]}, {"image": IMAGES[0], "target": 1}],
            "row 1 of the batch holds 'target', row 0 does not; each row is a dict of all "
            "attributes",
        ),
        ([{"image": IMAGES[0], "target": 1}, 5], "row 1 of the batch is int, not a dict"),
        (
            [{"image": IMAGES[0], "taget": 1}],
            "the batch holds 'taget', which is no attribute; did you mean 'target'?",
        ),
        (
            IMAGES,
            "a batch is a dict of attribute name to array, a list of dicts, one a row, or a table "
            "of pandas or pyarrow, not ndarray",
        ),
        (
            pa.table([TARGETS, TARGETS], names=["target", "target"]),
            "the batch holds 'target' twice",
        ),
    ],
)
def test_wrong_batches_are_refused(batch: object, text: str) -> None:
    with pytest.raises(SchemaError, match=f"^{re.escape(text)}$"):
        as_arrays(batch, SCHEMA)


def test_values_are_cast_or_refused() -> None:
    assert taken(np.array([1, 2]), "float16").tolist() == [1.0, 2.0]
    assert taken([255], "uint8").tolist() == [255]
    with pytest.raises(CastError, match=r"attribute 'x': row 1 holds 256 \(int64\), out of range"):
        taken([3, 256], "uint8")
    with pytest.raises(CastError, match=rf"row 1 holds {2**63} \(uint64\), out of range in int64"):
        taken([1, 2**63], "int64")
    with pytest.raises(CastError, match=r"attribute 'x': row 0 holds 1.0 \(float64\)"):
        taken([1, 2.5], "uint64")
    with pytest.raises(CastError, match=r"attribute 'x': row 0 holds -1.0 \(float64\)"):
        taken([-1, 2**63], "uint64")


def test_shapes_are_checked_before_values() -> None:
    """A wrong shape is told at once, not after a pass over all values."""
    with pytest.raises(SchemaError, match="rows have shape"):
        as_arrays({"image": np.full((4, 2, 3), 999), "target": np.zeros((4, 2))}, SCHEMA)


def test_nan_among_objects_is_a_number() -> None:
    assert np.isnan(taken(np.array([np.nan, 1], object), "float32")).tolist() == [True, False]


@pytest.mark.parametrize(
    ("value", "shape", "reason"),
    [
        (pa.array([1, None]), (), "row 1 has no value (null); fill it, or leave the row out"),
        (pa.chunked_array([[1.5], [2.0, None]]), (), "row 2 has no value (null)"),
        (pa.array([[1, 2], [3]]), (2,), "row 1 has shape (1,), the dataset stores (2,)"),
        (pa.array([[1, 2], None]), (2,), "row 1 has no value (null)"),
        (pa.array([[1, 2], [3, None]]), (2,), "row 1 holds a null"),
        (pa.array([[[1, 2]], [[3]]]), (1, 2), "row 1 holds a list of 1, the dataset stores items"),
        (
            pa.array([[1, 2], [3, 4]]),
            (),
            "rows have shape (2,), the dataset stores ()",
        ),
        (FIXED_LISTS, (2, 4), "rows have shape (2, 3), the dataset stores (2, 4)"),
        (pa.array(["a"]), (), "values of dtype 'str32' cannot be stored"),
    ],
)
def test_columns_of_pyarrow_that_are_refused(value: object, shape: Any, reason: str) -> None:
    assert refused(value, "float64", shape).startswith(reason)
