"""`cache_size`: the same rows whatever it is, never exceeded, nothing of others touched."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader
from storage_loader.loader.fetch import cache
from storage_loader.loader.fetch.cache import Cache
from storage_loader.store import open_store
from tests.support.caches import LARGE, cached_files, fill, never_above, ranges, used
from tests.support.faulty import watch
from tests.support.rows import numbers_in, numbers_of

ROWS = 400
OBJECT = 2**20  # bytes, at most: 4 objects


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    storage = {"storage": str(tmp_path_factory.mktemp("several"))}
    the_config = fill(storage, ROWS, max_object_size=OBJECT)
    assert len(DataLoader(the_config).open().objects) == 4
    return the_config


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def sizes(the_config: DataConfig) -> dict[str, int]:
    snapshot = DataLoader(the_config).open()
    disk = -(-max(o.nbytes for o in snapshot.objects) // 4096 + 4) * 4096
    return {
        "nothing": 0,
        "a byte": 1,
        "below a block": 30_000,
        "below an object": disk // 2,
        "an object": disk,
        "two objects": 2 * disk,
        "all but a page": snapshot.nbytes - 4096,
        "all": len(snapshot.objects) * disk,
    }


@functools.cache
def without_cache(the_config: DataConfig, **how: Any) -> list[int]:
    return numbers_in(DataLoader(the_config, index=True, **how), LARGE)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("batch_size", [3, 150])
@pytest.mark.parametrize(
    "size",
    ["nothing", "a byte", "below a block", "below an object", "an object", "two objects",
     "all but a page", "all"],
)  # fmt: skip
def test_the_rows_are_the_same_and_the_limit_is_kept(
    several: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shuffle: Any,
    batch_size: int,
    size: str,
) -> None:
    watch(monkeypatch, local=False)
    how: dict[str, Any] = {
        "batch_size": batch_size, "shuffle": shuffle, "seed": 2, "block": 14, "window": 100,
        "epochs": 2,
    }  # fmt: skip
    expected = without_cache(several, **how)
    assert sorted(expected) == sorted([*range(ROWS), *range(ROWS)])
    limit = sizes(several)[size]
    with never_above(monkeypatch, cache_dir, limit):
        loader = DataLoader(several, cache_dir=cache_dir, cache_size=limit, **how)
        assert numbers_in(loader, LARGE) == expected
        assert numbers_in(loader, LARGE)
    warnings = [r for r in caplog.records if r.name == "storage_loader.loader.fetch.cache"]
    # A cache that holds an object or more says nothing as long as files give way in time.
    least = size in ("a byte", "below a block", "below an object")
    assert least <= len(warnings) <= (size not in ("nothing", "all"))
    if size == "nothing":
        assert not cache_dir.exists()


def test_a_cache_that_holds_all_is_used(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = watch(monkeypatch, local=False)
    for _ in range(3):
        loader = DataLoader(
            several, batch_size=16, shuffle="global", cache_dir=cache_dir,
            cache_size=sizes(several)["all"],
        )  # fmt: skip
        assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert sum(end - start for _, start, end in ranges(opened)) < 1.1 * loader.open().nbytes


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("window", [100, None])
def test_a_later_epoch_finds_the_share_that_fits(
    several: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    shuffle: Any,
    count: int,
    window: int | None,
) -> None:
    """What fits is kept for the next epoch, not evicted by what follows it."""
    opened = watch(monkeypatch, local=False)
    disk = sizes(several)["an object"]
    loader = DataLoader(
        several, batch_size=16, shuffle=shuffle, block=window and 14, window=window,
        cache_dir=cache_dir, cache_size=count * disk,
    )  # fmt: skip
    assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    for _ in range(2):
        opened[0].calls.clear()
        assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
        fetched = sum(end - start for _, start, end in ranges(opened[:1]))
        assert fetched < (1.1 - count / 4) * loader.open().nbytes


def test_files_of_other_datasets_give_way(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watch(monkeypatch, local=False)
    other = fill({"storage": str(tmp_path / "other")}, ROWS, max_object_size=OBJECT)
    limit = sizes(several)["all"]
    settings: dict[str, Any] = {"batch_size": 50, "cache_dir": cache_dir, "cache_size": limit}
    assert numbers_in(DataLoader(other, **settings), LARGE) == list(range(ROWS))
    loader = DataLoader(several, **settings)
    for _ in range(2):
        assert numbers_in(loader, LARGE) == list(range(ROWS))
    assert loader.stats.requests == 0


def test_two_loaders_with_one_small_cache(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    limit = sizes(several)["two objects"]
    with never_above(monkeypatch, cache_dir, limit):
        iterators = [
            iter(
                DataLoader(
                    several, batch_size=9, shuffle="global", seed=seed, epochs=3,
                    cache_dir=cache_dir, cache_size=limit,
                )
            )
            for seed in range(2)
        ]  # fmt: skip
        seen: list[list[int]] = [[], []]
        failed: list[BaseException] = []

        def run(i: int) -> None:
            try:
                seen[i].extend(numbers_in(iterators[i], LARGE))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failed == []
    assert [sorted(numbers) for numbers in seen] == [sorted([*range(ROWS)] * 3)] * 2


def test_a_lower_limit_holds_from_the_next_fetch_on(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    assert numbers_in(DataLoader(several, batch_size=50, cache_dir=cache_dir), LARGE)
    file = cached_files(cache_dir)[0]
    file.unlink()  # else nothing is fetched
    limit = sizes(several)["two objects"]
    assert used(cache_dir) > limit
    loader = DataLoader(several, batch_size=16, cache_dir=cache_dir, cache_size=limit)
    assert numbers_in(loader, LARGE) == list(range(ROWS))
    del loader
    assert numbers_in(
        DataLoader(several, batch_size=16, cache_dir=cache_dir, cache_size=limit), LARGE
    ) == list(range(ROWS))
    assert used(cache_dir) <= limit


# `Cache` by itself


NBYTES = 100_000
NEVER = threading.Event()  # nobody stops it


@pytest.fixture
def cache_of(several: DataConfig, cache_dir: Path) -> Callable[[int | None], Cache]:
    store = open_store(several)
    return lambda size: Cache(cache_dir, store, size)


def put(cache: Cache, key: str) -> bool:
    """An object of 100,000 bytes, all fetched; False where the cache has no room."""
    file = cache.open(key, NBYTES, 1)
    if not cache.reserve(NBYTES, file, NEVER):
        return False
    file.write(0, b"x" * NBYTES)
    file.mark(0, 1)
    return True


def kept(cache_dir: Path) -> list[str]:
    """Names of the files that take bytes."""
    return [f.name.removesuffix(".cached") for f in cached_files(cache_dir) if f.stat().st_blocks]


def test_what_was_not_used_for_longest_is_evicted(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    cache = cache_of(4 * 110_000)
    for number, key in enumerate("abcd"):
        assert put(cache, key)
        [file] = cache_dir.rglob(f"{key}.cached")
        os.utime(file, (number, number))
    cache.open("a", NBYTES, 1)  # used again
    assert put(cache, "e")
    assert kept(cache_dir) == ["a", "c", "d", "e"]
    for key in "cd":
        cache.open(key, NBYTES, 1)
    assert put(cache, "f")
    assert kept(cache_dir) == ["c", "d", "e", "f"]


def test_what_is_open_is_not_evicted(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    cache = cache_of(2 * 110_000)
    assert put(cache, "a")
    assert put(cache, "b")
    used_file = cache.open("a", NBYTES, 1)
    other = cache_of(2 * 110_000)  # another loader, or process: a lock belongs to an open file
    assert put(other, "c")
    assert kept(cache_dir) == ["a", "c"]
    also_used = other.open("c", NBYTES, 1)
    assert not put(other, "d")
    assert kept(cache_dir) == ["a", "c"]
    assert bytes(used_file.data) == bytes(also_used.data) == b"x" * NBYTES
    data = used_file.data
    used_file.close()  # the map still holds it
    assert not put(other, "d")
    assert bytes(data) == b"x" * NBYTES
    del data, used_file
    assert put(other, "d")
    assert kept(cache_dir) == ["c", "d"]


HOLD = """
import sys
from storage_loader.loader.fetch.cache import Cache
from storage_loader import DataConfig
from storage_loader.store import open_store
cache = Cache(sys.argv[2], open_store(DataConfig.from_json(sys.argv[1])), 10**9)
file = cache.open("a", 100_000, 1)
print("held", flush=True)
sys.stdin.readline()
"""


def test_what_another_process_has_open_is_not_evicted(
    several: DataConfig, cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    cache = cache_of(110_000)
    assert put(cache, "a")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, several.to_json(), str(cache_dir)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not put(cache, "b")
        assert kept(cache_dir) == ["a"]
        process.kill()  # and what a killed one had open is free again
        process.wait()
        assert put(cache, "b")
        assert kept(cache_dir) == ["b"]


def test_what_cannot_fit_evicts_nothing(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    cache = cache_of(3 * 110_000)
    for key in "abc":
        assert put(cache, key)
    assert not cache.reserve(3 * 110_000 + 1, cache.open("d", 10 * NBYTES, 1), NEVER)
    assert kept(cache_dir) == ["a", "b", "c"]


def test_what_is_reserved_and_not_yet_written_counts(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    """Also where another cache, as of another process, counts the files anew."""
    first, second = cache_of(250_000), cache_of(250_000)
    assert put(first, "old")
    files = [first.open(key, NBYTES, 1) for key in "ab"]
    assert first.reserve(NBYTES, files[0], NEVER)
    assert first.reserve(NBYTES, files[1], NEVER)  # "old" gives way
    assert not second.reserve(NBYTES, second.open("c", NBYTES, 1), NEVER)
    for file in files:
        file.write(0, b"x" * NBYTES)
    assert used(cache_dir) <= 250_000


def test_what_was_reserved_in_vain_is_free_again(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    """By a process that was killed, or an epoch that was left."""
    cache = cache_of(350_000)
    assert put(cache, "a")
    for _ in range(10):
        file = cache.open("x", NBYTES, 1)
        assert cache.reserve(NBYTES, file, NEVER)
        del file
    assert put(cache, "b")
    assert put(cache, "c")
    assert [name for name in kept(cache_dir) if name != "x"] == ["a", "b", "c"]


def test_a_lost_count_is_counted_again(
    cache_of: Callable[[int | None], Cache], cache_dir: Path
) -> None:
    cache = cache_of(250_000)
    assert put(cache, "a")
    assert put(cache, "b")
    for text in (None, b"", b"garbage", b"-5\n"):
        [usage] = cache_dir.rglob("usage")
        usage.unlink()
        if text is not None:
            usage.write_bytes(text)
        held = [cache.open(key, NBYTES, 1) for key in kept(cache_dir)]
        assert not cache.reserve(NBYTES, cache.open("c", NBYTES, 1), NEVER)
        assert used(cache_dir) <= 250_000
        del held


def test_nothing_of_others_is_deleted(
    several: DataConfig,
    cache_of: Callable[[int | None], Cache],
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = cache_dir.parent / "mine"
    (mine / "folder").mkdir(parents=True)
    cache_dir.mkdir()
    others = [
        mine / "folder" / "data.cached",
        cache_dir / "notes.txt",
        cache_dir / "notes.cached",
        cache_dir / "user-0x" / "data.cached",
        cache_dir / f"user-{os.getuid() + 1}" / "0123456789abcdef" / "data.cached",
    ]
    cache = cache_of(110_000)
    assert put(cache, "a")
    own = cached_files(cache_dir)[0].parent
    others += [own / "notes.txt", own / "a.cached.txt"]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, (1, 1))
    (own / "link").symlink_to(mine)
    (own / "link.cached").symlink_to(others[0])
    assert put(cache, "b")
    watch(monkeypatch, local=False)
    loader = DataLoader(several, batch_size=16, cache_dir=cache_dir, cache_size=10_000)
    assert numbers_in(loader, LARGE) == list(range(ROWS))
    for path in others:
        assert path.read_bytes() == b"mine"


def test_a_cache_that_is_removed_while_a_loader_runs(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    for size in (None, 10**9, sizes(several)["an object"]):
        loader = DataLoader(
            several, batch_size=8, shuffle="global", epochs=2, cache_dir=cache_dir,
            cache_size=size, prefetch=10**5,
        )  # fmt: skip
        seen: list[int] = []
        for number, batch in enumerate(loader):
            seen += numbers_of(batch, LARGE)
            if number % 5 == 0:
                shutil.rmtree(cache_dir, ignore_errors=True)
        assert sorted(seen) == sorted([*range(ROWS)] * 2)


def test_an_evictor_and_a_loader_at_once(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files vanish at any moment while nobody has them open: never a wrong row."""
    watch(monkeypatch, local=False)
    ended = threading.Event()

    def evict() -> None:
        while not ended.is_set():
            for path in cached_files(cache_dir):
                with suppress(OSError), path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            time.sleep(0.001)

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        for seed in range(10):
            loader = DataLoader(
                several, batch_size=16, shuffle="global", seed=seed, cache_dir=cache_dir,
                prefetch=10**5,
            )  # fmt: skip
            assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("step", range(2))
def test_a_cache_that_is_removed_while_room_is_made(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """`rm -rf` of the folder, after its files were listed."""
    watch(monkeypatch, local=False)
    settings: dict[str, Any] = {"cache_dir": cache_dir, "cache_size": 2 * OBJECT}
    list(DataLoader(several, batch_size=64, **settings))
    real, left = cache._cache_files, [step]

    def files(folder: int) -> list[Any]:
        found = list(real(folder))
        left[0] -= 1
        if left[0] == -1:
            shutil.rmtree(cache_dir)
        return found

    monkeypatch.setattr(cache, "_cache_files", files)
    loader = DataLoader(several, batch_size=64, shuffle=True, **settings)
    assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert left[0] < 0
