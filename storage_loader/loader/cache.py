"""Files that hold objects of a network store on this machine, whole or in part.

A cache file is a sparse copy of its object, followed by a flag for each block that is there
and one for the checksum table. The flags only save requests: whoever maps the file verifies
each block by its checksum before first use, so a file that was damaged or cut short, or whose
process died while it wrote, is fetched again where it is wrong.

Processes share the files. Who fetches blocks holds a lock on their flags meanwhile, so that
each is fetched once; who has a file open holds a shared lock on the file, and only a file
without one is evicted. Both locks belong to an open file: they end with their holder.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import LoaderError
from ..store import Buffer, Store, read_pieces

_log = logging.getLogger(__name__)

PAGE = 4096  # bytes of the disk that are taken together
_SUFFIX = ".cached"
_SPARE_SHARE = 20  # of the disk, 1/20 stays free where no size is given
_EVICTED_SHARE = 16  # free 1/16 more than is asked for: the folder is walked less often
_WRITE_NBYTES = 2**18
_POLL = 0.005  # s between attempts to get a lock that another process holds ...
_MAX_POLL = 0.1  # ... doubling up to here
_REFUSED = 60.0  # s without another attempt on a full disk
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheFullError(Exception):
    """The disk took no more: what was to be kept goes through memory."""


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
            _make_private(self._own)
            self._check_own()
            return CacheFile(self._folder / f"{key}{_SUFFIX}", nbytes, num_blocks)
        except OSError as error:
            if error.errno in _FULL:
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
            if error.errno in _FULL:
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
            self._own,
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
            if _delete_unused(path):
                usage.total -= nbytes
                room += nbytes
        return room

    @contextmanager
    def _usage(self) -> Iterator[_Usage]:
        """What all files take, to be changed by this process alone meanwhile."""
        descriptor = _open_made(self._own / "usage")
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


class CacheFile:
    """One object's bytes as far as they were fetched; see this module."""

    def __init__(self, path: Path, nbytes: int, num_blocks: int) -> None:
        self._flags_start, self._num_flags = nbytes, num_blocks + 1
        size = nbytes + self._num_flags + _RESERVED_NBYTES
        self._descriptor = -1
        self._descriptor = _open_shared(path, size)
        try:
            os.ftruncate(self._descriptor, size)
            os.utime(self._descriptor)  # last used now
            mapped = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        except BaseException:
            self.close()
            raise
        self.data = memoryview(mapped)[:nbytes]

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """By place in the checksum table: whether the block is there, as far as is known."""
        return self._flags()[:-1]

    @property
    def has_table(self) -> bool:
        """Whether the checksum table is there, as far as is known."""
        return bool(self._flags()[-1])

    def _flags(self) -> npt.NDArray[np.bool_]:
        # Not through the map: touching it would have the kernel fill its cache with the empty
        # megabytes around, page by page.
        data = os.pread(self._descriptor, self._num_flags, self._flags_start)
        return np.equal(np.frombuffer(data.ljust(self._num_flags, b"\0"), np.uint8), 1)

    def growth(self, nbytes: int) -> int:
        """By how much what is reserved grows where `nbytes` more are: at most to all of it."""
        found = os.fstat(self._descriptor)
        whole = -(-found.st_size // PAGE) * PAGE
        return max(0, min(nbytes, whole - _reserved(self._descriptor, found)))

    def reserve(self, nbytes: int) -> None:
        """Note that it is going to take `nbytes` more of the disk."""
        if nbytes:
            found = os.fstat(self._descriptor)
            _set_reserved(self._descriptor, found, _reserved(self._descriptor, found) + nbytes)

    @contextmanager
    def fetching(self, first: int, stop: int, ended: threading.Event) -> Iterator[None]:
        """Hold the lock on the flags `first` to `stop`, so that no other process fetches these.

        Where the system has no such locks, processes may fetch the same. Gives way without the
        lock once `ended` is set.
        """
        pause = _POLL
        while not self._locked(fcntl.F_WRLCK, first, stop):
            if ended.wait(pause):
                break
            pause = min(2 * pause, _MAX_POLL)
        try:
            yield
        finally:
            self._locked(fcntl.F_UNLCK, first, stop)

    def _locked(self, kind: int, first: int, stop: int) -> bool:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            return True
        wanted = struct.pack(
            "hhqqi4x", kind, os.SEEK_SET, self._flags_start + first, stop - first, 0
        )
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def read(self, start: int, end: int) -> Iterator[Buffer]:
        """Bytes of the object in pieces; see `read_pieces`."""
        return read_pieces(self._descriptor, start, end)

    def write(self, offset: int, *data: Buffer) -> None:
        """Put bytes, one buffer after another, where they lie in the object.

        Raises `CacheFullError`.
        """
        self._write(offset, [memoryview(part).cast("B") for part in data])

    def mark(self, first: int, stop: int) -> None:
        """Blocks `first` to `stop` are there; the table is the one after the last."""
        self._write(self._flags_start + first, [memoryview(b"\1" * (stop - first))])

    def mark_table(self) -> None:
        """The checksum table is there."""
        self.mark(self._num_flags - 1, self._num_flags)

    def _write(self, offset: int, data: Sequence[memoryview]) -> None:
        # Not through the map: a write to a map on a full disk kills the process.
        rest = list(data)
        try:
            while rest:
                written = os.pwritev(self._descriptor, rest, offset)
                offset += written
                while rest and written >= rest[0].nbytes:
                    written -= rest.pop(0).nbytes
                if rest:
                    rest[0] = rest[0][written:]
        except OSError as error:
            if error.errno in _FULL:
                raise CacheFullError from error
            raise

    def close(self) -> None:
        """Close the file; the map lives on, and holds the lock, as long as its views."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class Writer:
    """Writes of consecutive bytes joined and cut at multiples of 256 KiB.

    Their pages in the kernel's cache are then large and in a row, which makes writing them
    cheaper, and copying rows from their map. Leave the `with` to write what is left.
    """

    def __init__(self, file: CacheFile) -> None:
        self._file = file
        self._start = self._end = 0
        self._held: list[memoryview] = []

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self._flush(self._end)

    def write(self, offset: int, data: memoryview) -> None:
        """Put bytes where they lie in the object, now or later. Raises `CacheFullError`."""
        if offset != self._end:
            self._flush(self._end)
            self._start = offset
        self._held.append(data)
        self._end = offset + data.nbytes
        self._flush(self._end - self._end % _WRITE_NBYTES)

    def _flush(self, end: int) -> None:
        """Write what lies before `end`."""
        if end <= self._start:
            return
        last = self._held.pop()
        kept = self._end - end
        self._file.write(self._start, *self._held, last[: last.nbytes - kept])
        self._held = [last[last.nbytes - kept :]] if kept else []
        self._start = end


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_RESERVED_NBYTES = 8  # at a cache file's end: what it may come to take
_ATTEMPTS = 10


def _open_made(path: Path) -> int:
    """A file of this user alone, and the folders to it: somebody may remove these meanwhile."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            _make_private(path.parent)
            return os.open(path, _FLAGS, 0o600)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _disk(folder: Path) -> os.statvfs_result:
    """The disk of a folder, which need not be there yet, or any more."""
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            return os.statvfs(place)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _reserved(descriptor: int, found: os.stat_result) -> int:
    """Bytes of the disk that a cache file takes or may come to take."""
    place = max(0, found.st_size - _RESERVED_NBYTES)
    noted = int.from_bytes(os.pread(descriptor, _RESERVED_NBYTES, place), "little")
    return max(found.st_blocks * 512, min(noted, -(-found.st_size // PAGE) * PAGE))


def _set_reserved(descriptor: int, found: os.stat_result, nbytes: int) -> None:
    place = max(0, found.st_size - _RESERVED_NBYTES)
    os.pwrite(descriptor, nbytes.to_bytes(_RESERVED_NBYTES, "little"), place)
    os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))  # that was no use of it


def _open_shared(path: Path, size: int) -> int:
    """The file, empty or of this size, with the lock that keeps it from eviction."""
    while True:
        try:
            descriptor = _open_made(path)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink(missing_ok=True)  # a link: not ours, and never followed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            found = os.fstat(descriptor)
            if found.st_nlink and found.st_size in (0, size):
                return descriptor
            if found.st_nlink:
                # Not what we write. Another file takes its name: were this one cut, a process
                # that has it mapped would die.
                path.unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # evicted between opening and locking, or replaced


def _delete_unused(path: Path) -> bool:
    """Delete a cache file unless somebody has it open; whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    try:
        if not _lock_alone(descriptor):
            return False
        path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return True


def _lock_alone(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _taken(path: Path) -> int:
    """See `_reserved`; what was reserved in vain, for a file that nobody uses, goes."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        reserved, nbytes = _reserved(descriptor, found), found.st_blocks * 512
        if reserved > nbytes and _lock_alone(descriptor):
            _set_reserved(descriptor, found, nbytes)
            return nbytes
        return reserved
    finally:
        os.close(descriptor)


def _cache_files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Of every cache file below `folder`: time of last use, see `_taken`, path."""
    for place, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_SUFFIX):
                path = Path(place) / name
                try:
                    found = path.lstat()
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    yield found.st_mtime_ns, _taken(path), path
                except FileNotFoundError:
                    continue


def _make_private(folder: Path) -> None:
    """Make a folder and its parents for this user alone: `Path.mkdir` lets others into parents."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
