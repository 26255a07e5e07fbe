"""Units and descriptions in the objects: what HDF5 users see, whoever made the dataset first."""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import replace
from typing import Any

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataSaver, Dataset, save, verify_dataset
from storage_loader.catalog import Catalog, Commit
from storage_loader.config import MIN_OBJECT_SIZE, canonical_json
from storage_loader.errors import FormatError, SchemaError
from storage_loader.schema import Schema
from storage_loader.store import open_store

PLAIN = [Attribute("x", "int64"), Attribute("pixels", "uint8", (2, 3)), Attribute("text", "str")]
METRES = [replace(a, unit="m", description=f"{a.name} as A says") for a in PLAIN]
FEET = [replace(METRES[0], unit="ft"), PLAIN[1], replace(PLAIN[2], description="é" * 4096)]
CODERS: list[Any] = [None, {"complib": "zstd"}]

Notes = dict[str, dict[str, str]]


def config_of(place: dict[str, str], attributes: Any, compressor: Any = None) -> DataConfig:
    return DataConfig("noted", attributes, compressor=compressor, **place)


def rows(first: int, count: int = 3) -> dict[str, Any]:
    numbers = list(range(first, first + count))
    pixels = [[[n % 256] * 3] * 2 for n in numbers]
    return {"x": numbers, "pixels": pixels, "text": [f"row {n}" for n in numbers]}


def notes_of(attributes: list[Attribute]) -> Notes:
    return {a.name: a.notes for a in attributes}


def seen(config: DataConfig) -> list[Notes]:
    """The notes that h5py shows, of each object in order."""
    store, found = open_store(config), []
    for stored in Dataset(config).open().objects:
        body = bytes(store.get(f"{config.dataset_prefix}/{stored.key}"))
        with h5py.File(io.BytesIO(body), "r") as h5:
            names = [name for name in h5 if not name.startswith(".")]
            found.append(
                {
                    name: {
                        k: v.decode()
                        for k, v in h5[name].attrs.items()
                        if k in ("unit", "description")
                    }
                    for name in names
                }
            )
    return found


def commits_of(config: DataConfig) -> list[Any]:
    store = open_store(config)
    keys = sorted(info.key for info in store.list(f"{config.dataset_prefix}/metadata"))
    return [json.loads(bytes(store.get(key))) for key in keys]


def assert_right(config: DataConfig, count: int) -> None:
    verified = verify_dataset(config)
    assert (verified.problems, verified.num_rows) == ((), count)
    assert Dataset(config)[:]["x"].tolist() == list(range(count))


@pytest.mark.parametrize("compressor", CODERS)
@pytest.mark.parametrize("other", [None, PLAIN, FEET], ids=["no attributes", "no notes", "others"])
def test_those_of_the_dataset_stay(memory: dict[str, str], other: Any, compressor: Any) -> None:
    """An append shows the dataset's, whatever its own config says."""
    save(config_of(memory, METRES, compressor), rows(0))
    config = config_of(memory, other, compressor)
    with DataSaver(config) as saver:
        for first in (3, 6):
            saver(rows(first))
            saver.commit()
    assert seen(config) == [notes_of(METRES)] * 3
    assert not any("notes" in commit for commit in commits_of(config))
    assert_right(config, 9)


@pytest.mark.parametrize("compressor", CODERS)
@pytest.mark.parametrize(("a", "b"), [(METRES, FEET), (FEET, PLAIN), (PLAIN, METRES)])
def test_two_creators_with_other_notes(
    memory: dict[str, str], a: list[Attribute], b: list[Attribute], compressor: Any
) -> None:
    """Neither knows of the other before it commits, and `verify` finds both right."""
    first, second = (DataSaver(config_of(memory, some, compressor)) for some in (a, b))
    with second:
        second.open()
        with first:
            first(rows(0))
            second(rows(3))
        second.commit()
        second(rows(6))
    config = config_of(memory, b, compressor)
    assert Dataset(config).schema.notes == {n: some for n, some in notes_of(a).items() if some}
    save(config, rows(9))
    assert seen(config) == [notes_of(some) for some in (a, b, b, a)]
    own = {name: some for name, some in notes_of(b).items() if some}
    assert [commit.get("notes") for commit in commits_of(config)] == [None, own, own, None]
    assert_right(config, 12)


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=64
)
notes = st.fixed_dictionaries({}, optional={"unit": texts, "description": texts})


