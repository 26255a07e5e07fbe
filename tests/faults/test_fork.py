"""Processes that were forked after the parent has read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from storage_loader import Dataset, save
from storage_loader.errors import ObjectExistsError, ObjectNotFoundError
from storage_loader.layout import ObjectLayout
from storage_loader.store import MemoryStore, Store
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support import ROOT
from tests.support.answers import OBJECT, Answer, Answers, Request
from tests.support.forked import Forked, forked
from tests.support.places import folder_store, s3_place
from tests.support.rows import config, make, numbers_of
from tests.support.s3 import S3Server
from tests.support.waiting import until


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Keyword arguments of a `DataConfig`."""
    if request.param == "s3":
        return request.getfixturevalue("s3_storage")
    if request.param == "memory":
        return {"storage": f"memory://{uuid.uuid4().hex}"}
    return {"storage": str(tmp_path / "some folder")}


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        return S3Store(s3_place(server, request.getfixturevalue("s3_bucket"), "some prefix"))
    if request.param == "memory":
        return MemoryStore(f"memory://{uuid.uuid4().hex}")
    return folder_store(tmp_path)


def use_all(store: Store, key: str) -> list[object]:
    """Every verb, on an object of the parent and on one of its own."""
    seen: list[object] = [
        bytes(store.get("parent")),
        [bytes(b) for b in store.get_ranges("parent", [(5, 8), (0, 2)])],
        [[bytes(b) for b in each] for each in store.get_many([("parent", [(0, 1)])] * 3)],
        [bytes(b) for b in store.find_all(["parent"] * 3)],
        b"".join(store.stream("parent", 2, 6)),
        store.head("parent").nbytes,
        "parent" in {info.key for info in store.list()},
    ]
    store.put(key, b"first")
    store.put(f"{key}-new", b"new", create=True)
    with pytest.raises(ObjectExistsError):
        store.put(key, b"second", create=True)
    seen.append(bytes(store.get(key)))
    store.delete([f"{key}-new"])
    with pytest.raises(ObjectNotFoundError):
        store.get(f"{key}-new")
    seen.append(sorted(store.list_folders("children")))
    store.prepare()
    return seen


SEEN = [
    b"0123456789",
    [b"567", b"01"],
    [[b"0"]] * 3,
    [b"0123456789"] * 3,
    b"2345",
    10,
    True,
    b"first",
]


def test_children_read_and_write(store: Store) -> None:
    store.put("parent", b"0123456789")
    assert use_all(store, "children/0/x")[:-1] == SEEN
    children = [Forked(lambda i=i: use_all(store, f"children/{i}/x")) for i in range(1, 5)]
    for child in children:
        assert child.result()[:-1] == SEEN
    assert use_all(store, "children/0/x")[:-1] == SEEN
    written = {info.key for info in store.list("children")}
    if isinstance(store, MemoryStore):  # a child has a copy of it
        assert written == {"children/0/x"}
    else:
        assert written == {f"children/{i}/x" for i in range(5)}


def test_children_of_children(store: Store) -> None:
    store.put("parent", b"0123456789")
    store.get("parent")

    def child() -> list[object]:
        first = use_all(store, "children/child/x")
        return [*first, *forked(lambda: use_all(store, "children/grandchild/x"))]

    assert [each for each in forked(child) if each in SEEN] == SEEN * 2


def test_a_fork_while_other_threads_read(store: Store) -> None:
    store.put("parent", b"0123456789")
    stop, counts = threading.Event(), [0] * 4

    def read(i: int) -> None:
        while not stop.is_set():
            assert [bytes(b) for b in store.get_ranges("parent", [(0, 3), (5, 6)])] == [
                b"012",
                b"5",
            ]
            assert store.find_all(["parent"] * 2) == [b"0123456789"] * 2
            counts[i] += 1

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        for i in range(4):
            assert forked(lambda i=i: use_all(store, f"children/{i}/x"))[:-1] == SEEN
        until(lambda: all(counts))
    finally:
        stop.set()
        for thread in threads:
            thread.join(100)


def test_rows_are_read_and_saved_by_children(storage: dict[str, str]) -> None:
    parent = config(storage)
    save(parent, make(range(1000)))
    dataset = Dataset(parent)
    assert numbers_of(dataset[[3, 999, 500]]) == [3, 999, 500]

    def child(i: int) -> tuple[list[int], list[int], int]:
        inherited = numbers_of(dataset[[i, 999 - i]])
        opened = numbers_of(Dataset(parent)[10 * i : 10 * i + 5])
        own = config(storage, name=f"child-{i}")
        save(own, make(range(i)))
        return inherited, opened, len(Dataset(own))

    children = [Forked(lambda i=i: child(i)) for i in range(1, 4)]
    for i, each in enumerate(children, start=1):
        inherited, opened, saved = each.result()
        assert inherited == [i, 999 - i]
        assert opened == list(range(10 * i, 10 * i + 5))
        assert saved == i
    assert numbers_of(dataset[::-1]) == list(range(999, -1, -1))


