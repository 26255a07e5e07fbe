"""`DataLoader` and `Dataset` for PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch.utils.data

from .. import loader
from ..config import DataConfig
from ..keywords import checked_settings
from ..loader.fill.memory import Memory
from ..loader.fill.parts import Array
from ..loader.loader import Result, Timed
from ..loader.order.chunks import Epoch
from ..loader.peers import Peers
from ..loader.run.ahead import Ahead
from ..loader.run.prefetch import Read
from ..loader.run.stats import Meter
from ..loader.view import View
from ..process import PerProcess
from . import distributed
from .device import Cuda, cuda_device
from .gather import TensorMemory
from .ring import Ring, Slot, room_for
from .tensors import as_tensors, reduce_tensor


class _TorchView(View):
    """Tensors; and under `torch.distributed` one version for all ranks, rank 0's."""

    def _convert(self, arrays: Mapping[str, Array]) -> dict[str, Any]:
        return as_tensors(arrays)

    def _reduce(self, value: Any) -> Any:
        return reduce_tensor(value)

    def _peers(self) -> Peers | None:
        return distributed.peers()


class DataLoader(_TorchView, loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors.

    Without `rank` and `world_size` those of `torch.distributed` hold, where it is initialised
    when the loader is first used; all ranks then read rank 0's version, so every rank must
    make the loader and use it. An iteration begins when its first batch is asked for.
    """

    @checked_settings(loader.DataLoader)
    def __init__(
        self,
        config: DataConfig,
        *,
        device: str | int | torch.device | None = None,
        **settings: Any,
    ) -> None:
        """`device`: where batches are put ahead of use, "cuda" or "cuda:0" for example; None or
        "cpu": they stay in the host's memory, without a copy. `transform` runs before, on
        tensors in the host's memory. `settings`: those of `storage_loader.DataLoader`.
        """
        super().__init__(config, **settings)
        self._device = cuda_device(device)
        self._rings: PerProcess[Ring] = PerProcess()
        self._memory = TensorMemory()

    def _ranks(self) -> tuple[int, int]:
        return self._given_ranks or distributed.place() or (0, 1)

    def _peers(self) -> Peers | None:
        return super()._peers() if self._given_ranks is None else None

    def __iter__(self) -> Iterator[Any]:
        # Lightning and torchdata make iterators that they never ask: those are no epochs.
        self._given = self._state = None
        return self._begun()

    def _begun(self) -> Generator[Any, None, None]:
        yield from super().__iter__()

    # To a device: gathered into a slot of the ring and sent in a thread, received here.

    def _batches(self, epoch: Epoch, meter: Meter) -> Generator[Result, None, None]:
        batches = super()._batches(epoch, meter)
        return batches if self._device is None else self._received(batches, self._device)

    def _received(
        self, batches: Generator[Result, None, None], device: torch.device
    ) -> Generator[Result, None, None]:
        ring = self._rings.get(lambda: Ring(Cuda(device)))
        try:
            with closing(batches):
                for number, rows, sent in batches:
                    yield number, rows, ring.receive(sent)
        finally:
            ring.clear()

    def _new_memory(self) -> Memory | None:
        ring = self._ring
        if ring is None:
            return self._memory
        if self._transform is not None:  # which may keep what it gets
            return None
        extras = 16 * self._batch_size  # bytes at most
        attributes = self.schema
        nbytes = [self._batch_size * a.row_nbytes for a in attributes]
        return ring.take(room_for([*nbytes, extras, extras]))

    def _results(
        self, reads: Iterator[Timed[Read]], stop: threading.Event
    ) -> Generator[Timed[Result], None, None]:
        if self._device is None or self._transform is not None:
            return super()._results(reads, stop)
        return Ahead(reads, self._made, stop, threads=1).results()  # torch has more to gather

    def _made(self, timed: Timed[Read]) -> Timed[Result]:
        result, ready, gathered = super()._made(timed)
        return self._sent(result, timed[0].memory), ready, gathered

    def _worked(self, epoch: Epoch, meter: Meter) -> Generator[Result, None, None]:
        batches = super()._worked(epoch, meter)
        return batches if self._device is None else self._sent_ahead(batches)

    def _sent_ahead(self, batches: Generator[Result, None, None]) -> Generator[Result, None, None]:
        ahead = Ahead(batches, self._sent, threads=1)
        with closing(batches), closing(ahead.results()) as results:
            yield from results

    def _sent(self, result: Result, memory: Memory | None = None) -> Result:
        ring = self._ring
        if ring is None:
            return result
        number, rows, batch = result
        assert memory is None or isinstance(memory, Slot)
        return number, rows, ring.send(batch, memory)

    @property
    def _ring(self) -> Ring | None:
        return self._rings.peek()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_rings"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rings = PerProcess()


class Dataset(_TorchView, loader.Dataset, torch.utils.data.Dataset[Any]):
    """`storage_loader.Dataset` whose rows are dicts of tensors: a map-style torch dataset.

    Works under `torch.utils.data.DataLoader` with workers of any start method; a batch of
    rows is read at once. Under `torch.distributed` all ranks read rank 0's version.
    """

    def __getitems__(self, index: Sequence[int]) -> list[Any]:
        """The rows of a batch; torch's DataLoader calls this where it exists."""
        return self.rows(index)


__all__ = ["DataLoader", "Dataset"]
