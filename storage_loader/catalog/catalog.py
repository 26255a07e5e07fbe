"""A dataset's small objects: dataset.json and the commits. Readers see whole commits only."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version as distribution_version
from typing import cast

from ..config import DataConfig, canonical_json, is_dataset_id, require_config
from ..errors import (
    ConfigError,
    DatasetNotFoundError,
    FormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    SaverError,
    SchemaError,
    StoreError,
    StoreFullError,
)
from ..schema import Schema
from ..store import ObjectInfo, Store, open_store
from .claims import (
    CLAIM_LIMIT,
    Resumed,
    barrier,
    check_claim,
    claim_body,
    claim_key,
    claimed_id,
    last_claim,
    mark_key,
)
from .commits import COMMIT_LIMIT, FORMAT, LAST_SEQ, Commit, CommitId, RowOrder, live_commits
from .named import check_named, commits_of, named_ids
from .objects import StoredObject, StoredObjects
from .publication import Publication
from .snapshot import Snapshot, Version
from .stored import (
    DATASET_LIMIT,
    ORDER_KEY,
    dataset_ids,
    look_around,
    parse_dataset,
    row_order,
    stored_datasets,
)

_TRIES = 3  # of what is listed and not there: it may be on its way out
_CHURN = 60.0  # seconds in which a reader gets ahead of those who delete what it was told of ...
_SHORTEST = 0.001  # ... with a pause after the first list that was out of date ...
_LONGEST = 0.1  # ... and twice as long each time, up to this

# Keys of a listing that one call gives, so that they were there at one moment. S3 gives 1,000 at a
# time, a folder's 32 KiB hold 117 of the longest names, and locks it meanwhile.
AT_ONCE = 100

_LISTINGS = 100  # each needs a saver that had listed before all others and publishes just then
_SHOWN = 12  # datasets named by an error
_LOOKED_AT = 50  # folders, for storages that an error names


@dataclass(frozen=True)
class StoredCommit:
    """A commit, and what the store says of it."""

    commit: Commit
    info: ObjectInfo


class Catalog:
    """The dataset of one config in its store. Safe from many threads and after a fork."""

    def __init__(
        self, config: DataConfig, store: Store | None = None, *, prefix: str | None = None
    ) -> None:
        """`prefix`: the dataset at this place of the storage, where its identity is not known."""
        require_config(config, "this")
        self.config = config
        self.store = store or open_store(config)
        self.prefix = config.dataset_prefix if prefix is None else prefix

    @property
    def schema_key(self) -> str:
        """Where dataset.json lies."""
        return f"{self.prefix}/dataset.json"

    def read_schema(self) -> Schema | None:
        """The stored schema; None where the dataset does not exist.

        Raises `SchemaError` where the config gives attributes that differ from it.
        """
        described = self.read_dataset()
        return None if described is None else described[0]

    def read_dataset(self) -> tuple[Schema, RowOrder] | None:
        """What dataset.json says; None, and `SchemaError`, as from `read_schema`."""
        data = self.store.find(self.schema_key, limit=DATASET_LIMIT)
        schema = self.schema_of(data)
        return None if data is None or schema is None else (schema, row_order(bytes(data)))

    def schema_of(self, data: memoryview | None) -> Schema | None:
        """What `read_schema` gives for this dataset.json, None where there is none."""
        if data is None:
            return None
        _, schema = parse_dataset(bytes(data), self.schema_key, self.store)
        if self.config.schema is not None:
            self._check(self.config.schema, schema)
        return schema

    def _check(self, schema: Schema, stored: Schema) -> None:
        differences = schema.differences(stored)
        if differences:
            raise SchemaError(
                f"dataset {self.config.dataset_name!r} in {self.store.url} has other attributes:",
                *(f"  {line}" for line in differences),
                "to read it, leave attributes out of the config; to save these, give another "
                "dataset_name or additional, or delete the dataset first",
            )

    def require_schema(self) -> Schema:
        """The stored schema; `DatasetNotFoundError`, naming what exists, where there is none."""
        return self.require_dataset()[0]

    def require_dataset(self) -> tuple[Schema, RowOrder]:
        """What dataset.json says; raises as `require_schema`."""
        described = self.read_dataset()
        schema = self.required(None if described is None else described[0])
        return schema, "commit" if described is None else described[1]

    def required(self, schema: Schema | None) -> Schema:
        """See `require_schema`."""
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
        bad: list[str] = []
        found = stored_datasets(self.store, lambda prefix, error: bad.append(prefix), name=name)
        variants = [str(identity["additional"]) for identity, _ in found[:_SHOWN]]
        variants += [f"{prefix}, which cannot be read" for prefix in bad[:_SHOWN]]
        if variants:
            return f"{name!r} exists with additional: {', '.join(variants)}"
        if any(self._is_begun(f"{name}/{i}") for i in dataset_ids(self.store, name)):
            return (
                f"nothing of {name!r} was committed yet: a saver is at work, or was killed "
                "(storage-loader gc removes what it left)"
            )
        around = look_around(self.store, most=_LOOKED_AT)
        there = [one for one in around.below if f"{one}/".startswith(f"{name}/")]
        names = [one for one in around.names if one != name]
        below = there or (() if names else around.below)
        if below:
            return f"there are some in {' and '.join(f'{self.store.url}/{p}' for p in below[:2])}"
        if not names:
            return self.store.absence() or "the storage holds no dataset"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        more = more if around.is_all else " and more"
        return f"the storage holds: {', '.join(map(repr, names[:_SHOWN]))}{more}"

    def _is_begun(self, prefix: str) -> bool:
        """Whether a saver left something there, but no dataset; some servers keep folders."""
        if not any(self.store.list(prefix)) and not any(self.store.list_unfinished(prefix)):
            return False
        return self.store.find(f"{prefix}/dataset.json", limit=DATASET_LIMIT) is None

    def create(self, schema: Schema, order: RowOrder = "commit") -> tuple[Schema, RowOrder]:
        """Write dataset.json unless it is there; `SchemaError` where that holds another schema.

        Returns what it says then: notes and order are another's where that made the dataset
        before, or at the same moment on a server that lets both.
        """
        stored = self.read_dataset()
        if stored is None:
            described = {"format": FORMAT, **self.config.identity, "attributes": schema.to_json()}
            body = canonical_json(
                described if order == "commit" else {**described, ORDER_KEY: order}
            )
            if len(body) > DATASET_LIMIT:
                raise SchemaError(
                    f"dataset {self.config.dataset_name!r}: its attributes and additional take "
                    f"{len(body)} bytes of JSON, and {DATASET_LIMIT} are allowed; give fewer "
                    "attributes"
                )
            with contextlib.suppress(ObjectExistsError):
                self.store.put(self.schema_key, body, create=True)
            # Read also by who made it: some servers let several creators win, and the last one's is
            # what all read from then on.
            stored = self.require_dataset()
        self._check(schema, stored[0])
        return stored

    def check_place(self) -> None:
        """Raise `ConfigError` where this dataset would lie in another's folder, or have one in its.

        For one that is about to be made. Names are such that no dataset of the same storage lies
        so; one of a storage that is the folder of a dataset, or in it, would.
        """
        place = f"{self.store.url}/{self.prefix}"
        remedy = "choose another storage, dataset_name or additional"
        for info in self.store.list(self.prefix):
            folder, _, name = info.key.rpartition("/")
            if name == "dataset.json" and folder != self.prefix:
                raise ConfigError(
                    f"{place}: another dataset lies in this folder, {folder}, and would go with "
                    f"this one; {remedy}"
                )
        head, *parts = self.config.storage.split("/")
        for count, part in enumerate(parts, 1):
            if not is_dataset_id(part):
                continue
            storage = "/".join([head, *parts[:count]])
            with contextlib.suppress(StoreError):  # not there, or not ours to read
                if open_store(replace(self.config, storage=storage)).find("dataset.json") is None:
                    continue
                raise ConfigError(
                    f"{place}: {storage} is the folder of another dataset, and this one would go "
                    f"with it; {remedy}"
                )

    def commit_ids(self) -> list[CommitId]:
        """The ids of all commits there are, replaced ones too, in order."""
        return sorted(self.commit_infos())

    def commit_infos(self) -> dict[CommitId, ObjectInfo]:
        """What the store knows of each commit there is, replaced ones too."""
        return self._at_one_moment([*self.store.list(self.commit_folder)])

    def _at_one_moment(self, listed: Sequence[ObjectInfo]) -> dict[CommitId, ObjectInfo]:
        """The commits that were there at one moment, given what was listed just now.

        A long listing takes many calls. It may hold a commit, and lack one that was there before
        it, such as the refresh that the other's saver had seen. So it is made again until nothing
        new is in it: then all of it was there when the last one began, and all that was there is
        in it. Commits that sort after all of the first listing came later and are left out, or
        savers at work would keep us; few come before, from savers that had listed earlier still.
        What is missing from a later listing was deleted, which changes nothing that readers see.
        """
        found = self._commits_among(listed)
        if not listed:
            self._check_not_hidden()
        if len(listed) <= AT_ONCE or not found:
            return found
        last = max(found).seq
        for _ in range(_LISTINGS):
            before = found
            found = {i: info for i, info in self._listed().items() if i.seq <= last}
            if found.keys() <= before.keys():
                return found
        raise StoreError(
            f"list {self.store.url}/{self.commit_folder}: {_LISTINGS} listings in turn each hold "
            "commits that were not there before, and belong before others that were; no saver does "
            "that: see what else writes there"
        )

    def _check_not_hidden(self) -> None:
        """Raise `FormatError` where something that is no folder stands in the commits' place.

        It reads as a folder without commits, while these lie elsewhere, and all objects would be
        garbage.
        """
        with contextlib.suppress(ObjectNotFoundError):
            self.store.head(self.commit_folder)
            raise FormatError(
                f"{self.store.url}/{self.commit_folder}: an object stands where the folder of the "
                "commits must be; put the folder back, or remove the dataset"
            )

    def _listed(self) -> dict[CommitId, ObjectInfo]:
        """All commits that were there before, and some of those that come meanwhile."""
        return self._commits_among(self.store.list(self.commit_folder))

    def _commits_among(self, infos: Iterable[ObjectInfo]) -> dict[CommitId, ObjectInfo]:
        listed = {self.commit_of(info.key): info for info in infos}
        return {i: info for i, info in listed.items() if i is not None}

    @property
    def commit_folder(self) -> str:
        """Where the commits lie."""
        return f"{self.prefix}/metadata"

    def commit_key(self, commit_id: CommitId) -> str:
        """Where a commit lies."""
        return f"{self.commit_folder}/{commit_id}.json"

    def commit_of(self, key: str) -> CommitId | None:
        """The commit that lies under a key; None where it is no commit's."""
        folder, _, name = key.rpartition("/")
        if folder != self.commit_folder or not name.endswith(".json"):
            return None
        return CommitId.parse(name.removesuffix(".json"))

    def read_commits(
        self, schema: Schema, ids: Sequence[CommitId], *, extremes: bool = False
    ) -> dict[CommitId, Commit]:
        """Those of the commits that are there; with what they say of extremes if asked for."""
        keys = [self.commit_key(i) for i in ids]
        found = self.store.find_all(keys, limit=COMMIT_LIMIT)
        return {
            i: Commit.from_bytes(
                bytes(data), schema, place=f"{self.store.url}/{key}", extremes=extremes
            )
            for i, key, data in zip(ids, keys, found, strict=True)
            if data is not None
        }

    def read_everything(self) -> tuple[Schema | None, dict[CommitId, StoredCommit]]:
        """The schema and all commits there are now, in order; no schema before the first commit.

        Raises `FormatError` where any of them cannot be read.
        """
        listing = _Listing(self)
        without_schema = 0
        while True:
            infos = self.commit_infos()  # first: dataset.json is there before any commit
            schema = self.read_schema()
            if schema is None:
                if not infos:
                    return None, {}
                without_schema += 1  # or it is being deleted
                if without_schema == _TRIES:
                    raise FormatError(
                        f"{self.store.url}/{self.prefix}: there are commits, but no dataset.json"
                    )
                continue
            commits = listing.read(schema, sorted(infos))
            if commits is not None:
                return schema, {i: StoredCommit(one, infos[i]) for i, one in commits.items()}

    def publish(
        self,
        schema: Schema,
        objects: Sequence[StoredObject],
        *,
        writer: str,
        number: int,
        refresh: bool = False,
        drops: Sequence[CommitId] = (),
    ) -> CommitId:
        """Make stored objects visible, all at once, by one create-only put, after `create`.

        Takes what `publication` takes.
        """
        publication = self.publication(
            schema, objects, writer=writer, number=number, refresh=refresh, drops=drops
        )
        publication.publish()
        return publication.id

    def publication(
        self,
        schema: Schema,
        objects: Sequence[StoredObject],
        *,
        writer: str,
        number: int,
        refresh: bool = False,
        drops: Sequence[CommitId] = (),
        notes: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Publication:
        """A commit of these objects that can be published now.

        `notes`: those that the objects show, where they are not those of dataset.json.

        With `refresh` it replaces exactly the commits that are listed now, else those that
        `drops` names, and then itself, too: it is in no version.
        """
        # For its number a commit needs those that were there before; only a refresh names them.
        listed = self.commit_ids() if refresh else sorted(self._listed())
        if listed and listed[-1].seq == LAST_SEQ:
            raise SaverError(
                f"{self.store.url}/{self.commit_key(listed[-1])}: no commit can follow one of "
                "this number, which no saver reaches; delete it if nobody knows it, or save to "
                "another dataset"
            )
        commit_id = CommitId(listed[-1].seq + 1 if listed else 1, writer, number)
        commit = Commit(
            schema.hash,
            tuple(objects),
            tuple(listed if refresh else (*drops, commit_id) if drops else ()),
            {
                "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "library": f"storage_loader {_library_version()}",
            },
            notes,
        )
        body = commit.to_bytes()
        if len(body) > COMMIT_LIMIT:
            raise SaverError(
                f"a commit of {len(objects)} objects takes {len(body)} bytes of JSON, and "
                f"{COMMIT_LIMIT} are allowed; commit more often, or make larger objects"
            )
        return Publication(
            self.store,
            self.commit_key(commit_id),
            commit_id,
            body,
            barrier(schema, commit_id).to_bytes(),
        )

    def claim(self, commit_id: CommitId, attempt: str) -> None:
        """Claim the number of a named writer's commit for an attempt, which has a random name.

        `ObjectExistsError` where another attempt has it.
        """
        key, body = f"{self.prefix}/{claim_key(commit_id)}", claim_body(commit_id, attempt)
        try:
            self.store.put(key, body, create=True)
        except StoreError:
            # The answer to a put may be lost, and its retry then meets its own first attempt.
            found = self.store.once().find(key, limit=CLAIM_LIMIT)
            if found is None or bytes(found) != body:
                raise

    def resume(self, schema: Schema, writer: str) -> Resumed:
        """What is committed under a writer's name; a commit on its way is barred from now on."""
        folder = f"{self.prefix}/objects/{writer}"
        keys = {info.key for info in self.store.list(folder)}
        claim = last_claim(keys)
        last = -1
        if claim is not None:
            data = bytes(self.store.get(claim, limit=CLAIM_LIMIT))
            place = f"{self.store.url}/{claim}"
            claimed = claimed_id(data, claim, place=place)
            listed = self._listed()
            check_claim(claimed, listed, place=place)
            if claimed not in listed:
                # Where the key exists now, it was published meanwhile, or barred by another.
                with contextlib.suppress(ObjectExistsError):
                    body = barrier(schema, claimed).to_bytes()
                    self.store.put(self.commit_key(claimed), body, create=True)
            last = claimed.number
        _, _, _, commits = self._read_listed()
        own = [i for i in commits if i.writer == writer]
        return Resumed(
            1 + max([last, *(i.number for i in own)]),
            sum(commits[i].num_rows for i in live_commits(commits) if i.writer == writer),
            f"{self.prefix}/{mark_key(writer)}" in keys
            or any(i not in commits[i].replaces for i in own),
        )

    def snapshot(self, version: Version | str | Sequence[str] | None = None) -> Snapshot:
        """The dataset now, or at a version: a `Version` or its hash, a list of commit ids, or one
        commit's id, for the dataset as it was after that one.

        Raises `DatasetNotFoundError`, or `VersionNotFoundError` where commits are gone.
        """
        named = None if isinstance(version, str) else version
        schema, order, live, commits = self._read_listed(named)
        if version is None or isinstance(version, str):
            live = commits_of(version, commits, order)
        # Commits that were read hold columns.
        parts = [cast(StoredObjects, commits[i].objects) for i in live]
        objects = StoredObjects.joined(schema, parts)
        counts = tuple(len(part) for part in parts)
        return Snapshot(
            self.prefix, schema, Version.of({i: commits[i] for i in live}), objects, counts
        )

    def _read_listed(
        self, version: Version | Sequence[str] | None = None
    ) -> tuple[Schema, RowOrder, list[CommitId], dict[CommitId, Commit]]:
        """The schema and the order of the rows; and all commits there are, or those that a version
        names, in order.
        """
        listing = _Listing(self)
        while True:
            data, infos = self.store.find_and_list(
                self.schema_key, self.commit_folder, limit=DATASET_LIMIT
            )
            schema = self.required(self.schema_of(data))
            order: RowOrder = "commit" if data is None else row_order(bytes(data))
            if version is None:
                ids = sorted(self._at_one_moment(infos))
            else:
                ids = named_ids(version, sorted(self._commits_among(infos)))
            commits = listing.read(schema, ids)
            if commits is None:
                continue
            if version is not None:
                check_named(version, commits)
            return schema, order, ids, commits

    def delete(self) -> None:
        """Remove the dataset. It is empty at once and gone at the end; no one may save meanwhile.

        On a full disk there is no room for the commit that empties it: then its objects go first,
        then its commits. Readers miss objects meanwhile; none sees a part of the rows.

        Raises `DatasetNotFoundError` where nothing of it is there, `SchemaError` where the config
        gives other attributes than are stored.
        """
        keys = [info.key for info in self.store.list(self.prefix)]
        if not keys:
            self.require_schema()
        last = [*self._emptied(keys), self.schema_key]
        rest = [key for key in keys if key not in last]
        # Without that commit a reader finds commits whose objects are gone, not some of the rows.
        rest.sort(key=lambda key: key.startswith(f"{self.commit_folder}/"))
        self.store.delete(rest)
        self.store.delete_unfinished([i.key for i in self.store.list_unfinished(self.prefix)])
        for key in last:
            self.store.delete([key])

    def _emptied(self, keys: Iterable[str]) -> list[str]:
        """Publish that the dataset has no rows: the key of the commit that says so.

        None where no reader takes it for a dataset, and on a full disk. `keys`: all there are.
        """
        try:
            schema = self.read_schema()
            if schema is None:
                return []
            # Stopped half way, an emptied dataset remains, never one with half its rows. Were
            # dataset.json to go before the commit, another schema could meet that commit.
            self.store.delete(self._unfollowed(keys))
            writer = f"delete-{secrets.token_hex(8)}"  # a commit of its own each time
            return [
                self.commit_key(self.publish(schema, [], writer=writer, number=0, refresh=True))
            ]
        except (FormatError, StoreFullError):
            return []

    def _unfollowed(self, keys: Iterable[str]) -> list[str]:
        """The keys of commits that leave no number for a later one: savers make none."""
        return [key for key in keys if (i := self.commit_of(key)) and i.seq == LAST_SEQ]


class _Listing:
    """Reads all commits of a list that others change meanwhile.

    What is deleted while it is read is not in the next list, and what was read once is not asked
    for again: so that a reader gets on however many commits there are, and however fast they go.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._schema: Schema | None = None
        self._read: dict[CommitId, Commit] = {}
        self._missed: Counter[CommitId] = Counter()
        self._began = time.monotonic()
        self._rounds = 0  # that led to another

    def read(self, schema: Schema, ids: Sequence[CommitId]) -> dict[CommitId, Commit] | None:
        """The commits of these ids; None where one was not there, for another list.

        Raises `ObjectNotFoundError` where it is not for the third time, or lists have named others
        that were not for `_CHURN` seconds.
        """
        if schema != self._schema:  # another dataset of that name
            self._schema, self._read = schema, {}
        left = [i for i in ids if i not in self._read]
        self._read |= self._catalog.read_commits(schema, left)
        gone = [i for i in left if i not in self._read]
        for commit_id in gone:
            self._missed[commit_id] += 1
            if self._missed[commit_id] == _TRIES:
                key = self._catalog.commit_key(commit_id)
                raise ObjectNotFoundError(
                    f"{self._catalog.store.url}/{key}: it is listed, and there is no such object"
                )
        if not gone:
            return {i: self._read[i] for i in ids}
        if time.monotonic() - self._began > _CHURN:
            raise StoreError(
                f"{self._catalog.store.url}/{self._catalog.commit_folder}: for {_CHURN:.0f} s each "
                "list names commits that are not there; either they are deleted faster than they "
                "can be read, or the server lists what it does not have"
            )
        self._rounds += 1
        time.sleep(min(_LONGEST, _SHORTEST * 2.0 ** min(self._rounds - 1, 30)))
        return None


@cache
def _library_version() -> str:
    """Reading it takes 0.6 ms, a fifth of a commit to a folder."""
    return distribution_version("storage_loader")
