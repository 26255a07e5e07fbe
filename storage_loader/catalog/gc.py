"""What no reader can need any more: first a plan, then its deletions.

**What is garbage.** Commits that have not been live for longer than `keep`, and what only they
name; objects that no commit names and whose attempt is dead; leases of dead attempts; files
that killed puts and killed collections left. An attempt (`objects/<writer>/<attempt>...`) is dead
where neither its lease nor any of its objects was written within `grace`: a saver that holds
uncommitted objects rewrites its lease every few minutes. What has another shape than docs/format.md
gives it is never deleted, nor is a link or a FIFO, whatever its name. Claims and barriers (commits
that replace themselves alone) stay, too: they hold off attempts that may still wake up, and are
small. Before the first commit of a writer that claims goes, the writer's mark is put, which stays,
too: see `claims`. Where it cannot be put, on a full disk, this writer's commits stay until the next
collection.

**Why a commit never loses its objects.** Objects are listed first and commits read afterwards,
all of them. A commit that was published before the reading is among them, so what it names stays.
One that is published later names objects of a saver that is at work: what was listed of it
is alive by its lease, what was not listed is not deleted. Only a saver that was stopped for longer
than `grace` (a suspended machine) may find its objects gone; it looks for them before it publishes.

**Why the live commits stay the same.** Commits go one by one, oldest first, each only where the
live ones without it are the live ones with it. So whatever a reader, a saver or another collection
sees meanwhile, also where this one is killed, is the newest version as it was. Commits go before
their objects: a reader finds a commit with all its objects, or none.

**Why a drop may go.** It replaces one commit and itself, so no version names it: nothing that was
pinned misses it. It goes after all it keeps from being live: the commit that it dropped, whose id
is lower, and refreshes that it made void; the live commits would differ without it until they
have gone. What names the dropped commit later could only be its own put, still under way, or a
refresh that had listed it: both take less than `keep`. That a later commit may then have a seq
that the drop had harms no order: who listed the drop has a higher one, who did not has nothing
to be after. Keys differ by writer and number.

**Clocks.** All ages are by the store's clock, of which `server_time` asks. Two collections at once
delete the same things; deleting what is gone is no error.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import groupby, islice
from typing import Literal

from ..config import DataConfig
from ..errors import ConfigError, ObjectExistsError, ObjectNotFoundError, StoreError
from ..keywords import checked_keywords, flag, shown
from ..store import ObjectInfo, Store
from .catalog import Catalog, StoredCommit
from .claims import MARK, mark_key
from .commits import Commit, CommitId
from .live import LiveCommits, states

_log = logging.getLogger(__name__)

GRACE = timedelta(hours=24)
KEEP = timedelta(days=7)

_WRITER = r"objects/[A-Za-z0-9][A-Za-z0-9._-]*"
_OBJECT = re.compile(rf"({_WRITER}/[0-9a-f]+)(-\d{{6,}}\.h5|\.lease)", re.ASCII)
_CLAIM = re.compile(rf"{_WRITER}/(\d{{6}}|committed)\.claim", re.ASCII)
_PROBE = re.compile(r"gc-[0-9a-f]{16}\.probe")
_PROBE_AGE = timedelta(hours=1)  # another collection's may be a moment old
_AT_ONCE = 1000  # keys of one deletion

Kind = Literal["commit", "object", "lease", "unfinished", "probe"]
_DELETED_AS = {"lease": "object", "probe": "object"}


@dataclass(frozen=True)
class Garbage:
    """One thing that no reader can need."""

    kind: Kind
    key: str
    nbytes: int


@dataclass(frozen=True)
class Collected:
    """What a collection deletes, in this order, and what it does not know and leaves alone."""

    garbage: tuple[Garbage, ...]
    foreign: tuple[str, ...]  # keys below the dataset that are none of the format's
    marked: tuple[str, ...] = ()  # writers whose marks are put first


@checked_keywords
def collect_garbage(
    config: DataConfig,
    *,
    grace: timedelta = GRACE,
    keep: timedelta = KEEP,
    dry_run: bool = False,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Collected:
    """Delete what no reader of a dataset can need; returns what it was.

    `grace`: how long a saver may be silent before what it stored without a commit is garbage.
    `keep`: how long commits that were replaced can still be read, with `version=` or by a loader
    that is at them; afterwards that is a `VersionNotFoundError`, and a loader in the middle of an
    epoch misses objects. Longer than any saver takes from its first look to its commit. `dry_run`
    deletes nothing. `progress` gets how many things were deleted, of how many. May run at any time,
    beside savers, readers and itself.

    Raises `FormatError`, and deletes nothing, where dataset.json or a commit cannot be read: what
    it names is not known. Takes about 1 KB of memory an object.
    """
    for name, value in (("grace", grace), ("keep", keep)):
        if not isinstance(value, timedelta) or value < timedelta(0):
            raise ConfigError(f"{name} {shown(value)}: a timedelta from 0 up")
    flag("dry_run", dry_run)
    catalog = Catalog(config)
    planned = _planned(catalog, grace, keep)
    found = planned()
    if not dry_run:
        unmarked = _mark(catalog, found.marked)
        if unmarked:
            found = planned(spared=unmarked)
        _delete(catalog.store, found.garbage, progress)
    return found


def _planned(catalog: Catalog, grace: timedelta, keep: timedelta) -> Callable[..., Collected]:
    """`plan`, given all but `spared`."""
    store, prefix = catalog.store, catalog.prefix
    if not any(store.list(prefix)) and not any(store.list_unfinished(prefix)):
        catalog.require_schema()
    now = server_time(store, prefix)  # first: what is written from here on has an age below 0
    listed = list(store.list(prefix))  # before the commits are read
    unfinished = list(store.list_unfinished(prefix))
    _, commits = catalog.read_everything()
    return partial(
        plan,
        now,
        grace=grace,
        keep=keep,
        prefix=prefix,
        listed=listed,
        unfinished=unfinished,
        commits=commits,
    )


def server_time(store: Store, prefix: str) -> datetime:
    """The time by the store's clock; see `Store.now`."""
    probe = f"{prefix}/gc-{secrets.token_hex(8)}.probe"
    try:
        return store.now(probe)
    except ObjectNotFoundError:  # the dataset was deleted meanwhile, and the probe with it
        return store.now(probe)


