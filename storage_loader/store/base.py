"""The one door to the outside world: a few verbs on keys and bytes."""

from __future__ import annotations

import re
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import xxhash
from typing_extensions import Buffer

from ..errors import ObjectNotFoundError, ObjectShortError, ObjectTooLargeError, StoreError
from ..ranges import Range
from ..sync import Event

STREAM_CHUNK = 2**19  # hashed and written while received; 2**18 are 0.95 of this

WHOLE = 2**28  # bytes that are read whole at most, where the caller knows no closer limit

Buffers = list[memoryview]

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_OVER = Event()
_OVER.set()


@dataclass(frozen=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: str
    nbytes: int
    modified: datetime  # by the store's clock, with time zone
    odd: str = ""  # what else than an object this is: it can be deleted, and not be read


Errors = list[StoreError]
Infos = list[ObjectInfo]  # in the class, `list` is the verb


class Store(ABC):
    """Objects under keys. Every method may be called from many threads at once.

    A key is `/`-separated, without empty, `.` or `..` parts. Objects appear whole or not at
    all, and a finished `put` is visible to every later `get`, `head` and `list` of any
    process. Buffers come read-only, one byte an item, and stay valid as long as they are
    held; a memory map where the bytes are local. Failures are `StoreError`s that name place,
    key and remedy; a missing object is `ObjectNotFoundError`.
    """

    url: str
    """The place, for messages: never holds a secret."""

    is_local: bool = False
    """Whether buffers are the stored bytes themselves, so that a cache would only copy them."""

    ends_puts: bool = False
    """Whether a put that raised has ended: no request of it is under way, to arrive later."""

    @property
    def origin(self) -> str:
        """Server and place: differs for any two places whose objects could differ."""
        return self.url

    @abstractmethod
    def get(self, key: str, *, limit: int = WHOLE) -> memoryview:
        """The whole object; `ObjectTooLargeError` where it has more than `limit` bytes.

        Then no memory is taken for it, whatever size a server claims or sends.
        """

    @abstractmethod
    def get_ranges(self, key: str, ranges: Sequence[Range]) -> Buffers:
        """A buffer for each (start, end), exactly end - start bytes.

        `StoreError` for a range that reaches beyond the object.
        """

    def get_many(self, requests: Sequence[tuple[str, Sequence[Range]]]) -> Sequence[Buffers]:
        """`get_ranges` of several objects, many in flight where that pays."""
        return [self.get_ranges(key, ranges) for key, ranges in requests]

    def find(self, key: str, *, limit: int = WHOLE) -> memoryview | None:
        """`get`; None where there is no such object."""
        try:
            return self.get(key, limit=limit)
        except ObjectNotFoundError:
            return None

    def find_all(self, keys: Sequence[str], *, limit: int = WHOLE) -> list[memoryview | None]:
        """`find` of several objects, many in flight where that pays; `limit` is for each."""
        return [self.find(key, limit=limit) for key in keys]

    def find_some(
        self, keys: Sequence[str], found: dict[int, memoryview | None], *, limit: int = WHOLE
    ) -> Errors:
        """`find` of those whose place is not yet in `found`, as far as one thread does many at
        once: which came are in it then. After a failure no more are begun; failures are returned.
        """
        return []

    def get_some(
        self, requests: Sequence[tuple[str, Sequence[Range]]], received: dict[int, Buffers]
    ) -> Errors:
        """`get_ranges` of those whose place is not yet in `received`; else as `find_some`."""
        return []

    def find_and_list(
        self, key: str, prefix: str, *, limit: int = WHOLE
    ) -> tuple[memoryview | None, Infos]:
        """`find` of an object and all of `list`, at once where that pays."""
        return self.find(key, limit=limit), [*self.list(prefix)]

    def stream(self, key: str, start: int, end: int) -> Iterator[Buffer]:
        """Bytes start to end (at least one) of an object in pieces, as they arrive.

        They end early where the object does.
        """
        yield self.get(key, limit=sys.maxsize)[start:end]

    @abstractmethod
    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        """Store an object durably. With `create`, `ObjectExistsError` where the key exists.

        Of several creators of one key exactly one succeeds.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder `prefix`, in no order; "a" lists "a/b", never "ab".

        And all else that lies there, as `odd`: links, which are not followed, and such things.
        """

    @abstractmethod
    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Names (not keys) of the folders directly in the folder `prefix`, sorted."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, and what `list` gives as `odd`; a key that does not exist is no error."""

    def list_unfinished(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """What puts below the folder `prefix` left behind where they were killed, or are writing.

        These are no objects: `delete_unfinished` alone takes their keys.
        """
        return iter(())

    def delete_unfinished(self, keys: Iterable[str]) -> None:  # noqa: B027  most leave nothing
        """Delete what `list_unfinished` listed. A put that is still writing it fails."""

    def now(self, probe: str) -> datetime:
        """The time by the store's clock, as in `ObjectInfo`; later than that of what is there.

        Here that of an object which is put under the key `probe` for it, and deleted.
        """
        self.put(probe, b"{}")
        try:
            return self.head(probe).modified
        finally:
            self.delete([probe])

    def prepare(self) -> None:  # noqa: B027  most stores need nothing
        """Create what must exist before the first `put`: a bucket."""

    def absence(self) -> str:
        """Why nothing can be here, and the remedy; "" where the place exists or verbs tell it."""
        return ""

    def note_retry(self, key: str) -> None:  # noqa: B027  only who counts cares
        """Bytes of this object came damaged, and are about to be asked for again."""

    def until(self, stop: threading.Event) -> Store:
        """The same store; once `stop` is set no failure is waited out: it is raised."""
        return self

    def once(self) -> Store:
        """The same store, asking once: no failure is waited out."""
        return self.until(_OVER)

    def noting(self, note: Callable[[], None]) -> Store:
        """The same store; it calls `note` before it asks again for what failed."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def xxh3(data: Buffer) -> int:
    """The checksum of the format: xxh3, 64 bits, seed 0 (17 to 30 GB/s)."""
    return xxhash.xxh3_64_intdigest(data)


def check_key(key: str) -> str:
    """The key itself; `StoreError` for one that could leave its folder or be misread."""
    return _checked(key, _CONTROL.search(key) is not None)


def check_parts(key: str) -> str:
    """The key itself; `StoreError` for one that could leave its folder.

    For deleting: whatever name something has got, it must be possible to remove it.
    """
    return _checked(key, "\0" in key)


def _checked(key: str, is_refused: bool) -> str:
    if is_refused or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(
            f"key {key!r}: no empty, '.' or '..' part and no control character may be in it"
        )
    return key


def check_size(nbytes: int, limit: int, *, place: str) -> None:
    """Raise `ObjectTooLargeError` for an object of more than `limit` bytes."""
    if nbytes > limit:
        raise ObjectTooLargeError(
            f"{place}: an object of {nbytes} bytes, where at most {limit} can be; "
            "this is not what the dataset's savers wrote"
        )


def whole(pieces: Iterable[Buffer], limit: int, *, place: str) -> memoryview:
    """The body that comes in pieces; `ObjectTooLargeError` once it has more than `limit` bytes."""
    received = []
    nbytes = 0
    for piece in pieces:
        nbytes += memoryview(piece).nbytes
        check_size(nbytes, limit, place=place)
        received.append(piece)
    return read_only(received[0] if len(received) == 1 else b"".join(received))


def check_ranges(ranges: Sequence[Range], nbytes: int | None, *, place: str) -> None:
    """Raise `StoreError` for a range that is not inside an object of `nbytes` bytes.

    None: a size that only the server knows.
    """
    for start, end in ranges:
        if not 0 <= start <= end or (nbytes is not None and end > nbytes):
            size = "" if nbytes is None else f" of {nbytes} bytes"
            short = nbytes is not None and 0 <= start <= end
            raise (ObjectShortError if short else StoreError)(
                f"{place}: bytes {start} to {end} of an object{size}"
            )


def check_lengths(buffers: Sequence[memoryview], ranges: Sequence[Range], *, place: str) -> None:
    """A range that crosses the object's end comes back short without an error."""
    for buffer, (start, end) in zip(buffers, ranges, strict=True):
        if buffer.nbytes != end - start:
            raise ObjectShortError(
                f"{place}: {buffer.nbytes} bytes came for {start} to {end}; "
                "the object is shorter than its commit says"
            )


def read_only(data: Buffer) -> memoryview:
    """A read-only view of single bytes."""
    return memoryview(data).cast("B").toreadonly()
