"""The points of folders: each fault of a file system is found, and mounts are named."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_loader import check
from storage_loader.checks import folder as module
from storage_loader.checks.examine import examine
from storage_loader.checks.folder import FolderPoints, mount_of
from storage_loader.checks.trial import Effort
from storage_loader.store import FolderStore

LITTLE = Effort(rounds=3, fresh=3, listed=20, speed_seconds=0.02, object_nbytes=2**16)


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


class System:
    """`os` as the points see it, with some functions changed: the store keeps its own."""

    def __init__(self, **changed: Any) -> None:
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def replaced_in_two_steps(source: Any, target: Any) -> None:
    os.unlink(target)
    time.sleep(0.002)  # so that a reader on a busy machine comes between the two
    os.rename(source, target)


def written_in_place(source: Any, target: Any) -> None:
    body = Path(source).read_bytes()
    Path(target).write_bytes(body[:100])
    time.sleep(0.002)
    Path(target).write_bytes(body)


def open_of_all(path: Any, flags: int, *mode: int) -> int:
    return os.open(path, flags & ~os.O_EXCL, *mode)


def small(path: Any) -> Any:
    real = os.statvfs(path)
    return SimpleNamespace(
        f_bavail=1000, f_frsize=4096, f_favail=real.f_favail, f_files=real.f_files
    )


def without_files(path: Any) -> Any:
    real = os.statvfs(path)
    return SimpleNamespace(f_bavail=real.f_bavail, f_frsize=real.f_frsize, f_favail=3, f_files=1000)


@pytest.mark.parametrize(
    ("changed", "point", "said"),
    [
        ({"replace": replaced_in_two_steps}, "whole renames", "no file"),
        ({"replace": written_in_place}, "whole renames", "bytes of another one"),
        ({"link": os.replace}, "links", "replaced a file"),
        ({"open": open_of_all}, "new files", "16 did"),
        ({"fsync": failing(errno.EINVAL)}, "fsync", "fsync fails"),
        ({"statvfs": small}, "room", "4 MB"),
        ({"statvfs": without_files}, "room", "3 files are left"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_fault_of_the_file_system_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    point: str,
    said: str,
) -> None:
    monkeypatch.setattr(module, "os", System(**changed))
    expect(tmp_path, point, said)


@pytest.mark.parametrize(
    ("flock", "said"),
    [(failing(errno.ENOLCK), "files cannot be locked"), (lambda *_: None, "two have the lock")],
)
def test_missing_locks_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Any, said: str
) -> None:
    names = {name: getattr(fcntl, name) for name in ("LOCK_EX", "LOCK_NB")}
    monkeypatch.setattr(module, "fcntl", SimpleNamespace(flock=flock, **names))
    expect(tmp_path, "locks", said)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (failing(errno.ENODEV), "cannot be mapped"),
        (lambda *_, **__: mmap.mmap(-1, 100), "shows other bytes"),
    ],
)
def test_missing_maps_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, said: str
) -> None:
    names = {name: getattr(mmap, name) for name in ("PAGESIZE", "PROT_READ")}
    monkeypatch.setattr(module, "mmap", SimpleNamespace(mmap=make, **names))
    expect(tmp_path, "maps", said)


def expect(root: Path, point: str, said: str, **settings: Any) -> None:
    """Exactly this point falls short, and nothing is left."""
    place = root / "store"
    checked = examine(FolderStore(place), FolderPoints(place, **settings), effort=LITTLE)
    assert [one.name for one in checked.falls_short] == [point]
    assert said in checked[point].detail
    assert checked[point].cost
    assert checked[point].remedy
    assert checked.not_tried == ()
    assert not place.exists()


def mounts(path: Path, *lines: str) -> Path:
    """A file like /proc/self/mountinfo."""
    found = path / "mountinfo"
    found.write_text("".join(f"{n} 1 0:{n} / {line}\n" for n, line in enumerate(lines, 20)))
    return found


ROOT_LINE = "/ rw,relatime - ext4 /dev/sda1 rw"


@pytest.mark.parametrize(
    ("line", "kind", "note"),
    [
        ("rw shared:1 - nfs4 host:/x rw,vers=4.2", "nfs4", "other hosts see new files"),
        ("rw - cifs //host/x rw", "cifs", "depend on the server"),
        ("rw - fuse.s3fs s3fs rw", "fuse.s3fs", "the program behind it"),
        ("rw - overlay overlay rw,lowerdir=/a", "overlay", "goes with the container"),
        ("rw - tmpfs tmpfs rw", "tmpfs", "lies in memory"),
        ("rw - ext4 /dev/sdb1 rw", "ext4", ""),
    ],
)
def test_a_mount_is_named_with_what_does_not_hold(
    tmp_path: Path, line: str, kind: str, note: str
) -> None:
    place = tmp_path / "a b"
    place.mkdir()
    escaped = str(place).replace(" ", "\\040")
    table = mounts(tmp_path, ROOT_LINE, f"{escaped} {line}", "/other rw - xfs /dev/sdc1 rw")
    found = mount_of(place, table)
    assert found is not None
    assert (found.point, found.kind) == (str(place), kind)
    assert note in found.note
    assert bool(found.note) == bool(note)
    above = mount_of(tmp_path, table)
    assert above is not None
    assert above.kind == "ext4"


@pytest.mark.parametrize("option", ["nolock", "local_lock=all"])
def test_locks_that_other_hosts_do_not_see_are_found(tmp_path: Path, option: str) -> None:
    table = mounts(tmp_path, ROOT_LINE, f"{tmp_path} rw - nfs host:/x rw,{option}")
    expect(tmp_path, "mount", f"mounted with {option}", mounts=table)


def test_a_system_without_a_list_of_mounts_is_no_fault(tmp_path: Path) -> None:
    place = tmp_path / "store"
    own = FolderPoints(place, mounts=tmp_path / "none")
    checked = examine(FolderStore(place), own, effort=LITTLE)
    assert [one.name for one in checked.not_tried] == ["mount"]
    assert checked.falls_short == ()


def test_a_file_system_without_hard_links_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    place = tmp_path / "store"
    checked = examine(FolderStore(place), FolderPoints(place), effort=LITTLE)
    assert [one for one in checked.points if one.state != "holds"] == []
    assert "a lock file stands for them" in checked["links"].detail


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    checked = check(tmp_path / "file" / "store")
    assert [one.name for one in checked.falls_short] == ["reached"]
    assert checked["reached"].detail == f"{tmp_path / 'file'} is no folder"
    assert checked["put"].detail == "it needs reached"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    checked = check(tmp_path)
    assert [one.name for one in checked.falls_short] == ["put"]
    assert "no permission" in checked["put"].detail
