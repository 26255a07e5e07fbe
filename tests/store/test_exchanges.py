"""Exchanges with an S3 server: how an answer may be said, and which connection is used."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader.credentials import Credentials
from storage_loader.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectShortError,
    PermissionDeniedError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from storage_loader.store.base import STREAM_CHUNK, Buffers
from storage_loader.store.direct_s3 import AT_ONCE, DirectS3
from storage_loader.store.exchange import Exchange, Fate, Head
from storage_loader.store.exchanges import Exchanges
from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support.answers import Answer, Answers, head_of
from tests.support.tls import made

Answering = Callable[[str, dict[str, str]], Sequence[bytes]]


class Server:
    """Gives each request, by its target and headers, the pieces of an answer, as they are."""

    def __init__(self, answer: Answering, address: str = "127.0.0.1") -> None:
        self.answer = answer
        self.connections = 0
        self.ended = 0
        self.requests: list[str] = []
        self.closes = False  # each connection after its first answer
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), backlog=1024, family=family)
        host = f"[{address}]" if ":" in address else address
        self.endpoint = f"http://{host}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while lines := head_of(stream):
                fields = (line.decode().partition(":") for line in lines[1:])
                headers = {name.lower(): value.strip() for name, _, value in fields}
                self.requests.append(lines[0].decode().rpartition(" ")[0])
                pieces = self.answer(self.requests[-1], headers)
                if pieces and not pieces[0].startswith(b"HTTP/1.1 403"):
                    stream.read(int(headers.get("content-length", "0")))
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.01)
                if self.closes or not pieces:
                    break
        self.ended += 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    @property
    def place(self) -> S3Place:
        return S3Place("bucket", "", self.endpoint, "us-east-1", "access", "secret")

    @property
    def store(self) -> DirectS3:
        return DirectS3(self.place)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(lambda request, headers: [whole(b"content")])
    yield server
    server.close()


def whole(body: bytes, *more: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(body)}", *more))
    return f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode() + body


def ranged(headers: dict[str, str], content: bytes) -> bytes:
    start, end = (int(x) for x in headers["range"].removeprefix("bytes=").split("-"))
    body = content[start : end + 1]
    head = (
        f"HTTP/1.1 206 Partial Content\r\nContent-Length: {len(body)}\r\n"
        f"Content-Range: bytes {start}-{start + len(body) - 1}/{len(content)}\r\n\r\n"
    )
    return head.encode() + body


PLAIN: dict[str, Sequence[bytes]] = {
    "in one piece": [whole(b"content")],
    "byte by byte": [bytes([byte]) for byte in whole(b"content")],
    "odd spaces": [b"HTTP/1.1 200\r\ncontent-LENGTH:7  \r\n\r\ncontent"],
    "HTTP/1.0": [b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\ncontent"],
    "and more": [whole(b"content") + b"and more"],
    "a refusal": [b"HTTP/1.1 404 Not Found\r\nContent-Length: 29\r\n\r\n" + b"x" * 29],
}
OTHERS: dict[str, Sequence[bytes]] = {
    "in chunks": [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ncont\r\n3\r\nent\r\n0\r\n\r\n"
    ],
    "after interim ones": [b"HTTP/1.1 100 Continue\r\n\r\n" * 3, whole(b"content")],
    "a long head": [whole(b"content", *[f"X-{i}: {'y' * 500}" for i in range(90)])],
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_an_answer_is_read_however_it_is_said(server: Server, name: str) -> None:
    """One that is not plain is asked for again by urllib3, which reads them all."""
    server.answer = lambda request, headers: (PLAIN | OTHERS)[name]
    for _ in range(3):
        assert server.store.find("key") == (None if name == "a refusal" else b"content")
    assert len(server.requests) == (3 if name in PLAIN else 6)


def test_some_of_many_are_found_whatever_becomes_of_the_others(server: Server) -> None:
    """And only those that failed are asked for again."""
    failing = {"/bucket/3", "/bucket/40"}

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        target = request.split(" ")[1]
        if target == "/bucket/40" and target in failing:
            return [whole(target.encode())[:-3]]
        if target in failing:
            return [b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"]
        if target == "/bucket/7":
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
        return [whole(target.encode())]

    server.answer = answer
    keys = [str(number) for number in range(150)]
    expected = [None if key == "7" else f"/bucket/{key}".encode() for key in keys]
    found: dict[int, memoryview | None] = {}
    place = replace(server.place, timeout=1.0)
    errors = DirectS3(place).find_some(keys, found)
    assert "503" in str(errors[0])
    assert {place: expected[place] for place in found} == found
    assert len(server.requests) == len(found) + len(errors) < 150
    failing.discard("/bucket/3")
    server.requests.clear()
    found.clear()
    threading.Timer(0.5, failing.clear).start()
    assert RetriedStore(S3Store(place), deadline=20).find_all(keys) == expected
    assert {server.requests.count(f"GET /bucket/{key}") for key in keys if key != "40"} == {1}
    assert server.requests.count("GET /bucket/40") > 1


def test_some_ranges_of_many_objects_come_whatever_becomes_of_the_others(server: Server) -> None:
    """Each range is the one asked for; what touches another, or failed, is asked for by itself."""
    failing = {"/bucket/3"}

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        target = request.split(" ")[1]
        if target in failing:
            return [b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"]
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        body = (target[-1].encode() * 100)[first : last + 1]
        head = f"HTTP/1.1 206 P\r\nContent-Range: bytes {first}-{last}/100\r\n"
        return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body]

    server.answer = answer
    requests = [(str(n), [(0, n + 1), (50, 60)]) for n in range(9)] + [("9", [(0, 5), (5, 9)])]
    expected = [[key.encode() * (b - a) for a, b in ranges] for key, ranges in requests]
    received: dict[int, Buffers] = {}
    errors = DirectS3(server.place).get_some(requests, received)
    assert errors
    assert all("503" in str(error) for error in errors)
    assert {place: expected[place] for place in received} == received
    failing.clear()
    server.requests.clear()
    received.clear()
    assert DirectS3(server.place).get_some(requests, received) == []
    assert [received[place] for place in range(9)] == expected[:9]
    assert 9 not in received
    failing.add("/bucket/3")
    threading.Timer(0.5, failing.clear).start()
    assert RetriedStore(S3Store(server.place), deadline=20).get_many(requests) == expected


def test_a_server_at_an_address_of_ipv6() -> None:
    try:
        server = Server(lambda request, headers: [whole(b"content")], "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with contextlib.closing(server):
        assert server.store.get("key") == b"content"


@pytest.mark.parametrize("closing", [[], ["Connection: close"], ["connection: Keep-Alive, Close"]])
def test_a_connection_is_used_again_unless_it_ends(server: Server, closing: list[str]) -> None:
    server.answer = lambda request, headers: [whole(b"content", *closing)]
    for _ in range(3):
        assert server.store.get("key") == b"content"
        assert b"".join(server.store.stream("key", 0, 7)) == b"content"
    assert server.connections == (6 if closing else 2)  # one for streams


def test_a_connection_that_the_server_closed_meanwhile_is_not_used(server: Server) -> None:
    server.closes = True
    for _ in range(3):
        assert server.store.get("key") == b"content"
        time.sleep(0.1)
    assert len(server.requests) == server.connections == 3


def test_refusals_keep_the_connection(server: Server) -> None:
    server.answer = lambda request, headers: [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 29\r\n\r\n<Error><Code>x</Code></Error>"
    ]
    for _ in range(3):
        with pytest.raises(ObjectNotFoundError):
            server.store.get("key")
    assert server.connections == 1


def test_what_was_asked_for_and_not_read_is_nobody_elses_answer(server: Server) -> None:
    """The first range is refused while others are under way; their answers come later."""
    content = bytes(range(256)) * 100

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        if "range" not in headers:
            return [whole(b"content")]
        if headers["range"] == "bytes=0-9":
            return [b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"]
        time.sleep(0.3)
        return [ranged(headers, content)]

    server.answer = answer
    for _ in range(3):
        with pytest.raises(StoreError, match="503"):
            server.store.get_ranges("key", [(i, i + 10) for i in range(0, 1000, 100)])
        assert [server.store.get("key") for _ in range(12)] == [b"content"] * 12


def test_what_comes_beyond_an_answer_is_nobody_elses(server: Server) -> None:
    server.answer = lambda request, headers: [whole(b"content") + whole(b"another")]
    assert [server.store.get("key") for _ in range(3)] == [b"content"] * 3
    server.answer = lambda request, headers: [whole(b"content"), whole(b"another")]
    for _ in range(3):
        assert server.store.get("key") == b"content"
        time.sleep(0.1)


@pytest.mark.parametrize("nbytes", [1, 700, 2**16, 2**16 + 1, 300_000])
def test_ranges_that_come_in_pieces_and_refusals_between_them(server: Server, nbytes: int) -> None:
    """One connection takes turns: what it waits for differs, and a refusal is shorter than it."""
    content = np.random.default_rng(nbytes).bytes(nbytes)

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        if request.endswith("missing"):
            return [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
        said = ranged(headers, content) if "range" in headers else whole(b"content")
        cuts = sorted((0, 1, 30, len(said) // 2, len(said) - 1, len(said)))
        return [said[start:end] for start, end in pairwise(cuts)]

    server.answer = answer
    store = server.store
    for _ in range(3):
        assert store.get_ranges("key", [(0, nbytes)]) == [content]
        with pytest.raises(ObjectNotFoundError):
            store.get_ranges("missing", [(0, nbytes)])
        assert store.get("key") == b"content"
    assert server.connections == 1


def test_a_refusal_that_is_shorter_than_the_range_is_told_at_once(server: Server) -> None:
    server.answer = lambda request, headers: [b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"]
    began = time.monotonic()
    for _ in range(5):
        with pytest.raises(ObjectNotFoundError):
            server.store.get_ranges("key", [(0, 50_000)])
    assert time.monotonic() - began < server.place.timeout / 4


def test_the_end_of_a_record_of_tls_is_not_waited_for_as_if_it_were_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of it is here by then, not deciphered: no more comes than what is left of it."""
    content = bytes(range(256)) * 157
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made(is_ca=True).written(tmp_path / "server.pem"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)

        def exchanged(step: Callable[[], bytes | None]) -> bytes:
            while True:
                try:
                    return step() or b""
                except ssl.SSLWantReadError:  # noqa: PERF203  it is how TLS asks
                    connection.sendall(outgoing.read())
                    incoming.write(connection.recv(2**16))

        with connection:
            exchanged(tls.do_handshake)
            for _ in range(3):
                head = exchanged(lambda: tls.read(2**16))
                [said] = [line for line in head.decode().splitlines() if line.startswith("range")]
                tls.write(ranged({"range": said.partition(":")[2].strip()}, content))
                data = outgoing.read()
                connection.sendall(data[: len(content)])
                time.sleep(0.05)
                connection.sendall(data[len(content) :])

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    with ThreadPoolExecutor(1) as pool, contextlib.closing(listener):
        serving = pool.submit(serve)
        endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
        store = DirectS3(S3Place("bucket", "", endpoint, "us-east-1", "access", "secret"))
        begun = time.monotonic()
        for _ in range(3):
            assert store.get_ranges("key", [(0, len(content))]) == [content]
        assert time.monotonic() - begun < 1
        serving.result()


