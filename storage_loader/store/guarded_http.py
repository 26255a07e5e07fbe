"""urllib3 for servers that are not trusted: all that an answer may cost has a bound.

Heads have at most 64 KiB, interim answers included, and end in a line break: `http.client` would
take one that ends with the connection as whole, without an object's length or its last digits.
Bodies that are read whole have a bound, and are taken as they are sent, never unpacked. No redirect
is followed, so nothing is sent to another place. An exchange that gets nowhere ends: see `_Paced`.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import struct
import threading
import time
from functools import lru_cache, partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers, wait_for_read

from ..interruptible import interruptible
from .certificates import named_file, shared_context
from .quick_ack import quick_ack

SLOWEST = 2**14  # bytes a second: a transfer that stays slower than this is as good as none

_HEAD = 2**16  # bytes
_LINE = 2**10  # bytes of a line between chunks
_LINES = 100  # lines in a row, where chunks have one each
REFUSAL = 2**16  # bytes of a refusal's body that are read
MOST = 2**23  # bytes of another: a page of 1,000 keys of 1 KiB has 6.2 MB where all is escaped
_PIECE = 2**16
_SENT = 2**18  # bytes that are handed to TLS at once
_PAUSE = 1.0  # seconds in which nothing is taken, until the server's answer is looked for
ON_THE_WAY = 64.0  # seconds more for an answer, at most, after a large body
_PLACES = 8  # servers whose connections are kept


def connections(
    server_url: str,
    proxy: SplitResult | None,
    *,
    timeout: float,
    connect_timeout: float,
    kept: int,
) -> urllib3.PoolManager:
    """The connections to a server, by way of a proxy.

    One set for all who ask in this process: keys are in requests, not in connections.
    """
    return _connections(
        server_url, timeout, connect_timeout, kept, named_file(), proxy, os.getpid()
    )


@lru_cache(maxsize=_PLACES)
def _connections(
    server_url: str,
    timeout: float,
    connect_timeout: float,
    kept: int,
    trusted: str | None,
    proxy: SplitResult | None,
    process: int,
) -> urllib3.PoolManager:
    """`process`: a fork's connections are its own."""
    settings: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=connect_timeout, read=timeout),
        "maxsize": kept,
        "retries": urllib3.Retry(0, raise_on_status=False),  # `RetriedStore` does
    }
    if server_url.startswith("https://"):
        settings["ssl_context"] = shared_context(trusted)
    manager: urllib3.PoolManager
    if proxy is None:
        manager = _Direct(**settings)
    else:
        user = (
            f"{unquote(proxy.username)}:{unquote(proxy.password or '')}" if proxy.username else ""
        )
        manager = _Proxied(
            f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}",
            proxy_headers=make_headers(proxy_basic_auth=user) if user else None,
            **settings,
        )
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
    return manager


def proxy_of(server_url: str) -> SplitResult | None:
    """The proxy that the environment names for a server. Looking takes 80 us."""
    parts = urlsplit(server_url)
    proxies = getproxies()
    url = proxies.get(parts.scheme) or proxies.get("all")
    if not url or proxy_bypass(parts.hostname or ""):
        return None
    return urlsplit(url if "://" in url else f"http://{url}")


class TooMuchError(HTTPError):
    """An answer has more bytes than its reader allows."""


class _Guarded(urllib3.PoolManager):
    """An answer's body is read here, but for one that is granted and asked for in pieces."""

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = False, **options: Any
    ) -> BaseHTTPResponse:
        in_pieces = options.pop("preload_content", True) is False
        options |= {"redirect": False, "preload_content": False, "decode_content": False}
        ask = partial(super().urlopen, method, url, **options)
        if in_pieces:
            response = ask()
            if response.status < 300:
                return response
            body = _body(response)
        else:
            # A Ctrl-C inside urllib3 could lose a socket that no pool knows yet.
            response, body = interruptible(lambda: _with_body(ask()))
        headers = response.headers.copy()
        headers.discard("Transfer-Encoding")
        return urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,  # a HEAD's Content-Length is the object's
            status=response.status,
            reason=response.reason,
            decode_content=False,
            enforce_content_length=False,
            request_method=method,
        )

    def clear(self) -> None:
        """Nothing: a minio client calls this when it is freed, and others use the connections."""


class _Direct(_Guarded):
    pass


class _Proxied(_Guarded, urllib3.ProxyManager):
    pass


def _with_body(response: BaseHTTPResponse) -> tuple[BaseHTTPResponse, bytes]:
    return response, _body(response)


def _body(response: BaseHTTPResponse) -> bytes:
    """All of it; of a refusal what comes in time, and at most the beginning."""
    is_refusal = response.status >= 300
    body = bytearray()
    is_over = False
    try:
        for piece in response.stream(_PIECE, decode_content=False):
            body += piece
            if len(body) > (REFUSAL if is_refusal else MOST):
                break
        else:
            is_over = True
    except (HTTPError, OSError):
        if not is_refusal:
            raise
    finally:
        if not is_over:
            response.close()
        response.release_conn()
    if not is_refusal and not is_over:
        raise TooMuchError(f"the server sent an answer of more than {MOST} bytes")
    return bytes(body[:REFUSAL] if is_refusal else body)


