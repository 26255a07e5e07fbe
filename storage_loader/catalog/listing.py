"""What datasets a storage holds. Reads dataset.json and commits, never a data object."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import STORAGE_VARIABLE, DataConfig, JSONScalar, canonical_json
from ..credentials import Provider
from ..errors import (
    BucketNotFoundError,
    ConfigError,
    DatasetNotFoundError,
    FolderNotFoundError,
)
from ..keywords import checked_keywords, shown
from ..store import open_store
from .catalog import Catalog, stored_datasets
from .snapshot import Version


@dataclass(frozen=True)
class DatasetInfo:
    """A stored dataset: `config` opens it."""

    config: DataConfig
    version: Version
    num_rows: int
    num_objects: int
    nbytes: int  # of its objects


@checked_keywords
def list_datasets(
    storage: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    where: Mapping[str, JSONScalar] | None = None,
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    credentials: Provider | None = None,
    secure: bool | None = None,
    region: str | None = None,
) -> list[DatasetInfo]:
    """The datasets of a storage, sorted by name; `where` keeps those whose `additional` agrees.

    With `name` only those of this name are looked at. Takes the storage settings of
    `DataConfig`. A bucket or folder that does not exist holds none only where it is the default
    one; else `BucketNotFoundError` or `FolderNotFoundError`.
    """
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "access_key": access_key,
        "secret_key": secret_key,
        "credentials": credentials,
        "secure": secure,
        "region": region,
    }
    infos = []
    for config in find_datasets(storage, name=name, where=where, **settings):
        with contextlib.suppress(DatasetNotFoundError):  # deleted since it was listed
            infos.append(dataset_info(config))
    return infos


def find_datasets(
    storage: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    where: Mapping[str, JSONScalar] | None = None,
    **settings: Any,
) -> list[DataConfig]:
    """The configs of `list_datasets`'s datasets; reads no commit."""
    if where is not None and not isinstance(where, Mapping):
        raise ConfigError(f"where {shown(where)}: a dict of values that `additional` has")
    settings = {"storage": storage, **settings}
    store = open_store(DataConfig("any" if name is None else name, **settings))
    try:
        found = stored_datasets(store, name=name)
        if not found and (absence := store.absence()):
            raise FolderNotFoundError(f"list {store.url}: {absence}")
    except (BucketNotFoundError, FolderNotFoundError):
        if storage is not None or os.environ.get(STORAGE_VARIABLE):
            raise
        return []
    configs = []
    for identity, schema in found:
        additional: Any = identity["additional"]
        if all(_has(additional, key, value) for key, value in (where or {}).items()):
            configs.append(DataConfig(str(identity["name"]), schema, additional, **settings))
    return configs


def _has(additional: Mapping[str, JSONScalar], key: str, value: JSONScalar) -> bool:
    """Whether the value is there, as JSON knows it: 1, 1.0 and True name different datasets."""
    return key in additional and canonical_json(additional[key]) == canonical_json(value)


def dataset_info(
    config: DataConfig, version: Version | str | Sequence[str] | None = None
) -> DatasetInfo:
    """Rows, objects, bytes and version of one dataset, as it is now or was at a version."""
    snapshot = Catalog(config).snapshot(version)
    return DatasetInfo(
        replace(config, attributes=snapshot.schema.attributes),
        snapshot.version,
        snapshot.num_rows,
        len(snapshot.objects),
        snapshot.nbytes,
    )


@checked_keywords
def delete(config: DataConfig) -> None:
    """Remove a dataset with all its versions; `DatasetNotFoundError` where there is none."""
    Catalog(config).delete()
