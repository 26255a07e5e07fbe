"""A file that holds an object of a network store on this machine, whole or in part.

It is a sparse copy of its object, followed by a flag for each block that is there, one for the
checksum table, and how much of the disk the file may come to take. The flags only save requests:
whoever maps the file verifies each block by its checksum before first use, so a file that was
damaged or cut short, or whose process died while it wrote, is fetched again where it is wrong.

Processes share the files. Who fetches blocks holds locks on them meanwhile, so that each is
fetched once; see `locks`. Who has a file open or mapped holds a shared flock, and only a file
without one is evicted: a child inherits that one as it inherits the map, and evicting the file
would free nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from ...ranges import Range
from ...store import Buffer, identity_of, read_pieces
from .locks import PATIENCE, LockFile, LockTimeoutError
from .private import open_file
from .verified import Blocks, note_verified, verified_blocks

PAGE = 4096  # bytes of the disk that are taken together
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_WRITE_NBYTES = 2**18
_RESERVED_NBYTES = 8  # at a cache file's end: what it may come to take
_NUMBERS_BITS = 19  # numbers to lock for each file: of at most 2^18 blocks
_NAMESAKES = 2**43  # files of equal inode but for this modulus lock each other out, which is rare
_BRIEFLY = 1.0  # s for which an evictor or a maker may have a file
_POLL = 0.001  # s


class NotKeptError(Exception):
    """What was to be kept goes through memory."""


class CacheFullError(NotKeptError):
    """The disk took no more."""


class CacheBusyError(NotKeptError):
    """Another process has what is wanted, and does not go on."""


class CacheCutError(NotKeptError):
    """Somebody has cut the file."""


class CacheFile:
    """One object's bytes as far as they were fetched; see this module."""

    def __init__(
        self, name: str, folder: int, nbytes: int, num_blocks: int, locks: LockFile
    ) -> None:
        """`folder`: the descriptor of the one that it is or will be in."""
        self._name = name
        self._flags_start, self._num_flags = nbytes, num_blocks + 1
        self._size = size = nbytes + self._num_flags + _RESERVED_NBYTES
        self._descriptor = -1
        self._descriptor = _open_shared(name, folder, size)
        self.verified: Blocks = np.zeros(num_blocks, bool)
        try:
            found = os.fstat(self._descriptor)
            os.utime(self._descriptor)  # last used now
            mapped = _mapped(self._descriptor, found, num_blocks)
        except BaseException:
            self.close()
            raise
        self.verified = mapped.verified  # set in place
        self.data = memoryview(mapped)[:nbytes]
        self._locks = locks
        self._first_number = (found.st_ino % _NAMESAKES + 1) << _NUMBERS_BITS
        self._patience = PATIENCE

    @property
    def is_whole(self) -> bool:
        """Whether nobody has cut it: what a map shows of such a file ends the process."""
        return os.fstat(self._descriptor).st_size == self._size

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
        return max(0, min(nbytes, whole - _reserved_nbytes(self._descriptor, found)))

    def reserve(self, nbytes: int) -> None:
        """Note that it is going to take `nbytes` more of the disk."""
        if nbytes:
            found = os.fstat(self._descriptor)
            _set_reserved(
                self._descriptor, found, _reserved_nbytes(self._descriptor, found) + nbytes
            )

    @contextmanager
    def fetching(self, runs: Sequence[Range], ended: threading.Event) -> Iterator[None]:
        """Hold the locks of these blocks, so that nobody else fetches them; `runs` ascend.

        Gives way without the locks once `ended` is set. Raises `CacheBusyError` where somebody
        else has them for too long, and from then on at once, until they are free again; and
        `CacheCutError`, since writing would make zeros of verified blocks that were cut.
        """
        start = self._first_number
        numbers = [(start + first, start + stop) for first, stop in runs]
        what, patience = f"blocks of {self._name} in the cache", self._patience
        try:
            with self._locks.held(what, numbers, ended, patience):
                self._patience = PATIENCE
                if not self.is_whole:
                    raise CacheCutError
                yield
        except LockTimeoutError as error:
            self._patience = 0.0
            raise CacheBusyError from error

    def read(self, start: int, end: int) -> Iterator[Buffer]:
        """Bytes of the object in pieces; see `read_pieces`."""
        return read_pieces(self._descriptor, start, end)

    def allocate(self, start: int, end: int) -> None:
        """Have the disk set these bytes aside at once, which makes writing them cheaper.

        Raises `CacheFullError`.
        """
        fallocate = _fallocate()
        if fallocate is None or not fallocate(self._descriptor, 0, start, end - start):
            return
        # A disk that cannot do this takes the bytes as they are written.
        if ctypes.get_errno() in FULL:
            raise CacheFullError

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
            if error.errno in FULL:
                raise CacheFullError from error
            raise

    def close(self) -> None:
        """Close the file; the map lives on, and holds the lock, as long as its views."""
        if self._descriptor >= 0:
            note_verified(identity_of(os.fstat(self._descriptor)), self.verified)
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


