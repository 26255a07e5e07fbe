"""Rows in, committed objects out."""

from .saver import DataSaver, save

__all__ = ["DataSaver", "save"]
