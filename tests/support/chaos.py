"""A proxy before a real S3 server that does to it, by a seeded plan, what networks and servers do.

It speaks HTTP/1.1 as far as S3 clients do: bodies have a Content-Length, or come in chunks.
Requests go on unchanged, the Host header too, so that signatures stay valid.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

KINDS = (
    "delay",  # the answer comes late
    "drop",  # the connection ends, the request was not forwarded
    "reset",  # the same by a TCP reset
    "500",  # answered without forwarding, as the next two
    "503",
    "429",
    "lost answer",  # forwarded and done; the connection ends before the answer
    "truncate",  # the connection ends in the middle of the answer
    "stall",  # nothing comes after the middle of the answer, the connection stays
    "flip",  # one bit of an object's bytes is wrong
)
_IN_A_ROW = 3  # faults that one request meets at most, so that a new store gets its first answer
_CODES = {"500": "InternalError", "503": "SlowDown", "429": "TooManyRequests"}


@dataclass
class Message:
    """A request or an answer: its head as it came, and its body as it came."""

    head: bytes
    body: bytes

    @property
    def first_line(self) -> list[str]:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    def field(self, name: str) -> str:
        """A header's value in lower case; "" where it is missing."""
        return _field(self.head, name)


def _field(head: bytes, name: str) -> str:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        found, _, value = line.partition(":")
        if found.lower() == name:
            return value.strip().lower()
    return ""


