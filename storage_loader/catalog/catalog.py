"""A dataset's small objects: dataset.json and the commits. Readers see whole commits only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version as distribution_version
from typing import cast

from ..config import DataConfig, canonical_json
from ..errors import (
    ConfigError,
    DatasetNotFoundError,
    FormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    SchemaError,
    StorageLoaderError,
    StoreError,
    VersionNotFoundError,
)
from ..schema import Schema
from ..store import Store, open_store
from .commits import FORMAT, Commit, CommitId, live_commits, read_json
from .objects import StoredObject, StoredObjects
from .snapshot import Snapshot, Version

_LIST_TRIES = 3  # a reader may meet commits that are being deleted
_SHOWN = 12  # datasets named by an error


class Catalog:
    """The dataset of one config in its store. Safe from many threads and after a fork."""

    def __init__(self, config: DataConfig, store: Store | None = None) -> None:
        self.config = config
        self.store = store or open_store(config)
        self.prefix = config.dataset_prefix

    def read_schema(self) -> Schema | None:
        """The stored schema; None where the dataset does not exist.

        Raises `SchemaError` where the config gives attributes that differ from it.
        """
        key = f"{self.prefix}/dataset.json"
        try:
            data = self.store.get(key)
        except ObjectNotFoundError:
            return None
        _, schema = _parse_dataset(bytes(data), key, self.store)
        if self.config.schema is not None:
            self._check(self.config.schema, schema)
        return schema

    def _check(self, schema: Schema, stored: Schema) -> None:
        differences = schema.differences(stored)
        if differences:
            raise SchemaError(
                f"dataset {self.config.dataset_name!r} in {self.store.url} has other attributes:"
                + "".join(f"\n  {line}" for line in differences)
            )

    def require_schema(self) -> Schema:
        """The stored schema; `DatasetNotFoundError`, naming what exists, where there is none."""
        schema = self.read_schema()
        if schema is None:
            raise DatasetNotFoundError(
                f"no dataset {self._described()} in {self.store.url}; {self._existing()}"
            )
        return schema

    def _described(self) -> str:
        name, additional = self.config.dataset_name, dict(self.config.additional)
        return f"{name!r}" + (f" with additional {additional}" if additional else "")

    def _existing(self) -> str:
        """What the storage holds, for an error: the same name first."""
        name = self.config.dataset_name
        variants = [identity for identity, _ in stored_datasets(self.store, name=name)]
        if variants:
            shown = ", ".join(str(v["additional"]) for v in variants[:_SHOWN])
            return f"{name!r} exists with additional: {shown}"
        names = list(self.store.list_folders())
        if not names:
            return "the storage holds no dataset"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"the storage holds: {', '.join(map(repr, names[:_SHOWN]))}{more}"

    def create(self, schema: Schema) -> None:
        """Write dataset.json unless it is there; `SchemaError` where that holds another schema."""
        stored = self.read_schema()
        if stored is None:
            body = canonical_json(
                {"format": FORMAT, **self.config.identity, "attributes": schema.to_json()}
            )
            try:
                self.store.put(f"{self.prefix}/dataset.json", body, create=True)
            except ObjectExistsError:
                stored = self.require_schema()
        if stored is not None:
            self._check(schema, stored)

    def commit_ids(self) -> list[CommitId]:
        """The ids of all commits there are, replaced ones too, in order."""
        found = (info.key.rsplit("/", 1)[-1] for info in self.store.list(f"{self.prefix}/metadata"))
        ids = (CommitId.parse(n.removesuffix(".json")) for n in found if n.endswith(".json"))
        return sorted(i for i in ids if i is not None)

    def read_commits(self, schema: Schema, ids: Sequence[CommitId]) -> dict[CommitId, Commit]:
        """The commits of these ids; `ObjectNotFoundError` where one is gone."""
        keys = [self._commit_key(i) for i in ids]
        return {
            i: Commit.from_bytes(bytes(data), schema, place=f"{self.store.url}/{key}")
            for i, key, data in zip(ids, keys, self.store.get_all(keys), strict=True)
        }

    def _commit_key(self, commit_id: CommitId) -> str:
        return f"{self.prefix}/metadata/{commit_id}.json"

    def publish(
        self,
        schema: Schema,
        objects: Sequence[StoredObject],
        *,
        writer: str,
        number: int,
        refresh: bool = False,
    ) -> CommitId:
        """Make stored objects visible, all at once, by one create-only put, after `create`.

        With `refresh` the commit replaces exactly the commits that are listed now.
        """
        listed = self.commit_ids()
        commit_id = CommitId(listed[-1].seq + 1 if listed else 1, writer, number)
        commit = Commit(
            schema.hash,
            tuple(objects),
            tuple(listed) if refresh else (),
            {
                "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "library": f"storage_loader {distribution_version('storage_loader')}",
            },
        )
        self._put_commit(self._commit_key(commit_id), commit.to_bytes())
        return commit_id

    def _put_commit(self, key: str, body: bytes) -> None:
        try:
            self.store.put(key, body, create=True)
        except StoreError as error:
            # The answer to a put may be lost, and its retry then meets its own first attempt.
            try:
                arrived = bytes(self.store.get(key)) == body
            except ObjectNotFoundError:
                arrived = False
            except StoreError:
                raise StoreError(
                    f"{error}; the commit may have arrived all the same, look before saving again"
                ) from error
            if not arrived:
                raise

    def snapshot(self, version: Version | str | Sequence[str] | None = None) -> Snapshot:
        """The dataset now, or at a version: a `Version`, its hash, or a list of commit ids.

        Raises `DatasetNotFoundError`, or `VersionNotFoundError` where commits are gone.
        """
        schema = self.require_schema()
        for attempt in range(_LIST_TRIES):
            ids = self.commit_ids()
            if version is not None and not isinstance(version, str):
                ids = _named_ids(version, ids)
            try:
                commits = self.read_commits(schema, ids)
                break
            except ObjectNotFoundError:
                if attempt == _LIST_TRIES - 1:
                    raise
                schema = self.require_schema()
        if version is None:
            live = live_commits(commits)
        elif isinstance(version, str):
            live = _state_with_hash(version, commits)
        else:
            live = ids
        # Commits that were read hold columns.
        parts = [cast(StoredObjects, commits[i].objects) for i in live]
        objects = StoredObjects.joined(schema, parts)
        return Snapshot(self.prefix, schema, Version.of(live), objects)

    def delete(self) -> None:
        """Remove the dataset. It is empty at once and gone at the end; no one may save meanwhile.

        Raises `DatasetNotFoundError` where nothing of it is there, `SchemaError` where the config
        gives other attributes than are stored.
        """
        keys = [info.key for info in self.store.list(self.prefix)]
        if not keys:
            self.require_schema()
        try:
            schema = self.read_schema()
        except FormatError:
            schema = None  # no reader takes it for a dataset: there is nothing to empty first
        last: list[str] = []
        if schema is not None:
            # Stopped half way, an emptied dataset remains, never one with half its rows. Were
            # dataset.json to go before the commit, another schema could meet that commit.
            emptied = self.publish(schema, [], writer="delete", number=0, refresh=True)
            last = [self._commit_key(emptied), f"{self.prefix}/dataset.json"]
        self.store.delete([key for key in keys if key not in last])
        for key in last:
            self.store.delete([key])


def stored_datasets(
    store: Store, *, name: str | None = None
) -> list[tuple[dict[str, object], Schema]]:
    """Identity and schema of each dataset in a store, of one name or of all, sorted by name."""
    names = store.list_folders() if name is None else [name]
    keys = [f"{n}/{i}/dataset.json" for n in names for i in store.list_folders(n)]
    found = []
    for key in keys:
        try:
            data = store.get(key)
        except ObjectNotFoundError:
            continue  # objects of a save that was never committed
        found.append(_parse_dataset(bytes(data), key, store))
    return sorted(found, key=lambda item: json.dumps([item[0]["name"], item[0]["additional"]]))


def _parse_dataset(data: bytes, key: str, store: Store) -> tuple[dict[str, object], Schema]:
    place = f"{store.url}/{key}"
    value = read_json(data, ("name", "additional", "attributes"), place=place)
    try:
        schema = Schema.from_json(value["attributes"])
        described = DataConfig(value["name"], schema, value["additional"], storage="memory://any")
    except StorageLoaderError as error:
        raise FormatError(f"{place}: {error}") from error
    if f"{described.dataset_prefix}/dataset.json" != key:
        raise FormatError(f"{place}: this describes another dataset, {described.identity}")
    return described.identity, schema


def _named_ids(version: Version | Sequence[str], listed: Sequence[CommitId]) -> list[CommitId]:
    if not isinstance(version, (Version, Sequence)):
        raise ConfigError(f"version {version!r}: a Version, its hash or a list of commit ids")
    names = version.commits if isinstance(version, Version) else list(version)
    by_name = {str(i): i for i in listed}
    gone = [name for name in names if name not in by_name]
    if gone:
        raise VersionNotFoundError(f"commits of this version are gone or never were: {gone[:5]}")
    return [by_name[name] for name in names]


def _state_with_hash(wanted: str, commits: dict[CommitId, Commit]) -> list[CommitId]:
    """The state, now or after any earlier commit, whose version has this hash."""
    ids = sorted(commits)
    for count in range(len(ids), -1, -1):
        live = live_commits({i: commits[i] for i in ids[:count]})
        if Version.of(live).hash == wanted:
            return live
    raise VersionNotFoundError(
        f"no version {wanted!r}: of {len(ids)} commits no state has this hash; pass a Version "
        "or a list of commit ids"
    )