@pytest.mark.parametrize("client", [DirectS3, MinioS3])
def test_the_head_of_an_answer_is_acknowledged_at_once(client: type[MinioS3]) -> None:
    """Servers that follow Nagle's algorithm send the body after that, and Linux takes 40 ms."""
    content = bytes(range(256)) * 8
    num_answers = 20
    listener = socket.create_server(("127.0.0.1", 0))

    def is_acknowledged(connection: socket.socket) -> bool:
        end = time.monotonic() + 0.03
        while time.monotonic() < end:
            if not struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
                return True
            time.sleep(0.0005)
        return False

    def serve() -> list[bool]:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        in_time = []
        with connection, connection.makefile("rb") as stream:
            for _ in range(num_answers):
                [said] = [line for line in head_of(stream) if line.lower().startswith(b"range:")]
                answer = ranged({"range": said.decode().partition(":")[2].strip()}, content)
                connection.sendall(answer[: -len(content)])
                in_time.append(is_acknowledged(connection))
                connection.sendall(answer[-len(content) :])
        return in_time

    with ThreadPoolExecutor(1) as pool, contextlib.closing(listener):
        serving = pool.submit(serve)
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        store = client(S3Place("bucket", "", endpoint, "us-east-1", "access", "secret"))
        for _ in range(num_answers):
            assert store.get_ranges("key", [(0, len(content))]) == [content]
        assert sum(serving.result()) > num_answers // 2


