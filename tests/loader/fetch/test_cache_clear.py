"""`list_cache`, `clear_cache` and `storage-loader cache`: what goes, what stays, what is said."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_loader import (
    CachedDataset,
    ClearedCache,
    DataConfig,
    DataLoader,
    clear_cache,
    list_cache,
)
from storage_loader.errors import ConfigError, LoaderError, UnknownNameError
from storage_loader.loader.fetch import cached, origin
from storage_loader.loader.fetch.locks import LockTimeoutError, lock_file
from storage_loader.loader.fetch.private import open_private
from storage_loader.loader.run.stats import size_text
from storage_loader.store import open_store
from tests.support.caches import (
    LARGE,
    ROWS,
    cached_files,
    fill,
    never_above,
    ranges,
    used,
    warnings_of,
)
from tests.support.command import failing, run
from tests.support.faulty import WatchedStore, watch
from tests.support.forked import Forked, forked
from tests.support.planted import Exchanged, make_other_name, make_pipe, make_socket, own
from tests.support.rows import numbers_in

OBJECT = 2**20  # bytes, at most: 4 objects


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[WatchedStore]:
    """Every store that is opened from now on; each looks like one on a network."""
    return watch(monkeypatch, local=False)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataConfig]:
    """Two of one name, one called as the cache's own file is, and one of a name elsewhere."""
    storage = {"storage": str(tmp_path_factory.mktemp("one"))}
    other = {"storage": str(tmp_path_factory.mktemp("other"))}
    how: dict[str, Any] = {"max_object_size": OBJECT}
    return {
        "train": fill(storage, name="digits", additional={"split": "train"}, **how),
        "test": fill(storage, 100, name="digits", additional={"split": "test"}, **how),
        "origin": fill(storage, 100, name="origin", **how),
        "elsewhere": fill(other, 100, name="digits", additional={"split": "train"}, **how),
    }


def read(the_config: DataConfig, cache_dir: Path, **how: Any) -> None:
    loader = DataLoader(the_config, batch_size=16, cache_dir=cache_dir, **how)
    assert numbers_in(loader, LARGE) == list(range(loader.num_rows))


@pytest.fixture
def filled(
    datasets: dict[str, DataConfig], cache_dir: Path, opened: list[WatchedStore]
) -> dict[str, DataConfig]:
    """All of them have been read through the cache."""
    for one in datasets.values():
        read(one, cache_dir)
    opened.clear()
    return datasets


def files_of(the_config: DataConfig, cache_dir: Path) -> dict[Path, tuple[int, int, bytes]]:
    """By path: inode, time and bytes of a dataset's files."""
    folder = own(cache_dir) / origin.origin_id(open_store(the_config).origin)
    return tree(folder / the_config.dataset_prefix)