def plan(
    now: datetime,
    *,
    grace: timedelta,
    keep: timedelta,
    prefix: str,
    listed: Sequence[ObjectInfo],
    unfinished: Iterable[ObjectInfo],
    commits: Mapping[CommitId, StoredCommit],
    spared: Collection[str] = (),
) -> Collected:
    """What to delete of a dataset under `prefix`, in this order. Pure.

    `listed` is what the store had before `commits`, all there are, were read. No commit of the
    writers `spared` goes.
    """
    replaced = _replaced(_earlier(now, keep), commits, spared)
    released = _keys(prefix, commits, replaced)
    named = _keys(prefix, commits, commits.keys() - set(replaced))
    attempts: dict[str, datetime] = {}
    foreign = [info.key for info in listed if info.odd]
    keyed = {info.key[len(prefix) + 1 :]: info for info in listed if not info.odd}
    for key, info in keyed.items():
        match = _OBJECT.fullmatch(key)
        if match:
            last = attempts.get(match[1], info.modified)
            attempts[match[1]] = max(last, info.modified)
    garbage = [Garbage("commit", commits[i].info.key, commits[i].info.nbytes) for i in replaced]
    for key, info in keyed.items():
        match = _OBJECT.fullmatch(key)
        is_dead = match is not None and now - attempts[match[1]] > grace
        if info.key in named:
            continue
        if is_dead or info.key in released:
            kind: Kind = "lease" if key.endswith(".lease") else "object"
            garbage.append(Garbage(kind, info.key, info.nbytes))
        elif _PROBE.fullmatch(key):
            if now - info.modified > max(grace, _PROBE_AGE):
                garbage.append(Garbage("probe", info.key, info.nbytes))
        elif not (match or _CLAIM.fullmatch(key) or _is_metadata(key)):
            foreign.append(info.key)
    garbage += [
        Garbage("unfinished", info.key, info.nbytes)
        for info in unfinished
        if now - info.modified > grace
    ]
    # A commit that goes was there before the listing, and its claim before it.
    claims = {key for key in keyed if _CLAIM.fullmatch(key)}
    claimed = {key.split("/")[1] for key in claims}
    published = {i.writer for i in replaced if i not in commits[i].commit.replaces}
    marked = sorted(w for w in published & claimed if mark_key(w) not in claims)
    return Collected(tuple(garbage), tuple(sorted(foreign)), tuple(marked))


