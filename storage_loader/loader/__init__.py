"""Committed rows in, batches out."""

from .dataset import Dataset
from .loader import DataLoader
from .split import split

__all__ = ["DataLoader", "Dataset", "split"]
