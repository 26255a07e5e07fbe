"""PyTorch: the loaders of `storage_loader`, with tensors and `torch.distributed`."""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "storage_loader.torch needs PyTorch: pip install 'storage-loader[torch]'"
    ) from error

from .adapters import DataLoader, Dataset
from .collate import collate
from .iterable import IterableDataset
from .tensors import as_tensor

__all__ = ["DataLoader", "Dataset", "IterableDataset", "as_tensor", "collate"]
