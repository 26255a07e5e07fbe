"""Rows of a snapshot in memory: of objects held on this machine, or straight from the store."""

from __future__ import annotations

import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ...catalog import StoredObject
from ...errors import StorageLoaderError
from ...process import cached_property
from ...threads import Threads
from ..fill.gather import Copies, Ready, gathered
from ..fill.parts import Array, Parts
from ..order import Rows
from .blocks import ObjectRows, by_object, needed_blocks
from .cache import Cache
from .cache_file import CacheFullError, NotKeptError
from .direct import DirectReader
from .early import Early
from .mapped import MappedObject
from .objects import Objects
from .verified import Blocks, is_any_known
from .work import Preparation, Work

WORK_NBYTES = 8 * 2**20  # fetched at once into memory
_READ_NBYTES = 2**20  # the same, by each of ...
_THREADS = 32  # ... so many for one `read`
_NUMBER_NBYTES = 8  # of a row's number
_TRUSTED_NBYTES = 2**28  # taken for rows that no more than a commit says are there
_EARLY_SECONDS = 10  # of fetching as fast as the first rows came, which is slower than it can be
_VERIFIED_EARLY = 8  # bytes in memory for each that is needed: 64 KiB take 4 us
_LOOK = 1.0  # s between two looks whether cache files in use have their sizes
_GROUPS = 16  # of rows in held objects that are one piece of work

Kept = tuple[MappedObject, Blocks]  # and those of its blocks to bring


