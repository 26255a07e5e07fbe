"""A small stored dataset, its files changed by someone who means no good, and what readers do.

`mutate` makes one structural change of a JSON value and `damage` one of bytes, each choosing by
`pick(n)`, a number from 0 to n - 1: hypothesis draws it, and so does
tests/security/fuzz.py. The `try_*` functions read what came of it. They return nothing where it was
refused with an error of this library; every other error, and every wrong row, escapes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from storage_loader import DataConfig, DataLoader, Dataset, list_datasets
from storage_loader.catalog import Catalog, Commit, CommitId
from storage_loader.errors import FormatError, StorageLoaderError
from storage_loader.schema import Schema
from storage_loader.store import MemoryStore, Store
from tests.support import ROOT
from tests.support.faulty import WatchedStore
from tests.support.rows import ATTRIBUTES, config, numbers_in

Pick = Callable[[int], int]
Files = Mapping[str, bytes]

MALICIOUS = ROOT / "tests" / "security" / "malicious"
BASE = MALICIOUS / "base"
FILES: dict[str, bytes] = {
    path.relative_to(BASE).as_posix(): path.read_bytes()
    for path in sorted(BASE.rglob("*"))
    if path.is_file()
}
ROWS = range(9)  # of the base: five in its first commit, four in its second
SCHEMA = Schema(ATTRIBUTES)
PREFIX = DataConfig("rows").dataset_prefix
JSONS = [key for key in FILES if key.endswith(".json")]
COMMITS = [key for key in JSONS if "/metadata/" in key]
OBJECTS = [key for key in FILES if key.endswith(".h5")]

_DEEP = "a place where lists are nested deeply"
_TWICE = "a key that stands twice"
ODD: list[Any] = [
    None,
    True,
    False,
    *(0, 1, -1, 2, 5, 7, 63, 64, 128, 4096, 10**19, 10**400),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 64, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(0.0, -0.0, 5.0, 1.5, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", "0", "5", "..", ".", "../x", "/etc/passwd", "objects/../x.h5", "objects/w/../../x.h5"),
    *("objects/w/a.h5", "objects/w/a.h5\0", "\0", "\ud800", "\u202e", "\uffff", "0" * 16, "g" * 16),
    *(
        "a" * 300,
        "objects/" + "a" * 300 + "/a.h5",
        "000000000001-w-000000",
        "099999999999-w-999999",
        "999999999999-w-999999",
    ),
    *("int64", "float32", "O", "V8", "S9999999999", "(9,9)f4", "f4,f4", ">i8", "object", "M8[ns]"),
    *([], {}, [[]], [0], [None], [-1], [2**63], {"": {}}, {"name": "x", "dtype": "int64"}),
    _DEEP,
]


def mutate(value: Any, pick: Pick) -> Any:
    """The JSON value with one part changed: replaced, left out, doubled, moved, renamed."""
    places = [(), *_places(value)]
    path = places[pick(len(places))]
    return _changed(value, path, lambda part: _other(part, value, places, pick))


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    if not isinstance(value, (dict, list)):
        return found
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        found.append((*at, key))
        found += _places(child, (*at, key))
    return found


def _changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(copy[path[0]], path[1:], change)
    return copy


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _other(part: Any, whole: Any, places: list[tuple[Any, ...]], pick: Pick) -> Any:
    kind = pick(8)
    if kind == 0:
        return _at(whole, places[pick(len(places))])
    if isinstance(part, bool) or part is None or kind <= 2:
        return ODD[pick(len(ODD))]
    if isinstance(part, int):
        return part + (1, -1, 64, -64, part, 2**32, 2**63, 2**64)[pick(8)]
    if isinstance(part, str):
        return damage(part.encode("utf-8", "surrogatepass"), pick).decode(errors="replace")
    if isinstance(part, list):
        if not part or kind == 3:
            return [*part, ODD[pick(len(ODD))]]
        index = pick(len(part))
        if kind == 4:
            return part[:index] + part[index + 1 :]
        return part + [part[index]] * (1, 2, 50)[pick(3)] if kind == 5 else part[::-1]
    if isinstance(part, dict) and part:
        key = list(part)[pick(len(part))]
        rest = {k: v for k, v in part.items() if k != key}
        new = (str(ODD[pick(len(ODD))]), _TWICE, key + " ", "image", "format")[pick(5)]
        return (
            rest
            if kind == 3
            else {**rest, new: part[key], **({key: part[key]} if kind == 4 else {})}
        )
    return ODD[pick(len(ODD))]


def dumped(value: Any) -> bytes:
    """As JSON text; with what only text can express in the places that stand for it."""
    text = json.dumps(value)
    text = text.replace(json.dumps(_DEEP), "[" * 100_000 + "]" * 100_000)
    return text.replace(json.dumps(_TWICE), '"rows"').encode()


def damage(data: bytes, pick: Pick) -> bytes:
    """The bytes with one change: a bit, a byte, a part cut out, doubled, cut off or put before."""
    start = pick(len(data) + 1)
    end = min(len(data), start + (1, 2, 8, 64, 4096)[pick(5)])
    part, before, after = data[start:end], data[:start], data[end:]
    kind = pick(7)
    if kind == 0 and part:
        return before + bytes([part[0] ^ (1 << pick(8))]) + part[1:] + after
    if kind == 1:
        return before + bytes([pick(256)]) + part + after
    if kind == 2:
        return before + after
    if kind == 3:
        return before + part + part + after
    if kind == 4:
        return before
    if kind == 5:
        return before + b"\0" * len(part) + after
    odd = ODD[pick(len(ODD))]
    return before + json.dumps(odd).encode() + after


def _check(error: StorageLoaderError, start: str = "") -> None:
    """An error names its place, and does not repeat all that it read."""
    text = str(error)
    assert text.startswith(start), text[:1000]
    assert len(text) < 10_000, text[:1000]


def try_commit(body: bytes) -> Commit | None:
    """Parse a commit; one that is taken is written as it is read, and every figure fits."""
    try:
        commit = Commit.from_bytes(body, SCHEMA, place="here")
    except FormatError as error:
        _check(error, "here: ")
        return None
    plain = replace(commit, info={})  # which may hold anything
    again = Commit.from_bytes(plain.to_bytes(), SCHEMA, place="here")
    assert (again.objects, again.replaces) == (commit.objects, commit.replaces)
    assert again.notes == commit.notes
    for stored in commit.objects:
        parts = stored.key.split("/")
        assert len(parts) == 3
        assert parts[0] == "objects"
        assert not any(p.startswith(".") or len(p) > 210 for p in parts)
        for column in stored.layout.columns.values():
            assert 64 <= column.offset <= column.end <= stored.nbytes <= 5 * 2**30
        assert stored.layout.directory_range[1] <= stored.nbytes
        assert len(stored.layout.block_ranges) == stored.layout.num_checksums <= 2**18
    return commit


def try_dataset(body: bytes) -> Schema | None:
    """Parse dataset.json; one that is taken describes this dataset."""
    store = MemoryStore("memory://hostile-dataset")
    store.put(f"{PREFIX}/dataset.json", body)
    try:
        schema = Catalog(DataConfig("rows", storage=store.url), store).require_schema()
    except FormatError as error:
        _check(error, f"{store.url}/{PREFIX}/dataset.json: ")
        return None
    written = json.loads(body)["attributes"]  # with keys, perhaps, that mean nothing
    known = ("name", "dtype", "shape")
    assert schema.to_json() == [{key: a[key] for key in known} for a in written]
    return schema


_lock = threading.Lock()


def try_storage(files: Files, *, local: bool = False, **how: Any) -> list[int] | None:
    """Read all rows of a storage that holds these files; each that comes is right, and comes once.

    `how`: keywords of the loader; by default rows come through memory.
    """
    settings = {"index": True, "batch_size": 4, "threads": 1, **how}
    with _lock:
        inner = MemoryStore("memory://hostile-storage")
        inner.delete([info.key for info in inner.list()])
        for key, body in files.items():
            inner.put(key, body)

        def opened(config: DataConfig) -> Store:
            return WatchedStore(inner, local=local)

        the_config = config({"storage": inner.url})
        try:
            with (
                mock.patch("storage_loader.catalog.catalog.open_store", opened),
                mock.patch("storage_loader.catalog.listing.open_store", opened),
            ):
                list_datasets(inner.url, unreadable=lambda one: _check(one.error))
                dataset = Dataset(the_config)
                if len(dataset) > len(ROWS):  # more are claimed than there is time for
                    assert set(numbers_in([dataset[[0, -1]]])) <= set(ROWS)
                    return None
                numbers = numbers_in(DataLoader(the_config, **settings))
                if numbers:
                    assert numbers_in([dataset[:]]) == numbers
        except StorageLoaderError as error:
            _check(error)
            return None
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(ROWS)
    return numbers


def try_mutations(pick: Pick) -> None:
    """Change a file or two of the base in one to four ways, and read all of it."""
    files = dict(FILES)
    for _ in range(1 + pick(2)):
        key = list(FILES)[pick(len(FILES))]
        body = files[key]
        if key in JSONS and pick(4):
            value = json.loads(FILES[key])
            for _ in range(1 + pick(4)):
                value = mutate(value, pick)
            body = dumped(value)
        else:
            for _ in range(1 + pick(2)):
                body = damage(body, pick)
        if key.endswith("dataset.json"):
            try_dataset(body)
        elif key in COMMITS:
            try_commit(body)
        files[key] = body
    if not pick(8):
        key, other = (list(FILES)[pick(len(FILES))] for _ in range(2))
        files[key] = files[other]
    if not pick(16):
        del files[list(FILES)[pick(len(FILES))]]
    only_objects = all(files.get(key) == FILES[key] for key in JSONS)
    numbers = try_storage(files, local=bool(pick(2)))
    if only_objects and numbers is not None:
        assert numbers == list(ROWS)


__all__ = ["CommitId", "damage", "dumped", "mutate", "try_commit", "try_dataset", "try_storage"]
