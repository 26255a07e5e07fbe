"""Cache files: each block fetched once, damage seen, nothing wrong ever given out or kept."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, DataLoader, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ChecksumError,
    LoaderError,
    ObjectNotFoundError,
    StorageLoaderError,
    StoreError,
)
from storage_loader.loader.fetch import cache_file
from storage_loader.loader.fetch.cache import Cache
from storage_loader.loader.fetch.cache_file import CacheBusyError, CacheFile
from storage_loader.loader.fetch.locks import lock_file
from storage_loader.loader.fetch.private import open_private
from storage_loader.loader.tuning import Tuning
from storage_loader.store import open_store
from tests.support import ROOT
from tests.support.caches import (
    LARGE,
    ROWS,
    alter,
    assert_disjoint,
    cached_files,
    fill,
    pixels_of,
    ranges,
    read,
    table_of,
    warnings_of,
)
from tests.support.damage import flip
from tests.support.faulty import Call, FailAt, Injected, watch
from tests.support.forked import forked
from tests.support.rows import ROW, config, make, numbers_in
from tests.support.threads import running

BLOCK_ROWS = 7


@pytest.fixture
def one_object(tmp_path: Path) -> DataConfig:
    """400 rows, 58 blocks of pixels and one of numbers, in one object."""
    return fill({"storage": str(tmp_path / "store")})


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# What is fetched


def test_part_then_more_then_all(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = watch(monkeypatch, local=False)
    [stored] = DataLoader(one_object).open().objects
    read(one_object, cache_dir, range(100, 120))
    first = ranges(opened)
    assert sum(end - start for _, start, end in first) < 6 * 2**16
    read(one_object, cache_dir, range(100, 120))
    assert ranges(opened) == first
    read(one_object, cache_dir, range(50, 200))
    read(one_object, cache_dir, range(400))
    fetched = ranges(opened)
    assert_disjoint(fetched)
    total = sum(end - start for _, start, end in fetched)
    assert stored.layout.columns["pixels"].nbytes <= total <= stored.nbytes
    read(one_object, cache_dir, range(400), shuffle="global")
    assert ranges(opened) == fetched
    [file] = cached_files(cache_dir)
    assert file.stat().st_blocks * 512 < stored.nbytes + 2**17


def test_a_part_takes_no_more_disk_than_it_needs(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    read(one_object, cache_dir, [200])
    [file] = cached_files(cache_dir)
    assert file.stat().st_blocks * 512 < 2**18 < file.stat().st_size


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_every_block_is_fetched_once_in_two_epochs(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, shuffle: Any
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 1000, max_object_size=2**20)
    opened = watch(monkeypatch, local=False)
    loader = DataLoader(
        the_config, batch_size=16, shuffle=shuffle, cache_dir=cache_dir, epochs=2,
        block=14, window=140, prefetch=10**6,
    )  # fmt: skip
    assert sorted(numbers_in(loader, LARGE)) == sorted([*range(1000), *range(1000)])
    whole = loader.open().nbytes
    assert sum(end - start for _, start, end in ranges(opened)) < 1.3 * whole


@pytest.mark.parametrize("seconds", [1e-4, 1])  # of a request
def test_what_comes_in_some_seconds_is_fetched_early(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Over a fast link objects are fetched whole at once, over a slow one few of them are."""
    the_config = fill({"storage": str(tmp_path / "store")}, 2000, max_object_size=2**20)
    opened = watch(monkeypatch, local=False)
    batch_size = 14
    first: list[tuple[str, int, int]] = []  # until the clock was read last

    def now() -> float:
        first[:] = ranges(opened)
        return seconds * len(first)

    clock = SimpleNamespace(perf_counter=now, monotonic=time.monotonic)
    monkeypatch.setattr("storage_loader.loader.fetch.early.time", clock)
    monkeypatch.setattr(DataLoader, "_tuning", Tuning(early_seconds=1))
    loader = DataLoader(
        the_config, batch_size=batch_size, shuffle=True, cache_dir=cache_dir, block=14, window=140
    )
    snapshot = loader.open()
    assert sorted(numbers_in(loader, LARGE)) == list(range(2000))
    nbytes = sum(end - start for _, start, end in first)
    assert 0 < nbytes < snapshot.nbytes / 10, "the first batch waits for what it does not need"
    requests = [(start, end) for _, start, end in ranges(opened) if end - start > 10**5]
    most = len(snapshot.objects) + batch_size  # what the first batch fetched divides the rest
    assert (len(requests) > most) if seconds > 0.01 else (len(requests) <= most)


