"""Garbage: every kind of it goes, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
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
    drop_commit,
    save,
)
from storage_loader.catalog import Catalog, Commit, CommitId, StoredObject, live_commits
from storage_loader.catalog.catalog import StoredCommit
from storage_loader.catalog.gc import plan, server_time
from storage_loader.errors import (
    ConfigError,
    DatasetNotFoundError,
    FormatError,
    VersionNotFoundError,
)
from storage_loader.hdf5 import template
from storage_loader.schema import Schema
from storage_loader.store import ObjectInfo, open_store
from tests.support.aged import Ages, age
from tests.support.faulty import Call, Injected
from tests.support.rows import ATTRIBUTES, config, in_batches, make, stored
from tests.support.waiting import until

SCHEMA = Schema(ATTRIBUTES)
LAYOUT = template(SCHEMA, 1).layout
NOW = datetime(2030, 1, 2, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
OLD = timedelta(days=30)
NOTHING = timedelta(0)


# The plan


def info(key: str, hours: float) -> ObjectInfo:
    return ObjectInfo(f"d/{key}", 1, NOW - hours * HOUR)


def planned(
    listed: dict[str, float],
    commits: dict[CommitId, StoredCommit] | None = None,
    unfinished: dict[str, float] | None = None,
    **settings: timedelta,
) -> tuple[list[tuple[str, str]], list[str]]:
    """Kind and key of what goes, and what is foreign, of keys with their ages in hours."""
    made = plan(
        NOW,
        **{"grace": 24 * HOUR, "keep": 168 * HOUR, **settings},
        prefix="d",
        listed=[info(key, hours) for key, hours in listed.items()],
        unfinished=[info(key, hours) for key, hours in (unfinished or {}).items()],
        commits=commits or {},
    )
    goes = [(one.kind, one.key.removeprefix("d/")) for one in made.garbage]
    return goes, [key.removeprefix("d/") for key in made.foreign]


def published(
    commit_id: CommitId, hours: float, keys: tuple[str, ...] = (), replaces: Any = ()
) -> dict[CommitId, StoredCommit]:
    objects = tuple(StoredObject(key, 0, 0, LAYOUT, 0) for key in keys)
    commit = Commit(SCHEMA.hash, objects, tuple(replaces))
    return {commit_id: StoredCommit(commit, info(f"metadata/{commit_id}.json", hours))}


A, B, C, D = (CommitId(seq, f"w{seq}", 0) for seq in (1, 2, 3, 4))
ONE, TWO = "objects/w/0a-000000.h5", "objects/w/0a-000001.h5"
LEASE = "objects/w/0a.lease"
OTHER = "objects/w/0b-000000.h5"


@pytest.mark.parametrize(
    ("listed", "gone"),
    [
        ({}, []),
        ({ONE: 25}, [ONE]),
        ({ONE: 24}, []),  # not longer than the grace period
        ({ONE: 24.01}, [ONE]),
        ({ONE: 500, TWO: 25}, [ONE, TWO]),
        ({ONE: 500, TWO: 1}, []),  # the attempt is alive by another object
        ({ONE: 500, LEASE: 1}, []),  # or by its lease
        ({ONE: 500, LEASE: 25}, [ONE, LEASE]),
        ({LEASE: 25}, [LEASE]),
        ({LEASE: 1}, []),
        ({ONE: 500, OTHER: 1}, [ONE]),  # another attempt's life is not its own
        ({ONE: -5}, []),  # written after gc had asked for the time
        ({"objects/v.1_x-y/0a-1234567.h5": 25}, ["objects/v.1_x-y/0a-1234567.h5"]),
        ({"gc-0123456789abcdef.probe": 25}, ["gc-0123456789abcdef.probe"]),
        ({"gc-0123456789abcdef.probe": 23}, []),
    ],
)
def test_what_nobody_names(listed: dict[str, float], gone: list[str]) -> None:
    assert planned(listed) == ([(kind_of(key), key) for key in gone], [])


def kind_of(key: str) -> str:
    return {"lease": "lease", "probe": "probe"}.get(key.rsplit(".", 1)[-1], "object")


def test_a_probe_is_spared_for_an_hour_without_any_grace() -> None:
    listed = {"gc-0123456789abcdef.probe": 0.9, "gc-0123456789abcdee.probe": 1.1}
    goes, _ = planned(listed, grace=NOTHING)
    assert goes == [("probe", "gc-0123456789abcdee.probe")]


@pytest.mark.parametrize(
    "key",
    [
        "objects/w/model-final.h5",
        "objects/w/0A-000000.h5",
        "objects/w/0a-00001.h5",
        "objects/w/0a-000000.h5.bak",
        "objects/w/x/0a-000000.h5",
        "objects/0a-000000.h5",
        "objects/.w/0a-000000.h5",
        "objects/w/.lease",
        "objects/w/1.claim",
        "objects/w/done.claim",
        "objects/committed.claim",
        "metadata/notes.json",
        "metadata/000000000001-w-000000.json.old",
        "metadata/000000000001-w-000000",
        "dataset.json.bak",
        "README.md",
        "gc-0123.probe",
    ],
)
def test_what_is_not_of_the_format_is_reported(key: str) -> None:
    assert planned({key: 9999, "dataset.json": 9999}) == ([], [key])


def test_unfinished_puts_go_by_their_age() -> None:
    found = {"objects/w/.tmp-1": 25.0, "metadata/.tmp-2": 23.0}
    assert planned({}, unfinished=found) == ([("unfinished", "objects/w/.tmp-1")], [])


def test_a_commit_that_is_live_keeps_its_objects_however_old() -> None:
    assert planned({ONE: 9999, LEASE: 9999}, published(A, 9999, (ONE,))) == (
        [("lease", LEASE)],
        [],
    )


@pytest.mark.parametrize(("hours", "goes"), [(167.9, False), (168, False), (168.1, True)])
def test_replaced_commits_are_kept_from_when_they_were_replaced(hours: float, goes: bool) -> None:
    commits = {**published(A, 9999, (ONE,)), **published(B, hours, (OTHER,), [A])}
    expected = [("commit", f"metadata/{A}.json"), ("object", ONE)] if goes else []
    assert planned({ONE: 9999, OTHER: 9999}, commits)[0] == expected


def test_a_daily_refresh_keeps_a_week() -> None:
    """Each refresh names all commits there are; a commit ends where the first one replaced it."""
    ids = [CommitId(seq, "w", seq) for seq in range(1, 31)]
    commits: dict[CommitId, StoredCommit] = {}
    for place, commit_id in enumerate(ids):
        commits.update(published(commit_id, 24 * (29 - place), (), ids[:place]))
    goes, _ = planned({}, commits)
    assert goes == [("commit", f"metadata/{i}.json") for i in ids[:21]]


def test_a_key_that_a_commit_keeps_stays_whoever_else_named_it() -> None:
    commits = {**published(A, 9999, (ONE, TWO)), **published(B, 9998, (ONE,), [A])}
    goes, _ = planned({ONE: 9999, TWO: 9999}, commits)
    assert goes == [("commit", f"metadata/{A}.json"), ("object", TWO)]


def test_objects_of_a_replaced_commit_go_though_their_saver_is_alive() -> None:
    commits = {**published(A, 9999, (ONE,)), **published(B, 9998, (), [A])}
    goes, _ = planned({ONE: 9999, TWO: 1, LEASE: 1}, commits)
    assert goes == [("commit", f"metadata/{A}.json"), ("object", ONE)]


def test_claims_and_barriers_stay() -> None:
    """They hold off an attempt that wakes up late; a barrier keeps no other commit here."""
    commits = {
        **published(A, 9999, (), [A]),
        **published(B, 9999, (ONE,)),
        **published(C, 9000, (), [B, A]),
    }
    claims = {
        "objects/w/000000.claim": 9999.0,
        "objects/w/000012.claim": 9999.0,
        "objects/w/committed.claim": 9999.0,
    }
    goes = [("commit", f"metadata/{B}.json"), ("object", ONE)]
    assert planned({**claims, ONE: 9999}, commits) == (goes, [])


def test_writers_that_claim_are_marked_before_a_commit_of_theirs_goes() -> None:
    """Not those without claims, nor for a drop; and what they keep from being live stays gone."""
    commits = {
        **published(A, 9999, (ONE,)),
        **published(B, 9999, (), [A]),
        **published(C, 9999, (), [B, C]),
        **published(D, 9999, (OTHER,)),
    }
    listed = dict.fromkeys([ONE, OTHER, *(f"objects/w{n}/000000.claim" for n in (1, 2, 3, 4))], 99)
    arguments: Any = {
        "grace": HOUR,
        "keep": HOUR,
        "prefix": "d",
        "unfinished": [],
        "commits": commits,
    }
    listing = [info(key, hours) for key, hours in listed.items()]
    made = plan(NOW, listed=listing, **arguments)
    assert made.marked == ("w1", "w2")
    assert [one.key for one in made.garbage] == [
        *(f"d/metadata/{i}.json" for i in (A, B, C)), f"d/{ONE}"
    ]  # fmt: skip
    marks = [*listing, info("objects/w2/committed.claim", 1)]
    assert plan(NOW, listed=marks, **arguments).marked == ("w1",)
    unclaimed = [one for one in listing if "w2" not in one.key]
    assert plan(NOW, listed=unclaimed, **arguments).marked == ("w1",)
    for spared, stay in (("w1", {A, B, C}), ("w2", {B, C}), ("w3", {C}), ("w4", set())):
        made = plan(NOW, listed=listing, spared=[spared], **arguments)
        gone = {one.key for one in made.garbage}
        left = {i for i in (A, B, C) if f"d/metadata/{i}.json" not in gone}
        assert left == stay
        assert live_of({i: commits[i] for i in (*left, D)}) == live_of(commits) == [D]


def test_no_commit_goes_before_an_earlier_one_that_it_keeps_replaced() -> None:
    """B replaced A, C replaced B alone: were B gone, A would be back."""
    commits = {
        **published(A, 9999),
        **published(B, 100, (), [A]),  # too young for A to go
        **published(C, 9999, (), [B]),  # by a clock that went back: B would be old enough
    }
    assert live_commits({i: one.commit for i, one in commits.items()}) == [C]
    assert planned({}, commits) == ([], [])
    commits.update(published(B, 9999, (), [A]))
    assert [key for _, key in planned({}, commits)[0]] == [
        f"metadata/{A}.json",
        f"metadata/{B}.json",
    ]


def test_a_drop_goes_once_it_keeps_nothing_from_being_live() -> None:
    drop = {**published(A, 9999, (ONE,)), **published(B, 9999), **published(C, 200, (), [A, C])}
    assert live_of(drop) == [B]
    goes = [("commit", f"metadata/{A}.json"), ("commit", f"metadata/{C}.json"), ("object", ONE)]
    assert planned({ONE: 9999}, drop) == (goes, [])
    assert planned({ONE: 9999}, {**drop, **published(C, 100, (), [A, C])}) == ([], [])
    # A killed collection took what it dropped; or a refresh of that time is void by it.
    del drop[A]
    assert planned({}, drop)[0] == [("commit", f"metadata/{C}.json")]
    late = CommitId(C.seq, "v", 0)  # had not listed the drop, and was stored after it
    drop.update(published(late, 100, (OTHER,), [A, B]))
    assert live_of(drop) == [B]
    assert [key for _, key in planned({OTHER: 9999}, drop)[0]] == [
        f"metadata/{late}.json", f"metadata/{C}.json", OTHER
    ]  # fmt: skip


@dataclass
class History:
    """Commits as real savers publish them, one an hour, each after it had listed some before."""

    commits: dict[CommitId, StoredCommit] = field(default_factory=dict)
    listed: dict[str, float] = field(default_factory=dict)


@st.composite
def histories(draw: st.DrawFn) -> History:
    actions = st.tuples(st.sampled_from(["append", "refresh", "drop"]), st.integers(0, 3))
    steps = draw(st.lists(actions, max_size=12))
    due: dict[int, list[tuple[int, str, list[CommitId]]]] = {}
    made = History()
    for step in range(len(steps) + 4):
        if step < len(steps):
            action, wait = steps[step]
            due.setdefault(step + wait, []).append((step, action, sorted(made.commits)))
        for number, action, seen in due.pop(step, []):
            new = CommitId(seen[-1].seq + 1 if seen else 1, f"w{number}", 0)
            dropped = [*seen[-1:], new] if seen else []
            replaces = {"append": [], "refresh": seen, "drop": dropped}[action]
            keys = () if action == "drop" else (f"objects/w{number}/{number:x}-000000.h5",)
            hours = 300 - 12 * step
            made.commits.update(published(new, hours, keys, replaces))
            made.listed.update(dict.fromkeys(keys, hours))
    strays = st.dictionaries(
        st.sampled_from([ONE, TWO, LEASE, OTHER]), st.integers(0, 100), max_size=4
    )
    made.listed.update(draw(strays))
    return made


def live_of(commits: dict[CommitId, StoredCommit]) -> list[CommitId]:
    return live_commits({i: one.commit for i, one in commits.items()})


def names_of(commits: dict[CommitId, StoredCommit]) -> set[str]:
    return {o.key for one in commits.values() for o in one.commit.objects}


@given(histories(), st.integers(0, 320), st.integers(0, 100))
def test_any_plan_leaves_the_live_commits_and_all_that_is_named(
    history: History, keep: int, grace: int
) -> None:
    goes, foreign = planned(history.listed, history.commits, keep=keep * HOUR, grace=grace * HOUR)
    assert foreign == []
    assert [kind for kind, _ in goes] == sorted((k for k, _ in goes), key=lambda k: k != "commit")
    remaining = dict(history.commits)
    for kind, key in goes:
        if kind == "commit":
            del remaining[next(i for i in remaining if f"metadata/{i}.json" == key)]
            assert live_of(remaining) == live_of(history.commits)
    gone = {key for kind, key in goes if kind != "commit"}
    assert not gone & names_of(remaining)
    released = names_of(history.commits) - names_of(remaining)
    assert released <= gone
    attempts = {key: key.split("-")[0].removesuffix(".lease") for key in history.listed}
    for key, attempt in attempts.items():
        alive = any(history.listed[k] <= grace for k, a in attempts.items() if a == attempt)
        if key not in names_of(history.commits):
            assert (key in gone) == (not alive), key


IDS = [CommitId(seq, writer, number) for seq in (1, 2, 3) for writer in "ab" for number in (0, 1)]


@given(
    st.dictionaries(
        st.sampled_from(IDS),
        st.tuples(st.sets(st.sampled_from(IDS), max_size=3), st.sampled_from([1, 9999])),
        max_size=8,
    )
)
def test_commits_that_no_saver_writes_leave_the_live_ones_too(
    replaces: dict[CommitId, tuple[set[CommitId], float]],
) -> None:
    """They replace themselves and later ones, or have a twin of one writer and number."""
    commits: dict[CommitId, StoredCommit] = {}
    for commit_id, (others, hours) in replaces.items():
        commits.update(published(commit_id, hours, (), others))
    remaining = dict(commits)
    for _, key in planned({}, commits)[0]:
        del remaining[next(i for i in remaining if f"metadata/{i}.json" == key)]
        assert live_of(remaining) == live_of(commits)


@given(histories(), st.integers(0, 320), st.integers(0, 320), st.randoms(use_true_random=False))
def test_two_plans_carried_out_at_once_leave_the_live_commits(
    history: History, keep: int, other: int, chance: random.Random
) -> None:
    orders = [
        [key for kind, key in planned({}, history.commits, keep=k * HOUR)[0] if kind == "commit"]
        for k in (keep, other)
    ]
    remaining = {f"metadata/{i}.json": (i, one) for i, one in history.commits.items()}
    while any(orders):
        order = chance.choice([o for o in orders if o])
        remaining.pop(order.pop(0), None)
        assert live_of(dict(remaining.values())) == live_of(history.commits)


def test_thousands_of_commits_are_planned_quickly() -> None:
    ids = [CommitId(seq, "w", seq) for seq in range(1, 3001)]
    commits: dict[CommitId, StoredCommit] = {}
    for commit_id in ids[:-1]:
        commits.update(published(commit_id, 9999))
    commits.update(published(ids[-1], 9000, (), ids[:-1]))
    begun = datetime.now(timezone.utc)
    assert len(planned({}, commits)[0]) == 2999
    assert datetime.now(timezone.utc) - begun < timedelta(seconds=20)  # each with all: minutes


# For real


@dataclass
class Place:
    """A dataset with garbage of every kind; `ages` makes keys old."""

    config: DataConfig
    ages: Ages
    versions: list[Any]
    garbage: set[str]
    kept: set[str]

    @property
    def keys(self) -> set[str]:
        store, prefix = open_store(self.config), self.config.dataset_prefix
        found = [*store.list(prefix), *store.list_unfinished(prefix)]
        return {i.key.removeprefix(f"{prefix}/") for i in found}

    def collect(self, **settings: Any) -> Any:
        return collect_garbage(self.config, **settings)

    def check(self) -> None:
        """The newest version is what it was, by a fresh reader."""
        assert stored(self.config) == ROWS


ROWS = [*range(20, 30), *range(40, 45)]


def new_keys(the_config: DataConfig, work: Callable[[], object]) -> set[str]:
    """What appears under the dataset's prefix while something is done."""
    store, prefix = open_store(the_config), the_config.dataset_prefix
    before = {i.key for i in store.list(prefix)}
    work()
    return {i.key.removeprefix(f"{prefix}/") for i in store.list(prefix) if i.key not in before}


