"""Files mapped into memory: each once for all readers of this process."""

from __future__ import annotations

import mmap
import os
import time
from weakref import WeakValueDictionary

Identity = tuple[int, ...]
"""Of a file's bytes: device, inode, size, and the times that change where they are written."""

_SETTLED = 2 * 10**9  # ns: the coarsest clock of a file system; younger bytes may change unseen


class FileMap(mmap.mmap):
    """A whole file, read-only."""

    identity: Identity | None = None


_shared: WeakValueDictionary[Identity, FileMap] = WeakValueDictionary()


def map_file(descriptor: int) -> memoryview:
    """The whole file, which is not empty; a map that is there already where it shows the same."""
    identity = identity_of(os.fstat(descriptor))
    made = None if identity is None else _shared.get(identity)
    if made is None:
        made = FileMap(descriptor, 0, access=mmap.ACCESS_READ)
        if identity is not None and identity[2] == len(made):
            made.identity = identity
            _shared[identity] = made
    return memoryview(made)


def identity_of(status: os.stat_result) -> Identity | None:
    """What names the bytes of a file; None where they could change and keep it."""
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if changed > time.time_ns() - _SETTLED:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def mapped_identity(data: memoryview) -> Identity | None:
    """That of the file which these bytes are mapped from; None where that is not known."""
    return data.obj.identity if isinstance(data.obj, FileMap) else None
