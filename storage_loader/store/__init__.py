"""Where bytes lie: one small interface, and a store for each kind of place."""

from __future__ import annotations

import os

import platformdirs

from ..config import DataConfig
from .base import ObjectInfo, Store, xxh3
from .cache import CacheStore
from .folder import FolderStore
from .memory import MemoryStore
from .s3 import S3Store
from .s3_place import S3Place


def open_store(config: DataConfig) -> Store:
    """The store of a config's `storage`. Connects at its first verb, not here."""
    scheme, _, rest = config.storage.partition("://")
    if scheme == "s3":
        return S3Store(S3Place.of(config))
    if scheme == "memory":
        return MemoryStore(config.storage)
    return FolderStore(rest)


def cached(store: Store, cache_dir: str | os.PathLike[str] | None) -> Store:
    """The store behind a cache in `cache_dir`; the store itself where its bytes are local.

    None is the user's cache directory.
    """
    if store.is_local:
        return store
    folder = cache_dir or platformdirs.user_cache_dir("storage_loader")
    return CacheStore(store, folder)


__all__ = [
    "CacheStore",
    "FolderStore",
    "MemoryStore",
    "ObjectInfo",
    "S3Store",
    "Store",
    "cached",
    "open_store",
    "xxh3",
]
