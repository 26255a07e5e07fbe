"""Objects in an S3 bucket: MinIO, AWS, Ceph, any endpoint, path style.

Who is behind a proxy uses the minio client alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from typing_extensions import Buffer

from ..config import DataConfig
from ..process import PerProcess
from ..ranges import Range
from .base import WHOLE, Buffers, Errors, ObjectInfo, Store
from .direct_s3 import DirectS3
from .guarded_http import proxy_of
from .keys import Keys, RenewedStore
from .minio_s3 import MinioS3
from .retried import RetriedStore
from .s3_place import S3Place


def open_s3(config: DataConfig) -> Store:
    """The bucket and prefix of a config; what can succeed a moment later is asked again."""
    place = S3Place.of(config)
    return RetriedStore(S3Store(place), config.deadline, place.server_url)


class S3Store(Store):
    """The client that fits this process, behind the verbs of `Store`.

    Each request is made once: `RetriedStore` makes it again, and several at once.
    """

    def __init__(self, place: S3Place) -> None:
        self.url = place.url
        self.place = place
        self._process_client: PerProcess[Store] = PerProcess()

    @property
    def _client(self) -> Store:
        return self._process_client.get(self._make)

    def _make(self) -> Store:
        keys = self._keys()
        is_direct = proxy_of(self.place.server_url) is None
        client = (DirectS3 if is_direct else MinioS3)(self.place, keys)
        return client if keys is None else RenewedStore(client, keys)

    def _keys(self) -> Keys | None:
        provider = self.place.credentials
        return None if provider is None else Keys(self.place, provider)

    @property
    def origin(self) -> str:
        return f"{self.place.server} {self.url}"

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        return self._client.get(key, limit=limit)

    def find_some(
        self, keys: Sequence[str], found: dict[int, memoryview | None], *, limit: int = WHOLE
    ) -> Errors:
        return self._client.find_some(keys, found, limit=limit)

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        return self._client.get_ranges(key, ranges)

    def get_some(
        self, requests: Sequence[tuple[str, Sequence[Range]]], received: dict[int, Buffers]
    ) -> Errors:
        return self._client.get_some(requests, received)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        return self._client.stream(key, start, end)

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        self._client.put(key, data, create=create)

    def head(self, key: str) -> ObjectInfo:
        return self._client.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._client.list(prefix)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        return self._client.list_folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._client.delete(keys)

    def prepare(self) -> None:
        """Create the bucket; `PermissionDeniedError` where the keys do not allow it."""
        keys = self._keys()
        client = MinioS3(self.place, keys)
        (client if keys is None else RenewedStore(client, keys)).prepare()
