"""A folder of cache files, and how much of the disk they take; see `cache_file`."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from ...errors import ConfigError, LoaderError
from ...keywords import shown
from ...process import cached_property
from ...store import Store, xxh3
from ...text import printable
from .cache_file import (
    FULL,
    CacheFile,
    CacheFullError,
    delete_unused,
    taken_nbytes,
)
from .locks import PATIENCE, LockFile, LockTimeoutError, lock_file
from .objects import NEVER
from .origin import note_origin, origin_id
from .private import is_own_file, open_below, open_private

_log = logging.getLogger(__name__)

SUFFIX = ".cached"
_SPARE_SHARE = 20  # of the disk, 1/20 stays free where no size is given
_EVICTED_SHARE = 16  # free 1/16 more than is asked for: the folder is walked less often
_REFUSED = 60.0  # s without another attempt on a full disk
_USAGE = "usage"  # the file that says what all of them take; locks are taken by it, too
_COUNTING = (0, 1)  # the number that is locked while that is changed
_ATTEMPTS = 10


def cache_folder(cache_dir: str | os.PathLike[str] | None) -> Path:
    """Where the caches of all users lie; None: where this user's caches are by default."""
    if cache_dir is not None and not isinstance(cache_dir, (str, os.PathLike)):
        raise ConfigError(f"cache_dir: a folder's path, not {shown(cache_dir)}")
    return Path(cache_dir or platformdirs.user_cache_dir("storage_loader"))


def own_folder(folder: str | os.PathLike[str]) -> Path:
    """This user's own in it; everything of a cache lies there."""
    return Path(folder) / f"user-{os.getuid()}"


def count_anew(own: int, path: Path) -> None:
    """Note what all cache files in an open folder of a user's own take now; `path` is its path.

    Where another process keeps the count for too long it stays too high, and whoever runs out of
    room by it counts anew.
    """
    locks = lock_file(_USAGE, own)
    what = f"the count of the cache {path}"
    with suppress(LockTimeoutError), locks.held(what, [_COUNTING], NEVER, PATIENCE):
        usage = _Usage(locks, own)
        usage.count()
        usage.write()


