"""A snapshot's objects in their store: asked for once more, and named in errors."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from ...catalog import Snapshot, StoredObject
from ...errors import FormatError, ObjectNotFoundError, ObjectShortError
from ...process import cached_property
from ...ranges import Range
from ...schema import Region, Schema
from ...store import Buffer, Store
from ...sync import Event
from ..tuning import TUNING, Tuning

T = TypeVar("T")
Read = tuple[int, Sequence[Range]]  # an object, and ranges of its bytes

NEVER = Event()  # of what nobody gives up
_LOST = (ObjectNotFoundError, ObjectShortError)


class Objects:
    """Reads objects by their place in the snapshot. Safe from many threads.

    What is missing, or shorter than its commit says, is asked for once more; then the error
    names the object, and the dataset, commit, attributes and rows that need it.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        schema: Schema,
        *,
        verify: bool = True,
        tuning: Tuning = TUNING,
    ) -> None:
        """`schema`: the attributes that are read. `verify`: whether blocks are to be verified."""
        self.store = store
        self.snapshot = snapshot
        self.schema = schema
        self.verify = verify
        self.tuning = tuning

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """What the attributes that are read are stored as."""
        return self.schema.regions

    def region(self, name: str) -> Region:
        """One of them."""
        return next(region for region in self.regions if region.name == name)

    def until(self, stop: threading.Event) -> Objects:
        """The same; see `Store.until`."""
        other = copy.copy(self)
        other.store = self.store.until(stop)
        return other

    def url(self, index: int) -> str:
        """An object's place, for messages."""
        return f"{self.store.url}/{self.snapshot.key(index)}"

    def needing(self, index: int) -> str:
        """What cannot be read without an object, for messages."""
        names = ", ".join(map(repr, self.schema.names))
        return f"attributes {names}, {self.snapshot.described(index)}"

    def get(self, index: int) -> memoryview:
        """A whole object, of the size that its commit says; a map where the store is local."""
        self.confirm([index])
        [data] = self.get_ranges(index, [(0, self.stored(index).nbytes)])
        return data

    def get_ranges(self, index: int, ranges: Sequence[Range]) -> list[memoryview]:
        """See `Store.get_ranges`."""
        key = self.snapshot.key(index)
        return self._twice(index, partial(self.store.get_ranges, key, ranges))

    def get_many(self, reads: Sequence[Read]) -> Sequence[list[memoryview]]:
        """See `Store.get_many`."""
        try:
            return self.store.get_many([(self.snapshot.key(i), ranges) for i, ranges in reads])
        except _LOST:  # which of them, only one after another can say
            get = self.store.get_ranges
            return [
                self._again(i, partial(get, self.snapshot.key(i), ranges)) for i, ranges in reads
            ]

    def stream(self, index: int, start: int, end: int) -> Iterator[Buffer]:
        """Exactly the bytes start to end (at least one) in pieces; see `Store.stream`."""
        key = self.snapshot.key(index)
        for is_last in (False, True):
            try:
                for piece in self.store.stream(key, start, end):
                    yield piece
                    start += memoryview(piece).nbytes
                if start == end:
                    return
                raise ObjectShortError(
                    f"{self.url(index)}: it ends at byte {start}, its commit says more"
                )
            except _LOST as error:
                if is_last:
                    raise self._named(index, error) from error
            self.note_retry(index)

    def confirm(self, indices: Iterable[int]) -> None:
        """Raise `FormatError` for an object that has not the size that its commit says."""
        for index in indices:
            found = self._twice(index, partial(self.store.head, self.snapshot.key(index)))
            self._check_size(index, found.nbytes)

    def note_retry(self, index: int) -> None:
        """Bytes of this object are about to be asked for again."""
        self.store.note_retry(self.snapshot.key(index))

    def stored(self, index: int) -> StoredObject:
        """What the commit says of an object."""
        return self.snapshot.objects[index]

    def _twice(self, index: int, read: Callable[[], T]) -> T:
        try:
            return read()
        except _LOST:
            return self._again(index, read)

    def _again(self, index: int, read: Callable[[], T]) -> T:
        self.note_retry(index)
        try:
            return read()
        except _LOST as error:
            raise self._named(index, error) from error

    def _named(
        self, index: int, error: ObjectNotFoundError | ObjectShortError
    ) -> ObjectNotFoundError | ObjectShortError:
        return type(error)(f"{error}; it holds {self.needing(index)}")

    def _check_size(self, index: int, nbytes: int) -> None:
        said = self.stored(index).nbytes
        if nbytes != said:
            raise FormatError(
                f"{self.url(index)} has {nbytes} bytes, its commit says {said}; "
                f"it holds {self.needing(index)}"
            )