def test_what_comes_between_two_ranges_is_nobody_elses(server: Server) -> None:
    """It comes while nobody asks, and is shorter than the range before it."""
    content = np.random.default_rng(0).bytes(60_000)

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        if "range" in headers:
            return [ranged(headers, content), whole(b"another")]
        return [whole(b"content")]

    server.answer = answer
    for _ in range(3):
        assert server.store.get_ranges("key", [(0, 50_000)]) == [content[:50_000]]
        time.sleep(0.1)
        assert server.store.get("key") == b"content"
    assert server.connections == 4


PAGE = (
    b"<ListBucketResult><Contents><Key>folder/a</Key><Size>5</Size>"
    b"<LastModified>2026-01-01T00:00:00Z</LastModified></Contents></ListBucketResult>"
)


def test_a_listing_in_chunks_is_asked_for_twice_once(server: Server) -> None:
    """After that only by urllib3, which reads it, for any store of this process."""
    plain, chunked = [whole(PAGE)], [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"]
    chunked.append(b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE))
    for answer, requests in ((plain, 1), (plain, 1), (chunked, 2), (chunked, 1), (plain, 1)):
        server.answer = lambda request, headers, answer=answer: answer
        server.requests.clear()
        [found] = server.store.list("folder")
        assert (found.key, found.nbytes) == ("folder/a", 5)
        assert len(server.requests) == requests
    [request] = set(server.requests)
    assert request.startswith("GET /bucket?")


def test_a_refused_listing_says_why_and_is_asked_for_once(server: Server) -> None:
    body = b"<Error><Code>AccessDenied</Code></Error>"
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    server.answer = lambda request, headers: [refusal]
    with pytest.raises(PermissionDeniedError, match=r"list .*s3:ListBucket"):
        server.store.list_folders("folder")
    assert len(server.requests) == 1


def test_a_range_that_the_object_does_not_have(server: Server) -> None:
    server.answer = lambda request, headers: [ranged(headers, bytes(50))]
    with pytest.raises(ObjectShortError):
        server.store.get_ranges("key", [(0, 10), (45, 55)])
    assert b"".join(server.store.stream("key", 45, 55)) == bytes(5)


@pytest.mark.parametrize("cut", [1, 20, 60, 65])
def test_a_connection_that_breaks_is_one(server: Server, cut: int) -> None:
    server.closes = True
    server.answer = lambda request, headers: [whole(b"content" * 4)[:cut]]
    for work in (lambda s: s.get("key"), lambda s: s.get_ranges("key", [(0, 28)])):
        with pytest.raises(StoreConnectionError, match="the connection broke off"):
            work(server.store)


def test_a_large_put_is_refused_before_all_is_sent(server: Server) -> None:
    """The server reads no body, and keeps the connection open."""
    server.answer = lambda request, headers: [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
    ]
    with pytest.raises(PermissionDeniedError):
        server.store.put("key", bytes(2**26))