@given(made=st.lists(notes, min_size=3, max_size=3), late=st.lists(notes, min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_text_is_shown(made: list[Any], late: list[Any]) -> None:
    place = {"storage": f"memory://{uuid.uuid4().hex}"}
    creator, other = (
        [replace(a, **own) for a, own in zip(PLAIN, some, strict=True)] for some in (made, late)
    )
    with DataSaver(config_of(place, other)) as saver:
        saver(rows(3))
        save(config_of(place, creator), rows(0))
    config = config_of(place, None)
    assert seen(config) == [notes_of(creator), notes_of(other)]
    assert_right(config, 6)


@pytest.mark.parametrize("compressor", CODERS)
@pytest.mark.parametrize("stated", [None, {}, {"x": {"unit": "m"}}, {"x": {"unit": "Ft"}}])
def test_verify_finds_others_than_are_stated(
    memory: dict[str, str], stated: Any, compressor: Any
) -> None:
    with DataSaver(config_of(memory, FEET[:1], compressor)) as saver:
        saver({"x": [0, 1, 2]})
        save(config_of(memory, METRES[:1], compressor), {"x": [3]})
    config = config_of(memory, None)
    assert verify_dataset(config).problems == ()
    catalog = Catalog(config)
    key = catalog.commit_key(catalog.commit_ids()[1])
    commit = json.loads(bytes(catalog.store.get(key)))
    assert commit["notes"]["x"]["unit"] == "ft"
    changed = {k: v for k, v in commit.items() if k != "notes"} | (
        {"notes": stated} if stated is not None else {}
    )
    catalog.store.put(key, canonical_json(changed))
    problems = verify_dataset(config).problems
    assert problems
    assert all("HDF5 may show other rows" in problem.what for problem in problems)
    if stated != {"x": {"unit": "Ft"}}:
        return
    commit["notes"]["x"]["unit"] = "Ft"  # as long as what is there: the header differs in a byte
    catalog.store.put(key, canonical_json(commit))
    [problem] = verify_dataset(config).problems
    assert problem.attribute == "x"


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        "x",
        {"y": {"unit": "m"}},
        {"x": "m"},
        {"x": {"unit": 5}},
        {"x": {"unit": ""}},
        {"x": {"unit": "m" * 65}},
        {"x": {"description": "m" * 4097}},
        {"x": {"description": "a\0b"}},
        {"x": None},
    ],
    ids=repr,
)
def test_wrong_notes_of_a_commit_are_refused(wrong: Any) -> None:
    schema = Schema.of(PLAIN)
    commit = json.loads(Commit(schema.hash).to_bytes())
    with pytest.raises(FormatError, match=r"^here: "):
        Commit.from_bytes(canonical_json({**commit, "notes": wrong}), schema, place="here")


def test_what_is_stated_of_notes_comes_back() -> None:
    schema = Schema.of(PLAIN)
    for stated in (None, {}, notes_of(METRES), {"x": {"unit": "m"}}):
        commit = Commit(schema.hash, notes=stated)
        assert Commit.from_bytes(commit.to_bytes(), schema, place="here") == commit
    commit = json.loads(Commit(schema.hash).to_bytes())
    commit["notes"] = {"x": {"unit": "m", "colour": [1, 2]}, "text": {}}
    read = Commit.from_bytes(canonical_json(commit), schema, place="here")
    assert read.notes == {"x": {"unit": "m"}}


def test_notes_have_room_in_the_smallest_object(memory: dict[str, str]) -> None:
    """A row and all notes; where these do not fit, the error says what would."""
    long = [Attribute(f"x{i}", "uint8", description="é" * 4096) for i in range(9)]
    config = DataConfig("long", long[:7], max_object_size=MIN_OBJECT_SIZE, **memory)
    with DataSaver(config) as saver:
        for _ in range(3):
            saver({a.name: [1] * 900 for a in long[:7]})
    assert max(Dataset(config).open().objects.nbytes) <= MIN_OBJECT_SIZE
    assert verify_dataset(config).problems == ()
    with pytest.raises(SchemaError, match="set max_object_size to"):
        DataSaver(DataConfig("longer", long, max_object_size=MIN_OBJECT_SIZE, **memory)).open()
