"""Rows of our datasets as batches, by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..schema import Attribute, Schema
from .jagged import jagged


class Row(dict[str, Any]):
    """A row with attributes of no fixed size: a dict that torch's DataLoader can collate."""

    __slots__ = ("schema",)

    schema: Schema


class TupleRow(tuple[Any, ...]):
    """The same as a tuple, in the schema's order."""

    schema: Schema


def marked(row: Any, schema: Schema, *, in_order: bool) -> Any:
    """The row, with the schema if it needs that to be collated.

    `in_order`: a tuple has the values in the order of the schema.
    """
    marked_row: Row | TupleRow
    if not schema.is_variable:
        return row
    if type(row) is dict:
        marked_row = Row(row)
    elif type(row) is tuple and in_order:
        marked_row = TupleRow(row)
    else:
        return row
    marked_row.schema = schema
    return marked_row


def marked_rows(
    rows: Generator[Any, None, None], schema: Schema, *, in_order: bool
) -> Generator[Any, None, None]:
    """Rows as they come, each marked."""
    with closing(rows):
        for row in rows:
            yield marked(row, schema, in_order=in_order)


def collate(rows: Sequence[Any]) -> Any:
    """Rows of our `Dataset` or `IterableDataset` as one batch, a `collate_fn` of torch's.

    Attributes of a fixed shape are stacked. Rows that differ in length become a nested tensor of
    the jagged layout, also where all of a batch are equally long. Texts and JSON values become
    lists. Anything else, such as what a transform adds, is left to torch's `default_collate`,
    which in turn collates our rows as this does: torch's DataLoader needs no `collate_fn`.
    """
    first = rows[0]
    if isinstance(first, Row):
        kinds = {a.name: a for a in first.schema}
        return {name: _collated(kinds.get(name), [row[name] for row in rows]) for name in first}
    if isinstance(first, TupleRow):  # a list, as torch makes of tuples
        fields = zip(*rows, strict=True)
        return [_collated(a, list(f)) for a, f in zip(first.schema, fields, strict=True)]
    return default_collate(list(rows))


def _collated(attribute: Attribute | None, fields: list[Any]) -> Any:
    """One attribute of all rows; None: it is none of the dataset's."""
    if attribute is None or not attribute.is_variable:
        return default_collate(fields)
    if attribute.is_text:  # unless a transform has encoded them
        return default_collate(fields) if isinstance(fields[0], torch.Tensor) else fields
    items = {_item_shape(field, attribute) for field in fields}
    if len(items) != 1 or None in items:  # of a transform's
        return default_collate(fields)
    lengths = torch.tensor([0, *map(len, fields)])
    return jagged(torch.cat(fields), lengths.cumsum(0))


def _item_shape(field: Any, attribute: Attribute) -> tuple[int, ...] | None:
    """The shape of each item; None: these are no items of one row."""
    if not isinstance(field, torch.Tensor) or field.ndim != len(attribute.shape):
        return None
    return tuple(field.shape[1:])


def _registered(rows: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return collate(rows)


# Torch's way to have `default_collate` know a type, see there.
default_collate_fn_map[Row] = default_collate_fn_map[TupleRow] = _registered
