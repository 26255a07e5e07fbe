"""S3 through obstore: in Rust, outside the GIL, it moves the bytes.

The minio client does the rest. obstore follows redirects, and reads a refusal whole, whatever its
length: `_NOWHERE` ends the first, nothing but time the second (docs/security.md).
Its runtime does not survive a fork.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache, partial
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as ObstoreClient
from typing_extensions import Buffer

from ..errors import StoreError
from ..process import cached_property
from ..ranges import Range
from .base import (
    STREAM_CHUNK,
    WHOLE,
    Buffers,
    ObjectInfo,
    check_lengths,
    check_ranges,
    check_size,
    read_only,
    whole,
)
from .certificates import Refusal
from .guarded_http import SLOWEST
from .interruptible import interruptible
from .minio_s3 import MinioS3
from .s3_place import Failure, S3Place, raise_mapped
from .s3_profile import has_environment_keys, profile_session

SINGLE_PUT = 64 * 2**20  # one PUT up to here beats parts by 1.14; above, 4 parts of 16 MiB at once
PART = 16 * 2**20
PARTS_AT_ONCE = 4
_LARGE = 2**20  # bytes of a body that takes its time
UPLOAD_TIME = 64.0  # seconds more than the timeout without progress: obstore sees none in sending
BODY_TIME = 16.0  # seconds more than the timeout for one up to that size, so at least 64 KiB/s
_NOWHERE = "http://127.0.0.1:0"  # nothing can listen there
_SHARED = 8  # clients that are kept for others

_first_use_pid: int | None = None


def usable() -> bool:
    """False in a process forked after obstore ran: its runtime would wait forever."""
    return _first_use_pid in (None, os.getpid())


class ObstoreS3(MinioS3):
    """`MinioS3`, but for what moves bytes; where no proxy is in the way."""

    _proxy = None

    @cached_property
    def _client(self) -> ObstoreClient:
        return self._connected(self._place.timeout, BODY_TIME)

    @cached_property
    def _client_for_large(self) -> ObstoreClient:
        return self._connected(self._place.timeout, SINGLE_PUT / SLOWEST)

    @cached_property
    def _upload_client(self) -> ObstoreClient:
        """For large bodies: obstore's timeout runs while one is being sent, progress or not."""
        return self._connected(self._place.timeout + UPLOAD_TIME, SINGLE_PUT / SLOWEST)

    def _connected(self, timeout: float, body_time: float) -> ObstoreClient:
        """A client whose requests are given up after so many seconds without progress, and in any
        case `body_time` later: a body that drips makes progress for ever.
        """
        global _first_use_pid  # noqa: PLW0603  what `usable` asks about is the process
        _first_use_pid = os.getpid()
        place = self._place
        seconds = timeout + body_time
        if self._keys is not None:
            return _new_client(place, timeout, seconds, self._keys.for_obstore)
        if place.access_key or has_environment_keys(place):
            bucket = replace(place, prefix="")
            return _shared_client(bucket, timeout, seconds, frozenset(os.environ.items()))
        session = profile_session(place)
        if session is None:
            return _new_client(place, timeout, seconds, self._role_keys)
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  optional

        return _new_client(place, timeout, seconds, Boto3CredentialProvider(session))

    def _role_keys(self) -> dict[str, Any]:
        """Those of the machine's role: obstore's own way to them would end at `_NOWHERE`."""
        keys = self._credentials.retrieve()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.session_token,
            "expires_at": datetime.now(timezone.utc),
        }

    @contextmanager
    def _mapped_panics(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (BaseError, OSError, ValueError, OverflowError, MemoryError) as error:
            raise_mapped(self._shown, _failure(verb, key, error), error)
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":
                raise
            # obstore's own code gave up on what the server sent.
            reason = RuntimeError(str(error))
            raise_mapped(self._shown, Failure(verb, key, detail=str(error)), reason)

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        with self._mapped_panics("get", key):
            return interruptible(partial(self._get, key, limit))

    def _get(self, key: str, limit: int) -> memoryview:
        place, path = f"{self.url}/{key}", self._place.full_key(key)
        result = obstore.get(self._client, path)
        size = result.meta["size"]
        check_size(size, limit, place=place)
        if size > _LARGE:
            result = obstore.get(self._client_for_large, path)
        pieces = iter(result.stream(min_chunk_size=STREAM_CHUNK))
        first = next(pieces, b"")
        if memoryview(first).nbytes == size:  # a small object's, which the server says is all
            return read_only(first)
        return whole(chain([first], pieces), limit, place=place)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        """Of a slow server the beginning comes, and the rest is the next request's."""
        place = f"{self.url}/{key}"
        left = end - start
        with self._mapped_panics("get", key):
            path = self._place.full_key(key)
            options: Any = {"range": (start, end)}
            result = interruptible(partial(obstore.get, self._client, path, options=options))
            pieces = iter(result.stream(min_chunk_size=STREAM_CHUNK))
            while (piece := interruptible(partial(next, pieces, None))) is not None:
                left -= memoryview(piece).nbytes
                if left < 0:
                    raise StoreError(f"{place}: more bytes came than were asked for")
                yield piece

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        check_ranges(ranges, None, place=f"{self.url}/{key}")
        wanted = [(start, end) for start, end in ranges if end > start]
        is_small = all(end - start <= _LARGE for start, end in wanted)
        with self._mapped_panics("get", key):
            received = interruptible(
                partial(
                    obstore.get_ranges,
                    self._client if is_small else self._client_for_large,
                    self._place.full_key(key),
                    starts=[start for start, _ in wanted],
                    ends=[end for _, end in wanted],
                    coalesce=0,  # the default of 1 MiB fetches what nobody asked for
                )
            ) if wanted else []  # fmt: skip
        full = iter(received)
        buffers = [
            read_only(next(full)) if end > start else memoryview(b"") for start, end in ranges
        ]
        check_lengths(buffers, ranges, place=f"{self.url}/{key}")
        return buffers

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        body = read_only(data)
        with self._mapped_panics("put", key):
            interruptible(
                partial(
                    obstore.put,
                    self._upload_client if body.nbytes > _LARGE else self._client,
                    self._place.full_key(key),
                    body,
                    mode="create" if create else "overwrite",
                    use_multipart=body.nbytes > SINGLE_PUT and not create,
                    chunk_size=PART,
                    max_concurrency=PARTS_AT_ONCE,
                )
            )

    def head(self, key: str) -> ObjectInfo:
        with self._mapped_panics("head", key):
            path = self._place.full_key(key)
            meta = interruptible(partial(obstore.head, self._client, path))
        return ObjectInfo(key, meta["size"], meta["last_modified"])


@lru_cache(maxsize=_SHARED)
def _shared_client(
    place: S3Place, timeout: float, seconds: float, environment: frozenset[tuple[str, str]]
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

    return _new_client(place, timeout, seconds, given if place.access_key else None)


def _new_client(place: S3Place, timeout: float, seconds: float, credentials: Any) -> ObstoreClient:
    """`seconds`: for a whole request. `credentials`: what obstore asks for keys; None: it looks
    into the environment.
    """
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
            "timeout": timedelta(seconds=seconds),
            # It follows redirects, and nothing switches that off. So what is not the server itself
            # is asked for by way of a proxy that is not there.
            "proxy_url": _NOWHERE,
            "proxy_excludes": _host_of(place),
        },
        retry_config={"max_retries": 0},  # `RetriedStore` does
        **options,
    )


def _host_of(place: S3Place) -> str:
    return (urlsplit(place.server_url).hostname or "").strip("[]")


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
        refusal=Refusal.by_webpki(text) if "kind: Connect" in text else None,
        detail=text.split("\n", 1)[0],
    )
