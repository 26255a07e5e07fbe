"""Committed rows in, batches out."""

# Now, not when a loader's thread first needs them: a child that is forked meanwhile would have them
# half made for ever.
import numpy.ma
import numpy.random  # noqa: F401

from .dataset import Dataset
from .fetch.cached import CachedDataset, ClearedCache, clear_cache, list_cache
from .loader import DataLoader
from .run.stats import Stats
from .split import split

__all__ = [
    "CachedDataset",
    "ClearedCache",
    "DataLoader",
    "Dataset",
    "Stats",
    "clear_cache",
    "list_cache",
    "split",
]