def test_a_put_that_is_granted_before_all_is_sent_is_none() -> None:
    """Such a server has not seen what it says to have stored."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(whole(b""))
            time.sleep(0.5)

    thread = threading.Thread(target=serve)
    thread.start()
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    place = S3Place("bucket", "", endpoint, "us-east-1", "access", "secret", timeout=5)
    with pytest.raises(StoreConnectionError):
        DirectS3(place).put("key", bytes(2**26))
    thread.join()
    listener.close()


def test_one_thread_receives_what_many_wait_for(server: Server) -> None:
    content = bytes(range(256)) * 100
    server.answer = lambda request, headers: [ranged(headers, content)]
    store = server.store
    calls = [[(i, i + 50) for i in range(first, first + 2000, 100)] for first in range(32)]
    before = set(threading.enumerate())
    with ThreadPoolExecutor(8, "asking") as pool:
        received = list(pool.map(lambda ranges: store.get_ranges("key", ranges), calls))
        new = set(threading.enumerate()) - before
    assert received == [[content[a:b] for a, b in ranges] for ranges in calls]
    assert [t.name for t in new if "exchanges" in t.name] == ["storage_loader-s3-exchanges"]


def test_answers_that_never_come_are_given_up_together(server: Server) -> None:
    """After one timeout, however many there are."""
    content = bytes(range(256)) * 100

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        if int(headers["range"].partition("=")[2].partition("-")[0]) < 3000:
            return [ranged(headers, content)]
        over.wait(20)
        return []

    over = threading.Event()
    server.answer = answer
    store = DirectS3(replace(server.place, timeout=0.5))
    began = time.monotonic()
    with pytest.raises(StoreTimeoutError):
        store.get_ranges("key", [(i, i + 10) for i in range(0, 20_000, 100)])
    assert time.monotonic() - began < 5
    over.set()
    assert store.get_ranges("key", [(0, 10), (20, 30)]) == [content[:10], content[20:30]]


def test_many_ranges_share_few_connections(server: Server) -> None:
    content = bytes(range(256)) * 100
    server.answer = lambda request, headers: [ranged(headers, content)]
    ranges = [(i, i + 10) for i in range(0, 20_000, 100)]
    assert server.store.get_ranges("key", ranges) == [content[a:b] for a, b in ranges]
    assert server.connections == AT_ONCE
    assert len(server.requests) == 200


def test_a_stream_gives_what_came_before_it_broke(server: Server) -> None:
    server.closes = True
    content = np.random.default_rng(0).bytes(4 * STREAM_CHUNK)
    server.answer = lambda request, headers: [ranged(headers, content)[:-300]]
    received: list[bytes] = []
    with pytest.raises(StoreConnectionError, match="the connection broke off"):
        received.extend(server.store.stream("key", 0, len(content)))
    assert b"".join(received) == content[:-300]


def test_sockets_of_a_process_with_many_files(server: Server) -> None:
    """`select` waits for none from the 1,024th on."""
    content = bytes(range(256)) * 100
    server.answer = lambda request, headers: [ranged(headers, content)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = []
    try:
        while not files or files[-1] < 1100:
            files.append(os.open(os.devnull, os.O_RDONLY))
        began = time.monotonic()
        ranges = [(i, i + 10) for i in range(0, 1000, 100)]
        for _ in range(5):
            assert server.store.get_ranges("key", ranges) == [content[a:b] for a, b in ranges]
        assert time.monotonic() - began < 1  # a `select` for others takes 0.2 s a turn
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_of_few_files_has_some_for_others(server: Server) -> None:
    """Many ranges at once, and then what urllib3 asks for."""
    content = bytes(range(256)) * 100

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        time.sleep(0.01)
        return [ranged(headers, content)]

    server.answer = answer
    requests = [(f"key{i}", [(i, i + 10), (i + 20, i + 30)]) for i in range(100)]
    wanted = {i: [content[a:b] for a, b in ranges] for i, (_, ranges) in enumerate(requests)}
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    store = server.store
    assert b"".join(store.stream("key", 0, 5)) == content[:5]
    files = len(os.listdir("/proc/self/fd"))
    server.connections = 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 * files + 30, hard))
    try:
        received: dict[int, Buffers] = {}
        assert store.get_some(requests, received) == []
        assert received == wanted
        assert 1 < server.connections <= files + 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_process_without_files_for_a_connection_says_so(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*args: object, **settings: object) -> socket.socket:
        raise OSError(number, os.strerror(number))

    store = MinioS3(S3Place("bucket", "", "http://127.0.0.1:9", "us-east-1", "access", "secret"))
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        with pytest.raises(StoreConnectionError, match="open no more files"):
            store.list_folders("")


def test_a_thread_that_cannot_be_started_is_an_error_of_ours(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if "exchanges" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    store = S3Store(replace(server.place, timeout=17))  # nobody else's thread
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(StoreError, match="no thread could be started"):
                store.get("key")
    assert store.get("key") == b"content"


def test_an_event_loop_that_may_open_no_file_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "SelectorEventLoop", refuse)
    with pytest.raises(StoreConnectionError, match="open no more files"):
        DirectS3(replace(server.place, timeout=18)).get("key")  # nobody else's thread


def test_a_small_put_has_time_for_its_way() -> None:
    """A second for each 16 KiB, beyond the timeout of the answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            while stream.readline() != b"\r\n":
                pass
            time.sleep(1.5)
            stream.read(2**16)
            connection.sendall(whole(b""))

    thread = threading.Thread(target=serve)
    thread.start()
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    place = S3Place("bucket", "", endpoint, "us-east-1", "access", "secret", timeout=0.5)
    DirectS3(place).put("key", bytes(2**16))
    thread.join()
    listener.close()


