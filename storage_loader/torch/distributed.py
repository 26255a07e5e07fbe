"""What the processes of `torch.distributed` must agree on: ranks, and one version."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch import distributed

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..errors import LoaderError


def place() -> tuple[int, int] | None:
    """Rank and world_size of this process; None where it is alone.

    A worker process of torch's DataLoader is no rank, although a fork makes it look like one.
    """
    return None if torch.utils.data.get_worker_info() is not None else group()


def group() -> tuple[int, int] | None:
    """Rank and world_size, in a worker that was forked those of the process it belongs to."""
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def common_version(config: DataConfig) -> Version:
    """The newest version as rank 0 sees it. Every rank must call this.

    Raises rank 0's error on every rank, so that none waits for the others.
    """
    message: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            message = [Catalog(config).snapshot().version.commits]
        except Exception as error:
            distributed.broadcast_object_list([f"{type(error).__name__}: {error}"], src=0)
            raise
    distributed.broadcast_object_list(message, src=0)
    if isinstance(message[0], str):
        raise LoaderError(f"rank 0 could not open the dataset: {message[0]}")
    return Version(tuple(message[0]))
