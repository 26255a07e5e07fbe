"""Objects as files in a folder, read as memory maps.

Own code rather than obstore's local store: obstore's runtime does not survive a fork, and
a map gives rows without a copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from filelock import FileLock
from typing_extensions import Buffer

from ..errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
)
from ..ranges import Range
from .base import (
    STREAM_CHUNK,
    WHOLE,
    Buffers,
    ObjectInfo,
    Store,
    check_key,
    check_ranges,
    check_size,
    read_only,
)

_TEMPORARY = ".tmp-"
_LOCK = f"{_TEMPORARY}lock"
_DIRECT_NBYTES = 4 * 2**20  # written past the page cache: 1.2 of the rate here, 2 at 64 MiB
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # 0: a system that has no such way
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class FolderStore(Store):
    """Keys are paths below `root`. Writes go to a temporary name, are synced and renamed."""

    is_local = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.url = f"file://{self.root}"

    def _path(self, key: str) -> Path:
        if any(part.startswith(_TEMPORARY) for part in key.split("/")):
            raise StoreError(
                f"key {key!r}: names that begin with {_TEMPORARY!r} are the store's own"
            )
        return self.root / check_key(key)

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}"

    @contextlib.contextmanager
    def _mapped_errors(self, verb: str, key: str) -> Iterator[None]:
        place = f"{verb} {self._place(key)}" if key else f"{verb} {self.url}"
        try:
            yield
        except StoreError:
            raise
        except FileNotFoundError as error:
            if verb == "put":
                raise StoreError(f"{place}: its folder cannot be made") from error
            raise ObjectNotFoundError(f"{place}: there is no such object") from error
        except FileExistsError as error:
            raise ObjectExistsError(f"{place}: the object exists") from error
        except PermissionError as error:
            raise PermissionDeniedError(
                f"{place}: no permission; check who owns the folder {self.root}"
            ) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            kind = StoreError if verb == "put" else ObjectNotFoundError
            reason = (
                "that is a folder, not an object"
                if isinstance(error, IsADirectoryError)
                else "a file stands where a folder must be"
            )
            raise kind(f"{place}: {reason}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"{place}: {reason}") from error

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        with self._mapped_errors("get", key), open(self._path(key), "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            check_size(nbytes, limit, place=self._place(key))
            if nbytes == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        data = self.get(key, limit=sys.maxsize)
        check_ranges(ranges, data.nbytes, place=self._place(key))
        return [data[start:end] for start, end in ranges]

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        with self._mapped_errors("get", key), open(self._path(key), "rb", buffering=0) as file:
            yield from read_pieces(file.fileno(), start, end)

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        path = self._path(key)
        temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
        with self._mapped_errors("put", key):
            new_folders = list(
                itertools.takewhile(lambda folder: not folder.is_dir(), path.parents)
            )
            try:
                with _create(temporary) as file:
                    rest = _write_direct(file.fileno(), read_only(data))
                    _write_all(file.fileno(), rest)
                    os.fsync(file.fileno())
                self._publish(temporary, path, create=create)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            # The new name, and those of the folders made for it.
            for folder in [path.parent, *(new.parent for new in new_folders)]:
                _sync_folder(folder)

    def _publish(self, temporary: Path, path: Path, *, create: bool) -> None:
        """Give the file its name; with `create` only where the name is free, atomically."""
        if not create:
            os.replace(temporary, path)
            return
        try:
            os.link(temporary, path)
        except FileExistsError:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links. The lock dies with its holder; its file stays, so it
            # lies where no empty folder is ever removed.
            with FileLock(self.root / _LOCK):
                if path.exists():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
                os.replace(temporary, path)

    def head(self, key: str) -> ObjectInfo:
        with self._mapped_errors("head", key):
            path = self._path(key)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return _info(key, path.stat())

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._files(prefix, lambda name: not name.startswith(_TEMPORARY))

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._files(prefix, lambda name: name.startswith(_TEMPORARY) and name != _LOCK)

    def _files(self, prefix: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectInfo]:
        folders = [check_key(prefix) if prefix else ""]
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    if not entry.name.startswith(_TEMPORARY):
                        folders.append(key)
                elif is_wanted(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                        yield _info(key, entry.stat())

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        folder = check_key(prefix) if prefix else ""
        return sorted(
            entry.name
            for entry in self._entries(folder)
            if entry.is_dir() and not entry.name.startswith(_TEMPORARY)
        )

    def _entries(self, folder: str) -> Sequence[os.DirEntry[str]]:
        with self._mapped_errors("list", folder):
            try:
                with os.scandir(self.root / folder) as entries:
                    return list(entries)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def absence(self) -> str:
        with self._mapped_errors("list", ""):
            try:
                is_folder = stat.S_ISDIR(self.root.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return f"there is no folder {self.root}; check the path (a saver makes it)"
        return "" if is_folder else f"{self.root} is no folder; check the path"

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._unlink(key, self._path(key))

    def delete_unfinished(self, keys: Iterable[str]) -> None:
        for key in keys:
            name = key.rsplit("/", 1)[-1]
            if not name.startswith(_TEMPORARY) or name == _LOCK:
                raise StoreError(f"key {key!r} is no unfinished put's")
            self._unlink(key, self.root / check_key(key))

    def _unlink(self, key: str, path: Path) -> None:
        with self._mapped_errors("delete", key):
            with contextlib.suppress(*_NO_FILE):
                os.unlink(path)
            self._remove_empty_folders(path.parent)

    def _remove_empty_folders(self, folder: Path) -> None:
        while folder != self.root:
            try:
                os.rmdir(folder)
            except OSError:  # not empty, already gone, or someone just put an object in it
                return
            folder = folder.parent


def read_pieces(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Bytes of a file in pieces; they end early where the file does.

    A file that is read like this enters the page cache in large pages, one whose map is touched
    here and there in pages of 4 KiB: random rows are then copied at 0.9 of the rate.
    """
    while start < end and (piece := os.pread(descriptor, min(STREAM_CHUNK, end - start), start)):
        yield piece
        start += len(piece)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
    return ObjectInfo(key, status.st_size, modified)


def _create(path: Path) -> io.FileIO:
    """A new file, in a folder that is made where it is missing."""
    for _ in range(100):
        # A `delete` beside us may take the empty folder away again.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return open(path, "xb", buffering=0)
        if path.parent.is_file():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # a `delete` beside us took it away again
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def _write_direct(descriptor: int, data: memoryview) -> memoryview:
    """Write the whole pages of a large object past the page cache; returns what is left.

    Where memory is not page-aligned or the file system has no such way, that is everything.
    It takes a quarter of the CPU time of writes through the cache, 0.3 s instead of 1.2 s a GB
    with checksums and copies, and leaves the cache to the files that are being read.
    """
    whole = data.nbytes - data.nbytes % mmap.PAGESIZE
    if not _O_DIRECT or whole < _DIRECT_NBYTES:
        return data
    if np.frombuffer(data, np.uint8).ctypes.data % mmap.PAGESIZE:
        return data
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
        return data[os.write(descriptor, data[:whole]) :]
    except OSError as error:
        if error.errno not in _NO_DIRECT:
            raise
        return data
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
