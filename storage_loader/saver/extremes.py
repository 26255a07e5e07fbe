"""The smallest and the largest value of each attribute of single numbers, as rows come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ..catalog import Bounds, Extreme, has_bounds
from ..schema import Schema
from .batch import Rows
from .cast import Array


class Extremes:
    """Those of the rows of one object."""

    def __init__(self, schema: Schema) -> None:
        self._names = [a.name for a in schema if has_bounds(a)]
        self._found: dict[str, Bounds] = {}

    def add(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """Look at rows `start` to `stop`."""
        if start < stop:
            for name in self._names:
                values = cast(Array, arrays[name])[start:stop]
                self._found.setdefault(name, Bounds()).add(values)

    def taken(self) -> dict[str, tuple[Extreme, Extreme]]:
        """By attribute, (smallest, largest), (None, None) where one is no finite number; from here
        on those of the next object."""
        found, self._found = self._found, {}
        return {name: bounds.found for name, bounds in found.items()}
