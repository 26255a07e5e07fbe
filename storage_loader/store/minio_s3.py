"""S3 through urllib3 and the minio client, over connections that do not trust the server.

All that it knows is done here behind a proxy; else what `direct_s3` leaves.
"""

from __future__ import annotations

import errno
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit
from xml.etree.ElementTree import ParseError

import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import (
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.datatypes import Object
from minio.deleteobjects import DeleteObject
from minio.error import MinioException, S3Error
from typing_extensions import Buffer
from urllib3 import BaseHTTPResponse

from ..errors import StoreError
from ..process import cached_property
from ..ranges import Range, are_apart, coalesce
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
)
from .certificates import Refusal
from .guarded_http import connections, proxy_of
from .keys import Keys
from .s3_page import Page
from .s3_place import THREADS, Failure, S3Place, raise_mapped, raise_refused
from .s3_profile import has_environment_keys, profile_session
from .signature import NO_PAYLOAD, UNSIGNED, Signer


class MinioS3(Store):
    """See `Store`; of `create` puts exactly one wins (If-None-Match)."""

    def __init__(self, place: S3Place, keys: Keys | None = None) -> None:
        self.url = place.url
        self._place = place
        self._keys = keys

    @property
    def _proxy(self) -> SplitResult | None:
        return proxy_of(self._place.server_url)

    @cached_property
    def _http(self) -> urllib3.PoolManager:
        place = self._place
        return connections(
            place.server_url,
            self._proxy,
            timeout=place.timeout,
            connect_timeout=place.connect_timeout,
            kept=THREADS,
        )

    @cached_property
    def _minio(self) -> Minio:
        place = self._place
        return _client(place.endpoint, place.region, self._http, self._credentials)

    @cached_property
    def _credentials(self) -> Provider:
        place = self._place
        if place.access_key and place.secret_key:
            return StaticProvider(place.access_key, place.secret_key)
        if self._keys is not None:
            return _KeysProvider(self._keys)
        if has_environment_keys(place):
            return EnvAWSProvider()
        session = profile_session(place)
        return IamAwsProvider() if session is None else _ProfileProvider(session)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="storage_loader-s3")

    @property
    def _shown(self) -> S3Place:
        """The place with the keys that no message may show."""
        return self._place if self._keys is None else self._keys.shown()

    @contextmanager
    def _mapped_errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (MinioException, urllib3.exceptions.HTTPError, *_PARSERS) as error:
            raise_mapped(self._shown, _failure(verb, key, error), error)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        left = end - start
        with self._response(key, offset=start, length=left) as response:
            for piece in response.stream(STREAM_CHUNK, decode_content=False):
                left -= len(piece)
                if left < 0:
                    raise StoreError(f"{self.url}/{key}: more bytes came than were asked for")
                yield piece

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        place = f"{self.url}/{key}"
        with self._response(key) as response:
            size = _length(response)
            if size is None and not response.headers.get("transfer-encoding"):
                raise StoreError(f"{place}: the server does not say how many bytes it has")
            check_size(size or 0, limit, place=place)
            body = _received(response, limit)
        check_size(len(body), limit, place=place)
        return read_only(body)

    @contextmanager
    def _response(self, key: str, offset: int = 0, length: int = 0) -> Iterator[BaseHTTPResponse]:
        """The answer to a GET of `length` bytes from `offset` on; 0 is all."""
        with self._mapped_errors("get", key):
            response = self._minio.get_object(
                self._place.bucket, self._place.full_key(key), offset=offset, length=length
            )
            try:
                if length:
                    _check_range(response, offset, offset + length)
                yield response
            finally:
                response.close()
                response.release_conn()

    def _get_range(self, key: str, start: int, end: int) -> memoryview:
        with self._response(key, offset=start, length=end - start) as response:
            data = read_only(_received(response, end - start))
        check_lengths([data], [(start, end)], place=f"{self.url}/{key}")
        return data

    def _get_each(self, key: str, ranges: Sequence[Range]) -> Buffers:
        """A request for each range."""
        return list(self._threads.map(lambda each: self._get_range(key, *each), ranges))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        if are_apart(ranges):
            return self._get_each(key, ranges)
        check_ranges(ranges, None, place=f"{self.url}/{key}")
        requests = coalesce([r for r in ranges if r[1] > r[0]])
        bodies = self._get_each(key, requests)
        firsts = [first for first, _ in requests]
        buffers = []
        for start, end in ranges:
            if end == start:
                buffers.append(memoryview(b""))
                continue
            request = bisect_right(firsts, start) - 1
            offset = start - firsts[request]
            buffers.append(bodies[request][offset : offset + end - start])
        return buffers

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        """One request, whatever the size: it is there whole, or not at all."""
        # The client's own put_object takes no precondition.
        body = read_only(data)
        with self._mapped_errors("put", key):
            url = self._object_url(key)
            headers = self._signed("PUT", url, payload=self._payload(body), create=create)
            headers["content-length"] = str(body.nbytes)
            self._asked(Failure("put", key), "PUT", url, headers, body)

    def _payload(self, body: memoryview) -> str:
        """What is signed of a body. TLS protects it anyway, and a GB takes 0.5 s of CPU."""
        is_tls = self._place.server_url.startswith("https://")
        return UNSIGNED if is_tls else hashlib.sha256(body).hexdigest()

    def _object_url(self, key: str) -> str:
        return f"{self._bucket_url}/{quote(self._place.full_key(key))}"

    @property
    def _bucket_url(self) -> str:
        return _bucket_url(self._place.endpoint, self._place.region, self._place.bucket)

    def _asked(
        self, request: Failure, method: str, url: str, headers: dict[str, str], body: Any = None
    ) -> BaseHTTPResponse:
        """The answer to a request that is granted; raises what a refusal means.

        A signed URL would do, but urllib3 writes URLs to its log and its errors, so the signature
        goes into a header.
        """
        response = self._http.request(method, url, body=body, headers=headers, redirect=False)
        if response.status >= 300:
            raise_refused(self._shown, request, response.status, response.data)
        return response

    def _signed(
        self, method: str, url: str, *, payload: str = NO_PAYLOAD, create: bool = False
    ) -> dict[str, str]:
        """The headers that let a request in; see `Signer.headers`."""
        parts = urlsplit(url)
        return self._signer(url).headers(
            method, parts.path, parts.query, payload=payload, create=create
        )

    def _signer(self, url: str) -> Signer:
        """What signs a request now."""
        keys = self._credentials.retrieve()
        return Signer(
            urlsplit(url).netloc,
            self._place.region,
            keys.access_key,
            keys.secret_key,
            keys.session_token,
        )

    def head(self, key: str) -> ObjectInfo:
        with self._mapped_errors("head", key):
            stat = self._minio.stat_object(self._place.bucket, self._place.full_key(key))
            return ObjectInfo(key, _size(stat), time_or_never(stat.last_modified))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        own_key = self._place.own_key
        with self._mapped_errors("list", prefix):
            for page in self._pages(prefix):
                for item in page.objects:
                    if not item.name.endswith("/"):  # the mark of a folder, which other tools leave
                        yield ObjectInfo(own_key(item.name), item.nbytes, item.modified)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        with self._mapped_errors("list", prefix):
            pages = self._pages(prefix, delimiter="/")
            inside = len(self._within(prefix))
            names = [folder[inside:].rstrip("/") for page in pages for folder in page.folders]
        return sorted(filter(None, names))  # of the folder itself, nothing is left

    def _within(self, prefix: str) -> str:
        """What the names of all begin with that lies below a folder."""
        folder = self._place.full_prefix(prefix)
        return f"{folder}/" if folder else ""

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[Page]:
        """What lies below a folder; with a delimiter the folders in it, beside its objects.

        No page is asked for twice, so that a listing comes to an end. The minio client would take
        40 ms for a page of 1,000 keys, which takes 7 here.
        """
        within = self._within(prefix)
        query = {"delimiter": delimiter, "encoding-type": "url", "list-type": "2"}
        query |= {"max-keys": "1000", "prefix": within}
        asked: set[str] = set()
        following: str | None = ""
        while following is not None:
            if following in asked:
                raise StoreError(
                    f"list {self.url}/{prefix} at {self._place.server}: the server sent a listing "
                    "whose next page is one that it sent before"
                )
            asked.add(following)
            words = {"continuation-token": following, **query} if following else query
            url = f"{self._bucket_url}?{urlencode(words, safe='', quote_via=quote)}"
            page = Page.parse(self._page(prefix, url))
            for name in (*(item.name for item in page.objects), *page.folders):
                if not name.startswith(within):
                    raise StoreError(f"{self.url}: the server listed {name!r} as one of {within!r}")
            yield page
            following = page.following

    def _page(self, prefix: str, url: str) -> Buffer:
        """The text of a page; raises what a refusal means."""
        return self._asked(Failure("list", prefix), "GET", url, self._signed("GET", url)).data

    def delete(self, keys: Iterable[str]) -> None:
        wanted = (DeleteObject(self._place.full_key(key)) for key in keys)
        with self._mapped_errors("delete", ""):
            errors = list(self._minio.remove_objects(self._place.bucket, wanted))
        if errors:
            first = errors[0]
            key, code = self._place.own_key(first.name or ""), first.code or ""
            failure = Failure("delete", key, code=code, status=_STATUS.get(code, 0))
            raise_mapped(self._shown, failure, RuntimeError(first.message or code))

    def prepare(self) -> None:
        with self._mapped_errors("create bucket", ""):
            try:
                self._minio.make_bucket(self._place.bucket, location=self._place.region)
            except S3Error as error:
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise


class _KeysProvider(Provider):
    """Keys of `DataConfig(credentials=...)`; asked before each request."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def retrieve(self) -> Credentials:
        keys = self._keys.current()
        return Credentials(keys.access_key, keys.secret_key, keys.token)


class _ProfileProvider(Provider):
    """boto3 renews the keys; asked before each request."""

    def __init__(self, session: Any) -> None:
        self._keys = session.get_credentials()

    def retrieve(self) -> Credentials:
        frozen = self._keys.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def _client(
    endpoint: str | None, region: str, http: urllib3.PoolManager, credentials: Provider | None
) -> Minio:
    parts = urlsplit(endpoint or "https://s3.amazonaws.com")
    return Minio(
        parts.netloc,
        secure=parts.scheme == "https",
        region=region,
        http_client=http,
        credentials=credentials,
    )


@lru_cache(maxsize=8)
def _bucket_url(endpoint: str | None, region: str, bucket: str) -> str:
    """Where the bucket is asked for: which host of AWS that is, the client knows."""
    client = _client(endpoint, region, urllib3.PoolManager(), None)
    return client.get_presigned_url("GET", bucket, "x").removesuffix("/x")  # without keys: unsigned


def _length(response: BaseHTTPResponse) -> int | None:
    """The body's length; None where the head does not say it."""
    text = response.headers.get("content-length")
    if text is None or response.headers.get("transfer-encoding"):
        return None
    if not re.fullmatch("[0-9]{1,20}", text):
        raise ValueError(f"an answer of {text[:40]!r} bytes")
    return int(text)


