"""The folder store where a file system shows: killed writers, full disks, locks, permissions."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
    StoreTimeoutError,
)
from storage_loader.store import FolderStore, lock

FORK = multiprocessing.get_context("fork")
LARGE = 5 * 2**20 + 123  # written past the page cache where its memory is aligned


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def keys_of(store: FolderStore, prefix: str = "") -> list[str]:
    return sorted(info.key for info in store.list(prefix))


def names_in(folder: Path) -> list[str]:
    """Everything below a folder, temporary files too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def aligned(data: bytes) -> memoryview:
    """The bytes where a page begins."""
    memory = np.empty(len(data) + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    return memoryview(memory)[start : start + len(data)]  # type: ignore[arg-type]


# Atomicity


def _killed_at(verb: str, store: FolderStore, key: str, data: bytes, *, create: bool) -> None:
    """Put in a child that stops at os.`verb` and is killed there."""
    reached, tell = FORK.Pipe(duplex=False)

    def work() -> None:
        def stop(*args: object, **kwargs: object) -> None:
            tell.send(True)
            time.sleep(200)

        setattr(os, verb, stop)
        store.put(key, data, create=create)

    child = FORK.Process(target=work)
    child.start()
    try:
        assert reached.poll(100)
    finally:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(100)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("verb", ["write", "fsync", "publish"])
def test_a_killed_writer_leaves_nothing_visible(
    store: FolderStore, verb: str, create: bool
) -> None:
    os_verb = ("link" if create else "replace") if verb == "publish" else verb
    _killed_at(os_verb, store, "a/b/new", b"x" * 1000, create=create)
    assert keys_of(store) == []
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b/new")
    store.put("a/b/new", b"second", create=True)
    assert store.get("a/b/new") == b"second"
    assert [(i.key, i.nbytes) for i in store.list()] == [("a/b/new", 6)]


@pytest.mark.parametrize("verb", ["write", "fsync", "replace"])
def test_a_killed_writer_leaves_the_object_that_was_there(store: FolderStore, verb: str) -> None:
    store.put("a/old", b"first")
    _killed_at(verb, store, "a/old", b"second", create=False)
    assert store.get("a/old") == b"first"
    assert keys_of(store) == ["a/old"]


def test_a_writer_killed_after_it_published_has_published(store: FolderStore) -> None:
    _killed_at("unlink", store, "a/new", b"whole", create=True)
    assert store.get("a/new") == b"whole"
    assert [(i.key, i.nbytes) for i in store.list()] == [("a/new", 5)]


@pytest.mark.parametrize("verb", ["write", "fsync", "replace"])
def test_what_a_killed_writer_leaves_is_listed_and_deleted_as_such(
    store: FolderStore, verb: str
) -> None:
    store.put("a/b/old", b"first")
    store.put("c/other", b"x")
    _killed_at(verb, store, "a/b/old", b"second", create=False)
    _killed_at(verb, store, "c/new", b"third", create=False)
    [left] = store.list_unfinished("a")
    [other] = [info for info in store.list_unfinished() if info != left]
    assert left.key.startswith("a/b/.tmp-")
    assert left.nbytes == (store.root / left.key).stat().st_size
    store.delete_unfinished([left.key, other.key, "c/.tmp-gone"])
    assert list(store.list_unfinished()) == []
    assert names_in(store.root) == ["a", "a/b", "a/b/old", "c", "c/other"]
    assert store.get("a/b/old") == b"first"


def test_only_unfinished_files_are_deleted_as_such(store: FolderStore) -> None:
    store.put("a/key", b"x")
    (store.root / ".tmp-lock").touch()  # of puts without hard links: it stays
    assert list(store.list_unfinished()) == []
    for key in ("a/key", ".tmp-lock", "../.tmp-x", "a/.tmp-x/key"):
        with pytest.raises(StoreError, match=re.escape(repr(key))):
            store.delete_unfinished([key])
    assert names_in(store.root) == [".tmp-lock", "a", "a/key"]


def test_an_object_is_not_listed_while_it_is_written(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = os.fsync

    def look(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are synced as they are made
            seen.append((keys_of(store), keys_of(store, "a"), names_in(store.root)))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    store.put("a/key", b"x")
    [(listed, listed_below, names)] = seen
    assert listed == listed_below == []
    assert names[0] == "a"
    assert names[1].startswith("a/.tmp-")
    assert names_in(store.root) == ["a", "a/key"]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("at", ["write", "fsync", "publish"])
def test_a_failed_write_leaves_nothing(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, at: str, create: bool
) -> None:
    store.put("a/other", b"x")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    verb = ("link" if create else "replace") if at == "publish" else at
    with monkeypatch.context() as patch, pytest.raises(StoreFullError) as error:
        patch.setattr(os, verb, full)
        store.put("a/key", b"y" * 1000, create=create)
    assert str(error.value) == f"put {store.url}/a/key: No space left on device"
    assert names_in(store.root) == ["a", "a/other"]


@pytest.mark.parametrize("put", [lambda data: data, aligned], ids=["anywhere", "aligned"])
def test_a_short_write_goes_on(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, put: Callable[[bytes], memoryview]
) -> None:
    real, written = os.write, []

    def short(descriptor: int, data: memoryview) -> int:
        size = 10_000 if len(written) % 2 else 2**20
        written.append(real(descriptor, data[:size]))
        return written[-1]

    monkeypatch.setattr(os, "write", short)
    data = np.random.default_rng(0).bytes(LARGE)
    store.put("key", put(data))
    assert store.get("key") == data
    assert len(written) > 5


@pytest.mark.parametrize("nbytes", [0, 1, 4095, 4096, 4097, 4 * 2**20 - 1, 4 * 2**20, LARGE])
@pytest.mark.parametrize("offset", [0, 1])
def test_large_objects_past_the_page_cache(store: FolderStore, nbytes: int, offset: int) -> None:
    data = np.random.default_rng(nbytes).bytes(nbytes + offset)
    memory = aligned(data)[offset:]
    store.put("key", memory)
    assert store.get("key") == data[offset:]


def test_a_file_system_without_such_writes(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmpfs and some network file systems refuse O_DIRECT at the first write."""
    import fcntl

    real, refused = os.write, []

    def refuse(descriptor: int, data: memoryview) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(len(data))
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    store.put("small", aligned(bytes(4 * 2**20 - 1)))
    assert refused == []
    data = np.random.default_rng(0).bytes(LARGE)
    store.put("key", aligned(data))
    assert store.get("key") == data
    assert refused == [LARGE - LARGE % 4096]


# Durability


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was synced and published, in order: the file, or a folder by its path."""
    seen: list[tuple[str, str]] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        name = os.path.realpath(f"/proc/self/fd/{descriptor}") if folder else ""
        seen.append(("sync folder", name) if folder else ("sync file", ""))

    def linked(source: str, target: str, **folders: Any) -> None:
        link(source, target, **folders)
        seen.append(("publish", target))

    def replaced(source: str, target: str, **folders: Any) -> None:
        replace(source, target, **folders)
        seen.append(("publish", target))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "replace", replaced)
    return seen


@pytest.mark.parametrize("create", [False, True])
def test_file_and_folders_are_synced(
    store: FolderStore, events: list[tuple[str, str]], create: bool
) -> None:
    store.put("a/b/one", b"x", create=create)
    root = os.path.realpath(store.root)
    # All folders are new, the root too, so each one's own folder holds a new name.
    assert events == [
        *(("sync folder", path) for path in (os.path.dirname(root), root, f"{root}/a")),
        ("sync file", ""),
        ("publish", "one"),
        ("sync folder", f"{root}/a/b"),
    ]
    del events[:]
    store.put("a/b/two", b"x", create=create)
    assert events == [("sync file", ""), ("publish", "two"), ("sync folder", f"{root}/a/b")]
    del events[:]
    store.put("a/c/three", b"x", create=create)
    assert events == [
        ("sync folder", f"{root}/a"),
        ("sync file", ""),
        ("publish", "three"),
        ("sync folder", f"{root}/a/c"),
    ]


# File systems without hard links


@pytest.fixture(params=[errno.EPERM, errno.ENOTSUP], ids=["EPERM", "ENOTSUP"])
def no_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str, **folders: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_links")
def test_create_without_hard_links(store: FolderStore) -> None:
    store.put("a/key", b"first", create=True)
    with pytest.raises(ObjectExistsError, match="a/key: the object exists"):
        store.put("a/key", b"second", create=True)
    assert store.get("a/key") == b"first"
    assert keys_of(store) == ["a/key"]
    store.delete(["a/key"])
    assert store.list_folders() == []
    store.put("a/key", b"third", create=True)
    assert store.get("a/key") == b"third"


@pytest.mark.usefixtures("no_links")
def test_a_lock_that_is_a_link_is_not_followed(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    store.root.mkdir()
    (store.root / ".tmp-lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match=r"put .*/a/key: "):
        store.put("a/key", b"x", create=True)
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert keys_of(store) == []


@pytest.mark.usefixtures("no_links")
def test_a_lock_that_is_a_fifo_is_not_waited_for(store: FolderStore) -> None:
    store.root.mkdir()
    os.mkfifo(store.root / ".tmp-lock")
    with pytest.raises(StoreError, match=r"put .*/a/key: that is a FIFO"):
        store.put("a/key", b"x", create=True)


@pytest.mark.usefixtures("no_links")
def test_a_child_that_is_forked_meanwhile_does_not_keep_the_lock(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, children = os.replace, []

    def fork_and_replace(*args: Any, **kwargs: Any) -> None:
        child = os.fork()
        if not child:
            time.sleep(100)
            os._exit(0)
        children.append(child)
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "replace", fork_and_replace)
    store.put("a/first", b"x", create=True)
    monkeypatch.setattr(os, "replace", replace)
    later = FORK.Process(target=lambda: store.put("a/second", b"x", create=True))
    try:
        later.start()
        later.join(50)
        assert later.exitcode == 0
    finally:
        later.kill()
        later.join()
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert keys_of(store) == ["a/first", "a/second"]


HELD = """
import fcntl, os, pathlib, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
child = os.fork() if sys.argv[2] == "forked" else -1
if child:
    print(child, flush=True)
time.sleep(100)
"""


@pytest.fixture
def held(store: FolderStore) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that holds the lock."""
    store.root.mkdir()
    started = []

    def start(how: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", HELD, str(store.root / ".tmp-lock"), how]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("no_links")
def test_a_lock_ends_with_a_process_that_is_killed_and_its_child_lives_on(
    store: FolderStore, held: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = held("forked")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        store.put("a/key", b"x", create=True)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.usefixtures("no_links")
def test_a_lock_that_is_never_released_is_an_error_and_said_before(
    store: FolderStore,
    held: Callable[[str], subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(lock, "_LONG", 0.05)
    monkeypatch.setattr(lock, "_PATIENCE", 0.2)
    process = held("alone")
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(2):
        with pytest.raises(
            StoreTimeoutError, match=r"\.tmp-lock: another process has had this lock"
        ):
            store.put("a/key", b"x", create=True)
    assert (
        caplog.messages
        == [f"{store.root}/.tmp-lock: another process has this lock; it is waited for"] * 2
    )
    process.kill()
    process.wait()
    store.put("a/key", b"x", create=True)
    assert keys_of(store) == ["a/key"]


@pytest.mark.usefixtures("no_links")
def test_one_creator_wins_without_hard_links(store: FolderStore) -> None:
    rounds, num = 10, 8
    barrier = threading.Barrier(num)

    def race(i: int) -> list[bool]:
        won = []
        for r in range(rounds):
            barrier.wait()
            try:
                store.put(f"race/{r}", f"{i}".encode(), create=True)
            except ObjectExistsError:
                won.append(False)
            else:
                won.append(True)
        return won

    with ThreadPoolExecutor(num) as pool:
        won = list(pool.map(race, range(num)))
    for r in range(rounds):
        (winner,) = [i for i in range(num) if won[i][r]]
        assert store.get(f"race/{r}") == f"{winner}".encode()


@pytest.mark.usefixtures("no_links")
def test_one_process_wins_without_hard_links(store: FolderStore) -> None:
    num, rounds = 4, 10
    barrier = FORK.Barrier(num)
    results = FORK.SimpleQueue()

    def race(i: int) -> None:
        for r in range(rounds):
            barrier.wait(100)
            try:
                store.put(f"race/{r}", f"{i}".encode(), create=True)
            except ObjectExistsError:
                continue
            results.put((r, i))

    children = [FORK.Process(target=race, args=(i,)) for i in range(num)]
    for child in children:
        child.start()
    for child in children:
        child.join(200)
        assert child.exitcode == 0
    winners = sorted(results.get() for _ in range(rounds))
    assert results.empty()
    assert [r for r, _ in winners] == list(range(rounds))
    assert [bytes(store.get(f"race/{r}")) for r in range(rounds)] == [
        f"{i}".encode() for _, i in winners
    ]


# Many at once


def test_puts_and_deletes_in_one_folder(store: FolderStore) -> None:
    """The folder itself comes and goes with its objects."""

    def work(i: int) -> None:
        for r in range(60):
            store.put(f"x/y/{i}", f"{r}".encode(), create=True)
            assert store.get(f"x/y/{i}") == f"{r}".encode()
            keys_of(store)
            store.list_folders("x")
            store.delete([f"x/y/{i}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert names_in(store.root) == []


@pytest.mark.parametrize("lost", [FileNotFoundError, FileExistsError])
def test_a_folder_that_goes_while_it_is_made(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, lost: type[OSError]
) -> None:
    """What mkdir raises where a delete beside it takes the folder it has just seen."""
    real, calls = os.mkdir, []

    def mkdir(path: str, *args: Any, **kwargs: Any) -> None:
        calls.append(path)
        if len(calls) < 3:
            raise lost(errno.EEXIST, "it was there a moment ago")
        real(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", mkdir)
    store.put("a/key", b"x", create=True)
    assert store.get("a/key") == b"x"


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Room for 40 more open files: so many numbers are free, whatever others are in use."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/dev/fd")}
    free = itertools.islice((n for n in itertools.count() if n not in used), 40)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 + max(free), limits[1]))
    yield 40
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_reading_many_objects_leaves_no_file_open(store: FolderStore, few_descriptors: int) -> None:
    keys = [f"k{i:03d}" for i in range(5 * few_descriptors)]
    for key in keys:
        store.put(key, key.encode())
    for _ in range(2):
        for key in keys:
            assert store.get(key) == key.encode()
            assert store.get_ranges(key, [(0, 1), (1, 4)]) == [b"k", key[1:].encode()]
            assert b"".join(store.stream(key, 0, 4)) == key.encode()


def test_too_many_open_files_are_an_error_of_ours(store: FolderStore, few_descriptors: int) -> None:
    store.put("a/key", b"x")
    held = []
    with pytest.raises(StoreError) as error:
        for _ in range(2 * few_descriptors):
            held.append(store.get_ranges("a/key", [(0, 1)]))  # noqa: PERF401  held is what grows
    assert str(error.value) == (
        f"get {store.url}/a/key: Too many open files; allow this process more (`ulimit -n`), "
        "each map keeps one"
    )
    assert len(held) > few_descriptors // 2
    del held
    assert store.get("a/key") == b"x"


# What stands in the way


def _as_nobody(work: Callable[[], object]) -> str:
    """What a user without rights gets: `class: text` of the error."""
    receive, send = FORK.Pipe(duplex=False)

    def run() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        try:
            send.send(repr(work()))
        except OSError as error:
            send.send(f"{type(error).__name__}: {error}")

    child = FORK.Process(target=run)
    child.start()
    child.join(100)
    assert child.exitcode == 0
    text: str = receive.recv()
    return text


@pytest.mark.parametrize(
    ("verb", "place", "work"),
    [
        ("get", "/a/key", lambda s: s.get("a/key")),
        ("get", "/a/key", lambda s: s.get_ranges("a/key", [(0, 1)])),
        ("head", "/a/key", lambda s: s.head("a/key")),
        ("put", "/a/new", lambda s: s.put("a/new", b"x")),
        ("put", "/a/new", lambda s: s.put("a/new", b"x", create=True)),
        ("put", "/b/new", lambda s: s.put("b/new", b"x")),
        ("list", "/a", lambda s: list(s.list("a"))),
        ("list", "", lambda s: s.list_folders()),
        ("delete", "/a/key", lambda s: s.delete(["a/key"])),
    ],
)
def test_no_permission(
    store: FolderStore, verb: str, place: str, work: Callable[[FolderStore], object]
) -> None:
    store.put("a/key", b"x")
    folders = [store.root / "a", store.root]
    for folder in folders:
        folder.chmod(0)
    try:
        text = _as_nobody(lambda: work(store))
    finally:
        for folder in reversed(folders):
            folder.chmod(0o755)
    assert text == (
        f"PermissionDeniedError: {verb} {store.url}{place}: no permission; check who owns the "
        f"folder {store.root}"
    )
    assert issubclass(PermissionDeniedError, PermissionError)
    assert names_in(store.root) == ["a", "a/key"]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("key", ["file/x", "file/x/y"])
def test_a_file_where_a_folder_must_be(store: FolderStore, key: str, create: bool) -> None:
    store.put("file", b"x")
    with pytest.raises(StoreError) as error:
        store.put(key, b"y", create=create)
    assert type(error.value) is StoreError
    assert str(error.value) == f"put {store.url}/{key}: a file stands where a folder must be"
    for read in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError, match="a file stands where a folder must be"):
            read(key)
    store.delete([key])
    assert names_in(store.root) == ["file"]


@pytest.mark.parametrize("create", [False, True])
def test_a_folder_where_the_object_must_be(store: FolderStore, create: bool) -> None:
    store.put("folder/x", b"x")
    with pytest.raises(StoreError) as error:
        store.put("folder", b"y", create=create)
    assert type(error.value) is StoreError
    assert str(error.value) == f"put {store.url}/folder: that is a folder, not an object"
    for read in (store.get, store.head):
        with pytest.raises(ObjectNotFoundError, match="that is a folder, not an object"):
            read("folder")
    store.delete(["folder"])
    assert names_in(store.root) == ["folder", "folder/x"]


def test_the_root_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store = FolderStore(tmp_path / "file")
    with pytest.raises(StoreError, match=r"put .*/file/key: a file stands where a folder must be"):
        store.put("key", b"x")
    with pytest.raises(ObjectNotFoundError):
        store.get("key")
    assert keys_of(store) == store.list_folders() == []


def test_the_root_was_removed(store: FolderStore) -> None:
    store.put("a/key", b"x")
    store.delete(["a/key"])
    store.root.rmdir()
    assert keys_of(store) == []
    store.put("a/key", b"y")
    assert store.get("a/key") == b"y"


def test_its_own_names_are_refused(store: FolderStore) -> None:
    for key in (".tmp-x", "a/.tmp-", ".tmp-x/a"):
        verbs: list[Callable[[], object]] = [
            lambda key=key: store.get(key),
            lambda key=key: store.put(key, b"x"),
            lambda key=key: store.head(key),
            lambda key=key: store.delete([key]),
        ]
        for verb in verbs:
            with pytest.raises(StoreError) as error:
                verb()
            assert str(error.value) == (
                f"key {key!r}: names that begin with '.tmp-' are the store's own"
            )


def test_a_name_that_the_file_system_does_not_take(store: FolderStore) -> None:
    key = "k" * 300
    with pytest.raises(StoreError, match="File name too long"):
        store.put(key, b"x")


# The clock


def test_the_time_is_later_than_what_was_put_and_nothing_is_written(store: FolderStore) -> None:
    for number in range(20):
        store.put("a/b/key", b"x")
        before = store.head("a/b/key").modified
        assert before < store.now("a/b/probe") < before + timedelta(minutes=1), number
    assert names_in(store.root) == ["a", "a/b", "a/b/key"]
    assert store.now("gone/probe") > before  # of a dataset that was deleted meanwhile
    assert names_in(store.root) == ["a", "a/b", "a/b/key"]
