"""Whether a storage holds what savers and loaders rely on."""

from .examine import check
from .value import Check, Checked, State

__all__ = ["Check", "Checked", "State", "check"]
