"""Which row stands at which position of an epoch. Pure arithmetic."""

from .orders import ARITHMETIC, LANES, Order, Rows, Shuffle, make_order

__all__ = ["ARITHMETIC", "LANES", "Order", "Rows", "Shuffle", "make_order"]
