"""Disjoint parts of a dataset, e.g. for training and validation."""

from __future__ import annotations

from collections.abc import Sequence

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..keywords import checked_keywords
from .order import Rows
from .order.subset import split_rows


@checked_keywords
def split(
    config: DataConfig,
    fractions: Sequence[float],
    seed: int = 0,
    *,
    version: Version | str | Sequence[str] | None = None,
) -> list[Rows]:
    """Disjoint, complete parts of a dataset's rows, drawn at random: one for each fraction.

    Each part is an ascending array of row numbers for `DataLoader(subset=...)`; the same for
    the same seed and number of rows. Raises `ConfigError` where `fractions` do not sum to 1.
    """
    return split_rows(Catalog(config).snapshot(version).num_rows, fractions, seed)
