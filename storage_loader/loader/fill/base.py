"""What fills the fields of batches: one `Filler` for each attribute, after its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...process import cached_property
from ..order import Rows
from .memory import Memory
from .parts import Array, Sorted

Field = Callable[[int, "Memory | None"], Any]
"""Makes one field of batch i, in the memory given or, where that is None, in new memory."""


class Filler(Protocol):
    """Makes fields of batches from rows in memory, which are verified. Keeps nothing."""

    def nbytes(self, rows: int) -> int:
        """Bytes of memory for the field of a batch of so many rows, at most."""

    def fields(self, parts: Any, asked: Asked) -> Mapping[str, Field]:
        """By name, for all batches that are `asked` for.

        `parts`, of the kind's own type, has their rows; None: they have no bytes.

        What costs less for many batches at once is done here, the rest batch by batch.
        """


class Asked:
    """Rows of a few batches. Fillers copy any row for one that is padding, then make it zeros."""

    def __init__(self, rows: Rows, numbers: Rows | None) -> None:
        """`rows`: shape (batches, rows of a batch), -1 is padding. `numbers`: as in `Ready`.

        Raises `AssertionError` for a row that is not among the numbers.
        """
        padding = rows < 0
        self.size = rows.shape[1]  # rows of a batch
        self.is_empty = bool(padding.all())  # there is nothing but padding, or nothing at all
        self.padding: npt.NDArray[np.bool_] | None = None  # which rows are
        if padding.any() and not self.is_empty:
            self.padding = padding
            rows = np.where(padding, rows.max(), rows)
        if numbers is not None and not self.is_empty:
            rows = _places(numbers, rows)
        self.rows = rows  # numbers as the parts have them

    @cached_property
    def flat(self) -> Rows:
        """The rows of all batches."""
        return self.rows.reshape(-1)

    @cached_property
    def order(self) -> Sorted:
        """The same in ascending order."""
        return Sorted(self.flat)

    def padded(self, field: Array, i: int) -> Array:
        """The field of batch i, its padding made zeros in place."""
        if self.padding is not None:
            field[self.padding[i]] = 0
        return field


def _places(numbers: Rows, rows: Rows) -> Rows:
    """Where each of `rows` is in `numbers`, which ascend."""
    places: Rows = np.searchsorted(numbers, rows)
    if rows.size and (not len(numbers) or (numbers.take(places, mode="clip") != rows).any()):
        raise AssertionError(f"rows are not here: {rows}")
    return places
