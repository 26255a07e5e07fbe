"""A part of a dataset's rows, as if it were the whole. Pure arithmetic."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...keywords import shown
from ...process import cached_property
from . import Rows
from .permutation import permutation


@dataclass(frozen=True, eq=False)
class Subset:
    """Rows of a dataset by their place in the subset. `rows` is None where it is all of them."""

    num_rows: int
    rows: Rows | None = None

    def to_dataset(self, numbers: Rows) -> Rows:
        """Row numbers of the dataset for row numbers of the subset."""
        return numbers if self.rows is None else self.rows[numbers]

    @cached_property
    def name(self) -> str:
        """What tells it from other subsets: "all", or a hash of its rows."""
        if self.rows is None:
            return "all"
        return hashlib.sha256(np.ascontiguousarray(self.rows, "<i8").tobytes()).hexdigest()[:16]


def make_subset(subset: Any, num_rows: int) -> Subset:
    """The rows meant by the `subset` keyword, of a dataset of `num_rows` rows.

    None is all; a float from 0 to 1 the first part; a slice as of a list; a boolean array of
    one entry a row; row numbers in any order, each at most once. Raises `ConfigError`.
    """
    if subset is None:
        return Subset(num_rows)
    if isinstance(subset, (float, np.floating)):
        if not 0 <= subset <= 1:
            raise ConfigError(f"subset {shown(subset)}: a fraction is from 0.0 to 1.0")
        rows = np.arange(round(float(subset) * num_rows))
    elif isinstance(subset, slice):
        rows = np.arange(*subset.indices(num_rows))
    elif isinstance(subset, (list, tuple)) and len(subset) > 1 and all(map(_has_rows, subset)):
        raise ConfigError(
            f"subset: {len(subset)} parts; give one of them, as of `train, test = split(...)`"
        )
    elif isinstance(subset, (str, bytes, int)) or not hasattr(subset, "__len__"):
        raise ConfigError(
            f"subset {shown(subset)}: a fraction (float), a slice, a boolean mask or row numbers"
        )
    else:
        try:
            listed = np.asarray(subset)
        except ValueError:  # of lists that are not equally long
            raise ConfigError(f"subset {shown(subset)}: a mask or row numbers") from None
        rows = _listed(listed, num_rows)
    return Subset(len(rows), rows.astype(np.int64))


def _has_rows(one: object) -> bool:
    """Whether this may be a part, and is no row number."""
    is_text = isinstance(one, (str, bytes))
    return not is_text and hasattr(one, "__len__") and getattr(one, "ndim", 1) > 0


def _listed(listed: Any, num_rows: int) -> Rows:
    if listed.ndim != 1:
        raise ConfigError(f"subset: {listed.ndim} axes; a mask or row numbers have one")
    if listed.dtype == np.bool_:
        if len(listed) != num_rows:
            raise ConfigError(f"subset: a mask of {len(listed)} entries for {num_rows} rows")
        return np.flatnonzero(listed)
    if len(listed) and listed.dtype.kind not in "iu":
        raise ConfigError(f"subset: row numbers are integers, not {listed.dtype.name}")
    rows: Rows = listed.astype(np.int64)
    outside = rows[(rows < 0) | (rows >= num_rows)]
    if len(outside):
        raise ConfigError(f"subset: row {outside[0]} of a dataset of {num_rows} rows")
    if not np.diff(np.sort(rows)).all():
        raise ConfigError("subset: a row number stands twice")
    return rows


_STREAM = 5  # apart from the streams of the orders


def split_rows(
    num_rows: int,
    fractions: Sequence[float],
    seed: int,
    classes: Any = None,
) -> list[Rows]:
    """Disjoint, complete parts of `num_rows` rows in random order; see `split`.

    `classes`: a value for each row, of which every part gets its share.
    """
    counts = _counts(num_rows, fractions)
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed {shown(seed)}: a whole number from 0 up")
    rows = permutation(num_rows, _STREAM, seed)(np.arange(num_rows))
    if classes is not None:
        # Classes one after another, dealt out so that at each place every part has its share.
        rows = rows[np.argsort(classes[rows], kind="stable")]
        dealt = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        rows = rows[np.argsort(np.argsort(dealt, kind="stable"))]
    return [np.sort(part) for part in np.split(rows, np.cumsum(counts)[:-1])]


def _counts(num_rows: int, fractions: Sequence[float]) -> list[int]:
    """Rows of each part, from fractions or as they are given."""
    try:
        numbers = [*fractions]
        shares = [float(number) for number in numbers]
    except (TypeError, ValueError):
        numbers = shares = []
    if any(isinstance(number, (str, bytes)) for number in numbers):
        raise ConfigError(
            f"fractions {shown(fractions)}: texts, not numbers; give numbers, e.g. [0.9, 0.1]"
        )
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in numbers)
    if whole and all(n >= 0 for n in numbers) and sum(numbers) > 1:
        left = num_rows - sum(numbers)
        if left:
            remedy = f"give a part for the other {left}, too" if left > 0 else f"take {-left} away"
            raise ConfigError(
                f"fractions {shown(fractions)}: these are {sum(numbers)} rows, and there are "
                f"{num_rows}; {remedy}"
            )
        return [int(n) for n in numbers]
    if not shares or any(not 0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-9:
        raise ConfigError(
            f"fractions {shown(fractions)}: numbers from 0 to 1 whose sum is 1, or numbers of rows "
            "whose sum is all"
        )
    ends = np.round(np.cumsum(shares) * num_rows).astype(np.int64)
    ends[-1] = num_rows
    return [int(n) for n in np.diff(ends, prepend=0)]