class _Map(mmap.mmap):
    """A cache file in memory, and which of its blocks are verified."""

    verified: Blocks


# Maps, not `CacheFile`s: those close their files when they end, in the middle of which another
# thread could find one here.
_maps: WeakValueDictionary[tuple[int, ...], _Map] = WeakValueDictionary()


def _mapped(descriptor: int, found: os.stat_result, num_blocks: int) -> _Map:
    """The map of a file that was opened, one for all who have it open in this process."""
    place = (os.getpid(), found.st_dev, found.st_ino, found.st_size)
    shared = _maps.get(place)
    if shared is None:
        shared = _Map(descriptor, found.st_size, access=mmap.ACCESS_READ)
        shared.verified = verified_blocks(identity_of(found), num_blocks)
        _maps[place] = shared
    return shared


@cache
def _fallocate() -> Any:
    """Linux's; None elsewhere.

    Not `os.posix_fallocate`: where the disk cannot, it writes zeros, perhaps over what another
    process has written meanwhile.
    """
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


def _open_shared(name: str, folder: int, size: int) -> int:
    """The file, of this size, with the lock that keeps it from eviction."""
    end = time.monotonic() + _BRIEFLY
    while True:
        try:
            descriptor = _open_or_make(name, folder, size)
        except FileExistsError:
            continue  # another process has made it just now
        except PermissionError:  # not ours, and never filled
            os.unlink(name, dir_fd=folder)
            continue
        try:
            is_locked = _lock_shared(descriptor)
            found = os.fstat(descriptor)
            if is_locked and found.st_nlink and found.st_size == size:
                return descriptor
            is_new = found.st_size == 0 and time.monotonic() < end  # its maker is about to
            if found.st_nlink and not is_new:
                # Not what we write, or the lock is left by a process that was killed. Another
                # file takes its name. Were this one cut, a process that has it mapped would die;
                # were it made longer after somebody cut it, that one would see zeros.
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # evicted between opening and locking, replaced, or not made yet
        if is_new:
            time.sleep(_POLL)


def _open_or_make(name: str, folder: int, size: int) -> int:
    try:
        return open_file(name, folder)
    except FileNotFoundError:
        descriptor = open_file(name, folder, os.O_CREAT | os.O_EXCL)
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)  # else others wait until it has its size
            os.close(descriptor)
            raise
        return descriptor


def _reserved_nbytes(descriptor: int, found: os.stat_result) -> int:
    """Bytes of the disk that a cache file takes or may come to take."""
    place = max(0, found.st_size - _RESERVED_NBYTES)
    noted = int.from_bytes(os.pread(descriptor, _RESERVED_NBYTES, place), "little")
    return max(found.st_blocks * 512, min(noted, -(-found.st_size // PAGE) * PAGE))


def _set_reserved(descriptor: int, found: os.stat_result, nbytes: int) -> None:
    place = max(0, found.st_size - _RESERVED_NBYTES)
    os.pwrite(descriptor, nbytes.to_bytes(_RESERVED_NBYTES, "little"), place)
    os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))  # that was no use of it


def _lock_shared(descriptor: int) -> bool:
    """Wait while a process looks whether anybody has the file; not for ever."""
    end = time.monotonic() + _BRIEFLY
    while not _locked(descriptor, fcntl.LOCK_SH):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL)
    return True


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    """A file that is there; no lock of it is left behind, also where a child was forked."""
    descriptor = open_file(name, folder)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def delete_unused(name: str, folder: int) -> bool:
    """Delete a cache file unless somebody has it open; whether it is gone."""
    with suppress(FileNotFoundError), _opened(name, folder) as descriptor:
        if not _locked(descriptor, fcntl.LOCK_EX):
            return False
        os.unlink(name, dir_fd=folder)
    return True


def is_unused(name: str, folder: int) -> bool:
    """Whether nobody has a cache file open; `FileNotFoundError` where it is gone."""
    with _opened(name, folder) as descriptor:
        return _locked(descriptor, fcntl.LOCK_EX)


def taken_nbytes(name: str, folder: int) -> int:
    """See `_reserved_nbytes`; what was reserved in vain, for a file that nobody uses, goes."""
    with _opened(name, folder) as descriptor:
        found = os.fstat(descriptor)
        reserved, nbytes = _reserved_nbytes(descriptor, found), found.st_blocks * 512
        if reserved > nbytes and _locked(descriptor, fcntl.LOCK_EX):
            _set_reserved(descriptor, found, nbytes)
            return nbytes
        return reserved
