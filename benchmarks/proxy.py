"""A relay before an S3 server that counts what the server is asked for and what it sends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

CHUNK = 2**20


@dataclass
class Traffic:
    """Answered requests by their first line, and bytes of bodies that the server sent."""

    requests: list[str] = field(default_factory=list)
    body_nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """Count from zero."""
        with self.lock:
            self.requests.clear()
            self.body_nbytes = 0


class _Messages:
    """Follows the HTTP/1.1 messages of one direction; bodies need a Content-Length or chunks."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.body_nbytes = 0
        self._head = b""
        self._left = 0  # of a body
        self._chunked = False
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take what was received next."""
        while data:
            if self._left:
                taken = min(self._left, len(data))
                self.body_nbytes += taken
                self._left -= taken
                data = data[taken:]
            elif self._chunked:
                data = self._feed_chunked(data)
            else:
                data = self._feed_head(data)

    def _feed_head(self, data: bytes) -> bytes:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return b""
        self._head = b""
        first, *fields = head.decode("latin-1").split("\r\n")
        self.heads.append(first)
        values = dict(line.lower().split(":", 1) for line in fields)
        self._left = int(values.get("content-length", "0"))
        self._chunked = "chunked" in values.get("transfer-encoding", "")
        return rest

    def _feed_chunked(self, data: bytes) -> bytes:
        """Good for small answers only (lists, errors): it looks for the end in everything."""
        self._tail += data
        body, end, rest = self._tail.partition(b"0\r\n\r\n")
        if not end:
            return b""
        self.body_nbytes += len(body)
        self._tail, self._chunked = b"", False
        return rest


@contextlib.contextmanager
def counting_proxy(endpoint: str) -> Iterator[tuple[str, Traffic]]:
    """An endpoint on loopback that relays to `endpoint`, and its traffic."""
    url = urlsplit(endpoint)
    assert url.hostname is not None
    assert url.scheme == "http", "bytes of a TLS connection cannot be read"
    target = url.hostname, url.port or 80
    traffic = Traffic()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_accept, args=(server, target, traffic), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", traffic
        server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, target: tuple[str, int], traffic: Traffic) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:  # the proxy ended
            return
        upstream = socket.create_connection(target)
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink, is_request in ((client, upstream, True), (upstream, client, False)):
            arguments = (source, sink, is_request, traffic)
            threading.Thread(target=_relay, args=arguments, daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, is_request: bool, traffic: Traffic) -> None:
    messages = _Messages()
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            messages.feed(data)
            with traffic.lock:
                if is_request:
                    traffic.requests += messages.heads
                else:
                    traffic.body_nbytes += messages.body_nbytes
            messages.heads.clear()
            messages.body_nbytes = 0
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