REFUSED = "HTTP/1.1 {} Refused\r\nTransfer-Encoding: chunked\r\n\r\n"
CODE = b"1d\r\n<Error><Code>A</Code></Error>\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "kind", "requests"),
    [
        (412, ObjectExistsError, 2),
        (403, PermissionDeniedError, 2),
        (408, StoreUnavailableError, 1),
        (503, StoreUnavailableError, 1),
    ],
)
def test_a_put_is_made_again_only_where_it_cannot_have_arrived(
    server: Server, status: int, kind: type[StoreError], requests: int
) -> None:
    """An answer in chunks, as AWS gives a refusal, is not read here."""
    server.answer = lambda request, headers: [REFUSED.format(status).encode() + CODE]
    with pytest.raises(kind):
        server.store.put("key", b"content", create=True)
    assert len(server.requests) == requests


@pytest.mark.parametrize("nbytes", [0, 1, 2**16, 2**16 + 1, 2**20])
def test_a_put_is_one_request_whole(answers: Answers, nbytes: int) -> None:
    body = np.random.default_rng(nbytes).bytes(nbytes)
    answers.always(Answer(200))
    place = S3Place("bucket", "", answers.endpoint, "us-east-1", "access", "secret")
    DirectS3(place).put("key", body)
    [request] = answers.requests
    assert request.body == body


def test_a_server_that_ends_each_connection_answers_all(server: Server) -> None:
    content = bytes(range(256)) * 100
    server.closes = True
    server.answer = lambda request, headers: [ranged(headers, content)]
    ranges = [(i, i + 10) for i in range(0, 10_000, 100)]
    assert server.store.get_ranges("key", ranges) == [content[a:b] for a, b in ranges]
    assert len(server.requests) == len(ranges)


def test_a_server_that_ends_connections_without_an_answer_is_no_loop(server: Server) -> None:
    server.answer = lambda request, headers: []
    with pytest.raises(StoreConnectionError, match="the connection broke off"):
        server.store.get_ranges("key", [(i, i + 10) for i in range(0, 10_000, 100)])
    assert len(server.requests) <= AT_ONCE


