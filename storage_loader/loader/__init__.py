"""Committed rows in, batches out."""

from .dataset import Dataset
from .loader import DataLoader
from .split import split
from .stats import Stats

__all__ = ["DataLoader", "Dataset", "Stats", "split"]
