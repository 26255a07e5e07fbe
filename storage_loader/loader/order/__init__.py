"""Which row stands at which position of an epoch. Pure arithmetic."""

from .orders import LANES, Order, Rows, Shuffle, make_order

__all__ = ["LANES", "Order", "Rows", "Shuffle", "make_order"]
