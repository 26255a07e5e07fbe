"""Each fault of a store is found by its own point, and by no other."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from storage_loader.checks.examine import examine
from storage_loader.checks.trial import Effort
from storage_loader.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from storage_loader.store import MemoryStore, ObjectInfo
from storage_loader.store.forwarding import ForwardingStore

LITTLE = Effort(rounds=3, fresh=3, speed_seconds=0.02, object_nbytes=2**16)


class Faulty(ForwardingStore):
    """A store in memory with a fault; a subclass says which."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(MemoryStore(f"memory://{uuid.uuid4().hex}"))
        vars(self).update(settings)


class Refusing(Faulty):
    """One permission is missing."""

    verb: str

    def _asked(self, verb: str) -> None:
        if verb == self.verb:
            raise PermissionDeniedError(f"{verb}: no permission")

    def get(self, key: str, **options: Any) -> memoryview:
        self._asked("get")
        return super().get(key, **options)

    def get_ranges(self, key: str, ranges: Sequence[Any]) -> list[memoryview]:
        self._asked("get")
        return super().get_ranges(key, ranges)

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        self._asked("create-only" if create else "put")
        super().put(key, data, create=create)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._asked("list")
        return super().list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._asked("delete")
        super().delete(keys)


class Keeping(Faulty):
    """A deletion is confirmed, and nothing happens."""

    def delete(self, keys: Iterable[str]) -> None:
        pass


class Garbling(Faulty):
    def get(self, key: str, **options: Any) -> memoryview:
        return memoryview(bytes(super().get(key, **options))[::-1])


class Inventing(Faulty):
    """There is something under every key."""

    def get(self, key: str, **options: Any) -> memoryview:
        try:
            return super().get(key, **options)
        except ObjectNotFoundError:
            return memoryview(b"a page of a captive portal")


class DroppingRanges(Faulty):
    """The header Range is dropped: the whole object comes, and a client takes its beginning."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return [self.get(key)[: end - start] for start, end in ranges]


class RefusingRanges(Faulty):
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        raise StoreError("the server answered HTTP 501 NotImplemented")


class Overwriting(Faulty):
    """If-None-Match is dropped."""

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        super().put(key, data)


class Racing(Faulty):
    """Whether a key exists is asked first: of creators at once several win."""

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        if create:
            try:
                self.head(key)
            except ObjectNotFoundError:
                time.sleep(0.02)
            else:
                raise ObjectExistsError(key)
        super().put(key, data)


class Remembering(Faulty):
    """A key that was deleted cannot be created, as in versitygw's versioned buckets."""

    deleted: set[str]

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        if create and key in self.deleted:
            raise ObjectExistsError(key)
        super().put(key, data, create=create)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        self.deleted.update(wanted)
        super().delete(wanted)


class Late(Faulty):
    """Listings are those of a moment ago: `puts` or deletions come late."""

    puts: bool

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.changed: dict[str, float] = {}
        self.ghosts: dict[str, ObjectInfo] = {}

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        self.changed[key] = time.monotonic()
        super().put(key, data, create=create)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        if self.puts:
            super().delete(wanted)
            return
        for key in wanted:
            self.changed[key] = time.monotonic()
        gone = {i.key: i for key in wanted for i in super(Late, self).list(self.folder_of(key))}
        super().delete(wanted)
        self.ghosts = {key: gone[key] for key in wanted if key in gone}

    @staticmethod
    def folder_of(key: str) -> str:
        return key.rpartition("/")[0]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        now = time.monotonic()
        for info in super().list(prefix):
            if not self.puts or now - self.changed.get(info.key, 0) > 0.3:
                yield info
        if not self.puts:
            yield from (i for key, i in self.ghosts.items() if key.startswith(f"{prefix}/"))


class Lowering(Faulty):
    """The server's file system knows no case."""

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        super().put(key.lower(), data, create=create)

    def get(self, key: str, **options: Any) -> memoryview:
        return super().get(key.lower(), **options)

    def get_ranges(self, key: str, ranges: Sequence[Any]) -> list[memoryview]:
        return super().get_ranges(key.lower(), ranges)


class RefusingLong(Faulty):
    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        if any(len(part) > 100 for part in key.split("/")):
            raise StoreError("File name too long")
        super().put(key, data, create=create)


class Forgetting(Faulty):
    """The second page begins one key too late."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return (info for n, info in enumerate(super().list(prefix)) if n != 1000)


class Repeating(Faulty):
    """The second page begins one key too early."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(super().list(prefix)):
            if number == 1000:
                yield info
            yield info


