"""A saver with a name: what it goes on from, and what an attempt taken for dead can't do."""

from __future__ import annotations

import contextlib
import gc
import json
import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    collect_garbage,
    commit_log,
    delete,
    drop_commit,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, CommitId
from storage_loader.errors import (
    ConfigError,
    FormatError,
    SaverError,
    StoreError,
    VersionNotFoundError,
)
from storage_loader.saver.lease import Lease
from storage_loader.store import MemoryStore
from tests.support.aged import age
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, watch
from tests.support.rows import config, in_batches, make, numbers_in, numbers_of, stored
from tests.support.saved import WIDE, WIDE_ROWS, files, nothing_there, wide
from tests.support.threads import running
from tests.support.waiting import until

NAME = "part-0007"
ROWS = 40  # of a job
BATCH = 5
COMMIT = 10


def job(the_config: DataConfig, **settings: Any) -> list[int]:
    """Save rows 0 to `ROWS`, from where the name's commits end; the rows this attempt saved."""
    with DataSaver(the_config, writer=NAME, commit_every=COMMIT, **settings) as saver:
        first = saver.rows_committed
        for numbers in in_batches(first, ROWS, BATCH):
            saver(make(numbers))
    return list(range(first, ROWS))


# Going on


def test_a_saver_goes_on_after_what_its_name_has_committed(storage: dict[str, str]) -> None:
    the_config = config(storage)
    for start in (0, 7, 9):
        with DataSaver(the_config, writer=NAME) as saver:
            assert (saver.rows_committed, saver.rows_pending) == (start, 0)
            saver(make(range(start, start + 1)))
            saver.commit()
            saver(make(range(start + 1, {0: 7, 7: 9, 9: 12}[start])))
            assert saver.rows_committed == start + 1
    assert saver.rows_committed == 12
    assert stored(the_config) == list(range(12))
    ids = [CommitId.parse(text) for text in Dataset(the_config).version.commits]
    assert [(i.seq, i.writer, i.number) for i in ids if i] == [(n + 1, NAME, n) for n in range(6)]


def test_what_was_stored_without_a_commit_is_never_seen(folder: dict[str, str]) -> None:
    dead = DataSaver(wide(folder), writer=NAME)
    dead(make(range(10), WIDE))
    dead.commit()
    dead(make(range(10, 10 + 3 * WIDE_ROWS), WIDE))
    while ", 4 objects" not in repr(dead):
        time.sleep(0.01)
    with DataSaver(wide(folder), writer=NAME) as saver:
        assert saver.rows_committed == 10
        saver(make(range(10, 20), WIDE))
    assert stored(wide(folder), WIDE) == list(range(20))
    objects = [key for key in files(Catalog(wide(folder)).store, "objects") if key.endswith(".h5")]
    assert len(objects) == 5
    assert len({key.rsplit("-", 1)[0] for key in objects}) == 2  # two attempts, no key in common
    dead.abort()
    assert stored(wide(folder), WIDE) == list(range(20))


def test_names_know_nothing_of_each_other(folder: dict[str, str]) -> None:
    save(config(folder), make([90]))
    for name, number in (("a", 0), ("a-000000", 1), ("A", 2), ("a", 3), ("a-000000", 4)):
        with DataSaver(config(folder), writer=name) as saver:
            assert saver.rows_committed == {3: 1, 4: 1}.get(number, 0)
            saver(make([number]))
    assert stored(config(folder)) == [90, 0, 1, 2, 3, 4]


def test_rows_committed_are_known_once_it_is_open(folder: dict[str, str]) -> None:
    save(config(folder), make(range(3)))
    saver = DataSaver(config(folder), writer=NAME)
    with pytest.raises(SaverError, match=r"'part-0007' .* use `with`, or call open\(\)$"):
        _ = saver.rows_committed
    assert "0 rows committed" in repr(saver)
    assert saver.open() is saver
    assert saver.rows_committed == 0  # the three rows are another writer's
    saver.close()
    assert DataSaver(config(folder)).rows_committed == 0


