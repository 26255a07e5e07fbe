"""PyTorch: the loaders of `storage_loader`, with tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .. import loader
from ..loader.gather import Array

try:
    import torch
    import torch.utils.data
except ImportError as error:
    raise ImportError(
        "storage_loader.torch needs PyTorch: pip install 'storage-loader[torch]'"
    ) from error


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor of the array's dtype on its own memory; bfloat16 included."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """A batch or row of tensors; a scalar attribute of one row is a 0-d tensor."""
    return {name: as_tensor(array) for name, array in arrays.items()}


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors."""

    def _convert(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return dict(as_tensors(arrays))


class Dataset(loader.Dataset, torch.utils.data.Dataset[Any]):
    """`storage_loader.Dataset` whose rows are dicts of tensors: a map-style torch dataset.

    Works under `torch.utils.data.DataLoader` with workers of any start method; a batch of
    rows is read at once.
    """

    def _convert(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return dict(as_tensors(arrays))

    def __getitems__(self, index: Sequence[int]) -> list[Any]:
        """The rows of a batch; torch's DataLoader calls this where it exists."""
        return self.rows(index)


__all__ = ["DataLoader", "Dataset", "as_tensor"]
