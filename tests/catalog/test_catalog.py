"""Commits and versions: which rows a dataset has, whatever happened at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import random
import re
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import storage_loader
from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    UnreadableDataset,
    collect_garbage,
    commit_log,
    drop_commit,
    list_datasets,
    save,
    verify_dataset,
)
from storage_loader.catalog import (
    Catalog,
    Commit,
    CommitId,
    StoredObject,
    Version,
    dataset_info,
    live_commits,
)
from storage_loader.catalog.commits import LAST_SEQ
from storage_loader.config import MIN_OBJECT_SIZE, canonical_json
from storage_loader.errors import (
    BucketNotFoundError,
    ConfigError,
    DatasetNotFoundError,
    FolderNotFoundError,
    FormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    SaverError,
    SchemaError,
    StoreError,
    UnknownNameError,
    VersionNotFoundError,
)
from storage_loader.hdf5 import template
from storage_loader.loader.peers import Peers
from storage_loader.schema import Schema
from storage_loader.store import MemoryStore, open_store
from storage_loader.store.forwarding import ForwardingStore
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, watch
from tests.support.rows import ATTRIBUTES, config, make, stored

SCHEMA = Schema(ATTRIBUTES)


# Commit ids


@given(
    st.builds(
        CommitId,
        st.integers(0, LAST_SEQ),
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        st.integers(0, 10**6 - 1),
    )
)
def test_an_id_is_read_as_it_is_written(commit_id: CommitId) -> None:
    assert CommitId.parse(str(commit_id)) == commit_id


def test_ids_are_ordered_by_seq_then_writer_then_number() -> None:
    ordered = [
        CommitId(1, "b", 7),
        CommitId(2, "B", 0),
        CommitId(2, "a", 0),
        CommitId(2, "a", 1),
        CommitId(2, "a-", 0),
        CommitId(2, "b", 0),
        CommitId(10, "a", 0),
    ]
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert sorted(shuffled) == ordered
    assert str(CommitId(2, "a", 1)) == "000000000002-a-000001"


@pytest.mark.parametrize(
    "text",
    ["", "1-a-1", "000000000001-a-00001", "000000000001--000001", "00000000001-a-000001", None, 5]
    + ["000000000001-a/b-000001", "000000000001-.a-000001", "000000000001-a-000001\n"]
    + ["\u0660" * 12 + "-a-000001", "+00000000001-a-000001", "000000000001-a-0000001 "]
    + ["100000000000-a-000001", "999999999999-a-000001", "000000000001-a-00000\u0661"],
)
def test_text_that_is_no_id(text: object) -> None:
    assert CommitId.parse(text) is None


@pytest.mark.parametrize(("seq", "number"), [(10**11, 0), (-1, 0), (1, 10**6), (1, -1)])
def test_an_id_that_would_not_be_read_again_is_refused(seq: int, number: int) -> None:
    with pytest.raises(FormatError, match="after a million commits make another saver"):
        CommitId(seq, "a", number)


# Which commits are live


def commit(*replaces: CommitId) -> Commit:
    return Commit(SCHEMA.hash, replaces=tuple(replaces))


def live_by_definition(commits: Mapping[CommitId, Commit]) -> list[CommitId]:
    """Sentence by sentence: of one writer's commits of one number the first counts; a commit is
    void where a later one that is not void replaces what it replaces; live are those that are not
    void and that no commit that is not void replaces."""
    commits = {
        i: commits[i]
        for i in commits
        if not any(j < i and (j.writer, j.number) == (i.writer, i.number) for j in commits)
    }

    def void(i: CommitId) -> bool:
        own = set(commits[i].replaces)
        return any(
            own & set(commits[later].replaces) and not void(later) for later in commits if later > i
        )

    standing = [i for i in commits if not void(i)]
    return sorted(i for i in standing if not any(i in commits[j].replaces for j in standing))


IDS = [CommitId(seq, writer, seq // 2) for seq in (1, 2, 3) for writer in "ab"]


@given(st.dictionaries(st.sampled_from(IDS), st.sets(st.sampled_from(IDS)), max_size=6))
def test_live_commits_as_defined(replaces: dict[CommitId, set[CommitId]]) -> None:
    commits = {i: commit(*others) for i, others in replaces.items()}
    assert live_commits(commits) == live_by_definition(commits)
    shuffled = dict(random.Random(1).sample(sorted(commits.items()), len(commits)))
    assert live_commits(shuffled) == live_commits(commits)


A, B, C, D = CommitId(1, "w", 0), CommitId(2, "a", 0), CommitId(2, "b", 0), CommitId(3, "w", 1)


@pytest.mark.parametrize(
    ("commits", "live"),
    [
        ({}, []),
        ({A: commit()}, [A]),
        ({A: commit(), B: commit(), C: commit()}, [A, B, C]),
        ({A: commit(), B: commit(A)}, [B]),
        ({A: commit(), B: commit(A), D: commit(A, B)}, [D]),
        # Two refreshes that replace a common commit: the later id wins.
        ({A: commit(), B: commit(A), C: commit(A)}, [C]),
        # An append that races with a refresh survives, whichever id is the later.
        ({A: commit(), B: commit(A), C: commit()}, [B, C]),
        ({A: commit(), B: commit(), C: commit(A)}, [B, C]),
        # What a void refresh replaced lives on.
        ({A: commit(), B: commit(), C: commit(A, B), D: commit(A)}, [B, D]),
        # Two first refreshes replace nothing.
        ({A: commit(), B: commit()}, [A, B]),
        # A commit that replaces itself is a barrier, for a refresh too.
        ({A: commit(A), B: commit()}, [B]),
        ({A: commit(A), B: commit(), D: commit(A, B)}, [D]),
        # Of two with one writer and number the first counts, and the other replaces nothing.
        ({A: commit(), B: commit(), CommitId(4, "w", 0): commit(B)}, [A, B]),
        # A commit that is gone may still be named.
        ({D: commit(A, B)}, [D]),
    ],
)
def test_what_the_design_says_of_live_commits(
    commits: dict[CommitId, Commit], live: list[CommitId]
) -> None:
    assert live_commits(commits) == live


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 3)),  # refresh, steps from listing to publishing
        max_size=10,
    )
)
def test_any_history_keeps_the_appends_no_refresh_has_seen(
    history: list[tuple[bool, int]],
) -> None:
    """Savers list at their own step and publish some steps later, as real ones do."""
    commits: dict[CommitId, Commit] = {}
    seen: dict[CommitId, set[CommitId]] = {}
    due: dict[int, list[tuple[str, bool, list[CommitId]]]] = {}
    for step in range(len(history) + 4):
        if step < len(history):
            refresh, wait = history[step]
            due.setdefault(step + wait, []).append((f"w{step}", refresh, sorted(commits)))
        for writer, refresh, listed in due.pop(step, []):
            new = CommitId(listed[-1].seq + 1 if listed else 1, writer, 0)
            commits[new] = commit(*listed) if refresh else commit()
            seen[new] = set(listed)
    live = live_commits(commits)
    refreshes = {i for i in commits if commits[i].replaces}
    for i in set(commits) - refreshes:
        replaced = any(i in seen[r] for r in refreshes)
        assert (i in live) or replaced
    for r in refreshes:
        later = [s for s in refreshes if s > r and seen[s] & seen[r]]
        if not later:
            assert not seen[r] & set(live)  # it took effect
        assert r not in live or not any(s in live for s in later)


# The same with real savers


def test_two_appends(storage: dict[str, str]) -> None:
    save(config(storage), make(range(3)))
    save(config(storage), make(range(3, 5)))
    assert stored(config(storage)) == [0, 1, 2, 3, 4]


def during(patch: pytest.MonkeyPatch, kind: str, work: Callable[[], None]) -> None:
    """Do `work`, once, before the next call of this kind; its own calls are not watched."""
    done = []

    def hook(call: Call) -> None:
        if call.kind == kind and not done:
            done.append(call)
            with pytest.MonkeyPatch.context() as inner:
                for module in ("catalog", "listing"):
                    name = f"storage_loader.catalog.{module}.open_store"
                    inner.setattr(name, storage_loader.store.open_store)
                work()

    watch(patch, before=hook)


@pytest.mark.parametrize("refresh", [False, True], ids=["append", "refresh"])
def test_an_append_while_another_saver_publishes_survives(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch, refresh: bool
) -> None:
    save(config(storage), make(range(3)))
    during(monkeypatch, "put commit", lambda: save(config(storage), make([10, 11])))
    save(config(storage), make([20, 21]), refresh=refresh)
    old = [] if refresh else [0, 1, 2]
    assert stored(config(storage)) in ([*old, 10, 11, 20, 21], [*old, 20, 21, 10, 11])


def test_of_two_refreshes_at_once_one_wins(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(config(storage), make(range(3)))
    inner = lambda: save(config(storage), make([10, 11]), refresh=True)  # noqa: E731
    during(monkeypatch, "put commit", inner)
    save(config(storage), make([20, 21]), refresh=True)
    last = Catalog(config(storage)).commit_ids()[-1]
    [objects] = [Catalog(config(storage)).read_commits(SCHEMA, [last])[last].objects]
    assert [o.rows for o in objects] == [2]
    assert stored(config(storage)) in ([10, 11], [20, 21])
    assert Dataset(config(storage)).version.commits == (str(last),)


def test_an_append_that_a_refresh_has_listed_is_replaced(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    during(monkeypatch, "list metadata", lambda: save(config(folder), make([10, 11])))
    save(config(folder), make([20]), refresh=True)
    assert stored(config(folder)) == [20]


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_do_not_matter(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    class Clock(datetime):
        shift = timedelta(0)

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + cls.shift

    monkeypatch.setattr("storage_loader.catalog.catalog.datetime", Clock)
    save(config(folder), make([0, 1]))
    Clock.shift = timedelta(hours=hours)
    save(config(folder), make([2]))
    save(config(folder), make([3]))
    Clock.shift = timedelta(0)
    save(config(folder), make([4]))
    for path in Path(folder["storage"]).rglob("*.json"):
        when = datetime.now(timezone.utc).timestamp() - random.Random(path.name).random() * 7200
        os.utime(path, (when, when))
    assert stored(config(folder)) == [0, 1, 2, 3, 4]
    times = [c.info["time"] for c in all_commits(config(folder)).values()]
    assert (times[1] < times[0]) == (hours < 0)
    save(config(folder), make([9]), refresh=True)
    assert stored(config(folder)) == [9]


def all_commits(the_config: DataConfig) -> dict[CommitId, Commit]:
    catalog = Catalog(the_config)
    return catalog.read_commits(catalog.require_schema(), catalog.commit_ids())


def test_zero_commits_are_zero_rows(storage: dict[str, str]) -> None:
    the_config = config(storage)
    Catalog(the_config).create(SCHEMA)
    assert stored(the_config) == []
    assert len(Dataset(the_config)) == 0
    assert list(DataLoader(the_config, batch_size=4)) == []
    assert [(i.num_rows, i.num_objects) for i in list_datasets(**storage)] == [(0, 0)]
    save(the_config, make([1]))
    assert stored(the_config) == [1]


def test_an_aborted_first_save_leaves_the_schema_open(storage: dict[str, str]) -> None:
    other = config(storage, attributes=[("row", "int64"), ("label", "int8")])
    with pytest.raises(ZeroDivisionError), DataSaver(other) as saver:
        saver({"row": [1], "label": [2]})
        raise ZeroDivisionError
    save(config(storage), make([1]))
    assert stored(config(storage)) == [1]


def test_a_commit_made_after_another_was_visible_sorts_after_it(memory: dict[str, str]) -> None:
    for number in range(20):
        save(config(memory), make([number]))  # each by a writer of another random name
    assert stored(config(memory)) == list(range(20))
    assert [i.seq for i in Catalog(config(memory)).commit_ids()] == list(range(1, 21))


# Publishing


def test_a_publish_that_is_retried_may_meet_its_own_first_attempt(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrived(call: Call) -> None:
        if call.kind == "put commit":
            raise ObjectExistsError(f"put {call.key}: the object exists")

    watch(monkeypatch, after=arrived)
    save(config(memory), make([1, 2]))
    assert stored(config(memory)) == [1, 2]


def test_a_publish_never_takes_a_foreign_commit_for_its_own(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(call: Call) -> None:
        if call.kind == "put commit":
            MemoryStore(memory["storage"]).put(call.key, commit().to_bytes())

    watch(monkeypatch, before=taken)
    with pytest.raises(SaverError, match="exists"):
        save(config(memory), make([1, 2]))
    assert stored(config(memory)) == []


def test_nothing_is_published_before_all_objects_are_stored(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    attributes = [*ATTRIBUTES, storage_loader.Attribute("pixels", "uint8", (5000,))]
    the_config = config(memory, attributes=attributes, max_object_size=MIN_OBJECT_SIZE)
    save(the_config, make(range(60), attributes))
    count = len(Dataset(the_config).open().objects)
    assert count > 4
    assert stores[0].kinds("put") == ["put object"] * count + ["put dataset", "put commit"]


def test_dataset_json_is_canonical_and_written_once(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    additional = {"version": 1, "split": "träin", "flag": True}
    for _ in range(2):
        save(config(folder, additional=additional), make([1]))
    puts = [call.key for store in stores for call in store.calls if call.kind == "put dataset"]
    assert len(puts) == 1
    body = (Path(folder["storage"]) / puts[0]).read_bytes()
    assert body == canonical_json(
        {
            "format": 1,
            "name": "rows",
            "additional": additional,
            "attributes": [
                {"name": "image", "dtype": "uint8", "shape": [3, 5]},
                {"name": "row", "dtype": "int64", "shape": []},
                {"name": "weight", "dtype": "float32", "shape": [2]},
            ],
        }
    )


# Commits as bytes


@st.composite
def objects(draw: st.DrawFn) -> tuple[StoredObject, ...]:
    checksum = st.integers(0, 2**64 - 1)
    return tuple(
        StoredObject(
            f"objects/{draw(st.sampled_from(['a', 'B.1']))}/x-{number}.h5",
            draw(checksum),
            draw(checksum),
            template(SCHEMA, rows).layout,
            rows * SCHEMA.row_nbytes,
        )
        for number, rows in enumerate(draw(st.lists(st.sampled_from([1, 7, 5000]), max_size=5)))
    )


@given(
    objects(),
    st.lists(st.sampled_from(IDS), unique=True),
    st.dictionaries(st.text(), st.text() | st.integers() | st.none()),
)
def test_a_commit_is_read_as_it_is_written(
    objects: tuple[StoredObject, ...], replaces: list[CommitId], info: dict[str, Any]
) -> None:
    written = Commit(SCHEMA.hash, objects, tuple(replaces), info)
    body = written.to_bytes()
    assert Commit.from_bytes(body, SCHEMA, place="here") == written
    value = json.loads(body)
    assert body == canonical_json(value)
    assert len(value["layouts"]) == len({json.dumps(layout) for layout in value["layouts"]})
    assert {len(column) for column in value["objects"].values()} == {len(objects)}


def a_commit() -> dict[str, Any]:
    """A commit of two objects, as JSON."""
    layouts = [template(SCHEMA, rows).layout for rows in (9, 4)]
    keys = ["objects/w/a-0.h5", "objects/w/a-1.h5"]
    stored_objects = (StoredObject(k, 1, 2, o, 0) for k, o in zip(keys, layouts, strict=True))
    body = Commit(SCHEMA.hash, tuple(stored_objects), (CommitId(1, "w", 0),)).to_bytes()
    return json.loads(body)


UNKNOWN = (
    ("more",),
    ("layouts", 0, "more"),
    ("layouts", 0, "offsets", "more"),
    ("layouts", 0, "blocks", "more"),
    ("objects", "more"),
)


@pytest.mark.parametrize("value", [None, -1, "x", [], {"x": [1]}])
@pytest.mark.parametrize("path", UNKNOWN, ids=str)
def test_keys_that_are_not_known_mean_nothing(path: tuple[Any, ...], value: Any) -> None:
    """A later version may have put them there; what a reader must know stands in `requires`."""
    expected = Commit.from_bytes(canonical_json(a_commit()), SCHEMA, place="here")
    changed = a_commit()
    put(*path, value)(changed)
    assert changed != a_commit()
    read = Commit.from_bytes(canonical_json(changed), SCHEMA, place="here")
    assert (read.objects, read.replaces) == (expected.objects, expected.replaces)
    changed["requires"] = []
    assert Commit.from_bytes(canonical_json(changed), SCHEMA, place="here") == read


def test_what_people_wrote_under_info_is_ignored() -> None:
    for info in ({"anything": [1, {"x": None}]}, {}, "text", None, 5):
        value = {**a_commit(), "info": info}
        assert len(Commit.from_bytes(canonical_json(value), SCHEMA, place="here").objects) == 2
    value = a_commit()
    del value["info"]
    assert len(Commit.from_bytes(canonical_json(value), SCHEMA, place="here").objects) == 2


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A mutation: the last of `path` goes where the others lead."""
    *where, last, value = path

    def mutate(target: Any) -> None:
        for step in where:
            target = target[step]
        target[last] = value

    return mutate


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A mutation: what `path` leads to is taken out."""

    def mutate(target: Any) -> None:
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return mutate


UPGRADE = "this version of storage_loader reads format 1: upgrade it"
COLUMNS = (
    "'objects' does not hold the columns key, rows, nbytes, checksum, directory_checksum, layout"
)
LAYOUT_KEYS = "a layout holds blocks, directory, offsets"
OUTSIDE = "overlaps another part, lies outside or is not on a 64-byte boundary"

MALFORMED: list[tuple[Callable[[Any], None], str]] = [
    (put("format", 2), f"format 2; {UPGRADE}"),
    (put("format", 0), f"format 0; {UPGRADE}"),
    (put("format", True), f"format True; {UPGRADE}"),
    (put("format", "1"), f"format '1'; {UPGRADE}"),
    (drop("format"), f"format None; {UPGRADE}"),
    (drop("schema"), "missing keys ['schema']"),
    (drop("replaces"), "missing keys ['replaces']"),
    (drop("layouts"), "missing keys ['layouts']"),
    (drop("objects"), "missing keys ['objects']"),
    (put("requires", ["x"]), "it requires ['x'], which this version of storage_loader does not"),
    (put("requires", "x"), "'requires' is not a list of names"),
    (put("requires", None), "'requires' is not a list of names"),
    (put("requires", [["x"]]), "'requires' is not a list of names"),
    (put("schema", "0" * 16), "written for another schema ('0000000000000000')"),
    (put("schema", None), "written for another schema (None)"),
    (put("replaces", "x"), "'replaces' is not a list"),
    (put("replaces", {}), "'replaces' is not a list"),
    (put("replaces", ["x"]), "'replaces' holds what is no commit id"),
    (put("replaces", 0, 7), "'replaces' holds what is no commit id"),
    (put("layouts", {}), "'layouts' is not a list"),
    (put("layouts", 0, []), LAYOUT_KEYS),
    (drop("layouts", 0, "directory"), LAYOUT_KEYS),
    (
        put("layouts", 0, "offsets", []),
        "a layout's 'offsets' does not name the schema's regions",
    ),
    (drop("layouts", 0, "offsets", "row"), "a layout's 'offsets' does not name the schema's"),
    (
        put("layouts", 0, "offsets", "row", -64),
        "offsets of 'row' is -64, not a whole number from 0",
    ),
    (put("layouts", 0, "offsets", "row", 64.0), "offsets of 'row' is 64.0, not a whole number"),
    (put("layouts", 0, "offsets", "row", "64"), "offsets of 'row' is '64', not a whole number"),
    (put("layouts", 0, "offsets", "row", True), "offsets of 'row' is True, not a whole number"),
    (put("layouts", 0, "offsets", "row", 2**63), f"offsets of 'row' is {2**63}, not a whole"),
    (put("layouts", 0, "offsets", "row", 2**62), OUTSIDE),
    (put("layouts", 0, "offsets", "row", 0), OUTSIDE),
    (put("layouts", 0, "offsets", "row", 1000), OUTSIDE),
    (
        put("layouts", 0, "blocks", "row", 0),
        "blocks of 'row' is 0, not a whole number from 1",
    ),
    (put("layouts", 0, "blocks", "row", None), "blocks of 'row' is None, not a whole"),
    (put("layouts", 0, "directory", -1), "directory is -1, not a whole number from 0 up"),
    (put("layouts", 0, "directory", 2**40), OUTSIDE),
    (put("layouts", 0, "directory", 0), OUTSIDE),
    (put("objects", []), COLUMNS),
    (drop("objects", "rows"), COLUMNS),
    (put("objects", "rows", 9), "'rows' is not a list"),
    (put("objects", "rows", [9]), "the columns of 'objects' differ in length"),
    (put("objects", "key", ["objects/w/a-0.h5"] * 3), "the columns of 'objects' differ in length"),
    (put("objects", "key", 0, "objects/../secret.h5"), "'objects/../secret.h5' is no key of an"),
    (put("objects", "key", 0, "objects/w/../../x.h5"), "'objects/w/../../x.h5' is no key of an"),
    (put("objects", "key", 0, "/objects/w/a.h5"), "'/objects/w/a.h5' is no key of an object"),
    (put("objects", "key", 0, "objects/w/a.h5\n"), "is no key of an object"),
    (put("objects", "key", 0, "objects/w/.h5"), "'objects/w/.h5' is no key of an object"),
    (put("objects", "key", 0, "objects/w/a.json"), "'objects/w/a.json' is no key of an object"),
    (put("objects", "key", 0, "metadata/w/a.h5"), "'metadata/w/a.h5' is no key of an object"),
    (put("objects", "key", 0, None), "None is no key of an object"),
    (put("objects", "rows", 0, 0), "rows of objects/w/a-0.h5 is 0, not a whole number from 1 up"),
    (put("objects", "rows", 0, -9), "rows of objects/w/a-0.h5 is -9, not a whole number"),
    (put("objects", "rows", 0, float("nan")), "not JSON: NaN is no number of JSON"),
    (put("info", {"x": float("inf")}), "not JSON: Infinity is no number of JSON"),
    (put("objects", "rows", 0, 9.0), "rows of objects/w/a-0.h5 is 9.0, not a whole number"),
    (put("objects", "rows", 0, 100_000), OUTSIDE),
    (put("objects", "rows", 0, 2**63 - 1), "blocks; an object has at most 5368709120,"),
    (
        put("objects", "nbytes", 0, 2**33),
        "8589934592 bytes, 9 rows, 3 blocks; an object has at most",
    ),
    (put("objects", "key", 1, "objects/w/a-0.h5"), "objects/w/a-0.h5 stands twice"),
    (put("objects", "key", 1, f"objects/w/{'a' * 201}.h5"), "is no key of an object"),
    (put("objects", "nbytes", 0, 0), "nbytes of objects/w/a-0.h5 is 0, not a whole number from 1"),
    (put("objects", "nbytes", 0, 64), OUTSIDE),
    (put("objects", "nbytes", 1, "1"), "nbytes of objects/w/a-1.h5 is '1', not a whole number"),
    (put("objects", "checksum", 0, "0"), "checksum '0' of objects/w/a-0.h5 is not 16 hex digits"),
    (put("objects", "checksum", 0, "G" * 16), "of objects/w/a-0.h5 is not 16 hex digits"),
    (put("objects", "checksum", 0, 5), "checksum 5 of objects/w/a-0.h5 is not 16 hex digits"),
    (put("objects", "directory_checksum", 1, None), "checksum None of objects/w/a-1.h5 is not 16"),
    (put("objects", "layout", 0, 2), "there is no layout 2"),
    (put("objects", "layout", 0, -1), "layout of objects/w/a-0.h5 is -1, not a whole number"),
    (put("objects", "layout", 0, None), "layout of objects/w/a-0.h5 is None, not a whole number"),
]


@pytest.mark.parametrize(("mutate", "message"), MALFORMED, ids=[m for _, m in MALFORMED])
def test_a_malformed_commit_is_refused(mutate: Callable[[Any], None], message: str) -> None:
    value = a_commit()
    mutate(value)
    with pytest.raises(FormatError) as caught:
        Commit.from_bytes(json.dumps(value).encode(), SCHEMA, place="s3://b/x.json")
    assert str(caught.value).startswith("s3://b/x.json: ")
    assert message in str(caught.value)


NO_JSON = [
    b'{"format": 1, "info": 1e999}',
    b'{"format": 1, "info": [-1E400]}',
    b'{"format": 1, "info": "\\ud800"}',
    b'{"format": 1, "\\uDFFF": 1}',
    b'{"format": 1, "info": ["\\udc00\\ud800"]}',
    b'{"format": 1' + b"0" * 5000 + b"}",
    b"",
    b"{",
    b"[]",
    b"null",
    b"5",
    b"\xff",
    b'{"format": 1',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: repr(body[:20]))
def test_bytes_that_are_no_json_object_are_no_commit(body: bytes) -> None:
    with pytest.raises(FormatError, match=r"^here: (not JSON: |a JSON object is needed$)"):
        Commit.from_bytes(body, SCHEMA, place="here")


@pytest.mark.parametrize(
    ("info", "read"),
    [
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (rb'{"a": "\\ud800"}', {"a": r"\ud800"}),
        (b'{"a": [1e308, -1.5, 5e-324, 1e-999]}', {"a": [1e308, -1.5, 5e-324, 0.0]}),
    ],
)
def test_what_people_write_into_a_commit_is_read(info: bytes, read: dict[str, Any]) -> None:
    body = canonical_json({**a_commit(), "info": "HERE"}).replace(b'"HERE"', info)
    assert Commit.from_bytes(body, SCHEMA, place="here").info == read


def test_columns_may_not_overlap() -> None:
    value = a_commit()
    offsets = value["layouts"][0]["offsets"]
    offsets["row"] = offsets["image"]
    with pytest.raises(FormatError, match=OUTSIDE):
        Commit.from_bytes(json.dumps(value).encode(), SCHEMA, place="here")


@given(data=st.data())
def test_any_change_of_a_commit_is_read_or_refused(data: st.DataObject) -> None:
    """Never another error, whatever stands there."""
    value = a_commit()
    target: Any = value
    while True:
        keys = sorted(target) if isinstance(target, dict) else list(range(len(target)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    anything = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**65), 2**65)
        | st.floats()
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
    target[key] = data.draw(anything)
    try:
        Commit.from_bytes(json.dumps(value).encode(), SCHEMA, place="here")
    except FormatError as error:
        assert str(error).startswith("here: ")  # noqa: PT017


@pytest.mark.parametrize("read", [Dataset, DataLoader], ids=["Dataset", "DataLoader"])
def test_a_malformed_commit_is_named_where_it_is_read(folder: dict[str, str], read: Any) -> None:
    save(config(folder), make([1]))
    [path] = Path(folder["storage"]).rglob("metadata/*.json")
    path.write_bytes(b'{"format": 2}')
    with pytest.raises(FormatError) as caught:
        read(config(folder)).open()
    assert str(caught.value) == f"file://{path}: format 2; {UPGRADE}"


def test_files_that_are_no_commits_are_ignored(folder: dict[str, str]) -> None:
    save(config(folder), make([1]))
    [path] = Path(folder["storage"]).rglob("metadata/*.json")
    for name in (".tmp-0123", "notes.txt", "000000000009-x-000000", "1-x-0.json", "x.json"):
        (path.parent / name).write_text("no commit")
    assert stored(config(folder)) == [1]
    save(config(folder), make([2]))
    assert stored(config(folder)) == [1, 2]


NO_COMMITS = (
    "999999999999-w-000000.json",  # a writer could put nothing after it
    "100000000000-w-000000.json",
    "000000000001-w-0000001.json",
    "000000000001-W-000000.JSON",
    "\u0661" * 12 + "-w-000000.json",
    "x/000000000009-w-000000.json",
    "000000000009-w-000000.json/000000000009-w-000000.json",
)


def test_foreign_files_beside_the_commits_are_stepped_over(storage: dict[str, str]) -> None:
    """By readers, writers, refreshes and drops; `gc` reports them, and `delete` removes them."""
    the_config = config(storage)
    save(the_config, make([1]))
    catalog = Catalog(the_config)
    foreign = sorted(f"{catalog.commit_folder}/{name}" for name in NO_COMMITS)
    for key in foreign:
        catalog.store.put(key, b"no commit")
    assert stored(the_config) == [1]
    with DataSaver(the_config, writer="w") as saver:
        saver(make([2]))
    assert stored(the_config) == [1, 2]
    save(the_config, make([3]), refresh=True)
    save(the_config, make([4]))
    drop_commit(the_config, Dataset(the_config).version.commits[-1])
    assert stored(the_config) == [3]
    assert [entry.id[:12] for entry in commit_log(the_config)] == [f"{n:012}" for n in range(1, 6)]
    assert verify_dataset(the_config).problems == ()
    collected = collect_garbage(the_config)
    assert list(collected.foreign) == foreign
    assert collected.garbage == ()
    storage_loader.delete(the_config)
    assert list(catalog.store.list(catalog.prefix)) == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_commit_that_none_can_follow_is_named_and_can_be_removed(
    storage: dict[str, str], is_whole: bool
) -> None:
    the_config = config(storage)
    save(the_config, make([1, 2]))
    last = CommitId(LAST_SEQ, "w", 0)
    catalog = Catalog(the_config)
    key = catalog.commit_key(last)
    body = commit().to_bytes() if is_whole else b"no commit"
    catalog.store.put(key, body)
    message = rf"{re.escape(catalog.store.url)}/{key}: no commit can follow .* delete it if"
    for refresh in (False, True):
        with pytest.raises(SaverError, match=message):
            save(the_config, make([3]), refresh=refresh)
    if is_whole:
        assert stored(the_config) == [1, 2]
        with pytest.raises(SaverError, match=message):
            drop_commit(the_config, Dataset(the_config).version.commits[0])
    catalog.store.delete([key])
    save(the_config, make([3]))  # as it says
    assert stored(the_config) == [1, 2, 3]
    catalog.store.put(key, body)
    storage_loader.delete(the_config)
    assert list(catalog.store.list(catalog.prefix)) == []
    save(the_config, make([4]))
    assert stored(the_config) == [4]


# dataset.json


def a_dataset() -> dict[str, Any]:
    return {
        "format": 1,
        "name": "rows",
        "additional": {"split": "train"},
        "attributes": SCHEMA.to_json(),
    }


WRONG_DATASETS: list[tuple[Callable[[Any], None], str]] = [
    (put("format", 2), f"format 2; {UPGRADE}"),
    (drop("format"), f"format None; {UPGRADE}"),
    (drop("name"), "missing keys ['name']"),
    (drop("additional"), "missing keys ['additional']"),
    (drop("attributes"), "missing keys ['attributes']"),
    (put("requires", ["x"]), "it requires ['x'], which this version of storage_loader does not"),
    (put("requires", {"x": 1}), "'requires' is not a list of names"),
    (put("order", "commit"), "order 'commit'; this version of storage_loader knows 'writer'"),
    (put("order", None), "order None; this version of storage_loader knows 'writer'"),
    (put("name", 5), "dataset_name 5: 1 to 128 letters"),
    (put("name", "../x"), "dataset_name '../x': 1 to 128 letters"),
    (
        put("name", "other"),
        "this describes another dataset, {'additional': {'split': 'train'}, 'name': 'oth",
    ),
    (put("additional", {}), "this describes another dataset, {'additional': {}, 'name': 'rows'}"),
    (put("additional", []), "additional: a dict of JSON scalars, not list"),
    (put("additional", "split", ["a"]), "additional['split'] = ['a']: a JSON scalar is needed"),
    (put("additional", "split", float("nan")), "not JSON: NaN is no number of JSON"),
    (put("additional", "split", 10**400), "this describes another dataset"),
    (
        put("additional", "split", "\ud800"),
        "not JSON: a text holds half a character",
    ),
    (put("attributes", {}), "attributes: a list, not dict"),
    (put("attributes", []), "a dataset needs at least one attribute"),
    (put("attributes", 0, "image"), "an attribute is an object, not 'image'"),
    (put("attributes", 0, "dtype", "float8"), "attribute 'image': unknown dtype 'float8'"),
    (put("attributes", 0, "dtype", 8), "attribute 'image': unknown dtype 8; valid"),
    (put("attributes", 0, "shape", [-1]), "attribute 'image': shape (-1,)"),
    (put("attributes", 0, "shape", [2**20, 2**40]), "(1048576, 1099511627776) are too large"),
    (put("attributes", 0, "shape", 3), "an attribute's shape is a list, not 3"),
    (put("attributes", 0, "name", ".directory"), "attribute name '.directory': 1 to 128 letters"),
    (put("attributes", 0, "name", "row"), "attribute 'row' stands twice"),
    (drop("attributes", 0, "dtype"), "an attribute lacks ['dtype']"),
]


@pytest.mark.parametrize(("mutate", "message"), WRONG_DATASETS, ids=[m for _, m in WRONG_DATASETS])
def test_a_malformed_dataset_json_is_refused(
    memory: dict[str, str], mutate: Callable[[Any], None], message: str
) -> None:
    the_config = DataConfig("rows", additional={"split": "train"}, **memory)
    key = f"{the_config.dataset_prefix}/dataset.json"
    value = a_dataset()
    MemoryStore(memory["storage"]).put(key, json.dumps(value).encode())
    assert Catalog(the_config).require_schema() == SCHEMA
    mutate(value)
    MemoryStore(memory["storage"]).put(key, json.dumps(value).encode())
    with pytest.raises(FormatError) as caught:
        Catalog(the_config).require_schema()
    found: list[UnreadableDataset] = []
    assert list_datasets(**memory, unreadable=found.append) == []
    assert [(one.prefix, one.config) for one in found] == [(the_config.dataset_prefix, None)]
    for error in (caught.value, found[0].error):
        assert isinstance(error, FormatError)
        assert str(error).startswith(f"{memory['storage']}/{key}: ")
        assert message in str(error)


@pytest.mark.parametrize("path", [("more",), ("attributes", 0, "more")], ids=str)
def test_keys_of_dataset_json_that_are_not_known_mean_nothing(
    memory: dict[str, str], path: tuple[Any, ...]
) -> None:
    the_config = DataConfig("rows", SCHEMA, {"split": "train"}, **memory)
    value = a_dataset()
    put(*path, {"x": [None]})(value)
    key = f"{the_config.dataset_prefix}/dataset.json"
    MemoryStore(memory["storage"]).put(key, canonical_json(value))
    assert Catalog(the_config).require_schema() == SCHEMA
    save(the_config, make([1, 2]))
    assert stored(the_config) == [1, 2]
    assert verify_dataset(the_config).problems == ()


@pytest.mark.parametrize("body", NO_JSON, ids=lambda body: repr(body[:20]))
def test_a_dataset_json_that_is_no_json_object_is_refused(
    memory: dict[str, str], body: bytes
) -> None:
    the_config = DataConfig("rows", **memory)
    MemoryStore(memory["storage"]).put(f"{the_config.dataset_prefix}/dataset.json", body)
    with pytest.raises(FormatError, match=r"dataset.json: (not JSON: |a JSON object is needed$)"):
        Dataset(the_config).open()


def test_no_dataset_names_what_there_is(storage: dict[str, str]) -> None:
    def message(the_config: DataConfig) -> str:
        with pytest.raises(DatasetNotFoundError) as caught:
            Dataset(the_config).open()
        return str(caught.value)

    absent = config(storage, "absent")
    store = Catalog(absent).store
    url = store.url
    store.put("note.txt", b"no dataset")  # the place is there
    assert message(absent) == f"no dataset 'absent' in {url}; the storage holds no dataset"
    save(config(storage, additional={"split": "train", "version": 1}), make([1]))
    save(config(storage, additional={"split": "test", "version": 1}), make([1]))
    assert message(absent) == f"no dataset 'absent' in {url}; the storage holds: 'rows'"
    assert message(config(storage, additional={"split": "tain"})) == (
        f"no dataset 'rows' with additional {{'split': 'tain'}} in {url}; 'rows' exists with "
        "additional: {'split': 'test', 'version': 1}, {'split': 'train', 'version': 1}"
    )
    killed = config(storage, "killed")
    store.put(f"{killed.dataset_prefix}/objects/left.h5", b"of a saver that was killed")
    assert message(killed) == (
        f"no dataset 'killed' in {url}; nothing of 'killed' was committed yet: a saver is at work, "
        "or was killed (storage-loader gc removes what it left)"
    )
    store.delete([f"{killed.dataset_prefix}/objects/left.h5"])
    store.put(".storage-loader-check/1/put", b"of a check that was killed")
    assert message(absent) == f"no dataset 'absent' in {url}; the storage holds: 'rows'"
    for number in range(13):
        save(config(storage, f"more{number:02}"), make([1]))
    assert message(absent).endswith("'more10', 'more11' and 2 more")
    assert isinstance(DatasetNotFoundError(), FileNotFoundError)


class KeepingFolders(ForwardingStore):
    """A server whose folders stay when their objects are deleted, as SeaweedFS."""

    def list_folders(self, prefix: str = "") -> list[str]:
        return sorted({*super().list_folders(prefix), *([] if prefix else ["rows"])})


def test_a_folder_that_a_server_keeps_is_no_dataset(memory: dict[str, str]) -> None:
    the_config = config(memory)
    store = KeepingFolders(open_store(the_config))

    def said() -> str:
        with pytest.raises(DatasetNotFoundError) as caught:
            Catalog(the_config, store).require_schema()
        return str(caught.value)

    save(the_config, make([1]))
    storage_loader.delete(the_config)
    assert said() == f"no dataset 'rows' in {store.url}; the storage holds no dataset"
    save(config(memory, "other"), make([1]))
    assert said() == f"no dataset 'rows' in {store.url}; the storage holds: 'other'"
    store.put(f"{the_config.dataset_prefix}/objects/left.h5", b"of a saver that was killed")
    assert "a saver is at work" in said()


# Versions


def versions_of(the_config: DataConfig, count: int) -> list[Version]:
    """Save rows 0 to count - 1, a commit each; the version after each."""
    versions = []
    for number in range(count):
        save(the_config, make([number]))
        versions.append(Dataset(the_config).version)
    return versions


@pytest.mark.parametrize("form", [lambda v: v, str, lambda v: v.hash, lambda v: list(v.commits)])
def test_an_earlier_version_can_be_read(storage: dict[str, str], form: Any) -> None:
    the_config = config(storage)
    versions = versions_of(the_config, 3)
    save(the_config, make([100]), refresh=True)
    versions.append(Dataset(the_config).version)
    for number, version in enumerate(versions):
        expected = [100] if number == 3 else list(range(number + 1))
        source = Dataset(the_config, version=form(version))
        assert source[:]["row"].tolist() == expected
        assert source.version == version
        loader = DataLoader(the_config, version=form(version), batch_size=10)
        assert [b["row"].tolist() for b in loader] == [expected]


def test_a_version_and_its_hash() -> None:
    one, two = CommitId(1, "a", 0), CommitId(2, "b", 0)
    first, second, other = (dataclasses.replace(commit(), digest=d) for d in (1, 2, 3))
    version = Version.of({one: first, two: second})
    assert version.commits == ("000000000001-a-000000", "000000000002-b-000000")
    assert str(version) == version.hash
    different = [{}, {one: first}, {two: second, one: first}, {one: first, two: other}]
    assert len({version.hash, *(Version.of(commits).hash for commits in different)}) == 5
    assert repr(version) == f"Version({version.hash}, 2 commits)"
    assert Version.parse(version.text) == version
    assert Version.parse(Version.of({}).text) == Version.of({})
    assert version != Version(version.commits)  # which takes whatever has these ids


@pytest.mark.parametrize(
    "text", ["", " ", "000000000001-a-000000", "0123456789abcdeg 000000000001-a-000000"]
)
def test_text_that_is_no_version(text: str) -> None:
    assert Version.parse(text) is None


def made_again(the_config: DataConfig) -> tuple[DataLoader, dict[str, Any]]:
    """A loader in the middle of a dataset of rows 0 to 19, and its state; then the dataset is
    deleted and made again with other rows by a writer of the same name: 100 to 119."""
    for first in (0, 100):
        with DataSaver(the_config, writer="part-0000") as saver:
            for start in (first, first + 10):
                saver(make(range(start, start + 10)))
                saver.commit()
        if first == 0:
            loader = DataLoader(the_config, batch_size=4)
            assert next(iter(loader))["row"].tolist() == [0, 1, 2, 3]
            state = json.loads(json.dumps(loader.state_dict()))
            storage_loader.delete(the_config)
    assert Dataset(the_config).version.commits == loader.version.commits
    return loader, state


MADE_AGAIN = "other contents than this version had: the dataset was deleted and made again"


def test_a_dataset_made_again_is_another_version(storage: dict[str, str]) -> None:
    """With a named writer its commits have the ids of the old ones."""
    the_config = config(storage)
    loader, state = made_again(the_config)
    version, newest = loader.version, Dataset(the_config).version
    assert version.hash != newest.hash
    other = DataLoader(the_config, batch_size=4)
    pinned = pickle.loads(pickle.dumps(version))
    for source in (Dataset, DataLoader):
        with pytest.raises(VersionNotFoundError, match=MADE_AGAIN):
            source(the_config, version=pinned).open()
        with pytest.raises(VersionNotFoundError, match="no state has this hash"):
            source(the_config, version=version.hash).open()
    for verb in (dataset_info, verify_dataset):
        with pytest.raises(VersionNotFoundError, match=MADE_AGAIN):
            verb(the_config, version=pinned)
    with pytest.raises(VersionNotFoundError, match=MADE_AGAIN):
        other.load_state_dict(state)
    assert [b["row"].tolist()[0] for b in other] == [100, 104, 108, 112, 116]  # it is as it was
    # Ids alone name the commits that there are, and the new version is its own.
    for named in (list(version.commits), version.commits[-1], Version(version.commits), newest):
        assert Dataset(the_config, version=named)[:]["row"].tolist() == list(range(100, 120))
    other.load_state_dict(DataLoader(the_config).state_dict())


def test_a_loader_of_a_dataset_made_again_never_mixes(folder: dict[str, str]) -> None:
    """Gone on with, it has rows of its own commits from files it holds open; else it misses their
    objects, as one that is pickled for workers does."""
    loader, _ = made_again(config(folder))
    with pytest.raises(ObjectNotFoundError):
        list(pickle.loads(pickle.dumps(loader)))
    rows: list[int] = []
    with contextlib.suppress(ObjectNotFoundError):
        for batch in loader:
            rows += batch["row"].tolist()
    assert rows == list(range(20))[: len(rows)]


def test_peers_take_no_other_dataset_for_the_first_ones(memory: dict[str, str]) -> None:
    told: list[Any] = []
    the_config = config(memory)

    def tell(value: Any) -> Any:
        told.append(json.loads(json.dumps(value)))
        return told[-1]

    first = Peers("rank 0", True, tell).newest_version
    second = Peers("rank 0", False, lambda value: told[-1]).newest_version
    for number in (0, 100):
        with DataSaver(the_config, writer="part-0000") as saver:
            saver(make([number]))
        if number == 0:
            assert first(the_config) == second(the_config) == Dataset(the_config).version
            storage_loader.delete(the_config)
    with pytest.raises(VersionNotFoundError, match=MADE_AGAIN):
        Dataset(the_config, version=second(the_config)).open()


def test_versions_that_are_not_there(folder: dict[str, str]) -> None:
    the_config = config(folder)
    [first, second] = versions_of(the_config, 2)
    for path in Path(folder["storage"]).rglob(f"metadata/{first.commits[0]}.json"):
        path.unlink()
    for wrong in (first, list(first.commits)):
        with pytest.raises(VersionNotFoundError) as caught:
            Dataset(the_config, version=wrong).open()
        assert str(caught.value) == (
            f"commits of this version are gone or never were: ['{first.commits[0]}']"
        )
    with pytest.raises(VersionNotFoundError) as caught:
        Dataset(the_config, version=second.hash).open()
    assert str(caught.value) == (
        f"no version '{second.hash}': of 1 commits no state has this hash or is after "
        "this commit; `storage-loader log` lists them"
    )
    with pytest.raises(VersionNotFoundError, match=r"never were: \['nonsense'\]"):
        Dataset(the_config, version=["nonsense"]).open()
    with pytest.raises(ConfigError, match=r"^version 5: a Version, its hash, a commit id"):
        Dataset(the_config, version=5).open()  # type: ignore[arg-type]


def test_an_empty_version(folder: dict[str, str]) -> None:
    the_config = config(folder)
    versions_of(the_config, 2)
    for empty in (Version(()), [], Version.of({}), Version.of({}).hash):
        assert len(Dataset(the_config, version=empty)) == 0


def test_a_reader_stays_at_its_version(storage: dict[str, str]) -> None:
    the_config = config(storage)
    save(the_config, make(range(3)))
    source, loader = Dataset(the_config), DataLoader(the_config, batch_size=10)
    unopened = Dataset(the_config)
    assert len(source) == len(loader) * 3 == 3
    save(the_config, make([7]), refresh=True)
    assert source[:]["row"].tolist() == [0, 1, 2]
    assert [b["row"].tolist() for b in loader] == [[0, 1, 2]]
    assert unopened[:]["row"].tolist() == [7]


# Commits that vanish while they are read


def test_a_dataset_that_is_replaced_while_it_is_read_is_read_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(memory)
    versions_of(the_config, 2)

    def replace() -> None:
        storage_loader.delete(the_config)
        save(the_config, make([7, 8]))

    during(monkeypatch, "get commit", replace)
    assert len(Dataset(the_config)) == 2
    assert stored(the_config) == [7, 8]


def test_a_dataset_that_is_replaced_by_another_schema_while_it_is_read(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions_of(config(memory), 2)
    other = config(memory, attributes=[("row", "int64")])

    def replace() -> None:
        storage_loader.delete(config(memory))
        save(other, {"row": [7, 8]})

    during(monkeypatch, "get commit", replace)
    assert Dataset(DataConfig("rows", **memory))[:]["row"].tolist() == [7, 8]


def test_a_dataset_that_is_deleted_while_it_is_read_does_not_exist(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions_of(config(memory), 2)
    during(monkeypatch, "get commit", lambda: storage_loader.delete(config(memory)))
    with pytest.raises(DatasetNotFoundError, match="the storage holds no dataset"):
        Dataset(config(memory)).open()


@pytest.mark.parametrize("read", ["snapshot", "log"])
def test_a_reader_gets_on_however_many_commits_come_and_go(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Whenever all commits are listed a new one is among them, and gone before it is read."""
    versions_of(config(memory), 5)
    plain = MemoryStore(memory["storage"])
    kept = {i.key for i in plain.list(f"{config(memory).dataset_prefix}/metadata")}
    left = 20

    def come_and_go(call: Call) -> None:
        nonlocal left
        if call.kind == "list metadata" and left:
            left -= 1
            key = min(kept).replace("00000000000", f"09{left:09}", 1)
            plain.put(key, bytes(plain.get(min(kept))))
        elif call.kind == "get commit" and call.key not in kept:
            plain.delete([call.key])

    stores = watch(monkeypatch, before=come_and_go)
    if read == "snapshot":
        assert Dataset(config(memory))[:]["row"].tolist() == list(range(5))
    else:
        assert [entry.num_rows for entry in storage_loader.commit_log(config(memory))] == [1] * 5
    asked = [call.key for call in stores[0].calls if call.kind == "get commit"]
    assert sorted(key for key in asked if key in kept) == sorted(kept)  # each once
    assert len(asked) == 5 + 20


