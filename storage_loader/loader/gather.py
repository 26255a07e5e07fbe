"""Copying rows from objects into the memory of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schema import Schema
from .order import Rows

Array = npt.NDArray[Any]

_LARGE_ROW = 2048  # bytes from which one copy a row beats fancy indexing, which copies twice


@dataclass(frozen=True)
class ObjectRows:
    """The rows of a batch that lie in one object, and where in the batch they go."""

    index: int  # of the object in the snapshot
    rows: Rows  # in the object
    positions: Rows  # in the batch


def by_object(starts: Rows, rows: Rows) -> Iterator[ObjectRows]:
    """Group rows of the dataset by object; `starts` as in `Snapshot.starts`. -1 is left out."""
    if not len(rows):
        return
    objects = np.searchsorted(starts, rows, "right") - 1
    order = np.argsort(objects, kind="stable")
    grouped = objects[order]
    cuts = np.flatnonzero(np.diff(grouped)) + 1
    for positions in np.split(order, cuts):
        index = int(objects[positions[0]])
        if index >= 0:
            yield ObjectRows(index, rows[positions] - starts[index], positions)


def allocate(schema: Schema, rows: Rows) -> dict[str, Array]:
    """An array of shape (len(rows), *shape) for each attribute; zeros where a row is -1."""
    make = np.zeros if len(rows) and rows.min() < 0 else np.empty
    return {a.name: make((len(rows), *a.shape), a.numpy_dtype) for a in schema}


def copy_rows(out: Array, positions: Rows, source: Array, rows: Rows) -> None:
    """`out[positions] = source[rows]`, by the fastest way for rows of this size."""
    count = len(rows)
    if _consecutive(rows) and _consecutive(positions):
        out[positions[0] : positions[0] + count] = source[rows[0] : rows[0] + count]
    elif source[:1].nbytes < _LARGE_ROW:
        out[positions] = source[rows]
    else:
        for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
            out[position] = source[row]


def _consecutive(numbers: Rows) -> bool:
    return bool(numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all())
