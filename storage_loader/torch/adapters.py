"""`DataLoader` and `Dataset` for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.utils.data

from .. import loader
from ..catalog import Snapshot
from ..loader.gather import Array
from ..loader.view import View
from . import distributed
from .tensors import as_tensors, reduce_tensor


class _TorchView(View):
    """Tensors; and under `torch.distributed` one version for all ranks, rank 0's."""

    def _convert(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return as_tensors(arrays)

    def _reduce(self, value: Any) -> Any:
        return reduce_tensor(value)

    def open(self) -> Snapshot:
        if self._snapshot is None and self._wanted_version is None and self._is_shared():
            self._wanted_version = distributed.common_version(self.config)
        return super().open()

    def _is_shared(self) -> bool:
        """Whether the other ranks open this too."""
        place = distributed.place()
        return place is not None and place[1] > 1


class DataLoader(_TorchView, loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors.

    Without `rank` and `world_size` those of `torch.distributed` hold, where it is initialised
    when the loader is first used; all ranks then read rank 0's version, so every rank must
    make the loader and use it.
    """

    def _ranks(self) -> tuple[int, int]:
        return self._given_ranks or distributed.place() or (0, 1)

    def _is_shared(self) -> bool:
        return self._given_ranks is None and super()._is_shared()


class Dataset(_TorchView, loader.Dataset, torch.utils.data.Dataset[Any]):
    """`storage_loader.Dataset` whose rows are dicts of tensors: a map-style torch dataset.

    Works under `torch.utils.data.DataLoader` with workers of any start method; a batch of
    rows is read at once. Under `torch.distributed` all ranks read rank 0's version.
    """

    def __getitems__(self, index: Sequence[int]) -> list[Any]:
        """The rows of a batch; torch's DataLoader calls this where it exists."""
        return self.rows(index)


__all__ = ["DataLoader", "Dataset"]
