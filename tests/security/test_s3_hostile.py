"""Servers that mean no good: no answer ends the process, takes memory or time, or gets a secret.

Each kind of answer is given to each verb of our own client, in a process of its own whose memory
is limited: what would be taken by force is an error there, and a crash is one here.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage_loader.credentials import Credentials
from storage_loader.errors import (
    FormatError,
    ObjectTooLargeError,
    StorageLoaderError,
    StoreError,
    StoreTimeoutError,
)
from storage_loader.store import FolderStore, MemoryStore, Store, guarded_http
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support.answers import OBJECT, Answer, Answers, answering, head_of
from tests.support.own_process import FRESH
from tests.support.places import CLIENTS

KEY = "key"


def get_many(store: Store) -> None:
    """As `RetriedStore` does: first what the client can do at once, then one by one."""
    found: dict[int, memoryview | None] = {}
    errors = store.find_some([KEY] * 40, found, limit=1000)
    if errors:
        raise errors[0]
    if len(found) < 40:
        store.get(KEY, limit=1000)


TOKEN = "a-token-that-only-the-server-may-see"
VERBS: dict[str, Callable[[Store], object]] = {
    "get": lambda s: s.get(KEY, limit=1000),
    "many gets": get_many,
    "ranges": lambda s: s.get_ranges(KEY, [(0, 64)]),
    "many ranges": lambda s: s.get_ranges(KEY, [(0, 64), (100, 164)]),
    "stream": lambda s: list(s.stream(KEY, 0, 64)),
    "large get": lambda s: s.get(KEY, limit=2**24),
    "large stream": lambda s: list(s.stream(KEY, 0, 2**20)),
    "head": lambda s: s.head(KEY),
    "list": lambda s: list(s.list("folder")),
    "folders": lambda s: s.list_folders("folder"),
    "put": lambda s: s.put(KEY, b"x", create=True),
    "large put": lambda s: s.put(KEY, bytes(2**21)),
    "delete": lambda s: s.delete([KEY]),
    "prepare": lambda s: s.prepare(),
}
HEAD = 'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "tag"\r\n'
OK = f"HTTP/1.1 200 OK\r\n{HEAD}"
RANGE = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-63/1000\r\n{HEAD}"
MISSING = "HTTP/1.1 404 Not Found\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\nContent-Length: 64\r\n\r\n"
CHUNKS = "Transfer-Encoding: chunked\r\n\r\n"  # without another length
PIECE = b"x" * 2**16


def endless() -> Iterator[bytes]:
    while True:
        yield b"%x\r\n%b\r\n" % (len(PIECE), PIECE)


def slowly(text: str) -> Iterator[bytes]:
    for character in text.encode():
        yield bytes([character])
        time.sleep(0.1)


def said(head: str, *rest: bytes) -> Iterator[bytes]:
    yield head.encode()
    for piece in rest:
        time.sleep(0.05)  # in packets of their own
        yield piece


def tiny_chunks(head: str, about: str = "", nbytes: int = 2**17) -> Iterator[bytes]:
    yield (head + (about or CHUNKED)).encode()
    for _ in range(nbytes // 2**14):
        yield b"2\r\nxx\r\n" * 2**13


def chunked(head: str, about: str = "") -> Iterator[bytes]:
    yield (head + (about or CHUNKED)).encode()
    yield from endless()


def with_words(head: str) -> Iterator[bytes]:
    """Each byte of a body with what may stand beside it."""
    yield (head + CHUNKS).encode()
    while True:
        yield b"1;" + b"x=y;" * 2**15 + b"\r\nx\r\n"


def with_trailers(head: str) -> Iterator[bytes]:
    """They follow the body's end."""
    yield (head + CHUNKS).encode() + b"1\r\nx\r\n0\r\n"
    for count in range(2**62):
        yield b"".join(b"X-%d-%d: %d\r\n" % (count, i, i) for i in range(1000))


def going_on(head: str) -> Iterator[bytes]:
    yield f"{head}\r\n".encode()
    while True:
        yield PIECE


def continuing() -> Iterator[bytes]:
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"
        time.sleep(0.02)


