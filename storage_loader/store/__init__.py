"""Where bytes lie: one small interface, and a store for each kind of place."""

from __future__ import annotations

from typing_extensions import Buffer

from ..config import DataConfig
from .base import ObjectInfo, Store, xxh3
from .counted import CountedStore, Counter, Traffic
from .folder import FolderStore, read_pieces
from .maps import Identity, identity_of, mapped_identity
from .memory import MemoryStore
from .retried import RetriedStore
from .s3 import S3Store
from .s3_bucket import S3Bucket
from .s3_place import S3Place


def open_store(config: DataConfig) -> Store:
    """The store of a config's `storage`. Connects at its first verb, not here."""
    scheme, _, rest = config.storage.partition("://")
    if scheme == "s3":
        place = S3Place.of(config)
        return RetriedStore(S3Store(place), config.deadline, place.server_url)
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
    "RetriedStore",
    "S3Bucket",
    "S3Place",
    "S3Store",
    "Store",
    "Traffic",
    "identity_of",
    "mapped_identity",
    "open_store",
    "read_pieces",
    "xxh3",
]
