"""What was published, in order, and how to take one commit out of what readers see."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import cast

from ..config import DataConfig
from ..errors import StoreFullError, VersionNotFoundError
from ..keywords import checked_keywords, shown
from ..schema import Schema
from .catalog import Catalog
from .commits import Commit, CommitId, in_row_order, live_commits
from .gc import collect_garbage
from .live import states
from .objects import StoredObjects
from .snapshot import Version, Versions


@dataclass(frozen=True)
class LoggedCommit:
    """One commit of a dataset. `version=` takes its `id` or its `version`."""

    id: str
    writer: str
    time: datetime  # when it was stored, by the store's clock
    num_rows: int
    num_objects: int
    nbytes: int  # of its objects
    replaces: tuple[str, ...]  # ids of the commits whose place it took; its own: no version has it
    is_live: bool  # its rows are in the newest version
    version: Version | None  # of the dataset after it; None where commits of it are gone


@checked_keywords
def commit_log(config: DataConfig) -> list[LoggedCommit]:
    """All commits there are, in the order of their ids; `DatasetNotFoundError` without a dataset.

    Reads dataset.json and commits, never an object.
    """
    catalog = Catalog(config)
    schema, stored = catalog.read_everything()
    if schema is None:
        catalog.require_schema()
    _, order = catalog.require_dataset()
    commits = {i: one.commit for i, one in stored.items()}
    live = set(live_commits(commits))
    log = []
    versions = Versions(commits)
    for state in states(commits):
        commit_id = state.after
        commit, info = commits[commit_id], stored[commit_id].info
        objects = cast(StoredObjects, commit.objects)  # as in all commits that were read
        log.append(
            LoggedCommit(
                str(commit_id),
                commit_id.writer,
                info.modified,
                sum(objects.rows.tolist()),
                len(objects),
                sum(objects.nbytes.tolist()),
                tuple(map(str, commit.replaces)),
                commit_id in live,
                versions.of(in_row_order(state.live, order)),
            )
        )
    return log


@checked_keywords
def drop_commit(config: DataConfig, commit: str) -> str:
    """Take one commit's rows out of the newest version, all at once; the id of what does so.

    That is a commit without rows which replaces the dropped one and itself, so that it is in no
    version and `collect_garbage` removes it after the dropped one. Earlier versions stay as they
    are until it removes what they need, commits made beside it survive, and what the dropped
    commit itself replaced stays replaced. A refresh that took the commit's place meanwhile stands.

    On a full disk room is made for that commit: first `collect_garbage` removes what it does by
    default; where that is not enough, objects of the dropped commit go one by one until there is
    room. Its rows are then gone from earlier versions, too, whose readers get an error.

    Raises `VersionNotFoundError` where the newest version does not hold it.
    """
    catalog = Catalog(config)
    schema = catalog.require_schema()
    _, stored = catalog.read_everything()
    commits = {i: one.commit for i, one in stored.items()}
    wanted = CommitId.parse(commit)
    if wanted is None or wanted not in live_commits(commits):
        state = "is replaced already" if wanted in commits else "is gone or never was"
        if wanted in commits and wanted in commits[wanted].replaces:
            state = "has no rows"
        raise VersionNotFoundError(
            f"commit {shown(commit)} {state}: it is not in the newest version"
        )
    dropping = _published(catalog, schema, commits, wanted)
    # Of two that replace a common commit the later id wins: a refresh that was published between
    # our looking and our publishing would lose its rows to one that has none.
    _, stored = catalog.read_everything()
    earlier = [i for i in stored if i not in commits and i < dropping]
    if any(wanted in stored[i].commit.replaces for i in earlier):
        catalog.store.delete([catalog.commit_key(dropping)])
        raise VersionNotFoundError(
            f"commit {shown(commit)} was replaced meanwhile: it is not in the newest version"
        )
    return str(dropping)


def _published(
    catalog: Catalog, schema: Schema, commits: Mapping[CommitId, Commit], wanted: CommitId
) -> CommitId:
    """Publish the commit that drops `wanted`; on a full disk something gives way to it."""
    writer = secrets.token_hex(8)
    ways = _ways_to_make_room(catalog, commits, wanted)
    while True:
        try:
            return catalog.publish(schema, [], writer=writer, number=0, drops=[wanted])
        except StoreFullError:  # noqa: PERF203  the loop is for this
            make_room = next(ways, None)
            if make_room is None:
                raise
            make_room()


def _ways_to_make_room(
    catalog: Catalog, commits: Mapping[CommitId, Commit], wanted: CommitId
) -> Iterator[Callable[[], object]]:
    """What certainly nobody needs, then what the user has asked to be rid of."""
    yield partial(collect_garbage, catalog.config)
    others = {o.key for i, commit in commits.items() if i != wanted for o in commit.objects}
    for stored in commits[wanted].objects:
        if stored.key not in others:
            yield partial(catalog.store.delete, [f"{catalog.prefix}/{stored.key}"])
