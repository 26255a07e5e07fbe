"""Batches made of rows in memory, each attribute by its filler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...ragged import Pad
from ...schema import Attribute, Schema
from ..order import Rows
from .base import Asked, Filler
from .fixed import LARGE_ROW, CopyRows, Fixed
from .memory import Memory
from .parts import Parts
from .ragged import PaddedRows, RaggedRows, TextRows
from .ready import Ready

_GROUP_NBYTES = 4 * 2**20  # of small rows gathered at once: they stay in the cache
_GROUP_ROWS = 16_384

Fillers = Mapping[str, Filler]


def fillers(
    schema: Schema, copy_rows: CopyRows = Parts.take_into, pad: Mapping[str, Pad] = {}
) -> Fillers:
    """By attribute, in order, what fills its fields.

    `copy_rows` copies large rows to memory. `pad`: how rows that differ in length are padded.
    """
    return {a.name: _filler(a, copy_rows, pad.get(a.name)) for a in schema}


def _filler(attribute: Attribute, copy_rows: CopyRows, pad: Pad | None) -> Filler:
    if not attribute.is_variable:
        return Fixed(attribute, copy_rows)
    if attribute.is_text:
        return TextRows(attribute)
    return RaggedRows(attribute) if pad is None else PaddedRows(attribute, pad)


def group_rows(schema: Schema) -> int:
    """Rows that are gathered at once, where batches have fewer."""
    small = sum(a.row_nbytes for a in schema if a.row_nbytes < LARGE_ROW)
    return min(_GROUP_NBYTES // max(1, small), _GROUP_ROWS)


def gathered(
    schema: Schema,
    ready: Ready,
    rows: Rows,
    new_memory: Callable[[], Memory | None] = lambda: None,
    made_by: Fillers | None = None,
) -> Iterator[tuple[dict[str, Any], Memory | None]]:
    """Batches of `rows`, of shape (batches, rows of a batch): arrays of shape (rows, *shape).

    A row of -1 is zeros, or empty; `ready` holds every other one. Each batch is put into a memory
    of its own, which comes beside it. Where that is None the arrays are new, of one batch or, for
    small rows, slices of what a few batches share.
    """
    count, size = rows.shape
    made_by = made_by or fillers(schema)
    together = max(1, group_rows(schema) // max(1, size))
    for start in range(0, count, together):
        asked = Asked(rows[start : start + together], ready.numbers)
        fields = {
            name: field
            for attribute, filler in made_by.items()
            for name, field in filler.fields(ready.parts.get(attribute), asked).items()
        }
        for i in range(len(asked.rows)):
            memory = new_memory()
            yield {name: field(i, memory) for name, field in fields.items()}, memory