def tree(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {path: path.lstat() for path in files}
    return {p: (s.st_ino, s.st_mtime_ns, p.read_bytes()) for p, s in found.items()}


def age(the_config: DataConfig, cache_dir: Path, seconds: float) -> None:
    for path in files_of(the_config, cache_dir):
        os.utime(path, (time.time() - seconds,) * 2)


def numbers(found: tuple[CachedDataset, ...] | list[CachedDataset]) -> int:
    return sum(one.num_files for one in found)


# What is listed


def test_list(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    age(filled["test"], cache_dir, 1e6)
    listed = list_cache(cache_dir)
    assert [one.prefix for one in listed] == sorted(c.dataset_prefix for c in filled.values())
    by_place = {(one.origin, one.prefix): one for one in listed}
    assert len(by_place) == 4
    for the_config in filled.values():
        one = by_place[open_store(the_config).origin, the_config.dataset_prefix]
        found = [path.stat() for path in files_of(the_config, cache_dir)]
        assert (one.name, one.num_files) == (the_config.dataset_name, len(found))
        assert one.nbytes == sum(s.st_blocks * 512 for s in found) > 100_000
        assert one.last_used == datetime.fromtimestamp(max(s.st_mtime for s in found), timezone.utc)
        assert one.num_in_use == 0
    assert sum(one.nbytes for one in listed) == used(cache_dir)


def test_listing_changes_nothing(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    before = tree(cache_dir)
    assert len(list_cache(cache_dir)) == 4
    assert tree(cache_dir) == before


def test_what_is_in_use_is_listed_as_such(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    loader = DataLoader(filled["train"], batch_size=16, cache_dir=cache_dir)
    batches = iter(loader)
    next(batches)
    by_use = {one.num_in_use for one in list_cache(cache_dir)}
    assert by_use == {0, max(by_use)} != {0}
    del batches, loader
    assert {one.num_in_use for one in list_cache(cache_dir)} == {0}


def test_the_users_own_cache_is_the_default(
    datasets: dict[str, DataConfig], opened: list[WatchedStore]
) -> None:
    assert list_cache() == []
    loader = DataLoader(datasets["test"], batch_size=16)
    assert numbers_in(loader, LARGE) == list(range(100))
    [one] = list_cache()
    assert (one.name, one.num_in_use) == ("digits", one.num_files)
    del loader
    assert clear_cache().removed[0].prefix == datasets["test"].dataset_prefix
    assert list_cache() == []


# What is cleared


SELECTED: dict[str, tuple[Callable[[dict[str, DataConfig]], Any], set[str]]] = {
    "all": (lambda d: None, {"train", "test", "origin", "elsewhere"}),
    "a name": (lambda d: "digits", {"train", "test", "elsewhere"}),
    "another name": (lambda d: "origin", {"origin"}),
    "a name and id": (lambda d: d["train"].dataset_prefix, {"train", "elsewhere"}),
    "a config": (lambda d: d["train"], {"train"}),
    "a config elsewhere": (lambda d: d["elsewhere"], {"elsewhere"}),
    "a part of a name": (lambda d: "digit", set()),
    "an id of no dataset": (lambda d: f"digits/{'0' * 16}", set()),
}


@pytest.mark.parametrize("which", SELECTED)
def test_others_are_read_without_a_request(
    filled: dict[str, DataConfig], cache_dir: Path, opened: list[WatchedStore], which: str
) -> None:
    select, meant = SELECTED[which]
    before = {name: files_of(c, cache_dir) for name, c in filled.items()}
    listed = list_cache(cache_dir)
    cleared = clear_cache(select(filled), cache_dir=cache_dir)
    assert cleared.in_use == ()
    assert {(o.origin, o.prefix) for o in cleared.removed} == {
        (open_store(filled[name]).origin, filled[name].dataset_prefix) for name in meant
    }
    assert set(cleared.removed) <= set(listed)
    for name, the_config in filled.items():
        assert files_of(the_config, cache_dir) == ({} if name in meant else before[name])
        opened.clear()
        read(the_config, cache_dir)
        assert bool(ranges(opened)) == (name in meant), name


def test_nothing_but_the_count_is_left_of_a_cache(
    filled: dict[str, DataConfig], cache_dir: Path
) -> None:
    (own(cache_dir) / "0123456789abcdef" / "digits").mkdir(parents=True)  # an evictor left it
    assert numbers(clear_cache(cache_dir=cache_dir).removed) > 4
    assert [path.name for path in own(cache_dir).iterdir()] == ["usage"]
    assert clear_cache(cache_dir=cache_dir) == ClearedCache((), ())


def test_a_dry_run_changes_nothing(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    before = tree(cache_dir)
    said = clear_cache("digits", cache_dir=cache_dir, dry_run=True)
    assert tree(cache_dir) == before
    assert said == clear_cache("digits", cache_dir=cache_dir)
    assert len(said.removed) == 3


@pytest.mark.parametrize(
    ("older_than", "gone"),
    [
        (timedelta(0), {"train", "test", "origin", "elsewhere"}),
        (timedelta(seconds=990), {"train", "test"}),
        (timedelta(seconds=1990), {"test"}),
        (timedelta(seconds=3000), set()),
        (timedelta.max, set()),
    ],
    ids=["0", "990 s", "1990 s", "3000 s", "max"],
)
def test_ages(
    filled: dict[str, DataConfig], cache_dir: Path, older_than: timedelta, gone: set[str]
) -> None:
    age(filled["train"], cache_dir, 1000)
    age(filled["test"], cache_dir, 2000)
    clear_cache(older_than=older_than, cache_dir=cache_dir)
    assert {name for name, c in filled.items() if not files_of(c, cache_dir)} == gone


def test_age_and_dataset_must_both_agree(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    for name in ("train", "origin"):
        age(filled[name], cache_dir, 1000)
    clear_cache("digits", older_than=timedelta(seconds=990), cache_dir=cache_dir)
    assert [n for n, c in filled.items() if not files_of(c, cache_dir)] == ["train"]


def test_files_of_one_dataset_differ_in_age(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    first, *rest = files_of(filled["train"], cache_dir)
    os.utime(first, (1, 1))
    [one] = clear_cache(older_than=timedelta(days=1), cache_dir=cache_dir).removed
    assert (one.num_files, one.last_used.year) == (1, 1970)
    assert [*files_of(filled["train"], cache_dir)] == rest


def test_use_makes_young(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    for the_config in filled.values():
        age(the_config, cache_dir, 1000)
    read(filled["test"], cache_dir)
    clear_cache(older_than=timedelta(seconds=900), cache_dir=cache_dir)
    assert [n for n, c in filled.items() if files_of(c, cache_dir)] == ["test"]


@pytest.mark.parametrize("seconds", [-(10**13), -(10**10), 0, 10**10, 10**13])
def test_any_time_of_a_file_is_harmless(
    filled: dict[str, DataConfig],
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
) -> None:
    """Also one that only some disks can note."""
    real = os.stat

    def stat(name: Any, **how: Any) -> Any:
        found = real(name, **how)
        if not str(name).endswith(".cached"):
            return found
        values = {n: getattr(found, n) for n in dir(found) if n.startswith("st_")}
        return SimpleNamespace(**{**values, "st_mtime": float(seconds)})

    monkeypatch.setattr(os, "stat", stat)
    assert len(list_cache(cache_dir)) == 4
    young = clear_cache(older_than=timedelta(days=1), cache_dir=cache_dir).removed == ()
    assert young == (seconds > time.time())
    assert bool(cached_files(cache_dir)) == young


# What is in use


def test_what_a_loader_uses_stays(
    filled: dict[str, DataConfig], cache_dir: Path, opened: list[WatchedStore]
) -> None:
    loader = DataLoader(filled["train"], batch_size=16, cache_dir=cache_dir, epochs=2)
    batches = iter(loader)
    seen = numbers_in([next(batches) for _ in range(30)], LARGE)  # all of its objects are open
    before = files_of(filled["train"], cache_dir)
    for dry_run in (True, False):
        cleared = clear_cache(cache_dir=cache_dir, dry_run=dry_run)
        [held] = cleared.in_use
        assert held.prefix == filled["train"].dataset_prefix
        assert held.num_files == held.num_in_use == len(before) == 4
        assert held.nbytes == sum(path.stat().st_blocks * 512 for path in before)
        assert len(cleared.removed) == 3
    assert files_of(filled["train"], cache_dir) == before
    opened.clear()
    seen += numbers_in(batches, LARGE)
    assert seen == [*range(ROWS)] * 2
    assert ranges(opened) == []
    del batches, loader
    assert numbers(clear_cache(cache_dir=cache_dir).removed) == 4


HOLD = """
import sys
from storage_loader.loader.fetch.cache import Cache
from storage_loader import DataConfig
from storage_loader.store import open_store
cache = Cache(sys.argv[2], open_store(DataConfig.from_json(sys.argv[1])))
file = cache.open(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("library_once")
def test_what_another_process_uses_stays(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    the_config = filled["train"]
    snapshot = DataLoader(the_config).open()
    stored = snapshot.objects[1]
    words = [snapshot.key(1), str(stored.nbytes), str(stored.layout.num_checksums)]
    [before] = [p for p in files_of(the_config, cache_dir) if str(p).endswith(f"{words[0]}.cached")]
    inode = before.stat().st_ino
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, the_config.to_json(), str(cache_dir), *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        [held] = clear_cache(cache_dir=cache_dir).in_use
        assert held.num_files == 1
        assert [before.stat().st_ino] == [p.stat().st_ino for p in cached_files(cache_dir)]
        assert before.stat().st_ino == inode
        process.kill()
        process.wait()
    assert clear_cache(cache_dir=cache_dir).in_use == ()
    assert cached_files(cache_dir) == []


def test_what_a_forked_child_uses_stays(
    filled: dict[str, DataConfig], cache_dir: Path, tmp_path: Path
) -> None:
    """Removing it would free nothing."""
    os.mkfifo(tmp_path / "go")
    loader = DataLoader(filled["test"], batch_size=100, cache_dir=cache_dir)
    batches = iter(loader)
    next(batches)
    child = Forked((tmp_path / "go").read_text)
    del batches, loader
    assert [one.prefix for one in clear_cache(cache_dir=cache_dir).in_use] == [
        filled["test"].dataset_prefix
    ]
    (tmp_path / "go").write_text("end")
    assert child.result() == "end"
    assert clear_cache(cache_dir=cache_dir).in_use == ()
    assert cached_files(cache_dir) == []


CLEAR = """
import sys, time
from storage_loader import clear_cache, list_cache
print("begun", flush=True)
while True:
    clear_cache(cache_dir=sys.argv[1])
    list_cache(sys.argv[1])
"""


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("size", [None, 2 * OBJECT])
def test_clearing_beside_a_loader_loses_nothing(
    filled: dict[str, DataConfig], cache_dir: Path, size: int | None
) -> None:
    """Another process clears, and so does a thread of this one, as often as they can."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def clear() -> None:
        try:
            while not ended.is_set():
                clear_cache(cache_dir=cache_dir)
        except BaseException as error:
            failures.append(error)

    with subprocess.Popen(
        [sys.executable, "-c", CLEAR, str(cache_dir)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        thread = threading.Thread(target=clear)
        thread.start()
        try:
            for seed in range(3):
                loader = DataLoader(
                    filled["train"], batch_size=16, shuffle="global", seed=seed, epochs=2,
                    cache_dir=cache_dir, cache_size=size, prefetch=10**5,
                )  # fmt: skip
                assert sorted(numbers_in(loader, LARGE)) == sorted([*range(ROWS)] * 2)
                del loader
            assert process.poll() is None
        finally:
            ended.set()
            thread.join()
            process.kill()
    assert failures == []
    clear_cache(cache_dir=cache_dir)
    assert cached_files(cache_dir) == []


# The count of what all files take


def count(cache_dir: Path) -> int:
    return int((own(cache_dir) / "usage").read_bytes())


def test_the_count_is_right_afterwards(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    """Also where files are counted in it that were taken without a limit, and so never counted."""
    limit = 6 * OBJECT
    read(filled["train"], cache_dir, cache_size=limit)
    clear_cache(filled["train"], cache_dir=cache_dir)
    assert count(cache_dir) == used(cache_dir) > 0
    read(filled["train"], cache_dir, cache_size=limit)
    assert count(cache_dir) >= used(cache_dir)
    clear_cache("origin", cache_dir=cache_dir)
    assert count(cache_dir) == used(cache_dir) > 0
    clear_cache(cache_dir=cache_dir)
    assert count(cache_dir) == used(cache_dir) == 0


def test_a_running_loader_keeps_to_its_limit_and_uses_the_room(
    filled: dict[str, DataConfig],
    cache_dir: Path,
    opened: list[WatchedStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was cleared is room for it, and it takes no more than that."""
    loader = DataLoader(
        filled["train"], batch_size=16, epochs=3, cache_dir=cache_dir, cache_size=7 * OBJECT
    )
    with never_above(monkeypatch, cache_dir, 7 * OBJECT):
        batches = iter(loader)
        seen = numbers_in([next(batches)], LARGE)
        clear_cache(cache_dir=cache_dir)
        seen += numbers_in(batches, LARGE)
    assert seen == [*range(ROWS)] * 3
    del batches, loader
    assert len(files_of(filled["train"], cache_dir)) == 4
    opened.clear()
    read(filled["train"], cache_dir)
    assert ranges(opened) == []


# Where the objects came from


def test_an_origin_that_is_gone_comes_back(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    name = origin.origin_id(open_store(filled["train"]).origin)
    file = own(cache_dir) / name / ".origin"
    text = file.read_text()
    assert text == open_store(filled["train"]).origin
    file.unlink()
    assert {one.origin for one in list_cache(cache_dir)} - {text} >= {name}
    for damaged in (None, b"", text.encode()[:-1], text.encode() + b"x"):
        if damaged is not None:
            file.write_bytes(damaged)
            assert name in {one.origin for one in list_cache(cache_dir)}
        read(filled["train"], cache_dir)
        assert file.read_text() == text


@pytest.mark.parametrize(
    "text",
    [b"https://example.com s3://mine", b"\xff\xfe", b"\x1b[31m", bytes(10**6)],
    ids=lambda text: repr(text[:8]),
)
def test_a_forged_origin_is_not_believed(
    filled: dict[str, DataConfig], cache_dir: Path, text: bytes
) -> None:
    for file in own(cache_dir).glob("*/.origin"):
        file.write_bytes(text)
    assert {one.origin for one in list_cache(cache_dir)} == {
        origin.origin_id(open_store(c).origin) for c in filled.values()
    }


def make_link(path: Path) -> None:
    (path.parent / "theirs").write_text("theirs")
    path.symlink_to(path.parent / "theirs")


@pytest.mark.parametrize("make", [make_link, make_pipe, make_socket, make_other_name, Path.mkdir])
def test_an_origin_that_is_no_file_of_ours(
    filled: dict[str, DataConfig], cache_dir: Path, make: Callable[[Path], None]
) -> None:
    file = next(own(cache_dir).glob("*/.origin")).parent / ".origin"
    file.unlink()
    make(file)
    assert file.parent.name in {one.origin for one in list_cache(cache_dir)}
    clear_cache("origin", cache_dir=cache_dir)
    for the_config in filled.values():
        read(the_config, cache_dir)
    assert (file.parent.name in {o.origin for o in list_cache(cache_dir)}) == file.is_dir()
    for name, body in (("theirs", "theirs"), ("mine", "")):
        for kept in file.parent.glob(name):
            assert kept.read_text() == body


def test_a_full_disk_leaves_only_the_origin_out(
    datasets: dict[str, DataConfig],
    cache_dir: Path,
    opened: list[WatchedStore],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(name: str, folder: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(origin, "open_file", full)
    read(datasets["test"], cache_dir)
    assert warnings_of(caplog) == []
    [one] = list_cache(cache_dir)
    assert one.origin == origin.origin_id(open_store(datasets["test"]).origin)
    assert one.num_files == len(cached_files(cache_dir)) > 0


def test_no_key_stands_in_an_origin(
    s3_storage: dict[str, str], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill(s3_storage, 20)
    read(the_config, cache_dir)
    [one] = list_cache(cache_dir)
    assert one.origin == f"{s3_storage['endpoint']} {s3_storage['storage']}"
    for path in own(cache_dir).rglob("*"):
        for name in ("access_key", "secret_key"):
            assert path.is_dir() or s3_storage[name].encode() not in path.read_bytes()
    reached = {name: s3_storage[name] for name in ("storage", "endpoint")}  # no key is needed
    asked = DataConfig("rows", additional=dict(the_config.additional), **reached)
    other = DataConfig("rows", **{**reached, "endpoint": "http://127.0.0.1:1"})
    assert clear_cache(other, cache_dir=cache_dir) == ClearedCache((), ())
    assert numbers(clear_cache(asked, cache_dir=cache_dir).removed) == 1


# What others made or change


def test_a_folder_of_links_and_other_things(
    filled: dict[str, DataConfig], cache_dir: Path, tmp_path: Path
) -> None:
    """Nothing is opened, listed or removed through a link, and nothing that is not the cache's."""
    theirs, below = tmp_path / "theirs", own(cache_dir)
    shutil.copytree(below, theirs)
    before = tree(theirs)
    place = next(path for path in below.iterdir() if path.is_dir())
    dataset = next(path for path in place.iterdir() if path.is_dir())
    [copied] = [path for path in theirs.iterdir() if path.name == place.name]
    deep = cached_files(theirs)[0]
    kept = [
        below / "notes.cached",
        below / "notes" / "digits" / "0123456789abcdef" / "x.cached",
        place / "notes.cached",
        place / "digits" / "notes" / "x.cached",
        place / "digits" / "0123456789abcdef" / "notes.txt",
        place / ".hidden" / "0123456789abcdef" / "x.cached",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    (below / "empty").mkdir()
    id_ = dataset.parent / "digits" / "0123456789abcdef"
    links = {
        below / ("f" * 16): theirs / copied.name,
        place / "linked": copied / dataset.name,
        place / "digits" / ("e" * 16): next(p for p in (copied / "digits").iterdir()),
        id_ / "objects": deep.parent,
        id_ / "x.cached": deep,
        id_ / "gone.cached": tmp_path / "nowhere",
    }
    for path, target in links.items():
        path.symlink_to(target)
    make_pipe(id_ / "pipe.cached")
    make_socket(id_ / "socket.cached")
    (id_ / "folder.cached").mkdir()
    os.link(deep, id_ / "hard.cached")
    before = tree(theirs)
    assert [one.prefix for one in list_cache(cache_dir)] == sorted(
        c.dataset_prefix for c in filled.values()
    )
    cleared = clear_cache(cache_dir=cache_dir)
    assert {one.prefix for one in cleared.removed} == {c.dataset_prefix for c in filled.values()}
    assert tree(theirs) == before
    assert all(path.read_bytes() == b"mine" for path in kept)
    assert {path: path.readlink() for path in links} == links
    assert (below / "empty").is_dir()
    for name in ("pipe", "socket", "hard"):
        assert os.path.lexists(id_ / f"{name}.cached")


@pytest.mark.parametrize("work", [list_cache, lambda folder: clear_cache(cache_dir=folder)])
def test_an_own_folder_that_is_none(
    filled: dict[str, DataConfig],
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Path], Any],
) -> None:
    before = tree(own(cache_dir))
    own(cache_dir).rename(tmp_path / "theirs")
    own(cache_dir).symlink_to(tmp_path / "theirs")
    with pytest.raises(LoaderError, match="a link, or another user's; somebody else made it"):
        work(cache_dir)
    own(cache_dir).unlink()
    own(cache_dir).write_bytes(b"")
    with pytest.raises(LoaderError, match=r"the cache .* cannot be read or changed: "):
        work(cache_dir)
    own(cache_dir).unlink()
    (tmp_path / "theirs").rename(own(cache_dir))
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: os.getuid() + 1)
        with pytest.raises(LoaderError, match="a link, or another user's; somebody else made it"):
            work(cache_dir)
    assert tree(own(cache_dir)) == before


def test_looking_releases_no_lock(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    """A process that closes any descriptor of the count's file loses its locks, see `locks`."""
    place = next(own(cache_dir).glob("*/.origin")).parent
    id_ = place / "digits" / "0123456789abcdef"
    id_.mkdir(parents=True)
    names = place / ".origin", id_ / "x.cached"
    names[0].unlink()

    def taken() -> bool:
        with open_private(own(cache_dir)) as folder:
            mine = lock_file("usage", folder)
        with suppress(LockTimeoutError), mine.held("it", [(5, 6)], threading.Event(), 0.0):
            return False
        return True

    with open_private(own(cache_dir)) as folder:
        locks = lock_file("usage", folder)
    with locks.held("it", [(5, 6)], threading.Event(), 1.0):
        for name in names:
            os.link(own(cache_dir) / "usage", name)
        list_cache(cache_dir)
        clear_cache("absent", cache_dir=cache_dir)
        for name in names:
            name.unlink()
        assert forked(taken)
    assert not forked(taken)


def test_folders_of_other_users_are_left_alone(
    filled: dict[str, DataConfig], cache_dir: Path
) -> None:
    others = [cache_dir / f"user-{os.getuid() + n}" for n in (1, 2)]
    for folder in others:
        shutil.copytree(own(cache_dir), folder)
    before = [tree(folder) for folder in others]
    assert len(list_cache(cache_dir)) == 4
    clear_cache(cache_dir=cache_dir)
    assert [tree(folder) for folder in others] == before


def test_a_folder_that_is_exchanged_at_any_moment(
    filled: dict[str, DataConfig], cache_dir: Path, tmp_path: Path
) -> None:
    """Nothing is removed where a link leads that was put there after we looked."""
    exchanged, refusals = 0, set()
    for nth in range(1000):
        with tempfile.TemporaryDirectory(dir=tmp_path) as name, pytest.MonkeyPatch.context() as p:
            mine, theirs = Path(name, "cache"), Path(name, "theirs")
            shutil.copytree(cache_dir, mine)
            shutil.copytree(own(cache_dir), theirs)
            before = tree(theirs)
            exchange = Exchanged(p, own(mine), theirs, nth * 7)
            try:
                clear_cache(cache_dir=mine)
            except LoaderError as error:
                refusals.add("somebody else made it" in str(error))
            p.undo()
            assert tree(theirs) == before, nth
            if not exchange.is_done:
                break
            exchanged += 1
    assert exchanged > 5
    assert refusals == {True}


def test_files_that_vanish_meanwhile(
    filled: dict[str, DataConfig], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cached.is_unused

    def vanish(name: str, folder: int) -> bool:
        os.unlink(name, dir_fd=folder)
        return real(name, folder)

    monkeypatch.setattr(cached, "is_unused", vanish)
    assert list_cache(cache_dir) == []
    assert cached_files(cache_dir) == []


def test_a_cache_that_is_removed_meanwhile(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    copy = cache_dir.parent / "copy"
    shutil.copytree(cache_dir, copy)
    ended = threading.Event()

    def remove() -> None:
        while not ended.is_set():
            shutil.rmtree(cache_dir, ignore_errors=True)
            shutil.copytree(copy, cache_dir, dirs_exist_ok=True)

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            list_cache(cache_dir)
            clear_cache(cache_dir=cache_dir, dry_run=True)
    finally:
        ended.set()
        thread.join()


# Where there is none, and wrong arguments


def test_a_folder_without_a_cache(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
            (folder / "notes.cached").write_text("mine")
        assert list_cache(folder) == []
        assert clear_cache(cache_dir=folder) == ClearedCache((), ())
    assert not (tmp_path / "absent").exists()
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["notes.cached"]
    with pytest.raises(LoaderError, match=r"cannot be read or changed: .*Not a directory"):
        list_cache(tmp_path / "empty" / "notes.cached")


def test_wrong_arguments_change_nothing(filled: dict[str, DataConfig], cache_dir: Path) -> None:
    before = tree(cache_dir)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: clear_cache("", cache_dir=cache_dir), "dataset ''"),
        (lambda: clear_cache("../x", cache_dir=cache_dir), "dataset '../x'"),
        (lambda: clear_cache("digits/", cache_dir=cache_dir), "dataset 'digits/'"),
        (lambda: clear_cache("digits/objects", cache_dir=cache_dir), "dataset 'digits/objects'"),
        (lambda: clear_cache("di*", cache_dir=cache_dir), "dataset 'di*'"),
        (lambda: clear_cache(7, cache_dir=cache_dir), "dataset 7: a DataConfig, "),  # type: ignore
        (
            lambda: clear_cache(older_than=7, cache_dir=cache_dir),  # type: ignore[arg-type]
            "older_than 7: a timedelta from 0 up",
        ),
        (
            lambda: clear_cache(older_than=timedelta(-1), cache_dir=cache_dir),
            "a timedelta from 0 up",
        ),
        (lambda: clear_cache(dry_run="no", cache_dir=cache_dir), "dry_run"),  # type: ignore
        (lambda: clear_cache(cache_dir=7), "cache_dir: a folder's path, not 7"),  # type: ignore
        (lambda: list_cache(7), "cache_dir: a folder's path, not 7"),  # type: ignore[arg-type]
    ]
    for work, text in wrong:
        with pytest.raises(ConfigError) as caught:
            work()
        assert text in str(caught.value)
    with pytest.raises(UnknownNameError, match="did you mean 'older_than'"):
        clear_cache(older_then=timedelta(1), cache_dir=cache_dir)  # type: ignore[call-arg]
    assert tree(cache_dir) == before


# The command


@pytest.fixture
def words(cache_dir: Path) -> list[str]:
    return ["--cache-dir", str(cache_dir)]


def test_cache_ls(filled: dict[str, DataConfig], cache_dir: Path, words: list[str]) -> None:
    result = run("cache", "ls", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    head, *lines, last = result.stdout.splitlines()
    assert head.split() == ["NAME/ID", "FILES", "SIZE", "IN", "USE", "LAST", "USED", "STORAGE"]
    for line, one in zip(lines, list_cache(cache_dir), strict=True):
        cells = line.split()
        assert cells[:2] == [one.prefix, str(one.num_files)]
        assert cells[4:] == ["0", f"{one.last_used:%Y-%m-%d}", f"{one.last_used:%H:%M:%S}Z",
                             one.origin]  # fmt: skip
    files = len(cached_files(cache_dir))
    assert last == f"{files} files of 4 datasets, {used(cache_dir) / 2**20:.1f} MiB in {cache_dir}"


def test_cache_clear(
    filled: dict[str, DataConfig], cache_dir: Path, words: list[str], tmp_path: Path
) -> None:
    before = tree(cache_dir)
    result = run("cache", "clear", "origin", "--dry-run", *words)
    [one] = [one for one in list_cache(cache_dir) if one.name == "origin"]
    lines = result.stdout.splitlines()
    assert lines[1].startswith(f"{one.prefix}  ")
    files = f"{one.num_files} file{'s' if one.num_files > 1 else ''}"
    assert lines[2] == f"would remove {files} of 1 dataset, {size_text(one.nbytes)}"
    assert tree(cache_dir) == before
    said = run("cache", "clear", "origin", *words)
    assert (said.stdout, said.stderr) == (lines[2].replace("would remove", "removed") + "\n", "")
    assert not files_of(filled["origin"], cache_dir)
    assert {*tree(cache_dir)} < {*before}
    # A config's file means its storage alone, and goes before a name.
    filled["train"].save(tmp_path / "train.json")
    assert run("cache", "clear", str(tmp_path / "train.json"), *words).stdout.startswith(
        "removed 4 files of 1 dataset, "
    )
    assert not files_of(filled["train"], cache_dir)
    assert files_of(filled["elsewhere"], cache_dir)
    age(filled["test"], cache_dir, 8 * 86400)
    assert run("cache", "clear", "--older-than", "9d", *words).stdout == "removed nothing\n"
    run("cache", "clear", "--older-than", "7d", *words)
    assert [n for n, c in filled.items() if files_of(c, cache_dir)] == ["elsewhere"]
    assert run("cache", "clear", *words).stdout.startswith("removed ")
    assert run("cache", "clear", *words).stdout == "removed nothing\n"
    said = run("cache", "ls", *words)
    assert (said.stdout, said.exit_code) == ("", 0)
    assert said.stderr == f"nothing is cached in {cache_dir}\n"


def test_cache_clear_says_what_is_in_use(
    filled: dict[str, DataConfig], cache_dir: Path, words: list[str]
) -> None:
    loader = DataLoader(filled["origin"], batch_size=100, cache_dir=cache_dir)
    batches = iter(loader)
    next(batches)
    [held] = [one for one in list_cache(cache_dir) if one.num_in_use]
    result = run("cache", "clear", *words)
    removed, left = result.stdout.splitlines()
    assert removed.startswith("removed ")
    assert " of 3 datasets, " in removed
    size = (
        f"{held.nbytes / 1024:.1f} KiB" if held.nbytes < 2**20 else f"{held.nbytes / 2**20:.1f} M"
    )
    assert left.startswith(f"left {held.num_files} file")
    assert f" of 1 dataset, {size}" in left
    assert left.endswith(": in use now")
    result = run("cache", "clear", "origin", *words)
    assert (result.stdout, result.stderr) == (f"removed nothing\n{left}\n", "")


def test_a_mistyped_name_is_seen(
    filled: dict[str, DataConfig],
    cache_dir: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run("cache", "clear", "digts", *words)
    assert (result.stdout, result.exit_code) == ("removed nothing\n", 0)
    assert result.stderr == f"the cache {cache_dir} holds files of: 'digits', 'origin'\n"
    result = run("cache", "clear", "digits", "--older-than", "1d", *words)
    assert (result.stdout, result.stderr) == ("removed nothing\n", "")
    said = failing(monkeypatch, capsys, "cache", "clear", "./digits", *words)
    assert said == (
        "error: ./digits: No such file or directory; give a config's file, NAME, or NAME/ID\n"
    )
    for wrong, message in [
        (["cache", "clear", "--older-than", "7"], "'7': write 90s, 30m, 24h or 7d"),
        (["cache", "clear", "a", "b"], "unexpected extra argument"),
        (["cache", "clean"], "No such command 'clean'"),
        (["cache", "ls", "digits"], "unexpected extra argument"),
    ]:
        result = run(*wrong)
        assert result.exit_code == 2
        assert message in result.stderr
    assert len(list_cache(cache_dir)) == 4


def test_names_of_places_are_printed_safely(
    tmp_path: Path, opened: list[WatchedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill({"storage": str(tmp_path / "s\x1b]0;x\x07\nforged\u202e")}, 20)
    place = tmp_path / "c\x1b[31m\nforged"
    read(the_config, place)
    for words in (["ls"], ["clear", "absent"], ["clear", "--dry-run"], ["clear"], ["ls"]):
        result = run("cache", *words, "--cache-dir", str(place))
        assert result.output
        for line in result.output.splitlines():
            assert line.isprintable()
            assert not line.startswith("forged")
        if words == ["clear", "--dry-run"]:
            assert r"s\x1b]0;x\x07\nforged\u202e" in result.stdout
    place.joinpath(own(place).name).rename(tmp_path / "aside")
    own(place).symlink_to(tmp_path / "aside")
    with pytest.raises(LoaderError) as caught:
        list_cache(place)
    assert str(caught.value).isprintable()
