"""Disjoint parts of a dataset, e.g. for training and validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..errors import ConfigError
from ..keywords import checked_keywords, shown
from .dataset import Dataset
from .order import Rows
from .order.subset import make_subset, split_rows


@checked_keywords
def split(
    config: DataConfig,
    fractions: Sequence[float],
    seed: int = 0,
    *,
    by: str | None = None,
    subset: Any = None,
    version: Version | str | Sequence[str] | None = None,
) -> list[Rows]:
    """Disjoint, complete parts of a dataset's rows, drawn at random: one for each fraction.

    `fractions`: numbers whose sum is 1, or whole numbers of rows whose sum is all rows. `by`: an
    attribute of shape () with the rows' classes, of each of which every part gets its share, to a
    row or two; it is read whole. `subset`: split only these rows, e.g. those that were appended, or
    a part; in the words of `DataLoader(subset=...)`. Each part is an ascending array of row numbers
    of the dataset for `DataLoader(subset=...)`; the same for the same seed, rows to split and
    classes. Raises `ConfigError` where the fractions sum to anything else.
    """
    if by is None:
        num_rows, classes = Catalog(config).snapshot(version).num_rows, None
    elif not isinstance(by, str):
        raise ConfigError(f"by {shown(by)}: the name of an attribute")
    else:
        dataset = Dataset(config, attributes=[by], version=version)
        if dataset.spec[by].shape or dataset.spec[by].is_text:
            raise ConfigError(
                f"by {by!r}: rows of {dataset.spec[by].dtype} {dataset.spec[by].shape} are no "
                "classes, which are numbers of shape ()"
            )
        num_rows, classes = dataset.num_rows, dataset[:][by]
    among = make_subset(subset, num_rows)
    rows = np.sort(among.to_dataset(np.arange(among.num_rows)))
    parts = split_rows(len(rows), fractions, seed, None if classes is None else classes[rows])
    return [rows[part] for part in parts]
