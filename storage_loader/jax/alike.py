"""Arrays placed as JAX placed the first of their kind, for a fraction of what it takes for that."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..loader.fill.parts import Array

try:  # what `jax.device_put` ends in, after ten times as much in Python; not public
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    _last_step = xla_client.batched_device_put
except (ImportError, AttributeError):
    _last_step = None

_KINDS = 64  # remembered; a transform may give each batch another shape


@dataclass(frozen=True)
class _Kind:
    """What JAX made of an array: of others alike it makes the same."""

    aval: Any
    sharding: jax.sharding.Sharding
    devices: list[jax.Device]
    committed: bool

    def place(self, array: Array) -> jax.Array:
        placed: jax.Array = _last_step(
            self.aval, self.sharding, [array], self.devices, self.committed
        )
        return placed


class Alike:
    """Places arrays on one device as `by_jax` does, which is asked once for each shape and dtype.

    Where this JAX has no such step as we know, or gives something else by it, `by_jax` places all.
    """

    def __init__(self, by_jax: Callable[[Array], jax.Array]) -> None:
        self._by_jax = by_jax
        self._kinds: dict[Hashable, _Kind] = {}

    def place(self, array: Array) -> jax.Array:
        """The array; the user allows its transfer."""
        # The settings that decide about the result may change from batch to batch.
        config: Any = jax.config
        key = array.shape, array.dtype, config.jax_enable_x64, config.jax_default_device
        kind = self._kinds.get(key)
        if kind is not None:
            return kind.place(array)
        placed = self._by_jax(array)
        self._learn(key, array, placed)
        return placed

    def _learn(self, key: Hashable, array: Array, placed: jax.Array) -> None:
        """Place the next ones like this, if that gives the same."""
        devices = list(placed.devices())
        if _last_step is None or placed.dtype != array.dtype or len(devices) != 1:
            return
        kind = _Kind(placed.aval, placed.sharding, devices, placed.committed)
        try:
            alike = kind.place(array)
        except TypeError:  # another JAX has it otherwise
            return
        if _description(alike) == _description(placed):
            if len(self._kinds) == _KINDS:
                self._kinds.clear()
            self._kinds[key] = kind


def _description(array: jax.Array) -> tuple[Any, ...]:
    found = np.asarray(array).tobytes()
    return type(array), array.aval, array.sharding, array.committed, found
