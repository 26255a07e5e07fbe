"""A store around a store: whole objects are kept in a folder and mapped from there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence

from typing_extensions import Buffer

from ..errors import ChecksumError, ObjectNotFoundError
from ..ranges import Range
from .base import Buffers, ObjectInfo, Store
from .folder import FolderStore


class CacheStore(Store):
    """Fetches each object once into `folder`, verified before it takes its name there.

    Only `get` uses the cache; every other verb goes to the inner store. It fits objects whose
    keys are written once. Processes may share the folder.
    """

    def __init__(self, inner: Store, folder: str | os.PathLike[str]) -> None:
        self.url = inner.url
        place = hashlib.sha256(inner.origin.encode()).hexdigest()[:16]  # two places never mix
        self._inner = inner
        self._local = FolderStore(os.path.join(os.fspath(folder), place), durable=False)

    @property
    def origin(self) -> str:
        return self._inner.origin

    def get(self, key: str, *, checksum: int | None = None) -> memoryview:
        try:
            return self._local.get(key, checksum=checksum)
        except ObjectNotFoundError:
            pass
        except ChecksumError:
            self._local.delete([key])  # altered or cut short on this disk: fetch it again
        self._local.write(key, self._inner.stream(key), checksum=checksum)
        return self._local.get(key)

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        return self._inner.get_ranges(key, ranges)

    def get_many(self, requests: Sequence[tuple[str, Sequence[Range]]]) -> Sequence[Buffers]:
        return self._inner.get_many(requests)

    def get_all(self, keys: Sequence[str]) -> Buffers:
        return self._inner.get_all(keys)

    def stream(self, key: str) -> Iterator[Buffer]:
        return self._inner.stream(key)

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        self._inner.put(key, data, create=create)

    def head(self, key: str) -> ObjectInfo:
        return self._inner.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._inner.list_folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self._inner.delete(keys)
        self._local.delete(keys)

    def prepare(self) -> None:
        self._inner.prepare()
