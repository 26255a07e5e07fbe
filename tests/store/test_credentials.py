"""Keys that expire during a run: a function gives new ones, before they end or once refused."""

from __future__ import annotations

import http.client
import http.server
import itertools
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from storage_loader import Credentials, DataConfig, DataLoader, DataSaver, Dataset, list_datasets
from storage_loader.errors import ConfigError, PermissionDeniedError
from storage_loader.store.keys import Keys
from storage_loader.store.s3_place import S3Place
from tests.support.rows import config, in_batches, make, numbers_in, numbers_of
from tests.support.s3 import S3Server, moto_server

LIFE = 400.0  # s that keys are good for, by the test's clock
SECRET = "the-secret-of-these-keys"


class Clock:
    """Time that passes as told, and a second at each request; a slow machine sees no other."""

    def __init__(self) -> None:
        self.now = time.time()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Datetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(clock.now, tz)

    monkeypatch.setattr("storage_loader.store.keys.datetime", Datetime)
    return clock


class Gate(http.server.ThreadingHTTPServer):
    """Lets requests through to a server whose keys it gave out itself, while they are good."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, behind: S3Server, clock: Clock, *, tells: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self._clock = clock
        self.behind = behind.endpoint.removeprefix("http://")
        self._tells = tells  # when keys expire
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()
        self.used: set[str] = set()
        self.refused: list[str] = []

    @property
    def given(self) -> int:
        """How many keys were asked for."""
        return len(self._ends)

    def credentials(self) -> Credentials:
        """New keys; what `DataConfig` gets."""
        with self._lock:
            name = f"AKIA{len(self._ends):016}"
            self._ends[name] = self._clock.now + LIFE
            expires = datetime.fromtimestamp(self._ends[name], timezone.utc)
        return Credentials(name, SECRET, f"token-of-{name}", expires if self._tells else None)

    def admits(self, name: str, token: str | None) -> bool:
        with self._lock:
            self.used.add(name)
            self._clock.now += 1
            if token == f"token-of-{name}" and self._clock.now < self._ends[name]:
                return True
            self.refused.append(name)
            return False


class _Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def _pass(self) -> None:
        body = self._body()
        name = re.search(r"Credential=([^/]+)/", self.headers["Authorization"])
        assert name
        if not self.server.admits(name[1], self.headers["X-Amz-Security-Token"]):
            answer = b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
            xml = {"Content-Type": "application/xml"}
            self._answer(400 if self.command != "HEAD" else 403, xml, answer)
            return
        behind = http.client.HTTPConnection(self.server.behind)
        skipped = ("transfer-encoding", "content-length", "connection")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
        behind.request(self.command, self.path, body, headers)
        response = behind.getresponse()
        data = response.read()
        kept = {k: v for k, v in response.getheaders() if k.lower() not in (*skipped, "server")}
        if self.command == "HEAD":
            kept["Content-Length"] = response.headers["Content-Length"]
        self._answer(response.status, kept, data)
        behind.close()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    """Takes any keys: those that are good are the gate's to say."""
    yield from moto_server()