def test_only_the_attributes_read_are_fetched(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = watch(monkeypatch, local=False)
    for _ in DataLoader(one_object, attributes=[ROW], batch_size=50, cache_dir=cache_dir):
        pass
    assert sum(end - start for _, start, end in ranges(opened)) < 2**17
    read(one_object, cache_dir, range(400))
    assert_disjoint(ranges(opened))


# Damage in a cache file


def zeros(file: Path, start: int, end: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(end - start))


DAMAGES: dict[str, Callable[[Path, DataConfig], None]] = {
    "a byte of a row": lambda f, c: flip(f, pixels_of(c)[0] + 123_456),
    "a byte of the small column": lambda f, c: flip(
        f, DataLoader(c).open().objects[0].layout.columns[ROW].offset + 8
    ),
    "a byte of the checksums": lambda f, c: flip(f, table_of(c)[0] + 9),
    "no checksums": lambda f, c: zeros(f, *table_of(c)),
    "no rows": lambda f, c: zeros(f, *pixels_of(c)),
    "zeros": lambda f, c: zeros(f, 0, f.stat().st_size),
    "nothing but flags": lambda f, c: zeros(f, 0, DataLoader(c).open().objects[0].nbytes),
    "no flags": lambda f, c: zeros(f, DataLoader(c).open().objects[0].nbytes, f.stat().st_size),
    "cut short": lambda f, c: os.truncate(f, f.stat().st_size // 2),
    "one byte short": lambda f, c: os.truncate(f, f.stat().st_size - 1),
    "empty": lambda f, c: os.truncate(f, 0),
    "garbage": lambda f, c: f.write_bytes(os.urandom(1000)) and None,
    "longer garbage": lambda f, c: f.write_bytes(b"\1" * (f.stat().st_size + 5)) and None,
    "garbage of its size": lambda f, c: f.write_bytes(b"\1" * f.stat().st_size) and None,
    "a byte longer": lambda f, c: os.truncate(f, f.stat().st_size + 1),
    "gone": lambda f, c: f.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_file_is_fetched_again(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    watch(monkeypatch, local=False)
    read(one_object, cache_dir, range(400))
    [file] = cached_files(cache_dir)
    right = file.read_bytes()
    DAMAGES[damage](file, one_object)
    read(one_object, cache_dir, range(50, 350))
    read(one_object, cache_dir, range(400), shuffle=False)
    [file] = cached_files(cache_dir)
    start, end = pixels_of(one_object)
    assert file.read_bytes()[start:end] == right[start:end]
    read(one_object, cache_dir, range(400))


@pytest.mark.parametrize("damage", DAMAGES)
def test_of_several_files_the_damaged_one_is_fetched_again(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, max_object_size=2**20)
    opened = watch(monkeypatch, local=False)
    read(the_config, cache_dir, range(400))
    assert len({key for key, _, _ in ranges(opened)}) == len(cached_files(cache_dir)) > 2
    opened.clear()
    file = cached_files(cache_dir)[1]
    DAMAGES[damage](file, the_config)
    read(the_config, cache_dir, range(400))
    [key] = {key for key, _, _ in ranges(opened)}
    assert key.rsplit("/", 1)[1] in file.name
    opened.clear()
    read(the_config, cache_dir, range(400))
    assert ranges(opened) == []


def test_one_damaged_block_costs_one_block(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = watch(monkeypatch, local=False)
    read(one_object, cache_dir, range(400))
    opened.clear()
    [file] = cached_files(cache_dir)
    flip(file, pixels_of(one_object)[0] + 7 * 9000 * 3 + 5)
    read(one_object, cache_dir, range(400))
    assert [end - start for _, start, end in ranges(opened)] == [BLOCK_ROWS * 9000]


@pytest.mark.parametrize("left", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("count", [100, 400])
def test_a_file_that_is_cut_under_a_loader_is_fetched_again(
    one_object: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    left: float,
    others: bool,
    count: int,
) -> None:
    """Between two epochs; also where another loader has opened the cut file meanwhile."""
    watch(monkeypatch, local=False)
    monkeypatch.setattr("storage_loader.loader.fetch.open_objects._LOOK", 0.0)

    def child() -> None:  # where it may die
        how: dict[str, Any] = {"subset": range(count), "batch_size": 10, "cache_dir": cache_dir}
        loader = DataLoader(one_object, **how)
        for _ in range(3):
            assert numbers_in(loader, LARGE) == list(range(count))
            [file] = cached_files(cache_dir)
            os.truncate(file, int(file.stat().st_size * left))
            if others:
                read(one_object, cache_dir, range(10))
                read(one_object, cache_dir, range(390, 400))

    forked(child)


# A store that gives wrong answers


@pytest.mark.parametrize("count", [60, 400])  # read by ranges; streamed
@pytest.mark.parametrize("index", [False, True])
def test_a_wrong_block_is_an_error_and_never_good(
    one_object: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    index: bool,
) -> None:
    place = pixels_of(one_object)[0] + 30 * 9000 + 17  # row 30 is in the block of rows 28 to 35

    def wrong(key: str, start: int, data: bytearray) -> None:
        if start <= place < start + len(data):
            data[place - start] ^= 4

    alter(monkeypatch, wrong)
    for _ in range(2):
        with pytest.raises(ChecksumError) as caught:
            read(one_object, cache_dir, range(count), index=index)
        assert "attribute 'pixels', rows 28 to 34 of this object differ" in str(caught.value)
        assert "/objects/" in str(caught.value)
    alter(monkeypatch, lambda key, start, data: None)
    read(one_object, cache_dir, range(count), index=index)


def test_a_wrong_table_is_an_error_and_never_good(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = table_of(one_object)[0]

    def wrong(key: str, start: int, data: bytearray) -> None:
        if start <= place < start + len(data):
            data[place - start] ^= 4

    for index in (False, True):
        alter(monkeypatch, wrong)
        for _ in range(2):
            with pytest.raises(ChecksumError, match="the directory differs"):
                read(one_object, cache_dir, range(400), index=index)
        alter(monkeypatch, lambda key, start, data: None)
        read(one_object, cache_dir, range(400), index=index)


def test_bytes_between_two_wanted_ranges_do_not_replace_verified_ones(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may span blocks that are here and verified: what it brings may be wrong."""
    middle = pixels_of(one_object)[0] + 118 * 9000  # row 118, in the block of rows 112 to 119
    broken = threading.Event()
    spanned = []

    def wrong(key: str, start: int, data: bytearray) -> None:
        if broken.is_set() and start <= middle < start + len(data):
            spanned.append(start)
            data[middle - start] ^= 4

    alter(monkeypatch, wrong)
    monkeypatch.setattr(DataLoader, "_tuning", Tuning(early_seconds=0))  # not whole at once
    # Its block comes first, then most others, and that row itself last.
    wanted = [*range(112, 118), *range(112), *range(119, 231), 118]
    seen = []
    for batch in DataLoader(one_object, subset=wanted, batch_size=6, cache_dir=cache_dir):
        broken.set()
        seen += numbers_in([batch], LARGE)
    assert seen == wanted
    assert spanned, "no request spans it: this tests nothing"


@pytest.mark.parametrize("count", [60, 400])
def test_a_short_answer_is_an_error(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    def short(key: str, start: int, data: bytearray) -> None:
        del data[len(data) // 2 :]

    alter(monkeypatch, short)
    for _ in range(2):
        with pytest.raises((StoreError, ChecksumError)):
            read(one_object, cache_dir, range(count))
    alter(monkeypatch, lambda key, start, data: None)
    read(one_object, cache_dir, range(count))


@pytest.mark.parametrize("count", [60, 400])
def test_a_long_answer_is_harmless(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    alter(monkeypatch, lambda key, start, data: data.extend(b"\1" * 10**7))
    with contextlib.suppress(StoreError):
        read(one_object, cache_dir, range(count))
    alter(monkeypatch, lambda key, start, data: None)
    read(one_object, cache_dir, range(400))


# A disk that is full


class FullDisk:
    """`os.pwritev` on a disk that takes `calls` more writes, each of them only in part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, calls: int) -> None:
        self._number = number
        self._left = calls
        self._real = os.pwritev
        self.refused = 0
        monkeypatch.setattr(os, "pwritev", self.pwritev)

    def pwritev(self, descriptor: int, data: Sequence[memoryview], offset: int) -> int:
        self._left -= 1
        if self._left < 0:
            self.refused += 1
            raise OSError(self._number, os.strerror(self._number))
        together = b"".join(data)
        return self._real(descriptor, [together[: len(together) // 2 + 1]], offset)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
@pytest.mark.parametrize("max_object_size", [8 * 2**20, 2**20], ids=["one", "several"])
@pytest.mark.parametrize("calls", [0, 3, 20])  # 3 and 20: in the middle of a request
@pytest.mark.parametrize("shuffle", [False, "global"])
def test_a_full_disk_streams_through_memory_with_one_warning(
    tmp_path: Path,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    max_object_size: int,
    calls: int,
    shuffle: Any,
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, max_object_size=max_object_size)
    watch(monkeypatch, local=False)
    how: dict[str, Any] = {"batch_size": 16, "shuffle": shuffle, "seed": 5, "epochs": 3}
    expected = numbers_in(DataLoader(the_config, index=True, **how), LARGE)
    loader = DataLoader(the_config, cache_dir=cache_dir, **how)
    with monkeypatch.context() as patch:
        disk = FullDisk(patch, number, calls)
        assert numbers_in(loader, LARGE) == expected
        assert disk.refused, "it was never full: this tests nothing"
    [text] = warnings_of(caplog)
    assert str(cache_dir) in text
    assert "its disk is full" in text
    assert "passes through memory" in text
    again = DataLoader(the_config, cache_dir=cache_dir, **how)  # there is room again
    assert numbers_in(again, LARGE) == expected
    assert len(warnings_of(caplog)) == 1
    assert again._engine.is_complete


@pytest.mark.parametrize("where", ["a folder", "a new file", "the count"])
def test_a_disk_may_be_full_before_a_file_is_made(
    one_object: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    watch(monkeypatch, local=False)
    real_mkdir, real_open = Path.mkdir, os.open

    def full_mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        if where == "a folder" and cache_dir in (path, *path.parents):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_mkdir(path, *args, **kwargs)

    def full_open(path: Any, *args: Any, **kwargs: Any) -> int:
        end = {"a folder": "-", "a new file": ".cached", "the count": "usage"}[where]
        if str(path).endswith(end):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", full_mkdir)
    monkeypatch.setattr(os, "open", full_open)
    read(one_object, cache_dir, range(400), cache_size=10**9)
    [text] = warnings_of(caplog)
    assert str(cache_dir) in text


def test_a_cache_that_cannot_be_used_says_what_to_do(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    cache_dir.write_text("a file where the folder should be")
    with pytest.raises(LoaderError) as caught:
        read(one_object, cache_dir, range(10))
    text = str(caught.value)
    assert "give another cache_dir, or use index=True" in text
    assert str(cache_dir) in text
    read(one_object, cache_dir, range(10), index=True)


def test_writes_may_be_short(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    real = os.pwritev
    lengths: list[int] = []

    def short(file: int, data: list[memoryview], at: int) -> int:
        lengths.append(real(file, [data[0][:10_007]], at))
        return lengths[-1]

    monkeypatch.setattr(os, "pwritev", short)
    read(one_object, cache_dir, range(400))
    assert max(lengths) == 10_007


class Disk:
    """Sets bytes of files aside, or fails to."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self.asked: list[tuple[int, int]] = []

    def fallocate(self, file: int, mode: int, start: int, nbytes: int) -> int:
        assert mode == 0
        self.asked.append((start, start + nbytes))
        if self._number is None:
            os.posix_fallocate(file, start, nbytes)
            return 0
        ctypes.set_errno(self._number)
        return -1


@pytest.mark.parametrize("number", [None, errno.EOPNOTSUPP, errno.EINTR])
def test_long_requests_have_the_disk_set_their_bytes_aside(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    disk = Disk(number)
    monkeypatch.setattr(cache_file, "_fallocate", lambda: disk.fallocate)
    opened = watch(monkeypatch, local=False)
    read(one_object, cache_dir, range(400))
    assert disk.asked == [(start, end) for _, start, end in ranges(opened) if end - start > 2**20]
    assert disk.asked, "nothing long was requested: this tests nothing"
    fetched = ranges(opened)
    read(one_object, cache_dir, range(400))
    assert ranges(opened) == fetched


def test_a_system_that_cannot_set_bytes_aside(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    monkeypatch.setattr(cache_file, "_fallocate", lambda: None)
    read(one_object, cache_dir, range(400))


@pytest.mark.parametrize("cache_size", [10**9, 0])
def test_the_gil_is_freed_until_all_is_here(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, cache_size: int
) -> None:
    """From then on whole rows are copied, which is faster; through memory that never comes."""
    watch(monkeypatch, local=False)
    source = DataLoader(one_object, cache_dir=cache_dir, cache_size=cache_size)._engine
    freed = []
    for rows in (range(100), range(ROWS), range(ROWS)):
        ready = source.prepare(np.array(rows), threading.Event()).now()
        freed.append({part.frees_gil for part in ready.parts.values()})
    assert freed == [{True}, {True}, {cache_size == 0}]


def file_in(folder: Path) -> CacheFile:
    """A cache file of 4 MiB in 64 blocks."""
    with open_private(folder) as own:
        return CacheFile("x.cached", own, 2**22, 64, lock_file("usage", own))


def test_a_thread_that_is_done_leaves_the_locks_of_others(cache_dir: Path) -> None:
    """Blocks between those of another thread's request stay locked when that one ends."""
    never = threading.Event()
    file, elsewhere = file_in(cache_dir), file_in(cache_dir)

    def free() -> list[int]:
        found = []
        for i in range(64):
            elsewhere._patience = 0.0
            with contextlib.suppress(CacheBusyError), elsewhere.fetching([(i, i + 1)], never):
                found.append(i)
        return found

    with contextlib.ExitStack() as inner, contextlib.ExitStack() as outer:
        outer.enter_context(file.fetching([(5, 6), (60, 61)], never))
        inner.enter_context(file.fetching([(6, 20), (30, 60)], never))
        for find in (free, lambda: forked(free)):  # another loader here; another process
            assert find() == [*range(5), *range(20, 30), *range(61, 64)]
        outer.close()
        for find in (free, lambda: forked(free)):
            assert find() == [*range(6), *range(20, 30), *range(60, 64)]
        inner.close()
        assert free() == forked(free) == list(range(64))
    file.close()
    elsewhere.close()


def test_bytes_are_set_aside_by_linux(cache_dir: Path) -> None:
    file = file_in(cache_dir)
    file.allocate(2**20, 3 * 2**20)
    found = (cache_dir / "x.cached").stat()
    assert 2 * 2**20 <= found.st_blocks * 512 < 2**21 + 2**16
    assert found.st_size < 2**22 + 2**16
    assert bytes(file.data) == bytes(2**22)
    file.close()


@pytest.mark.parametrize("number", cache_file.FULL)
def test_a_disk_that_has_no_room_to_set_aside(
    one_object: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    watch(monkeypatch, local=False)
    disk = Disk(number)
    monkeypatch.setattr(cache_file, "_fallocate", lambda: disk.fallocate)
    read(one_object, cache_dir, range(400))
    assert disk.asked
    [text] = warnings_of(caplog)
    assert "its disk is full" in text


# Several at once


LOAD = """
import json, sys
sys.path.insert(0, sys.argv[1])
import storage_loader.catalog.catalog as catalog
from tests.support.faulty import WatchedStore
from tests.support.rows import numbers_in
from tests.support.caches import LARGE
from storage_loader import DataConfig, DataLoader
from storage_loader.store import open_store
catalog.open_store = lambda config: WatchedStore(open_store(config), local=False)
config, cache_dir, seed = DataConfig.from_json(sys.argv[2]), sys.argv[3], int(sys.argv[4])
sys.stdin.readline()
loader = DataLoader(
    config, shuffle="global", seed=seed, batch_size=16, cache_dir=cache_dir, epochs=2,
    prefetch=10**6,
)
print(json.dumps(numbers_in(loader, LARGE)))
"""


def test_processes_share_a_cache(tmp_path: Path, cache_dir: Path) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 1000, max_object_size=2**20)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, str(ROOT), the_config.to_json(),
             str(cache_dir), str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for seed in range(2)
    ]  # fmt: skip
    found = [process.communicate("\n", timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for output in found:
        numbers = json.loads(output)
        assert sorted(numbers) == sorted([*range(1000), *range(1000)])
    assert len(cached_files(cache_dir)) == len(DataLoader(the_config).open().objects)


def test_loaders_of_one_process_share_a_cache(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    loaders = [
        iter(DataLoader(one_object, shuffle="global", seed=s, batch_size=9, cache_dir=cache_dir))
        for s in range(3)
    ]
    seen: list[list[int]] = [[], [], []]
    for parts in zip(*loaders, strict=True):
        for part, numbers in zip(parts, seen, strict=True):
            numbers.extend(numbers_in([part], LARGE))
    assert [sorted(numbers) for numbers in seen] == [list(range(400))] * 3


def test_places_never_share_files(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal keys in two places are two objects."""
    stores = [open_store(config({"storage": str(tmp_path / name)})) for name in "ab"]
    caches = [Cache(cache_dir, store) for store in stores]
    for number, cache in enumerate(caches):
        file = cache.open("rows/x/objects/w/1.h5", 1000, 3)
        file.write(0, bytes([number]) * 1000)
    assert len(cached_files(cache_dir)) == 2
    for number, cache in enumerate(caches):
        assert bytes(cache.open("rows/x/objects/w/1.h5", 1000, 3).data) == bytes([number]) * 1000


@pytest.mark.parametrize(
    "other",
    [
        {"endpoint": "http://127.0.0.1:2"},
        {"endpoint": "https://127.0.0.1:1"},
        {"storage": "s3://bucket2/prefix"},
        {"storage": "s3://bucket/prefix2"},
    ],
    ids=str,
)
def test_servers_and_buckets_never_share_files(cache_dir: Path, other: dict[str, str]) -> None:
    keys = {"access_key": "a", "secret_key": "b"}
    one = {"storage": "s3://bucket/prefix", "endpoint": "http://127.0.0.1:1", **keys}
    for how in (one, {**one, **other}):
        Cache(cache_dir, open_store(config(how))).open("rows/x/objects/w/1.h5", 10, 1)
    assert len(cached_files(cache_dir)) == 2
    Cache(cache_dir, open_store(config({**one, "access_key": "c"}))).open(
        "rows/x/objects/w/1.h5", 10, 1
    )
    assert len(cached_files(cache_dir)) == 2  # another user's keys: the same objects


def test_files_are_private(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    umask = os.umask(0)
    try:
        read(one_object, cache_dir, range(20))
    finally:
        os.umask(umask)
    [file] = cached_files(cache_dir)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    folder = file.parent
    while folder != cache_dir.parent:
        assert not stat.S_IMODE(folder.stat().st_mode) & 0o077, folder
        folder = folder.parent


# Many objects


MANY = 600


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """600 objects of 7 rows."""
    storage = {"storage": str(tmp_path_factory.mktemp("many"))}
    the_config = fill(storage, 7 * MANY, max_object_size=2**16)
    assert len(DataLoader(the_config).open().objects) >= MANY
    return the_config


@pytest.fixture
def few_files() -> Iterator[None]:
    """As many open files as a process usually may have, beside those of tests before."""
    gc.collect()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1024 + len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("shuffle", [False, "global"])
def test_more_objects_than_may_be_open(
    many: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    few_files: None,
    local: bool,
    shuffle: Any,
) -> None:
    """Two loaders at once, as for training and validation."""
    watch(monkeypatch, local=local)
    loaders = [
        DataLoader(many, batch_size=64, shuffle=shuffle, seed=s, cache_dir=cache_dir)
        for s in (0, 1)
    ]
    seen: list[list[int]] = [[], []]
    for parts in zip(*loaders, strict=True):
        for part, numbers in zip(parts, seen, strict=True):
            numbers.extend(part[ROW].tolist())
    assert [sorted(numbers) for numbers in seen] == [list(range(7 * MANY))] * 2
    assert len(cached_files(cache_dir)) == (0 if local else len(loaders[0].open().objects))


def test_a_dropped_loader_closes_its_files_at_once(
    many: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the garbage of cycles is collected: a loader may be made for each epoch."""
    watch(monkeypatch, local=False)
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    gc.disable()
    try:
        for _ in DataLoader(many, batch_size=500, cache_dir=cache_dir):
            pass
        assert len(os.listdir("/dev/fd")) < before + 20
    finally:
        gc.enable()


# Ends


def test_an_early_exit_ends_the_fetching(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 2000, max_object_size=2**20)

    def slow(call: Call) -> None:
        if "/objects/" in call.key:
            time.sleep(0.02)

    opened = watch(monkeypatch, local=False, before=slow)
    batches = iter(
        DataLoader(the_config, batch_size=8, shuffle="global", cache_dir=cache_dir, prefetch=2**30)
    )
    assert len(next(batches)[ROW]) == 8
    batches.close()  # type: ignore[attr-defined]  # a generator
    assert not running("fetch", "plan")
    before = len(ranges(opened))
    time.sleep(0.1)
    assert len(ranges(opened)) == before
    read(the_config, cache_dir, range(2000), batch_size=100)


def test_an_iterator_that_is_dropped_ends_its_threads(
    one_object: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    for _ in DataLoader(one_object, batch_size=8, cache_dir=cache_dir):
        break
    assert not running("fetch", "plan")


@pytest.mark.parametrize("index", [False, True])
def test_an_error_of_a_fetch_reaches_the_consumer(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, index: bool
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 1000, max_object_size=2**20)
    watch(monkeypatch, local=False, before=FailAt("get_ranges object", 3))
    how: dict[str, Any] = {"cache_dir": cache_dir, "index": index, "prefetch": 10**6}
    with pytest.raises(Injected, match="the disk is on fire"):
        read(the_config, cache_dir, range(1000), index=index, prefetch=10**6)
    assert not running("fetch", "plan")
    watch(monkeypatch, local=False)
    assert numbers_in(DataLoader(the_config, batch_size=9, **how), LARGE) == list(range(1000))


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_an_object_that_is_deleted_meanwhile(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, index: bool, local: bool
) -> None:
    """An error that names it, at its place in the order; never other rows, never a hang."""
    the_config = fill({"storage": str(tmp_path / "store")}, 1000, max_object_size=2**20)
    watch(monkeypatch, local=local)
    loader = DataLoader(the_config, batch_size=9, cache_dir=cache_dir, index=index, prefetch=10**5)
    key = loader.open().key(len(loader.open().objects) - 1)
    seen = []
    with pytest.raises(ObjectNotFoundError) as caught:
        for batch in loader:
            seen += numbers_in([batch], LARGE)
            if len(seen) == 9:
                Catalog(the_config).store.delete([key])
    assert key.rsplit("/", 1)[-1] in str(caught.value)
    assert isinstance(caught.value, StorageLoaderError)
    assert seen == list(range(len(seen)))
    assert 0 < len(seen) <= int(loader.open().starts[-2])
    assert not running("fetch", "plan")


def test_an_object_of_another_size_is_an_error(one_object: DataConfig) -> None:
    snapshot = DataLoader(one_object).open()
    file = Path(one_object.storage.removeprefix("file://")) / snapshot.key(0)
    os.truncate(file, snapshot.nbytes - 1)
    with pytest.raises(StorageLoaderError, match="bytes, its commit says"):
        list(DataLoader(one_object, batch_size=10))


def test_the_cache_goes_where_the_user_has_it(
    one_object: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    assert len(numbers_in(DataLoader(one_object, batch_size=50), LARGE)) == 400
    assert len(cached_files(Path(os.environ["XDG_CACHE_HOME"]))) == 1


def test_a_cache_that_is_removed_under_a_loader_is_filled_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also of objects that were complete, and whose maps were dropped since: never zeros."""
    wide = (Attribute(ROW, "int64"), Attribute("pixels", "uint8", (9000,)))  # 7 rows an object
    the_config = config(memory, max_object_size=MIN_OBJECT_SIZE, attributes=wide)
    save(the_config, make(range(200), wide))
    watch(monkeypatch, local=False)
    loader = DataLoader(the_config, batch_size=16, cache_dir=tmp_path / "cache")
    assert numbers_in(loader, wide) == list(range(200))
    assert loader._engine.is_complete
    shutil.rmtree(tmp_path / "cache")
    loader._engine._open._open.clear()  # as if more objects had been opened than are kept
    assert numbers_in(loader, wide) == list(range(200))
    assert numbers_in(loader, wide) == list(range(200))