def test_only_rows_that_readers_see_count(folder: dict[str, str]) -> None:
    with DataSaver(config(folder), writer=NAME) as saver:
        saver(make(range(5)))
    save(config(folder), make([7]), refresh=True)
    with DataSaver(config(folder), writer=NAME) as saver:
        assert saver.rows_committed == 0
        saver(make(range(3)))
    assert stored(config(folder)) == [7, 0, 1, 2]


@pytest.mark.parametrize("rows", [0, 3])
def test_refresh_replaces_once_for_all_attempts(folder: dict[str, str], rows: int) -> None:
    save(config(folder), make([90, 91]))
    with DataSaver(config(folder), writer=NAME, refresh=True) as saver:
        assert saver.rows_committed == 0
        saver(make(range(rows)))
    assert stored(config(folder)) == list(range(rows))
    save(config(folder), make([80]))
    with DataSaver(config(folder), writer=NAME, refresh=True) as saver:
        assert saver.rows_committed == rows
        saver(make([rows]))
    assert stored(config(folder)) == [*range(rows), 80, rows]


def test_a_refresh_that_was_barred_is_done_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(config(memory), make([90]))
    with monkeypatch.context() as broken:
        watch(broken, before=FailAt("put commit", onwards=True))
        with pytest.raises(SaverError), DataSaver(config(memory), writer=NAME, refresh=True) as s:
            s(make([0]))
    with DataSaver(config(memory), writer=NAME, refresh=True) as saver:
        saver(make([1]))
    assert stored(config(memory)) == [1]


def refreshed_and_superseded(
    the_config: DataConfig, monkeypatch: pytest.MonkeyPatch, *, how: str, rows: int
) -> None:
    """A named refresh of `rows` rows, which lost its place long ago to row 70; and all is old."""
    save(the_config, make([90, 91]))
    with DataSaver(the_config, writer=NAME, refresh=True) as saver:
        saver(make(range(rows)))
    if how == "replaced":
        save(the_config, make([70]), refresh=True)
    else:
        drop_commit(the_config, Dataset(the_config).version.commits[0])
        save(the_config, make([70]))
    assert stored(the_config) == [70]
    age(monkeypatch, {i.key: timedelta(days=30) for i in Catalog(the_config).store.list()})


def go_on_appending(the_config: DataConfig) -> None:
    """The job is started again as it was started first: it has refreshed already."""
    with DataSaver(the_config, writer=NAME, refresh=True) as saver:
        assert saver.rows_committed == 0
        saver(make([5]))
    assert stored(the_config) == [70, 5]
    with DataSaver(the_config, writer=NAME, refresh=True) as saver:
        assert saver.rows_committed == 1
    assert stored(the_config) == [70, 5]


@pytest.mark.parametrize("how", ["replaced", "dropped"])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_refresh_is_not_done_again_once_its_commit_was_collected(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch, how: str, rows: int
) -> None:
    the_config = config(storage)
    refreshed_and_superseded(the_config, monkeypatch, how=how, rows=rows)
    for _ in range(2):
        assert collect_garbage(the_config).foreign == ()
    [left] = [entry.num_rows for entry in commit_log(the_config)]
    assert left == 1
    go_on_appending(the_config)
    assert collect_garbage(the_config).foreign == ()
    go_on_with = DataSaver(the_config, writer=NAME, refresh=True).open()
    assert go_on_with.rows_committed == 1
    go_on_with.abort()


def steps_of_a_collection() -> int:
    the_config = config({"storage": "memory://steps-of-a-collection"})
    with pytest.MonkeyPatch.context() as patch:
        refreshed_and_superseded(the_config, patch, how="replaced", rows=3)
        stores = watch(patch)
        ages = {i.key: timedelta(days=30) for i in MemoryStore(the_config.storage).list()}
        stores = age(patch, ages)
        collect_garbage(the_config)
    return len(stores[0].calls)


