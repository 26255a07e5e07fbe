"""S3 without a proxy in the way: what is small, or asked for in ranges, goes many at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

from typing_extensions import Buffer

from ..errors import ObjectNotFoundError, StoreError
from ..process import cached_property
from ..ranges import Range, are_apart
from .base import WHOLE, Buffers, Errors, ObjectInfo, check_lengths, check_size, read_only
from .exchange import Exchange, Fate
from .exchanges import Exchanges, exchanges
from .guarded_http import MOST, REFUSAL
from .minio_s3 import MinioS3, time_or_never
from .s3_place import THREADS, Failure, raise_mapped, raise_refused
from .signature import Signer

AT_ONCE = 10  # ranges of one object; 16 are no faster
_TO_ASK = (Fate.UNASKED, Fate.STRANGE)  # again, by who reads all of HTTP
_NOT_STORED = (400, 401, 403, 404, 409, 412)  # what was put is not there: put again to hear why
_SIGNED = 60.0  # seconds in which requests for one object are signed once; S3 takes 15 minutes
_SMALL = 2**16  # bytes of a body that is sent with its request's head


_listing_in_chunks: set[str] = set()  # servers found to, as AWS and Ceph do; MinIO does not


class DirectS3(MinioS3):
    """`MinioS3`, which is asked where an answer is not plain: it reads the whole of HTTP."""

    _proxy = None

    @cached_property
    def _exchanges(self) -> Exchanges:
        place = self._place
        return exchanges(
            place.server_url, timeout=place.timeout, connect_timeout=place.connect_timeout
        )

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        with self._mapped_errors("get", key):
            exchange = self._whole(key, limit)
            self._exchanges.make([exchange], 1)
            body = self._body(key, exchange)
            return super().get(key, limit=limit) if body is None else body

    def find_some(
        self, keys: Sequence[str], found: dict[int, memoryview | None], *, limit: int = WHOLE
    ) -> Errors:
        errors: Errors = []
        wanted: dict[int, Exchange] = {}
        try:
            for place, key in enumerate(keys):
                if place not in found:
                    with self._mapped_errors("get", key):
                        wanted[place] = self._whole(key, limit)
            self._make_all(wanted.values())
        except StoreError as error:
            return [error]
        for place, exchange in wanted.items():
            try:
                body = self._body(keys[place], exchange)
            except ObjectNotFoundError:  # noqa: PERF203  each has its own
                found[place] = None
            except StoreError as error:
                errors.append(error)
            else:
                if body is not None:
                    found[place] = body
        return errors

    def _get_each(self, key: str, ranges: Sequence[Range]) -> Buffers:
        with self._mapped_errors("get", key):
            wanted = self._ranges(key, ranges)
            self._exchanges.make(wanted, AT_ONCE)
            bodies = self._bodies(key, wanted)
            return super()._get_each(key, ranges) if bodies is None else bodies

    def get_some(
        self, requests: Sequence[tuple[str, Sequence[Range]]], received: dict[int, Buffers]
    ) -> Errors:
        errors: Errors = []
        wanted: dict[int, list[Exchange]] = {}
        try:
            for place, (key, ranges) in enumerate(requests):
                if place not in received and are_apart(ranges):
                    with self._mapped_errors("get", key):
                        wanted[place] = self._ranges(key, ranges)
            self._make_all(exchange for some in wanted.values() for exchange in some)
        except StoreError as error:
            return [error]
        for place, some in wanted.items():
            try:
                bodies = self._bodies(requests[place][0], some)
            except StoreError as error:  # noqa: PERF203  each has its own
                errors.append(error)
            else:
                if bodies is not None:
                    received[place] = bodies
        return errors

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        body = read_only(data)
        if body.nbytes <= _SMALL:
            with self._mapped_errors("put", key):
                head = self._head("PUT", key, payload=self._payload(body), create=create)
                length = b"content-length: %d\r\n\r\n" % body.nbytes
                exchange = Exchange(b"".join((head, length, body)), REFUSAL)
                self._exchanges.make([exchange], 1)
                if 200 <= exchange.status < 300 and exchange.fate in (Fate.ANSWERED, Fate.STRANGE):
                    return
                if exchange.fate not in _TO_ASK:
                    self._raise("put", key, exchange)
                # Of an answer that is not plain only the status is known.
                is_stored = exchange.fate is Fate.STRANGE and exchange.status not in _NOT_STORED
                if create and is_stored:  # perhaps: to put again would find this one
                    self._raise("put", key, exchange)
        super().put(key, body, create=create)

    def head(self, key: str) -> ObjectInfo:
        with self._mapped_errors("head", key):
            request = self._head("HEAD", key) + b"\r\n"
            exchange = Exchange(request, sys.maxsize)
            self._exchanges.make([exchange], 1)
            if exchange.fate in _TO_ASK:
                return super().head(key)
            if not exchange.is_granted:
                self._raise("head", key, exchange)
            when = parsedate_to_datetime(exchange.modified) if exchange.modified else None
            return ObjectInfo(key, exchange.nbytes, time_or_never(when))

    def _page(self, prefix: str, url: str) -> Buffer:
        server = self._place.server_url
        if self._place.endpoint is not None and server not in _listing_in_chunks:
            parts = urlsplit(url)
            request = _head(self._signer(url), "GET", parts.path, parts.query) + b"\r\n"
            exchange = Exchange(request, MOST)
            self._exchanges.make([exchange], 1)
            if exchange.is_granted:
                return exchange.body
            if exchange.fate is Fate.STRANGE:
                _listing_in_chunks.add(server)
            elif exchange.fate not in (Fate.UNASKED, Fate.TOO_LARGE):
                self._raise("list", prefix, exchange)
        return super()._page(prefix, url)

    def _make_all(self, wanted: Iterable[Exchange]) -> None:
        with self._mapped_errors("get", ""):
            self._exchanges.make([*wanted], THREADS)

    def _whole(self, key: str, limit: int) -> Exchange:
        return Exchange(self._asking(key) + b"\r\n", limit)

    def _ranges(self, key: str, ranges: Sequence[Range]) -> list[Exchange]:
        head = self._asking(key)
        return [
            Exchange(
                b"%brange: bytes=%d-%d\r\n\r\n" % (head, start, end - 1), end - start, (start, end)
            )
            for start, end in ranges
        ]

    def _asking(self, key: str) -> bytes:
        """What each request for an object's bytes begins with."""
        url = self._object_url(key)
        return _signed_for_now(self._signer(url), urlsplit(url).path, time.time() // _SIGNED)

    def _head(self, method: str, key: str, **words: Any) -> bytes:
        """What another request begins with; `words`: see `Signer.headers`."""
        url = self._object_url(key)
        return _head(self._signer(url), method, urlsplit(url).path, **words)

    def _bodies(self, key: str, made: Sequence[Exchange]) -> Buffers | None:
        """See `_body`; None where one is."""
        bodies = [body for each in made if (body := self._body(key, each)) is not None]
        if len(bodies) < len(made):
            return None
        ranges = [each.range for each in made if each.range is not None]
        check_lengths(bodies, ranges, place=f"{self.url}/{key}")
        return bodies

    def _body(self, key: str, exchange: Exchange) -> memoryview | None:
        """What came; None: it is to be asked for elsewhere. Raises what else a failure means."""
        if exchange.is_granted:
            return exchange.body
        if exchange.fate in _TO_ASK:
            return None
        if exchange.fate is Fate.TOO_LARGE:
            check_size(exchange.nbytes, exchange.limit, place=f"{self.url}/{key}")
        return self._raise("get", key, exchange)

    def _raise(self, verb: str, key: str, exchange: Exchange) -> NoReturn:
        if exchange.status >= 300:
            raise_refused(self._shown, Failure(verb, key), exchange.status, bytes(exchange.body))
        is_late = exchange.fate is Fate.LATE
        is_unreached = exchange.fate is Fate.UNREACHED
        failure = Failure(
            verb,
            key,
            timed_out=is_late,
            unreachable=is_unreached,
            broken=not is_late and not is_unreached,
        )
        raise_mapped(self._shown, failure, RuntimeError(f"the exchange was {exchange.fate.value}"))


@lru_cache(maxsize=4096)
def _signed_for_now(signer: Signer, path: str, when: float) -> bytes:
    """`when` makes a new one in time."""
    return _head(signer, "GET", path)


def _head(signer: Signer, method: str, path: str, query: str = "", **words: Any) -> bytes:
    target = f"{path}?{query}" if query else path
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in signer.headers(method, path, query, **words).items():
        if not value.isprintable():
            raise ValueError(f"the header {name} would have a character that none may have")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "")).encode("latin-1")
