"""dataset.json: which datasets a store holds, by it, and what it says of one."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable

from ..config import DataConfig, is_dataset_name
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

_DEEPEST = 4  # folders below a store's own where storages are looked for

_DATASET_ID = re.compile(r"[0-9a-f]{16}")


def stored_datasets(
    store: Store,
    unreadable: Callable[[str, StorageLoaderError], object],
    *,
    name: str | None = None,
) -> list[tuple[dict[str, object], Schema]]:
    """Identity and schema of each dataset in a store, of one name or of all, sorted by name.

    One whose dataset.json cannot be read is left out; `unreadable` gets its prefix and why.
    """
    names = store.list_folders() if name is None else [name]
    keys = [
        f"{n}/{i}/dataset.json"
        for n in names
        if is_dataset_name(n)
        for i in store.list_folders(n)
        if _DATASET_ID.fullmatch(i)
    ]
    read = (_stored_dataset(store, key, unreadable) for key in keys)
    found = [one for one in read if one is not None]
    return sorted(found, key=lambda item: json.dumps([item[0]["name"], item[0]["additional"]]))


def _stored_dataset(
    store: Store, key: str, unreadable: Callable[[str, StorageLoaderError], object]
) -> tuple[dict[str, object], Schema] | None:
    """See `stored_datasets`; `key`: of its dataset.json."""
    try:
        return parse_dataset(bytes(store.get(key, limit=DATASET_LIMIT)), key, store)
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


def holds_name(store: Store, name: str) -> bool:
    """Whether this folder of a store is a dataset's, or what a saver left of one."""
    return any(_DATASET_ID.fullmatch(one) for one in store.list_folders(name))


def prefixes_with_datasets(store: Store, *, most: int) -> list[str]:
    """Prefixes below a store's own that hold datasets, by as many as `most` listings of folders."""
    found: list[str] = []
    waiting = deque([(name, 0) for name in store.list_folders()])
    while waiting and most > 0:
        prefix, depth = waiting.popleft()
        names = store.list_folders(prefix)
        most -= 1
        if any(_DATASET_ID.fullmatch(name) for name in names):
            parent = prefix.rpartition("/")[0]
            if parent and parent not in found:
                found.append(parent)
        elif depth < _DEEPEST:
            waiting.extend((f"{prefix}/{name}", depth + 1) for name in names)
    return found
