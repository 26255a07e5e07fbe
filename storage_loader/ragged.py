"""Rows that differ in length: `Ragged` holds a batch of them, `Pad` says how they get equal."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from .errors import ConfigError, LoaderError
from .keywords import checked_init, shown

Array = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]


class Ragged(Sequence[Array]):
    """Rows of any length: row i is `values[offsets[i] : offsets[i + 1]]`.

    `values`: all rows one after another, shape (items, *shape of an item). `offsets`: int64, from
    0 up, shape (rows + 1,). A sequence of arrays, which share the memory of `values`.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Array, offsets: Offsets) -> None:
        self.values = values
        self.offsets = offsets

    @classmethod
    def of_lengths(cls, values: Array, lengths: npt.ArrayLike) -> Ragged:
        """From all rows one after another, and how many items each of them has."""
        offsets = np.zeros(np.size(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return cls(values, offsets)

    @property
    def lengths(self) -> Offsets:
        """Items of each row, shape (rows,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Array: ...

    @overload
    def __getitem__(self, index: slice) -> Ragged: ...

    def __getitem__(self, index: int | slice) -> Array | Ragged:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise IndexError(f"rows {shown(index)}: only a slice without a step")
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} rows")
        row %= len(self)
        one: Array = self.values[self.offsets[row] : self.offsets[row + 1]]
        return one

    def __iter__(self) -> Iterator[Array]:
        places = self.offsets.tolist()
        return (self.values[a:b] for a, b in pairwise(places))

    def pad(self, value: Any = 0, **how: Any) -> Array:
        """The rows in one array, shape (rows, most items, *shape of an item).

        `value` fills what a row lacks; see `Pad` for the keywords.
        """
        return Pad(value, **how).dense(self)

    def __repr__(self) -> str:
        if not hasattr(self.values, "dtype"):  # what jax.tree.map made of the arrays
            return f"Ragged({self.values!r}, {self.offsets!r})"
        return (
            f"Ragged({len(self)} rows, {len(self.values)} items of {self.values.dtype} "
            f"{self.values.shape[1:]})"
        )

    def __reduce__(self) -> tuple[type[Ragged], tuple[Array, Offsets]]:
        return type(self), (self.values, self.offsets)


@checked_init
@dataclass(frozen=True)
class Pad:
    """How rows of different length are made equal: with `value`, up to the longest of the batch.

    `length`: to this many items always; `truncate` cuts longer rows, which are an error else.
    `multiple_of`: the longest, rounded up to a multiple, so that few shapes occur; a `length` that
    is given too must be one. `side`: where the padding stands; the other end is what `truncate`
    keeps.
    """

    value: Any = 0
    length: int | None = None
    multiple_of: int = 1
    side: Literal["right", "left"] = "right"
    truncate: bool = False

    def __post_init__(self) -> None:
        for name, least in (("length", 0), ("multiple_of", 1)):
            number = getattr(self, name)
            if number is None and name == "length":
                continue
            if type(number) is not int or number < least:
                raise ConfigError(f"pad: {name} {shown(number)}: a whole number from {least} up")
        if self.side not in ("right", "left"):
            raise ConfigError(f"pad: side {shown(self.side)}: 'right' or 'left'")
        if self.truncate and self.length is None:
            raise ConfigError("pad: truncate=True needs length=, to which longer rows are cut")
        if self.length is not None and self.length % self.multiple_of:
            whole = -(-self.length // self.multiple_of) * self.multiple_of
            raise ConfigError(
                f"pad: length {self.length} is no multiple of {self.multiple_of}: rows are just "
                f"length wide; leave multiple_of out, or give length={whole}"
            )

    def width(self, lengths: Offsets, name: str = "") -> int:
        """Items of each padded row, for rows of these lengths.

        Raises `LoaderError`, which says the attribute's `name`.
        """
        longest = int(lengths.max(initial=0))
        if self.length is None:
            return -(-longest // self.multiple_of) * self.multiple_of
        if longest > self.length and not self.truncate:
            whose = f"attribute {name!r}: " if name else ""
            raise LoaderError(
                f"{whose}row {int(lengths.argmax())} of the batch has {longest} items, pad says "
                f"length {self.length}; give truncate=True to cut it, or a larger length"
            )
        return self.length

    def kept(self, lengths: Offsets) -> Offsets:
        """How many items of rows of these lengths are in the batch."""
        return lengths if self.length is None else np.minimum(lengths, self.length)

    def skipped(self, lengths: Offsets) -> Offsets | int:
        """How many items at the beginning of such rows are not."""
        return lengths - self.kept(lengths) if self.side == "left" else 0

    def places(self, kept: Offsets, width: int) -> Offsets | int:
        """Where rows that have so many items in the batch begin in their `width`."""
        return width - kept if self.side == "left" else 0

    def dense(self, rows: Ragged, name: str = "") -> Array:
        """The rows in one array, shape (rows, width, *shape of an item); `name` as for `width`."""
        lengths = rows.lengths
        width = self.width(lengths, name)
        dense = np.empty((len(rows), width, *rows.values.shape[1:]), rows.values.dtype)
        dense[...] = self.value
        kept = self.kept(lengths)
        starts = (rows.offsets[:-1] + self.skipped(lengths)).tolist()
        places = (np.zeros_like(kept) + self.places(kept, width)).tolist()
        for row, place, start, count in zip(dense, places, starts, kept.tolist(), strict=True):
            row[place : place + count] = rows.values[start : start + count]
        return dense
