"""What was published: the log, versions by its entries, and dropping one commit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    Version,
    collect_garbage,
    commit_log,
    drop_commit,
    save,
)
from storage_loader.catalog import Catalog, Commit, CommitId, live_commits
from storage_loader.catalog.catalog import StoredCommit
from storage_loader.catalog.gc import plan
from storage_loader.catalog.live import LiveCommits, State, states
from storage_loader.catalog.named import commits_of
from storage_loader.catalog.snapshot import Versions
from storage_loader.errors import DatasetNotFoundError, VersionNotFoundError
from storage_loader.schema import Schema
from storage_loader.store import ObjectInfo, open_store
from tests.support.aged import Ages, age
from tests.support.faulty import Call, Injected
from tests.support.rows import ATTRIBUTES, config, make, stored
from tests.support.scale import scaled

HASH = Schema(ATTRIBUTES).hash
OLD = timedelta(days=30)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

Commits = dict[CommitId, Commit]

IDS = [CommitId(seq, writer, number) for seq in (1, 2, 3) for writer in "ab" for number in (0, 1)]


Replaced = dict[CommitId, set[CommitId]]
HISTORIES = st.dictionaries(st.sampled_from(IDS), st.sets(st.sampled_from(IDS)), max_size=8)


@settings(max_examples=scaled(1000))
@given(HISTORIES)
def test_states_are_the_live_commits_after_each(replaces: Replaced) -> None:
    """Commits that are gone count as if they were there; two of a writer's may have one number."""
    commits = {i: Commit(HASH, (), tuple(others)) for i, others in replaces.items()}
    named = {i for others in replaces.values() for i in others}
    known = {**{i: Commit(HASH) for i in named}, **commits}
    expected = []
    for i in sorted(commits):
        live = live_commits({j: known[j] for j in known if j <= i})
        before = live_commits({j: known[j] for j in known if j < i})
        expected.append(State(i, live, sorted(set(before) - set(live))))
    found = [State(s.after, s.live, sorted(s.ended)) for s in states(commits)]
    assert found == expected


@settings(max_examples=scaled(1000))
@given(HISTORIES.filter(bool), st.data())
def test_commits_that_come_and_go_in_any_order(replaces: Replaced, data: st.DataObject) -> None:
    """What is live is what `live_commits` says of those that are there; one is taken only where
    that is then the same."""
    commits = {i: Commit(HASH, (), tuple(others)) for i, others in replaces.items()}
    live = LiveCommits(commits)
    there: dict[CommitId, Commit] = {}
    for commit_id in data.draw(st.lists(st.sampled_from(sorted(commits)), max_size=12)):
        before = live_commits(there)
        if commit_id not in there:
            there[commit_id] = commits[commit_id]
            ended = live.put(commit_id)
            assert sorted(ended) == [i for i in before if i not in live_commits(there)]
        else:
            without = {i: there[i] for i in there if i != commit_id}
            may_go = live_commits(without) == before
            assert live.take(commit_id) == may_go
            there = without if may_go else there
        assert live.now == live_commits(there)


@given(st.lists(st.lists(st.sampled_from(IDS), unique=True).map(sorted), max_size=8))
def test_versions_one_after_another_are_those_of_each(lists: list[list[CommitId]]) -> None:
    commits = {i: Commit(HASH, digest=place) for place, i in enumerate(IDS[1:])}  # one is gone
    versions = Versions(commits)
    for ids in lists:
        alone = Version.of({i: commits[i] for i in ids}) if set(ids) <= set(commits) else None
        assert versions.of(ids) == alone
        assert versions.hash_of(ids) == (alone and alone.hash)


def of_ids(count: int, names: Callable[[int, list[CommitId]], Iterable[CommitId]]) -> Commits:
    """So many commits of one writer; `names`: what the n-th replaces."""
    ids = [CommitId(seq, "w", seq) for seq in range(1, count + 2)]
    return {i: Commit(HASH, (), tuple(names(n, ids))) for n, i in enumerate(ids[:count])}


def dropped(count: int) -> Commits:
    """Every commit is dropped by the next, which replaces itself, too."""
    return of_ids(count, lambda n, ids: ids[n - 1 : n + 1] if n % 2 else [])