@pytest.fixture(params=[True, False], ids=["expiry told", "expiry not told"])
def gate(request: pytest.FixtureRequest, moto: S3Server, clock: Clock) -> Iterator[Gate]:
    with Gate(moto, clock, tells=request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def bucket(moto: S3Server) -> str:
    """A new bucket."""
    name = f"keys-{time.time_ns()}"
    moto.client().make_bucket(name)
    return name


def at(gate: Gate, bucket: str, **settings: Any) -> DataConfig:
    place = {"storage": f"s3://{bucket}", "endpoint": f"http://127.0.0.1:{gate.server_port}"}
    return config({**place, "credentials": gate.credentials, **settings})


def test_keys_that_die_again_and_again(gate: Gate, bucket: str, clock: Clock) -> None:
    """Saving and loading go on over four lives of keys; told when they end, none is refused."""
    the_config = at(gate, bucket)
    count = 120
    with DataSaver(the_config, refresh=True) as saver:
        for numbers in in_batches(0, count, 10):
            saver(make(numbers))
            saver.commit()
            clock.now += LIFE / 6
    dataset = Dataset(the_config)
    read = itertools.cycle(range(count))
    for _ in range(12):
        some = [next(read) for _ in range(7)]
        assert numbers_of(dataset[some]) == some
        clock.now += LIFE / 6
    assert numbers_in(DataLoader(the_config, batch_size=16, index=True)) == list(range(count))
    assert [info.num_rows for info in list_datasets(**storage_of(the_config))] == [count]
    assert len(gate.used) >= 4
    if gate._tells:
        assert gate.refused == []
    else:
        assert gate.refused
        assert gate.given <= len(gate.refused) + 8  # each store's first, then one a refusal


def storage_of(the_config: DataConfig) -> dict[str, Any]:
    names = ("storage", "endpoint", "credentials")
    return {name: getattr(the_config, name) for name in names}


def test_keys_that_stay_refused_are_an_error(gate: Gate, bucket: str) -> None:
    dead = gate.credentials()
    asked: list[int] = []

    def same() -> Credentials:
        asked.append(1)
        return Credentials(dead.access_key, dead.secret_key)  # without the token

    with pytest.raises(PermissionDeniedError, match=r"refused the keys \(ExpiredToken\)") as caught:
        Dataset(at(gate, bucket, credentials=same)).open()
    assert len(asked) == 2
    assert SECRET not in repr(caught.value) + repr(caught.value.__cause__)


def broken() -> Credentials:
    raise RuntimeError("the vault is closed")


@pytest.mark.parametrize(
    ("provider", "error", "text"),
    [
        (broken, PermissionDeniedError, "the function credentials= failed with RuntimeError$"),
        (lambda: ("a", "b"), ConfigError, "^the function credentials= gave tuple; return storage_"),
        (lambda: Credentials("a", ""), PermissionDeniedError, "credentials= failed with ConfigErr"),
    ],
)
def test_a_function_that_gives_no_keys(
    gate: Gate, bucket: str, provider: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Dataset(at(gate, bucket, credentials=provider)).open()
    assert gate.used == set()


def test_worker_processes_ask_for_themselves(moto: S3Server) -> None:
    name = f"keys-workers-{time.time_ns()}"
    moto.client().make_bucket(name)
    place = {"storage": f"s3://{name}", "endpoint": moto.endpoint, "credentials": of_this_module}
    the_config = config(place)
    with DataSaver(the_config) as saver:
        saver(make(range(30)))
    loader = DataLoader(the_config, batch_size=10, index=True, num_workers=1)
    assert numbers_in(loader) == list(range(30))


def of_this_module() -> Credentials:
    return Credentials("any-key", SECRET)


def test_a_function_is_no_part_of_what_is_written() -> None:
    s3 = {"storage": "s3://bucket", "endpoint": "http://127.0.0.1:9000"}
    given = config({**s3, "credentials": of_this_module})
    assert "credentials" not in given.to_json()
    assert "of_this_module" not in repr(given)
    assert given.identity == config(s3).identity
    assert DataConfig.from_json(given.to_json()) == config(s3)
    copy = pickle.loads(pickle.dumps(given))
    assert copy.credentials is of_this_module
    assert SECRET.encode() not in pickle.dumps(given)
    assert SECRET not in repr(of_this_module())
    with pytest.raises(ConfigError, match="keys do not belong in a text"):
        DataConfig.from_json('{"dataset_name": "x", "credentials": null}')


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"credentials": "a key"}, "credentials: a function that returns Credentials, not str"),
        ({"storage": "/tmp/x"}, "credentials is for s3:// storage, not for 'file:///tmp/x'"),
        ({"access_key": "a", "secret_key": "b"}, "credentials and access_key: give one of them"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataConfig("x", **{"storage": "s3://bucket", "credentials": of_this_module, **settings})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("make_one", "text"),
    [
        (lambda: Credentials("", "b"), "access_key is a string that is not empty"),
        (lambda: Credentials("a", None), "secret_key is a string that is not empty"),
        (lambda: Credentials("a", "b", ""), "token is a string that is not empty"),
        (lambda: Credentials("a", "b", None, 5), "expires is a datetime with a time zone, or None"),
        (lambda: Credentials("a", "b", None, datetime(2026, 1, 1)), "expires is a datetime with a"),
    ],
)
def test_wrong_credentials(make_one: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^Credentials: {text}"):
        make_one()


def keys_of(provider: Callable[[], Credentials]) -> Keys:
    return Keys(S3Place("bucket", "", "http://127.0.0.1:1", "us-east-1"), provider)


def test_of_many_threads_one_asks() -> None:
    asked = itertools.count()

    def provider() -> Credentials:
        time.sleep(0.05)
        return Credentials(f"key {next(asked)}", "x")

    keys = keys_of(provider)
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: keys.current(), range(64)))) == 1
        refused = keys.current()
        assert all(pool.map(lambda _: keys.replaced(refused), range(64)))
    assert next(asked) == 2


def test_of_many_requests_with_refused_keys_one_asks() -> None:
    asked: list[int] = []

    def same() -> Credentials:
        asked.append(1)
        return Credentials("key", "x")

    keys = keys_of(same)
    assert not any(keys.replaced(keys.current()) for _ in range(20))
    assert len(asked) == 2


def test_keys_that_came_in_vain_are_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [Credentials("old", "x"), Credentials("old", "x"), Credentials("new", "x")]
    keys = keys_of(lambda: given.pop(0))
    assert not keys.replaced(keys.current())
    monkeypatch.setattr("storage_loader.store.keys._IN_VAIN", 0.0)
    assert keys.replaced(keys.current())
    assert keys.current().access_key == "new"


@pytest.mark.parametrize(
    ("left", "asks"), [(3600, False), (61, False), (1, False), (0, True), (-5, True), (None, False)]
)
def test_keys_are_asked_for_again_only_near_their_end(left: float | None, asks: bool) -> None:
    count = itertools.count()
    now = datetime.now(timezone.utc)

    def provider() -> Credentials:
        expires = None if left is None else now + timedelta(seconds=left)
        return Credentials(f"key {next(count)}", "x", None, expires)

    keys = keys_of(provider)
    assert (keys.current() != keys.current()) == asks
