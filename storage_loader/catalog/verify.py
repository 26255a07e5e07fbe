"""Whether a dataset is as it was stored: every byte is read and hashed, every header compared."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ..config import DataConfig, canonical_json
from ..errors import ConfigError, FormatError, ObjectNotFoundError
from ..hdf5 import header_problems
from ..keywords import checked_keywords, shown
from ..layout import WORD_NBYTES, Column, ObjectLayout
from ..schema import END, Schema
from ..store import ObjectInfo, Store, xxh3
from ..sync import Event, Future
from ..threads import LEFT, Threads
from .bounds import Extreme, has_bounds
from .catalog import Catalog
from .commits import Commit, CommitId, RowOrder, read_json
from .named import check_named, commits_of, named_ids
from .objects import StoredObject, StoredObjects
from .scan import Scan, scanned
from .snapshot import Version, rows_text
from .stored import DATASET_KEYS, DATASET_LIMIT, row_order

_THREADS = 8
# Bytes of an object beside rows and checksums: a thousand attributes take 1 MiB, and all units and
# descriptions no more than dataset.json.
_MAX_HEADER = 32 * 2**20
_KEPT_HEADERS = 1024  # that are known to be right: objects of one layout have the same

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Problem:
    """One thing that is not as it was stored."""

    dataset: str
    what: str
    commit: str | None = None
    key: str | None = None  # of an object, relative to the dataset
    attribute: str | None = None
    rows: tuple[int, int] | None = None  # of the dataset in this version: first, first not

    def __str__(self) -> str:
        where = [f"dataset {self.dataset!r}"]
        where += [f"commit {self.commit}"] if self.commit else []
        where += [f"object {self.key}"] if self.key else []
        where += [f"attribute {self.attribute!r}"] if self.attribute else []
        where += [rows_text(*self.rows)] if self.rows else []
        return f"{', '.join(where)}: {self.what}"


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what is wrong with it."""

    version: Version
    num_rows: int
    num_objects: int
    nbytes: int  # of the objects, as their commits say
    problems: tuple[Problem, ...]