MANY: dict[str, Commits] = {
    "appended": of_ids(5000, lambda n, ids: ()),
    "refreshed": of_ids(700, lambda n, ids: ids[:n]),
    "dropped": dropped(5000),
    "each replaces the next": of_ids(2000, lambda n, ids: ids[n + 1 : n + 2]),
    "each shares one with the next": of_ids(200, lambda n, ids: ids[n : n + 2]),
    "one replaces many that are gone": {
        CommitId(1, "w", 0): Commit(HASH, (), tuple(CommitId(n, "x", n) for n in range(2, 20_000)))
    },
    "many ask again, and one holds much": {
        CommitId(500, "w", 0): Commit(HASH, (), tuple(CommitId(n, "x", n) for n in range(50_000))),
        **{CommitId(n, "w", n): Commit(HASH, (), (CommitId(1, "z", 0),)) for n in range(501, 1500)},
    },
    "one number": {CommitId(seq, "w", 0): Commit(HASH) for seq in range(1, 3000)},
}


@pytest.mark.parametrize("commits", MANY.values(), ids=MANY)
def test_a_long_history_is_quick(commits: Commits) -> None:
    """One of 96 KB took 11 s, and 10,000 honest commits minutes."""
    begun = time.monotonic()
    last = list(states(commits))[-1]
    assert last.live == live_commits({**gone(commits), **commits})
    with pytest.raises(VersionNotFoundError):
        commits_of("0" * 16, commits)
    stored = {i: StoredCommit(one, ObjectInfo(str(i), 1, NOW)) for i, one in commits.items()}
    how = {"grace": OLD, "keep": OLD, "prefix": "p", "listed": (), "unfinished": ()}
    garbage = plan(NOW + 2 * OLD, commits=stored, **how).garbage
    left = set(commits) - {CommitId.parse(one.key) for one in garbage}
    assert live_commits({i: commits[i] for i in left}) == live_commits(commits)
    assert time.monotonic() - begun < 20


def gone(commits: Commits) -> Commits:
    """What is replaced and not there, before the last commit."""
    last = max(commits)
    named = {i for commit in commits.values() for i in commit.replaces if i <= last}
    return {i: Commit(HASH) for i in named}


# The log


def test_the_log_of_a_dataset(storage: dict[str, str]) -> None:
    the_config = config(storage)
    before = datetime.now(timezone.utc) - timedelta(minutes=5)
    save(the_config, make(range(5)))
    with DataSaver(the_config) as saver:
        saver(make(range(5, 8)))
        saver.commit()
        saver(make(range(8, 10)))
    save(the_config, make(range(20, 24)), refresh=True)
    log = commit_log(the_config)
    assert [c.num_rows for c in log] == [5, 3, 2, 4]
    assert [c.num_objects for c in log] == [1] * 4
    assert [c.is_live for c in log] == [False, False, False, True]
    assert [c.replaces for c in log] == [(), (), (), tuple(c.id for c in log[:3])]
    assert [c.id for c in log] == sorted(c.id for c in log)
    assert [c.writer for c in log] == [c.id.split("-")[1] for c in log]
    assert log[1].writer == log[2].writer != log[0].writer
    assert all(before < c.time < before + timedelta(minutes=10) for c in log)
    sizes = [i.nbytes for i in open_store(the_config).list() if i.key.endswith(".h5")]
    assert sorted(c.nbytes for c in log) == sorted(sizes)
    expected = [list(range(5)), list(range(8)), list(range(10)), list(range(20, 24))]
    for entry, rows in zip(log, expected, strict=True):
        assert entry.version is not None
        for version in (entry.id, entry.version, entry.version.hash, list(entry.version.commits)):
            source = Dataset(the_config, version=version)
            assert source[:]["row"].tolist() == rows
            assert source.version == entry.version
        loader = DataLoader(the_config, version=entry.id, batch_size=100)
        assert [b["row"].tolist() for b in loader] == [rows]


def test_no_commits(memory: dict[str, str]) -> None:
    the_config = config(memory)
    with pytest.raises(DatasetNotFoundError, match="no dataset 'rows'"):
        commit_log(the_config)
    Catalog(the_config).create(Schema(ATTRIBUTES))
    assert commit_log(the_config) == []


