"""A listing that takes several calls is of no one moment; what readers see of a dataset is."""

from __future__ import annotations

import functools
import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import (
    DataConfig,
    DataSaver,
    Dataset,
    collect_garbage,
    commit_log,
    drop_commit,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, catalog
from storage_loader.catalog.catalog import AT_ONCE
from storage_loader.errors import StoreError
from storage_loader.store import MemoryStore, ObjectInfo, Store, open_store
from tests.support.faulty import WatchedStore
from tests.support.rows import config, make, numbers_of, stored

DAY = timedelta(days=1)


@functools.cache
def hashed(seed: int, key: str) -> float:
    return random.Random(f"{seed}{key}").random()


class PagedStore(WatchedStore):
    """Lists `page` keys at a call, in an order of its own; `between` is done before each call.

    In the order of a hash, as a folder, or of the keys, as S3.
    """

    def __init__(self, inner: Store, page: int, seed: int | None = None) -> None:
        super().__init__(inner)
        self.page = page
        self.between: Callable[[], None] = lambda: None
        self.listings = 0
        self._seed = seed

    def _place(self, info: ObjectInfo) -> tuple[float, str]:
        return 0.0 if self._seed is None else hashed(self._seed, info.key), info.key

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.listings += prefix.endswith("/metadata")
        place = (-1.0, "")
        while True:
            self.between()
            left = [i for i in super().list(prefix) if self._place(i) > place]
            page = sorted(left, key=self._place)[: self.page]
            if not page:
                return
            yield from page
            place = self._place(page[-1])


def changed(the_config: DataConfig, kind: str, number: int) -> None:
    if kind in ("append", "refresh"):
        save(the_config, make([number]), refresh=kind == "refresh")
    elif kind == "drop" and Dataset(the_config).version.commits:
        drop_commit(the_config, Dataset(the_config).version.commits[0])
    elif kind == "collect":
        collect_garbage(the_config, keep=timedelta(0), grace=DAY)


def in_new_memory() -> tuple[DataConfig, MemoryStore]:
    the_config = config({"storage": f"memory://{uuid.uuid4().hex}"})
    return the_config, MemoryStore(the_config.storage)


def put_all(store: MemoryStore, objects: Mapping[str, bytes]) -> None:
    """Make these all that there is."""
    store.delete([info.key for info in store.list() if info.key not in objects])
    for key, data in objects.items():
        store.put(key, data)


@functools.cache
def after(changes: tuple[str, ...]) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """All objects after these changes of a new dataset, and its live commits.

    They are the same whoever lists meanwhile, and dearer to make than to put there.
    """
    the_config, store = in_new_memory()
    if changes:
        put_all(store, after(changes[:-1])[0])
        changed(the_config, changes[-1], len(changes) - 1)
    commits = Dataset(the_config).version.commits if changes else ()
    return {info.key: bytes(store.get(info.key)) for info in store.list()}, commits


class History:
    """A dataset that a publisher changes while it is listed: what it was after each change.

    `is_alone`: nobody else changes it.
    """

    def __init__(self, changes: Sequence[str], *, is_alone: bool = True) -> None:
        self.config, self.plain = in_new_memory()
        self._changes = iter(changes)
        self._is_alone = True
        self._done: tuple[str, ...] = ()
        self.seen: list[tuple[str, ...]] = []  # live commits after each change
        for change in ("append", "append", "append"):
            self._change(change)
        self._is_alone = is_alone

    def _change(self, kind: str) -> None:
        self._done += (kind,)
        if self._is_alone:
            objects, commits = after(self._done)
            put_all(self.plain, objects)
        else:
            changed(self.config, kind, len(self._done) - 1)
            commits = Dataset(self.config).version.commits
        self.seen.append(commits)

    def go_on(self) -> None:
        for change in itertools.islice(self._changes, 1):
            self._change(change)

    def read(
        self, store: PagedStore, plan: Sequence[int], read: Callable[[DataConfig], Any]
    ) -> Any:
        """What `read` gives while a change happens before each of these calls of a listing."""
        calls = itertools.count()
        due = set(plan)

        def between() -> None:
            if next(calls) in due:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(catalog, "open_store", open_store)
                    self.go_on()

        store.between = between
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "open_store", lambda _: store)
            patch.setattr(catalog, "AT_ONCE", store.page)
            return read(self.config)


def opened(the_config: DataConfig) -> tuple[str, ...]:
    return Dataset(the_config).version.commits


def logged(the_config: DataConfig) -> tuple[str, ...]:
    return tuple(entry.id for entry in commit_log(the_config) if entry.is_live)


def verified(the_config: DataConfig) -> tuple[str, ...]:
    return verify_dataset(the_config).version.commits


READS = {"open": opened, "log": logged, "verify": verified}
CHANGES = st.lists(
    st.sampled_from(["append", "refresh", "append", "drop", "collect"]), min_size=2, max_size=6
)


