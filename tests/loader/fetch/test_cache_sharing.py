"""One cache of several processes and users: each block fetched once, whoever is killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataLoader, save
from storage_loader.catalog import Catalog
from storage_loader.loader.fetch.locks import LockFile
from tests.support.caches import LARGE, assert_disjoint, cached_files, fill, ranges, read
from tests.support.faulty import watch
from tests.support.loading import Loading, Result, loading
from tests.support.rows import config, make, numbers_in
from tests.support.threads import running

ROWS = 400


def results_of(processes: Sequence[Loading]) -> list[Result]:
    """What they read beside each other: each of them every row once."""
    with loading(*processes):
        for process in processes:
            process.begin()
        results = [process.result() for process in processes]
    for numbers, _ in results:
        assert sorted(numbers) == list(range(ROWS))
    return results


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("place", ["folder", pytest.param("s3_storage", marks=pytest.mark.s3)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_four_processes_fetch_each_block_once(
    request: pytest.FixtureRequest, cache_dir: Path, place: str, shuffle: bool
) -> None:
    the_config = fill(request.getfixturevalue(place), ROWS, max_object_size=2**20)
    processes = [Loading(the_config, cache_dir, shuffle=shuffle, seed=3) for _ in range(4)]
    results = results_of(processes)
    assert all(numbers == results[0][0] for numbers, _ in results)
    fetched = [call for _, calls in results for call in calls if call[1] < call[2]]
    whole = DataLoader(the_config).open().nbytes
    rows = ROWS * sum(a.row_nbytes for a in LARGE)
    most = 1.125 * whole  # short gaps are fetched rather than split a request
    if not shuffle:
        assert_disjoint(fetched)
        most = whole
    assert rows <= sum(end - start for _, start, end in fetched) <= most


def test_different_orders_share_too(tmp_path: Path, cache_dir: Path) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS, max_object_size=2**20)
    processes = [Loading(the_config, cache_dir, shuffle="global", seed=i) for i in range(4)]
    results = results_of(processes)
    total = sum(end - start for _, calls in results for _, start, end in calls)
    assert total <= 1.25 * DataLoader(the_config).open().nbytes


def test_a_process_killed_during_a_download(tmp_path: Path, cache_dir: Path) -> None:
    """What it held is free, what it left half-written is no row of anybody."""
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS)
    killed = Loading(the_config, cache_dir, hold=True)
    others = [Loading(the_config, cache_dir, shuffle=s) for s in (False, True, False)]
    with loading(killed, *others):
        killed.begin()
        killed.wait_for("holding")
        [file] = cached_files(cache_dir)
        assert file.stat().st_blocks * 512 > 2**17, "nothing is half-written: this tests nothing"
        for other in others:
            other.begin()
        killed.kill()
        results = [other.result() for other in others]
    assert [sorted(numbers) for numbers, _ in results] == [list(range(ROWS))] * 3
    later = Loading(the_config, cache_dir)
    with loading(later):
        later.begin()
        numbers, calls = later.result()
    assert numbers == list(range(ROWS))
    assert [call for call in calls if call[1] < call[2]] == []


def test_others_wait_for_what_one_fetches(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS)
    one = Loading(the_config, cache_dir, hold=True)
    with loading(one):
        one.begin()
        one.wait_for("holding")
        opened = watch(monkeypatch, local=False)
        seen: list[list[int]] = []
        loader = DataLoader(the_config, batch_size=16, cache_dir=cache_dir)
        thread = threading.Thread(target=lambda: seen.append(numbers_in(loader, LARGE)))
        thread.start()
        thread.join(0.5)
        held = {call[1:] for call in ranges(opened)}
        one.begin()  # it goes on
        numbers, calls = one.result()
        thread.join(100)
    assert seen == [numbers] == [list(range(ROWS))]
    assert held <= {(start, end) for _, start, end in ranges(opened)}
    assert_disjoint(
        [*(c for c in calls if c[1] < c[2]), *(c for c in ranges(opened) if c[1] < c[2])]
    )


def test_leaving_early_does_not_wait_for_another_process(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS, max_object_size=2 * 2**20)
    waits, real = threading.Event(), LockFile._lock

    def lock(*args: Any) -> bool:
        got = real(*args)
        if not got:
            waits.set()
        return got

    monkeypatch.setattr(LockFile, "_lock", lock)
    # Were what the other has fetched by now found in memory, nothing would be fetched ahead.
    monkeypatch.setattr("storage_loader.loader.fetch.mapped.is_resident", lambda data: False)
    rows = [*range(250, 400), *range(250)]  # the second object first: the other holds the first
    one = Loading(the_config, cache_dir, hold=True)
    with loading(one):
        watch(monkeypatch, local=False)
        one.begin()
        one.wait_for("holding")
        loader = DataLoader(the_config, batch_size=16, cache_dir=cache_dir, subset=rows)
        batches = iter(loader)
        assert numbers_in([next(batches)], LARGE) == rows[:16]
        assert waits.wait(100)
        batches.close()  # type: ignore[attr-defined]  # a generator
    assert running("fetch", "plan") == []


# Whose files


@pytest.mark.parametrize("target", ["a file of its size", "a cache file", "nothing", "a folder"])
def test_a_link_in_a_cache_is_never_followed(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS)
    opened = watch(monkeypatch, local=False)
    read(the_config, cache_dir, range(ROWS))
    [file] = cached_files(cache_dir)
    body = file.read_bytes()
    mine = tmp_path / "mine"
    if target == "a folder":
        mine.mkdir()
    elif target != "nothing":
        mine.write_bytes(body if target == "a cache file" else b"\1" * len(body))
    before = mine.read_bytes() if mine.is_file() else None
    file.unlink()
    file.symlink_to(mine)
    opened.clear()
    read(the_config, cache_dir, range(ROWS))
    fetched = sum(end - start for _, start, end in ranges(opened))
    assert fetched >= ROWS * LARGE[0].row_nbytes
    assert not file.is_symlink()
    assert (mine.read_bytes() if mine.is_file() else None) == before
    assert mine.exists() == (target != "nothing")


def test_datasets_and_versions_are_never_mistaken(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    storage = {"storage": str(tmp_path / "store")}
    versions = []
    for name, first in (("a", 0), ("b", 1000)):
        the_config = config(storage, name)
        for shift in (0, 100):
            save(the_config, make(range(first + shift, first + shift + 5)), refresh=shift > 0)
            versions.append((the_config, DataLoader(the_config).version))
    for the_config, version in versions * 2:
        expected = numbers_in(DataLoader(the_config, version=version, index=True))
        cached = DataLoader(the_config, version=version, cache_dir=cache_dir, shuffle=True)
        assert sorted(numbers_in(cached)) == sorted(expected)
    assert len({tuple(sorted(v.commits)) for _, v in versions}) == 4
    assert len(cached_files(cache_dir)) == 4


def test_two_users_do_not_meet(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS)
    watch(monkeypatch, local=False)
    found: dict[int, list[Path]] = {}
    for uid in (1001, 1002):
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        read(the_config, cache_dir, range(ROWS), cache_size=10**8)
        found[uid] = [f for f in cache_dir.rglob("*") if f.is_file() and f"user-{uid}" in f.parts]
        names = sorted(path.name for path in found[uid])
        assert names[:1] + names[2:] == [".origin", "usage"]
        assert names[1].endswith(".cached")
    everything = {f for f in cache_dir.rglob("*") if f.is_file()}
    assert everything == {*found[1001], *found[1002]}
    read(the_config, cache_dir, range(ROWS), cache_size=10_000)  # evicts only its own
    assert [f for f in found[1001] if f.exists()] == found[1001]
    store = Catalog(the_config).store
    assert store.list("")  # the store itself is as it was
