"""The actors of the soak: each works in a process of its own until a given time.

Each checks what it sees on the spot, writes down in a journal what it was told, and fails by an
exception. Those that read the newest version may lose objects only after `keep`.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    LoggedCommit,
    collect_garbage,
    commit_log,
    drop_commit,
    verify_dataset,
)
from storage_loader.errors import ObjectNotFoundError, VersionNotFoundError
from storage_loader.saver import lease

from .soak_rows import (
    OBJECT_ROWS,
    Drawn,
    Job,
    Numbers,
    check_values,
    generation_of,
    held,
    make,
    rows_of_commits,
    writer_of,
)

FILES = 1024  # that a process may open
_M_ARENA_MAX = -8  # of malloc.h

BATCH = 50  # rows, of a saver
SAVING_REST = 0.7  # seconds between batches
EPOCHS = 3  # of one loader, before it is made anew
READ = 256  # rows, of a loader's batch
RANDOM = 300  # rows read by their numbers

CLOCKS = 2.0  # seconds: the store tells some times by the whole second


@dataclass(frozen=True)
class Pace:
    """Seconds and rows that fit the length of the run."""

    keep: float = 20  # of gc
    grace: float = 40  # of gc
    renew: float = 5  # of a saver's lease
    silence: float = 60  # of a saver with stored objects, now and then: more than grace
    silence_share: float = 1 / 300  # of its batches
    collect: float = 6  # between collections
    look: float = 10  # between looks at the log, and drops
    verify: float = 60
    kill: float = 25
    commit: int = 1200  # rows
    job: int = 4800  # rows
    max_rows: int = 30_000  # of the dataset that is appended to; then old ones are dropped

    @classmethod
    def of(cls, seconds: float) -> Pace:
        """For a run of this length."""
        if seconds >= 300:
            return cls()
        return cls(
            keep=4,
            grace=6,
            renew=1,
            silence=9,
            silence_share=1 / 8,
            collect=2,
            look=2,
            verify=6,
            kill=8,
            commit=200,
            job=400,
            max_rows=2_000,
        )


@dataclass(frozen=True)
class Task:
    """What a process is to do."""

    name: str
    role: str  # which of `ROLES`
    rows: DataConfig  # the dataset that is appended to
    generations: DataConfig  # the one that is replaced
    pace: Pace
    stop_at: float  # by the monotonic clock, which all processes share
    folder: Path  # of the journals
    saver: int = 0  # of jobs
    is_silent: bool = False  # at times
    loading: dict[str, Any] = field(default_factory=dict)  # keywords of its loaders

    @property
    def journal(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    def goes_on(self) -> bool:
        return time.monotonic() < self.stop_at

    def rest(self, seconds: float) -> None:
        """Less where the time is up before."""
        time.sleep(max(0.0, min(seconds, self.stop_at - time.monotonic())))


class Journal:
    """What a process did, line by line in a file: what was written survives its kill."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(self, what: str, **values: Any) -> None:
        line = json.dumps({"what": what, "at": time.monotonic(), **values})
        os.write(self._descriptor, line.encode() + b"\n")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Its notes, in order; none where there is no journal yet."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def act(task: Task) -> None:
    """All that a process does."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc's
        libc.mallopt(_M_ARENA_MAX, 1)
    journal = Journal(task.journal)
    try:
        ROLES[task.role](task, journal)
    except BaseException:
        journal.note("failed", error=traceback.format_exc())
        raise


class PlannedError(Exception):
    """Ends a saver before its commit."""


def save_jobs(task: Task, journal: Journal) -> None:
    """One job after another. Killed and started again it goes on with the last one begun."""
    lease.RENEW_SECONDS = task.pace.renew
    begun = [note["number"] for note in read_journal(task.journal) if note["what"] == "job"]
    chance = random.Random(f"{task.name} {len(begun)}")
    for number in count(max(begun, default=0)):
        journal.note("job", number=number)
        _save_job(task, journal, Job(task.saver, number), chance)
        if not task.goes_on():
            return


def _save_job(task: Task, journal: Journal, job: Job, chance: random.Random) -> None:
    pace = task.pace
    told = -1

    def note_committed() -> None:
        nonlocal told
        if saver.rows_committed != told:
            told = saver.rows_committed
            journal.note("told", name=job.writer, writer=job.writer, rows=told)

    with DataSaver(
        task.rows, writer=job.writer, commit_every=pace.commit, num_worker_threads=2
    ) as saver:
        note_committed()
        for start in range(told, pace.job, BATCH):
            if not task.goes_on():
                break
            numbers = range(job.first + start, job.first + min(start + BATCH, pace.job))
            saver(make(numbers))
            note_committed()
            has_stored = saver.rows_pending > OBJECT_ROWS
            if task.is_silent and has_stored and chance.random() < pace.silence_share:
                journal.note("silence", seconds=pace.silence)
                task.rest(pace.silence)
            task.rest(SAVING_REST)
    note_committed()


def append(config: DataConfig, journal: Journal, number: int) -> None:
    """One append, by a saver of its own."""
    drawn = Drawn("append", number)
    try:
        with DataSaver(config, num_worker_threads=2) as saver:
            for start in range(0, len(drawn.numbers), 2 * OBJECT_ROWS):
                saver(make(drawn.numbers[start : start + 2 * OBJECT_ROWS]))
            if drawn.fails:
                raise PlannedError
            commit = saver.commit()
    except PlannedError:
        journal.note("aborted", name=drawn.name)
        return
    assert commit is not None
    journal.note("told", name=drawn.name, writer=writer_of(commit), rows=len(drawn.numbers))


def append_often(task: Task, journal: Journal) -> None:
    for number in count(1):
        append(task.rows, journal, number)
        task.rest(6)
        if not task.goes_on():
            return


def refresh(config: DataConfig, journal: Journal, number: int) -> None:
    """One generation, in place of the one before."""
    drawn = Drawn("generation", number)
    try:
        with DataSaver(config, refresh=True, num_worker_threads=2) as saver:
            for start in range(0, len(drawn.numbers), 2 * OBJECT_ROWS):
                saver(make(drawn.numbers[start : start + 2 * OBJECT_ROWS]))
            if drawn.fails:
                raise PlannedError
            saver.commit()
    except PlannedError:
        journal.note("aborted", name=drawn.name)
        return
    journal.note("generation", number=number, rows=len(drawn.numbers))


def refresh_often(task: Task, journal: Journal) -> None:
    for number in count(1):
        refresh(task.generations, journal, number)
        task.rest(4)
        if not task.goes_on():
            return


def load_rows(task: Task, journal: Journal) -> None:
    """Epochs of the newest version, each checked row by row; then of the newest version again."""
    seeds = random.Random(task.name)
    while True:
        begun = time.monotonic()
        loader = _loader(task, task.rows, seeds)
        commits, counts = loader.version.commits, rows_of_commits(loader)
        opened = time.monotonic()
        for epoch in range(EPOCHS):
            try:
                numbers = read_epoch(loader)
            except ObjectNotFoundError as error:
                _check_late(task, begun, error)
                journal.note("lost", error=str(error))
                break
            found = held(commits, counts, numbers)
            if not epoch:
                journal.note("version", begun=begun, opened=opened, held=found)
            journal.note("epoch", rows=len(numbers), **_traffic(loader))
            task.rest(3)
            if not task.goes_on():
                return


def load_generations(task: Task, journal: Journal) -> None:
    """The newest version over and over: one generation, whole, and never an earlier one again."""
    seeds = random.Random(task.name)
    while True:
        begun = time.monotonic()
        loader = _loader(task, task.generations, seeds)
        try:
            numbers = read_epoch(loader)
        except ObjectNotFoundError as error:
            _check_late(task, begun, error)
            journal.note("lost", error=str(error))
            continue
        number = generation_of(numbers)
        journal.note("seen", begun=begun, number=number)
        journal.note("epoch", rows=len(numbers), **_traffic(loader))
        task.rest(3)
        if not task.goes_on():
            return


def _loader(task: Task, config: DataConfig, seeds: random.Random) -> DataLoader:
    return DataLoader(
        config,
        batch_size=READ,
        shuffle=True,
        seed=seeds.randrange(2**31),
        extras=("row",),
        prefetch=2**25,
        threads=4,
        **task.loading,
    )


def read_epoch(loader: DataLoader) -> Numbers:
    """The numbers of all rows in stored order, each row given once, with its values."""
    numbers = np.full(loader.num_rows, -1)
    for batch in loader:
        check_values(batch)
        rows = batch["row"]
        if (numbers[rows] != -1).any() or len(np.unique(rows)) != len(rows):
            raise AssertionError(f"of rows {rows.tolist()} some come twice in one epoch")
        numbers[rows] = batch["number"]
        time.sleep(0.03)
    if (numbers == -1).any():
        raise AssertionError(f"rows {np.flatnonzero(numbers == -1).tolist()} did not come")
    return numbers


def _check_late(task: Task, begun: float, error: ObjectNotFoundError) -> None:
    """What was in the newest version is spared for `keep`."""
    if time.monotonic() - begun < task.pace.keep - CLOCKS:
        raise AssertionError("objects of a version that was opened just before are gone") from error


def _traffic(loader: DataLoader) -> dict[str, int]:
    stats = loader.stats
    return {"fetched": stats.bytes_fetched, "found": stats.bytes_found}


def read_pinned(task: Task, journal: Journal) -> None:
    """Versions out of the log, old ones too: exactly their rows, or they are gone, in time."""
    chance = random.Random(task.name)
    while task.goes_on():
        now = datetime.now().astimezone()
        log = commit_log(task.rows)
        entry = chance.choice([entry for entry in log if entry.version is not None])
        version = entry.version
        assert version is not None
        named: Any = chance.choice([entry.id, version, version.hash, list(version.commits)])
        spared = _spared_until(version.commits, log, now, task.pace)
        dataset = Dataset(task.rows, version=named)
        try:
            numbers = _read_at_random(dataset, chance)
        except (VersionNotFoundError, ObjectNotFoundError) as error:
            if datetime.now().astimezone() < spared:
                raise AssertionError(f"version {named!r} is gone before {spared}") from error
            journal.note("lost", error=str(error))
        else:
            if dataset.version != version:
                raise AssertionError(f"{named!r} opened {dataset.version!r}, not {version!r}")
            held(version.commits, rows_of_commits(dataset), numbers)
            journal.note("pinned", rows=len(numbers), is_newest=entry is log[-1])
        task.rest(5)


def _read_at_random(dataset: Dataset, chance: random.Random) -> Numbers:
    """The numbers of all rows, some of which were read whole."""
    numbers: Numbers = Dataset(dataset.config, version=dataset.version, attributes=["number"])[:][
        "number"
    ]
    if len(numbers):
        rows = [chance.randrange(-len(numbers), len(numbers)) for _ in range(RANDOM)]
        batch = dataset[rows]
        check_values(batch)
        if not np.array_equal(batch["number"], numbers[rows]):
            raise AssertionError(f"rows {rows} are {batch['number'].tolist()}")
    return numbers


def _spared_until(
    commits: Sequence[str], log: Sequence[LoggedCommit], now: datetime, pace: Pace
) -> datetime:
    """Until when none of these commits may be collected."""
    wanted = set(commits)
    ended = [entry.time for entry in log if not wanted.isdisjoint(entry.replaces)]
    return min([now, *ended]) + timedelta(seconds=pace.keep - CLOCKS)


def collect(task: Task, journal: Journal) -> None:
    """gc of both datasets, over and over."""
    grace, keep = (timedelta(seconds=s) for s in (task.pace.grace, task.pace.keep))
    while task.goes_on():
        for config in (task.rows, task.generations):
            collected = collect_garbage(config, grace=grace, keep=keep)
            if collected.foreign:
                raise AssertionError(f"of nobody: {collected.foreign}")
            kinds = Counter(one.kind for one in collected.garbage)
            journal.note("collected", kinds=kinds, nbytes=sum(o.nbytes for o in collected.garbage))
        task.rest(task.pace.collect)


def look_after(task: Task, journal: Journal) -> None:
    """Drops the oldest rows where there are too many, and verifies both datasets at times."""
    verified = time.monotonic()
    while task.goes_on():
        log = commit_log(task.rows)
        _check_log(log)
        for writer in to_drop(log, task.pace):
            journal.note("dropping", writer=writer)
            # The newest first, so that what is left of a job are its first rows.
            for entry in reversed(log):
                if entry.writer == writer and entry.is_live:
                    drop_commit(task.rows, entry.id)
            journal.note("dropped", writer=writer)
        if time.monotonic() - verified > task.pace.verify:
            verified = time.monotonic()
            for config in (task.rows, task.generations):
                found = verify_dataset(config, num_threads=2)
                if found.problems:
                    raise AssertionError("\n".join(map(str, found.problems)))
                journal.note("verified", rows=found.num_rows, nbytes=found.nbytes)
        task.rest(task.pace.look)


def _check_log(log: Sequence[LoggedCommit]) -> None:
    ids = [entry.id for entry in log]
    if ids != sorted(set(ids)):
        raise AssertionError(f"the log is not in order: {ids}")
    newest = [entry.id for entry in log if entry.is_live]
    if log and (log[-1].version is None or list(log[-1].version.commits) != newest):
        raise AssertionError(f"the live commits are {newest}, the last version {log[-1].version!r}")


def to_drop(log: Sequence[LoggedCommit], pace: Pace) -> list[str]:
    """Writers whose rows are to go, the oldest first, so that some quarter of the limit is free.

    A job stays as long as its saver, killed and started again, might go on with it.
    """
    live = [entry for entry in log if entry.is_live and entry.num_rows]
    rows: Counter[str] = Counter()
    for entry in live:
        rows[entry.writer] += entry.num_rows
    begun: dict[int, int] = {}
    for job in filter(None, (Job.of(entry.writer) for entry in log)):
        begun[job.saver] = max(job.number, begun.get(job.saver, 0))
    left = rows.total()
    if left <= pace.max_rows:
        return []
    dropped = []
    for writer in rows:  # in the order of their first commits
        job = Job.of(writer)
        if left > 0.75 * pace.max_rows and (job is None or job.number < begun[job.saver]):
            dropped.append(writer)
            left -= rows[writer]
    return dropped


ROLES: dict[str, Callable[[Task, Journal], None]] = {
    "save jobs": save_jobs,
    "append": append_often,
    "refresh": refresh_often,
    "load rows": load_rows,
    "load generations": load_generations,
    "read pinned": read_pinned,
    "collect": collect,
    "look after": look_after,
}
