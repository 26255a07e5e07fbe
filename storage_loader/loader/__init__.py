"""Committed rows in, batches out."""

# Now, not when a loader's thread first needs them: a child that is forked meanwhile would have them
# half made for ever.
import numpy.ma
import numpy.random  # noqa: F401

from .dataset import Dataset
from .loader import DataLoader
from .run.stats import Stats
from .split import split

__all__ = ["DataLoader", "Dataset", "Stats", "split"]