def fill(the_config: DataConfig, ages: Ages) -> Place:
    store, prefix = open_store(the_config), the_config.dataset_prefix
    garbage: set[str] = set()
    kept: set[str] = {"dataset.json"}

    def old(keys: set[str]) -> set[str]:
        ages.update(dict.fromkeys((f"{prefix}/{key}" for key in keys), OLD))
        return keys

    versions = []

    def saved(**settings: Any) -> set[str]:
        rows = settings.pop("rows")
        keys = new_keys(the_config, lambda: save(the_config, make(rows), **settings))
        versions.append(Dataset(the_config).version)
        return keys - {"dataset.json"}

    # Replaced long ago: by a refresh that is replaced itself, by one that is not for so long.
    garbage |= old(saved(rows=range(10))) | old(saved(rows=range(10, 20), refresh=True))
    kept |= old(saved(rows=range(20, 30), refresh=True))
    # An append that was dropped long ago, one that was a moment ago, one that stays.
    garbage |= old(new_keys(the_config, lambda: save(the_config, make(range(60, 65)))))
    dropped = Dataset(the_config).version.commits[-1]
    garbage |= old(new_keys(the_config, lambda: drop_commit(the_config, dropped)))
    kept |= saved(rows=range(30, 40))
    kept |= new_keys(the_config, lambda: drop_commit(the_config, versions[-1].commits[-1]))
    kept |= saved(rows=range(40, 45))

    def put(*keys: str) -> set[str]:
        for key in keys:
            store.put(f"{prefix}/{key}", b"{}")
        return set(keys)

    garbage |= old(put("objects/dead/0123abcd-000000.h5", "objects/dead/0123abcd-000001.h5"))
    garbage |= old(put("objects/dead/0123abcd.lease", "objects/lost/0123abcd.lease"))
    garbage |= old(put("gc-0123456789abcdef.probe"))
    kept |= old(put("objects/leased/0123abcd-000000.h5")) | put("objects/leased/0123abcd.lease")
    kept |= old(put("objects/busy/0123abcd-000000.h5", "objects/busy/0123abcd.lease"))
    kept |= put("objects/busy/0123abcd-000001.h5")
    kept |= old(put("notes.txt", "objects/dead/weights.h5", "metadata/x.json"))
    if the_config.storage.startswith("file://"):
        folder = Path(the_config.storage.removeprefix("file://")) / prefix
        for name, is_old in [
            ("metadata/.tmp-00", True),
            ("objects/dead/.tmp-01", True),
            (".tmp-02", True),
            ("objects/busy/.tmp-03", False),
        ]:
            (folder / name).write_bytes(b"part of an object")
            garbage |= old({name}) if is_old else set()
            kept |= set() if is_old else {name}
    return Place(the_config, ages, versions, garbage, kept)


