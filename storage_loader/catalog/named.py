"""Which commits a version names, by ids, hash or one commit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import ConfigError, VersionNotFoundError
from ..keywords import shown
from .commits import Commit, CommitId, RowOrder, in_row_order, live_commits
from .live import states
from .snapshot import Version, Versions


def named_ids(version: Version | Sequence[str], listed: Sequence[CommitId]) -> list[CommitId]:
    """The commits of a version or list, all of them listed; else `VersionNotFoundError`."""
    if not isinstance(version, (Version, Sequence)):
        raise ConfigError(f"version {shown(version)}: a Version, its hash, a commit id, or a list")
    names = version.commits if isinstance(version, Version) else list(version)
    by_name = {str(i): i for i in listed}
    gone = [name for name in names if name not in by_name]
    if gone:
        raise VersionNotFoundError(f"commits of this version are gone or never were: {gone[:5]}")
    return [by_name[name] for name in names]


def check_named(version: Version | Sequence[str], commits: Mapping[CommitId, Commit]) -> None:
    """Raise `VersionNotFoundError` where the commits of these names are not what was meant."""
    barred = [str(i) for i, commit in commits.items() if i in commit.replaces]
    if barred:
        raise VersionNotFoundError(f"commits of this version are gone: {barred[:5]}")
    if isinstance(version, Version):
        version.check(commits)


def commits_of(
    version: str | None, commits: Mapping[CommitId, Commit], order: RowOrder = "commit"
) -> list[CommitId]:
    """The live commits now, or in the state with this hash or after the commit of this id, as
    their rows lie.
    """
    versions = Versions(commits)
    live = in_row_order(live_commits(commits), order)
    if version is None or version == versions.hash_of(live):
        return live
    wanted = CommitId.parse(version)
    for state in states(commits):
        live = in_row_order(state.live, order)
        if state.after == wanted or (not wanted and version == versions.hash_of(live)):
            gone = [str(i) for i in live if i not in commits]
            if gone:
                raise VersionNotFoundError(
                    f"version {shown(version)}: its commits are gone: {gone[:5]}"
                )
            return live
    if version == versions.hash_of([]):
        return []
    if wanted:
        raise VersionNotFoundError(f"no version {shown(version)}: that commit is gone or never was")
    raise VersionNotFoundError(
        f"no version {shown(version)}: of {len(commits)} commits no state has this hash or is "
        "after this commit; `storage-loader log` lists them"
    )
