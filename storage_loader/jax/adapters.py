"""`DataLoader` for JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from .. import loader
from ..catalog import Snapshot, Version
from ..config import DataConfig
from ..errors import ConfigError, LoaderError
from ..keywords import checked_keywords, handed_on, shown
from ..loader.decode import Decode, Mask, stacked
from ..loader.feed import Feed
from ..loader.fill.memory import AlignedMemory
from ..loader.loader import DEFAULT_PREFETCH
from ..loader.order import Rows, Shuffle
from ..loader.order.partition import LastBatch
from ..loader.view import Transform
from ..ragged import Ragged
from ..schema import Attribute
from . import distributed
from .placing import Placing, TooWide
from .ragged import is_leaf


def _stack(made: Sequence[Any], is_stored: Mask) -> Any:
    arrays = [np.asarray(one) if isinstance(one, jax.Array) else one for one in made]
    return stacked(arrays, is_stored)


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of `jax.Array`s.

    Rows that differ in length are a `Ragged` of them, which `jax.jit` takes, or a dense one by
    `pad`; bytes, text and JSON are lists. Several devices cannot share a `Ragged` or a list.
    Each batch is on its way to the device while the one before it is in use; where the device is
    the processor, an array lies on the batch's own memory. `transform` gets numpy arrays; what it
    returns is placed, array by array. Without `rank` and `world_size` those of JAX's processes
    hold, and all processes then read the version that process 0 sees, so every process must make
    the loader and use it.

    Without `jax_enable_x64`, 64-bit integers become 32-bit ones where every value of the batch
    fits, else a `LoaderError` names the row; float64 and complex128 become float32 and complex64,
    as everywhere in JAX.
    """

    _feed = Feed(stack=_stack, memory=AlignedMemory, peers=distributed.peers)

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        batch_size: int | None = 1,
        *,
        sharding: jax.sharding.Sharding | None = None,
        shuffle: Shuffle = False,
        seed: int = 0,
        last_batch: LastBatch = "partial",
        drop_last: bool = False,
        attributes: Sequence[str] | None = None,
        subset: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        version: Version | str | Sequence[str] | None = None,
        transform: Transform | None = None,
        num_workers: int = 0,
        as_tuple: bool = False,
        extras: Sequence[str] = (),
        epochs: int = 1,
        prefetch: int = DEFAULT_PREFETCH,
        threads: int = 8,
        block: int | None = None,
        window: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        index: bool = False,
        verify: bool = True,
        pad: Mapping[str, Any] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        """`sharding`: how the devices share a batch's arrays, default the one default device.

        Over devices of several processes, a batch is one array of all their rows, and each reads
        only those of its own devices. `batch_size` is that of one process, as with ranks.
        The other keywords are those of `storage_loader.DataLoader`.
        """
        super().__init__(**handed_on(locals(), loader.DataLoader))
        if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
            raise ConfigError(f"sharding {shown(sharding)}: a jax.sharding.Sharding")
        if sharding is not None and batch_size is None:
            raise ConfigError("sharding is of batches, not of single rows: give batch_size")
        placing = Placing(sharding)
        self._feed = replace(
            self._feed,
            place=_Placer(placing, config.dataset_name, batch_size is None).place,
            places_ahead=placing.goes_ahead,
            ranks=placing.ranks,
            check=placing.check,
        )
        self._placing = placing

    def open(self) -> Snapshot:
        snapshot = super().open()
        if self._transform is None and self._placing.is_shared:
            for attribute in snapshot.schema.select(self._attributes):
                is_ours = attribute.name not in self._pad and attribute.name not in self._decode
                if attribute.is_variable and is_ours:
                    raise ConfigError(_not_shared(attribute))
        return snapshot


def _not_shared(attribute: Attribute) -> str:
    name = attribute.name
    pad = "decode=" if attribute.is_text else f"pad={{{name!r}: 0}}"
    return (
        f"sharding: the devices cannot share attribute {name!r}, whose rows are {attribute.dtype} "
        f"{attribute.shape or 'of any length'}: give {pad}, make arrays of them in transform, or "
        "leave it out by attributes="
    )


@dataclass(frozen=True)
class _Placer:
    """Places the batches of one dataset, and names what JAX cannot hold."""

    placing: Placing
    dataset_name: str
    gives_rows: bool  # one at a time

    def place(self, batch: Any, rows: Rows) -> Any:
        try:
            return self.placing.place(batch)
        except TooWide as error:
            raise LoaderError(self._too_wide(error, batch, rows)) from None

    def _too_wide(self, error: TooWide, batch: Any, rows: Rows) -> str:
        leaves, _ = jax.tree_util.tree_flatten_with_path(batch, is_leaf=is_leaf)
        keys, leaf = leaves[error.leaf]
        path = jax.tree_util.keystr(keys)
        array, index = error.array, error.index
        where = ""
        if isinstance(leaf, Ragged):
            row = int(np.searchsorted(leaf.offsets, index[0], "right")) - 1
            where = f" in row {rows[row]}" if len(leaf) == len(rows) else ""
        elif self.gives_rows or len(array) == len(rows):
            where = f" in row {rows[0 if self.gives_rows else index[0]]}"
        return (
            f"batch{path} of dataset {self.dataset_name!r} has "
            f"{array[index]}{where}, which {error.dtype} cannot hold: enable 64-bit numbers by "
            "jax.config.update('jax_enable_x64', True), or store or cast it narrower, or leave it "
            "out by attributes="
        )


__all__ = ["DataLoader"]