@pytest.fixture
def place(storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    made = fill(config(storage), ages := {})
    age(monkeypatch, ages)
    return made


@pytest.fixture
def folder_place(folder: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    made = fill(config(folder), ages := {})
    age(monkeypatch, ages)
    return made


def test_all_garbage_goes_and_nothing_else(place: Place) -> None:
    assert place.keys == place.garbage | place.kept
    found = place.collect()
    assert {one.key.removeprefix(f"{place.config.dataset_prefix}/") for one in found.garbage} == (
        place.garbage
    )
    assert place.keys == place.kept
    assert [key.removeprefix(f"{place.config.dataset_prefix}/") for key in found.foreign] == [
        "metadata/x.json",
        "notes.txt",
        "objects/dead/weights.h5",
    ]
    place.check()
    assert place.collect().garbage == ()


def test_what_remains_can_be_read_row_by_row(place: Place) -> None:
    place.collect()
    *gone, refreshed, appended, last = place.versions
    assert stored_at(place.config, refreshed) == list(range(20, 30))
    assert stored_at(place.config, appended) == list(range(20, 40))
    assert stored_at(place.config, last) == ROWS
    for version in gone:
        with pytest.raises(VersionNotFoundError):
            stored_at(place.config, version)
    # Later, what was dropped goes, too.
    prefix = place.config.dataset_prefix
    place.ages.update(dict.fromkeys((f"{prefix}/{key}" for key in place.kept), OLD))
    place.collect()
    with pytest.raises(VersionNotFoundError):
        stored_at(place.config, appended)
    assert stored_at(place.config, last) == ROWS
    assert {key for key in place.keys if key.startswith("metadata/0")} == {
        f"metadata/{i}.json" for i in last.commits
    }
    place.check()


def stored_at(the_config: DataConfig, version: Any) -> list[int]:
    rows: list[int] = Dataset(the_config, version=version)[:]["row"].tolist()
    return rows


def test_a_loader_pinned_to_what_is_gone_is_told_so(folder_place: Place) -> None:
    loader = DataLoader(folder_place.config, version=folder_place.versions[0], batch_size=3)
    state = loader.state_dict()
    folder_place.collect()
    with pytest.raises(VersionNotFoundError, match="commits of this version are gone"):
        DataLoader(folder_place.config, batch_size=3).load_state_dict(state)


def test_a_dry_run_deletes_nothing(place: Place) -> None:
    found = place.collect(dry_run=True)
    assert place.keys == place.garbage | place.kept
    assert found == place.collect()


def test_sizes_and_progress(folder_place: Place) -> None:
    sizes = {i.key: i.nbytes for i in open_store(folder_place.config).list()}
    seen: list[tuple[int, int]] = []
    found = folder_place.collect(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(found.garbage), len(found.garbage))
    assert all(one.nbytes == sizes.get(one.key, 17) for one in found.garbage)
    assert sorted(seen) == seen


def test_other_datasets_are_left_alone(folder: dict[str, str]) -> None:
    mine, other = config(folder), config(folder, additional={"split": "test"})
    for the_config in (mine, other):
        save(the_config, make(range(3)))
        save(the_config, make(range(3, 5)), refresh=True)
    before = {i.key for i in open_store(other).list(other.dataset_prefix)}
    assert len(collect_garbage(mine, grace=NOTHING, keep=NOTHING).garbage) == 2
    assert {i.key for i in open_store(other).list(other.dataset_prefix)} == before


def test_objects_without_any_commit(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first commit: there is no dataset.json."""
    the_config = config(storage)
    key = f"{the_config.dataset_prefix}/objects/w/0a-000000.h5"
    store = open_store(the_config)
    store.prepare()
    store.put(key, b"x")
    assert collect_garbage(the_config).garbage == ()
    age(monkeypatch, {key: OLD})
    assert [one.key for one in collect_garbage(the_config).garbage] == [key]
    assert list(store.list()) == []


def test_no_dataset(folder: dict[str, str]) -> None:
    with pytest.raises(DatasetNotFoundError):
        collect_garbage(config(folder))
    assert not Path(folder["storage"]).exists()


@pytest.mark.parametrize("damaged", ["dataset.json", "metadata"])
def test_where_a_commit_cannot_be_read_nothing_is_deleted(
    folder_place: Place, damaged: str
) -> None:
    root = Path(folder_place.config.storage.removeprefix("file://"))
    path = next((root / folder_place.config.dataset_prefix).glob(f"{damaged}*"))
    if path.is_dir():
        path = min(p for p in path.iterdir() if p.name.startswith("0"))
    body = path.read_bytes()
    path.write_bytes(body[:-1])
    before = folder_place.keys
    with pytest.raises(FormatError, match=path.name):
        folder_place.collect()
    assert folder_place.keys == before
    path.unlink()
    if damaged == "dataset.json":
        with pytest.raises(FormatError, match=r"there are commits, but no dataset\.json"):
            folder_place.collect()
        assert folder_place.keys == before - {"dataset.json"}


@pytest.mark.parametrize(
    "settings",
    [{"grace": 5}, {"keep": timedelta(seconds=-1)}, {"grace": "24h"}, {"dry_run": 1}],
)
def test_wrong_settings(folder: dict[str, str], settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        collect_garbage(config(folder), **settings)


def test_the_time_is_the_stores(memory: dict[str, str]) -> None:
    store = open_store(config(memory))
    first = server_time(store, "a")
    assert abs(first - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert list(store.list()) == []


# Beside others


def at_call(number: int, work: Callable[[], object]) -> tuple[Callable[[Call], None], list[Call]]:
    """A hook that does something before the call of this number, in the same thread only."""
    calls: list[Call] = []
    busy: list[bool] = []

    def hook(call: Call) -> None:
        if busy:
            return
        calls.append(call)
        if len(calls) == number + 1:
            busy.append(True)
            work()
            busy.pop()

    return hook, calls


def in_memory() -> dict[str, str]:
    return {"storage": f"memory://{uuid.uuid4().hex}"}


def calls_of_a_collection() -> int:
    with pytest.MonkeyPatch.context() as patch:
        made = fill(config(in_memory()), ages := {})
        hook, calls = at_call(-1, lambda: None)
        age(patch, ages, before=hook)
        made.collect()
    return len(calls)


def each_step(work: Callable[[Place], object]) -> Iterator[Place]:
    """A fresh place for each call that a collection makes, with `work` done just before it."""
    number = calls_of_a_collection()
    assert number > 20
    for step in range(number):
        with pytest.MonkeyPatch.context() as patch:
            made = fill(config(in_memory()), ages := {})
            hook, calls = at_call(step, lambda made=made: work(made))
            age(patch, ages, before=hook)
            with contextlib.suppress(Injected):
                made.collect()
            assert len(calls) > step
            yield made


def test_two_collections_at_once() -> None:
    for made in each_step(lambda place: place.collect()):
        assert made.keys == made.kept
        made.check()


def test_a_reader_sees_the_newest_version_at_every_step() -> None:
    for made in each_step(lambda place: place.check()):
        made.check()


def test_a_collection_that_is_killed_at_any_step() -> None:
    def killed(place: Place) -> None:
        raise Injected("killed")

    for made in each_step(killed):
        made.check()
        assert made.keys - {k for k in made.keys if k.startswith("gc-")} >= made.kept
        # What is left of replaced commits without their commit goes with the grace period.
        made.collect()
        assert {k for k in made.keys if not k.startswith("gc-")} == made.kept
        made.check()


def test_a_saver_that_commits_at_any_step_loses_nothing() -> None:
    """However old its objects are."""
    for step, made in enumerate(each_step(commit_of_a_slow_job)):
        assert stored(made.config) == [*ROWS, *range(100, 110)], step


def commit_of_a_slow_job(place: Place) -> None:
    store, prefix = open_store(place.config), place.config.dataset_prefix
    with DataSaver(place.config) as saver:
        saver(make(range(100, 110)))
    new = max(Catalog(place.config, store).commit_ids())
    schema = Catalog(place.config, store).require_schema()
    [one] = Catalog(place.config, store).read_commits(schema, [new])[new].objects
    assert one.key not in place.kept
    place.ages[f"{prefix}/{one.key}"] = OLD


def test_a_commit_between_listing_and_reading_keeps_objects_of_a_silent_saver(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are listed before commits are read: what was published by then is never touched,
    however old it is and however long its saver was silent."""
    the_config = config(folder)
    save(the_config, make(range(3)))
    saver = DataSaver(config(folder, max_object_size=2**16))
    for numbers in in_batches(3, 10_003, 1000):
        saver(make(numbers))
    until(lambda: strays(the_config))
    uncommitted = strays(the_config)
    done: list[bool] = []

    def commit(call: Call) -> None:
        if call.kind == "list_unfinished" and not done:
            done.append(True)
            saver.close()

    age(monkeypatch, AllOld(), before=commit)
    assert collect_garbage(the_config).garbage == ()
    assert done
    assert set(uncommitted) <= {
        f"{the_config.dataset_prefix}/{o.key}" for o in Dataset(the_config).open().objects
    }
    monkeypatch.undo()
    assert stored(the_config) == list(range(10_003))


class AllOld(Ages):
    """Every object is old, also one that is yet to come."""

    def get(self, key: str, default: Any = None) -> Any:
        return OLD if "/objects/" in key else default


def strays(the_config: DataConfig) -> list[str]:
    store = open_store(the_config)
    named = {f"{the_config.dataset_prefix}/{o.key}" for o in Dataset(the_config).open().objects}
    listed = store.list(f"{the_config.dataset_prefix}/objects")
    return [i.key for i in listed if i.key not in named]


def test_a_refresh_at_any_step_stands() -> None:
    def refresh(place: Place) -> None:
        save(place.config, make(range(500, 505)), refresh=True)

    for made in each_step(refresh):
        assert stored(made.config) == list(range(500, 505))


def test_savers_refreshers_readers_and_collections_beside_each_other(
    folder: dict[str, str],
) -> None:
    """With the shortest `keep`: replaced commits go while others still work. Every state that a
    reader sees is one refresh, whole, and appends after it, each whole."""
    the_config = config(folder, max_object_size=2**16)
    save(the_config, make(range(1000)))
    stop = threading.Event()
    failures: list[BaseException] = []
    seen: list[int] = []
    done: list[int] = []  # how often, of each work

    def loop(place: int, work: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            while not stop.is_set():
                try:
                    work(done[place])
                except BaseException as error:
                    failures.append(error)
                    stop.set()
                done[place] += 1

        return run

    def refresh(number: int) -> None:
        save(the_config, make(range(3000)), refresh=True)

    def append(number: int) -> None:
        save(the_config, make(range(10_000 + 100 * number, 10_100 + 100 * number)))

    def collect(number: int) -> None:
        collect_garbage(the_config, keep=timedelta(seconds=1))

    def read(number: int) -> None:
        # A version may be replaced and collected while its rows are read: then a newer one is.
        rows = Catalog(the_config).snapshot().num_rows
        seen.append(rows)
        assert rows % 100 == 0
        assert rows >= 1000

    works = [refresh, append, append, collect, collect, read]
    done += [0] * len(works)
    threads = [threading.Thread(target=loop(*each)) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    try:
        stop.wait(3)
        until(lambda: stop.is_set() or min(done) >= 3)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(seen) >= 3
    rows = stored(the_config)
    assert rows[:1000] == list(range(1000)) or rows[0] >= 10_000
    save(the_config, make(range(7)), refresh=True)
    collect_garbage(the_config, keep=NOTHING, grace=NOTHING)
    assert stored(the_config) == list(range(7))
    [remaining] = [i.key for i in open_store(the_config).list() if i.key.endswith(".h5")]
    [one] = Dataset(the_config).open().objects
    assert remaining.endswith(one.key)


def test_a_dataset_that_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """At any step of a collection: it ends, or says that there is none any more."""
    for step in range(40):
        the_config = config(in_memory())
        for refresh in (False, True):
            save(the_config, make(range(3)), refresh=refresh)
        hook, calls = at_call(step, Catalog(the_config).delete)
        with monkeypatch.context() as patch:
            age(patch, AllOld(), before=hook)
            with contextlib.suppress(DatasetNotFoundError):
                collect_garbage(the_config, keep=NOTHING)
        if len(calls) <= step:
            break
        assert list(open_store(the_config).list()) == []
    assert step > 8
