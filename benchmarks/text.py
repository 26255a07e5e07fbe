"""Figures as text."""

from __future__ import annotations

from .runner import Spread


def spread(value: Spread) -> str:
    """Median and quartiles."""
    if value.low == value.high:
        return number(value.median)
    return f"{number(value.median)} [{number(value.low)} to {number(value.high)}]"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def target(at_least: float | None, at_most: float | None, holds: bool | None) -> str:
    """What was asked for, and whether it holds; "" where nothing was."""
    if holds is None:
        return ""
    words = f"at least {at_least:.4g}" if at_least is not None else f"at most {at_most:.4g}"
    return f"{words}: {'yes' if holds else 'NO'}"
