"""What the processes of `torch.distributed` must agree on: ranks, and one version."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch import distributed

from ..loader.peers import Peers


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


def ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """Rank and world_size, where the user gave these."""
    return given or place() or (0, 1)


class Inherited:
    """`ranks` that a worker of torch's DataLoader has from the process it belongs to."""

    def __init__(self, before: tuple[int, int] | None = None) -> None:
        self._before = before  # of the process that pickled this

    def ranks(self, given: tuple[int, int] | None) -> tuple[int, int]:
        """Rank and world_size, where the user gave these."""
        is_worker = torch.utils.data.get_worker_info() is not None
        return given or group() or (is_worker and self._before) or (0, 1)

    def __reduce__(self) -> tuple[type[Inherited], tuple[tuple[int, int] | None]]:
        return Inherited, (group(),)


def peers() -> Peers | None:
    """The ranks, which open what this process opens; None where it is alone."""
    rank, world_size = place() or (0, 1)
    return Peers("rank 0", rank == 0, _broadcast) if world_size > 1 else None


def _broadcast(value: Any) -> Any:
    message = [value]
    distributed.broadcast_object_list(message, src=0)
    return message[0]