COLLECTING = steps_of_a_collection()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(COLLECTING))
def test_a_collection_that_is_killed_at_any_step_lets_no_refresh_come_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    the_config = config(memory)
    calls = 0

    def die(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise KeyboardInterrupt  # what nobody catches, as a kill

    with monkeypatch.context() as patch:
        refreshed_and_superseded(the_config, patch, how="replaced", rows=3)
        ages = {i.key: timedelta(days=30) for i in MemoryStore(memory["storage"]).list()}
        age(patch, ages, **{"after" if after else "before": die})
        with contextlib.suppress(KeyboardInterrupt):
            collect_garbage(the_config)
    go_on_appending(the_config)


def test_commits_whose_writer_cannot_be_marked_stay_until_the_next_collection(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full: what can go goes, so that there is room next time."""
    the_config = config(folder)
    save(the_config, make([1]))
    with monkeypatch.context() as patch:
        refreshed_and_superseded(the_config, patch, how="replaced", rows=3)
    [kept] = [e.id for e in commit_log(the_config) if e.writer == NAME]
    gone = [e.id for e in commit_log(the_config) if e.writer != NAME and not e.is_live]
    ages = {i.key: timedelta(days=30) for i in Catalog(the_config).store.list()}
    with monkeypatch.context() as patch:
        age(patch, ages, before=FailAt("put claim", onwards=True))
        collected = collect_garbage(the_config)
    removed = {one.key.rsplit("/", 1)[-1] for one in collected.garbage}
    assert removed & {f"{i}.json" for i in (kept, *gone)} == {f"{i}.json" for i in gone}
    assert f"the commits of writer '{NAME}' stay for now: put " in caplog.text
    assert kept in [e.id for e in commit_log(the_config)]
    assert stored(the_config) == [70]
    age(monkeypatch, ages)
    collect_garbage(the_config)
    assert [e.num_rows for e in commit_log(the_config)] == [1]
    go_on_appending(the_config)


@pytest.mark.parametrize(
    "name", ["", ".a", "a/b", "..", "a b", "é", "a\n", "-a", "x" * 65, 7, b"a"]
)
def test_names_that_are_none(folder: dict[str, str], name: Any) -> None:
    with pytest.raises(ConfigError, match=f"^writer {re.escape(repr(name))}: 1 to 64 ASCII"):
        DataSaver(config(folder), writer=name)
    with DataSaver(config(folder), writer="x" * 64) as saver:
        saver(make([1]))
    assert stored(config(folder)) == [1]


# An attempt that was taken for dead


def test_of_two_attempts_at_once_the_later_commit_fails(storage: dict[str, str]) -> None:
    zombie = DataSaver(config(storage), writer=NAME).open()
    zombie(make(range(100, 105)))
    job(config(storage))
    message = (
        r"^saving to dataset 'rows' failed, 5 rows were not committed \(0 were before\), "
        r"save them with another DataSaver: another "
        r"attempt saves under the writer name 'part-0007': commit 0 is not this saver's; see that "
        r"one job goes by a name, and make another saver, which goes on after the rows that are "
        r"committed$"
    )
    with pytest.raises(SaverError, match=message):
        zombie.commit()
    assert (zombie.rows_committed, zombie.rows_pending) == (0, 5)
    with pytest.raises(SaverError, match=message):
        zombie(make([106]))
    with pytest.raises(SaverError, match=message):
        zombie.close()
    assert stored(config(storage)) == list(range(ROWS))


def test_a_commit_that_was_counted_stays_and_the_other_attempt_learns_it(
    folder: dict[str, str],
) -> None:
    first = DataSaver(config(folder), writer=NAME).open()
    second = DataSaver(config(folder), writer=NAME).open()
    first(make(range(5)))
    first.commit()
    second(make(range(3)))
    with pytest.raises(SaverError, match="another attempt"):
        second.commit()
    second.abort()
    first(make(range(5, 6)))
    first.close()
    assert stored(config(folder)) == list(range(6))
    assert job(config(folder)) == list(range(6, ROWS))
    assert stored(config(folder)) == list(range(ROWS))


def steps_of_a_job() -> int:
    """Calls of the store in the life of an attempt that goes on after another one."""
    the_config = config({"storage": "memory://steps-of-a-job"})
    began(the_config)
    with pytest.MonkeyPatch.context() as patch:
        stores = watch(patch)
        job(the_config, num_worker_threads=1)
    return len(stores[0].calls)


def began(the_config: DataConfig) -> None:
    """Ten rows of the job are there, of an attempt that has ended."""
    with DataSaver(the_config, writer=NAME) as saver:
        saver(make(range(10)))


STEPS = steps_of_a_job()


class AtStep:
    """A hook that does `work` at one call; the calls of the work itself are not counted."""

    def __init__(self, step: int, work: Callable[[], None]) -> None:
        self._step = step
        self._work = work
        self._calls = 0
        self._working = False

    def __call__(self, call: Call) -> None:
        if self._working:
            return
        self._calls += 1
        if self._calls == self._step + 1:
            self._working = True
            try:
                self._work()
            finally:
                self._working = False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(STEPS))
def test_another_attempt_at_any_step_of_one(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    """One stands still at a step, another takes over and ends, the first goes on: whichever
    commits there are, each row is there once, and what was said to be committed stays."""
    the_config = config(memory)
    began(the_config)
    seen: list[list[int]] = []

    def take_over() -> None:
        seen.append(stored(the_config))
        assert job(the_config) == list(range(len(seen[0]), ROWS))
        seen.append(stored(the_config))

    hook = AtStep(step, take_over)
    with monkeypatch.context() as patch:
        watch(patch, **{"after" if after else "before": hook})
        failure = None
        try:
            job(the_config, num_worker_threads=1)
        except SaverError as error:
            failure = str(error)
    # It saw the other's commits when it opened, or had nothing left to commit, or is told.
    assert failure is None or "another attempt saves under the writer name" in failure
    assert failure is not None or len(seen[0]) in (10, ROWS)
    assert seen[0] == list(range(len(seen[0])))
    assert seen[1] == list(range(ROWS))
    assert stored(the_config) == list(range(ROWS))
    assert job(the_config) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(STEPS))
def test_an_attempt_that_ends_at_any_step(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    the_config = config(memory)
    began(the_config)
    calls = 0

    def die(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise Injected("the machine is on fire")

    with monkeypatch.context() as patch:
        watch(patch, **{"after" if after else "before": die})
        with pytest.raises((SaverError, StoreError)):
            job(the_config, num_worker_threads=1)
    there = stored(the_config)
    assert there == list(range(len(there)))
    assert len(there) % COMMIT == 0
    assert job(the_config) == list(range(len(there), ROWS))
    assert stored(the_config) == list(range(ROWS))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["open", "save", "commit"])), max_size=25)
)
def test_any_steps_of_three_attempts(steps: list[tuple[int, str]]) -> None:
    """Of any that are open at once, the rows are what a single one would have saved so far."""
    the_config = config({"storage": f"memory://three-{time.monotonic_ns()}"})
    savers: dict[int, DataSaver] = {}
    at: dict[int, int] = {}
    committed = 0
    for number, step in [*steps, (3, "open"), (3, "save"), (3, "commit")]:
        if step == "open":
            if number in savers:
                savers[number].abort()
            savers[number] = DataSaver(the_config, writer=NAME, num_worker_threads=1).open()
            at[number] = savers[number].rows_committed
            assert at[number] == committed
        elif number in savers and step == "save":
            try:
                savers[number](make(range(at[number], at[number] + 2)))
                at[number] += 2
            except SaverError:
                savers.pop(number).abort()
        elif number in savers:
            try:
                savers[number].commit()
                committed = max(committed, savers[number].rows_committed)
            except SaverError:
                savers.pop(number).abort()
        if committed:
            assert stored(the_config) == list(range(committed))
        else:
            assert nothing_there(the_config)
    for saver in savers.values():
        saver.abort()
    assert stored(the_config) == list(range(committed))


def test_a_version_that_names_a_barrier_is_gone(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit of a name was dropped; what bars its return is no version of 0 rows."""
    with DataSaver(config(memory), writer=NAME) as saver:
        saver(make(range(3)))
    version = Dataset(config(memory)).version
    store = MemoryStore(memory["storage"])
    store.delete(files(store, "metadata"))
    with DataSaver(config(memory), writer=NAME) as saver:
        assert saver.rows_committed == 0
        saver(make(range(5)))
    assert stored(config(memory)) == list(range(5))
    for named in (version, list(version.commits), version.hash):
        with pytest.raises(VersionNotFoundError):
            Dataset(config(memory), version=named).open()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"format":2,"commit":"000000000001-part-0007-000000","attempt":"a"}',
        b'{"format":1,"commit":"000000000001-part-0008-000000","attempt":"a"}',
        b'{"format":1,"commit":"000000000001-part-0007-000001","attempt":"a"}',
        b'{"format":1,"commit":"../../000000000001-part-0007-000000","attempt":"a"}',
        b'{"format":1,"commit":7,"attempt":"a"}',
        b'{"format":1,"attempt":"a"}',
    ],
)
def test_a_claim_that_is_none_is_refused(memory: dict[str, str], body: bytes) -> None:
    with DataSaver(config(memory), writer=NAME) as saver:
        saver(make(range(3)))
    store = MemoryStore(memory["storage"])
    [key] = [key for key in files(store) if key.endswith(".claim")]
    store.put(key, body)
    before = files(store)
    with pytest.raises(FormatError, match=re.escape(key)):
        DataSaver(config(memory), writer=NAME).open()
    assert files(store) == before
    assert stored(config(memory)) == [0, 1, 2]


