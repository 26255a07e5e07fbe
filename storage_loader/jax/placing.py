"""Arrays of a batch on devices: which rows a process needs, and which dtypes JAX will have."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from ..errors import ConfigError, LoaderError
from ..loader.fill.parts import Array
from ..loader.order.partition import Partition
from ..process import cached_property
from ..ragged import Ragged
from .alike import Alike
from .ragged import is_leaf


class TooWide(Exception):
    """An array of 64-bit integers that has no place in JAX as it is set up: for our caller."""

    def __init__(self, leaf: int, array: Array, index: tuple[int, ...], dtype: np.dtype[Any]):
        super().__init__(leaf)
        self.leaf = leaf  # of the batch's tree
        self.array = array
        self.index = index  # of the first value that does not fit
        self.dtype = dtype  # that JAX has instead


class Placing:
    """Puts batches onto the devices of a sharding; None: onto the default device."""

    def __init__(self, sharding: jax.sharding.Sharding | None, is_elsewhere: bool = False) -> None:
        """`is_elsewhere`: there is a sharding, in the process that pickled this."""
        self._given = sharding
        self._is_elsewhere = is_elsewhere
        self._one: Alike | None = None
        if sharding is None or (sharding.num_devices == 1 and not self.is_global):
            self._one = Alike(self._placed_by_jax)

    def __reduce__(self) -> tuple[type[Placing], tuple[None, bool]]:
        return Placing, (None, self._is_elsewhere or self._given is not None)

    @property
    def _sharding(self) -> jax.sharding.Sharding | None:
        if self._is_elsewhere:
            raise LoaderError(
                "the devices of a sharding belong to their process: make the loader in this one, "
                "do not pickle it"
            )
        return self._given

    @property
    def is_global(self) -> bool:
        """Whether an array lies on devices of several processes."""
        return self._sharding is not None and not self._sharding.is_fully_addressable

    @property
    def is_shared(self) -> bool:
        """Whether several devices share a batch."""
        return self._sharding is not None and (self.is_global or self._sharding.num_devices > 1)

    @property
    def is_at_once(self) -> bool:
        """Whether an array is placed where it lies: the devices are this machine's processors."""
        config: Any = jax.config
        devices = {config.jax_default_device or jax.devices()[0]}  # the default may be a name
        if self._sharding is not None:
            devices = set(self._sharding.device_set)
        return {getattr(device, "platform", device) for device in devices} == {"cpu"}

    def goes_ahead(self) -> bool:
        """Whether a batch is worth placing while the one before it is in use."""
        return not self.is_at_once

    def ranks(self, given: tuple[int, int] | None) -> tuple[int, int]:
        """Rank and world_size, where the user gave these: of this process's rows in a batch.

        Processes whose devices hold the same rows have the same rank.
        """
        if not self.is_global:
            return given or (jax.process_index(), jax.process_count())
        rank, world_size = own = self._part
        if given is not None and given != own:
            raise ConfigError(
                f"rank {given[0]} of world_size {given[1]}: this process's devices hold part "
                f"{rank} of {world_size} of the sharding; leave rank and world_size out"
            )
        return own

    @cached_property
    def _part(self) -> tuple[int, int]:
        """Of a global array: which part this process's devices hold, and how many there are."""
        of_process: dict[int, set[int]] = {}
        for device, start in self._starts().items():
            of_process.setdefault(device.process_index, set()).add(start)
        parts = sorted({tuple(sorted(starts)) for starts in of_process.values()})
        if sum(map(len, parts)) != len(set().union(*parts)):
            raise ConfigError(f"sharding {self._sharding}: processes share some rows, not all")
        return parts.index(tuple(sorted(of_process[jax.process_index()]))), len(parts)

    def check(self, partition: Partition, rank: int) -> None:
        """Raise `ConfigError` where the devices cannot share a batch evenly."""
        if self._sharding is None:
            return
        shards = len(set(self._starts().values()))
        size = partition.batch_size
        processes = partition.world_size if self.is_global else 1
        if size * processes % shards:
            raise ConfigError(
                f"batch_size {size} on {processes} processes: {self._axis} cannot split "
                f"{size * processes} rows into {shards} equal parts; choose a multiple of "
                f"{shards // math.gcd(shards, processes)}"
            )
        if partition.num_full == partition.num_batches or partition.last_batch != "partial":
            return
        ranks = range(processes) if self.is_global else [rank]
        last = partition.num_batches - 1
        rows = [len(partition.batch(last, each).positions) for each in ranks]
        if len(set(rows)) > 1 or sum(rows) % shards:
            raise ConfigError(
                f"the epoch's last batch, of batch_size {size}, has only {sum(rows)} rows: "
                f"{self._axis} cannot split them into {shards} equal parts; use "
                "last_batch='drop', 'pad' or 'wrap'"
            )

    def place(self, batch: Any) -> Any:
        """The batch with its numpy arrays as `jax.Array`s. The copy to a device goes on after.

        Lists without arrays, such as texts, stay as they are. Raises `TooWide`, and `ConfigError`
        for rows that differ in length where several devices share a batch.
        """
        leaves, structure = jax.tree.flatten(batch, is_leaf=is_leaf)
        which = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (np.ndarray, np.generic))]
        arrays = [_canonical(i, np.asarray(leaves[i])) for i in which]
        for i, array in zip(which, self._put(arrays), strict=True):
            leaves[i] = array
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Ragged):
                leaves[i] = self._placed_ragged(i, leaf)
        placed = jax.tree.unflatten(structure, leaves)
        # JAX sorts the names of a dict; a batch's are in attribute order.
        return {name: placed[name] for name in batch} if type(batch) is dict else placed

    def _placed_ragged(self, leaf: int, rows: Ragged) -> Ragged:
        """The same rows, of `jax.Array`s."""
        if self.is_shared:
            raise ConfigError(
                "rows that differ in length cannot be split over the devices of a sharding: make "
                "them equal in transform, or by pad="
            )
        placed: list[Any] = self._put([_canonical(leaf, a) for a in (rows.values, rows.offsets)])
        return Ragged(*placed)

    def _put(self, arrays: list[Array]) -> list[jax.Array]:
        """Its transfers are the user's wish, as those of `device_put` are to JAX's guards."""
        with jax.transfer_guard_host_to_device("allow"):
            if self._one is not None:
                return list(map(self._one.place, arrays))
            return list(map(self._placed_by_jax, arrays))

    def _placed_by_jax(self, array: Array) -> jax.Array:
        if self._sharding is None:
            # Uncommitted: they follow the other operands of what a user calls.
            placed: jax.Array = jax.device_put(array)
        elif not self.is_global:  # half the cost of device_put
            placed = jax.make_array_from_callback(array.shape, self._sharding, array.__getitem__)
        else:
            _, parts = self._part
            placed = jax.make_array_from_process_local_data(  # type: ignore[no-untyped-call]
                self._sharding, array, (len(array) * parts, *array.shape[1:])
            )
        return placed

    def _starts(self) -> dict[jax.Device, int]:
        """By device, where its rows begin, of as many rows as there are devices."""
        assert self._sharding is not None
        count = self._sharding.num_devices
        spec = getattr(self._sharding, "spec", ())
        shape = (count,) * max(1, len(spec))  # so that each axis can be split
        indices = self._sharding.devices_indices_map(shape)
        return {device: index[0].start or 0 for device, index in indices.items()}

    @property
    def _axis(self) -> str:
        spec = getattr(self._sharding, "spec", None)
        return f"mesh axis {spec[0]!r}" if spec else f"sharding {self._sharding}"


def _canonical(leaf: int, array: Array) -> Array:
    """The array; its integers in 32 bits where JAX has no 64. JAX narrows the rest by itself."""
    if array.dtype.itemsize < 8 or array.dtype.kind not in "iu":
        return array
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if dtype == array.dtype:
        return array
    narrow = array.astype(dtype)
    if not (narrow == array).all():
        wrong = np.argwhere(narrow != array)
        raise TooWide(leaf, array, tuple(wrong[0].tolist()), dtype)
    return narrow
