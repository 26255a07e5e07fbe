"""`DataLoader` for JAX."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

import jax

from .. import loader
from ..config import DataConfig
from ..errors import ConfigError, LoaderError
from ..keywords import checked_settings, shown
from ..loader.fill.memory import AlignedMemory, Memory
from ..loader.order import Rows
from ..loader.order.chunks import Chunk, Epoch
from ..loader.order.partition import Partition
from ..loader.peers import Peers
from ..loader.run.stats import Meter
from . import distributed
from .placing import Placing, TooWide

T = TypeVar("T")

_AHEAD = 1  # batches whose way to the device has begun, beyond the one in use


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of `jax.Array`s.

    Each batch is on its way to the device while the one before it is in use; where the device is
    the processor, an array lies on the batch's own memory. `transform` gets numpy arrays; what it
    returns is placed, array by array. Without `rank` and `world_size` those of JAX's processes
    hold, and all processes then read the version that process 0 sees, so every process must make
    the loader and use it.

    Without `jax_enable_x64`, 64-bit integers become 32-bit ones where every value of the batch
    fits, else a `LoaderError` names the row; float64 and complex128 become float32 and complex64,
    as everywhere in JAX.
    """

    @checked_settings(loader.DataLoader)
    def __init__(
        self,
        config: DataConfig,
        *,
        sharding: jax.sharding.Sharding | None = None,
        **settings: Any,
    ) -> None:
        """`sharding`: how the devices share a batch's arrays, default the one default device.

        Over devices of several processes, a batch is one array of all their rows, and each reads
        only those of its own devices. `batch_size` is that of one process, as with ranks.
        `settings`: the keywords of `storage_loader.DataLoader`.
        """
        super().__init__(config, **settings)
        if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
            raise ConfigError(f"sharding {shown(sharding)}: a jax.sharding.Sharding")
        if sharding is not None and self._single_rows:
            raise ConfigError("sharding is of batches, not of single rows: give batch_size")
        self._given_placing: Placing | None = Placing(sharding)
        self._memory = AlignedMemory()

    @property
    def _placing(self) -> Placing:
        if self._given_placing is None:
            raise LoaderError(
                "the devices of a sharding belong to their process: make the loader in this one, "
                "do not pickle it"
            )
        return self._given_placing

    def __getstate__(self) -> dict[str, Any]:
        placing = None if self._placing.has_devices else Placing(None)  # workers need none
        return {**super().__getstate__(), "_given_placing": placing}

    def _peers(self) -> Peers | None:
        return distributed.peers() if self._given_ranks is None else None

    def _ranks(self) -> tuple[int, int]:
        own = self._placing.ranks()
        given = self._given_ranks
        if given is None:
            return own
        if self._placing.is_global and given != own:
            raise ConfigError(
                f"rank {given[0]} of world_size {given[1]}: this process's devices hold part "
                f"{own[0]} of {own[1]} of the sharding; leave rank and world_size out"
            )
        return given

    def _partition(self, start: int) -> Partition:
        partition = super()._partition(start)
        self._placing.check(partition, self._ranks()[0])
        return partition

    def _new_memory(self) -> Memory:
        return self._memory

    def _batches(self, epoch: Epoch, meter: Meter) -> Generator[tuple[int, int, Any], None, None]:
        with closing(super()._batches(epoch, meter)) as batches:
            placed = (
                (number, rows, self._placed(epoch, number, batch))
                for number, rows, batch in batches
            )
            yield from placed if self._placing.is_at_once else _taken_ahead(placed)

    def _placed(self, epoch: Epoch, number: int, batch: Any) -> Any:
        try:
            return self._placing.place(batch)
        except TooWide as error:
            rows = Chunk(epoch, number, number + 1).rows()[0]
            raise LoaderError(self._too_wide(error, batch, rows)) from None

    def _too_wide(self, error: TooWide, batch: Any, rows: Rows) -> str:
        path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(batch)[0][error.leaf][0])
        array, index = error.array, error.index
        where = ""
        if self._single_rows or len(array) == len(rows):
            where = f" in row {rows[0 if self._single_rows else index[0]]}"
        return (
            f"batch{path} of dataset {self.config.dataset_name!r} has "
            f"{array[index]}{where}, which {error.dtype} cannot hold: enable 64-bit numbers by "
            "jax.config.update('jax_enable_x64', True), or store or cast it narrower, or leave it "
            "out by attributes="
        )


def _taken_ahead(items: Iterator[T]) -> Iterator[T]:
    """Items, each taken when the one before it is wanted; the first is given at once."""
    waiting: deque[T] = deque()
    ahead = 0
    try:
        for item in items:
            waiting.append(item)
            if len(waiting) > ahead:
                ahead = _AHEAD
                yield waiting.popleft()
    except Exception:  # it comes after the batches before it
        yield from waiting
        raise
    yield from waiting


__all__ = ["DataLoader"]