class _Paced(io.RawIOBase):
    """What comes over a socket, in the socket's timeout and one second more for each `SLOWEST`.

    The timeout alone would begin again with each byte.
    """

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._socket = sock
        self._timeout = sock.gettimeout()
        self._is_set = 0.0  # seconds that a call waits
        self._has_begun = False  # something came
        self._end = time.monotonic() + (self._timeout or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._timeout is not None:
            left = min(self._end - time.monotonic(), self._timeout)
            if left <= 0:
                raise TimeoutError("it is too slow to be waited for")
            if left != self._is_set:
                _set_timeout(self._socket, left)
                self._is_set = left
        if self._has_begun:
            quick_ack(self._socket)
        count = self._raw.readinto(buffer)
        if count is None:
            raise TimeoutError("nothing came in time")
        self._has_begun = True
        self._end += count / SLOWEST
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _set_timeout(sock: socket.socket, seconds: float) -> None:
    """How long a call waits.

    Python's own timeouts take two calls of the system for one, and two waits for the other threads
    of Python; those of the system end in `BlockingIOError`, or in None where that is read.
    """
    # After a signal, which comes to the main thread, the system's would begin again.
    is_main = threading.current_thread() is threading.main_thread()
    if not _is_plain(sock) or is_main:
        sock.settimeout(seconds)
        return
    value = struct.pack("ll", *divmod(max(1, int(seconds * 1e6)), 10**6))  # 0 is for ever
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def _is_plain(sock: socket.socket) -> bool:
    """Whether what comes and goes is no one's but the system's: TLS has words of its own."""
    return type(sock) is socket.socket


class _BoundedLines(io.BufferedReader):
    """Lines end, each in a line break: in a head, and between chunks."""

    is_in_head = True
    _head = 0
    _lines = 0

    def readline(self, size: int | None = -1) -> bytes:
        limit = _HEAD + 1 - self._head if self.is_in_head else _LINE
        if size is not None and size >= 0:
            limit = min(limit, size)
        line = super().readline(limit)
        self._head += len(line)
        self._lines += 1
        if len(line) == limit or (self._lines > _LINES and not self.is_in_head):
            raise http.client.HTTPException("an answer whose head, or a chunk's, has no end")
        if not line.endswith(b"\n"):
            raise http.client.RemoteDisconnected("the connection ended in the answer's head")
        return line

    def read(self, size: int | None = -1) -> bytes:
        self._lines = 0
        if size is None or not 0 <= size <= MOST:
            raise http.client.HTTPException(f"an answer, or a chunk, of {size} bytes")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    is_early = False  # it comes before the request was sent

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp: _BoundedLines = _BoundedLines(_Paced(self.fp.detach(), sock))

    def begin(self) -> None:
        """Receive the head."""
        lines = self.fp
        super().begin()
        lines.is_in_head = False
        if self.is_early:
            self.will_close = True  # the rest of the request would be the next one
            if self.status < 300:
                raise http.client.HTTPException("the server took a body that it does not have")


class _Connection(HTTPConnection):
    """A body, given as a memoryview, has the time that `_Paced` gives to an answer."""

    patience: float  # seconds
    _time_on_the_way = 0.0  # seconds until the server has what was sent last
    _is_cut = False  # not all was sent

    def send(self, data: Any) -> None:
        if not isinstance(data, memoryview):
            super().send(data)
            return
        assert self.sock is not None
        left, end = data, time.monotonic() + self.patience
        while left and not self._is_cut:
            if time.monotonic() > end:
                raise TimeoutError("it takes too long to send")
            try:
                count = self._taken(self.sock, left)
            except (BrokenPipeError, ConnectionResetError):  # the answer may say why
                self._is_cut = True
                break
            end += count / SLOWEST
            left = left[count:]
        if data.nbytes > SLOWEST:
            self._time_on_the_way = min(ON_THE_WAY, data.nbytes / SLOWEST)

    def _taken(self, sock: socket.socket, data: memoryview) -> int:
        """How many bytes a socket takes without a pause."""
        if not _is_plain(sock):
            sock.settimeout(self.patience)
            return sock.send(data[: max(1, min(_SENT, int(self.patience * SLOWEST)))])
        _set_timeout(sock, min(_PAUSE, self.patience))
        try:
            return sock.send(data)
        except (BlockingIOError, TimeoutError):
            self._is_cut = wait_for_read(sock, 0)  # the server answers without having all
            return 0

    def getresponse(self) -> Any:
        if self.timeout is not None:
            self.timeout += self._time_on_the_way
        self._time_on_the_way = 0.0
        return super().getresponse()

    def response_class(self, sock: socket.socket, *args: Any, **kwargs: Any) -> _Response:  # type: ignore[override]
        response = _Response(sock, *args, **kwargs)
        response.is_early, self._is_cut = self._is_cut, False
        return response


class _TLSConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection

    def _new_conn(self) -> Any:
        return _patient(super()._new_conn(), self.timeout)


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection

    def _new_conn(self) -> Any:
        return _patient(super()._new_conn(), self.timeout)


def _patient(connection: Any, timeout: urllib3.Timeout) -> Any:
    connection.patience = timeout.read_timeout
    return connection
