"""dataset.json: which datasets a store holds, by it, and what it says of one."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..config import DataConfig, is_dataset_id, is_dataset_name
from ..errors import (
    BucketNotFoundError,
    FolderNotFoundError,
    FormatError,
    ObjectNotFoundError,
    StorageLoaderError,
    StoreError,
)
from ..keywords import shown
from ..schema import ATTRIBUTE_KEYS, Schema
from ..store import Store
from .commits import RowOrder, read_json

DATASET_LIMIT = 2**24  # bytes of dataset.json
DATASET_KEYS = ("name", "additional", "attributes")  # of dataset.json
ORDER_KEY = "order"  # there, where rows are not ordered by commit

_DEEPEST = 4  # folders below a store's own where datasets and storages are looked for
_MOST = 1000  # folders in folders, without a dataset, that one listing of datasets looks into

_ABOVE = ".."  # no prefix is called so

_log = logging.getLogger(__name__)


def stored_datasets(
    store: Store,
    unreadable: Callable[[str, StorageLoaderError], object],
    *,
    name: str | None = None,
) -> list[tuple[dict[str, object], Schema]]:
    """Identity and schema of each dataset in a store, of one name or of all, sorted by name.

    One whose dataset.json cannot be read is left out; `unreadable` gets its prefix and why. Those
    of storages below this one, which may lie in the same folders, are none of this one's.
    """
    named = _named(store) if name is None else [(name, dataset_ids(store, name))]
    keys = [f"{n}/{i}/dataset.json" for n, ids in named for i in ids]
    read = (_stored_dataset(store, key, unreadable) for key in keys)
    found = [one for one in read if one is not None]
    return sorted(found, key=lambda item: json.dumps([item[0]["name"], item[0]["additional"]]))


def dataset_ids(store: Store, name: str) -> list[str]:
    """The ids of the datasets of one name, and of what savers left there."""
    return [folder for folder in store.list_folders(name) if is_dataset_id(folder)]


def _named(store: Store) -> Iterator[tuple[str, list[str]]]:
    """Each name that datasets may have, with their ids; those of few parts first.

    A storage may hold folders of somebody else's without end: of those in folders, that hold no
    dataset themselves, only so many are looked into.
    """
    waiting = deque(name for name in store.list_folders() if is_dataset_name(name))
    in_vain = 0
    while waiting:
        name = waiting.popleft()
        folders = store.list_folders(name)
        ids = [folder for folder in folders if is_dataset_id(folder)]
        yield name, ids
        in_vain += "/" in name and not ids
        if in_vain > _MOST:
            _log.warning(
                "%s holds more than %d folders that may be groups and hold no dataset: those after "
                "%r are left out; look into one of its prefixes instead",
                store.url,
                _MOST,
                name,
            )
            return
        waiting.extend(one for one in (f"{name}/{f}" for f in folders) if is_dataset_name(one))


def _stored_dataset(
    store: Store, key: str, unreadable: Callable[[str, StorageLoaderError], object]
) -> tuple[dict[str, object], Schema] | None:
    """See `stored_datasets`; `key`: of its dataset.json."""
    try:
        data = bytes(store.get(key, limit=DATASET_LIMIT))
        if _owner(store, data, key):
            return None
        return parse_dataset(data, key, store)
    except ObjectNotFoundError:
        return None  # objects of a save that was never committed
    except (FormatError, StoreError) as error:
        if is_of_the_storage(error):
            raise
        unreadable(key.removesuffix("/dataset.json"), error)
        return None


def is_of_the_storage(error: StorageLoaderError) -> bool:
    """Whether other datasets cannot be read either, now: each would take as long to fail."""
    if isinstance(error, (BucketNotFoundError, FolderNotFoundError)):
        return True
    return isinstance(error, StoreError) and error.is_transient


def parse_dataset(data: bytes, key: str, store: Store) -> tuple[dict[str, object], Schema]:
    """Identity and schema; `FormatError` for what is no dataset.json of this key."""
    place = f"{store.url}/{key}"
    value = read_json(data, DATASET_KEYS, place=place)
    if value.get(ORDER_KEY, "writer") != "writer":
        raise FormatError(
            f"{place}: order {shown(value[ORDER_KEY])}; this version of storage_loader knows "
            "'writer': upgrade it"
        )
    try:
        attributes = _known(value["attributes"])
        schema = Schema.from_json(attributes)
        described = DataConfig(value["name"], schema, value["additional"], storage="memory://any")
    except StorageLoaderError as error:
        raise FormatError(f"{place}: {error}") from error
    if schema.to_json() != attributes:
        raise FormatError(
            f"{place}: an attribute is not written as name, dtype and shape, unit and description"
        )
    if f"{described.dataset_prefix}/dataset.json" != key:
        raise FormatError(f"{place}: this describes another dataset, {shown(described.identity)}")
    return described.identity, schema


def _known(attributes: object) -> object:
    """The attributes without keys that this version does not know."""
    if not isinstance(attributes, list):
        return attributes
    return [
        {key: a[key] for key in ATTRIBUTE_KEYS if key in a} if isinstance(a, dict) else a
        for a in attributes
    ]


def row_order(data: bytes) -> RowOrder:
    """How the rows are ordered, by a dataset.json that `parse_dataset` took."""
    return "writer" if ORDER_KEY in json.loads(data) else "commit"


def _owner(store: Store, data: bytes, key: str) -> str:
    """The prefix of the storage that a dataset.json belongs to, by its key; "" is this one.

    A dataset "b" of a storage `a` lies in the folder a/b, as does one called "a/b" of the storage
    that `a` lies in: seen from there the first has the owner "a", and from `a` the second "..".
    Of what is no dataset.json nothing is said here.
    """
    here = key.removesuffix("/dataset.json")
    try:
        value = read_json(data, DATASET_KEYS, place=key)
        config = DataConfig(value["name"], None, value["additional"], storage="memory://any")
    except StorageLoaderError:
        return ""
    described = config.dataset_prefix
    if here.endswith(f"/{described}"):
        return here.removesuffix(f"/{described}")
    is_above = described.endswith(f"/{here}")
    return _ABOVE if is_above and f"{store.url}/{here}".endswith(f"/{described}") else ""


@dataclass(frozen=True)
class Around:
    """What lies in a store and below it, as far as it was looked at."""

    names: tuple[str, ...]  # of its datasets, and of what savers left
    below: tuple[str, ...]  # prefixes of storages that hold datasets
    is_all: bool


def look_around(store: Store, *, most: int) -> Around:
    """By as many as `most` listings of folders, those of few levels first."""
    names: list[str] = []
    below: list[str] = []
    waiting = deque([(name, 0) for name in store.list_folders()])
    while waiting and most > 0:
        prefix, depth = waiting.popleft()
        folders = store.list_folders(prefix)
        most -= 1
        ids = [folder for folder in folders if is_dataset_id(folder)]
        storage = _owner_of_some(store, prefix, ids) if ids else ""
        if storage not in ("", _ABOVE, *below):
            below.append(storage)
        if ids and not storage and is_dataset_name(prefix):
            names.append(prefix)
        if depth < _DEEPEST and storage in ("", _ABOVE):
            others = (folder for folder in folders if not is_dataset_id(folder))
            waiting.extend((f"{prefix}/{folder}", depth + 1) for folder in others)
    return Around(tuple(names), tuple(below), not waiting)


def _owner_of_some(store: Store, prefix: str, ids: Sequence[str]) -> str:
    """See `_owner`: this storage if any of the datasets in a folder is its own."""
    if not is_dataset_name(prefix):
        return prefix.rpartition("/")[0]
    owners = set()
    for id_ in ids:
        key = f"{prefix}/{id_}/dataset.json"
        with suppress(StoreError):
            data = store.find(key, limit=DATASET_LIMIT)
            owners.add("" if data is None else _owner(store, bytes(data), key))
        if "" in owners:
            return ""
    return max(owners, default="")  # one below goes before one above