class Engine:
    """Reads rows of a snapshot's objects. Safe from many threads.

    Objects are held on this machine where the store is local or there is a `cache`; what is not
    held comes from the store into memory and goes with the `Ready` that refers to it.
    """

    def __init__(self, objects: Objects, cache: Cache | None) -> None:
        self._objects = objects
        self._snapshot = snapshot = objects.snapshot
        self._schema = objects.schema
        store = objects.store
        self._cache = None if store.is_local else cache
        self.holds = store.is_local or self._cache is not None
        self.num_rows = snapshot.num_rows
        self._direct = DirectReader(objects)
        self._held: OrderedDict[int, MappedObject] = OrderedDict()
        self._verified: dict[int, Blocks] = {}  # of objects that are not complete
        self._complete = np.zeros(len(snapshot.objects), bool)
        self._confirmed = np.zeros(len(snapshot.objects), bool)  # of the size that is said
        # A map keeps a file descriptor, a cache file that is being filled one more.
        self._max_held = max(4, _files() // (4 if store.is_local else 8))
        self._max_pinned = max(2, self._max_held // 2)  # by one preparation; a few live at once
        self._all: Ready | None = None  # once everything is here and verified
        self._was_looked_for = not objects.verify
        self._looked = 0.0  # by the monotonic clock, whether that has been cut
        self._fetched_early = Early(1)
        self._verified_early = Early(_VERIFIED_EARLY)
        self._is_rate_known = self._cache is None
        self._lock = threading.Lock()

    @cached_property
    def _has_room(self) -> bool:
        """Whether what was fetched or read early will still be here when it is needed."""
        return self._cache is not None and self._cache.holds(self._snapshot.nbytes)

    @property
    def is_complete(self) -> bool:
        """Whether all that can be read is here, verified and mapped."""
        return self._everything() is not None

    def confirm(self, rows: range) -> None:
        """Raise `FormatError` where so many rows are asked for that they should better be there."""
        if len(rows) * _NUMBER_NBYTES > _TRUSTED_NBYTES:
            ends = sorted((rows[0], rows[-1]))
            first, last = np.searchsorted(self._snapshot.starts, ends, "right") - 1
            self._confirm(np.arange(first, last + 1))

    def read(self, rows: Rows) -> dict[str, Array]:
        """Rows of the dataset, shape (len(rows), *shape), verified; a row of -1 is zeros."""
        stop = threading.Event()
        ready = self._done(self.prepare(rows, stop, work_nbytes=_READ_NBYTES), stop)
        [(batch, _)] = gathered(self._schema, ready, rows[None])
        return batch

    def row(self, row: int) -> dict[str, Array]:
        """One row of the dataset, arrays of shape `shape`, verified."""
        index = int(np.searchsorted(self._snapshot.starts, row, "right")) - 1
        held = self._held.get(index)
        if held is not None and held.is_whole:
            arrays = held.row(row - int(self._snapshot.starts[index]))
            if arrays is not None:
                return arrays
        read = self.read(np.array([row], np.int64))
        return {name: array[0, ...] for name, array in read.items()}

    def _done(self, preparation: Preparation[Ready], stop: threading.Event) -> Ready:
        """What is prepared: works that wait for a network are done at once."""
        far = [work for work in preparation.works if work.nbytes]
        if len(far) < 2:
            return preparation.now()
        futures = [self._threads.submit(work.run) for work in far]
        try:
            for work in preparation.works:
                if not work.nbytes:
                    work.run()
            for future in futures:
                future.result()
        except BaseException:
            stop.set()
            raise
        finally:
            for future in futures:
                future.cancel()
            futures.clear()  # an error of theirs refers to this frame
        return preparation.finish()

    @cached_property
    def _threads(self) -> Threads:
        return Threads(_THREADS, "storage_loader-read")

    def prepare(
        self,
        rows: Rows,
        stop: threading.Event,
        *,
        work_nbytes: int = WORK_NBYTES,
        whole_share: float | None = None,
    ) -> Preparation[Ready]:
        """What must be done so that these rows are here; the works end early once `stop` is set.

        A work brings about `work_nbytes` into memory at once. Objects of which at least
        `whole_share` is needed may be fetched whole, where the cache has room for the dataset;
        None: never.
        """
        everything = self._everything()
        if everything is not None:
            return Preparation([], lambda: everything)
        numbers = np.unique(rows)
        numbers = numbers[np.searchsorted(numbers, 0) :]
        groups = list(by_object(self._snapshot.starts, numbers))
        copied = partial(self._copied, numbers, groups, stop, work_nbytes)
        if not self.holds or len(groups) > self._max_pinned:
            return copied()
        kept = {group.index: self._keep(group, whole_share, stop) for group in groups}
        all_kept = [one for one in kept.values() if one]
        if len(all_kept) < len(groups):
            return copied(kept)
        return self._pinned(groups, all_kept, stop, copied)

    def _pinned(
        self,
        groups: list[ObjectRows],
        kept: list[Kept],
        stop: threading.Event,
        copied: Callable[[], Preparation[Ready]],
    ) -> Preparation[Ready]:
        """Rows where they are held; `copied` prepares them where the cache does not take them."""
        works = [self._tolerant(work) for held, needed in kept for work in held.works(needed, stop)]
        if not self._is_rate_known:
            works = self._timed(works)

        def finish() -> Ready:
            for group, (held, needed) in zip(groups, kept, strict=True):
                try:
                    held.ensure(needed, stop)  # what was begun elsewhere and not brought to an end
                except NotKeptError:
                    return self._done(copied(), stop)
                self._note_complete(group.index)
            objects = ((g.index, held) for g, (held, _) in zip(groups, kept, strict=True))
            return self._ready(objects, frees_gil=any(work.waits for work in works))

        return Preparation(works, finish)

    def _timed(self, works: list[Work]) -> list[Work]:
        """The works, the first of which to end tells how much may be fetched early.

        They run beside each other and share what the network brings: by then as much has come of
        all of them.
        """
        total = sum(work.nbytes for work in works)
        begun = time.perf_counter()

        def run(work: Work) -> None:
            work.run()
            with self._lock:
                if work.nbytes and not self._is_rate_known:
                    self._is_rate_known = True
                    seconds = time.perf_counter() - begun
                    self._fetched_early.allow(int(total / seconds * _EARLY_SECONDS))

        return [replace(work, run=partial(run, work)) for work in works]

    def _copied(
        self,
        numbers: Rows,
        groups: list[ObjectRows],
        stop: threading.Event,
        work_nbytes: int,
        kept: Mapping[int, Kept | None] = {},
    ) -> Preparation[Ready]:
        """Rows copied to memory: from objects held, where that is possible, else from the store.

        `kept`: by object, where that was asked before, so that room is not reserved twice.
        """
        if len(numbers) * self._schema.row_nbytes > _TRUSTED_NBYTES:
            self._confirm(np.array([group.index for group in groups], np.int64))
        copies = Copies(self._schema, numbers)
        if not self.holds:
            works = self._direct.works(groups, copies, stop, most=work_nbytes)
            return Preparation(works, copies.ready)

        def copy(some: list[ObjectRows]) -> None:
            left = [rest for group in some for rest in self._copy(group, copies, stop, kept)]
            for work in self._direct.works(left, copies, stop, most=work_nbytes):
                work.run()

        row_nbytes = self._schema.row_nbytes
        works = [
            Work(sum(len(group.rows) for group in some) * row_nbytes, partial(copy, some))
            for some in _portions(groups, max(1, work_nbytes // max(1, row_nbytes)))
        ]
        return Preparation(works, copies.ready)

    def _confirm(self, indices: Rows) -> None:
        """Ask how large objects are, once each: memory is about to be taken for their rows."""
        self._objects.confirm(indices[~self._confirmed[indices]].tolist())
        self._confirmed[indices] = True

    def _copy(
        self,
        group: ObjectRows,
        copies: Copies,
        stop: threading.Event,
        kept: Mapping[int, Kept | None],
    ) -> list[ObjectRows]:
        """Copy rows from their held object; those for which that could not be done."""
        found = kept[group.index] if group.index in kept else self._keep(group, None, stop)
        left: list[ObjectRows] = []
        try:
            if found is None:  # no room for what is missing of it
                held = self._object(group.index)
                here = held.are_here(group.rows)
                left = [] if here.all() else [group.some(~here)]
                if not here.any():
                    return left
                group = group.some(here)
                needed = needed_blocks(
                    self._snapshot.objects[group.index], self._schema, group.rows
                )
            else:
                held, needed = found
            held.ensure(needed, stop)
        except NotKeptError as error:
            self._note_not_kept(error)
            return [group, *left]
        if not stop.is_set():
            self._note_complete(group.index)
            with copies.part(group.places) as part:
                for name, out in part.items():
                    held.columns[name].take(group.rows, out=out, mode="clip")
        return left

    def _keep(
        self, group: ObjectRows, whole_share: float | None, stop: threading.Event
    ) -> Kept | None:
        """The object, and its blocks to bring; None where nothing more is to be held of it."""
        try:
            held = self._object(group.index)
        except CacheFullError as error:
            self._note_not_kept(error)
            return None
        stored = self._snapshot.objects[group.index]
        needed = needed_blocks(stored, self._schema, group.rows)
        if held.has(needed):
            return held, needed
        every = needed if whole_share is None else self._every_block(stored)
        missing = held.missing_nbytes(needed)
        if not missing:  # all lies here, to be verified
            if whole_share is not None and held.is_resident:
                whole = held.unverified_nbytes(every)
                if self._verified_early.takes(whole, held.unverified_nbytes(needed)):
                    return held, every
            return held, needed
        if whole_share is not None and missing >= whole_share * stored.nbytes and self._has_room:
            whole = held.missing_nbytes(every)
            if self._fetched_early.takes(whole, missing) and self._reserve(held, every, stop):
                return held, every
        else:
            self._fetched_early.allow(missing)
        return (held, needed) if self._reserve(held, needed, stop) else None

    def _every_block(self, stored: StoredObject) -> Blocks:
        """The blocks of all attributes that are read."""
        layout = stored.layout
        every = np.zeros(layout.num_checksums, bool)
        for a in self._schema:
            every[layout.all_blocks(a.name)] = True
        return every

    def _reserve(self, held: MappedObject, needed: Blocks, stop: threading.Event) -> bool:
        """Whether the cache takes the blocks."""
        assert self._cache is not None
        if held.reserve(self._cache, needed, stop):
            return True
        if not stop.is_set():
            self._cache.warn_full()
        return False

    def _tolerant(self, work: Work) -> Work:
        """A work that leaves to `finish` what the cache did not take."""

        def run() -> None:
            try:
                work.run()
            except NotKeptError as error:
                self._note_not_kept(error)

        return replace(work, run=run)

    def _note_not_kept(self, error: NotKeptError) -> None:
        assert self._cache is not None
        if isinstance(error, CacheFullError):
            self._cache.refuse()

    def _everything(self) -> Ready | None:
        """All rows, once they are here and verified."""
        if self._all is not None and self._cache is not None:
            self._look()
        if self._all is None and self.holds and len(self._complete) <= self._max_held:
            if not self._complete.all() and not self._are_known():
                return None
            objects = [(i, self._object(i)) for i in range(len(self._complete))]
            if not self._complete.all():  # a cache file has gone and came back empty
                return None
            self._all = self._ready(objects, frees_gil=False)
        return self._all

    def _are_known(self) -> bool:
        """Whether this process has verified all for others. Asked once: it looks at each file."""
        if self._was_looked_for or not is_any_known():
            return False
        self._was_looked_for = True
        try:
            for index, stored in enumerate(self._snapshot.objects):
                if not self._object(index).has(self._every_block(stored)):
                    return False
                self._note_complete(index)
        except (CacheFullError, StorageLoaderError):  # it rises again where rows are read
            return False
        return bool(self._complete.all())

    def _look(self) -> None:
        """Forget that all is here where somebody has cut a cache file, since the last look."""
        now = time.monotonic()
        if now >= self._looked + _LOOK:
            self._looked = now
            with self._lock:
                if not all(held.is_whole for held in self._held.values()):
                    self._all = None

    def _ready(self, objects: Iterable[tuple[int, MappedObject]], *, frees_gil: bool) -> Ready:
        """Rows where they are held; objects in order. `frees_gil`: see `Parts`."""
        found = [(self._snapshot.starts[index], held.columns) for index, held in objects]
        parts = {}
        for a in self._schema:
            some = [(start, columns[a.name]) for start, columns in found if a.name in columns]
            if some:
                firsts = np.array([start for start, _ in some], np.int64)
                parts[a.name] = Parts(a, firsts, [array for _, array in some], frees_gil)
        return Ready(parts)

    def _object(self, index: int) -> MappedObject:
        """Raises `CacheFullError` where no file can be made."""
        with self._lock:
            held = self._held.get(index)
            if held is not None and held.is_whole:
                self._held.move_to_end(index)
                return held
            self._held.pop(index, None)
        stored = self._snapshot.objects[index]
        key, blocks = self._snapshot.key(index), stored.layout.num_checksums
        file = None if self._cache is None else self._cache.open(key, stored.nbytes, blocks)
        verified = None  # of a cache file: another one may have been here
        if file is None:
            is_complete = self._complete[index]
            verified = np.ones(blocks, bool) if is_complete else self._verified.get(index)
        made = MappedObject(self._objects, index, verified, file)
        with self._lock:
            held = self._held.setdefault(index, made)
            if held is made and (file is not None or not self._complete[index]):
                self._verified[index] = made.verified
                self._complete[index] = False
            while len(self._held) > self._max_held:
                self._held.popitem(last=False)
        return held

    def _note_complete(self, index: int) -> None:
        """Forget the flags of an object once every block of the attributes read is verified."""
        with self._lock:
            verified = self._verified.get(index)
            if verified is None:
                return
            if verified[self._every_block(self._snapshot.objects[index])].all():
                self._complete[index] = True
                del self._verified[index]


def _portions(groups: list[ObjectRows], most: int) -> Iterator[list[ObjectRows]]:
    """Groups of at most `most` rows together, and at most 16 of them; at least one."""
    some: list[ObjectRows] = []
    count = 0
    for group in groups:
        if some and (count + len(group.rows) > most or len(some) == _GROUPS):
            yield some
            some, count = [], 0
        some.append(group)
        count += len(group.rows)
    if some:
        yield some


def _files() -> int:
    """How many files this process may open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**16 if allowed == resource.RLIM_INFINITY else min(allowed, 2**16)