def test_a_server_that_lists_ever_new_absent_commits_is_given_up(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions_of(config(memory), 1)
    catalog = Catalog(config(memory))
    real = catalog.commit_infos()
    lists = 0

    def listed(infos: object) -> dict[CommitId, Any]:
        nonlocal lists
        lists += 1
        return {**real, CommitId(10**6 + lists, "absent", 0): next(iter(real.values()))}

    monkeypatch.setattr("storage_loader.catalog.catalog._CHURN", 1.0)
    monkeypatch.setattr(catalog, "_commits_among", listed)
    with pytest.raises(StoreError, match="each list names commits that are not there"):
        catalog.snapshot()
    assert 2 < lists < 50  # with pauses between


def test_commits_that_stay_unreadable_are_an_error(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(call: Call) -> None:
        if call.kind == "get commit":
            raise ObjectNotFoundError(f"get {call.key}: there is no such object")

    versions_of(config(memory), 2)
    stores = watch(monkeypatch, before=gone)
    with pytest.raises(ObjectNotFoundError, match=r"metadata/0.*is listed, and there is no such"):
        Dataset(config(memory)).open()
    assert len(stores[0].kinds("list metadata")) == 3


# delete


def test_delete_leaves_nothing_of_it_and_all_of_others(storage: dict[str, str]) -> None:
    train, test = (config(storage, additional={"split": s}) for s in ("train", "test"))
    for the_config in (train, test, config(storage, "rows2")):
        versions_of(the_config, 2)
    storage_loader.delete(DataConfig("rows", additional={"split": "train"}, **storage))
    store = Catalog(train).store
    assert list(store.list(train.dataset_prefix)) == []
    assert stored(test) == [0, 1]
    assert stored(config(storage, "rows2")) == [0, 1]
    with pytest.raises(DatasetNotFoundError, match=r"^no dataset 'rows' with additional \{'split'"):
        storage_loader.delete(train)
    save(train, make([5]))
    assert stored(train) == [5]


def test_delete_with_other_attributes_is_refused(folder: dict[str, str]) -> None:
    versions_of(config(folder), 2)
    with pytest.raises(SchemaError, match="attribute 'image' of the dataset is missing"):
        storage_loader.delete(config(folder, attributes=[("row", "int64")]))
    assert stored(config(folder)) == [0, 1]


def test_delete_of_what_no_reader_can_read(folder: dict[str, str]) -> None:
    versions_of(config(folder), 2)
    [path] = Path(folder["storage"]).rglob("dataset.json")
    path.write_text("{}")
    storage_loader.delete(config(folder))
    assert [p for p in Path(folder["storage"]).rglob("*") if p.is_file()] == []


def test_delete_of_objects_that_were_never_committed(memory: dict[str, str]) -> None:
    MemoryStore(memory["storage"]).put(f"{config(memory).dataset_prefix}/objects/w/a.h5", b"x")
    with pytest.raises(DatasetNotFoundError):
        Dataset(config(memory)).open()
    storage_loader.delete(config(memory))
    assert list(MemoryStore(memory["storage"]).list()) == []


def steps_of_a_delete() -> int:
    """Calls of the store that a delete of the dataset below makes."""
    the_config = config({"storage": f"memory://{uuid.uuid4().hex}"})
    versions_of(the_config, 3)
    store = WatchedStore(MemoryStore(the_config.storage))
    Catalog(the_config, store).delete()
    return len(store.calls)


STEPS = steps_of_a_delete()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(STEPS))
def test_a_delete_that_stops_leaves_the_dataset_whole_or_empty(
    memory: dict[str, str], step: int, after: bool
) -> None:
    the_config = config(memory)
    versions_of(the_config, 3)
    calls = 0

    def stop(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls > step:
            raise Injected(f"{call.verb} {call.key}: the disk is on fire")

    store = WatchedStore(MemoryStore(the_config.storage), **{"after" if after else "before": stop})
    try:
        Catalog(the_config, store).delete()
    except StoreError:
        pass
    else:
        assert after
        assert step == STEPS - 1
    try:
        assert stored(the_config) in ([0, 1, 2], [])
    except DatasetNotFoundError:
        assert list(MemoryStore(memory["storage"]).list()) == []
    # A saver of another schema is told so, or finds the place free: never half of each.
    other = config(memory, attributes=[("row", "int64")])
    try:
        save(other, {"row": [9]})
    except SchemaError:
        storage_loader.delete(the_config)
        assert list(MemoryStore(memory["storage"]).list()) == []
        save(other, {"row": [9]})
    assert Dataset(other)[:]["row"].tolist() == [9]


# list_datasets


def test_list_datasets(storage: dict[str, str]) -> None:
    Catalog(config(storage)).store.put("note.txt", b"no dataset")  # the place is there
    assert list_datasets(**storage) == []
    for split in ("train", "test"):
        versions_of(config(storage, "b", additional={"split": split, "n": 1}), 2)
    versions_of(config(storage, "a"), 3)
    with pytest.raises(ZeroDivisionError), DataSaver(config(storage, "c")):
        raise ZeroDivisionError
    infos = list_datasets(**storage)
    assert [(i.config.dataset_name, dict(i.config.additional), i.num_rows) for i in infos] == [
        ("a", {}, 3),
        ("b", {"n": 1, "split": "test"}, 2),
        ("b", {"n": 1, "split": "train"}, 2),
    ]
    info = infos[0]
    assert (info.num_objects, len(info.version.commits)) == (3, 3)
    assert info.nbytes == sum(o.nbytes for o in Dataset(config(storage, "a")).open().objects)
    assert info.config == config(storage, "a")
    assert stored(info.config) == [0, 1, 2]
    assert dataset_info(DataConfig("a", **storage)) == info


def test_where_keeps_those_that_agree(memory: dict[str, str]) -> None:
    for additional in ({"split": "train", "v": 1}, {"split": "test", "v": 1}, {"v": 2}, {}):
        save(config(memory, additional=additional), make([1]))

    def found(where: dict[str, Any] | None) -> list[dict[str, Any]]:
        return [dict(i.config.additional) for i in list_datasets(**memory, where=where)]

    assert found({"split": "train"}) == [{"split": "train", "v": 1}]
    assert found({"v": 1}) == [{"split": "test", "v": 1}, {"split": "train", "v": 1}]
    assert found({"v": 1, "split": "test"}) == [{"split": "test", "v": 1}]
    assert found({"v": 3}) == found({"w": 1}) == found({"split": None}) == []
    assert found({"v": True}) == found({"v": 1.0}) == []  # other datasets, as JSON knows them
    assert len(found({})) == len(found(None)) == 4


def test_datasets_of_one_name_are_listed_whatever_the_others_are(folder: dict[str, str]) -> None:
    save(config(folder, "good", additional={"split": "train"}), make([1]))
    save(config(folder, "bad"), make([1]))
    [path] = Path(folder["storage"]).rglob("bad/*/dataset.json")
    path.write_text("{}")
    with pytest.warns(RuntimeWarning, match=f"file://{path}: format None"):
        assert [i.num_rows for i in list_datasets(**folder)] == [1]
    assert [i.num_rows for i in list_datasets(**folder, name="good")] == [1]
    assert list_datasets(**folder, name="goo") == []
    assert list_datasets(**folder, name="good", where={"split": "test"}) == []
    assert list_datasets(**folder, name="good/x") == []
    for wrong in ("", "../good", "good/"):
        with pytest.raises(ConfigError, match=f"^dataset_name '{wrong}': 1 to 128 letters"):
            list_datasets(**folder, name=wrong)


def test_listing_reads_no_object(memory: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions_of(config(memory), 3)
    stores = watch(monkeypatch)
    assert list_datasets(**memory)[0].num_rows == 3
    dataset_info(config(memory))
    kinds = {kind for store in stores for kind in store.kinds()}
    assert kinds == {"list_folders", "get dataset", "list metadata", "get commit"}


def test_a_dataset_deleted_while_listing_is_not_listed(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions_of(config(memory, "a"), 1)
    versions_of(config(memory, "b"), 1)
    during(monkeypatch, "get commit", lambda: storage_loader.delete(config(memory, "a")))
    assert [i.config.dataset_name for i in list_datasets(**memory)] == ["b"]


def test_other_files_in_the_folder_are_ignored(folder: dict[str, str]) -> None:
    save(config(folder), make([1]))
    root = Path(folder["storage"])
    for name in ("notes.txt", "pictures/cat.png", "pictures/deep/er/x", "rows/README"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("not ours")
    assert [i.config.dataset_name for i in list_datasets(**folder)] == ["rows"]


def test_list_datasets_where_nothing_is(tmp_path: Path) -> None:
    assert list_datasets(tmp_path) == []
    assert list_datasets() == []  # the default folder
    with pytest.raises(UnknownNameError, match="'were'; did you mean 'where'"):
        list_datasets(tmp_path, were={})  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [None, "rows"])
def test_list_datasets_of_a_missing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    nowhere = tmp_path / "nowhere"
    text = f"list file://{nowhere}: there is no folder {nowhere}; check the path (a saver makes it)"
    with pytest.raises(FolderNotFoundError) as caught:
        list_datasets(nowhere, name=name)
    assert str(caught.value) == text
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", str(nowhere))
    with pytest.raises(FolderNotFoundError):
        list_datasets(name=name)
    nowhere.write_text("a file")
    with pytest.raises(FolderNotFoundError, match=r"nowhere is no folder; check the path$"):
        list_datasets(nowhere, name=name)


@pytest.mark.parametrize(
    "reading",
    [
        lambda config: Dataset(config).open(),
        lambda config: len(DataLoader(config)),
        commit_log,
        verify_dataset,
        storage_loader.delete,
    ],
)
def test_a_missing_folder_is_no_empty_storage(
    folder: dict[str, str], reading: Callable[[DataConfig], object]
) -> None:
    place = Path(folder["storage"])
    with pytest.raises(DatasetNotFoundError) as caught:
        reading(config(folder))
    assert str(caught.value) == (
        f"no dataset 'rows' in file://{place}; there is no folder {place}; check the path "
        "(a saver makes it)"
    )
    assert not place.exists()
    save(config(folder), make([1]))
    reading(config(folder))


def test_list_datasets_of_a_missing_bucket(s3_server: Any, s3_storage: dict[str, str]) -> None:
    gone = {**s3_storage, "storage": f"s3://never-made-{uuid.uuid4().hex[:8]}"}
    with pytest.raises(BucketNotFoundError, match="there is no bucket 'never-made-"):
        list_datasets(**gone)
    with pytest.raises(BucketNotFoundError):
        Dataset(config(gone)).open()


def test_a_snapshot_knows_no_store(memory: dict[str, str]) -> None:
    versions_of(config(memory), 2)
    snapshot = Dataset(config(memory)).open()
    copy = pickle.loads(pickle.dumps(snapshot))
    assert (copy.version, copy.num_rows, copy.nbytes) == (
        snapshot.version,
        2,
        sum(o.nbytes for o in snapshot.objects),
    )
    assert snapshot.starts.tolist() == [0, 1, 2]
    assert [copy.key(i) for i in range(2)] == [snapshot.key(i) for i in range(2)]
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot.prefix = "x"  # type: ignore[misc]


def test_the_catalog_fails_as_its_store_does(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions_of(config(memory), 1)
    for kind in ("get dataset", "list metadata", "get commit"):
        with monkeypatch.context() as broken:
            watch(broken, before=FailAt(kind))
            with pytest.raises(Injected, match="the disk is on fire"):
                Dataset(config(memory)).open()
