"""Objects in this process's memory, for tests and small experiments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone

from typing_extensions import Buffer

from ..errors import ObjectExistsError, ObjectNotFoundError
from ..ranges import Range
from .base import (
    WHOLE,
    Buffers,
    ObjectInfo,
    Store,
    check_key,
    check_parts,
    check_ranges,
    check_size,
)

_Objects = dict[str, tuple[memoryview, datetime]]
# Without a lock, which a child that is forked while another thread holds it would wait for: each
# verb changes the dict by one call, which nobody sees half done.
_named: dict[str, _Objects] = {}


class MemoryStore(Store):
    """`memory://name`: every store of one name in this process holds the same objects."""

    is_local = True
    ends_puts = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._objects = _named.setdefault(url, {})

    def _object(self, key: str) -> memoryview:
        try:
            return self._objects[check_key(key)][0]
        except KeyError:
            raise ObjectNotFoundError(f"{self.url}: no object {key!r}") from None

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        data = self._object(key)
        check_size(data.nbytes, limit, place=f"{self.url}/{key}")
        return data

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        data = self._object(key)
        check_ranges(ranges, data.nbytes, place=f"{self.url}/{key}")
        return [data[start:end] for start, end in ranges]

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        held = (memoryview(bytes(data)), datetime.now(timezone.utc))
        if not create:
            self._objects[check_key(key)] = held
        elif self._objects.setdefault(check_key(key), held) is not held:
            raise ObjectExistsError(f"{self.url}: object {key!r} exists")

    def head(self, key: str) -> ObjectInfo:
        data = self._object(key)
        return ObjectInfo(key, data.nbytes, self._objects[key][1])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = f"{check_key(prefix)}/" if prefix else ""
        for key, (data, modified) in list(self._objects.items()):
            if key.startswith(start):
                yield ObjectInfo(key, data.nbytes, modified)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        start = f"{check_key(prefix)}/" if prefix else ""
        below = (key[len(start) :] for key in list(self._objects) if key.startswith(start))
        return sorted({key.split("/")[0] for key in below if "/" in key})

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._objects.pop(check_parts(key), None)
