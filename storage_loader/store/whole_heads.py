"""HTTP answers whose head came whole, for urllib3.

`http.client` takes a head that ends with the connection as if it were whole: what is missing may be
the length of an object, or its last digits.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool


def whole_heads(http: urllib3.PoolManager) -> urllib3.PoolManager:
    """The same; an answer whose head is cut short is a broken connection there."""
    http.pool_classes_by_scheme = {"http": _Pool, "https": _TLSPool}
    return http


class _WholeLines(io.BufferedReader):
    """Each line ends in a line break; the connection's end is an error where one is due."""

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        is_longer = size is not None and len(line) == size
        if not line.endswith(b"\n") and not is_longer:
            raise http.client.RemoteDisconnected("the connection ended in the answer's head")
        return line


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp: io.BufferedReader = _WholeLines(self.fp.detach())


class _Connection(HTTPConnection):
    response_class = _Response


class _TLSConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection
