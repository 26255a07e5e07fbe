"""Arrays placed as JAX placed the first of their kind, for a fraction of what it takes for that."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
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

    def of_shape(self, shape: tuple[int, ...]) -> _Kind:
        """What JAX makes of another shape with as many axes; 3 us."""
        return replace(self, aval=self.aval.update(shape=shape))


class Alike:
    """Places arrays on one device as `by_jax` does, which is asked once for each shape and dtype.

    Rows that differ in length give each batch a shape of its own: it is asked for two shapes with
    as many axes, and others are taken to be like these. Where this JAX has no such step as we
    know, or gives something else by it, `by_jax` places all.
    """

    def __init__(self, by_jax: Callable[[Array], jax.Array]) -> None:
        self._by_jax = by_jax
        self._kinds: dict[Hashable, _Kind] = {}
        self._first: dict[Hashable, _Kind] = {}  # by number of axes in place of the shape
        self._every: dict[Hashable, _Kind] = {}  # the same, of any shape

    def place(self, array: Array) -> jax.Array:
        """The array; the user allows its transfer."""
        # The settings that decide about the result may change from batch to batch.
        config: Any = jax.config
        key = array.dtype, config.jax_enable_x64, config.jax_default_device
        kind = self._kinds.get((array.shape, key))
        if kind is not None:
            return kind.place(array)
        kind = self._every.get((array.ndim, key))
        if kind is not None:
            return kind.of_shape(array.shape).place(array)
        placed = self._by_jax(array)
        self._learn(key, array, placed)
        return placed

    def _learn(self, key: Hashable, array: Array, placed: jax.Array) -> None:
        """Place the next ones like this, if that gives the same."""
        devices = list(placed.devices())
        if _last_step is None or placed.dtype != array.dtype or len(devices) != 1:
            return
        kind = _Kind(placed.aval, placed.sharding, devices, placed.committed)
        if not _gives(placed, array, lambda: kind):
            return
        if len(self._kinds) == _KINDS:
            self._kinds.clear()
        self._kinds[array.shape, key] = kind
        family = array.ndim, key
        first = self._first.setdefault(family, kind)
        if first is not kind and _gives(placed, array, lambda: first.of_shape(array.shape)):
            self._every[family] = first


def _gives(placed: jax.Array, array: Array, kind: Callable[[], _Kind]) -> bool:
    """Whether this kind places the array as JAX did."""
    try:
        return _description(kind().place(array)) == _description(placed)
    except (TypeError, AttributeError):  # another JAX has it otherwise
        return False


def _description(array: jax.Array) -> tuple[Any, ...]:
    found = np.asarray(array).tobytes()
    return type(array), array.aval, array.sharding, array.committed, found