LENGTHS = ("10000000000000", str(2**63 + 5), "9" * 400, "-1", "1e9", "")
ANSWERS: dict[str, Callable[[], Iterator[bytes]]] = {
    **{
        f"{name} of {length[:21]!r}": (
            lambda head=head, length=length: said(
                f"{head}Content-Length: {length}\r\n\r\n", b"xx", b"xx"
            )
        )
        for name, head in (("whole", OK), ("range", RANGE), ("refusal", MISSING))
        for length in LENGTHS
    },
    "whole without end": lambda: chunked(OK),
    "range without end": lambda: chunked(RANGE),
    "refusal without end": lambda: chunked(MISSING),
    "whole that goes on": lambda: going_on(f"{OK}Content-Length: 64\r\n"),
    "whole until the connection ends": lambda: going_on(OK),
    "range that goes on": lambda: going_on(f"{RANGE}Content-Length: 64\r\n"),
    "range that is longer": lambda: going_on(f"{RANGE}Content-Length: {2**40}\r\n"),
    "range until the connection ends": lambda: going_on(RANGE),
    "refusal that goes on": lambda: going_on(f"{MISSING}Content-Length: 64\r\n"),
    "refusal that is long": lambda: going_on(f"{MISSING}Content-Length: {2**40}\r\n"),
    "refusal until the connection ends": lambda: going_on(MISSING),
    # All that is received takes this way; the others show that their heads change nothing.
    "whole in tiny chunks": lambda: tiny_chunks(OK, nbytes=2**19),
    "range in tiny chunks": lambda: tiny_chunks(RANGE),
    "refusal in tiny chunks": lambda: tiny_chunks(MISSING),
    **{
        f"{name} in chunks, {what}": (lambda head=head, answer=answer: answer(head))
        for name, head in (("whole", OK), ("range", RANGE), ("refusal", MISSING))
        for what, answer in {
            "without end": lambda head: chunked(head, CHUNKS),
            "all of them tiny": lambda head: tiny_chunks(head, CHUNKS),
            "with words": with_words,
            "with trailers": with_trailers,
            "of 2^70": lambda head: said(head + CHUNKS, b"%x\r\n" % 2**70, PIECE),
            "of 2^60": lambda head: iter([(head + CHUNKS).encode(), b"%x\r\n" % 2**60]),
            "with a line without end": lambda head: iter(
                [(head + CHUNKS).encode(), *[PIECE] * 1000]
            ),
            "a byte at a time": lambda head: slowly(head + CHUNKS + "1\r\nx\r\n" * 100),
        }.items()
    },
    "head of many lines": lambda: said(OK + "X: y\r\n" * 10_000, b"\r\n"),
    "promises without end": lambda: iter([b"HTTP/1.1 100 Continue\r\n\r\n" * 1000] * 1000),
    "another protocol": lambda: said(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", PIECE
    ),
    "head without end": lambda: iter([OK.encode(), *[b"X: " + PIECE] * 1000]),
    "line without end": lambda: iter([b"HTTP/1.1 200 ", *[PIECE] * 1000]),
    "chunk of 2^70": lambda: said(OK + CHUNKED, b"%x\r\n" % 2**70, PIECE),
    "chunk's line without end": lambda: iter([(OK + CHUNKED).encode(), *[PIECE] * 1000]),
    "no HTTP": lambda: said("SSH-2.0-OpenSSH_9.9\r\n\r\n"),
    "nothing": lambda: said(""),
    "100 for ever": continuing,
    "head a byte at a time": lambda: slowly(OK + "X: " + "y" * 1000),
    "range a byte at a time": lambda: slowly(f"{RANGE}Content-Length: 64\r\n\r\n" + "y" * 64),
    "body a byte at a time": lambda: slowly(f"{OK}Content-Length: 900\r\n\r\n" + "y" * 900),
    "range of 2^64": lambda: said(
        f"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-{2**64}/{2**65}\r\n{HEAD}"
        f"Content-Length: {2**64 + 1}\r\n\r\n",
        PIECE,
    ),
    "two lengths": lambda: said(f"{RANGE}Content-Length: 64\r\nContent-Length: 9\r\n\r\n", PIECE),
}


@contextlib.contextmanager
def saying(answer: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """The endpoint of a server that gives this answer to all, whatever they send."""

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            with connection.makefile("rb") as request:
                lines = head_of(request)
                sent = [line for line in lines if line.lower().startswith(b"content-length")]
                request.read(int(sent[0].split(b":")[1]) if sent else 0)
            for piece in answer():
                connection.sendall(piece)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def place_at(endpoint: str, **settings: Any) -> S3Place:
    return S3Place("bucket", "", endpoint, "us-east-1", "access", "secret", **settings)


PROCESSES = 4


def _ask_all(client: type[Store], names: list[str]) -> None:
    """Ask for everything, with 512 MiB of memory for all, and 20 s for each verb."""
    guarded_http.ON_THE_WAY = 1.0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # Addresses: each thread takes 72 MiB of them.
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**33, used + 2**33))

    def ask(name: str) -> None:
        with saying(ANSWERS[name]) as endpoint:
            store = client(place_at(endpoint, timeout=0.5))  # type: ignore[call-arg]
            for verb, work in VERBS.items():
                began = time.monotonic()
                with contextlib.suppress(StorageLoaderError):  # or an answer that is one
                    work(store)
                assert time.monotonic() - began < 20, (name, verb)
                assert peak_nbytes() < 2**29, (name, verb)

    with ThreadPoolExecutor(8) as pool:  # most of the time passes in waiting
        list(pool.map(ask, names))