def _keys(
    prefix: str, commits: Mapping[CommitId, StoredCommit], ids: Iterable[CommitId]
) -> set[str]:
    """Keys in the store of the objects that these commits name."""
    return {f"{prefix}/{o.key}" for i in ids for o in commits[i].commit.objects}


def _earlier(now: datetime, by: timedelta) -> datetime:
    """A time before now; the first there is where `by` is more than all time."""
    try:
        return now - by
    except OverflowError:
        return datetime.min.replace(tzinfo=timezone.utc)


def _is_metadata(key: str) -> bool:
    folder, _, name = key.rpartition("/")
    if folder == "metadata" and name.endswith(".json"):
        return CommitId.parse(name.removesuffix(".json")) is not None
    return key == "dataset.json"


def _replaced(
    before: datetime, commits: Mapping[CommitId, StoredCommit], spared: Collection[str]
) -> list[CommitId]:
    """Commits that ceased to be live before that time, in an order in which they may go."""
    plain = {i: one.commit for i, one in commits.items()}
    remaining = LiveCommits(plain)
    for commit_id in sorted(plain):
        remaining.put(commit_id)
    ended = _ended(commits, plain)
    barriers = {i for i, commit in plain.items() if commit.replaces == (i,)}
    others = sorted(plain.keys() - set(remaining.now) - barriers)
    return [i for i in others if ended[i] < before and i.writer not in spared and remaining.take(i)]


def _ended(
    commits: Mapping[CommitId, StoredCommit], plain: Mapping[CommitId, Commit]
) -> dict[CommitId, datetime]:
    """When each commit ceased to be live: when the commit after which it was not was stored."""
    ended: dict[CommitId, datetime] = {i: one.info.modified for i, one in commits.items()}
    for state in states(plain):
        for gone in state.ended:
            if gone in ended:
                ended[gone] = commits[state.after].info.modified
    return ended


def _mark(catalog: Catalog, writers: Iterable[str]) -> set[str]:
    """Note of each writer that it has committed; those of which that could not be noted."""
    unmarked = set()
    for writer in writers:
        try:
            catalog.store.put(f"{catalog.prefix}/{mark_key(writer)}", MARK, create=True)
        except ObjectExistsError:  # noqa: PERF203  the loop is for this
            continue  # another collection has
        except StoreError as error:
            if error.is_transient:
                raise
            _log.warning("the commits of writer %r stay for now: %s", writer, error)
            unmarked.add(writer)
    return unmarked


def _delete(
    store: Store, garbage: Sequence[Garbage], progress: Callable[[int, int], object]
) -> None:
    done = 0
    for batch in _batches(garbage):
        delete = store.delete_unfinished if batch[0].kind == "unfinished" else store.delete
        delete([one.key for one in batch])
        done += len(batch)
        progress(done, len(garbage))


def _batches(garbage: Sequence[Garbage]) -> Iterator[list[Garbage]]:
    """What one deletion takes: one commit, so that they go in their order, else many things."""
    for kind, alike in groupby(garbage, lambda one: _DELETED_AS.get(one.kind, one.kind)):
        at_once = 1 if kind == "commit" else _AT_ONCE
        while batch := list(islice(alike, at_once)):
            yield batch
