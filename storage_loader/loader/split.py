"""Disjoint parts of a dataset, e.g. for training and validation."""

from __future__ import annotations

from collections.abc import Sequence

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..errors import ConfigError
from ..keywords import checked_keywords, shown
from .dataset import Dataset
from .order import Rows
from .order.subset import split_rows


@checked_keywords
def split(
    config: DataConfig,
    fractions: Sequence[float],
    seed: int = 0,
    *,
    by: str | None = None,
    version: Version | str | Sequence[str] | None = None,
) -> list[Rows]:
    """Disjoint, complete parts of a dataset's rows, drawn at random: one for each fraction.

    `fractions`: numbers whose sum is 1, or whole numbers of rows whose sum is all rows. `by`: an
    attribute of shape () with the rows' classes, of each of which every part gets its share, to a
    row or two; it is read whole. Each part is an ascending array of row numbers for
    `DataLoader(subset=...)`; the same for the same seed, number of rows and classes. Raises
    `ConfigError` where the fractions sum to anything else.
    """
    if by is None:
        return split_rows(Catalog(config).snapshot(version).num_rows, fractions, seed)
    if not isinstance(by, str):
        raise ConfigError(f"by {shown(by)}: the name of an attribute")
    dataset = Dataset(config, attributes=[by], version=version)
    if dataset.spec[by].shape:
        raise ConfigError(f"by {by!r}: rows of shape {dataset.spec[by].shape} are no classes")
    return split_rows(dataset.num_rows, fractions, seed, dataset[:][by])