@pytest.mark.parametrize("page", [1, 2])
@pytest.mark.parametrize("read", READS)
def test_an_append_a_refresh_and_an_append_between_any_calls(page: int, read: str) -> None:
    """As one saw it in a folder: the last append beside the old rows, not the refresh between."""
    plans = list(itertools.combinations(range(7), 3))
    for seed, plan in enumerate(plans * 3):
        history = History(["append", "refresh", "append"])
        store = PagedStore(history.plain, page, seed)
        assert history.read(store, plan, READS[read]) in history.seen, (seed, plan)


@settings(max_examples=200)
@given(
    CHANGES,
    st.lists(st.integers(0, 20), unique=True, max_size=6),
    st.integers(1, 4),
    st.none() | st.integers(0, 2**16),
    st.sampled_from([opened, logged]),
)
def test_any_changes_between_any_calls(
    changes: list[str], plan: list[int], page: int, seed: int | None, read: Callable[..., Any]
) -> None:
    history = History(changes)
    assert history.read(PagedStore(history.plain, page, seed), plan, read) in history.seen


@given(
    CHANGES,
    st.lists(st.integers(0, 20), unique=True, max_size=6),
    st.integers(1, 4),
    st.none() | st.integers(0, 2**16),
)
def test_a_collection_that_lists_in_parts_takes_nothing_that_is_needed(
    changes: list[str], plan: list[int], page: int, seed: int | None
) -> None:
    history = History(changes, is_alone=False)

    def collect(the_config: DataConfig) -> None:
        collect_garbage(the_config, keep=timedelta(0), grace=DAY)

    history.read(PagedStore(history.plain, page, seed), plan, collect)
    assert Dataset(history.config).version.commits == history.seen[-1]
    assert verify_dataset(history.config).problems == ()


@given(
    st.lists(st.integers(0, 20), unique=True, max_size=6),
    st.integers(1, 4),
    st.integers(0, 2**16),
)
def test_a_refresh_that_lists_in_parts_leaves_none_of_what_it_has_seen(
    plan: list[int], page: int, seed: int
) -> None:
    """Of what happens meanwhile the appends survive that it raced with; of two refreshes one."""
    history = History(["append", "refresh", "append"], is_alone=False)
    store = PagedStore(history.plain, page, seed)
    history.read(store, plan, lambda it: save(it, make([99]), refresh=True))
    rows = stored(history.config)
    assert set(rows) <= {3, 4, 5, 99}  # never one of those before
    assert 99 in rows or 4 in rows
    assert 3 not in rows or 4 not in rows
    with DataSaver(history.config, refresh=True) as saver:
        saver(make([100]))
    assert stored(history.config) == [100]


def test_more_commits_than_one_call_lists(memory: dict[str, str]) -> None:
    the_config = config(memory)
    with DataSaver(the_config) as saver:
        for number in range(AT_ONCE + 20):
            saver(make([number]))
            saver.commit()
    calls = itertools.count()

    def between() -> None:
        if next(calls) == 1:
            save(the_config, make([1000]), refresh=True)
            save(the_config, make([1001]))

    for seed in range(20):
        before = stored(the_config)
        store = PagedStore(MemoryStore(memory["storage"]), AT_ONCE // 2, seed)
        calls = itertools.count()
        store.between = between
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "open_store", lambda _, one=store: one)
            dataset = Dataset(the_config)
            dataset.open()
        assert store.listings >= 2
        assert numbers_of(dataset[:]) in (before, [1000], [1000, 1001])
        assert stored(the_config) == [1000, 1001]


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1])
def test_few_commits_are_listed_once(memory: dict[str, str], count: int) -> None:
    the_config = config(memory)
    with DataSaver(the_config) as saver:
        for number in range(count):
            saver(make([number]))
            saver.commit()
    store = PagedStore(MemoryStore(memory["storage"]), 1000)
    version = Catalog(the_config, store).snapshot().version
    assert store.listings == (1 if count <= AT_ONCE else 2)
    store.listings = 0
    Catalog(the_config, store).snapshot(version)  # what is named needs to be there, no more
    assert store.listings == 1


def test_a_store_that_lists_something_new_each_time_is_left_at_last(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(memory)
    for number in range(3):
        save(the_config, make([number]))
    plain = MemoryStore(memory["storage"])
    [first, *_, last] = sorted(i.key for i in plain.list(f"{the_config.dataset_prefix}/metadata"))
    store = PagedStore(plain, 1)
    writers = itertools.count()

    def between() -> None:
        name = first.replace("-", f"-{next(writers)}", 1)
        plain.put(name, bytes(plain.get(last)).replace(b"-000000.h5", b"-000009.h5"))

    store.between = between
    monkeypatch.setattr(catalog, "AT_ONCE", 1)
    monkeypatch.setattr(catalog, "open_store", lambda _: store)
    store.page = 1000
    with pytest.raises(StoreError, match=r"100 listings in turn .* see what else writes there"):
        Catalog(the_config, store).commit_ids()
    assert store.listings == 101