@pytest.mark.parametrize("what", ["block_ranges", "num_checksums"])
def test_a_fork_while_a_thread_computes_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A child waits for no thread of its parent, of which it has none."""
    configs = [config({"storage": str(tmp_path)}, name=name) for name in "ab"]
    for each in configs:
        save(each, make(range(100)))
    computes, goes_on = threading.Event(), threading.Event()
    kept = vars(ObjectLayout)[what]
    real = kept.func

    def wait(layout: ObjectLayout) -> object:
        if threading.current_thread() is thread:
            computes.set()
            assert goes_on.wait(200)
        return real(layout)

    monkeypatch.setattr(kept, "func", wait)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(numbers_of(Dataset(configs[0])[:])))
    thread.start()
    try:
        assert computes.wait(100)
        assert forked(lambda: numbers_of(Dataset(configs[1])[:])) == list(range(100))
    finally:
        goes_on.set()
        thread.join(100)
    assert seen == list(range(100))


def test_a_fork_while_a_thread_puts_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    puts, goes_on = threading.Event(), threading.Event()

    def wait(key: str) -> str:
        if threading.current_thread() is thread:
            puts.set()
            assert goes_on.wait(200)
        return key

    store = MemoryStore(f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr("storage_loader.store.memory.check_key", wait)
    thread = threading.Thread(target=store.put, args=("parent", b"1"))
    thread.start()
    try:
        assert puts.wait(100)

        def child() -> bytes:
            store.put("child", b"2", create=True)
            with pytest.raises(ObjectExistsError):
                store.put("child", b"3", create=True)
            return bytes(store.get("child"))

        assert forked(child) == b"2"
    finally:
        goes_on.set()
        thread.join(100)
    assert bytes(store.get("parent")) == b"1"


def test_a_child_that_ends_leaves_the_parents_connections_alone(
    answers: Answers,
) -> None:
    """And one that goes on with a stream of the parent's asks over a connection of its own."""
    content = bytes(range(250)) * 40_000

    def serve(request: Request) -> Answer:
        asked = request.headers.get("range")
        if asked is None:
            return Answer(200, content, OBJECT)
        start, end = (int(each) for each in asked.removeprefix("bytes=").split("-"))
        headers = {**OBJECT, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        return Answer(206, content[start : end + 1], headers)

    answers.answer = serve
    place = S3Place("bucket", "", answers.endpoint, "us-east-1", "access", "secret")
    store = RetriedStore(S3Store(place), deadline=20)
    pieces = store.stream("key", 0, len(content))
    received = bytes(next(pieces))

    def child() -> bool:
        gc.collect()
        return received + b"".join(pieces) == content and store.get("key") == content

    assert forked(child)
    assert received + b"".join(pieces) == content
    assert len(answers.requests) == 3


PROGRAM = """
import os, sys
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place

store = S3Store(S3Place(*sys.argv[1:]))
pid = os.fork()
name = "parent" if pid else "child"
store.put(name, name.encode())
assert store.get(name) == name.encode()
# One write: both processes share the pipe, and print makes several where it is unbuffered.
os.write(1, f"{name}\\n".encode())
if pid:
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_fork_before_the_first_use(s3_server: S3Server, s3_bucket: str) -> None:
    place = s3_place(s3_server, s3_bucket)
    arguments = [
        place.bucket, "p", str(place.endpoint), place.region, str(place.access_key),
        str(place.secret_key),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["child", "parent"]


IMPORTS = """
import sys

import numpy as np
from storage_loader import DataConfig, DataLoader, Dataset, save

config = DataConfig("numbers", [("x", "int64")], storage=sys.argv[1])
save(config, {"x": np.arange(20_000)})
before = set(sys.modules)
for shuffle in (False, True, "global"):
    loader = DataLoader(config, batch_size=100, shuffle=shuffle, transform=lambda batch: batch)
    assert sorted(np.concatenate([b["x"] for b in loader]).tolist()) == list(range(20_000))
assert Dataset(config)[[3, 1]]["x"].tolist() == [3, 1]
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("storage", ["memory://numbers", "folder"])
def test_no_module_is_imported_while_rows_are_loaded(storage: str, tmp_path: Path) -> None:
    """A child that is forked in the middle of an import has half of the module, for ever."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, storage],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


OPENS = """
import os, signal, sys, threading
from storage_loader import DataConfig
from storage_loader.store import open_store

config = DataConfig("x", storage="s3://bucket", endpoint="http://127.0.0.1:1")
begins, forks = threading.Event(), threading.Event()


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "minio" and not begins.is_set():
            begins.set()
            assert not forks.wait(0.5), "a child was forked in the middle of the import"


sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=open_store, args=(config,))
thread.start()
assert begins.wait(60)
child = os.fork()
forks.set()
if not child:
    signal.alarm(20)
    open_store(config)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


def test_a_fork_waits_for_a_thread_that_imports_the_clients_of_s3() -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OPENS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=100,
    )


FORKS = """
import os, sys, threading, warnings
import storage_loader

warnings.simplefilter("ignore")  # Python's own about threads and forks
failed = []


def forks():
    for _ in range(100):
        try:
            child = os.fork()
        except RuntimeError as error:
            failed.append(error)
            continue
        if not child:
            os._exit(0)
        os.waitpid(child, 0)


threads = [threading.Thread(target=forks) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed[0]
assert "filelock" not in sys.modules
"""


def test_threads_of_a_process_that_imports_us_may_fork_beside_each_other() -> None:
    """From Python 3.12 on filelock 4.2 makes that an error for whoever imports it."""
    subprocess.run([sys.executable, "-c", FORKS], check=True, timeout=100, cwd=ROOT)
