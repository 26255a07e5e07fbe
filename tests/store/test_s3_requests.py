"""What both S3 clients ask of a server: how many requests, for which bytes, how many at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from storage_loader.errors import StoreError
from storage_loader.store import Store
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3_place import THREADS, S3Place
from tests.support.answers import OBJECT, Answer, Answers, Request, error
from tests.support.places import CLIENTS

CONTENT = np.random.default_rng(0).bytes(100_000)
MEBIBYTE = 2**20


def serve(request: Request, content: bytes = CONTENT) -> Answer:
    """A GET of all or of a range."""
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
    if asked is None:
        return Answer(200, content, OBJECT)
    start, end = int(asked[1]), min(int(asked[2]) + 1, len(content))
    headers = {**OBJECT, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
    return Answer(206, content[start:end], headers)


def asked_ranges(answers: Answers) -> list[tuple[int, int]]:
    """The byte ranges of all requests, sorted."""
    asked = [re.fullmatch(r"bytes=(\d+)-(\d+)", r.headers["range"]) for r in answers.requests]
    return sorted((int(a[1]), int(a[2]) + 1) for a in asked if a)


@pytest.fixture(params=["direct", "minio"])
def store(request: pytest.FixtureRequest, answers: Answers) -> Store:
    answers.answer = serve
    return CLIENTS[request.param](
        S3Place("bucket", "p", answers.endpoint, "us-east-1", "access", "secret")
    )


@pytest.mark.parametrize(
    ("ranges", "requests"),
    [
        ([(0, 10)], [(0, 10)]),
        ([(0, 10), (10, 20)], [(0, 20)]),  # touching: one request
        ([(10, 20), (0, 10)], [(0, 20)]),
        ([(0, 10), (5, 20), (7, 8)], [(0, 20)]),  # overlapping
        ([(0, 10), (11, 20)], [(0, 10), (11, 20)]),  # a byte that nobody wants
        ([(0, 10), (0, 10)], [(0, 10)]),
        ([(3, 3), (0, 0)], []),
        ([(0, 0), (50, 60), (100, 100)], [(50, 60)]),
        ([(0, 100_000)], [(0, 100_000)]),
    ],
)
def test_ranges_become_few_requests_for_no_other_byte(
    answers: Answers,
    store: Store,
    ranges: list[tuple[int, int]],
    requests: list[tuple[int, int]],
) -> None:
    assert store.get_ranges("key", ranges) == [CONTENT[start:end] for start, end in ranges]
    assert asked_ranges(answers) == requests


def test_a_stream_asks_once_for_its_bytes(answers: Answers, store: Store) -> None:
    assert b"".join(store.stream("key", 500, 90_000)) == CONTENT[500:90_000]
    assert asked_ranges(answers) == [(500, 90_000)]


def test_a_stream_comes_in_chunks(answers: Answers, store: Store) -> None:
    content = bytes(10 * MEBIBYTE)
    answers.answer = lambda request: serve(request, content)
    sizes = [memoryview(piece).nbytes for piece in store.stream("key", 0, len(content))]
    assert sum(sizes) == len(content)
    assert max(sizes) < 3 * MEBIBYTE


class InFlight:
    """Answers once `least` requests wait at the same time; `most` is how many ever did."""

    def __init__(self, least: int) -> None:
        self.most = 0
        self._now = 0
        self._least = least
        self._changed = threading.Condition()

    def __call__(self, request: Request) -> Answer:
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._least, timeout=15)
        answer = serve(request)
        with self._changed:
            self._now -= 1
        return answer


@pytest.mark.parametrize(
    "work",
    [
        lambda s: s.get_many([(f"key{i}", [(i, i + 10)]) for i in range(100)]),
        lambda s: s.find_all([f"key{i}" for i in range(100)]),
    ],
    ids=["get_many", "find_all"],
)
def test_many_are_in_flight_but_not_all(
    answers: Answers, store: Store, work: Callable[[Store], object]
) -> None:
    flight = answers.answer = InFlight(least=THREADS)
    work(RetriedStore(store, deadline=0))
    assert len(answers.requests) == 100
    assert flight.most == THREADS


def test_the_ranges_of_one_object_are_in_flight_together(answers: Answers, store: Store) -> None:
    flight = answers.answer = InFlight(least=5)
    ranges = [(i, i + 10) for i in range(0, 4000, 100)]
    assert store.get_ranges("key", ranges) == [CONTENT[start:end] for start, end in ranges]
    assert asked_ranges(answers) == ranges
    assert flight.most >= 5


def test_a_client_asks_once(answers: Answers, store: Store) -> None:
    """What is asked again, and when, is decided in one place: `RetriedStore`."""
    answers.always(error(503, "SlowDown"))
    for work in (
        lambda: store.get("key"),
        lambda: store.put("key", b"x"),
        lambda: store.put("key", b"x", create=True),
        lambda: list(store.list()),
    ):
        del answers.requests[:]
        with pytest.raises(StoreError, match="HTTP 503 SlowDown"):
            work()
        assert len(answers.requests) == 1


def test_a_refusal_is_final(answers: Answers, store: Store) -> None:
    store = RetriedStore(store, deadline=60)
    for status, code in [
        (400, "InvalidRequest"),
        (403, "AccessDenied"),
        (404, "NoSuchKey"),
        (412, "PreconditionFailed"),
    ]:
        answers.always(error(status, code))
        for work in (lambda: store.get("key"), lambda: store.put("key", b"x", create=True)):
            del answers.requests[:]
            with pytest.raises(StoreError):
                work()
            assert len(answers.requests) == 1


def test_stores_of_one_server_share_connections() -> None:
    peers = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            peers.add(self.client_address)
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            for bucket in ("first", "second", "third"):
                place = S3Place(bucket, "p", endpoint, "us-east-1", "access", "secret")
                assert DirectS3(place).get("key") == b"x"
        finally:
            server.shutdown()
            thread.join()
    assert len(peers) == 1
