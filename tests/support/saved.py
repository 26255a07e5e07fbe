"""What a saver left in its store, and a dataset of small objects."""

from __future__ import annotations

from typing import Any

from storage_loader import Attribute, DataConfig, Dataset
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    DatasetNotFoundError,
)
from storage_loader.hdf5 import capacity
from storage_loader.schema import Schema
from tests.support.rows import config

WIDE = (Attribute("image", "uint8", (1024,)), Attribute("row", "int64"))  # some 60 rows an object


def wide(storage: dict[str, Any], **settings: Any) -> DataConfig:
    return config(storage, "wide", attributes=WIDE, max_object_size=MIN_OBJECT_SIZE, **settings)


WIDE_ROWS = capacity(Schema(WIDE), MIN_OBJECT_SIZE)  # of one full object


def files(store: Any, kind: str = "") -> list[str]:
    """All keys of a store, or those below a folder of a dataset."""
    return sorted(i.key for i in store.list() if f"/{kind}" in f"/{i.key}")


def nothing_there(the_config: DataConfig) -> bool:
    """Whether no reader sees a dataset."""
    try:
        Dataset(the_config).open()
    except DatasetNotFoundError:
        return True
    return False
