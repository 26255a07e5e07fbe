"""Where bytes lie: one small interface, and a store for each kind of place."""

from __future__ import annotations

from typing_extensions import Buffer

from ..config import DataConfig
from ..process import late_import
from .base import ObjectInfo, Store, xxh3
from .counted import CountedStore, Counter, Traffic
from .folder import FolderStore, read_pieces
from .maps import Identity, identity_of, mapped_identity
from .memory import MemoryStore


def open_store(config: DataConfig) -> Store:
    """The store of a config's `storage`. Connects at its first verb, not here."""
    scheme, _, rest = config.storage.partition("://")
    if scheme == "s3":
        with late_import():  # the clients: a third of what the whole library takes
            from .s3 import open_s3  # noqa: PLC0415

        return open_s3(config)
    if scheme == "memory":
        return MemoryStore(config.storage)
    return FolderStore(rest)


__all__ = [
    "Buffer",
    "CountedStore",
    "Counter",
    "FolderStore",
    "Identity",
    "MemoryStore",
    "ObjectInfo",
    "Store",
    "Traffic",
    "identity_of",
    "mapped_identity",
    "open_store",
    "read_pieces",
    "xxh3",
]
