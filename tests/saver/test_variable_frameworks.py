"""Ragged rows and strings of torch, TensorFlow and pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from storage_loader.errors import SchemaError
from tests.support.ragged import taken

ROWS = [[1, 2, 3], [], [4], [5, 6]]
TEXTS = ["a", "", "é€😀", "a\0b"]
OCTETS = [text.encode() for text in TEXTS]


def refused(value: object, dtype: str, *shape: Any) -> str:
    with pytest.raises(SchemaError) as error:
        taken(value, dtype, *shape)
    return str(error.value).removeprefix("attribute 'x': ")


# torch


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor(row, dtype=torch.int64) for row in ROWS]
    jagged = torch.nested.nested_tensor(tensors, layout=torch.jagged)
    strided = torch.nested.nested_tensor(tensors)
    gaps = torch.nested.narrow(
        torch.arange(20).reshape(4, 5), 1, torch.tensor([0, 1, 2, 3]), torch.tensor([2, 0, 3, 1]),
        layout=torch.jagged,
    )  # fmt: skip
    assert taken(tensors, "int32", (None,)) == ROWS
    assert taken(jagged, "int32", (None,)) == ROWS
    assert taken(strided, "int32", (None,)) == ROWS
    assert taken(gaps, "int32", (None,)) == [[0, 1], [], [12, 13, 14], [18]]
    assert taken(torch.ones(2, 3), "float32", (None,)) == [[1, 1, 1]] * 2
    boxes = torch.nested.nested_tensor(
        [torch.ones(2, 4), torch.zeros(0, 4)], layout=torch.jagged, requires_grad=True
    )
    assert taken(boxes, "float32", (None, 4)) == [[[1] * 4] * 2, []]
    bf16 = torch.nested.nested_tensor(
        [torch.ones(2, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)],
        layout=torch.jagged,
    )
    assert taken(bf16, "bfloat16", (None,)) == [[1, 1], [0]]
    values, lengths = torch.arange(6), torch.tensor([4, 0, 2])
    assert taken((values, lengths), "int32", (None,)) == [[0, 1, 2, 3], [], [4, 5]]
    assert taken([torch.tensor([1, 255], dtype=torch.uint8)], "bytes") == [b"\x01\xff"]


# TensorFlow


def test_ragged_tensors_and_tensors_of_strings() -> None:
    tensorflow = pytest.importorskip("tensorflow")
    ragged = tensorflow.ragged.constant(ROWS)
    assert taken(ragged, "int32", (None,)) == ROWS
    boxes = tensorflow.RaggedTensor.from_row_lengths(tensorflow.ones((3, 4)), [1, 2])
    assert taken(boxes, "float32", (None, 4)) == [[[1] * 4], [[1] * 4] * 2]
    assert taken(tensorflow.constant([[1, 2]]), "int32", (None,)) == [[1, 2]]
    assert taken(tensorflow.constant(TEXTS), "str") == OCTETS
    assert taken(tensorflow.constant([*OCTETS, b"\xff"]), "bytes") == [*OCTETS, b"\xff"]
    assert refused(tensorflow.constant([b"a", b"\xff"]), "str").startswith("row 1 is not UTF-8")
    two = tensorflow.ragged.constant([[[1], [2, 3]], []])
    assert refused(two, "int32", (None,)) == "a RaggedTensor of 2 ragged axes; one is supported"


# pyarrow


def chunked(pa: Any, array: Any) -> Any:
    return pa.chunked_array([array[:1], array[1:1], array[1:]])


def test_lists_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int32())):
        array = pa.array([[9], *ROWS], kind)[1:]
        assert taken(array, "int32", (None,)) == ROWS
        assert taken(chunked(pa, array), "int32", (None,)) == ROWS
    fixed = pa.array([[9, 9], [1, 2], [3, 4]], pa.list_(pa.int16(), 2))[1:]
    assert taken(fixed, "int32", (None,)) == [[1, 2], [3, 4]]
    boxes = [[[1, 2, 3, 4], [5, 6, 7, 8]], [], [[9, 9, 9, 9]]]
    for item in (pa.list_(pa.float32(), 4), pa.list_(pa.float64()), pa.large_list(pa.float32())):
        array = pa.array([[[0] * 4], *boxes], pa.list_(item))[1:]
        assert taken(array, "float32", (None, 4)) == boxes
        assert taken(chunked(pa, array), "float32", (None, 4)) == boxes
    assert taken(pa.chunked_array([], pa.list_(pa.int8())), "int32", (None,)) == []
    assert taken(pa.array([[True, False], []]), "bool", (None,)) == [[True, False], []]
    column = pd.Series(ROWS, dtype=pd.ArrowDtype(pa.list_(pa.int64())))
    assert taken(column, "int32", (None,)) == ROWS
    assert taken(pd.DataFrame({"x": column})["x"][1:], "int32", (None,)) == ROWS[1:]


def test_strings_and_binaries_of_pyarrow() -> None:
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        array = pa.array(["x", *TEXTS], kind)[1:]
        assert taken(array, "str") == OCTETS
        assert taken(chunked(pa, array), "str") == OCTETS
        assert taken(array, "json") == [b'"a"', b'""', '"é€😀"'.encode(), b'"a\\u0000b"']
        assert refused(array, "bytes").startswith("row 0 is text, the dataset stores bytes")
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        array = pa.array([b"x", *OCTETS], kind)[1:]
        assert taken(array, "bytes") == OCTETS
        assert taken(array, "str") == OCTETS
    assert taken(pa.array([b"ab", b"cd"], pa.binary(2))[1:], "bytes") == [b"cd"]
    assert taken(pa.array(TEXTS).dictionary_encode(), "str") == OCTETS
    assert taken(pa.array([], pa.string()), "str") == []
    assert taken(pd.Series(TEXTS, dtype="string[pyarrow]")[1:], "str") == OCTETS[1:]
    assert taken(pa.array([{"a": 1}, {"a": None}]), "json") == [b'{"a":1}', b'{"a":null}']
    assert refused(pa.array([b"a", b"\xc3", b"\xa9"]), "str").startswith("row 2 is not UTF-8")


def test_nulls_of_pyarrow_name_their_row() -> None:
    pa = pytest.importorskip("pyarrow")
    null = "row 2 has no value (null); fill it, or leave the row out"
    inside = "row 2 holds a null; fill it, or leave the row out"
    assert refused(chunked(pa, pa.array([[1], [], None])), "int32", (None,)) == null
    assert refused(pa.array([[1], [2, 3], [4, None]]), "int32", (None,)) == inside
    assert refused(chunked(pa, pa.array([[1], [2, 3], [4, None]])), "int32", (None,)) == inside
    boxes = pa.array([[[1, 2]], [], [[3, 4], None]])
    assert refused(boxes, "int32", (None, 2)) == inside
    assert refused(pa.array([[[1, 2]], [], [[3, 4], [5, None]]]), "int32", (None, 2)) == inside
    for dtype in ("str", "bytes", "json"):
        assert refused(chunked(pa, pa.array(["a", "", None])), dtype) == null
    assert refused(pa.array(["a", "", None]).dictionary_encode(), "str") == null
    assert refused(pd.Series(["a", "", None], dtype="string[pyarrow]"), "str") == null


def test_what_of_pyarrow_is_no_column() -> None:
    pa = pytest.importorskip("pyarrow")
    wrong = pa.array([[[1, 2]], [[3, 4], [5]]])
    text = "row 1 holds a list of 1, the dataset stores items of shape (2,)"
    assert refused(wrong, "int32", (None, 2)) == text
    assert refused(pa.array([1]), "int32", (None,)).startswith("pyarrow's int64 where lists are")
    assert refused(pa.array([1.5]), "str").startswith("pyarrow's double where strings or binaries")
    assert refused(pa.array([["a"]]), "int32", (None,)).startswith(
        "values of dtype 'object' cannot"
    )
    assert taken(pa.array([[1], [2]]), "int64", (None,)) == [[1], [2]]
    assert np.shape(taken(pa.array([[1], [2]]), "int64", (None,))) == (2, 1)
