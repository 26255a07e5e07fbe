"""A dataset for worker processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage_loader import DataConfig, save

ROWS = 400
ATTRIBUTES = [("x", "float32", (5,)), ("id", "int64"), ("half", "bfloat16", (2,))]


def save_worked(folder: Path) -> DataConfig:
    """A dataset of ROWS rows in a folder, in several objects."""
    config = DataConfig(
        "worked",
        ATTRIBUTES,
        storage=folder,
        max_object_size=64 * 2**10,
    )
    ids = np.arange(ROWS)
    save(
        config,
        {
            "x": np.repeat(ids[:, None], 5, 1),
            "id": ids,
            "half": np.repeat(ids[:, None] % 256, 2, 1),
        },
    )
    return config