class Skewed(Faulty):
    seconds: float

    def now(self, probe: str) -> datetime:
        return super().now(probe) + timedelta(seconds=self.seconds)


FAULTS = [
    *((Refusing(verb=verb), verb) for verb in ("put", "delete", "get", "create-only", "list")),
    (Keeping(), "delete"),
    (Garbling(), "get"),
    (Inventing(), "get"),
    (DroppingRanges(), "range"),
    (RefusingRanges(), "range"),
    (Overwriting(), "create-only"),
    (Racing(), "one creator wins"),
    (Remembering(deleted=set()), "created again"),
    (Late(puts=True), "fresh listings"),
    (Late(puts=False), "fresh listings"),
    (Lowering(), "literal keys"),
    (RefusingLong(), "literal keys"),
    (Forgetting(), "whole listings"),
    (Repeating(), "whole listings"),
    (Skewed(seconds=90), "clock"),
    (Skewed(seconds=-90), "clock"),
]


@pytest.mark.parametrize(
    ("store", "point"), FAULTS, ids=[f"{type(s).__name__}-{p}" for s, p in FAULTS]
)
def test_a_fault_is_found_by_its_own_point(store: Faulty, point: str) -> None:
    checked = examine(store, effort=LITTLE)
    assert [one.name for one in checked.falls_short] == [point]
    found = checked[point]
    assert found.detail
    assert found.cost
    assert found.remedy
    # What could not be tried says that it needs the one that does not hold, or another such.
    untried = {one.name for one in checked.not_tried} | {point}
    for one in checked.not_tried:
        assert any(name in one.detail for name in untried - {one.name}), one
    is_gone = not [*MemoryStore(store.url).list()]
    is_told = bool(checked.left)
    assert is_gone != is_told


def test_a_storage_without_a_fault_holds() -> None:
    checked = examine(Faulty(), effort=LITTLE)
    assert [one for one in checked.points if one.state != "holds"] == []


def test_what_no_time_is_left_for_is_not_tried() -> None:
    class Slow(Faulty):
        def put(self, key: str, data: Any, *, create: bool = False) -> None:
            time.sleep(0.2)
            super().put(key, data, create=create)

    began = time.monotonic()
    checked = examine(Slow(), effort=replace(LITTLE, race_seconds=0.5), seconds=3)
    assert time.monotonic() - began < 3
    assert checked.falls_short == ()
    assert checked["put"].state == "holds"
    reasons = {one.name: one.detail for one in checked.not_tried}
    assert "it took longer than there was time" in reasons.values()
    assert reasons["speed"] == "no time was left"
    assert "whole listings" in reasons
    late = [one for one in checked.not_tried if " time" in one.detail]
    assert all("--seconds" in one.remedy for one in late)


def test_a_short_time_is_enough_for_what_is_not_slow() -> None:
    """Measuring speed leaves time to the points after it, and cleaning takes its share alone."""

    class Distant(Faulty):
        def put(self, key: str, data: Any, *, create: bool = False) -> None:
            time.sleep(0.002)
            super().put(key, data, create=create)

    checked = examine(Distant(), effort=replace(LITTLE, speed_seconds=1.5, listed=300), seconds=7)
    assert checked.not_tried == ()
    assert checked.falls_short == ()
    assert checked.seconds < 7


def test_a_verb_that_hangs_ends_with_the_time() -> None:
    class Hanging(Faulty):
        def get_ranges(self, key: str, ranges: Sequence[Any]) -> list[memoryview]:
            time.sleep(60)
            return []

    store = Hanging()
    began = time.monotonic()
    checked = examine(store, effort=LITTLE, seconds=3)
    assert time.monotonic() - began < 3
    assert checked["range"].detail == "it took longer than there was time"
    assert checked["speed"].state == "not tried"
    assert [*MemoryStore(store.url).list()] == []


@pytest.mark.parametrize("kind", [StoreTimeoutError, StoreUnavailableError])
@pytest.mark.parametrize("verb", ["get", "get_ranges", "put", "list", "delete"])
def test_a_storage_that_fails_for_a_moment_is_not_called_bad(
    verb: str, kind: type[StoreError]
) -> None:
    class Failing(Faulty):
        def fail(self, *_: Any, **__: Any) -> Any:
            raise kind("the server took too long to answer")

    store = Failing()
    setattr(store, verb, store.fail)
    checked = examine(store, effort=LITTLE)
    assert checked.falls_short == ()
    assert any("took too long" in one.detail for one in checked.not_tried)