class Cache:
    """A folder of cache files. Keys are written once, so that nothing in it gets stale.

    Everything lies in a folder of the user's own below `folder`, and nothing else there is
    touched. Thread-safe.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        store: Store,
        size: int | None = None,
        *,
        keys: Callable[[], Iterable[str]] = lambda: (),
    ) -> None:
        """`size`: bytes that all cache files of this user in `folder` may take; None: what the
        disk has, less a twentieth. `keys`: of the objects that are read, which never give way to
        each other: whoever reads more than there is room for, in one epoch after the other, would
        find nothing again of what was evicted last.
        """
        self._own = own_folder(folder)
        self._origin = store.origin
        self._origin_id = origin_id(store.origin)
        self._size = size
        self._keys = keys
        self._evicting_from = 0.0  # by the monotonic clock
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
        *folders, name = f"{key}{SUFFIX}".split("/")
        try:
            for _ in range(_ATTEMPTS):
                # Somebody may remove the folders meanwhile.
                with suppress(FileNotFoundError), open_private(self._own) as own:
                    locks = lock_file(_USAGE, own)
                    with open_below(own, [self._origin_id]) as place:
                        note_origin(self._origin, place)
                        with open_below(place, folders) as folder:
                            return CacheFile(name, folder, nbytes, num_blocks, locks)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        except OSError as error:
            if error.errno in FULL:
                raise CacheFullError from error
            raise self._unusable(error) from error

    def reserve(self, nbytes: int, file: CacheFile, stop: threading.Event) -> bool:
        """Count `nbytes` more of the disk for `file`, evicting what was not used for longest and
        is not read here.

        False where they do not fit: other files are in use, or it is too small; or where `stop`
        is set before it is known.
        """
        if time.monotonic() < self._refused_until:
            return False
        try:
            if self._size is None and self._free() >= nbytes:
                return True
            with self._usage(stop) as usage:
                if usage is None:
                    return False
                if self._size is not None:
                    nbytes = file.growth(nbytes)
                    if nbytes > self._size:
                        return False
                room = self._room(usage)
                if room < nbytes and time.monotonic() >= self._evicting_from:
                    wanted = nbytes + (self._size or 0) // _EVICTED_SHARE
                    room = self._evict(usage, wanted)
                if room < nbytes:
                    return False
                usage.total += nbytes
                if self._size is not None:
                    file.reserve(nbytes)
                return True
        except LockTimeoutError:
            self._refused_until = time.monotonic() + _REFUSED
            return False
        except FileNotFoundError:  # somebody removes the folder just now
            return False
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
        """Delete files that nobody has open or reads here until there is room for so many bytes."""
        files = sorted(usage.count())  # by time of last use; what was reserved in vain goes
        room = self._room(usage)
        for _, nbytes, place, name in files:
            if room >= wanted:
                break
            if room >= 0 and self._is_read(place, name):
                self._evicting_from = time.monotonic() + _REFUSED  # a look at all files is dear
                continue
            is_gone = True
            with suppress(FileNotFoundError), open_below(usage.folder, place) as folder:
                is_gone = delete_unused(name, folder)
            if is_gone:
                usage.total -= nbytes
                room += nbytes
        return room

    def _is_read(self, place: tuple[str, ...], name: str) -> bool:
        """Whether a file in these folders is of an object that is read."""
        if place[:1] != (self._origin_id,):
            return False
        number = xxh3("/".join([*place[1:], name.removesuffix(SUFFIX)]).encode())
        return number in self._key_numbers

    @cached_property
    def _key_numbers(self) -> set[int]:
        """Of each object that is read: a third of what the keys themselves take."""
        return {xxh3(key.encode()) for key in self._keys()}

    @contextmanager
    def _usage(self, stop: threading.Event) -> Iterator[_Usage | None]:
        """What all files take, to be changed here alone meanwhile; None where `stop` is set."""
        with open_private(self._own) as own:
            locks = lock_file(_USAGE, own)
            what = f"the count of the cache {self._own}"
            with locks.held(what, [_COUNTING], stop, PATIENCE) as is_held:
                if not is_held:
                    yield None
                    return
                usage = _Usage(locks, own)
                if not self._counted or usage.is_lost:
                    usage.count()
                    self._counted = True
                yield usage
                usage.write()

    def _unusable(self, error: OSError) -> LoaderError:
        return LoaderError(
            f"the cache {self._own} cannot be used: {error}; give another cache_dir, or use "
            "index=True or cache_size=0, which keep nothing"
        )


class _Usage:
    """Bytes that the cache files take, as far as was counted."""

    def __init__(self, file: LockFile, folder: int) -> None:
        self._file = file
        self.folder = folder  # the descriptor of the one that all of them are in
        text = os.pread(file.descriptor, 32, 0).strip()
        self.is_lost = not text.isdigit()
        self._read = self.total = -1 if self.is_lost else int(text)

    def count(self) -> list[_Found]:
        """Count anew: the files that were found."""
        files = list(_cache_files(self.folder))
        self.total = sum(nbytes for _, nbytes, _, _ in files)
        return files

    def write(self) -> None:
        if self.total != self._read:
            os.pwrite(self._file.descriptor, b"%31d\n" % self.total, 0)


def _disk(folder: Path) -> os.statvfs_result:
    """The disk of a folder, which need not be there yet, or any more."""
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            return os.statvfs(place)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


_Found = tuple[int, int, tuple[str, ...], str]
"""Of a cache file: time of last use, see `taken_nbytes`, folders to it, name."""


def _cache_files(folder: int) -> Iterator[_Found]:
    """Every cache file below."""
    for place, _, names, below in os.fwalk(dir_fd=folder):
        for name in names:
            if name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=below, follow_symlinks=False)
                    if is_own_file(found):
                        nbytes = taken_nbytes(name, below)
                        yield found.st_mtime_ns, nbytes, tuple(place.split("/")[1:]), name
