"""Large objects in a folder go past the page cache where they can; the bytes are the same."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from storage_loader.errors import StoreError
from storage_loader.store import FolderStore
from storage_loader.store import folder as module

PAGE = mmap.PAGESIZE
LEAST = module._DIRECT_NBYTES


def aligned(nbytes: int, *, shift: int = 0) -> memoryview:
    """Random bytes that begin `shift` bytes behind a page boundary."""
    memory = np.empty(nbytes + 2 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE + shift
    view = memory[start : start + nbytes]
    view[:] = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    return memoryview(view)


@pytest.fixture
def direct_nbytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each write past the cache."""
    written: list[int] = []
    original = module._write_direct

    def counted(descriptor: int, data: memoryview) -> memoryview:
        rest = original(descriptor, data)
        written.append(data.nbytes - rest.nbytes)
        return rest

    monkeypatch.setattr(module, "_write_direct", counted)
    return written


@pytest.mark.parametrize("extra", [0, 1, PAGE - 1, PAGE, PAGE + 1])
def test_whole_pages_of_a_large_aligned_object_are_written_directly(
    tmp_path: Path, direct_nbytes: list[int], extra: int
) -> None:
    data = aligned(LEAST + extra)
    FolderStore(tmp_path).put("a/b", data)
    assert (tmp_path / "a" / "b").read_bytes() == data
    assert direct_nbytes in ([LEAST + extra - extra % PAGE], [0])  # 0: the file system cannot


@pytest.mark.parametrize(("nbytes", "shift"), [(0, 0), (1, 0), (LEAST - 1, 0), (LEAST, 64)])
def test_small_and_unaligned_objects_are_written_as_usual(
    tmp_path: Path, direct_nbytes: list[int], nbytes: int, shift: int
) -> None:
    data = aligned(nbytes, shift=shift)
    FolderStore(tmp_path).put("a", data)
    assert (tmp_path / "a").read_bytes() == data
    assert direct_nbytes == [0]


@pytest.mark.parametrize("verb", ["fcntl", "write"])
def test_a_file_system_without_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_nbytes: list[int], verb: str
) -> None:
    _refuse(monkeypatch, verb, errno.EINVAL)
    data = aligned(LEAST + 5)
    FolderStore(tmp_path).put("a", data)
    assert (tmp_path / "a").read_bytes() == data
    assert direct_nbytes == [0]


def test_a_full_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, "write", errno.ENOSPC)
    with pytest.raises(StoreError, match="No space left"):
        FolderStore(tmp_path).put("a", aligned(LEAST))
    assert list(tmp_path.iterdir()) == []


def _refuse(monkeypatch: pytest.MonkeyPatch, verb: str, code: int) -> None:
    """Direct writes fail: at the switch to them or at the write itself."""
    original = module.fcntl.fcntl
    direct = {"on": False}

    def fcntl(descriptor: int, command: int, flags: int = 0) -> int:
        if command == module.fcntl.F_SETFL:
            direct["on"] = bool(flags & os.O_DIRECT)
            if direct["on"] and verb == "fcntl":
                raise OSError(code, os.strerror(code))
        return original(descriptor, command, flags)

    write = os.write

    def refusing_write(descriptor: int, data: memoryview) -> int:
        if direct["on"] and verb == "write":
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    monkeypatch.setattr(module.fcntl, "fcntl", fcntl)
    monkeypatch.setattr(module.os, "write", refusing_write)
