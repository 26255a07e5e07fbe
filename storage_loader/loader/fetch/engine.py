"""Rows of a snapshot in memory: of objects held on this machine, or straight from the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...process import cached_property
from ...schema import Region, Schema
from ...sync import Event
from ...threads import Threads
from ..fill.gather import Fillers, gathered
from ..fill.memory import ReusedMemory
from ..fill.parts import Parts
from ..fill.ragged import RaggedParts
from ..fill.ready import Copies, Ready, Span
from ..order import Rows
from .blocks import ObjectRows, by_object, needed_blocks
from .cache import Cache
from .cache_file import CacheFullError, NotKeptError
from .direct import DirectReader
from .directory import Directories
from .early import Early
from .mapped import MappedObject
from .objects import Objects
from .open_objects import OpenObjects
from .verified import Blocks
from .work import Preparation, Work

_NUMBER_NBYTES = 8  # of a row's number
_TRUSTED_NBYTES = 2**28  # taken for rows that no more than a commit says are there

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
        self.tuning = objects.tuning
        self._directories = Directories(objects)
        self._direct = DirectReader(objects, self._directories)
        self._open = OpenObjects(objects, self._directories, self._cache)
        coded = snapshot.objects.codecs
        self._is_coded = any(region.name in coded for region in objects.regions)
        self._ends = [region for region in objects.regions if region.role == "ends"]
        self._confirmed = np.zeros(len(snapshot.objects), bool)  # of the size that is said
        self._all: tuple[list[MappedObject], Ready] | None = None  # rows of all objects
        self._memory = {a.name: ReusedMemory() for a in self._schema}  # of windows
        self._early = Early(self._cache, snapshot.nbytes, objects.tuning)

    @property
    def is_complete(self) -> bool:
        """Whether all that can be read is here, verified and mapped."""
        return self._everything() is not None

    @property
    def only_decodes(self) -> bool:
        """Whether all that can be read is here and verified, but compressed."""
        return self._is_coded and self.holds and self._open.is_complete

    def confirm(self, rows: range) -> None:
        """Raise `FormatError` where so many rows are asked for that they should better be there."""
        if len(rows) * _NUMBER_NBYTES > _TRUSTED_NBYTES:
            ends = sorted((rows[0], rows[-1]))
            first, last = np.searchsorted(self._snapshot.starts, ends, "right") - 1
            self._confirm(np.arange(first, last + 1))

    def read(self, rows: Rows, made_by: Fillers | None = None) -> dict[str, Any]:
        """Rows of the dataset, shape (len(rows), *shape), verified; a row of -1 is zeros.

        `made_by`: see `gathered`.
        """
        stop = Event()
        ready = self._done(self._prepared(rows, stop, None, None, None), stop)
        [(batch, _)] = gathered(self._schema, ready, rows[None], made_by=made_by)
        return batch

    def row(self, row: int) -> dict[str, Any]:
        """One row of the dataset, arrays of shape `shape`, verified."""
        index = int(np.searchsorted(self._snapshot.starts, row, "right")) - 1
        held = self._open.find(index)
        if held is not None:
            arrays = held.row(row - int(self._snapshot.starts[index]))
            if arrays is not None:
                return arrays
        return one_row(self.read(np.array([row], np.int64)), 0)

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
        return Threads(self.tuning.waiting_threads, "storage_loader-read")

    def prepare(
        self,
        rows: Rows,
        stop: threading.Event,
        *,
        work_nbytes: int | None = None,
        whole_share: float | None = None,
    ) -> Preparation[Ready]:
        """What must be done so that these rows are here; the works end early once `stop` is set.

        A work brings about `work_nbytes` into memory at once; None: the usual. Objects of which at
        least `whole_share` is needed may be fetched whole, where the cache has room for the
        dataset; None: never. Memory for rows that are copied is reused by later preparations.
        """
        return self._prepared(rows, stop, self._memory, work_nbytes, whole_share)

    def _prepared(
        self,
        rows: Rows,
        stop: threading.Event,
        memory: Mapping[str, ReusedMemory] | None,
        work_nbytes: int | None,
        whole_share: float | None,
    ) -> Preparation[Ready]:
        everything = self._everything()
        if everything is not None:
            return Preparation([], lambda: everything)
        numbers = _ascending(rows)
        groups = list(by_object(self._snapshot.starts, numbers))
        if self._ends:
            groups = self._located(groups, stop)
        work_nbytes = work_nbytes or self.tuning.work_nbytes
        copied = partial(self._copied, numbers, groups, stop, memory, work_nbytes)
        if not self.holds or len(groups) > self._open.most_pinned:
            return copied()
        kept = {
            group.index: self._keep(group, self._objects.regions, whole_share, stop)
            for group in groups
        }
        all_kept = [one for one in kept.values() if one]
        if len(all_kept) < len(groups) or any(held.is_coded for held, _ in all_kept):
            return copied(kept)
        return self._pinned(groups, all_kept, stop, copied)

    def _located(self, groups: list[ObjectRows], stop: threading.Event) -> list[ObjectRows]:
        """The rows, and where their values lie: the ends of rows are read for that, here."""
        locate = partial(self._locate, stop=stop)
        if len(groups) < 2 or self._objects.store.is_local:
            return [locate(group) for group in groups]
        return list(self._threads.map(locate, groups))

    def _locate(self, group: ObjectRows, stop: threading.Event) -> ObjectRows:
        nowhere = np.zeros(len(group.rows), np.int64)  # where nobody waits for it any more
        spans = {region.attribute: Span(nowhere, nowhere) for region in self._ends}
        kept = self._keep(group, self._ends, None, stop) if self.holds else None
        if kept is not None:
            held, needed = kept
            try:
                held.ensure(needed, stop)
                if not stop.is_set():
                    spans = held.spans(group.rows)
                return replace(group, spans=spans)
            except NotKeptError as error:
                self._note_not_kept(error)
        return replace(group, spans=self._direct.ends(group, stop) or spans)

    def _pinned(
        self,
        groups: list[ObjectRows],
        kept: list[Kept],
        stop: threading.Event,
        copied: Callable[[], Preparation[Ready]],
    ) -> Preparation[Ready]:
        """Rows where they are held; `copied` prepares them where the cache does not take them."""
        works = self._early.timed(
            [self._tolerant(work) for held, needed in kept for work in held.works(needed, stop)]
        )

        def finish() -> Ready:
            for group, (held, needed) in zip(groups, kept, strict=True):
                try:
                    held.ensure(needed, stop)  # what was begun elsewhere and not brought to an end
                except NotKeptError:
                    return self._done(copied(), stop)
                self._open.note_complete(group.index)
            objects = ((g.index, held) for g, (held, _) in zip(groups, kept, strict=True))
            return self._ready(objects, frees_gil=any(work.waits for work in works))

        return Preparation(works, finish)

    def _copied(
        self,
        numbers: Rows,
        groups: list[ObjectRows],
        stop: threading.Event,
        memory: Mapping[str, ReusedMemory] | None,
        work_nbytes: int,
        kept: Mapping[int, Kept | None] = {},
    ) -> Preparation[Ready]:
        """Rows copied to memory: from objects held, where that is possible, else from the store.

        `kept`: by object, where that was asked before, so that room is not reserved twice.
        """
        counts = _counts(self._schema, groups)
        nbytes = len(numbers) * self._schema.row_nbytes
        nbytes += sum(int(c.sum()) * self._schema[name].item_nbytes for name, c in counts.items())
        if nbytes > _TRUSTED_NBYTES:
            self._confirm(np.array([group.index for group in groups], np.int64))
        copies = Copies(self._schema, numbers, counts, memory)
        if not self.holds:
            works = self._direct.works(groups, copies, stop, most=work_nbytes)
            return Preparation(works, copies.ready)

        def copy(some: list[ObjectRows]) -> None:
            left = [rest for group in some for rest in self._copy(group, copies, stop, kept)]
            for work in self._direct.works(left, copies, stop, most=work_nbytes):
                work.run()

        row_nbytes = nbytes // max(1, len(numbers))
        works = [
            Work(sum(len(group.rows) for group in some) * row_nbytes, partial(copy, some))
            for some in self._portions(groups, max(1, work_nbytes // max(1, row_nbytes)))
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
        regions = self._objects.regions
        found = kept[group.index] if group.index in kept else self._keep(group, regions, None, stop)
        left: list[ObjectRows] = []
        try:
            if found is None:  # no room for what is missing of it
                held = self._open.get(group.index, stop)
                here = held.are_here(group)
                left = [] if here.all() else [group.some(~here)]
                if not here.any():
                    return left
                group = group.some(here)
                needed = needed_blocks(held.layout, regions, group)
            else:
                held, needed = found
            held.ensure(needed, stop)
        except NotKeptError as error:
            self._note_not_kept(error)
            return [group, *left]
        if not stop.is_set():
            self._open.note_complete(group.index)
            with copies.part(group.places) as part:
                for name, out in part.items():
                    held.take(self._objects.region(name), group.rows, out)
            for name, span in group.spans.items():
                copies.put(name, group.places, span, held.copier(f"{name}/values"))
        return left

    def _keep(
        self,
        group: ObjectRows,
        regions: Sequence[Region],
        whole_share: float | None,
        stop: threading.Event,
    ) -> Kept | None:
        """The object, and its blocks to bring; None where nothing more is to be held of it."""
        try:
            held = self._open.get(group.index, stop)
        except CacheFullError as error:
            self._note_not_kept(error)
            return None
        needed = needed_blocks(held.layout, regions, group)
        if held.has(needed):
            return held, needed
        wanted = self._early.blocks(held, needed, whole_share)
        if not held.missing_nbytes(wanted) or self._reserve(held, wanted, stop):
            return held, wanted
        if wanted is not needed and self._reserve(held, needed, stop):
            return held, needed
        return None

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
        objects = self._open.all() if self.holds and not self._is_coded else None
        if objects is None:
            self._all = None
            return None
        if self._all is None or self._all[0] is not objects:
            self._all = objects, self._ready(enumerate(objects), frees_gil=False)
        return self._all[1]

    def _ready(self, objects: Iterable[tuple[int, MappedObject]], *, frees_gil: bool) -> Ready:
        """Rows where they are held; objects in order. `frees_gil`: see `Parts`."""
        found = [(int(self._snapshot.starts[index]), held.columns) for index, held in objects]
        parts: dict[str, Parts | RaggedParts] = {}
        for a in self._schema:
            by_row = a.regions[0].name
            some = [(start, columns) for start, columns in found if by_row in columns]
            if not some:
                continue
            firsts = np.array([start for start, _ in some], np.int64)
            arrays = [columns[by_row] for _, columns in some]
            if a.is_variable:
                values = [columns.get(a.regions[1].name, _NOTHING) for _, columns in some]
                parts[a.name] = RaggedParts(a, firsts, arrays, values)
            else:
                parts[a.name] = Parts(a.regions[0], firsts, arrays, frees_gil)
        return Ready(parts)

    def _portions(self, groups: list[ObjectRows], most: int) -> Iterator[list[ObjectRows]]:
        """Groups, or parts of them, of at most `most` rows together, and few of them."""
        some: list[ObjectRows] = []
        count = 0
        for group in groups:
            for start in range(0, len(group.rows), most):
                part = group if len(group.rows) <= most else group.some(slice(start, start + most))
                rows = len(part.rows)
                if some and (count + rows > most or len(some) == self.tuning.work_requests):
                    yield some
                    some, count = [], 0
                some.append(part)
                count += rows
        if some:
            yield some


_NOTHING = np.empty(0, np.uint8)
_NO_ROWS = np.empty(0, np.int64)


def _ascending(rows: Rows) -> Rows:
    """The row numbers, each once; negative ones stand for no row.

    Sorting takes a quarter of the time that `np.unique` takes since numpy 2.3, which hashes.
    """
    numbers = np.sort(rows, axis=None)
    kept = numbers >= 0
    kept[1:] &= numbers[1:] != numbers[:-1]
    ascending: Rows = numbers[kept]
    return ascending


def _counts(schema: Schema, groups: Sequence[ObjectRows]) -> dict[str, Rows]:
    """By attribute of no fixed size, the items of each row, in order."""
    return {
        a.name: np.concatenate(
            [_NO_ROWS, *(g.spans[a.name].stops - g.spans[a.name].starts for g in groups)]
        )
        for a in schema
        if a.is_variable
    }


def one_row(batch: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Row `index` of a batch: arrays without the batch axis, 0-d for scalars."""
    return {
        name: values[index, ...] if isinstance(values, np.ndarray) else values[index]
        for name, values in batch.items()
    }
