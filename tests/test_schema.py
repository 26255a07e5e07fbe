"""Attributes and schemas: what is accepted, how it reads back, and the text of each refusal."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import Attribute
from storage_loader.errors import SchemaError, UnknownNameError
from storage_loader.schema import DTYPES, TEXTS, Schema
from tests.support.batches import STORABLE

names = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_.\- ]{0,20}[A-Za-z0-9_.\-])?", fullmatch=True)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
attributes = st.builds(Attribute, names, st.sampled_from(sorted(DTYPES)), shapes)
schemas = st.lists(attributes, min_size=1, max_size=6, unique_by=lambda a: a.name).map(Schema.of)


def test_the_dtypes() -> None:
    assert ", ".join([*DTYPES, *TEXTS]) == STORABLE
    assert all(dtype.isnative for dtype in DTYPES.values())


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((name, name) for name in DTYPES),
        *((dtype, name) for name, dtype in DTYPES.items()),
        *((dtype.type, name) for name, dtype in DTYPES.items()),
        *((dtype.newbyteorder(">"), name) for name, dtype in DTYPES.items() if name != "bfloat16"),
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
        (complex, "complex128"),
        (">f4", "float32"),
        ("half", "float16"),
        (np.longlong, "int64"),
        (ml_dtypes.bfloat16, "bfloat16"),
        ("torch.int16", "int16"),
        (np.array([1], "u2").dtype, "uint16"),
    ],
)
def test_dtypes_are_known_by_one_name(dtype: object, name: str) -> None:
    attribute = Attribute("x", dtype)
    assert attribute.dtype == name
    assert attribute.numpy_dtype == DTYPES[name]
    assert attribute.row_nbytes == DTYPES[name].itemsize


@pytest.mark.parametrize(
    ("shape", "stored", "num_values"),
    [
        ((), (), 1),
        (1, (1,), 1),
        ((1,), (1,), 1),
        (0, (0,), 0),
        ((0,), (0,), 0),
        ([3, 224, 224], (3, 224, 224), 150528),
        (np.int32(4), (4,), 4),
        (np.array([2, 3]), (2, 3), 6),
        (iter([2, 0, 3]), (2, 0, 3), 0),
        ((1,) * 31, (1,) * 31, 1),
        ((2**38,), (2**38,), 2**38),
    ],
)
def test_shapes(shape: object, stored: tuple[int, ...], num_values: int) -> None:
    attribute = Attribute("x", "float32", shape)
    assert attribute.shape == stored
    assert all(type(axis) is int for axis in attribute.shape)
    assert attribute.row_nbytes == attribute.item_nbytes == 4 * num_values


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *((name, name) for name in ("bytes", "str", "json")),
        *((kind, "str") for kind in (str, np.str_, "string", "Text", "utf8", "U7", "T")),
        *((kind, "bytes") for kind in (bytes, np.bytes_, "S3", "Bytes")),
    ],
)
def test_bytes_text_and_json(dtype: object, name: str) -> None:
    attribute = Attribute("x", dtype)
    assert (attribute.dtype, attribute.shape) == (name, ())
    assert attribute.is_variable
    assert attribute.is_text
    assert (attribute.numpy_dtype, attribute.item_shape) == (np.uint8, ())
    assert Schema.from_json(Schema((attribute,)).to_json())["x"] == attribute
    with pytest.raises(SchemaError, match=f"a row of {name} is one value, of any length; leave"):
        Attribute("x", dtype, (3,))


@pytest.mark.parametrize(
    ("shape", "item"),
    [((None,), ()), (iter([None]), ()), ([None, 4], (4,)), ((None, 2, 3), (2, 3))],
)
def test_rows_that_differ_in_length(shape: object, item: tuple[int, ...]) -> None:
    attribute = Attribute("x", "float32", shape)
    assert attribute.shape == (None, *item)
    assert attribute.item_shape == item
    assert attribute.is_variable
    assert not attribute.is_text
    assert attribute.item_nbytes == 4 * int(np.prod(item, dtype=int))
    assert [(r.name, r.role, r.dtype, r.shape) for r in attribute.regions] == [
        ("x/ends", "ends", np.int64, ()),
        ("x/values", "values", np.float32, item),
    ]
    assert Schema.from_json(Schema((attribute,)).to_json())["x"] == attribute


@pytest.mark.parametrize(
    "name", ["x", "_", "0", "image", "a b", "a.b-c_d", "Image.", "a" * 128, "x-", "-x"[::-1]]
)
def test_names(name: str) -> None:
    assert Attribute(name, "int8").name == name


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", ".x", "-x", " x", "x ", "a/b", "a\nb", "x\n", "ü", "a" * 129, "a\0", None],
)  # fmt: skip
def test_a_wrong_name_is_refused(name: object) -> None:
    with pytest.raises(SchemaError) as error:
        Attribute(name, "int8")
    assert str(error.value) == (
        f"attribute name {name!r}: 1 to 128 letters, digits and '_', '.', '-', ' ', "
        "beginning with a letter, a digit or '_' and not ending with ' '"
    )


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (None, f"dtype None; storable: {STORABLE}"),
        ("float33", "unknown dtype 'float33'; did you mean 'float32'?"),
        ("flot16", "unknown dtype 'flot16'; did you mean 'float16'?"),
        ("image", "unknown dtype 'image'; valid: 'bfloat16', 'bool', 'bytes'"),
        ("", "unknown dtype ''; valid: 'bfloat16'"),
        (5, "unknown dtype '5'; valid: 'bfloat16'"),
        ((1, 2), "unknown dtype '(1, 2)'; valid: 'bfloat16'"),
        ("datetime64[ns]", f"dtype 'datetime64[ns]' cannot be stored; storable: {STORABLE}"),
        ("timedelta64", f"dtype 'timedelta64' cannot be stored; storable: {STORABLE}"),
        ([("a", "f4")], f"dtype 'void32' cannot be stored; storable: {STORABLE}"),
        ("f4,i4", f"dtype 'void64' cannot be stored; storable: {STORABLE}"),
        (object, f"dtype 'object' cannot be stored; storable: {STORABLE}"),
        ("vlen", "unknown dtype 'vlen'; valid: 'bfloat16'"),
        ("O", f"dtype 'object' cannot be stored; storable: {STORABLE}"),
        ("(2,3)f4", f"dtype 'void192' cannot be stored; storable: {STORABLE}"),
        ("(2,)S3", f"dtype 'void48' cannot be stored; storable: {STORABLE}"),
    ],
)
def test_a_wrong_dtype_is_refused(dtype: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        Attribute("x", dtype)
    assert str(error.value).startswith(f"attribute 'x': {text}")


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (None, "shape None: the shape of one row is a tuple, () for a scalar, (None,) for rows"),
        ("3", "shape '3': the shape of one row is a tuple, () for a scalar, (None,) for rows that"),
        (b"3", "shape b'3': the shape of one row is a tuple, () for a scalar, (None,) for rows"),
        ((3, None), "shape (3, None): the first axis is None where rows differ in length"),
        ((None, None), "shape (None, None): the first axis is None where rows differ in"),
        ((3, -1), "shape (3, -1): the first axis is None where rows differ in length"),
        (-1, "shape (-1,): the first axis is None where rows differ in length"),
        ((None, 0), "shape (None, 0): where the first axis is None, the others are from 1 up"),
        (-2, "shape (-2,): axes are whole numbers from 0 up"),
        (True, "shape (True,): axes are whole numbers from 0 up"),
        ((1.0,), "shape (1.0,): axes are whole numbers from 0 up"),
        ((3, (4,)), "shape (3, (4,)): axes are whole numbers from 0 up"),
        ((np.array([1, 2]),), "shape (array([1, 2]),): axes are whole numbers from 0 up"),
        (["x"], "shape ('x',): axes are whole numbers from 0 up"),
        (3.5, "shape 3.5: a tuple of whole numbers, () for a scalar"),
        ((1,) * 32, "32 axes, the most is 31"),
        ((2**38 + 1,), "rows of shape (274877906945,) are too large"),
        ((0, 2**63), "rows of shape (0, 9223372036854775808) are too large"),
        ((2**39, 2**39), "rows of shape (549755813888, 549755813888) are too large"),
    ],
)  # fmt: skip
def test_a_wrong_shape_is_refused(shape: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        Attribute("x", "float32", shape)
    assert str(error.value).startswith(f"attribute 'x': {text}")


def test_an_attribute_is_a_frozen_value() -> None:
    attribute = Attribute("x", "int8", (2,))
    assert attribute == Attribute("x", np.int8, [2])
    assert hash(attribute) == hash(Attribute("x", np.int8, [2]))
    assert repr(attribute) == "Attribute(name='x', dtype='int8', shape=(2,))"
    assert attribute != Attribute("x", "int8", (1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        attribute.name = "y"  # type: ignore[misc]


@given(schemas)
def test_a_schema_round_trips(schema: Schema) -> None:
    restored = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert restored == schema
    assert restored.hash == schema.hash
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert schema.differences(restored) == []
    assert [a.name for a in schema] == list(schema.names)
    assert [schema[name] for name in schema.names] == list(schema)
    assert len(schema) == len(schema.names)
    assert schema.row_nbytes == sum(
        np.zeros(a.shape, a.numpy_dtype).nbytes for a in schema.attributes
    )


def test_from_tuples_and_attributes() -> None:
    schema = Schema.of([("image", "uint8", (8, 8)), ["target", int], Attribute("z", "bool", 1)])
    assert [(a.name, a.dtype, a.shape) for a in schema] == [
        ("image", "uint8", (8, 8)),
        ("target", "int64", ()),
        ("z", "bool", (1,)),
    ]


def test_the_hash_is_the_formats() -> None:
    """It is stored in every commit, so it never changes."""
    image = b'{"dtype":"uint8","name":"image","shape":[8,8]}'
    target = b'{"dtype":"int64","name":"target","shape":[]}'
    text = b"[" + image + b"," + target + b"]"
    assert STORED.hash == hashlib.sha256(text).hexdigest()[:16] == "fa92bbd78e3d940d"


def test_the_hash_tells_schemas_apart() -> None:
    variants = [
        [("a", "int8"), ("b", "int8")],
        [("b", "int8"), ("a", "int8")],
        [("a", "int8")],
        [("a", "uint8")],
        [("a", "int8", (1,))],
        [("a", "int8", (1, 1))],
        [("a", "int8", (11,))],
        [("a", "int8", (0,))],
    ]
    hashes = [Schema.of(v).hash for v in variants]
    assert len(set(hashes)) == len(variants)
    assert all(len(h) == 16 and int(h, 16) >= 0 for h in hashes)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "a dataset needs at least one attribute"),
        ([("a", "int8"), ("a", "int16")], "attribute 'a' stands twice"),
        ("ab", "attributes: a list of Attribute or (name, dtype, shape), not str"),
        ({"a": "int8"}, "attributes: a list of Attribute or (name, dtype, shape), not dict"),
        ([("a",)], "an attribute is Attribute(...) or (name, dtype[, shape]), not ('a',)"),
        (["ab"], "an attribute is Attribute(...) or (name, dtype[, shape]), not 'ab'"),
        ([5], "an attribute is Attribute(...) or (name, dtype[, shape]), not 5"),
        ([{"name": "a"}], "an attribute is Attribute(...) or (name, dtype[, shape]), not {'name'"),
        (
            [("a", "int8", (), 1)],
            "an attribute is Attribute(...) or (name, dtype[, shape]), not ('a', 'int8', (), 1)",
        ),
    ],
)
def test_wrong_attributes_are_refused(value: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        Schema.of(value)  # type: ignore[arg-type]
    assert str(error.value).startswith(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "attributes: a list, not NoneType"),
        ({}, "attributes: a list, not dict"),
        ([], "a dataset needs at least one attribute"),
        (["x"], "an attribute is an object, not 'x'"),
        ([{}], "an attribute lacks ['dtype', 'name']: {}"),
        ([{"name": "x"}], "an attribute lacks ['dtype']: {'name': 'x'}"),
        ([{"name": "x", "dtype": "int8", "shape": 3}], "an attribute's shape is a list, not 3"),
        ([{"name": "x", "dtype": None}], "attribute 'x': unknown dtype None; valid: 'bfloat16'"),
        ([{"name": "x", "dtype": "int9"}], "attribute 'x': unknown dtype 'int9'; did you mean"),
        ([{"name": 5, "dtype": "int8"}], "attribute name 5: 1 to 128 letters"),
        ([{"name": "x", "dtype": "int8", "shape": ["a"]}], "attribute 'x': shape ('a',): axes are"),
        ([{"name": "x", "dtype": "int8"}] * 2, "attribute 'x' stands twice"),
    ],
)
def test_wrong_json_is_refused(value: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        Schema.from_json(value)
    assert str(error.value).startswith(text)


def test_an_unknown_key_in_json_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as error:
        Schema.from_json([{"name": "x", "dtype": "int8", "shpae": []}])
    assert str(error.value) == "unknown attribute key 'shpae'; did you mean 'shape'?"


STORED = Schema.of([("image", "uint8", (8, 8)), ("target", "int64")])


@pytest.mark.parametrize(
    ("mine", "lines"),
    [
        ([("image", "uint8", (8, 8)), ("target", "int64")], []),
        (
            [("image", "uint8", (8, 9)), ("target", "int64")],
            ["attribute 'image': uint8 (8, 9), the dataset stores uint8 (8, 8)"],
        ),
        (
            [("image", "int8", (8, 8)), ("target", "int64", (1,))],
            [
                "attribute 'image': int8 (8, 8), the dataset stores uint8 (8, 8)",
                "attribute 'target': int64 (1,), the dataset stores int64 ()",
            ],
        ),
        (
            [("image", "uint8", (8, 8)), ("label", "int64")],
            [
                "attribute 'label' is not in the dataset",
                "attribute 'target' of the dataset is missing",
            ],
        ),
        ([("target", "int64")], ["attribute 'image' of the dataset is missing"]),
        (
            [("target", "int64"), ("image", "uint8", (8, 8))],
            ["the order is ('target', 'image'), the dataset stores ('image', 'target')"],
        ),
    ],
)
def test_differences_are_listed(mine: list[tuple[object, ...]], lines: list[str]) -> None:
    assert Schema.of(mine).differences(STORED) == lines


@given(schemas, schemas)
def test_only_equal_schemas_have_no_differences(one: Schema, other: Schema) -> None:
    assert (one.differences(other) == []) == (one == other) == (one.hash == other.hash)


def test_select() -> None:
    assert STORED.select(None) is STORED
    for chosen in itertools.permutations(STORED.names):
        assert STORED.select(chosen).names == chosen
    assert STORED.select(["target"]).attributes == (STORED["target"],)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["taget"], "no attribute 'taget'; did you mean 'target'?"),
        (["zz"], "no attribute 'zz'; valid: 'image', 'target'"),
        (["image", "image"], "attribute 'image' stands twice"),
        ("image", "attributes: a list of names, e.g. ['image'], not a string"),
        ([], "attributes: name at least one, or leave it out for all"),
    ],
)
def test_a_wrong_selection_is_refused(names: object, text: str) -> None:
    with pytest.raises(SchemaError) as error:
        STORED.select(names)  # type: ignore[arg-type]
    assert str(error.value) == text


# Unit and description

NOTED = Attribute("depth", "float32", (480, 640), unit="m", description="along the axis\n2nd line")


def test_unit_and_description_identify_nothing() -> None:
    plain = Attribute("depth", "float32", (480, 640))
    assert plain == NOTED
    assert hash(plain) == hash(NOTED)
    assert Schema.of([plain]) == Schema.of([NOTED])
    assert Schema.of([plain]).hash == Schema.of([NOTED]).hash
    assert Schema.of([plain]).differences(Schema.of([NOTED])) == []
    assert (plain.unit, plain.description) == (None, None)


def test_unit_and_description_round_trip() -> None:
    assert NOTED.to_json() == {
        "name": "depth",
        "dtype": "float32",
        "shape": [480, 640],
        "unit": "m",
        "description": "along the axis\n2nd line",
    }
    restored = Schema.from_json(json.loads(json.dumps(Schema.of([NOTED]).to_json())))["depth"]
    copies = [restored, pickle.loads(pickle.dumps(NOTED)), dataclasses.replace(NOTED, name="d")]
    assert [copy.notes for copy in copies] == [NOTED.notes] * 3
    assert repr(Attribute("x", "int8", unit="m")) == (
        "Attribute(name='x', dtype='int8', shape=(), unit='m')"
    )
    assert Attribute("x", "int8", unit="µ" * 64, description="d" * 4096).notes
    for key in ("unit", "description"):
        assert Schema.from_json([{"name": "x", "dtype": "int8", key: None}])["x"].notes == {}


@pytest.mark.parametrize("key", ["unit", "description"])
@pytest.mark.parametrize("value", [5, "", b"m", ["m"], True, "\ud800", "a\0", "x" * 4097])
def test_a_wrong_unit_or_description_is_refused(key: str, value: Any) -> None:
    text = rf"attribute 'x': {key} .*: text of 1 to (64|4,096) characters"
    with pytest.raises(SchemaError, match=text):
        Attribute("x", "int8", **{key: value})
    with pytest.raises(SchemaError, match=text):
        Schema.from_json([{"name": "x", "dtype": "int8", key: value}])


def test_a_unit_is_short() -> None:
    with pytest.raises(SchemaError, match="text of 1 to 64 characters"):
        Attribute("x", "int8", unit="m" * 65)
    with pytest.raises(UnknownNameError, match="keyword 'units'; did you mean 'unit'"):
        Attribute("x", "int8", units="m")  # type: ignore[call-arg]
