"""Verified bytes in memory become the arrays of a batch."""
