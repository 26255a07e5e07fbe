"""Storages that are good enough: every point holds, and nothing but them is changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, check, save
from storage_loader.checks import own
from storage_loader.errors import ConfigError
from storage_loader.store import Store, open_store
from tests.support import ROOT, checking
from tests.support.rows import ATTRIBUTES_1K, make, numbers_in
from tests.support.scale import scaled


def config_at(storage: dict[str, str]) -> DataConfig:
    return DataConfig("kept", ATTRIBUTES_1K, **storage)


def keys_in(store: Store) -> set[str]:
    return {info.key for info in store.list()}


@pytest.fixture
def with_dataset(storage: dict[str, str]) -> dict[str, str]:
    """A storage in which a dataset lies."""
    save(config_at(storage), make(range(50), ATTRIBUTES_1K))
    return storage


def test_all_points_hold_and_nothing_else_changes(with_dataset: dict[str, str]) -> None:
    store = open_store(config_at(with_dataset))
    before = {(info.key, info.nbytes, info.modified) for info in store.list()}
    checked = check(**with_dataset)  # type: ignore[arg-type]
    assert [one for one in checked.points if one.state != "holds"] == []
    assert checked.left == ""
    assert {(info.key, info.nbytes, info.modified) for info in store.list()} == before
    assert store.list_folders() == ["kept"]
    assert checked.seconds < 30


@pytest.mark.usefixtures("speed_of_a_moment")
def test_tmpfs_holds_and_is_named() -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("no tmpfs here")
    place = memory / f"storage-loader-check-{os.getpid()}" / "store"
    checked = check(place)
    assert [one for one in checked.points if one.state != "holds"] == []
    assert "tmpfs" in checked["mount"].detail
    assert not place.parent.exists()


def test_read_only_writes_nothing(
    with_dataset: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(own.OwnFolder, "writing", lambda self, keys: written.append(str(keys)))
    checked = check(read_only=True, **with_dataset)  # type: ignore[arg-type]
    assert [one for one in checked.points if one.state != "holds"] == []
    assert checked["read"].detail.startswith("tried with kept/")
    assert written == []


def test_read_only_of_nothing_tells_what_it_could_not_try(memory: dict[str, str]) -> None:
    checked = check(read_only=True, **memory)  # type: ignore[arg-type]
    assert [one.name for one in checked.not_tried] == ["read"]


@pytest.mark.usefixtures("speed_of_a_moment")
def test_a_missing_folder_is_made_only_by_a_check_that_writes(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    checked = check(place, read_only=True)
    assert [one.name for one in checked.falls_short] == ["reached"]
    assert "there is no folder" in checked["reached"].detail
    assert not check(place).falls_short
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("speed_of_a_moment")
def test_old_leavings_go_and_young_ones_stay(folder: dict[str, str]) -> None:
    root = Path(folder["storage"])
    for name in ("old", "young", "mixed"):
        place = root / own.FOLDER / name / "deep"
        place.mkdir(parents=True)
        for file in ("object", ".tmp-0123456789abcdef"):
            (place / file).write_bytes(b"x")
    (root / own.FOLDER / "empty" / "deep").mkdir(parents=True)
    ago = time.time() - 2 * own.AGE.total_seconds()
    for path in [*(root / own.FOLDER / "old").rglob("*"), root / own.FOLDER / "mixed/deep/object"]:
        os.utime(path, (ago, ago))
    assert check(root).swept == 1
    assert sorted(path.name for path in (root / own.FOLDER).iterdir()) == ["mixed", "young"]


def test_a_check_writes_only_in_its_own_folder(memory: dict[str, str]) -> None:
    store = own.OwnFolder(open_store(config_at(memory)))
    for act in (
        lambda: store.put("kept/0/dataset.json", b""),
        lambda: store.delete(["kept/0/dataset.json"]),
        lambda: store.now("kept/gc.probe"),
    ):
        with pytest.raises(OSError, match=r"a check writes in \.storage-loader-check/"):
            act()


@pytest.mark.parametrize("seconds", [9, True, "30", None])
def test_the_time_must_be_enough(memory: dict[str, str], seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"seconds .*: a number from 10 up"):
        check(seconds=seconds, **memory)  # type: ignore[arg-type]


def program(*words: str, **keys: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **keys},
    )


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("place", ["folder", pytest.param("s3_storage", marks=pytest.mark.s3)])
def test_ctrl_c_leaves_nothing(request: pytest.FixtureRequest, place: str) -> None:
    storage: dict[str, str] = request.getfixturevalue(place)
    config = config_at(storage)
    save(config, make(range(50), ATTRIBUTES_1K))
    before = keys_in(open_store(config))
    keys = {
        "AWS_ACCESS_KEY_ID": storage.get("access_key", ""),
        "AWS_SECRET_ACCESS_KEY": storage.get("secret_key", ""),
    }
    where = [f"--{name}={storage[name]}" for name in ("endpoint", "region") if name in storage]
    for wait in (0.05, 0.5, 1.5):
        running = program("-m", "storage_loader", "check", storage["storage"], *where, **keys)
        store = open_store(config)
        while own.FOLDER not in store.list_folders():
            assert running.poll() is None, running.communicate()
            time.sleep(0.01)
        time.sleep(wait)
        running.send_signal(signal.SIGINT)
        output, said = running.communicate(timeout=30)
        assert running.returncode == 1, (output, said)
        assert "Aborted!" in said
        assert keys_in(open_store(config)) == before
        assert open_store(config).list_folders() == ["kept"]


@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("library_once", "speed_of_a_moment")
@pytest.mark.parametrize("place", ["folder", pytest.param("s3_storage", marks=pytest.mark.s3)])
def test_killed_checks_leave_only_what_a_later_one_removes(
    request: pytest.FixtureRequest, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage: dict[str, str] = request.getfixturevalue(place)
    config = config_at(storage)
    save(config, make(range(50), ATTRIBUTES_1K))
    store = open_store(config)
    before = keys_in(store)
    kills = scaled(10)
    running = program("-m", checking.__name__, str(kills), "1", json.dumps(storage))
    output, said = running.communicate(timeout=2900)
    assert running.returncode == 0, said
    print(output)  # pytest -rP shows it
    assert json.loads(output)["killed"] == kills
    left = keys_in(store) - before
    assert left
    assert all(key.startswith(f"{own.FOLDER}/") for key in left)
    monkeypatch.setattr(own, "AGE", timedelta(seconds=-5))  # all of it is old
    checked = check(seconds=120, **storage)  # type: ignore[arg-type]
    assert checked.falls_short == checked.not_tried == ()
    assert 0 < checked.swept <= kills
    assert keys_in(store) == before
    assert store.list_folders() == ["kept"]
    assert [*store.list_unfinished()] == []
    assert numbers_in(DataLoader(config, batch_size=10), ATTRIBUTES_1K) == list(range(50))
