"""What is asked again, when, how often, and what is said of it: on a store that fails as told."""

from __future__ import annotations

import gc
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import DataConfig, DataLoader, save
from storage_loader.errors import (
    BucketNotFoundError,
    ConfigError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from storage_loader.store import CountedStore, Counter, MemoryStore, Store, open_store
from storage_loader.store import retried as module
from storage_loader.store.base import WHOLE
from storage_loader.store.outage import Outage
from storage_loader.store.retried import RetriedStore, pause
from storage_loader.store.s3_place import ConflictError, S3Place
from tests.support.answers import OBJECT, Answer, Answers, Request, error
from tests.support.places import CLIENTS
from tests.support.rows import config, make

MODIFIED = OBJECT["Last-Modified"]
CONTENT = bytes(range(200)) * 5
PASSING = [StoreConnectionError, StoreTimeoutError, StoreUnavailableError, ConflictError]
FINAL = [StoreError, ObjectNotFoundError, ObjectExistsError, BucketNotFoundError,
         PermissionDeniedError]  # fmt: skip


class Faulty(MemoryStore):
    """Raises the next of `faults` (None: works) at each request; `asked` holds all requests."""

    def __init__(self, url: str, *faults: StoreError | None) -> None:
        super().__init__(url)
        self.faults = list(faults)
        self.asked: list[tuple[Any, ...]] = []
        self.arrives_all_the_same = False
        self._lock = threading.Lock()

    def _ask(self, *request: Any) -> StoreError | None:
        with self._lock:
            self.asked.append(request)
            return self.faults.pop(0) if self.faults else None

    def _check(self, *request: Any) -> None:
        fault = self._ask(*request)
        if fault is not None:
            raise fault

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        self._check("get", key)
        return super().get(key, limit=limit)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        self._check("ranges", key, *ranges)
        return super().get_ranges(key, ranges)

    def stream(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """A piece of 100 bytes at a time; a fault comes after two of them."""
        fault = self._ask("stream", key, start, end)
        data = super()._object(key)
        stop = end if fault is None else min(end, start + 200)
        for at in range(start, stop, 100):
            yield data[at : min(at + 100, stop)]
        if fault is not None:
            raise fault

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        fault = self._ask("put", key)
        if fault is None or self.arrives_all_the_same:
            super().put(key, data, create=create)
        if fault is not None:
            raise fault

    def head(self, key: str) -> Any:
        self._check("head", key)
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[Any]:
        """A fault comes after two keys."""
        fault = self._ask("list", prefix)
        for number, info in enumerate(super().list(prefix)):
            if fault is not None and number == 2:
                raise fault
            yield info

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        self._check("folders", prefix)
        return super().list_folders(prefix)

    def delete(self, keys: Any) -> None:
        keys = tuple(keys)
        self._check("delete", *keys)
        super().delete(keys)

    def prepare(self) -> None:
        self._check("prepare")


VERBS: dict[str, Callable[[Store], object]] = {
    "get": lambda s: bytes(s.get("a/0")),
    "ranges": lambda s: list(map(bytes, s.get_ranges("a/0", [(0, 5)]))),
    "many": lambda s: [list(map(bytes, b)) for b in s.get_many([("a/0", [(0, 5)])])],
    "all": lambda s: [None if data is None else bytes(data) for data in s.find_all(["a/0"])],
    "stream": lambda s: b"".join(s.stream("a/0", 0, 900)),
    "put": lambda s: s.put("b", b"x"),
    "create": lambda s: s.put("b", b"x", create=True),
    "head": lambda s: s.head("a/0").nbytes,
    "list": lambda s: sorted(info.key for info in s.list("a")),
    "folders": lambda s: s.list_folders(),
    "delete": lambda s: s.delete(["c", "d"]),
    "prepare": lambda s: s.prepare(),
}


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes only by waiting; what was waited for."""
    found: list[float] = []
    # Its own clock alone: other threads of this process wait too.
    clock = SimpleNamespace(sleep=found.append, monotonic=lambda: sum(found))
    monkeypatch.setattr(module, "time", clock)
    return found


@pytest.fixture
def faulty(memory: dict[str, str]) -> Faulty:
    store = Faulty(memory["storage"])
    for number in range(5):
        MemoryStore.put(store, f"a/{number}", CONTENT)
    return store


def busy(text: str = "HTTP 503") -> StoreError:
    return StoreUnavailableError(text)


# When


@given(
    kind=st.sampled_from(PASSING),
    attempt=st.integers(1, 10_000),
    elapsed=st.floats(0, 200),
    patience=st.floats(0, 200),
    chance=st.floats(0, 1),
)
def test_waits_grow_and_end_with_patience(
    kind: type[StoreError], attempt: int, elapsed: float, patience: float, chance: float
) -> None:
    how = {"attempt": attempt, "elapsed": elapsed, "patience": patience, "chance": chance}
    seconds = pause(kind("x"), **how)  # type: ignore[arg-type]
    if elapsed >= patience:
        assert seconds is None
        return
    longest = min(5.0, 0.1 * 2 ** min(attempt - 1, 20))
    assert seconds is not None
    assert min(longest / 2, patience - elapsed) <= seconds <= min(longest, patience - elapsed)
    for final in FINAL:
        assert pause(final("x"), **how) is None  # type: ignore[arg-type]


def test_chance_spreads_the_waits() -> None:
    how = {"attempt": 3, "elapsed": 0.0, "patience": 100.0}
    waits = [pause(busy(), chance=chance, **how) for chance in (0, 0.5, 1)]  # type: ignore[arg-type]
    assert waits == pytest.approx([0.2, 0.3, 0.4])


# What


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", PASSING)
def test_what_can_pass_is_asked_again(
    faulty: Faulty, verb: str, kind: type[StoreError], waits: list[float]
) -> None:
    expected = VERBS[verb](Faulty(faulty.url))
    if verb == "create":
        faulty.delete(["b"])
    faulty.asked.clear()
    faulty.faults = [kind("x"), kind("y"), None]
    assert VERBS[verb](RetriedStore(faulty, deadline=60)) == expected
    assert len(faulty.asked) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", FINAL)
def test_what_cannot_pass_is_final(
    faulty: Faulty, verb: str, kind: type[StoreError], waits: list[float]
) -> None:
    faulty.faults = [kind("the reason")]
    if verb == "all" and kind is ObjectNotFoundError:  # which is what it tells of an object
        assert VERBS[verb](RetriedStore(faulty, deadline=60)) == [None]
    else:
        with pytest.raises(kind, match=r"^the reason$"):
            VERBS[verb](RetriedStore(faulty, deadline=60))
    assert (len(faulty.asked), waits) == (1, [])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("list", "stream")])
def test_the_last_error_says_what_was_done(
    faulty: Faulty, verb: str, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    last = busy("put s3://b/k at http://host: the server answered HTTP 503")
    faulty.faults = [busy("one")] * 200
    store = RetriedStore(faulty, deadline=60)
    store._server.answered()
    faulty.faults[:] = [last] * 200
    with pytest.raises(StoreUnavailableError) as caught:
        VERBS[verb](store)
    assert caught.value.__cause__ is last
    assert sum(waits) == pytest.approx(60)
    count = len(waits) + 1
    assert 15 <= count <= 30
    assert str(caught.value) == f"{last}; gave up after {count} attempts in 60.0 s"
    logs = [r for r in caplog.records if r.name == "storage_loader.store.retried"]
    warnings = [r for r in logs if r.levelno == logging.WARNING]
    assert len(warnings) == 2  # when it has lasted 5 s, and 30 s later
    logs = [r for r in logs if r.levelno == logging.INFO]
    assert len(logs) == len(waits)
    assert logs[0].getMessage().startswith(f"{last}; attempt 1 failed after 0.0 s, the next one")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "storage_loader.store.retried" and record.levelno == logging.WARNING
    ]


def test_an_outage_is_said_when_it_begins_goes_on_and_ends(
    faulty: Faulty, waits: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Of one store, whoever uses it, and however many requests fail meanwhile."""
    saver, loader = RetriedStore(faulty, deadline=300), RetriedStore(faulty, deadline=300)
    saver._server.answered()
    fine = loader._server.outage  # of a process, and not of one who uses the store
    assert fine is saver._server.outage
    url = faulty.url
    for _ in range(2):
        caplog.clear()
        waits.clear()
        faulty.faults = [busy("HTTP 503")] * 30
        saver.put("b", b"x")
        assert sum(waits) > 65
        begun, *later, over = said(caplog)
        assert re.fullmatch(rf"{url} has failed for ([5-9]|10) s: HTTP 503; each operat.*", begun)
        assert begun.endswith("is tried again for up to 300 s")
        assert sum(waits) // 40 <= len(later) <= sum(waits) // 30
        assert re.fullmatch(
            rf"{url} has failed for (3[5-9]|4[0-4]) s: \d+ requests failed, 1 operations wait, the "
            "last error: HTTP 503", later[0],
        )  # fmt: skip
        assert over == f"{url} answers again after {sum(waits):.0f} s; 30 requests had failed"
    caplog.clear()
    faulty.faults = [busy()] * 4  # for a second or two: no news
    loader.get("a/0")
    assert said(caplog) == []


def test_an_outage_lasts_while_any_operation_fails(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    outage = Outage("s3://b", module._log, lambda: now)
    put, get = (type(name, (), {})() for name in ("Put", "Get"))
    for now in range(20):
        outage.fails(put, busy(), elapsed=now, deadline=60)
        outage.succeeds(get)  # the server takes no puts, and answers everything else
    assert len(said(caplog)) == 1
    outage.gives_up(put)  # its error is raised
    assert len(said(caplog)) == 1
    now = 25.0
    outage.succeeds(get)
    # Quiet failures before a get succeeded are not counted, those from the fifth second on are.
    assert said(caplog)[1:] == ["s3://b answers again after 25 s; 15 requests had failed"]
    for now in (30.0, 40.0):
        outage.fails(put, busy(), elapsed=now - 30.0, deadline=60)
    assert len(said(caplog)) == 3
    del put  # interrupted: nobody says so
    gc.collect()
    outage.succeeds(get)
    assert len(said(caplog)) == 4


def test_many_threads_say_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("s3://b", module._log)
    started, failed = threading.Barrier(8), threading.Barrier(8)

    def work(_: int) -> None:
        operation = type("Operation", (), {})()
        started.wait()
        for number in range(200):
            outage.fails(operation, busy(), elapsed=number / 10, deadline=60)
        failed.wait()
        outage.succeeds(operation)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    begun, over = said(caplog)
    assert begun.startswith("s3://b has failed for ")
    assert over.endswith("; 1600 requests had failed")


def test_a_deadline_of_zero_asks_once(faulty: Faulty, waits: list[float]) -> None:
    faulty.faults = [busy("the reason")]
    with pytest.raises(StoreUnavailableError, match=r"^the reason$"):
        RetriedStore(faulty, deadline=0).get("a/0")
    assert waits == []


@pytest.mark.parametrize("kind", [StoreConnectionError, StoreTimeoutError])
def test_a_first_contact_fails_soon(
    faulty: Faulty, kind: type[StoreError], waits: list[float]
) -> None:
    store = RetriedStore(faulty, deadline=60)
    faulty.faults = [kind("x")] * 100
    with pytest.raises(kind):
        store.get("a/0")
    assert sum(waits) == pytest.approx(3)
    faulty.faults.clear()
    with pytest.raises(ObjectNotFoundError):
        store.get("none")  # an answer, too
    waits.clear()
    faulty.faults = [kind("x")] * 100
    with pytest.raises(kind):
        store.noting(lambda: None).get("a/0")
    assert sum(waits) == pytest.approx(60)


# How the verbs go on


def test_a_stream_goes_on_where_it_broke(faulty: Faulty) -> None:
    faulty.faults = [busy(), None, busy()]
    store = RetriedStore(faulty, deadline=60)
    assert b"".join(store.stream("a/0", 50, 850)) == CONTENT[50:850]
    assert [asked[2:] for asked in faulty.asked] == [(50, 850), (250, 850)]
    faulty.asked.clear()
    faulty.faults = [busy()] * 4
    assert b"".join(store.stream("a/0", 50, 850)) == CONTENT[50:850]
    assert [a[2] for a in faulty.asked] == [50, 250, 450, 650]  # it broke after the last byte


def test_a_stream_that_gets_on_has_all_the_time(faulty: Faulty, waits: list[float]) -> None:
    MemoryStore.put(faulty, "long", bytes(200_000))
    faulty.faults = [busy()] * 999
    store = RetriedStore(faulty, deadline=10)
    store._server.answered()
    assert len(b"".join(store.stream("long", 0, 200_000))) == 200_000
    assert sum(waits) > 20
    assert max(waits) <= 0.1


def test_of_many_only_what_failed_is_asked_again(faulty: Faulty) -> None:
    store = RetriedStore(faulty, deadline=60)
    keys = [f"a/{number}" for number in range(5)]
    faulty.faults = [None, None, busy(), None, busy()]
    assert store.find_all(keys) == [CONTENT] * 5
    assert len(faulty.asked) == 7
    assert {asked[1] for asked in faulty.asked} == set(keys)
    faulty.asked.clear()
    faulty.faults = [busy(), None, busy(), None]
    ranges = [(0, 10), (20, 30), (40, 50)]
    assert store.get_ranges("a/0", ranges) == [CONTENT[s:e] for s, e in ranges]
    assert [asked[2:] for asked in faulty.asked] == [
        tuple(ranges), ((0, 10),), ((20, 30),), ((20, 30),), ((40, 50),),
    ]  # fmt: skip
    faulty.faults = [None, busy()]
    wanted = [(key, ranges[: 1 + number % 3]) for number, key in enumerate(keys)]
    assert store.get_many(wanted) == [[CONTENT[s:e] for s, e in r] for _, r in wanted]
    assert store.get_many([]) == store.find_all([]) == []


def test_of_many_what_is_final_is_raised(faulty: Faulty, waits: list[float]) -> None:
    faulty.faults = [busy(), PermissionDeniedError("no")]
    with pytest.raises(StoreError):
        RetriedStore(faulty, deadline=0).find_all([f"a/{n}" for n in range(5)])
    faulty.faults.clear()
    with pytest.raises(ObjectNotFoundError):
        RetriedStore(faulty, deadline=60).get_many([(k, [(0, 1)]) for k in ("a/0", "none", "a/1")])
    assert RetriedStore(faulty, deadline=60).find_all(["a/0", "none"]) == [CONTENT, None]


def test_of_many_no_more_begin_after_a_failure(faulty: Faulty, waits: list[float]) -> None:
    """A thousand requests to a silent server would take a thousand timeouts."""
    faulty.faults = [StoreTimeoutError("x")] * 10_000
    with pytest.raises(StoreTimeoutError):
        RetriedStore(faulty, deadline=0).find_all(["a/0"] * 1000)
    assert len(faulty.asked) <= 32


class Meeting(MemoryStore):
    """`get` waits for a `list` that is under way, and then raises what `faults` holds, in turn."""

    def __init__(self, url: str, *faults: StoreError) -> None:
        super().__init__(url)
        self.faults = list(faults)
        self.is_listing = threading.Event()

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        assert self.is_listing.wait(60)
        if self.faults:
            raise self.faults.pop(0)
        return super().get(key, limit=limit)

    def list(self, prefix: str = "") -> Iterator[Any]:
        self.is_listing.set()
        return super().list(prefix)


@pytest.mark.parametrize("faults", [0, 1, 5])
def test_an_object_and_a_list_are_asked_for_at_once(
    faulty: Faulty, waits: list[float], faults: int
) -> None:
    store = RetriedStore(Meeting(faulty.url, *[busy()] * faults), deadline=60)
    found, infos = store.find_and_list("a/3", "a")
    assert found == CONTENT
    assert sorted(info.key for info in infos) == [f"a/{number}" for number in range(5)]
    assert len(waits) == max(0, faults - 1)
    assert store.find_and_list("none", "nowhere") == (None, [])
    store = RetriedStore(Meeting(faulty.url, PermissionDeniedError("no"), busy()), deadline=0)
    with pytest.raises(StoreUnavailableError, match="503"):
        store.find_and_list("a/3", "a")
    faulty.faults = [busy()] * 2
    assert len(RetriedStore(faulty, deadline=60).find_and_list("a/3", "a")[1]) == 5


def test_a_list_that_breaks_lists_each_key_once(faulty: Faulty) -> None:
    faulty.faults = [busy(), busy()]
    found = [info.key for info in RetriedStore(faulty, deadline=60).list("a")]
    assert sorted(found) == [f"a/{number}" for number in range(5)]
    assert len(faulty.asked) == 3


@pytest.mark.parametrize("lost", PASSING[:3])
def test_a_create_whose_answer_was_lost(faulty: Faulty, lost: type[StoreError]) -> None:
    store = RetriedStore(faulty, deadline=60)
    faulty.faults, faulty.arrives_all_the_same = [lost("x")], True
    store.put("new", b"mine", create=True)
    assert MemoryStore(faulty.url).get("new") == b"mine"
    MemoryStore(faulty.url).put("other", b"theirs")
    faulty.faults, faulty.arrives_all_the_same = [lost("x")], False
    with pytest.raises(ObjectExistsError):
        store.put("other", b"mine", create=True)
    with pytest.raises(ObjectExistsError):  # the same bytes, and no doubt whose
        store.put("other", b"theirs", create=True)
    faulty.faults = [ConflictError("x")]  # an answer: nothing of it arrived
    with pytest.raises(ObjectExistsError):
        store.put("other", b"theirs", create=True)


def test_deletes_of_very_many_keys_are_cut(faulty: Faulty) -> None:
    RetriedStore(faulty, deadline=60).delete(f"k{n}" for n in range(10_001))
    assert [len(asked) - 1 for asked in faulty.asked] == [10_000, 1]


# Who waits, and who is told


def test_a_stop_ends_the_wait(faulty: Faulty, waits: list[float]) -> None:
    stop = threading.Event()
    store = RetriedStore(faulty, deadline=60).until(stop)
    asked = threading.Event()
    faulty.faults = [busy()] * 1000
    errors: list[StoreError] = []

    def get() -> None:
        asked.set()
        try:
            store.find_all(["a/0", "a/1"])
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=get)
    thread.start()
    asked.wait()
    stop.set()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert waits == []
    count = len(faulty.asked)
    with pytest.raises(StoreUnavailableError):
        store.get("a/0")
    assert len(faulty.asked) == count + 1


def test_once_asks_once(faulty: Faulty) -> None:
    faulty.faults = [busy()]
    with pytest.raises(StoreUnavailableError):
        RetriedStore(faulty, deadline=60).once().delete(["a/0"])
    assert len(faulty.asked) == 1


def test_retries_are_counted(faulty: Faulty) -> None:
    counter = Counter()
    store = RetriedStore(faulty, deadline=60)
    counted = CountedStore(store, counter)
    faulty.faults = [busy(), busy()]
    assert counted.get("a/0") == CONTENT
    assert (counter.total.requests, counter.total.retries) == (1, 2)
    faulty.faults = [busy()]
    assert counted.until(threading.Event()).get("a/0") == CONTENT
    assert (counter.total.requests, counter.total.retries) == (2, 3)
    faulty.faults = [busy()]
    store.get("a/0")  # somebody else's
    assert counter.total.retries == 3


def test_a_loaders_retries_are_in_its_stats(memory: dict[str, str], monkeypatch: Any) -> None:
    the_config = config(memory)
    save(the_config, make(range(100)))
    inner = Faulty(memory["storage"])
    inner.is_local = False
    retrying = RetriedStore(inner, deadline=60)
    monkeypatch.setattr("storage_loader.catalog.catalog.open_store", lambda _: retrying)
    loader = DataLoader(the_config, batch_size=100, index=True)
    loader.open()
    inner.faults = [StoreUnavailableError("x")] * 3
    assert len(list(loader)) == 1
    assert loader.stats.retries == 3


# The settings


def test_a_server_that_answered_another_store_is_no_first_contact(
    memory: dict[str, str], waits: list[float]
) -> None:
    url, server = memory["storage"], f"http://{memory['storage']}"
    RetriedStore(Faulty(url, busy()), deadline=60, server=server).find("a")  # an answer, too
    for other in (f"{url}/other", url):
        waits.clear()
        store = RetriedStore(Faulty(other, *[StoreConnectionError("x")] * 200), 60, server)
        with pytest.raises(StoreConnectionError):
            store.get("a/0")
        assert sum(waits) == pytest.approx(60)
    waits.clear()
    elsewhere = RetriedStore(Faulty(url, *[StoreConnectionError("x")] * 200), 60, f"{server}2")
    with pytest.raises(StoreConnectionError):
        elsewhere.get("a/0")
    assert sum(waits) == pytest.approx(3)
    one, two = (
        open_store(DataConfig("d", storage=f"s3://bucket/{prefix}", endpoint="http://answered:1"))
        for prefix in ("one", "two")
    )
    assert isinstance(one, RetriedStore)
    assert isinstance(two, RetriedStore)
    one._server.answered()
    assert two._server.has_answered


def test_timeout_and_deadline_are_settings() -> None:
    the_config = DataConfig("d", storage="s3://bucket", timeout=3, deadline=7.5)
    assert (the_config.timeout, the_config.deadline) == (3.0, 7.5)
    assert DataConfig.from_json(the_config.to_json()) == the_config
    default = DataConfig("d", storage="s3://bucket")
    assert (default.timeout, default.deadline) == (20.0, 120.0)
    assert default != the_config
    assert default.identity == the_config.identity
    assert default.dataset_prefix == the_config.dataset_prefix
    store = open_store(the_config)
    assert isinstance(store, RetriedStore)
    assert S3Place.of(the_config).timeout == 3.0
    assert store._deadline == 7.5
    for name in ("timeout", "deadline"):
        for wrong in (-1, float("nan"), float("inf"), "3", None, True, 1e9):
            with pytest.raises(ConfigError, match=f"^{name} .*: seconds, from"):
                DataConfig("d", **{name: wrong})
    with pytest.raises(ConfigError, match=r"^timeout 0: "):
        DataConfig("d", timeout=0)
    assert DataConfig("d", deadline=0).deadline == 0


# Both clients


def place(answers: Answers, **settings: Any) -> S3Place:
    return S3Place("bucket", "p", answers.endpoint, "us-east-1", "access", "secret", **settings)


@pytest.mark.parametrize("client", ["direct", "minio"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        *((error(status, code), StoreUnavailableError) for status, code in [
            (500, "InternalError"), (502, ""), (503, "SlowDown"), (504, ""),
            (429, "TooManyRequests"), (400, "RequestTimeout"), (400, "BadDigest"),
            (400, "XAmzContentSHA256Mismatch"),
        ]),
        (Answer(429), StoreUnavailableError),
        (Answer(503), StoreUnavailableError),
        (Answer(200, b"x" * 50, OBJECT, promised=100), StoreConnectionError),
        (error(409, "ConditionalRequestConflict"), ConflictError),
    ],
)  # fmt: skip
def test_what_both_clients_take_for_passing(
    answers: Answers, client: str, answer: Answer, kind: type[StoreError]
) -> None:
    answers.always(answer)
    with pytest.raises(StoreError) as caught:
        CLIENTS[client](place(answers)).get("key")
    assert type(caught.value) is kind
    assert caught.value.is_transient


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_real_stream_goes_on_by_a_range(
    answers: Answers, client: str, waits: list[float]
) -> None:
    content = bytes(range(250)) * 4000

    def serve(request: Request) -> Answer:
        start = int(request.headers["range"].removeprefix("bytes=").partition("-")[0])
        body = content[start:]
        headers = {**OBJECT, "Content-Range": f"bytes {start}-999999/1000000"}
        half = len(body) if len(answers.requests) > 3 else len(body) // 2
        return Answer(206, body[:half], headers, promised=len(body))

    answers.answer = serve
    store = RetriedStore(CLIENTS[client](place(answers)), deadline=60)
    assert b"".join(store.stream("key", 0, len(content))) == content
    assert len(answers.requests) == 4
    starts = [int(r.headers["range"][6:].partition("-")[0]) for r in answers.requests]
    assert starts == sorted(starts)
    assert starts[1] > 0


@contextmanager
def one_connection(handle: Callable[[socket.socket], None]) -> Iterator[str]:
    """An endpoint whose connections `handle` has, each in a thread."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def accept() -> None:
            with suppress(OSError):  # the test is over
                while True:
                    threading.Thread(target=handle, args=listener.accept()[:1], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_body_that_stalls_is_noticed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real time

    def stall(connection: socket.socket) -> None:
        connection.recv(2**16)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nLast-Modified: {MODIFIED}\r\n\r\n"
        connection.sendall(head.encode() + b"x" * 50)
        connection.recv(1)  # until the client has enough
        connection.close()

    with one_connection(stall) as endpoint:
        store = CLIENTS[client](S3Place("bucket", "", endpoint, "r", "a", "b", timeout=0.5))
        begun = time.monotonic()
        with pytest.raises(StoreTimeoutError, match="took too long"):
            store.get("key")
        assert 0.4 < time.monotonic() - begun < 15  # a setting that is lost waits 20 s


@pytest.mark.parametrize("client", ["direct", "minio"])
def test_a_slow_upload_is_no_stalled_one(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real time
    data = bytes(16 * 2**20)
    rate = 4 * 2**20  # bytes a second; what the kernel holds of them is read within a timeout
    received: list[int] = []

    def take_slowly(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(2**16)
        count = len(head.partition(b"\r\n\r\n")[2])
        begun = time.monotonic()
        while count < len(data):
            time.sleep(max(0.0, count / rate - (time.monotonic() - begun)))
            count += len(connection.recv(2**16))
        received.append(count)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "x"\r\n\r\n')
        connection.close()

    with one_connection(take_slowly) as endpoint:
        store = CLIENTS[client](S3Place("bucket", "", endpoint, "r", "a", "b", timeout=3))
        begun = time.monotonic()
        store.put("key", data)
        assert time.monotonic() - begun > 3
    assert received == [len(data)]


def test_a_typo_in_the_endpoint_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real time
    the_config = DataConfig(
        "d", storage="s3://bucket", endpoint="http://127.0.0.1:1", access_key="a", secret_key="b"
    )
    begun = time.monotonic()
    with pytest.raises(StoreConnectionError, match=r"at http://127\.0\.0\.1:1: .*gave up after"):
        DataLoader(the_config).open()
    assert 2 < time.monotonic() - begun < 60  # of the 120 s that a known server gets
