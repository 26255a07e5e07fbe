"""Rows of our datasets as batches, by torch's DataLoader."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..errors import LoaderError
from ..loader.fill.ragged import length_name
from ..loader.view import View
from ..ragged import Pad
from ..schema import Attribute, Schema
from .jagged import jagged
from .tensors import are_alike


@dataclass(frozen=True)
class Kinds:
    """What the fields of a dataset's rows are."""

    schema: Schema
    pad: Mapping[str, Pad]
    decoded: frozenset[str]  # attributes of text of which the user's functions make anything
    in_order: bool  # a tuple has the fields of `names`, in this order, and then others

    @classmethod
    def of(cls, view: View) -> Kinds | None:
        """Of what a view gives; None where torch can collate that."""
        schema = view.schema
        if not schema.is_variable:
            return None
        return cls(schema, view._pad, frozenset(view._decode), view._transform is None)

    @property
    def names(self) -> list[str]:
        """The fields, in order."""
        added = ((a.name, length_name(a.name)) for a in self.schema)
        return [name for pair in added for name in pair[: 1 + (pair[0] in self.pad)]]


class Row(dict[str, Any]):
    """A row with attributes of no fixed size: a dict that torch's DataLoader can collate."""

    __slots__ = ("kinds",)

    kinds: Kinds

    def copy(self) -> Row:
        """A row of the same kinds."""
        row = Row(self)
        row.kinds = self.kinds
        return row

    def __or__(self, other: Any) -> Any:
        row = self.copy()
        row.update(other)
        return row


class TupleRow(tuple[Any, ...]):
    """The same as a tuple, in the order of the kinds' names."""

    kinds: Kinds


def marked(row: Any, kinds: Kinds | None) -> Any:
    """The row, with the kinds of its fields if it needs these to be collated."""
    marked_row: Row | TupleRow
    if kinds is None:
        return row
    if type(row) is dict:
        marked_row = Row(row)
    elif type(row) is tuple and kinds.in_order:
        marked_row = TupleRow(row)
    else:
        return row
    marked_row.kinds = kinds
    return marked_row


def marked_rows(rows: Generator[Any, None, None], kinds: Kinds) -> Generator[Any, None, None]:
    """Rows as they come, each marked."""
    with closing(rows):
        for row in rows:
            yield marked(row, kinds)


def collate(rows: Sequence[Any]) -> Any:
    """Rows of our `Dataset` or `IterableDataset` as one batch, a `collate_fn` of torch's.

    Attributes of a fixed shape are stacked. Rows that differ in length become a nested tensor of
    the jagged layout, also where all of a batch are equally long; those named in `pad=` a dense one
    as long as the longest of the batch. Texts and JSON values become lists. What `decode=` made is
    stacked where all are tensors of one shape and dtype, and a list otherwise. Anything else, such
    as what a transform adds, is left to torch's `default_collate`, which in turn collates our rows
    as this does: torch's DataLoader needs no `collate_fn`.
    """
    if not len(rows):
        raise LoaderError("collate: no rows, of which nothing can be made; give at least one")
    first = rows[0]
    if isinstance(first, Row):
        columns = {name: [row[name] for row in rows] for name in first}
        return _collated(columns, first.kinds)
    if isinstance(first, TupleRow):  # a list, as torch makes of tuples
        fields = [list(field) for field in zip(*rows, strict=True)]
        names: list[Any] = [*first.kinds.names]
        names += range(len(fields) - len(names))  # others, such as extras
        return [*_collated(dict(zip(names, fields, strict=True)), first.kinds).values()]
    try:
        return default_collate(list(rows))
    except (RuntimeError, TypeError) as error:
        if not isinstance(first, (dict, tuple)):
            raise
        raise LoaderError(
            f"collate: torch cannot make a batch of these rows, which are plain "
            f"{type(first).__name__}s ({error}). Rows of a storage_loader.torch.Dataset say which "
            "of their fields differ in length, and a copy by dict(row) does not: change the row "
            "itself, use row.copy(), or make what you want in Dataset(transform=...)"
        ) from error


def _collated(columns: Mapping[Any, list[Any]], kinds: Kinds) -> dict[Any, Any]:
    """Each field of all rows."""
    attributes = {a.name: a for a in kinds.schema}
    made: dict[Any, Any] = {}
    for name, fields in columns.items():
        attribute = attributes.get(name)
        if name in kinds.decoded:
            made[name] = torch.stack(fields) if are_alike(fields) else fields
        elif name in kinds.pad and attribute is not None:
            lengths = columns.get(length_name(name))
            made[name] = _padded(fields, lengths, attribute, kinds.pad[name])
        else:
            made[name] = _field(fields, attribute)
    return made


def _field(fields: list[Any], attribute: Attribute | None) -> Any:
    """One attribute of all rows; None: it is none of the dataset's."""
    if attribute is None or not attribute.is_variable:
        return default_collate(fields)
    if attribute.is_text:  # unless a transform has encoded them
        return default_collate(fields) if isinstance(fields[0], torch.Tensor) else fields
    if not _are_rows(fields, attribute):
        return default_collate(fields)
    lengths = torch.tensor([0, *map(len, fields)])
    return jagged(torch.cat(fields), lengths.cumsum(0))


def _padded(fields: list[Any], lengths: list[Any] | None, attribute: Attribute, pad: Pad) -> Any:
    """Rows that were padded, each for itself, as long as the batch's longest.

    `lengths`: how much of each is no padding; all of it where a transform has left them out.
    """
    if not _are_rows(fields, attribute):
        return default_collate(fields)
    counts = [*map(len, fields)] if lengths is None else [*map(int, lengths)]
    width = pad.width(np.array(counts, np.int64), attribute.name)
    dense = fields[0].new_empty((len(fields), width, *fields[0].shape[1:]))
    dense[...] = pad.value
    is_left = pad.side == "left"
    for row, field, count in zip(dense, fields, counts, strict=True):
        start = len(field) - count if is_left else 0
        place = width - count if is_left else 0
        row[place : place + count] = field[start : start + count]
    return dense


def _are_rows(fields: list[Any], attribute: Attribute) -> bool:
    """Whether all are items of one row each, of one shape; else they are a transform's."""
    axes = len(attribute.shape)
    is_right = all(isinstance(field, torch.Tensor) and field.ndim == axes for field in fields)
    return is_right and len({field.shape[1:] for field in fields}) == 1


def _registered(rows: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    return collate(rows)


# Torch's way to have `default_collate` know a type, see there.
default_collate_fn_map[Row] = default_collate_fn_map[TupleRow] = _registered