class _Reader:
    """Messages from a socket; None where the other end closed before one began."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")

    def message(self, *, has_body: bool = True) -> Message | None:
        lines = []
        while (line := self._file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        if not lines or not line:
            return None
        head = b"".join(lines) + line
        if not has_body:
            return Message(head, b"")
        if "chunked" in _field(head, "transfer-encoding"):
            return Message(head, self._chunks())
        return Message(head, self._file.read(int(_field(head, "content-length") or 0)))

    def _chunks(self) -> bytes:
        parts = []
        while True:
            size = self._file.readline()
            parts.append(size)
            if int(size.split(b";")[0], 16) == 0:
                break
            parts.append(self._file.read(int(size.split(b";")[0], 16) + 2))
        parts.append(self._file.readline())
        return b"".join(parts)

    def close(self) -> None:
        self._file.close()


@dataclass
class Faults:
    """What was done so far, and what became of it. Read it when nothing runs."""

    requests: int = 0
    done: Counter[str] = field(default_factory=Counter)
    asked_again: Counter[str] = field(default_factory=Counter)  # and answered whole, by kind

    @property
    def total(self) -> int:
        return self.done.total()


class ChaosProxy:
    """`endpoint` relays to a server; `rate` of the requests meet one of `kinds`, in even shares.

    Nothing happens to requests while `rate` is 0. `down` closes the door and every connection,
    `up` opens it again at the same address.
    """

    def __init__(
        self, server: str, *, seed: int = 0, rate: float = 0.0, kinds: tuple[str, ...] = KINDS
    ) -> None:
        url = urlsplit(server)
        assert url.scheme == "http"
        assert url.hostname is not None
        self._target = url.hostname, url.port or 80
        self.rate = rate
        self.kinds = kinds
        self.faults = Faults()
        self._random = random.Random(seed)
        self._queue: list[str] = []
        self._in_a_row: Counter[str] = Counter()
        self._open: dict[str, list[str]] = {}  # faults of a request that no answer followed yet
        self._flipped: set[str] = set()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()  # none of before `down`
        self._is_up = False
        # Bound and not listening: while we are down, nobody else gets the port.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self._port = self._held.getsockname()[1]
        self._ended = threading.Event()
        self._listener: socket.socket | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        """Listen, from the second time on at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=256)
        self._is_up = True
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections, and break those there are."""
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections, self._connections = self._connections, set()
            self._is_up = False
        for connection in connections:
            _reset(connection)

    def close(self) -> None:
        """End for good."""
        self._ended.set()
        self.down()
        self._held.close()

    def forget_flips(self) -> None:
        """Each object may come wrong once more: what came wrong twice in a row is an error."""
        with self._lock:
            self._flipped.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # it is down
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        requests = _Reader(client)
        upstream: socket.socket | None = None
        answers: _Reader | None = None
        with self._lock:
            if self._is_up:
                self._connections.add(client)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # What arrived before we went down may still be read after it.
            while (request := requests.message()) is not None and self._is_open(client):
                if upstream is None:
                    upstream = socket.create_connection(self._target)
                    upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    answers = _Reader(upstream)
                assert answers is not None
                if not self._handle(request, client, upstream, answers):
                    break
        except (OSError, ValueError):  # the client or the server has gone, or we are down
            pass
        finally:
            with self._lock:
                self._connections.discard(client)
            requests.close()
            client.close()
            if upstream is not None and answers is not None:
                answers.close()
                upstream.close()

    def _is_open(self, client: socket.socket) -> bool:
        with self._lock:
            return client in self._connections

    def _handle(
        self, request: Message, client: socket.socket, upstream: socket.socket, answers: _Reader
    ) -> bool:
        """Answer one request; whether the connection goes on."""
        method, path, _ = request.first_line
        kind = self._plan(method, path)
        if kind in _CODES:
            client.sendall(_error(kind, method))
            return True
        if kind == "drop":
            return False
        if kind == "reset":
            _reset(client)
            return False
        if kind == "delay":
            self._ended.wait(self._random.uniform(0.02, 0.2))
        upstream.sendall(request.head + request.body)
        answer = answers.message(has_body=method != "HEAD")
        if answer is None or kind == "lost answer":
            return False
        whole = answer.head + answer.body
        if kind in ("truncate", "stall"):
            client.sendall(whole[: len(whole) - max(1, (len(answer.body) or len(whole)) // 2)])
            if kind == "stall":  # until the client has enough of it
                client.recv(1)
            return False
        if kind == "flip":
            body = bytearray(answer.body)
            place = self._random.randrange(len(body)) if body else 0
            if body and answer.first_line[1] in ("200", "206"):
                body[place] ^= 1 << self._random.randrange(8)
            whole = answer.head + bytes(body)
        if not self._is_open(client):
            return False
        client.sendall(whole)
        if kind != "flip":
            self._answered(f"{method} {path}")
        return answer.field("connection") != "close"

    def _plan(self, method: str, path: str) -> str | None:
        """What happens to the next request. The kinds come in even shares, whatever the timing."""
        with self._lock:
            self.faults.requests += 1
            name = f"{method} {path}"
            if self._random.random() >= self.rate or self._in_a_row[name] >= _IN_A_ROW:
                return None
            if not self._queue:
                self._queue = self._random.sample(self.kinds, len(self.kinds))
            kind = self._queue.pop()
            # A bit of a listing or a commit says whatever it says: only objects have checksums.
            can_flip = method == "GET" and "/objects/" in path and path not in self._flipped
            if kind == "flip" and not can_flip:
                self._queue.insert(0, kind)
                kind = self._queue.pop()
                if kind == "flip":
                    return None
            if kind == "flip":
                self._flipped.add(path)
            self._in_a_row[name] += 1
            self.faults.done[kind] += 1
            self._open.setdefault(name, []).append(kind)
            return kind

    def _answered(self, name: str) -> None:
        with self._lock:
            self._in_a_row[name] = 0
            self.faults.asked_again.update(self._open.pop(name, []))


@contextlib.contextmanager
def chaos(server: str, *, seed: int = 0, rate: float = 0.0) -> Iterator[ChaosProxy]:
    """A proxy while the block runs."""
    proxy = ChaosProxy(server, seed=seed, rate=rate)
    proxy.up()
    try:
        yield proxy
    finally:
        proxy.close()


def table(faults: Faults, facts: Mapping[str, object]) -> str:
    """What was done and what became of it, in Markdown."""
    lines = [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "| fault | count | answered whole later |", "|---|---|---|"]
    for kind in KINDS:
        lines.append(f"| {kind} | {faults.done[kind]} | {faults.asked_again[kind]} |")
    lines.append(f"| all | {faults.total} | {faults.asked_again.total()} |")
    return "\n".join(lines) + "\n"


def _error(status: str, method: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{_CODES[status]}</Code></Error>".encode()
    head = f"HTTP/1.1 {status} Chaos\r\nContent-Type: application/xml\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # wakes who reads from it
        connection.close()
