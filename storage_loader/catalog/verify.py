"""Whether a dataset is as it was stored: every byte is read and hashed, every header compared."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import xxhash

from ..config import DataConfig, canonical_json
from ..errors import ConfigError, FormatError, ObjectNotFoundError
from ..hdf5 import header_problems
from ..keywords import checked_keywords, shown
from ..layout import WORD_NBYTES, Column, ObjectLayout
from ..schema import END, Schema
from ..store import Buffer, ObjectInfo, Store, xxh3
from ..threads import LEFT, Threads
from .catalog import Catalog
from .commits import Commit, CommitId, RowOrder, read_json
from .named import check_named, commits_of, named_ids
from .objects import StoredObject, StoredObjects
from .snapshot import Version, rows_text
from .stored import DATASET_KEYS, DATASET_LIMIT, row_order

_THREADS = 8
_MAX_HEADER = 16 * 2**20  # bytes of an object beside rows and checksums; a thousand attributes: 1
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
    of rows that have no fixed size ascend to the number of values, and that its HDF5 header is the
    one that this library writes: compared, no HDF5 library sees it, and what another wrote is a
    problem. What seems damaged is fetched once more.
    Nothing is changed. `found` gets each problem at once, `progress` the bytes looked at, of how
    many; both are called in this thread. Memory: some MiB for each of `num_threads`, and 0.3 KB
    an object.

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
    examiner = _Examiner(catalog.store, catalog.prefix, schema, listed)
    objects = ((i, stored) for i, part in zip(live, parts, strict=True) for stored in part)
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
        return catalog.read_commits(schema, ids)
    except FormatError:
        readable: dict[CommitId, Commit] = {}
        for commit_id in ids:
            readable |= _read_commit(catalog, schema, commit_id, note)
        return readable


def _read_commit(
    catalog: Catalog, schema: Schema, commit_id: CommitId, note: Callable[[Problem], None]
) -> dict[CommitId, Commit]:
    try:
        return catalog.read_commits(schema, [commit_id])
    except FormatError as error:
        note(Problem(catalog.config.dataset_name, str(error), str(commit_id)))
        return {}


def _in_threads(
    work: Callable[[T, threading.Event], R], items: Iterable[T], num_threads: int
) -> Iterator[tuple[T, R]]:
    """Each item and what the work made of it, in order; two items a thread are taken ahead.

    The event is set when nobody waits for the results any more.
    """
    rest = iter(items)
    stop = threading.Event()
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
        self, store: Store, prefix: str, schema: Schema, listed: dict[str, ObjectInfo]
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._schema = schema
        self._listed = listed  # by key in the store
        self._itemsizes = {r.name: r.dtype.itemsize for r in schema.regions}
        self._right_headers: set[tuple[tuple[int, ...], bytes]] = set()

    def examine(self, item: tuple[CommitId, StoredObject], stop: threading.Event) -> list[_Damage]:
        """What is wrong with an object; it ends early once `stop` is set."""
        _, stored = item
        key = f"{self._prefix}/{stored.key}"
        info = self._listed.get(key)
        if info is None:
            return [_Damage("is missing", 0, stored.rows)]
        if info.odd:
            return [_Damage(f"is {info.odd}, which is never read", 0, stored.rows)]
        if info.nbytes != stored.nbytes:
            return misplaced(stored, info.nbytes)
        damages = self._damages(key, stored, stop)
        if damages and not stop.is_set():
            self._store.note_retry(key)
            damages = self._damages(key, stored, stop)
        return damages

    def _damages(self, key: str, stored: StoredObject, stop: threading.Event) -> list[_Damage]:
        try:
            layout = self._layout(key, stored)
            beside = stored.nbytes - sum(c.stored_nbytes for c in layout.columns.values())
            if beside - layout.num_words * WORD_NBYTES > _MAX_HEADER:
                return [_Damage(f"has {beside} bytes that are no rows", 0, stored.rows)]
            pieces = self._store.stream(key, 0, stored.nbytes)
            scan = scanned(pieces, layout, stop, self._itemsizes)
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
        return self._header_damages(stored, layout, scan.header)

    def _layout(self, key: str, stored: StoredObject) -> ObjectLayout:
        """Of an object whose directory says where its parts lie, by that; else `FormatError`."""
        if isinstance(stored.layout, ObjectLayout):
            return stored.layout
        [directory] = self._store.get_ranges(key, [stored.layout.directory_range])
        if xxh3(directory) != stored.directory_checksum:
            raise FormatError(_DIRECTORY)
        return stored.layout.layout(self._schema, memoryview(directory))

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
            for i, block in enumerate(blocks):
                place = i * column.block_nbytes
                part = out[place : place + column.block_nbytes].data
                column.codec.decode(memoryview(block), part, END.itemsize)
            return out.view("<i8")[: column.items]
        return np.frombuffer(b"".join(blocks), "<i8")

    def _header_damages(
        self, stored: StoredObject, layout: ObjectLayout, header: bytes
    ) -> list[_Damage]:
        known = (_figures(layout), hashlib.sha256(header).digest())
        if known in self._right_headers:
            return []
        wrong = header_problems(self._schema, layout, header)
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


@dataclass(frozen=True)
class Scan:
    """What one reading of an object gave."""

    nbytes: int
    checksum: int  # of all bytes
    blocks: npt.NDArray[np.uint64]  # checksum of each block, by its place in the directory
    directory: bytes
    header: bytes  # what is of no row and not of the directory, in order
    ends: dict[str, _Ends]  # by region
    undecoded: dict[int, str]  # blocks, by place in the directory, that are not what was coded


class _Ends:
    """Whether ends of rows, which come in pieces, ascend from 0 to the number of values."""

    def __init__(self) -> None:
        self.last = 0
        self.ascend = True
        self._rest = b""

    def add(self, part: memoryview) -> None:
        data = self._rest + part
        whole = len(data) // END.itemsize * END.itemsize
        self._rest = data[whole:]
        ends = np.frombuffer(data[:whole], "<i8")
        if len(ends):
            self.ascend &= bool(ends[0] >= self.last and (ends[1:] >= ends[:-1]).all())
            self.last = int(ends[-1])


_DIRECTORY = "the directory differs from its own checksum in the commit"
_INDEX, _HEADER = -1, -2
_BEYOND = (2**63, _HEADER)  # of a store that sends more than was asked for


def _sections(layout: ObjectLayout) -> Iterator[tuple[int, int]]:
    """(end, what) of all parts in order; what: a block by its place, or as above."""
    parts = [(*ends, block) for block, ends in enumerate(layout.block_ranges.tolist())]
    if layout.num_words:
        parts.append((*layout.directory_range, _INDEX))
    place = 0
    for start, end, what in sorted(parts):
        if start > place:
            yield start, _HEADER
        yield end, what
        place = end
    if layout.nbytes > place:
        yield layout.nbytes, _HEADER


def scanned(
    pieces: Iterable[Buffer],
    layout: ObjectLayout,
    stop: threading.Event,
    itemsizes: Mapping[str, int] = {},
) -> Scan:
    """Hash an object's pieces as they come, the whole and each block; keep the rest of it.

    Blocks that are coded are decoded. `itemsizes`: bytes of one value, by region.
    """
    whole, block = xxhash.xxh3_64(), xxhash.xxh3_64()
    blocks = np.zeros(layout.num_checksums, np.uint64)
    directory: list[bytes] = []
    header: list[bytes] = []
    coded: list[bytes] = []  # of a block that is
    undecoded: dict[int, str] = {}
    ends = {name: _Ends() for name in layout.columns if name.endswith("/ends")}
    names = [name for name, c in layout.columns.items() for _ in range(c.num_blocks)]
    sections = _sections(layout)
    end, what = next(sections)
    place = 0

    def add(part: memoryview) -> None:
        """Part of a block; `place` is where it ends."""
        name = names[what]
        column = layout.columns[name]
        if column.codec is None:
            if name in ends:
                ends[name].add(part)
            return
        coded.append(bytes(part))
        if place < end:
            return
        out = np.empty(column.block_nbytes, np.uint8)
        try:
            column.codec.decode(memoryview(b"".join(coded)), out.data, itemsizes[name])
        except FormatError as error:
            undecoded[what] = str(error)
        coded.clear()
        if name in ends:
            first = (what - layout.first_checksum[name]) * column.block_items
            count = min(column.block_items, column.items - first)
            ends[name].add(out[: count * column.item_nbytes].data)

    for piece in pieces:
        if stop.is_set():
            break
        view = memoryview(piece).cast("B")
        whole.update(view)
        while view.nbytes:
            part = view[: end - place]
            place += part.nbytes
            if what >= 0:
                block.update(part)
                add(part)
            elif what == _INDEX:
                directory.append(bytes(part))
            else:
                header.append(bytes(part))
            view = view[part.nbytes :]
            if place == end:
                if what >= 0:
                    blocks[what] = block.intdigest()
                    block.reset()
                end, what = next(sections, _BEYOND)
    rest = b"".join(header)
    return Scan(place, whole.intdigest(), blocks, b"".join(directory), rest, ends, undecoded)


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
            if not ends.ascend or ends.last != items:
                what = f"the ends of its rows do not ascend to its {items} values"
                damages.append(_Damage(what, 0, stored.rows, attribute, "ends"))
    if not damages and scan.checksum != stored.checksum:
        what = "the HDF5 header differs: all rows are right, the whole object's checksum is not"
        return [_Damage(what, 0, stored.rows)]
    return damages