@checked_keywords
def verify_dataset(
    config: DataConfig,
    *,
    version: Version | str | Sequence[str] | None = None,
    num_threads: int = _THREADS,
    found: Callable[[Problem], object] = lambda problem: None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Verified:
    """Read everything of a dataset, the newest version or another, and check it.

    Checked are dataset.json, every commit there is, that no object is named twice, and of each
    object its size, the checksums of the whole, of its directory and of each block, that the ends
    of rows that have no fixed size ascend to the number of values, that its commit says how many
    bytes the rows have, and which are the smallest and the largest numbers, and that its HDF5
    header is the one that this library writes: compared, no HDF5 library sees it, and what another
    wrote is a problem. What seems damaged is fetched once more.
    Nothing is changed. `found` gets each problem at once, `progress` the bytes looked at, of how
    many; both are called in this thread. Memory: some MiB for each of `num_threads`, and 0.3 KB
    an object, more where it has many attributes of single numbers.

    Where a commit cannot be read, which is a problem, the others are looked at without it. Raises
    `DatasetNotFoundError`, `VersionNotFoundError`, or `StoreError` where the store fails.
    """
    if type(num_threads) is not int or num_threads < 1:
        raise ConfigError(f"num_threads {shown(num_threads)}: at least 1")
    catalog = Catalog(config)
    problems: list[Problem] = []

    def note(problem: Problem) -> None:
        problems.append(problem)
        found(problem)

    described = _read_dataset(catalog, note)
    if described is None:
        return Verified(Version.of({}), 0, 0, 0, tuple(problems))
    schema, order = described
    commits = _read_commits(catalog, schema, note)
    if version is None or isinstance(version, str):
        live = commits_of(version, commits, order)
    else:
        live = named_ids(version, sorted(commits))
        check_named(version, {i: commits[i] for i in live})
    parts = [cast(StoredObjects, commits[i].objects) for i in live]  # as in all that were read
    # After the commits were read: what they name was there.
    listed = {info.key: info for info in catalog.store.list(f"{catalog.prefix}/objects")}
    total = sum(sum(part.nbytes.tolist()) for part in parts)
    schemas = {i: schema if (own := commits[i].notes) is None else schema.noted(own) for i in live}
    examiner = _Examiner(catalog.store, catalog.prefix, schemas, listed)
    objects = (
        (i, stored) for i in live for stored in _with_extremes(catalog, schema, i, commits[i], note)
    )
    owners: dict[str, CommitId] = {}
    done = first = 0
    progress(done, total)
    for (commit_id, stored), damages in _in_threads(examiner.examine, objects, num_threads):
        owner = owners.get(stored.key)
        owners[stored.key] = commit_id
        twice = f"is named twice, before by commit {owner}"
        for damage in [*damages, *([_Damage(twice, 0, stored.rows)] if owner else [])]:
            rows = (first + damage.start, first + damage.stop)
            where = (str(commit_id), stored.key, damage.attribute, rows)
            note(Problem(config.dataset_name, damage.what, *where))
        first += stored.rows
        done += stored.nbytes
        progress(done, total)
    seen = Version.of({i: commits[i] for i in live})
    return Verified(seen, first, sum(map(len, parts)), total, tuple(problems))


def _read_dataset(
    catalog: Catalog, note: Callable[[Problem], None]
) -> tuple[Schema, RowOrder] | None:
    """Schema and order of the rows; None, and a problem, where dataset.json cannot be read."""
    name = catalog.config.dataset_name
    place = f"{catalog.store.url}/{catalog.schema_key}"
    try:
        found = catalog.store.find(catalog.schema_key, limit=DATASET_LIMIT)
        body = b"" if found is None else bytes(found)  # once: another may take its place
        schema = catalog.required(None if found is None else catalog.schema_of(memoryview(body)))
        if canonical_json(read_json(body, DATASET_KEYS, place=place)) != body:
            note(Problem(name, f"{place}: not canonical JSON"))
    except FormatError as error:
        note(Problem(name, str(error)))
        return None
    except RecursionError:  # under `info`
        note(Problem(name, f"{place}: nested too deeply to be canonical JSON"))
        return None
    return schema, row_order(body)


def _read_commits(
    catalog: Catalog, schema: Schema, note: Callable[[Problem], None]
) -> dict[CommitId, Commit]:
    """All commits that can be read; one that was deleted meanwhile is none."""
    try:
        ids = catalog.commit_ids()
    except FormatError as error:
        note(Problem(catalog.config.dataset_name, str(error)))
        return {}
    try:
        return catalog.read_commits(schema, ids, extremes=True)
    except FormatError:
        readable: dict[CommitId, Commit] = {}
        for commit_id in ids:
            readable |= _read_commit(catalog, schema, commit_id, note)
        return readable


def _read_commit(
    catalog: Catalog, schema: Schema, commit_id: CommitId, note: Callable[[Problem], None]
) -> dict[CommitId, Commit]:
    try:
        return catalog.read_commits(schema, [commit_id], extremes=True)
    except FormatError as error:
        note(Problem(catalog.config.dataset_name, str(error), str(commit_id)))
        return {}


def _with_extremes(
    catalog: Catalog,
    schema: Schema,
    commit_id: CommitId,
    commit: Commit,
    note: Callable[[Problem], None],
) -> Iterator[StoredObject]:
    """A commit's objects with what it says of their values, which may be anything.

    Without, and with a problem, where it has no lists of them.
    """
    names = [a.name for a in schema if has_bounds(a)] if commit.objects else []
    least, most = json.loads(commit.extremes)
    for what, columns in (("least", least), ("most", most)):
        for name in names:
            column = columns.get(name) if isinstance(columns, dict) else None
            if not isinstance(column, list) or len(column) != len(commit.objects):
                text = f"{what!r} has no list of {name!r} that is as long as those of objects"
                note(Problem(catalog.config.dataset_name, text, str(commit_id)))
                yield from commit.objects
                return
    for place, stored in enumerate(commit.objects):
        found = {name: (least[name][place], most[name][place]) for name in names}
        yield replace(stored, extremes=found)


def _in_threads(
    work: Callable[[T, threading.Event], R], items: Iterable[T], num_threads: int
) -> Iterator[tuple[T, R]]:
    """Each item and what the work made of it, in order; two items a thread are taken ahead.

    The event is set when nobody waits for the results any more.
    """
    rest = iter(items)
    stop = Event()
    pool = Threads(num_threads, "storage_loader-verify")
    begun: deque[tuple[T, Future[R]]] = deque()
    try:
        while True:
            for item in islice(rest, 2 * num_threads - len(begun)):
                begun.append((item, pool.submit(work, item, stop)))
            if not begun:
                return
            item, future = begun.popleft()
            yield item, future.result()
    finally:
        stop.set()
        pool.end(seconds=LEFT)


@dataclass(frozen=True)
class _Damage:
    """What is wrong with rows `start` to `stop` of an object."""

    what: str
    start: int
    stop: int
    attribute: str | None = None
    role: str = "rows"  # "values": `start` and `stop` count these, until their rows are known


class _Examiner:
    """Looks at objects, from several threads."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        schemas: Mapping[CommitId, Schema],
        listed: dict[str, ObjectInfo],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._schemas = schemas  # with the notes that the commit's objects show
        self._listed = listed  # by key in the store
        self._right_headers: set[tuple[tuple[int, ...], bytes]] = set()

    def examine(self, item: tuple[CommitId, StoredObject], stop: threading.Event) -> list[_Damage]:
        """What is wrong with an object; it ends early once `stop` is set."""
        commit_id, stored = item
        key, schema = f"{self._prefix}/{stored.key}", self._schemas[commit_id]
        info = self._listed.get(key)
        if info is None:
            return [_Damage("is missing", 0, stored.rows)]
        if info.odd:
            return [_Damage(f"is {info.odd}, which is never read", 0, stored.rows)]
        if info.nbytes != stored.nbytes:
            return misplaced(stored, info.nbytes)
        damages = self._damages(key, stored, schema, stop)
        if damages and not stop.is_set():
            self._store.note_retry(key)
            damages = self._damages(key, stored, schema, stop)
        return damages

    def _damages(
        self, key: str, stored: StoredObject, schema: Schema, stop: threading.Event
    ) -> list[_Damage]:
        try:
            layout = self._layout(key, stored, schema)
            beside = stored.nbytes - sum(c.stored_nbytes for c in layout.columns.values())
            if beside - layout.num_words * WORD_NBYTES > _MAX_HEADER:
                return [_Damage(f"has {beside} bytes that are no rows", 0, stored.rows)]
            pieces = self._store.stream(key, 0, stored.nbytes)
            scan = scanned(pieces, schema, layout, stop)
            if stop.is_set():
                return []
            if scan.nbytes != stored.nbytes:
                return misplaced(stored, scan.nbytes)
            damages = damaged(stored, layout, scan)
            if damages:
                return self._with_rows(key, layout, damages)
        except ObjectNotFoundError:
            return [_Damage("is missing", 0, stored.rows)]
        except FormatError as error:
            return [_Damage(str(error), 0, stored.rows)]
        return [
            *misstated(stored, layout, scan),
            *self._header_damages(stored, layout, schema, scan.header),
        ]

    def _layout(self, key: str, stored: StoredObject, schema: Schema) -> ObjectLayout:
        """Of an object whose directory says where its parts lie, by that; else `FormatError`."""
        if isinstance(stored.layout, ObjectLayout):
            return stored.layout
        [directory] = self._store.get_ranges(key, [stored.layout.directory_range])
        if xxh3(directory) != stored.directory_checksum:
            raise FormatError(_DIRECTORY)
        return stored.layout.layout(schema, memoryview(directory))

    def _with_rows(self, key: str, layout: ObjectLayout, damages: list[_Damage]) -> list[_Damage]:
        """The damages of values by the rows they belong to, which the ends say."""
        by_row: list[_Damage] = []
        wrong = {(d.attribute, d.role) for d in damages}
        known: dict[str, npt.NDArray[np.int64]] = {}
        for damage in damages:
            name = damage.attribute
            if damage.role != "values" or name is None:
                by_row.append(damage)
                continue
            if (name, "ends") in wrong:  # then nobody knows which rows
                by_row.append(replace(damage, start=0, stop=layout.rows))
                continue
            if name not in known:
                known[name] = self._ends(key, layout.columns[f"{name}/ends"])
            first = int(np.searchsorted(known[name], damage.start, "right"))
            last = int(np.searchsorted(known[name], damage.stop, "left"))
            by_row.append(replace(damage, start=first, stop=min(last + 1, layout.rows)))
        return by_row

    def _ends(self, key: str, column: Column) -> npt.NDArray[np.int64]:
        """The ends of rows, of blocks that are right."""
        blocks = self._store.get_ranges(key, list(map(tuple, column.ranges.tolist())))
        if column.codec is not None:
            out = np.empty(column.num_blocks * column.block_nbytes, np.uint8)
            column.codec.decode(blocks, out.data, END.itemsize)
            return out.view("<i8")[: column.items]
        return np.frombuffer(b"".join(blocks), "<i8")

    def _header_damages(
        self, stored: StoredObject, layout: ObjectLayout, schema: Schema, header: bytes
    ) -> list[_Damage]:
        known = (id(schema), *_figures(layout)), hashlib.sha256(header).digest()
        if known in self._right_headers:
            return []
        wrong = header_problems(schema, layout, header)
        if not wrong and not layout.is_coded and len(self._right_headers) < _KEPT_HEADERS:
            self._right_headers.add(known)
        return [_Damage(what, 0, stored.rows, name or None) for name, what in wrong]


def _figures(layout: ObjectLayout) -> tuple[int, ...]:
    columns = layout.columns.values()
    places = (place for c in columns for place in (c.offset, c.items, c.block_items))
    return (layout.rows, layout.nbytes, layout.directory_offset, *places)


def misplaced(stored: StoredObject, nbytes: int) -> list[_Damage]:
    """The damage of an object that has `nbytes` bytes, not those its commit says. Pure.

    Where it is too short: the rows that are not there, by attribute.
    """
    what = f"the object has {nbytes} bytes, its commit says {stored.nbytes}"
    if not isinstance(stored.layout, ObjectLayout):
        return [_Damage(what, 0, stored.rows)]
    cut = [
        _Damage(what, max(0, nbytes - c.offset) // c.item_nbytes, stored.rows, name)
        for name, c in stored.layout.columns.items()
        if c.nbytes and c.end > nbytes
    ]
    return cut or [_Damage(what, 0, stored.rows)]


_DIRECTORY = "the directory differs from its own checksum in the commit"


def damaged(stored: StoredObject, layout: ObjectLayout, scan: Scan) -> list[_Damage]:
    """What of an object of the right size differs from its checksums. Pure."""
    if xxh3(scan.directory) != stored.directory_checksum:
        return [_Damage(_DIRECTORY, 0, stored.rows)]
    words = np.frombuffer(scan.directory, "<u8")
    wrong = np.flatnonzero(scan.blocks != layout.checksums(words))
    damages = []
    for name, column in layout.columns.items():
        places = layout.all_blocks(name)
        here = wrong[(wrong >= places.start) & (wrong < places.stop)] - places.start
        for run in np.split(here, np.flatnonzero(np.diff(here) > 1) + 1):
            if len(run):
                start = int(run[0]) * column.block_items
                end = min((int(run[-1]) + 1) * column.block_items, column.items)
                attribute, _, role = name.partition("/")
                if role == "ends":  # the next row begins where this one ends
                    end = min(end + 1, stored.rows)
                what = "differ from their checksum"
                damages.append(_Damage(what, start, end, attribute, role or "rows"))
    if not damages and scan.undecoded:
        block, what = next(iter(scan.undecoded.items()))
        name = next(n for n in layout.columns if block < layout.all_blocks(n).stop)
        what = f"{len(scan.undecoded)} blocks cannot be decoded, the first of them: {what}"
        damages.append(_Damage(what, 0, stored.rows, name.partition("/")[0]))
    if not damages:
        for name, ends in scan.ends.items():
            attribute = name.removesuffix("/ends")
            items = layout.columns[f"{attribute}/values"].items
            if not ends.ascend_to(items):
                what = f"the ends of its rows do not ascend to its {items} values"
                damages.append(_Damage(what, 0, stored.rows, attribute, "ends"))
    if not damages and scan.checksum != stored.checksum:
        what = "the HDF5 header differs: all rows are right, the whole object's checksum is not"
        return [_Damage(what, 0, stored.rows)]
    return damages


def misstated(stored: StoredObject, layout: ObjectLayout, scan: Scan) -> list[_Damage]:
    """What its commit says of the rows of an object that are right, and is not so. Pure."""
    damages = []
    decoded = sum(column.nbytes for column in layout.columns.values())
    if stored.decoded != decoded:
        what = f"its commit says that its rows have {stored.decoded} bytes, they have {decoded}"
        damages.append(_Damage(f"{what}; {_AGAIN}", 0, stored.rows))
    for name, stated in stored.extremes.items():
        found = scan.bounds[name].found
        if not all(map(_is_same, stated, found)):
            what = f"its commit says that the values are {_span(stated)}, they are {_span(found)}"
            damages.append(_Damage(f"{what}; {_AGAIN}", 0, stored.rows, name))
    return damages


_AGAIN = "the rows themselves are right, save them again before a reader goes by it"


def _is_same(stated: object, found: Extreme) -> bool:
    return stated == found and isinstance(stated, bool) == isinstance(found, bool)


def _span(bounds: tuple[object, object]) -> str:
    if bounds == (None, None):
        return "not all finite"
    return " to ".join(map(shown, bounds))
