"""What a process has verified or mapped is known to all its loaders, as long as the file is the
same."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, Dataset
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import ChecksumError
from storage_loader.loader.fetch import directory, verified
from storage_loader.store import FolderStore, mapped_identity, maps
from tests.support.damage import flip
from tests.support.faulty import watch
from tests.support.rows import ATTRIBUTES, WITH_PIXELS, config, numbers_in, save_rows

COUNT = 200
OLD = 2 * 10**9  # ns: long enough ago that a file system's clock has gone on

STORED = sum(a.row_nbytes for a in WITH_PIXELS) * COUNT


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    verified._known.clear()
    yield
    verified._known.clear()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written may be told apart at once."""
    monkeypatch.setattr(maps, "_SETTLED", 0)


@pytest.fixture(params=["folder", "cache"])
def how(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    """Keywords of loaders: of a folder that is mapped, or of one that is far, with a cache."""
    if request.param == "cache":
        watch(monkeypatch, local=False)
    return {"batch_size": 9, "shuffle": True, "cache_dir": tmp_path / "cache"}


@pytest.fixture
def rows(tmp_path: Path) -> DataConfig:
    the_config = config(
        {"storage": str(tmp_path / "store")},
        attributes=WITH_PIXELS,
        max_object_size=2 * MIN_OBJECT_SIZE,
    )
    return save_rows(the_config, COUNT, 50)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each buffer whose checksum is computed."""
    found: list[int] = []
    real = directory.xxh3

    def counted(data: Any) -> int:
        found.append(memoryview(data).nbytes)
        return real(data)

    monkeypatch.setattr(directory, "xxh3", counted)
    return found


def read(rows: DataConfig, how: dict[str, Any]) -> DataLoader:
    loader = DataLoader(rows, **how)
    assert sorted(numbers_in(loader, WITH_PIXELS)) == list(range(COUNT))
    return loader


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("lives", [True, False])
def test_a_second_loader_verifies_nothing_again(
    rows: DataConfig, how: dict[str, Any], hashed: list[int], lives: bool
) -> None:
    first = read(rows, how)
    assert sum(hashed) >= STORED
    if not lives:
        del first
        gc.collect()
        time.sleep(0.02)  # a tick of the clock of file systems
    hashed.clear()
    read(rows, how)
    read(rows, {**how, "shuffle": "global", "attributes": None})
    assert hashed == []


@pytest.mark.usefixtures("settled")
def test_other_attributes_are_verified(
    rows: DataConfig, how: dict[str, Any], hashed: list[int]
) -> None:
    names = [a.name for a in ATTRIBUTES]
    loader = DataLoader(rows, **how, attributes=names)
    assert sorted(numbers_in(loader)) == list(range(COUNT))
    assert sum(hashed) < STORED / 10
    hashed.clear()
    read(rows, how)
    assert 3000 * COUNT <= sum(hashed) < STORED
    hashed.clear()
    read(rows, how)
    assert hashed == []


def files(rows: DataConfig) -> list[Path]:
    return sorted(Path(rows.storage.removeprefix("file://")).rglob("*.h5"))


@pytest.mark.parametrize("lives", [True, False])
def test_a_file_that_changed_is_verified_again(rows: DataConfig, lives: bool) -> None:
    """In place, and with its old time put back."""
    time.sleep(OLD / 1e9 + 0.05)
    how = {"batch_size": 9}
    first = read(rows, how)
    if not lives:
        del first
    path = files(rows)[1]
    before = path.stat()
    snapshot = Dataset(rows).open()
    place = snapshot.objects[0].layout.columns["pixels"].offset
    flip(path, place + 10)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino
    with pytest.raises(ChecksumError):
        list(DataLoader(rows, **how))
    with pytest.raises(ChecksumError):
        Dataset(rows)[:]


def test_what_was_just_written_is_not_taken_for_known(rows: DataConfig, hashed: list[int]) -> None:
    """It could be written again within a tick of the clock, and keep its times."""
    first = read(rows, {"batch_size": 9})
    assert verified._known == {}
    hashed.clear()
    read(rows, {"batch_size": 9})
    assert sum(hashed) >= STORED
    del first


@pytest.mark.usefixtures("settled")
def test_what_was_read_without_verification_is_not_verified(
    rows: DataConfig, how: dict[str, Any]
) -> None:
    path = files(rows)[0]
    flip(path, Dataset(rows).open().objects[0].layout.columns["pixels"].offset)
    unverified = DataLoader(rows, **how, verify=False)
    assert len([*unverified]) == len(unverified)
    with pytest.raises(ChecksumError):
        list(DataLoader(rows, **how))


@pytest.mark.usefixtures("settled")
def test_what_is_known_is_bounded(
    rows: DataConfig, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_MOST", 2)
    read(rows, how)
    read(rows, how)
    assert len(verified._known) <= 2


# Maps


def store_with(tmp_path: Path, data: bytes) -> FolderStore:
    store = FolderStore(tmp_path)
    store.put("a", data)
    return store


def mapped(store: FolderStore, nbytes: int = 5) -> memoryview:
    [data] = store.get_ranges("a", [(0, nbytes)])
    return data


@pytest.mark.usefixtures("settled")
def test_a_file_is_mapped_once(tmp_path: Path) -> None:
    store = store_with(tmp_path, b"12345")
    first, second = mapped(store), mapped(FolderStore(tmp_path))
    assert first.obj is second.obj
    assert bytes(second) == b"12345"
    assert mapped_identity(first) is not None
    before = mapped_identity(first)
    del first, second
    assert mapped_identity(mapped(store)) == before


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_changed_is_mapped_anew(tmp_path: Path, replaced: bool) -> None:
    store = store_with(tmp_path, b"12345")
    first = mapped(store)
    time.sleep(0.02)
    if replaced:
        store.put("a", b"67890")
    else:
        with open(tmp_path / "a", "r+b") as file:
            file.write(b"67890")
    second = mapped(store)
    assert second.obj is not first.obj
    assert bytes(second) == b"67890"
    assert mapped_identity(second) != mapped_identity(first)


def test_what_was_just_written_is_mapped_each_time(tmp_path: Path) -> None:
    store = store_with(tmp_path, b"12345")
    first, second = mapped(store), mapped(store)
    assert first.obj is not second.obj
    assert mapped_identity(first) is mapped_identity(second) is None


def test_bytes_of_no_file_have_no_identity() -> None:
    assert mapped_identity(memoryview(b"12345")) is None
