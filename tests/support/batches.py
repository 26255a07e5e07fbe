"""What a saver takes as a batch, or refuses."""

from __future__ import annotations

import numpy as np
import pytest

from storage_loader.errors import SchemaError
from storage_loader.saver.batch import as_arrays
from storage_loader.schema import DTYPES, Schema

SCHEMA = Schema.of([("image", "uint8", (2, 3)), ("target", "int64")])

IMAGES = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)

TARGETS = np.arange(4)


def taken(value: object, dtype: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """One attribute's array, checked against its schema."""
    schema = Schema.of([("x", dtype, shape)])
    arrays, rows = as_arrays({"x": value}, schema)
    assert list(arrays) == ["x"]
    assert arrays["x"].shape == (rows, *shape)
    assert arrays["x"].dtype == DTYPES[dtype]
    return arrays["x"]


def refused(value: object, dtype: str = "int64", shape: tuple[int, ...] = ()) -> str:
    """The text of the error, which names the attribute."""
    with pytest.raises(SchemaError) as error:
        as_arrays({"x": value}, Schema.of([("x", dtype, shape)]))
    text = str(error.value)
    assert text.startswith("attribute 'x': ")
    return text.removeprefix("attribute 'x': ")


def check_both(batch: object) -> None:
    arrays, rows = as_arrays(batch, SCHEMA)
    assert rows == 4
    assert list(arrays) == ["image", "target"]
    np.testing.assert_array_equal(arrays["image"], IMAGES)
    np.testing.assert_array_equal(arrays["target"], TARGETS)
    assert (arrays["image"].dtype, arrays["target"].dtype) == (np.uint8, np.int64)


STORABLE = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, "
    "complex64, complex128, bfloat16, bytes, str, json"
)
