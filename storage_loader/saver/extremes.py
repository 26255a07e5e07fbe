"""The smallest and the largest value of each attribute of single numbers, as rows come in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from ..catalog import Extreme
from ..schema import Attribute, Schema
from .batch import Rows
from .cast import Array


class Extremes:
    """Those of the rows of one object."""

    def __init__(self, schema: Schema) -> None:
        self._names = [a.name for a in schema if _is_number(a)]
        self._found: dict[str, tuple[Extreme, Extreme]] = {}

    def add(self, arrays: Mapping[str, Rows], start: int, stop: int) -> None:
        """Look at rows `start` to `stop`."""
        if start == stop:
            return
        for name in self._names:
            values = cast(Array, arrays[name])[start:stop]
            least, most = _known(values.min()), _known(values.max())
            if name in self._found and least is not None and most is not None:
                before = self._found[name]
                least = None if before[0] is None else min(before[0], least)
                most = None if before[1] is None else max(before[1], most)
            self._found[name] = least, most

    def taken(self) -> dict[str, tuple[Extreme, Extreme]]:
        """By attribute, (smallest, largest), (None, None) where one is no finite number; from here
        on those of the next object."""
        found, self._found = self._found, {}
        return {n: (None, None) if None in both else both for n, both in found.items()}


def _is_number(attribute: Attribute) -> bool:
    is_scalar = attribute.shape == () and not attribute.is_text
    return is_scalar and not attribute.dtype.startswith("complex")


def _known(value: Any) -> Extreme:
    """As JSON has it; None for NaN, which the smallest of values with one is, and infinities."""
    number = value.item() if value.dtype.kind != "V" else float(value)
    return None if isinstance(number, float) and not math.isfinite(number) else number
