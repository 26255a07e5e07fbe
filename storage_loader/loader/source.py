"""Rows of a snapshot as arrays: from objects held on this machine, or straight from the store."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from ..catalog import Snapshot
from ..schema import Schema
from ..store import Store
from .blocks import needed_blocks
from .cache import Cache
from .gather import Array, allocate, by_object, copy_rows
from .held import Blocks, HeldObject
from .order import Rows
from .remote import RemoteReader

_FILES_SHARE = 5  # of the files a process may open, 1/5 for a loader: there may be several


class Source:
    """Reads the attributes of `schema` from a snapshot's objects. Safe from many threads.

    Objects are held on this machine where the store is local or there is a `cache`; else every
    `read` goes to the store.
    """

    def __init__(
        self, store: Store, snapshot: Snapshot, schema: Schema, cache: Cache | None
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._schema = schema
        self._cache = None if store.is_local else cache
        self.holds = store.is_local or cache is not None
        self._remote = RemoteReader(store, snapshot, schema)
        self._held: OrderedDict[int, HeldObject] = OrderedDict()
        self._verified: dict[int, Blocks] = {}  # of objects that are not complete
        self._complete = np.zeros(len(snapshot.objects), bool)
        self._max_held = _max_held(files_each=1 if store.is_local else 2)
        self._lock = threading.Lock()

    @property
    def is_complete(self) -> bool:
        """Whether all that can be read is here and verified."""
        return bool(self._complete.all())

    def read(self, rows: Rows) -> dict[str, Array]:
        """Rows of the dataset, shape (len(rows), *shape), verified; a row of -1 is zeros."""
        if not self.holds:
            return self._remote.read(rows)
        for work in self.missing(rows, threading.Event()):
            work()
        return self.gather(rows)

    def missing(self, rows: Rows, stop: threading.Event) -> list[Callable[[], None]]:
        """What must be done before `gather(rows)`: calls that may run in any threads.

        They return early once `stop` is set.
        """
        if self.is_complete:
            return []
        return [
            self._work(group.index, group.rows, stop)
            for group in by_object(self._snapshot.starts, rows)
            if not self._complete[group.index]
        ]

    def _work(self, index: int, rows: Rows, stop: threading.Event) -> Callable[[], None]:
        def ensure() -> None:
            stored = self._snapshot.objects[index]
            if not stop.is_set():
                self._object(index).ensure(needed_blocks(stored, self._schema, rows), stop)
            self._note_complete(index)

        return ensure

    def gather(self, rows: Rows) -> dict[str, Array]:
        """Like `read`; what `missing` did not make ready is waited for."""
        out = allocate(self._schema, rows)
        for group in by_object(self._snapshot.starts, rows):
            held = self._object(group.index)
            if not self._complete[group.index]:  # a cache file may have gone and come back empty
                stored = self._snapshot.objects[group.index]
                held.ensure(needed_blocks(stored, self._schema, group.rows), threading.Event())
            for name, array in out.items():
                copy_rows(array, group.positions, held.columns[name], group.rows)
        return out

    def _object(self, index: int) -> HeldObject:
        with self._lock:
            held = self._held.get(index)
            if held is not None:
                self._held.move_to_end(index)
                return held
        stored = self._snapshot.objects[index]
        key, blocks = self._snapshot.key(index), stored.layout.num_checksums
        file = None if self._cache is None else self._cache.open(key, stored.nbytes, blocks)
        with self._lock:
            if self._complete[index] and file is None:
                verified = np.ones(blocks, bool)
            elif file is None:
                verified = self._verified.setdefault(index, np.zeros(blocks, bool))
            else:
                verified = np.zeros(blocks, bool)  # of this file: another may have been here
        made = HeldObject(stored, self._schema, self._store, key, verified, file)
        with self._lock:
            held = self._held.setdefault(index, made)
            if held is made and file is not None:
                self._verified[index] = verified
                self._complete[index] = False
            while len(self._held) > self._max_held:
                self._held.popitem(last=False)
        return held

    def _note_complete(self, index: int) -> None:
        """Forget the flags of an object once every block of the attributes read is verified."""
        layout = self._snapshot.objects[index].layout
        with self._lock:
            verified = self._verified.get(index)
            if verified is None:
                return
            firsts = ((layout.first_checksum[a.name], layout.columns[a.name]) for a in self._schema)
            if all(verified[first : first + c.num_blocks].all() for first, c in firsts):
                self._complete[index] = True
                del self._verified[index]


def _max_held(*, files_each: int) -> int:
    """How many objects to keep mapped: a map keeps a file descriptor, a cache file one more."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        allowed = 2**16
    return max(16, min(allowed, 2**16) // _FILES_SHARE // files_each)
