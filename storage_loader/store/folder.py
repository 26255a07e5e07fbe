"""Objects as files in a folder, read as memory maps.

A map gives rows without a copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
from typing_extensions import Buffer

from ..errors import (
    NotAnObjectError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreFullError,
)
from ..ranges import Range
from .base import (
    STREAM_CHUNK,
    WHOLE,
    Buffers,
    ObjectInfo,
    Store,
    check_key,
    check_parts,
    check_ranges,
    check_size,
    read_only,
)
from .below import folders_in, open_folder, remove_empty, sync_folder, tree
from .files import OddFileError, check_regular, kind_of, open_regular
from .lock import locked
from .maps import map_file

_TEMPORARY = ".tmp-"
_LOCK = f"{_TEMPORARY}lock"
_DIRECT_NBYTES = 4 * 2**20  # written past the page cache: 1.2 of the rate here, 2 at 64 MiB
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # 0: a system that has no such way
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_DIRECT = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
_LAST_TIME = datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp()
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_TICK = 0.01  # s: the clock of file systems stands still for so long
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class FolderStore(Store):
    """Keys are paths below `root`. Writes go to a temporary name, are synced and renamed."""

    is_local = True
    ends_puts = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.url = f"file://{self.root}"

    def _parts(self, key: str) -> list[str]:
        """The folders of an object, and last its name."""
        parts = _not_own(key).split("/")
        check_key(key)
        return parts

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
        except OddFileError as error:
            raise NotAnObjectError(
                f"{place}: {error}; links below {self.root} are not followed, and nothing but "
                "regular files is read: put the file itself there, or remove this"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.EMFILE:
                reason += "; allow this process more (`ulimit -n`), each map keeps one"
            raise (StoreFullError if error.errno in _FULL else StoreError)(
                f"{place}: {reason}"
            ) from error

    @contextlib.contextmanager
    def _folder(self, parts: Sequence[str]) -> Iterator[int]:
        """A descriptor of a folder, reached without a link."""
        here = open_folder(self.root, parts)
        try:
            yield here
        finally:
            os.close(here)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """A descriptor of an object's file, for reading."""
        *folders, name = self._parts(key)
        with self._mapped_errors("get", key):
            with self._folder(folders) as here:
                descriptor = open_regular(name, dir_fd=here)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        with self._opened(key) as descriptor:
            nbytes = os.fstat(descriptor).st_size
            check_size(nbytes, limit, place=self._place(key))
            # Read, not mapped: a map keeps its file open, and a dataset may have any number of
            # commits.
            pieces = list(read_pieces(descriptor, 0, nbytes, most=nbytes))
        return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        with self._opened(key) as descriptor:
            nbytes = os.fstat(descriptor).st_size
            check_ranges(ranges, nbytes, place=self._place(key))
            if not nbytes:
                return [memoryview(b"") for _ in ranges]
            data = map_file(descriptor)
        check_ranges(ranges, data.nbytes, place=self._place(key))  # somebody may have cut it
        return [data[start:end] for start, end in ranges]

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        with self._opened(key) as descriptor:
            yield from read_pieces(descriptor, start, end)

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        *folders, name = self._parts(key)
        temporary = f"{_TEMPORARY}{secrets.token_hex(8)}"
        with self._mapped_errors("put", key):
            here, descriptor = self._created(folders, temporary)
            try:
                try:
                    try:
                        rest = _write_direct(descriptor, read_only(data))
                        _write_all(descriptor, rest)
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
                    self._publish(here, temporary, name, create=create)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=here)
                sync_folder(here)
            finally:
                os.close(here)

    def _created(self, folders: Sequence[str], name: str) -> tuple[int, int]:
        """Descriptors of a folder, which is made where it is missing, and of a new file in it."""
        for _ in range(100):
            # A `delete` beside us may take the empty folder away again.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                here = open_folder(self.root, folders, make=True)
                try:
                    return here, os.open(name, _NEW, 0o666, dir_fd=here)
                except BaseException:
                    os.close(here)
                    raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _publish(self, here: int, temporary: str, name: str, *, create: bool) -> None:
        """Give the file its name; with `create` only where the name is free, atomically."""
        if not create:
            os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)
            return
        try:
            os.link(temporary, name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from None
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links. The lock's file stays, so it lies where no empty
            # folder is ever removed.
            with locked(self.root / _LOCK):
                with contextlib.suppress(FileNotFoundError):
                    os.stat(name, dir_fd=here, follow_symlinks=False)
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
                os.replace(temporary, name, src_dir_fd=here, dst_dir_fd=here)

    def head(self, key: str) -> ObjectInfo:
        *folders, name = self._parts(key)
        with self._mapped_errors("head", key), self._folder(folders) as here:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            check_regular(status.st_mode)
            return _info(key, status)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._files(prefix, lambda name: not name.startswith(_TEMPORARY))

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._files(prefix, lambda name: name.startswith(_TEMPORARY) and name != _LOCK)

    def _files(self, prefix: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectInfo]:
        folders = check_key(prefix).split("/") if prefix else []
        guard = partial(self._mapped_errors, "list")
        with self._mapped_errors("list", prefix):
            for key, entry in tree(self.root, folders, _is_entered, guard):
                if is_wanted(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                        yield _info(key, entry.stat(follow_symlinks=False))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        folders = check_key(prefix).split("/") if prefix else []
        with self._mapped_errors("list", prefix):
            return sorted(filter(_is_entered, folders_in(self.root, folders)))

    def now(self, probe: str) -> datetime:
        """Puts nothing: it touches the folder, for which there is room on a full disk, too."""
        try:
            return self._touched(self._parts(probe)[:-1])
        except ObjectNotFoundError:  # it was deleted meanwhile
            return self._touched([])

    def _touched(self, parts: Sequence[str]) -> datetime:
        key = "/".join(parts)
        time.sleep(_TICK)  # later than all that was written before
        with self._mapped_errors("touch", key), self._folder(parts) as here:
            os.utime(".", dir_fd=here)
            return _info(key, os.stat(".", dir_fd=here)).modified

    def absence(self) -> str:
        with self._mapped_errors("list", ""):
            try:
                is_folder = stat.S_ISDIR(self.root.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return f"there is no folder {self.root}; check the path (a saver makes it)"
        return "" if is_folder else f"{self.root} is no folder; check the path"

    def delete(self, keys: Iterable[str]) -> None:
        self._delete(map(_not_own, keys))

    def delete_unfinished(self, keys: Iterable[str]) -> None:
        self._delete(map(_unfinished, keys))

    def _delete(self, keys: Iterable[str]) -> None:
        """Unlink files, and the folders that are empty then; a link goes, never what it names."""
        for folder, some in itertools.groupby(keys, lambda key: key.rpartition("/")[0]):
            parts = folder.split("/") if folder else []
            with contextlib.ExitStack() as opened:
                here = -1
                for key in some:
                    check_parts(key)
                    with self._mapped_errors("delete", key), contextlib.suppress(*_NO_FILE):
                        if here < 0:
                            here = opened.enter_context(self._folder(parts))
                        os.unlink(key.rpartition("/")[2], dir_fd=here)
                if here >= 0:
                    remove_empty(self.root, parts)


def read_pieces(
    descriptor: int, start: int, end: int, *, most: int = STREAM_CHUNK
) -> Iterator[bytes]:
    """Bytes of a file in pieces of at most `most` bytes; they end early where the file does.

    A file that is read like this enters the page cache in large pages, one whose map is touched
    here and there in pages of 4 KiB: random rows are then copied at 0.9 of the rate.
    """
    while start < end and (piece := os.pread(descriptor, min(most, end - start), start)):
        yield piece
        start += len(piece)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    # A file's time may be any: one that no calendar has is the nearest one.
    modified = datetime.fromtimestamp(min(max(status.st_mtime, 0), _LAST_TIME), timezone.utc)
    return ObjectInfo(key, status.st_size, modified, kind_of(status.st_mode))


def _is_entered(name: str) -> bool:
    return not name.startswith(_TEMPORARY)


def _not_own(key: str) -> str:
    """The key; `StoreError` for one that the store may give to a file of its own."""
    if key.startswith(_TEMPORARY) or f"/{_TEMPORARY}" in key:
        raise StoreError(f"key {key!r}: names that begin with {_TEMPORARY!r} are the store's own")
    return key


def _unfinished(key: str) -> str:
    """The key; `StoreError` for one that no unfinished put has."""
    name = key.rpartition("/")[2]
    if not name.startswith(_TEMPORARY) or name == _LOCK:
        raise StoreError(f"key {key!r} is no unfinished put's")
    return check_parts(key)


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