def test_states_whose_commits_are_gone(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh of last month, appends since, and a collection that took what it replaced."""
    the_config, ages = config(folder), Ages()
    for number in range(3):
        save(the_config, make([number]))
    save(the_config, make([3]), refresh=True)
    log = commit_log(the_config)
    [first, second, third, fourth] = (c.id for c in log)
    catalog = Catalog(the_config)
    catalog.store.delete([f"{catalog.commit_folder}/{first}.json"])  # a collection was killed
    left = commit_log(the_config)
    assert [(c.id, c.version) for c in left] == [
        (second, None),
        (third, None),
        (fourth, log[3].version),
    ]
    assert log[1].version is not None
    with pytest.raises(VersionNotFoundError) as caught:
        Dataset(the_config, version=second).open()
    assert str(caught.value) == f"version {second!r}: its commits are gone: ['{first}']"
    with pytest.raises(VersionNotFoundError, match="of 3 commits no state has this hash"):
        Dataset(the_config, version=log[1].version.hash).open()  # which contents made
    with pytest.raises(VersionNotFoundError) as caught:
        Dataset(the_config, version=first).open()
    assert str(caught.value) == f"no version {first!r}: that commit is gone or never was"
    assert stored(the_config) == [3]
    ages.update({info.key: OLD for info in catalog.store.list()})
    age(monkeypatch, ages)
    collect_garbage(the_config)
    assert [c.id for c in commit_log(the_config)] == [fourth]
    assert stored(the_config) == [3]


# Dropping a commit


def ids_of(the_config: DataConfig) -> list[str]:
    return [c.id for c in commit_log(the_config) if c.num_rows]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_dropped_commits_rows_are_gone_and_no_others(storage: dict[str, str], place: int) -> None:
    the_config = config(storage)
    for number in range(3):
        save(the_config, make(range(10 * number, 10 * number + 5)))
    before = Dataset(the_config).version
    pinned = Dataset(the_config)
    assert len(pinned) == 15
    ids = ids_of(the_config)
    dropping = drop_commit(the_config, ids[place])
    rows = [n for part in range(3) if part != place for n in range(10 * part, 10 * part + 5)]
    assert stored(the_config) == rows
    assert commit_log(the_config)[-1].id == dropping
    assert commit_log(the_config)[-1].replaces == (ids[place], dropping)
    assert Dataset(the_config).version.commits == tuple(i for i in ids if i != ids[place])
    assert Dataset(the_config, version=dropping)[:]["row"].tolist() == rows
    # What was before can be read.
    everything = [n for part in range(3) for n in range(10 * part, 10 * part + 5)]
    assert pinned[:]["row"].tolist() == everything
    assert Dataset(the_config, version=before.hash)[:]["row"].tolist() == everything
    # Saving goes on after it.
    save(the_config, make([99]))
    assert stored(the_config) == [*rows, 99]
    with pytest.raises(VersionNotFoundError, match="is replaced already: it is not in the newest"):
        drop_commit(the_config, ids[place])


def test_a_loader_at_what_was_dropped_is_told_when_it_is_gone(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config, ages = config(storage), Ages()
    save(the_config, make(range(5)))
    save(the_config, make(range(5, 10)))
    loader = DataLoader(the_config, batch_size=2)
    next(iter(loader))
    state, [_, second] = loader.state_dict(), ids_of(the_config)
    drop_commit(the_config, second)
    resumed = DataLoader(the_config, batch_size=20)
    resumed.load_state_dict(state)
    assert [b["row"].tolist() for b in resumed] == [[*range(2, 10)]]
    ages.update({info.key: OLD for info in open_store(the_config).list()})
    age(monkeypatch, ages)
    collect_garbage(the_config)
    with pytest.raises(
        VersionNotFoundError, match=rf"commits .* are gone or never were: .*{second}"
    ):
        DataLoader(the_config, batch_size=20).load_state_dict(state)
    assert stored(the_config) == list(range(5))


def test_nothing_is_left_of_drops_and_what_is_at_the_newest_version_goes_on(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the drops were the last commits, and others are saved afterwards."""
    the_config, ages = config(storage), Ages()
    for number in range(4):
        save(the_config, make(range(10 * number, 10 * number + 5)))
    ids = ids_of(the_config)
    for dropped in (ids[1], ids[3]):
        drop_commit(the_config, dropped)
    rows = [*range(5), *range(20, 25)]
    loader = DataLoader(the_config, batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    ages.update({info.key: OLD for info in open_store(the_config).list()})
    age(monkeypatch, ages)
    collect_garbage(the_config)
    assert [c.id for c in commit_log(the_config)] == [ids[0], ids[2]]
    assert stored(the_config) == rows
    resumed = DataLoader(the_config, batch_size=20)
    resumed.load_state_dict(state)
    assert [b["row"].tolist() for b in resumed] == [rows[2:]]
    with DataSaver(the_config, writer="named") as saver:
        saver(make([70]))
        saver.commit()
        saver(make([71]))
    save(the_config, make([72]))
    assert stored(the_config) == [*rows, 70, 71, 72]
    drop_commit(the_config, ids_of(the_config)[-1])
    save(the_config, make([80]), refresh=True)
    assert stored(the_config) == [80]


def test_what_a_dropped_refresh_replaced_stays_replaced(memory: dict[str, str]) -> None:
    the_config = config(memory)
    save(the_config, make(range(5)))
    save(the_config, make(range(5, 10)), refresh=True)
    save(the_config, make(range(10, 15)))
    drop_commit(the_config, ids_of(the_config)[1])
    assert stored(the_config) == list(range(10, 15))


def test_all_commits_dropped_is_an_empty_dataset(memory: dict[str, str]) -> None:
    the_config = config(memory)
    save(the_config, make(range(5)))
    dropping = drop_commit(the_config, *ids_of(the_config))
    assert stored(the_config) == []
    with pytest.raises(VersionNotFoundError, match="has no rows: it is not in the newest version"):
        drop_commit(the_config, dropping)
    assert stored(the_config) == []
    save(the_config, make(range(2)), refresh=True)
    assert stored(the_config) == [0, 1]


@pytest.mark.parametrize("wrong", ["nonsense", "", "000000000009-w-000000"])
def test_a_commit_that_is_not_there(memory: dict[str, str], wrong: str) -> None:
    the_config = config(memory)
    with pytest.raises(DatasetNotFoundError):
        drop_commit(the_config, wrong)
    save(the_config, make(range(5)))
    with pytest.raises(VersionNotFoundError) as caught:
        drop_commit(the_config, wrong)
    assert str(caught.value) == (
        f"commit {wrong!r} is gone or never was: it is not in the newest version"
    )
    assert len(commit_log(the_config)) == 1


def steps(work: Callable[[DataConfig], Any], memory: dict[str, str]) -> list[list[int]]:
    """The rows in the end, with `work` done before each call that a drop makes."""
    results = []
    for step in range(100):
        the_config = config(memory, f"rows{step}")
        save(the_config, make(range(5)))
        save(the_config, make(range(5, 10)))
        [_, second] = ids_of(the_config)
        calls: list[Call] = []

        def before(
            call: Call, calls: list[Call] = calls, step: int = step, it: DataConfig = the_config
        ) -> None:
            calls.append(call)
            if len(calls) == step + 1:
                work(it)

        with pytest.MonkeyPatch.context() as patch:
            age(patch, {}, before=before)
            with contextlib.suppress(VersionNotFoundError, Injected):
                drop_commit(the_config, second)
        if len(calls) <= step:
            assert step > 5
            return results
        results.append(stored(the_config))
    raise AssertionError("a drop makes too many calls")


def in_peace(work: Callable[[DataConfig], Any]) -> Callable[[DataConfig], Any]:
    """Done with stores that nobody watches."""

    def run(the_config: DataConfig) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("storage_loader.catalog.catalog.open_store", open_store)
            work(the_config)

    return run


def test_an_append_beside_a_drop_survives(memory: dict[str, str]) -> None:
    results = steps(in_peace(lambda it: save(it, make([50]))), memory)
    assert all(rows == [0, 1, 2, 3, 4, 50] for rows in results)


def test_a_refresh_beside_a_drop_stands(memory: dict[str, str]) -> None:
    """At every step; a drop that would have taken its rows away takes itself back."""
    results = steps(in_peace(lambda it: save(it, make([50]), refresh=True)), memory)
    assert all(rows == [50] for rows in results)


def test_two_drops_at_once_drop_once(memory: dict[str, str]) -> None:
    def again(it: DataConfig) -> None:
        try:
            drop_commit(it, ids_of(it)[1])
        except VersionNotFoundError:
            assert stored(it) == list(range(5))

    assert all(rows == list(range(5)) for rows in steps(in_peace(again), memory))


def test_a_drop_that_is_killed_has_happened_or_not(memory: dict[str, str]) -> None:
    def killed(it: DataConfig) -> None:
        raise Injected("killed")

    results = steps(killed, memory)
    assert {len(rows) for rows in results} == {5, 10}
    assert all(rows == list(range(len(rows))) for rows in results)


def test_a_version_is_not_its_prefix(memory: dict[str, str]) -> None:
    the_config = config(memory)
    save(the_config, make(range(5)))
    version = Dataset(the_config).version
    with pytest.raises(VersionNotFoundError):
        Dataset(the_config, version=version.hash[:8]).open()
    assert Dataset(the_config, version=Version.of({}).hash).num_rows == 0
