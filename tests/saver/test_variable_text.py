"""What a saver takes for bytes, text and JSON, and the text of each refusal."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader.errors import SchemaError
from storage_loader.ragged import Ragged
from storage_loader.saver import texts
from tests.support.ragged import taken

TEXTS = ["a", "", "é€😀", "a\0b"]
OCTETS = [text.encode() for text in TEXTS]
RAGGED = Ragged.of_lengths(np.frombuffer(b"".join(OCTETS), np.uint8), [len(o) for o in OCTETS])


@pytest.mark.parametrize(
    "value",
    [
        TEXTS,
        tuple(TEXTS),
        OCTETS,
        [TEXTS[0], *OCTETS[1:]],
        [np.str_(text) for text in TEXTS],
        np.array(TEXTS),
        np.array(TEXTS, ">U7"),
        np.array([[t, t] for t in TEXTS])[:, 0],
        np.array(TEXTS, object),
        np.array(TEXTS, np.dtypes.StringDType()),
        np.array(OCTETS),
        pd.Series(TEXTS),
        pd.Series(TEXTS, dtype=object, index=[3, 3, 3, 3]),
        pd.Series(TEXTS, dtype="string"),
        pd.Series(TEXTS).astype("category"),
        RAGGED,
        (RAGGED.values, RAGGED.lengths),
    ],
    ids=range(17),
)
def test_text(value: object) -> None:
    assert taken(value, "str") == OCTETS


@pytest.mark.parametrize(
    "value",
    [
        [*OCTETS, b"\xff\0"],
        [bytearray(OCTETS[0]), *map(memoryview, OCTETS[1:]), np.array([255, 0], np.uint8)],
        np.array([*OCTETS, b"\xff\0"], object),
        pd.Series([*OCTETS, b"\xff\0"]),
        Ragged.of_lengths(np.frombuffer(b"".join([*OCTETS, b"\xff\0"]), np.uint8), [1, 0, 9, 3, 2]),
    ],
    ids=range(5),
)
def test_bytes(value: object) -> None:
    assert taken(value, "bytes") == [*OCTETS, b"\xff\0"]


def test_numpys_bytes_lose_their_last_nuls_before_they_come_here() -> None:
    assert taken(np.array([b"a\0", b"\0", b"b\0c"]), "bytes") == [b"a", b"", b"b\0c"]
    assert taken(np.array([b"", b""]), "bytes") == [b"", b""]


@pytest.mark.parametrize("value", [[], (), np.zeros(0, "U1"), np.zeros(0, "S3"), np.zeros(0)])
@pytest.mark.parametrize("dtype", ["bytes", "str", "json"])
def test_no_rows(value: object, dtype: str) -> None:
    assert taken(value, dtype) == []


JSON = [{"a": [1, None, "é\0"], "": {}}, [], "text", 0, -1.5, True, None, 10**30, [[[]]]]


def test_json() -> None:
    texts = taken(JSON, "json")
    assert [json.loads(text) for text in texts] == JSON
    assert texts[0] == '{"a":[1,null,"é\\u0000"],"":{}}'.encode()
    objects = np.empty(len(JSON), object)
    objects[:] = JSON
    assert taken(objects, "json") == texts
    assert taken(np.array([[1, 2], [3, 4]]), "json") == [b"[1,2]", b"[3,4]"]
    assert taken(np.array(["a"]), "json") == [b'"a"']
    assert taken(pd.Series([{"a": 1}, [2]]), "json") == [b'{"a":1}', b"[2]"]


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
HALF = "it holds half a character"
MISSING = "has no value ({}); fill it, or leave the row out"


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        *((d, ["a" if d == "str" else b"a", v], f"row 1 {MISSING.format(v)}")
          for d in ("str", "bytes") for v in (None, float("nan"), pd.NA, pd.NaT)),
        ("str", pd.Series(["a", None], dtype=object), "row 1 has no value (None)"),
        ("str", pd.Series(["a", None]), "row 1 has no value (n"),
        ("str", ["a", "b\ud800", "c"], f"row 1 is not UTF-8: {HALF}"),
        ("str", np.array(["a", "b\ud800", "c"]), f"row 1 is not UTF-8: {HALF}"),
        ("str", [b"a", b"\xff"], "row 1 is not UTF-8: invalid start byte"),
        ("str", [b"a", b"\xc3", b"\xa9"], "row 2 is not UTF-8: it begins within a character"),
        ("str", np.array([b"a", b"\xff"]), "row 1 is not UTF-8: invalid start byte"),
        ("str", [b"ok", b"\xe2\x82"], "row 1 is not UTF-8: unexpected end of data"),
        ("str", ["a", 5], "row 1 is 5 (int), the dataset stores str"),
        ("str", np.array([1.5]), "row 0 is 1.5 (float), the dataset stores str"),
        ("str", [["a"]], "row 0 is ['a'] (list), the dataset stores str"),
        ("bytes", [b"a", "b"], "row 1 is text, the dataset stores bytes; encode it, or make the"),
        ("bytes", np.array(["a"]), "row 0 is text, the dataset stores bytes"),
        ("bytes", [b"a", 5], "row 1 is 5 (int), the dataset stores bytes"),
        ("bytes", [np.array([1], np.int64)], "row 0 is array([1]) (ndarray), the dataset stores"),
        ("str", "text", "'text' has 0 axes; a batch is a list of str, one a row"),
        ("bytes", b"text", "b'text' has 0 axes; a batch is a list of bytes, one a row"),
        ("str", {"a": "b"}, "{'a': 'b'} has 0 axes; a batch is a list of str, one a row"),
        ("str", np.array([["a"]]), "array([['a']], dtype='<U1') has 2 axes; a batch is a list of"),
        ("str", (np.arange(3), np.array([1, 2])), "values of dtype 'int64' and 1 axes; str as one"),
        ("json", "text", "'text' is one value; a batch is a list of them, one a row"),
        ("json", {"a": 1}, "{'a': 1} is one value; a batch is a list of them, one a row"),
        ("json", [1, float("nan")], "row 1 cannot be stored as JSON: Out of range float values"),
        ("json", [{"a": [float("inf")]}], "row 0 cannot be stored as JSON: Out of range float"),
        ("json", [1, {1, 2}], "row 1 cannot be stored as JSON: Object of type set is not JSON"),
        ("json", [b"a"], "row 0 cannot be stored as JSON: Object of type bytes is not JSON"),
        ("json", [np.int64(3)], "row 0 cannot be stored as JSON: Object of type int64 is not JSON"),
        ("json", [[], CIRCLE], "row 1 cannot be stored as JSON: Circular reference detected"),
        ("json", ["a", "\ud800"], "row 1 cannot be stored as JSON: 'utf-8' codec can't encode"),
        ("json", pd.Series([{"a": 1}, None]), "row 1 has no value (None)"),
        ("json", pd.Series([1, pd.NA], dtype="Int64"), "row 1 has no value (None)"),
    ],
)  # fmt: skip
def test_what_is_refused_and_where(dtype: str, value: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        taken(value, dtype)
    assert str(error.value).startswith(f"attribute 'x': {text}")


@pytest.mark.parametrize(
    ("row", "remedy"),
    [
        (b"a", "; decode bytes to text, or make them an attribute of 'bytes'"),
        ({"a": [b"a"]}, "; decode bytes to text, or make them an attribute of 'bytes'"),
        (np.int64(3), "; give Python's own values: of numpy's and torch's .item() or .tolist()"),
        ([np.zeros(2)], "; give Python's own values: of numpy's and torch's .item() or .tolist()"),
    ],
)
def test_what_json_does_not_know_has_a_remedy(row: Any, remedy: str) -> None:
    with pytest.raises(SchemaError, match="row 1 cannot be stored as JSON") as error:
        taken([1, row], "json")
    assert str(error.value).endswith(remedy)


def test_json_that_is_text_already_is_kept_and_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_warned", set())
    rows = ['{"a": 1}', " [1, 2]", "{}"]
    others: list[list[Any]] = [["{}", "text"], ["{}", {"a": 1}], ["{no", "[json"], ["1"], [], [""]]
    for other in others:
        taken(other, "json")
    taken(rows, "str")
    assert not caplog.records
    for _ in range(2):
        assert [json.loads(text) for text in taken(rows, "json")] == rows
    [record] = caplog.records
    assert "attribute 'x': each row is text that holds JSON" in record.getMessage()
    assert "json.loads(text)" in record.getMessage()


def test_json_nested_too_deeply_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SchemaError, match="row 1 cannot be stored as JSON: "):
        taken([1, value], "json")


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(st.lists(ANY_TEXT, max_size=6))
def test_any_text(texts: list[str]) -> None:
    expected = [text.encode() for text in texts]
    assert taken(texts, "str") == expected
    assert taken(expected, "str") == expected
    assert taken(expected, "bytes") == expected
    assert taken(np.array(texts, object), "str") == expected
    stripped = [text.rstrip("\0").encode() for text in texts]  # which numpy does
    assert taken(np.array(texts, "U"), "str") == stripped
    assert taken([json.loads(t) for t in taken(texts, "json")], "str") == expected


@given(st.lists(st.binary(max_size=4), max_size=5))
def test_bytes_are_text_only_where_each_row_is_utf_8(rows: list[bytes]) -> None:
    def is_text(row: bytes) -> bool:
        try:
            row.decode()
        except UnicodeDecodeError:
            return False
        return True

    assert taken(rows, "bytes") == rows
    if all(map(is_text, rows)):
        assert taken(rows, "str") == rows
    else:
        with pytest.raises(SchemaError, match=r"row \d is not UTF-8"):
            taken(rows, "str")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(VALUES, max_size=4))
def test_any_json_comes_back(rows: list[Any]) -> None:
    assert [json.loads(text) for text in taken(rows, "json")] == rows
