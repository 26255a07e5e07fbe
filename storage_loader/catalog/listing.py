"""What datasets a storage holds. Reads dataset.json and commits, never a data object."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..codecs import Codec
from ..config import STORAGE_VARIABLE, DataConfig, JSONScalar, canonical_json
from ..credentials import Provider
from ..errors import (
    BucketNotFoundError,
    ConfigError,
    DatasetNotFoundError,
    FolderNotFoundError,
    FormatError,
    SchemaError,
    StorageLoaderError,
    StoreError,
)
from ..keywords import checked_keywords, shown
from ..store import open_store
from .catalog import Catalog
from .snapshot import Version
from .stored import is_of_the_storage, look_around, stored_datasets


@dataclass(frozen=True)
class DatasetInfo:
    """A stored dataset: `config` opens it."""

    config: DataConfig
    version: Version
    num_rows: int
    num_objects: int
    nbytes: int  # of its objects
    row_nbytes: int | None  # of a row's values; a mean where rows differ in size, None if no row
    decoded_nbytes: int = 0  # of all rows in memory, with what says where rows end
    codecs: Mapping[str, Sequence[Codec]] = field(default_factory=dict)  # by attribute that has any


@dataclass(frozen=True)
class UnreadableDataset:
    """A stored dataset of which dataset.json or a commit cannot be read."""

    prefix: str  # its place in the storage, <name>/<id>
    config: DataConfig | None  # None where dataset.json is what cannot be read
    place: DataConfig  # any config of the same storage
    error: StorageLoaderError

    @property
    def name(self) -> str:
        """Its `dataset_name`."""
        return self.prefix.rpartition("/")[0]

    @property
    def id(self) -> str:
        """What tells it from others of its name."""
        return self.prefix.rpartition("/")[2]

    def delete(self) -> None:
        """Remove it; see `delete`."""
        Catalog(self.place, prefix=self.prefix).delete()


def _warn(one: UnreadableDataset) -> None:
    warnings.warn(
        f"dataset {one.prefix} is left out, it cannot be read: {one.error}",
        RuntimeWarning,
        stacklevel=4,  # whoever called `list_datasets`, which is decorated
    )


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
    unreadable: Callable[[UnreadableDataset], object] = _warn,
) -> list[DatasetInfo]:
    """The datasets of a storage, sorted by name; `where` keeps those whose `additional` agrees.

    With `name` only those of this name are looked at. Takes the storage settings of
    `DataConfig`. A bucket or folder that does not exist holds none only where it is the default
    one; else `BucketNotFoundError` or `FolderNotFoundError`. Each dataset that cannot be read is
    handed to `unreadable`, which warns unless told otherwise, and left out.
    """
    settings: dict[str, Any] = {
        "endpoint": endpoint,
        "access_key": access_key,
        "secret_key": secret_key,
        "credentials": credentials,
        "secure": secure,
        "region": region,
    }
    bad: list[UnreadableDataset] = []
    configs = find_datasets(storage, name=name, where=where, unreadable=bad.append, **settings)
    infos = [_listed_info(config, bad.append) for config in configs]
    for one in bad:
        unreadable(one)
    return [info for info in infos if info is not None]


def _listed_info(
    config: DataConfig, unreadable: Callable[[UnreadableDataset], object]
) -> DatasetInfo | None:
    try:
        return dataset_info(config)
    except DatasetNotFoundError:
        return None  # deleted since it was listed
    except (FormatError, SchemaError, StoreError) as error:
        if is_of_the_storage(error):
            raise
        unreadable(UnreadableDataset(config.dataset_prefix, config, config, error))
        return None


def find_datasets(
    storage: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    where: Mapping[str, JSONScalar] | None = None,
    unreadable: Callable[[UnreadableDataset], object],
    **settings: Any,
) -> list[DataConfig]:
    """The configs of `list_datasets`'s datasets; reads no commit."""
    if where is not None and not isinstance(where, Mapping):
        raise ConfigError(f"where {shown(where)}: a dict of values that `additional` has")
    settings = {"storage": storage, **settings}
    place = DataConfig("any" if name is None else name, **settings)
    store = open_store(place)
    bad: list[tuple[str, StorageLoaderError]] = []
    try:
        found = stored_datasets(store, lambda *one: bad.append(one), name=name)
        if not found and not bad and (absence := store.absence()):
            raise FolderNotFoundError(f"list {store.url}: {absence}")
    except (BucketNotFoundError, FolderNotFoundError):
        if storage is not None or os.environ.get(STORAGE_VARIABLE):
            raise
        return []
    for prefix, error in bad:
        unreadable(UnreadableDataset(prefix, None, place, error))
    configs = []
    for identity, schema in found:
        additional: Any = identity["additional"]
        if all(_has(additional, key, value) for key, value in (where or {}).items()):
            configs.append(DataConfig(str(identity["name"]), schema, additional, **settings))
    return configs


def find_storages(
    storage: str | os.PathLike[str] | None = None, *, most: int = 200, **settings: Any
) -> list[str]:
    """Storages below this one that hold datasets, for someone who gave a bucket without a prefix.

    Looks at `most` folders at most, those of few levels first.
    """
    store = open_store(DataConfig("any", storage=storage, **settings))
    try:
        return [f"{store.url}/{prefix}" for prefix in look_around(store, most=most).below]
    except (BucketNotFoundError, FolderNotFoundError):
        return []


def _has(additional: Mapping[str, JSONScalar], key: str, value: JSONScalar) -> bool:
    """Whether the value is there, as JSON knows it: 1, 1.0 and True name different datasets."""
    return key in additional and canonical_json(additional[key]) == canonical_json(value)


def dataset_info(
    config: DataConfig, version: Version | str | Sequence[str] | None = None
) -> DatasetInfo:
    """Rows, objects, bytes and version of one dataset, as it is now or was at a version."""
    snapshot = Catalog(config).snapshot(version)
    codecs: dict[str, list[Codec]] = {}
    for region, some in snapshot.objects.codecs.items():
        known = codecs.setdefault(region.partition("/")[0], [])
        known += [codec for codec in some if codec not in known]
    return DatasetInfo(
        replace(config, attributes=snapshot.schema.attributes),
        snapshot.version,
        snapshot.num_rows,
        len(snapshot.objects),
        snapshot.nbytes,
        snapshot.values_nbytes,
        int(snapshot.objects.decoded.sum()),
        codecs,
    )


@checked_keywords
def delete(config: DataConfig) -> None:
    """Remove a dataset with all its versions; `DatasetNotFoundError` where there is none."""
    Catalog(config).delete()
