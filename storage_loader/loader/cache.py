"""A folder of cache files, and how much of the disk they take; see `cache_file`."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import LoaderError
from ..store import Store
from ..text import printable
from .cache_file import (
    FULL,
    CacheFile,
    CacheFullError,
    delete_unused,
    make_private,
    open_made,
    taken_nbytes,
)

_log = logging.getLogger(__name__)

_SUFFIX = ".cached"
_SPARE_SHARE = 20  # of the disk, 1/20 stays free where no size is given
_EVICTED_SHARE = 16  # free 1/16 more than is asked for: the folder is walked less often
_REFUSED = 60.0  # s without another attempt on a full disk


class Cache:
    """A folder of cache files. Keys are written once, so that nothing in it gets stale.

    Everything lies in a folder of the user's own below `folder`, and nothing else there is
    touched. Thread-safe.
    """

    def __init__(
        self, folder: str | os.PathLike[str], store: Store, size: int | None = None
    ) -> None:
        """`size`: bytes that all cache files of this user in `folder` may take; None: what the
        disk has, less a twentieth.
        """
        origin = hashlib.sha256(store.origin.encode()).hexdigest()[:16]  # two places never mix
        self._own = Path(folder) / f"user-{os.getuid()}"
        self._folder = self._own / origin
        self._size = size
        self._lock = threading.Lock()
        self._counted = False  # what lay here before, and what killed processes left
        self._warned = False
        self._refused_until = 0.0  # by the monotonic clock

    def holds(self, nbytes: int) -> bool:
        """Whether so many bytes fit, if everything else were evicted."""
        if self._size is not None:
            return nbytes <= self._size
        disk = _disk(self._own)
        return nbytes <= disk.f_blocks * disk.f_frsize // 2

    def open(self, key: str, nbytes: int, num_blocks: int) -> CacheFile:
        """The file of an object of `nbytes` bytes; made where it is missing.

        Raises `LoaderError` where the folder cannot be used.
        """
        try:
            make_private(self._own)
            self._check_own()
            return CacheFile(self._folder / f"{key}{_SUFFIX}", nbytes, num_blocks)
        except OSError as error:
            if error.errno in FULL:
                raise CacheFullError from error
            raise self._unusable(error) from error

    def _check_own(self) -> None:
        """`folder` may be one where others make files, too: what they made is not ours to fill."""
        found = os.lstat(self._own)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(
                errno.EPERM, "a link, or another user's; somebody else made it", str(self._own)
            )
        if found.st_mode & 0o077:
            self._own.chmod(0o700)

    def reserve(self, nbytes: int, file: CacheFile) -> bool:
        """Count `nbytes` more of the disk for `file`, evicting what was not used for longest.

        False where they do not fit: other files are in use, or it is too small.
        """
        if time.monotonic() < self._refused_until:
            return False
        try:
            if self._size is None and self._free() >= nbytes:
                return True
            with self._usage() as usage:
                if self._size is not None:
                    nbytes = file.growth(nbytes)
                    if nbytes > self._size:
                        return False
                room = self._room(usage)
                if room < nbytes:
                    wanted = nbytes + (self._size or 0) // _EVICTED_SHARE
                    room = self._evict(usage, wanted)
                if room < nbytes:
                    return False
                usage.total += nbytes
                if self._size is not None:
                    file.reserve(nbytes)
                return True
        except OSError as error:
            if error.errno in FULL:
                return False
            raise self._unusable(error) from error

    def refuse(self) -> None:
        """Take nothing for a minute: the disk was full, whatever it says."""
        self._refused_until = time.monotonic() + _REFUSED
        self.warn_full()

    def warn_full(self) -> None:
        """Say once that objects pass through memory instead."""
        with self._lock:
            if self._warned:
                return
            self._warned = True
        limit = "its disk is full" if self._size is None else f"cache_size is {self._size} bytes"
        _log.warning(
            "the cache %s takes no more (%s, or what it holds is in use): data passes through "
            "memory and is fetched again in the next epoch",
            printable(str(self._own)),
            limit,
        )

    def _room(self, usage: _Usage) -> int:
        return self._free() if self._size is None else self._size - usage.total

    def _free(self) -> int:
        """Bytes of the disk that are free, less those that stay so."""
        disk = _disk(self._own)
        return (disk.f_bavail - disk.f_blocks // _SPARE_SHARE) * disk.f_frsize

    def _evict(self, usage: _Usage, wanted: int) -> int:
        """Delete files that nobody has open until there is room for `wanted` bytes."""
        files = sorted(_cache_files(self._own))  # by time of last use
        usage.total = sum(nbytes for _, nbytes, _ in files)  # what was reserved in vain goes
        room = self._room(usage)
        for _, nbytes, path in files:
            if room >= wanted:
                break
            if delete_unused(path):
                usage.total -= nbytes
                room += nbytes
        return room

    @contextmanager
    def _usage(self) -> Iterator[_Usage]:
        """What all files take, to be changed by this process alone meanwhile."""
        descriptor = open_made(self._own / "usage")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            usage = _Usage(descriptor)
            if not self._counted or usage.is_lost:
                usage.total = sum(nbytes for _, nbytes, _ in _cache_files(self._own))
                self._counted = True
            yield usage
            usage.write()
        finally:
            os.close(descriptor)

    def _unusable(self, error: OSError) -> LoaderError:
        return LoaderError(
            f"the cache {self._folder} cannot be used: {error}; give another cache_dir, or use "
            "index=True or cache_size=0, which keep nothing"
        )


class _Usage:
    """Bytes that the cache files take, as far as was counted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        text = os.pread(descriptor, 32, 0).strip()
        self.is_lost = not text.isdigit()
        self._read = self.total = -1 if self.is_lost else int(text)

    def write(self) -> None:
        if self.total != self._read:
            os.pwrite(self._descriptor, b"%31d\n" % self.total, 0)


def _disk(folder: Path) -> os.statvfs_result:
    """The disk of a folder, which need not be there yet, or any more."""
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            return os.statvfs(place)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _cache_files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Of every cache file below `folder`: time of last use, see `taken_nbytes`, path."""
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_SUFFIX):
                path = Path(place) / name
                try:
                    found = path.lstat()
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    yield found.st_mtime_ns, taken_nbytes(path), path
                except FileNotFoundError:
                    continue
