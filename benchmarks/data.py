"""Rows to save and load. Random bytes: nothing on the way can shorten them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage_loader import Attribute

Array = npt.NDArray[Any]
Rows = dict[str, Array]

OBJECT_NBYTES = 64 * 2**20  # the default of max_object_size

IMAGES = (Attribute("image", "uint8", (3, 224, 224)),)  # 150,528 bytes a row
TILES = (Attribute("tile", "float32", (3, 64, 64)), Attribute("number", "int64"))  # 49,160
VECTORS = (Attribute("vector", "float32", (16,)), Attribute("number", "int64"))  # 72
POINTS = (Attribute("point", "float32", (6,)), Attribute("number", "int64"))  # 32


def make_rows(attributes: tuple[Attribute, ...], num_rows: int) -> Rows:
    """Random values; an attribute `number` counts the rows."""
    rng = np.random.default_rng(0)
    rows: Rows = {}
    for a in attributes:
        if a.name == "number":
            rows[a.name] = np.arange(num_rows, dtype=np.int64)
        elif a.dtype == "float32":
            rows[a.name] = rng.random((num_rows, *a.shape), np.float32)
        else:
            rows[a.name] = rng.integers(0, 256, (num_rows, *a.shape), np.uint8)
    return rows


def nbytes(rows: Rows) -> int:
    """Bytes of all rows."""
    return sum(array.nbytes for array in rows.values())


def batch(rows: Rows, start: int, stop: int) -> Rows:
    """Rows start to stop, as views."""
    return {name: array[start:stop] for name, array in rows.items()}


def memory(array: Array) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