def test_more_callers_than_connections_of_a_dead_server_all_get_an_error() -> None:
    """None of them waits for a connection that nobody makes."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    store = DirectS3(S3Place("bucket", "", endpoint, "us-east-1", "access", "secret"))
    ranges = [(i, i + 10) for i in range(0, 2000, 100)]

    def ask(number: int) -> type[BaseException] | None:
        try:
            store.get_ranges(f"key {number}", ranges)
        except StoreError as error:
            return type(error)
        return None

    with ThreadPoolExecutor(64) as pool:
        assert set(pool.map(ask, range(128))) == {StoreConnectionError}


def test_ctrl_c_ends_what_was_waited_for(server: Server) -> None:
    """Its connection is closed, and the next request has another one."""
    over = threading.Event()

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(20)
        return []

    server.answer = answer
    store = server.store
    with pytest.raises(KeyboardInterrupt):
        store.get("key")
    over.set()
    server.answer = lambda request, headers: [whole(b"content")]
    assert store.get("key") == b"content"
    assert server.connections == 2


def test_a_head_with_a_character_that_none_may_have_is_not_sent(server: Server) -> None:
    """A token from a file with a line break at its end would begin another line."""
    keys = lambda: Credentials("access", "secret", "token\r\nX-Other: y")  # noqa: E731
    place = S3Place("bucket", "", server.endpoint, "us-east-1", credentials=keys)
    with pytest.raises(StoreError, match="x-amz-security-token would have a character"):
        S3Store(place).get("key")
    assert server.requests == []


def test_the_thread_ends_with_who_asked(server: Server) -> None:
    host, port = server.endpoint.removeprefix("http://").split(":")
    made = Exchanges(host, int(port), None, timeout=5.0, connect_timeout=5.0)
    exchange = Exchange(b"GET /x HTTP/1.1\r\n\r\n", 100)
    before = set(threading.enumerate())
    made.make([exchange], 1)
    assert exchange.fate is Fate.ANSWERED
    assert exchange.body == b"content"
    new = set(threading.enumerate()) - before
    [thread] = [each for each in new if each.name == "storage_loader-s3-exchanges"]
    del made
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    while not server.ended:
        time.sleep(0.01)


HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 7\r\nContent-Range: bytes 0-6/9\r\n"
WORDS = [b"\r\n", b"\n", b"\0", b" ", b":", b"Transfer-Encoding: chunked\r\n", b"9" * 30]


@given(
    st.integers(0, len(HEAD)),
    st.integers(0, len(HEAD)),
    st.lists(st.sampled_from(WORDS) | st.binary(max_size=8), max_size=8),
)
def test_whatever_bytes_come_are_a_plain_head_or_none(
    start: int, end: int, put: list[bytes]
) -> None:
    text = HEAD[:start] + b"".join(put) + HEAD[end:]
    head = Head.parse(text)
    if head is not None:
        assert 200 <= head.status < 600
        assert 0 <= head.nbytes < 10**18
        assert text.lower().count(b"\r\ncontent-length:") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"Content-Length: 7",
        b"Content-Length: 8",
        b"CONTENT-LENGTH:7",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding:identity",
        b"Content-Encoding: gzip",
        b"Content-Range: bytes 0-6/9",
        b"Upgrade: x",
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_none(line: bytes) -> None:
    assert Head.parse(HEAD) == Head(206, 7, (0, 7), b"", True)
    assert Head.parse(HEAD + line) is None


@pytest.mark.parametrize("length", [b"", b"-7", b"+7", b"7,7", b"0x7", b"9" * 30, b"7 7"])
def test_a_length_is_a_number(length: bytes) -> None:
    assert Head.parse(b"HTTP/1.1 200 OK\r\nContent-Length: " + length) is None


@pytest.mark.parametrize("said", ["bytes 1-10/99", "bytes 0-10/99", "bytes 9-0/99", "", "0-9"])
def test_other_bytes_than_those_asked_for_are_an_error(server: Server, said: str) -> None:
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: {said}\r\nContent-Length: 10\r\n\r\n"
    server.answer = lambda request, headers: [head.encode() + bytes(10)]
    for read in (lambda s: s.get_ranges("key", [(0, 10)]), lambda s: list(s.stream("key", 0, 10))):
        with pytest.raises(StoreError, match="other bytes than 0 to 10"):
            read(server.store)


def test_an_address_that_never_answers_is_tried_once() -> None:
    """For as long as a connection may take; urllib3 would only wait once more."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listener:
        full = [socket.socket() for _ in range(4)]  # nobody accepts: more get no answer
        for one in full:
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        place = S3Place("bucket", "", endpoint, "us-east-1", "access", "secret", timeout=1.0)
        began = time.monotonic()
        with pytest.raises(StoreConnectionError, match="no connection; is the server running"):
            DirectS3(place).get("key")
        assert 0.9 < time.monotonic() - began < 1.9
        for one in full:
            one.close()


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", ["in chunks", "a long head"])
def test_a_put_that_is_granted_in_other_words_is_granted(
    server: Server, name: str, create: bool
) -> None:
    server.answer = lambda request, headers: OTHERS[name]
    server.store.put("key", b"content", create=create)
    assert len(server.requests) == 1


