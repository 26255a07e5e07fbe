"""Committed rows in, batches out."""

from .dataset import Dataset
from .loader import DataLoader

__all__ = ["DataLoader", "Dataset"]
