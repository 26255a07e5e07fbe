"""S3 without a proxy in the way: its GETs are made many at once, by `gets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlsplit

from typing_extensions import Buffer

from ..process import cached_property
from ..ranges import Range
from .base import STREAM_CHUNK, WHOLE, Buffers, check_lengths, check_ranges, check_size
from .gets import Fate, Get, Gets, gets
from .minio_s3 import MinioS3, code_of
from .s3_place import Failure, raise_mapped


class DirectS3(MinioS3):
    """`MinioS3`, but for what gets bytes. An answer that is not plain is asked for again there."""

    _proxy = None

    @cached_property
    def _gets(self) -> Gets:
        place = self._place
        return gets(
            place.server_url, timeout=place.timeout, connect_timeout=place.connect_timeout
        )

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        with self._mapped_errors("get", key):
            get = Get(self._head(key) + b"\r\n", limit)
            self._gets.ask([get])
            self._check("get", key, get)
            return get.body if get.is_granted else super().get(key, limit=limit)

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        """Of a slow server the beginning comes, and the rest is the next request's."""
        with self._mapped_errors("get", key):
            get = _ranged(self._head(key), start, end)
            yield from self._gets.stream(get, STREAM_CHUNK)
            self._check("get", key, get)
            if not get.is_granted:
                yield from super().stream(key, start, end)

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        place = f"{self.url}/{key}"
        check_ranges(ranges, None, place=place)
        wanted = dict.fromkeys(each for each in ranges if each[1] > each[0])
        if not wanted:
            return [memoryview(b"") for _ in ranges]
        with self._mapped_errors("get", key):
            head = self._head(key)
            asked = [_ranged(head, *each) for each in wanted]
            self._gets.ask(asked)
            for get in asked:
                self._check("get", key, get)
        bodies = {get.range: get.body for get in asked if get.is_granted}
        missing = [each for each in wanted if each not in bodies]
        if missing:
            bodies |= zip(missing, super().get_ranges(key, missing), strict=True)
        buffers = [bodies.get(each, memoryview(b"")) for each in ranges]
        check_lengths(buffers, ranges, place=place)
        return buffers

    def _head(self, key: str) -> bytes:
        """What a GET of an object begins with."""
        url = f"{self._bucket_url}/{quote(self._place.full_key(key))}"
        lines = [f"GET {urlsplit(url).path} HTTP/1.1"]
        for name, value in self._signed("GET", url, {}).items():
            if not value.isprintable():
                raise ValueError(f"the header {name} would have a character that none may have")
            lines.append(f"{name}: {value}")
        return "\r\n".join((*lines, "")).encode("latin-1")

    def _check(self, verb: str, key: str, get: Get) -> None:
        """Raise what a GET that was answered, or failed, means; not where it can be made again."""
        if get.fate is Fate.TOO_LARGE:
            check_size(get.nbytes, get.limit, place=f"{self.url}/{key}")
        if get.fate is Fate.LATE:
            failure = Failure(verb, key, timed_out=True)
            raise_mapped(self._shown, failure, TimeoutError("too slow to be waited for"))
        if get.fate is Fate.CUT:
            failure = Failure(verb, key, broken=True)
            raise_mapped(self._shown, failure, ConnectionError("it ended in the answer"))
        if get.fate is Fate.ANSWERED and not get.is_granted:
            code = code_of(bytes(get.body))
            failure = Failure(verb, key, code=code, status=get.status)
            raise_mapped(self._shown, failure, RuntimeError(f"HTTP status {get.status}"))


def _ranged(head: bytes, start: int, end: int) -> Get:
    return Get(b"%bRange: bytes=%d-%d\r\n\r\n" % (head, start, end - 1), end - start, (start, end))