def test_what_comes_beyond_a_large_answer_is_nobody_elses(server: Server) -> None:
    large = bytes(200_000)
    server.answer = lambda request, headers: [whole(large) + whole(b"another")]
    for _ in range(3):
        assert server.store.get("key") == large


@pytest.mark.parametrize("closing", ["with each answer", "once"])
def test_connections_that_end_are_replaced_all(server: Server, closing: str) -> None:
    """As many are under way at once as before."""
    lock = threading.Lock()
    under_way, most = 0, [0]

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        nonlocal under_way
        with lock:
            under_way += 1
            most[0] = max(most[0], under_way)
        time.sleep(0.02)
        with lock:
            under_way -= 1
        return [whole(b"content")]

    server.answer = answer
    server.closes = True
    keys = [str(number) for number in range(150)]
    for _ in range(1 if closing == "with each answer" else 2):
        most[0] = 0
        found: dict[int, memoryview | None] = {}
        assert server.store.find_some(keys, found) == []
        assert list(found.values()) == [b"content"] * len(keys)
        server.closes = closing == "with each answer"
    assert most[0] > 16


def test_a_connect_that_hangs_keeps_nobody_waiting() -> None:
    """A kept connection ends when it is used again, while another one never comes to stand."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1)
    full: list[socket.socket] = []
    kept: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        while request := connection.recv(2**16):
            if b"/end" in request:
                connection.close()
                return
            time.sleep(0.1)
            connection.sendall(whole(b"content"))

    def accept() -> None:
        kept.extend(listener.accept()[0] for _ in range(2))
        for _ in range(4):  # nobody accepts: more get no answer
            full.append(socket.socket())
            full[-1].setblocking(False)
            full[-1].connect_ex(listener.getsockname())
        for connection in kept:
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    made = Exchanges(*listener.getsockname(), None, timeout=2.0, connect_timeout=1.0)
    for count in (2, 3):  # the third connection hangs
        asked = [Exchange(b"GET /key HTTP/1.1\r\n\r\n", 100) for _ in range(count)]
        made.make(asked, count)
        assert [exchange.body for exchange in asked] == [b"content"] * count
    last = Exchange(b"GET /end HTTP/1.1\r\n\r\n", 100)
    began = time.monotonic()
    made.make([last], 1)
    assert last.fate in (Fate.UNREACHED, Fate.CUT)
    assert time.monotonic() - began < 5
    for one in (*full, *kept, listener):
        one.close()


def test_a_signal_that_comes_again_and_again_prolongs_nothing(server: Server) -> None:
    over = threading.Event()

    def answer(request: str, headers: dict[str, str]) -> Sequence[bytes]:
        over.wait(20)
        return []

    server.answer = answer
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    began = time.monotonic()
    try:
        with pytest.raises(StoreTimeoutError):
            list(DirectS3(replace(server.place, timeout=1.0)).stream("key", 0, 1000))
        assert 0.9 < time.monotonic() - began < 5
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        over.set()
