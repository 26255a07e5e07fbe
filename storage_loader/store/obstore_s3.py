"""S3 through obstore, the usual way."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as ObstoreClient
from typing_extensions import Buffer

from ..errors import StoreError
from ..ranges import Range
from .base import (
    STREAM_CHUNK,
    WHOLE,
    Buffers,
    ObjectInfo,
    Store,
    check_lengths,
    check_ranges,
    check_size,
    read_only,
    whole,
)
from .keys import Keys
from .s3_place import Failure, S3Place, raise_mapped
from .s3_profile import has_environment_keys, profile_session

SINGLE_PUT = 64 * 2**20  # one PUT up to here beats parts by 1.14; above, 4 parts of 16 MiB at once
PART = 16 * 2**20
PARTS_AT_ONCE = 4
_LARGE = 2**20  # bytes of a body that takes its time
_SLOWEST = 2**20  # bytes a second
_SHARED = 8  # clients that are kept for others

_first_use_pid: int | None = None


def usable() -> bool:
    """False in a process forked after obstore ran: its runtime would wait forever."""
    return _first_use_pid in (None, os.getpid())


class ObstoreS3(Store):
    """See `Store`; of `create` puts exactly one wins (If-None-Match)."""

    def __init__(self, place: S3Place, keys: Keys | None = None) -> None:
        self.url = place.url
        self._place = place
        self._keys = keys

    @cached_property
    def _client(self) -> ObstoreClient:
        return self._connected(self._place.timeout)

    @cached_property
    def _upload_client(self) -> ObstoreClient:
        """For large bodies: obstore's timeout runs while one is being sent, progress or not."""
        return self._connected(self._place.timeout + SINGLE_PUT / _SLOWEST)

    def _connected(self, timeout: float) -> ObstoreClient:
        global _first_use_pid  # noqa: PLW0603  what `usable` asks about is the process
        _first_use_pid = os.getpid()
        place = self._place
        if self._keys is not None:
            return _new_client(place, timeout, self._keys.for_obstore)
        if place.access_key or has_environment_keys(place):
            bucket = replace(place, prefix="")
            return _shared_client(bucket, timeout, frozenset(os.environ.items()))
        session = profile_session(place)
        if session is None:
            return _new_client(place, timeout, None)
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  optional

        return _new_client(place, timeout, Boto3CredentialProvider(session))

    @contextmanager
    def _mapped_errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (BaseError, OSError, ValueError) as error:
            place = self._place if self._keys is None else self._keys.shown()
            raise_mapped(place, _failure(verb, key, error), error)

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        place = f"{self.url}/{key}"
        with self._mapped_errors("get", key):
            result = obstore.get(self._client, self._place.full_key(key))
            check_size(result.meta["size"], limit, place=place)
            return whole(result.stream(min_chunk_size=STREAM_CHUNK), limit, place=place)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        with self._mapped_errors("get", key):
            path = self._place.full_key(key)
            result = obstore.get(self._client, path, options={"range": (start, end)})
            yield from result.stream(min_chunk_size=STREAM_CHUNK)

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        check_ranges(ranges, None, place=f"{self.url}/{key}")
        wanted = [(start, end) for start, end in ranges if end > start]
        with self._mapped_errors("get", key):
            received = obstore.get_ranges(
                self._client,
                self._place.full_key(key),
                starts=[start for start, _ in wanted],
                ends=[end for _, end in wanted],
                coalesce=0,  # the default of 1 MiB fetches what nobody asked for
            ) if wanted else []  # fmt: skip
        full = iter(received)
        buffers = [
            read_only(next(full)) if end > start else memoryview(b"") for start, end in ranges
        ]
        check_lengths(buffers, ranges, place=f"{self.url}/{key}")
        return buffers

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        body = read_only(data)
        with self._mapped_errors("put", key):
            obstore.put(
                self._upload_client if body.nbytes > _LARGE else self._client,
                self._place.full_key(key),
                body,
                mode="create" if create else "overwrite",
                use_multipart=body.nbytes > SINGLE_PUT and not create,
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )

    def head(self, key: str) -> ObjectInfo:
        with self._mapped_errors("head", key):
            meta = obstore.head(self._client, self._place.full_key(key))
        return ObjectInfo(key, meta["size"], meta["last_modified"])

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        with self._mapped_errors("list", prefix):
            folder = self._place.full_prefix(prefix)
            for page in obstore.list(self._client, folder or None, chunk_size=1000):
                for meta in page:
                    if meta["path"] != folder:  # an empty mark of it, which other tools leave
                        key = self._place.own_key(meta["path"])
                        yield ObjectInfo(key, meta["size"], meta["last_modified"])

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        with self._mapped_errors("list", prefix):
            folder = self._place.full_prefix(prefix)
            found = obstore.list_with_delimiter(self._client, folder or None)
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self._place.full_key(key) for key in keys]
        with self._mapped_errors("delete", ""):
            if paths:
                obstore.delete(self._client, paths)


@lru_cache(maxsize=_SHARED)
def _shared_client(
    place: S3Place, timeout: float, environment: frozenset[tuple[str, str]]
) -> ObstoreClient:
    """For keys that do not change: one client for all loaders and savers of a place.

    A new one takes 5 ms of CPU for the system's certificates, and each of its connections some.
    obstore reads `environment` (proxies, certificates, keys): for another one, another client.
    """

    def given() -> dict[str, Any]:
        """As options they would be sent with the environment's AWS_SESSION_TOKEN."""
        return {
            "access_key_id": place.access_key,
            "secret_access_key": place.secret_key,
            "token": None,
            "expires_at": None,
        }

    return _new_client(place, timeout, given if place.access_key else None)


def _new_client(place: S3Place, timeout: float, credentials: Any) -> ObstoreClient:
    """`credentials`: what obstore asks for keys; None: it finds them by itself."""
    is_http = (place.endpoint or "").startswith("http://")
    options: dict[str, Any] = {"region": place.region}
    if place.endpoint:
        options["endpoint"] = place.endpoint
    if credentials is not None:
        options["credential_provider"] = credentials
    return ObstoreClient(
        place.bucket,
        # TLS protects what is sent, so its SHA-256 need not: a GB takes 0.28 s of CPU
        # instead of 0.82, and PUTs reach 1.18 of the rate.
        unsigned_payload=not is_http,
        client_options={
            "allow_http": is_http,
            "connect_timeout": timedelta(seconds=place.connect_timeout),
            "read_timeout": timedelta(seconds=timeout),
            "timeout": timedelta(hours=1),
        },
        retry_config={"max_retries": 0},  # `RetriedStore` does
        **options,
    )


def _failure(verb: str, key: str, error: Exception) -> Failure:
    """Read an obstore error: it has no fields, only text."""
    text = str(error)
    if "redirect without LOCATION" in text:
        return Failure(verb, key, status=301)
    code = re.search(r"<Code>(\w+)</Code>", text)
    status = re.search(r"(?:status code: |status: )(\d{3})", text)
    return Failure(
        verb,
        key,
        code=code[1] if code else "",
        status=int(status[1]) if status else (404 if isinstance(error, FileNotFoundError) else 0),
        timed_out="kind: Timeout" in text or "TimedOut" in text,
        unreachable="kind: Connect" in text,
        unresolved="kind: Connect" in text and '"dns error"' in text,
        broken=status is None and "HTTP error" in text,  # the protocol's, of whatever kind
        detail=text.split("\n", 1)[0],
    )
