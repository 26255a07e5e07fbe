"""The smallest and the largest of the numbers that an attribute has in an object. Pure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..schema import Attribute

Extreme = int | float | bool | None
"""A smallest or largest value; None: not known."""


def has_bounds(attribute: Attribute) -> bool:
    """Whether its rows are single real numbers."""
    is_scalar = attribute.shape == () and not attribute.is_text
    return is_scalar and not attribute.dtype.startswith("complex")


class Bounds:
    """Those of numbers that come in parts."""

    def __init__(self) -> None:
        self._found: tuple[Extreme, Extreme] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Look at some more."""
        if not len(values):
            return
        with np.errstate(invalid="ignore"):  # of bfloat16, NaN would be warned of
            least, most = _known(values.min()), _known(values.max())
        if self._found is not None and least is not None and most is not None:
            before = self._found
            least = None if before[0] is None else min(before[0], least)
            most = None if before[1] is None else max(before[1], most)
        self._found = least, most

    @property
    def found(self) -> tuple[Extreme, Extreme]:
        """(smallest, largest), (None, None) where one is no finite number."""
        least, most = self._found or (None, None)
        return (None, None) if least is None or most is None else (least, most)


def _known(value: Any) -> Extreme:
    """As JSON has it; None for NaN, which the smallest of values with one is, and infinities."""
    number = value.item() if value.dtype.kind != "V" else float(value)
    return None if isinstance(number, float) and not math.isfinite(number) else number