def _check_range(response: BaseHTTPResponse, start: int, end: int) -> None:
    """Raise for an answer with other bytes than those asked for; there may be fewer of them."""
    said = re.match("bytes ([0-9]{1,18})-([0-9]{1,18})/", response.headers.get("content-range", ""))
    is_part = said is not None and int(said[1]) == start and int(said[2]) < end
    if not (is_part if response.status == 206 else start == 0):
        raise ValueError(f"the server sent other bytes than {start} to {end}")


def _received(response: BaseHTTPResponse, limit: int) -> bytearray:
    """The body; where it has more than `limit` bytes, a few more than that."""
    body = bytearray()
    for piece in response.stream(STREAM_CHUNK, decode_content=False):
        body += piece
        if len(body) > limit:
            break
    return body


def _size(item: Object) -> int:
    if item.size is None or item.size < 0:
        raise ValueError(f"an object of {item.size} bytes")
    return item.size


def time_or_never(value: datetime | None) -> datetime:
    """When an object was stored; where the server does not say it, long ago."""
    return value or datetime.fromtimestamp(0, timezone.utc)


def _failure(verb: str, key: str, error: Exception) -> Failure:
    if isinstance(error, S3Error):
        code = error.code or ""
        status = _STATUS.get(code, 0) or getattr(error.response, "status", 0)
        return Failure(verb, key, code=code, status=status, detail=str(error.message))
    status = re.search(r"(?:Response code:|HTTP status code) (\d{3})", str(error))
    reason = getattr(error, "reason", None) or error
    return Failure(
        verb,
        key,
        status=int(status[1]) if status else 0,
        timed_out=isinstance(reason, urllib3.exceptions.TimeoutError)
        and not isinstance(reason, urllib3.exceptions.ConnectTimeoutError),
        unreachable=isinstance(
            reason,
            (
                urllib3.exceptions.NewConnectionError,
                urllib3.exceptions.ConnectTimeoutError,
                urllib3.exceptions.SSLError,
            ),
        ),
        no_files=any(
            isinstance(one, OSError) and one.errno in (errno.EMFILE, errno.ENFILE)
            for one in (reason, reason.__cause__)
        ),
        unresolved=isinstance(reason, urllib3.exceptions.NameResolutionError),
        broken=isinstance(reason, urllib3.exceptions.ProtocolError),
        refusal=Refusal.by_python(error),
        detail=str(error),
    )


_STATUS = {"NoSuchKey": 404, "AccessDenied": 403, "PreconditionFailed": 412}

# What the client raises where an answer is none that it knows.
_PARSERS = (
    ParseError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    MemoryError,
    RecursionError,
    OSError,
)
