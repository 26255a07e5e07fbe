"""A cache's own files are not trusted either: others may have made or changed them."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import DataConfig, DataLoader
from storage_loader.errors import LoaderError
from tests.support.caches import LARGE, ROWS, cached_files, fill
from tests.support.faulty import watch
from tests.support.hostile import damage
from tests.support.planted import Exchanged, make_other_name, make_pipe, make_socket, own
from tests.support.rows import numbers_in
from tests.support.scale import scaled


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    the_config = fill({"storage": str(tmp_path / "store")})
    watch(monkeypatch, local=False)
    return the_config


def read(the_config: DataConfig, cache_dir: Path, size: int | None = None) -> None:
    loader = DataLoader(the_config, batch_size=50, cache_dir=cache_dir, cache_size=size)
    assert numbers_in(loader, LARGE) == list(range(ROWS))


def test_any_change_of_any_file_of_the_cache_is_harmless(
    dataset: DataConfig, tmp_path: Path
) -> None:
    """The object's copy, its flags, what it reserved, and the count of all of them."""
    full = tmp_path / "full"
    read(dataset, full, 2**24)
    [cached], usage = cached_files(full), own(full) / "usage"
    bodies = {path.relative_to(full): path.read_bytes() for path in (cached, usage)}

    @settings(max_examples=scaled(30))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            shutil.copytree(full, folder, dirs_exist_ok=True)
            for name, body in bodies.items():
                changed = body
                for _ in range(data.draw(st.integers(0, 2))):
                    changed = damage(changed, lambda n: data.draw(st.integers(0, n - 1)))
                Path(folder, name).write_bytes(changed)
            for _ in range(2):
                read(dataset, Path(folder), 2**24)

    check()


@pytest.mark.parametrize(
    "text",
    [b"", b"-5", b"9" * 31, b"9" * 10_000, b"1e99", b"\xff" * 40, "\u0665".encode(), b"0", b"nan"],
    ids=lambda text: repr(text[:8]),
)
def test_any_count_is_harmless(dataset: DataConfig, tmp_path: Path, text: bytes) -> None:
    read(dataset, tmp_path / "cache", 2**24)
    (own(tmp_path / "cache") / "usage").write_bytes(text)
    read(dataset, tmp_path / "cache", 2**24)
    read(dataset, tmp_path / "cache", 2**21)


def make_link(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [make_link, make_pipe, Path.touch, Path.mkdir])
def test_a_count_that_is_no_file(
    dataset: DataConfig, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    usage = own(tmp_path / "cache") / "usage"
    usage.parent.mkdir(parents=True)
    make(usage)
    if make is Path.touch:
        read(dataset, tmp_path / "cache", 2**24)
        return
    with pytest.raises(LoaderError, match=r"cannot be used: .* give another cache_dir"):
        read(dataset, tmp_path / "cache", 2**24)


def test_a_folder_that_is_a_link_is_refused(dataset: DataConfig, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "cache").mkdir()
    own(tmp_path / "cache").symlink_to(elsewhere)
    with pytest.raises(LoaderError, match="a link, or another user's; somebody else made it"):
        read(dataset, tmp_path / "cache")
    assert list(elsewhere.iterdir()) == []


def test_a_folder_of_another_user_is_refused(
    dataset: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path / "cache").mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(LoaderError, match="a link, or another user's; somebody else made it"):
        read(dataset, tmp_path / "cache")
    assert cached_files(tmp_path) == []


def test_a_folder_that_others_may_read_is_closed(dataset: DataConfig, tmp_path: Path) -> None:
    own(tmp_path / "cache").mkdir(parents=True)
    own(tmp_path / "cache").chmod(0o777)
    read(dataset, tmp_path / "cache", 2**24)
    assert stat.S_IMODE(own(tmp_path / "cache").stat().st_mode) == 0o700
    for path in own(tmp_path / "cache").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


# Where another user may rename what lies in `cache_dir`


@pytest.mark.parametrize("size", [None, 2**24])
def test_a_folder_that_is_exchanged_at_any_moment(
    dataset: DataConfig, tmp_path: Path, size: int | None
) -> None:
    """No file of ours comes to lie where a link leads that was put there after we looked."""
    exchanged, refusals = 0, set()
    for nth in range(1000):
        with tempfile.TemporaryDirectory(dir=tmp_path) as name, pytest.MonkeyPatch.context() as p:
            cache_dir, theirs = Path(name, "cache"), Path(name, "theirs")
            theirs.mkdir()
            exchange = Exchanged(p, own(cache_dir), theirs, nth)
            try:
                read(dataset, cache_dir, size)
            except LoaderError as error:
                refusals.add("somebody else made it" in str(error))
            assert list(theirs.iterdir()) == [], nth
            if not exchange.is_done:
                break
            exchanged += 1
    assert exchanged > 5
    assert refusals == {True}


def test_a_link_below_is_refused(dataset: DataConfig, tmp_path: Path) -> None:
    read(dataset, tmp_path / "cache")
    [file] = cached_files(tmp_path / "cache")
    (tmp_path / "theirs").mkdir()
    shutil.rmtree(file.parent)
    file.parent.symlink_to(tmp_path / "theirs")
    with pytest.raises(LoaderError, match="a link, or another user's; somebody else made it"):
        read(dataset, tmp_path / "cache")
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.parametrize("make", [make_pipe, make_socket, make_other_name])
def test_what_is_no_file_of_ours_is_replaced(
    dataset: DataConfig, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    read(dataset, tmp_path / "cache", 2**24)
    [file] = cached_files(tmp_path / "cache")
    file.unlink()
    make(file)
    read(dataset, tmp_path / "cache", 2**24)
    assert stat.S_ISREG(file.lstat().st_mode)
    assert file.stat().st_nlink == 1
    for mine in file.parent.glob("mine"):
        assert mine.read_bytes() == b""
