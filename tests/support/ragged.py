"""Numbered rows that differ in length, and what was stored of them as plain h5py shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from storage_loader import Attribute, DataConfig
from storage_loader.saver.batch import as_arrays
from storage_loader.schema import Schema

ROW = Attribute("row", "int64")
TOKENS = Attribute("tokens", "int32", (None,))
BOXES = Attribute("boxes", "float32", (None, 4))
KINDS = (
    ROW,
    TOKENS,
    BOXES,
    Attribute("raw", "bytes"),
    Attribute("caption", "str"),
    Attribute("meta", "json"),
)


def rows_of(numbers: Iterable[int]) -> dict[str, list[Any]]:
    """The rows of `KINDS` of these numbers; some of each attribute are empty."""
    numbers = [*numbers]
    return {
        "row": numbers,
        "tokens": [np.arange(n, n + n * 7 % 40, dtype=np.int32) for n in numbers],
        "boxes": [np.full((n % 3, 4), n + 0.5, np.float32) for n in numbers],
        "raw": [bytes([n % 256, 0]) * (n % 5) for n in numbers],
        "caption": [f"{n} é€😀\0"[: n % 9] for n in numbers],
        "meta": [{"row": n, "é": [None, True, n / 2, {"": "\0"}]} for n in numbers],
    }


def taken(value: object, dtype: object, shape: Sequence[int | None] = ()) -> list[Any]:
    """The rows that a saver takes `value` for, as arrays in the stored dtype."""
    schema = Schema.of([("x", dtype, shape)])
    arrays, count = as_arrays({"x": value}, schema)
    rows = [*arrays["x"]]
    assert len(rows) == count
    attribute = schema["x"]
    assert {row.dtype for row in rows} <= {attribute.numpy_dtype}
    assert {row.shape[1:] for row in rows} <= {attribute.item_shape}
    return [row.tobytes() if attribute.is_text else row.tolist() for row in rows]


def stored_rows(config: DataConfig) -> dict[str, list[Any]]:
    """All rows of the one writer's commits of a folder, in the order of their objects."""
    root = Path(str(config.storage).removeprefix("file://")) / config.dataset_prefix
    found: dict[str, list[Any]] = {a.name: [] for a in config.attributes or ()}
    for path in sorted(root.glob("objects/*/*.h5")):
        with h5py.File(path) as h5:
            for a in config.attributes or ():
                found[a.name] += _rows(h5, a)
    return found


def _rows(h5: h5py.File, attribute: Attribute) -> list[Any]:
    if not attribute.is_variable:
        return [*h5[attribute.name][...]]
    ends = h5[attribute.name]["ends"][...]
    values = h5[attribute.name]["values"][...]
    assert values.shape[1:] == attribute.item_shape
    assert (ends[-1] if len(ends) else 0) == len(values)
    rows = np.split(values, ends[:-1])
    if attribute.dtype == "bytes":
        return [row.tobytes() for row in rows]
    if attribute.is_text:
        texts = [row.tobytes().decode() for row in rows]
        return [json.loads(text) for text in texts] if attribute.dtype == "json" else texts
    return [row.astype(attribute.numpy_dtype, copy=False) for row in rows]  # bfloat16 as float32


def assert_equal(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """The same rows, bit for bit."""
    assert list(found) == list(expected)
    for name, rows in expected.items():
        assert len(found[name]) == len(rows), name
        for number, (got, row) in enumerate(zip(found[name], rows, strict=True)):
            if isinstance(row, np.ndarray):
                assert (got.dtype, got.shape) == (row.dtype, row.shape), (name, number)
                assert got.tobytes() == row.tobytes(), (name, number)
            else:
                assert got == row, (name, number)