def test_a_random_name_costs_few_requests_and_claims_nothing(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is of a new dataset only: none may lie in its folder."""
    stores = watch(monkeypatch)
    save(config(memory), make(range(3)))
    assert stores[0].kinds() == [
        "get dataset", "list", "put object", "head object",
        "get dataset", "put dataset", "get dataset", "list metadata", "put commit",
    ]  # fmt: skip
    save(config(memory), make(range(3)))
    assert stores[1].kinds() == [
        "get dataset", "put object", "head object", "get dataset", "list metadata", "put commit",
    ]  # fmt: skip


# commit_every


def test_rows_are_committed_at_the_ends_of_batches(folder: dict[str, str]) -> None:
    seen = []
    with DataSaver(config(folder), commit_every=10) as saver:
        for numbers in in_batches(0, 34, 4):
            saver(make(numbers))
            seen.append((saver.rows_committed, saver.rows_pending))
        saver(make([]))
        saver(make(range(34, 74)))
        assert (saver.rows_committed, saver.rows_pending) == (74, 0)
        saver(make([74]))
    whole = [(0, 4), (0, 8), (12, 0), (12, 4), (12, 8), (24, 0), (24, 4), (24, 8), (34, 0)]
    assert seen == whole
    assert stored(config(folder)) == list(range(75))
    assert len(Dataset(config(folder)).version.commits) == 5


def test_seconds_count_from_the_first_row_without_a_commit(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("storage_loader.saver.saver.monotonic", lambda: now)
    with DataSaver(config(folder), commit_every=timedelta(minutes=10)) as saver:
        now += 900  # nothing pends
        saver(make([]))
        for number, wait, committed in [(0, 0, 0), (1, 599, 0), (2, 1, 3), (3, 5000, 3)]:
            now += wait
            saver(make([number]))
            assert saver.rows_committed == committed
        now += 600
        saver(make([]))  # no row, but a moment to look
        assert (saver.rows_committed, saver.rows_pending) == (4, 0)
    assert stored(config(folder)) == [0, 1, 2, 3]
    assert len(Dataset(config(folder)).version.commits) == 2


@pytest.mark.parametrize(
    "value", [0, -1, 1.5, True, "10 min", timedelta(0), timedelta(seconds=-1)], ids=repr
)
def test_a_commit_every_that_is_none(folder: dict[str, str], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^commit_every .* rows, at least 1, or a positive"):
        DataSaver(config(folder), commit_every=value)


def test_a_commit_that_was_due_and_fails_is_the_callers_error(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("put commit", 1))
    saver = DataSaver(config(memory), commit_every=2)
    saver(make([0, 1]))
    with pytest.raises(SaverError, match=r"3 rows were not committed \(2 were before\)"):
        saver(make([2, 3, 4]))
    with pytest.raises(SaverError):
        saver.close()
    assert stored(config(memory)) == [0, 1]


# Objects that are gone


@pytest.mark.parametrize("objects", [1, 10, 11, 15])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_objects_that_are_gone_are_never_published(
    storage: dict[str, str], objects: int, how: str
) -> None:
    the_config = wide(storage)
    save(the_config, make([90], WIDE))
    store = Catalog(the_config).store
    saver = DataSaver(the_config, writer=NAME)
    saver(make(range(objects * WIDE_ROWS), WIDE))
    while f", {objects} objects" not in repr(saver):
        time.sleep(0.01)
    lost = [key for key in files(store, "objects") if f"/{NAME}/" in key][-1]
    store.delete([lost])
    if how == "cut":
        store.put(lost, b"half of it")
    with pytest.raises(SaverError, match=rf"1 of {objects} objects .*{re.escape(lost)}; something"):
        saver.commit()
    with pytest.raises(SaverError):
        saver.close()
    assert stored(the_config, WIDE) == [90]
    assert [key for key in files(store, "objects") if f"/{NAME}/" in key] == []
    with DataSaver(the_config, writer=NAME) as again:
        again(make(range(objects * WIDE_ROWS), WIDE))
    assert stored(the_config, WIDE) == [90, *range(objects * WIDE_ROWS)]


# Leases


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are renewed every 50 ms."""
    monkeypatch.setattr("storage_loader.saver.lease.RENEW_SECONDS", 0.05)


def puts_of_leases(store: WatchedStore) -> int:
    return store.kinds().count("put lease")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("name", [NAME, None])
def test_a_lease_is_kept_while_objects_have_no_commit(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, end: str, name: str | None
) -> None:
    stores = watch(monkeypatch)
    saver = DataSaver(wide(memory), writer=name).open()
    [store] = stores
    saver(make(range(WIDE_ROWS - 1), WIDE))
    time.sleep(0.2)
    assert puts_of_leases(store) == 0  # no object yet
    saver(make([WIDE_ROWS - 1], WIDE))
    until(lambda: puts_of_leases(store) >= 3)  # though no batch comes
    [lease] = [key for key in files(store.inner) if key.endswith(".lease")]
    [first] = [key for key in files(store.inner) if key.endswith(".h5")]
    assert first == lease.replace(".lease", "-000000.h5")
    assert bytes(store.inner.get(lease)) == b"{}"
    saver.commit()
    settled = puts_of_leases(store) + 1  # one may be on its way
    time.sleep(0.3)
    assert puts_of_leases(store) <= settled
    saver(make(range(WIDE_ROWS, 2 * WIDE_ROWS), WIDE))
    until(lambda: puts_of_leases(store) >= settled + 3)
    getattr(saver, end)()
    assert [key for key in files(store.inner) if key.endswith(".lease")] == []
    assert running("save") == []


def test_most_savers_never_write_a_lease(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    with DataSaver(wide(memory)) as saver:
        saver(make(range(3 * WIDE_ROWS), WIDE))
        assert "storage_loader-save-lease" in running("save")
    assert not [kind for kind in stores[0].kinds() if "lease" in kind]
    assert "delete" not in {kind.split()[0] for kind in stores[0].kinds()}


@pytest.mark.usefixtures("quick")
def test_a_lease_that_is_not_renewed_is_logged_and_tried_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stores = watch(monkeypatch, before=FailAt("put lease", 1))
    with DataSaver(wide(memory)) as saver:
        saver(make(range(WIDE_ROWS), WIDE))
        until(lambda: puts_of_leases(stores[0]) >= 3)
    [record] = caplog.records
    assert (record.name, record.levelname) == ("storage_loader.saver.lease", "WARNING")
    assert "was not renewed, it tries again: put " in record.getMessage()
    assert stored(wide(memory), WIDE) == list(range(WIDE_ROWS))


@pytest.mark.usefixtures("quick")
def test_a_lease_that_is_not_deleted_is_logged(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stores = watch(monkeypatch, before=FailAt("delete lease"))
    with DataSaver(wide(memory)) as saver:
        saver(make(range(WIDE_ROWS), WIDE))
        until(lambda: puts_of_leases(stores[0]) >= 1)
    assert "the lease of an ended saver remains: delete " in caplog.text
    assert stored(wide(memory), WIDE) == list(range(WIDE_ROWS))


def test_a_lease_is_put_after_ten_minutes_and_then_every_ten_minutes(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own."""
    now = 0.0
    waits: list[float | None] = []
    slept = threading.Event()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now

    class Told(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.append(timeout)
            begun = now
            while True:
                slept.set()
                told = super().get()
                if told != "the time":
                    return told
                if timeout is not None and now >= begun + timeout:
                    raise queue.Empty

    monkeypatch.setattr("storage_loader.saver.lease.time", Clock)
    store = WatchedStore(MemoryStore(memory["storage"]))
    lease = Lease(store, "objects/w/a.lease")
    lease._told = Told()
    lease.hold()
    for later, puts in [(0, 0), (599, 0), (600, 1), (1199, 1), (1200, 2)]:
        assert slept.wait(60)
        slept.clear()
        now = later
        lease._told.put("the time")  # type: ignore[arg-type]
        assert slept.wait(60)
        assert puts_of_leases(store) == puts
    assert waits[:2] == [None, 600]
    lease.end()
    assert list(store.inner.list()) == []


@pytest.mark.usefixtures("quick")
def test_a_forgotten_saver_lets_its_lease_grow_old(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    saver = DataSaver(wide(memory))
    saver(make(range(WIDE_ROWS), WIDE))
    until(lambda: puts_of_leases(stores[0]) >= 2)
    with pytest.warns(ResourceWarning, match="was forgotten"):
        del saver
        gc.collect()
    until(lambda: running("save") == [])


# save


def test_save_shows_progress(memory: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    save(config(memory), make(range(3)), progress=True)
    assert "save rows" in capsys.readouterr().err
    with DataSaver(config(memory), writer=NAME, progress=True) as saver:
        saver(make(range(5)))
    with DataSaver(config(memory), writer=NAME, progress=True) as saver:
        saver(make(range(5, 7)))
    assert "7 rows" in capsys.readouterr().err


# order="writer"


def parts_of(
    the_config: DataConfig, turns: str, *, commits: str = "", killed: str = ""
) -> DataConfig:
    """Savers a, b and c, each of ten rows, saved in these turns.

    `commits`: after their turns these commit; `killed`: these are started again half way.
    """
    savers: dict[str, DataSaver] = {}
    done = dict.fromkeys("abc", 0)
    for name in turns:
        if name not in savers:
            savers[name] = DataSaver(the_config, writer=f"part-{name}", order="writer").open()
        first = savers[name].rows_committed + savers[name].rows_pending
        savers[name](make(range(100 * ord(name) + first, 100 * ord(name) + first + 5)))
        done[name] += 1
        if name in commits:
            savers[name].commit()
        if name in killed and done[name] == 1:
            savers.pop(name).commit()
    for saver in savers.values():
        saver.close()
    return the_config


IN_ORDER = [100 * ord(name) + row for name in "abc" for row in range(10)]


@pytest.mark.parametrize(
    ("turns", "how"),
    [
        ("aabbcc", {}),
        ("cbacba", {}),
        ("cbacba", {"commits": "abc"}),
        ("bccaab", {"commits": "c", "killed": "b"}),
    ],
)
def test_order_by_writer_is_the_same_whoever_commits_first(
    storage: dict[str, str], turns: str, how: dict[str, str]
) -> None:
    the_config = parts_of(config(storage), turns, **how)
    assert stored(the_config) == IN_ORDER
    assert numbers_in(DataLoader(the_config, 7, shuffle=True, block=4, window=12)) == numbers_in(
        DataLoader(
            parts_of(config({"storage": "memory://order-writer"}, name="again"), "abcabc"),
            7, shuffle=True, block=4, window=12,
        )
    )  # fmt: skip
    delete(config({"storage": "memory://order-writer"}, name="again"))
    assert verify_dataset(the_config).problems == ()
    assert verify_dataset(the_config).version == Dataset(the_config).version


def test_versions_and_states_of_an_order_by_writer_stay(folder: dict[str, str]) -> None:
    the_config = parts_of(config(folder), "cb")
    loader = DataLoader(the_config, 4)
    batches = iter(loader)
    next(batches)
    before, state, old = stored(the_config), loader.state_dict(), loader.version
    parts_of(the_config, "a")  # goes before what there is
    assert stored(the_config) == [*make(range(9700, 9705))["row"], *before]
    assert numbers_of(Dataset(the_config, version=old)[:]) == before
    for version in (old.hash, list(old.commits)):
        assert numbers_of(Dataset(the_config, version=version)[:]) == before
    resumed = DataLoader(the_config, 4)
    resumed.load_state_dict(state)
    assert numbers_in(resumed) == before[4:]
    log = commit_log(the_config)
    newest = Dataset(the_config).version
    assert [one.version for one in log if one.writer == "part-a"] == [newest]
    for one in log:
        assert one.version is not None
        seen = numbers_of(Dataset(the_config, version=one.version.hash)[:])
        assert seen == numbers_of(Dataset(the_config, version=one.id)[:])
    collect_garbage(the_config, grace=timedelta(0), keep=timedelta(0))
    assert stored(the_config)[5:] == before


def test_a_refresh_and_a_drop_keep_the_order_by_writer(folder: dict[str, str]) -> None:
    the_config = parts_of(config(folder), "cba")
    with DataSaver(the_config, writer="later", refresh=True) as saver:
        saver(make(range(3)))
    with DataSaver(the_config, writer="Earlier") as saver:
        saver(make(range(3, 6)))
    assert stored(the_config) == [3, 4, 5, 0, 1, 2]
    [dropped] = [one.id for one in commit_log(the_config) if one.writer == "Earlier"]
    drop_commit(the_config, dropped)
    assert stored(the_config) == [0, 1, 2]


def test_the_order_is_decided_when_the_dataset_is_made(folder: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="give this one a name, writer='part-0007'"):
        DataSaver(config(folder), order="writer")
    with pytest.raises(ConfigError, match="order 'seq': 'commit' or 'writer'"):
        DataSaver(config(folder), order="seq")  # type: ignore[arg-type]
    parts_of(config(folder), "ab")
    with pytest.raises(ConfigError, match="each saver needs a name, DataSaver"):
        save(config(folder), make([1]))
    with pytest.raises(ConfigError, match="was made with order='writer', which stays"):
        DataSaver(config(folder), writer="x", order="commit").open()
    with DataSaver(config(folder), writer="part-c") as saver:  # knows it from the dataset
        saver(make([1]))
    assert stored(config(folder))[-1] == 1
    other = config(folder, name="other")
    save(other, make([1]))
    with pytest.raises(ConfigError, match="was made with order='commit', which stays"):
        DataSaver(other, writer="x", order="writer").open()


def test_of_two_that_make_a_dataset_the_first_decides_the_order(folder: dict[str, str]) -> None:
    named = DataSaver(config(folder), writer="a", order="writer").open()
    unnamed, late = DataSaver(config(folder)).open(), DataSaver(config(folder), order="commit")
    late.open()
    named(make([0]))
    unnamed(make([1]))
    late(make([2]))
    named.close()
    with pytest.raises(SaverError, match="each saver needs a name"):
        unnamed.close()
    with pytest.raises(SaverError, match="was made with order='writer', which stays"):
        late.close()
    assert stored(config(folder)) == [0]


def test_only_a_dataset_ordered_by_writer_says_so(folder: dict[str, str]) -> None:
    parts_of(config(folder), "a")
    save(config(folder, name="other"), make([1]))
    said = [json.loads(p.read_bytes()) for p in Path(folder["storage"]).rglob("dataset.json")]
    assert {one["name"]: one.get("order") for one in said} == {"rows": "writer", "other": None}
