"""Files that hold objects of a network store on this machine, whole or in part.

A cache file is a sparse copy of its object, followed by a flag for each block that is there
and one for the checksum table. The flags only save requests: whoever maps the file verifies
each block by its checksum before first use, so a file that was damaged or cut short, or whose
process died while it wrote, is fetched again where it is wrong. Processes may share a file:
they write equal bytes to equal places.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import LoaderError
from ..store import Buffer, Store


class Cache:
    """A folder of cache files. Keys are written once, so that nothing in it gets stale."""

    def __init__(self, folder: str | os.PathLike[str], store: Store) -> None:
        origin = hashlib.sha256(store.origin.encode()).hexdigest()[:16]  # two places never mix
        self._folder = Path(folder) / origin

    def open(self, key: str, nbytes: int, num_blocks: int) -> CacheFile:
        """The file of an object of `nbytes` bytes; made where it is missing."""
        try:
            return CacheFile(self._folder / f"{key}.cached", nbytes, num_blocks)
        except OSError as error:
            raise LoaderError(
                f"the cache {self._folder} cannot be used: {error}; give another cache_dir, or use "
                "index=True, which keeps nothing"
            ) from error


class CacheFile:
    """One object's bytes as far as they were fetched; see this module."""

    def __init__(self, path: Path, nbytes: int, num_blocks: int) -> None:
        self._path = path
        self._flags_start = nbytes
        size = nbytes + num_blocks + 1
        self._descriptor = -1
        _make_private(path.parent)
        self._descriptor = _open(path)
        try:
            if os.fstat(self._descriptor).st_size not in (0, size):
                # Not what we write. Another file takes its name: were this one cut, a process
                # that has it mapped would die.
                self.close()
                path.unlink(missing_ok=True)
                self._descriptor = _open(path)
            os.ftruncate(self._descriptor, size)
            mapped = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        except BaseException:
            self.close()
            raise
        view = memoryview(mapped)
        self.data = view[:nbytes]
        self._flags: npt.NDArray[np.uint8] = np.frombuffer(view[nbytes:], np.uint8)

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """By place in the checksum table: whether the block is there, as far as is known."""
        return self._flags[:-1].astype(bool)

    @property
    def has_table(self) -> bool:
        """Whether the checksum table is there, as far as is known."""
        return bool(self._flags[-1])

    def write(self, offset: int, data: Buffer) -> None:
        """Put bytes where they lie in the object."""
        self._write(offset, memoryview(data).cast("B"))

    def mark(self, first: int, stop: int) -> None:
        """Blocks `first` to `stop` are there; the table is the one after the last."""
        self._write(self._flags_start + first, memoryview(b"\1" * (stop - first)))

    def mark_table(self) -> None:
        """The checksum table is there."""
        self.mark(len(self._flags) - 1, len(self._flags))

    def _write(self, offset: int, view: memoryview) -> None:
        # Not through the map: a write to a map on a full disk kills the process.
        try:
            while view.nbytes:
                written = os.pwrite(self._descriptor, view, offset)
                offset, view = offset + written, view[written:]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise LoaderError(
                f"the disk of the cache {self._path.parent} is full; free it, give another "
                "cache_dir, or use index=True, which keeps nothing"
            ) from error

    def close(self) -> None:
        """Close the file; the map lives on as long as its views."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _make_private(folder: Path) -> None:
    """Make a folder and its parents for this user alone: `Path.mkdir` lets others into parents."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
