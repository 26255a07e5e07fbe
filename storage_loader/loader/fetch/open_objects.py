"""The objects of a snapshot that are mapped, and whether all of it is here and verified."""

from __future__ import annotations

import resource
import threading
import time
from collections import OrderedDict

import numpy as np

from ...errors import StorageLoaderError
from .cache import Cache
from .cache_file import CacheFullError
from .directory import Directories
from .mapped import MappedObject
from .objects import NEVER, Objects
from .verified import Blocks, is_any_known

_LOOK = 1.0  # s between two looks whether cache files in use have their sizes


class OpenObjects:
    """Those that were used last stay open, as many as the process may have files. Thread-safe."""

    def __init__(self, objects: Objects, directories: Directories, cache: Cache | None) -> None:
        """`cache`: None where the store itself is local."""
        self._objects = objects
        self._directories = directories
        self._snapshot = snapshot = objects.snapshot
        self._cache = cache
        self._open: OrderedDict[int, MappedObject] = OrderedDict()
        self._verified: dict[int, Blocks] = {}  # of objects that are not complete
        self._complete = np.zeros(len(snapshot.objects), bool)
        self._most = max(4, _files() // (4 if cache is None else 8))  # being filled, it takes two
        self._all: list[MappedObject] | None = None  # once everything is here and verified
        self._was_looked_for = not objects.verify
        self._looked = 0.0  # by the monotonic clock, whether that has been cut
        self._lock = threading.Lock()

    @property
    def is_complete(self) -> bool:
        """Whether everything that is read was here and verified, each object when it was used."""
        return bool(self._complete.all())

    @property
    def most_pinned(self) -> int:
        """Objects that one preparation may keep open; a few live at once."""
        return max(2, self._most // 2)

    def get(self, index: int, stop: threading.Event = NEVER) -> MappedObject:
        """Raises `CacheFullError` where no file can be made, `LoaderError`, or a `StoreError`."""
        with self._lock:
            found = self._open.get(index)
            if found is not None and found.is_whole:
                self._open.move_to_end(index)
                return found
            self._open.pop(index, None)
        stored = self._snapshot.objects[index]
        key, blocks = self._snapshot.key(index), stored.layout.num_checksums
        file = None if self._cache is None else self._cache.open(key, stored.nbytes, blocks)
        here = None if file is None or not file.has_table else file.read
        directory = self._directories.get(index, stop, here)
        verified = None  # of a cache file: another one may have been here
        if file is None:
            is_complete = self._complete[index]
            verified = np.ones(blocks, bool) if is_complete else self._verified.get(index)
        made = MappedObject(self._objects, index, directory, verified, file)
        with self._lock:
            found = self._open.setdefault(index, made)
            if found is made and (file is not None or not self._complete[index]):
                self._verified[index] = made.verified
                self._complete[index] = False
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return found

    def find(self, index: int) -> MappedObject | None:
        """One that is open, unless its file was cut."""
        found = self._open.get(index)
        return found if found is not None and found.is_whole else None

    def note_complete(self, index: int) -> None:
        """Forget the flags of an object once every block of the attributes read is verified."""
        with self._lock:
            verified = self._verified.get(index)
            if verified is None:
                return
            held = self._open.get(index)
            if held is not None and verified[held.every_block].all():
                self._complete[index] = True
                del self._verified[index]

    def all(self) -> list[MappedObject] | None:
        """All objects, once everything that is read of them is here and verified."""
        if self._all is not None and self._cache is not None:
            self._look()
        if self._all is None and len(self._complete) <= self._most:
            if not self._complete.all() and not self._are_known():
                return None
            objects = [self.get(i) for i in range(len(self._complete))]
            if not self._complete.all():  # a cache file has gone and came back empty
                return None
            self._all = objects
        return self._all

    def _are_known(self) -> bool:
        """Whether this process has verified all for others. Asked once: it looks at each file."""
        if self._was_looked_for or not is_any_known():
            return False
        self._was_looked_for = True
        try:
            for index in range(len(self._complete)):
                found = self.get(index)
                if not found.has(found.every_block):
                    return False
                self.note_complete(index)
        except (CacheFullError, StorageLoaderError):  # it rises again where rows are read
            return False
        return bool(self._complete.all())

    def _look(self) -> None:
        """Forget that all is here where somebody has cut a cache file, since the last look."""
        now = time.monotonic()
        if now >= self._looked + _LOOK:
            self._looked = now
            with self._lock:
                if not all(one.is_whole for one in self._open.values()):
                    self._all = None


def _files() -> int:
    """How many files this process may open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**16 if allowed == resource.RLIM_INFINITY else min(allowed, 2**16)