def peak_nbytes() -> int:
    """The most memory that this process ever had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 2**10


@pytest.mark.parametrize("part", range(PROCESSES))
@pytest.mark.parametrize("client", [DirectS3, MinioS3])
def test_no_answer_ends_the_process_or_takes_memory_or_time(client: type[Store], part: int) -> None:
    names = list(ANSWERS)[part::PROCESSES]
    process = FRESH.Process(target=_ask_all, args=(client, names))
    process.start()
    try:
        process.join(300)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("status", ["403 Forbidden", "500 Internal Server Error"])
@pytest.mark.parametrize("client", [DirectS3, MinioS3])
@pytest.mark.parametrize("verb", ["get", "ranges", "many ranges", "put", "list", "delete"])
def test_a_refusal_without_end_costs_little_and_is_told(
    verb: str, client: type[Store], status: str
) -> None:
    said_so = "PermissionDenied|permission|403" if status.startswith("403") else "HTTP 500"
    with saying(lambda: going_on(f"HTTP/1.1 {status}\r\n")) as endpoint:
        store = client(place_at(endpoint, timeout=2.0))  # type: ignore[call-arg]
        before = peak_nbytes()
        with pytest.raises(StoreError, match=said_so):
            VERBS[verb](store)
    assert peak_nbytes() - before < 16 * 2**20


@pytest.mark.parametrize("client", ["direct", "minio"])
@pytest.mark.parametrize("length", ["10000000000000", str(2**63 + 5)])
def test_a_small_object_that_claims_to_be_huge_is_refused(client: str, length: str) -> None:
    with saying(lambda: said(f"{OK}Content-Length: {length}\r\n\r\n", b"{}")) as endpoint:
        store = RetriedStore(CLIENTS[client](place_at(endpoint)), deadline=20)
        said_so = f"an object of ({length}|more than 1000) bytes"
        with pytest.raises(ObjectTooLargeError, match=said_so):
            store.get(KEY, limit=1000)
        with pytest.raises(ObjectTooLargeError, match=said_so):
            store.find_all([KEY, KEY], limit=1000)


def test_every_store_keeps_to_the_limit(answers: Answers, tmp_path: Path) -> None:
    stores: list[Store] = [FolderStore(tmp_path), MemoryStore("memory://limits")]
    for store in stores:
        store.put(KEY, b"x" * 100)
    answers.always(Answer(200, b"x" * 100, OBJECT))
    stores += [CLIENTS[name](place_at(answers.endpoint)) for name in CLIENTS]
    for store in stores:
        asks: list[Callable[[int], object]] = [
            lambda limit, s=store: s.get(KEY, limit=limit),
            lambda limit, s=store: s.find(KEY, limit=limit),
            lambda limit, s=store: s.find_all([KEY], limit=limit)[0],
        ]
        for ask in asks:
            assert ask(100) == b"x" * 100
            with pytest.raises(ObjectTooLargeError, match=KEY) as caught:
                ask(99)
            assert isinstance(caught.value, (StoreError, FormatError))
            assert not caught.value.is_transient


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_what_is_packed_is_not_unpacked(answers: Answers, client: str) -> None:
    """Of 64 bytes asked for, a server made 2 MB, and the client of them 4 GiB."""
    packed = gzip.compress(bytes(2**24))[:64]
    headers = {**OBJECT, "Content-Range": "bytes 0-63/1000", "Content-Encoding": "gzip"}
    answers.always(Answer(206, packed, headers))
    store = CLIENTS[client](place_at(answers.endpoint))
    assert store.get_ranges(KEY, [(0, 64)]) == [packed]
    assert b"".join(store.stream(KEY, 0, 64)) == packed
    assert {r.headers.get("accept-encoding", "identity") for r in answers.requests} == {"identity"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("client", ["direct", "minio"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_redirect_to_another_host_is_followed(
    answers: Answers, client: str, verb: str, status: int
) -> None:
    keys = Credentials("access", "secret", TOKEN)
    with answering() as other:
        other.always(Answer(206, b"x" * 64, {**OBJECT, "Content-Range": "bytes 0-63/1000"}))
        elsewhere = other.endpoint.replace("127.0.0.1", "localhost") + "/x"
        answers.always(Answer(status, b"", {"Location": elsewhere}))
        place = S3Place(
            "bucket", "", answers.endpoint, "us-east-1", keys.access_key, keys.secret_key, TOKEN
        )
        with pytest.raises(StoreError):
            VERBS[verb](CLIENTS[client](place))
        assert other.requests == []
        assert len(answers.requests) >= 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("client", ["direct", "minio"])
def test_no_redirect_is_followed_at_all(answers: Answers, client: str, status: int) -> None:
    """Another port of the same host is another server, too."""
    with answering() as other:
        other.always(Answer(200, b"x", OBJECT))
        answers.always(Answer(status, b"", {"Location": f"{other.endpoint}/x"}))
        for work in VERBS.values():
            with pytest.raises(StoreError):
                work(CLIENTS[client](place_at(answers.endpoint)))
        assert other.requests == []


@pytest.mark.parametrize(
    "about",
    [
        "<IsTruncated>true</IsTruncated>",
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
    ],
)
@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_listing_that_does_not_get_on_is_an_error(
    answers: Answers, client: str, about: str
) -> None:
    body = f"<ListBucketResult><Name>bucket</Name>{about}</ListBucketResult>"
    answers.always(Answer(200, body.encode()))
    with pytest.raises(StoreError, match="a listing whose next page is one that it sent before"):
        list(CLIENTS[client](place_at(answers.endpoint)).list("folder"))
    assert len(answers.requests) <= 2


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_listing_without_end_is_an_error(answers: Answers, client: str) -> None:
    answers.always(Answer(200, b"<a>" * 2**22))
    with pytest.raises(StoreError, match="an answer of more than"):
        list(CLIENTS[client](place_at(answers.endpoint)).list("folder"))


@pytest.mark.parametrize("client", ["direct", "minio"])
@pytest.mark.parametrize("verb", ["get", "ranges", "stream", "put"])
def test_ctrl_c_ends_the_wait_for_a_server_that_does_not_get_on(verb: str, client: str) -> None:
    """What waits does so in another thread."""
    answer = ANSWERS["head a byte at a time" if verb == "put" else "range a byte at a time"]
    with saying(answer) as endpoint:
        store = CLIENTS[client](place_at(endpoint, timeout=30.0))
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            VERBS[verb](store)
        assert time.monotonic() - began < 4  # all of it takes 6.4 s and more
        timer.join()


def test_a_proxy_of_the_environment_is_asked_and_leads_nowhere_else(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", answers.endpoint)
    monkeypatch.setenv("no_proxy", "")
    with answering() as other:
        other.always(Answer(200, b"x", OBJECT))
        answers.always(Answer(302, b"", {"Location": f"{other.endpoint}/x"}))
        store = S3Store(place_at("http://storage.test:9000"))
        for work in VERBS.values():
            with pytest.raises(StoreError):
                work(store)
        assert other.requests == []
        answers.always(Answer(200, b"x", OBJECT))
        assert store.get(KEY, limit=1) == b"x"
    assert {r.path.split("?")[0] for r in answers.requests} <= {
        f"http://storage.test:9000/bucket{key}" for key in ("", "/", "/key")
    }


@pytest.mark.parametrize(
    "content",
    [
        "<Contents><Key>folder/a</Key><Size>{}</Size><LastModified>{}</LastModified></Contents>",
        "<Contents><Key>folder/a</Key></Contents>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]>",
        "<a>" * 1000,
        "<Contents><Key>elsewhere/a</Key><Size>1</Size>"
        "<LastModified>2015-10-21T07:28:00Z</LastModified></Contents>",
    ],
)
@pytest.mark.parametrize("value", [2**63 + 5, -1, "1e3", "", "9" * 5000])
def test_a_listing_that_is_none_is_an_error(answers: Answers, content: str, value: object) -> None:
    content = content.format(value, value)
    body = f"<ListBucketResult><Name>bucket</Name>{content}</ListBucketResult>"
    answers.always(Answer(200, body.encode()))
    with pytest.raises(StoreError):
        list(DirectS3(place_at(answers.endpoint)).list("folder"))


def test_a_slow_transfer_that_lives_does_not_fail(answers: Answers) -> None:
    """It takes three times the timeout, and each piece comes in time."""
    content = b"x" * 60_000

    def answer() -> Iterator[bytes]:
        head = RANGE.replace("0-63/1000", "0-59999/60000")
        yield f"{head}Connection: close\r\nContent-Length: 60000\r\n\r\n".encode()
        for start in range(0, 60_000, 10_000):
            time.sleep(0.25)
            yield content[start : start + 10_000]

    with saying(answer) as endpoint:
        store = DirectS3(place_at(endpoint, timeout=0.5))
        assert store.get_ranges(KEY, [(0, 60_000)]) == [content]
        assert b"".join(store.stream(KEY, 0, 60_000)) == content


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_body_that_drips_is_given_up_and_asked_again_until_the_deadline(client: str) -> None:
    with saying(ANSWERS["range a byte at a time"]) as endpoint:
        store = RetriedStore(CLIENTS[client](place_at(endpoint, timeout=0.5)), deadline=1)
        began = time.monotonic()
        with pytest.raises(StoreTimeoutError, match=r"took too long.*gave up after"):
            store.get_ranges(KEY, [(0, 64)])
        assert time.monotonic() - began < 20
