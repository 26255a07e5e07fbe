"""Half an hour of everything at once on S3: is each row right, do memory and descriptors stay flat?

Beside each other, each in a process of its own, on two datasets in one bucket:

- two savers with names save jobs into the first dataset, one of which is killed (SIGKILL) again
  and again and started anew, while the other falls silent at times for longer than gc's grace,
  with objects that no commit names yet; a third process appends with a new saver each time, and
  a fourth replaces the second dataset over and over; of both a fifth fail before their commit;
- two loaders with one cache folder, smaller than the dataset, and one without a cache read the
  newest version of the first dataset; one reads the second; one opens versions out of the log;
- gc runs every few seconds, with a short `keep` and `grace`; the oldest commits are dropped, so
  that the first dataset stays at some 200 MB; both are verified at times.

What is checked, at once or at the end; the first failure ends the run:

- A row has the values of its number, in every batch. An epoch gives each row of its version once.
- A version has of each writer its first rows in order, or all rows of an append, and nothing of one
  that failed; of the second dataset exactly one generation. It has all that a saver was told is
  committed before the version was opened, and nothing that was dropped before. So at the end.
- Objects of a version are missing only to loaders for which `keep` is over. An error of a saver
  other than the planned ones fails the run: gc that takes a silent saver's objects, for one.
- The cache folder never holds more than `cache_size`.
- After a last gc without grace the bucket holds what the live commits name, claims and barriers.

Flat: the lower quartile of the last quarter is at most that of the second quarter and 10% and
8 MiB, for the memory of a process's own (RssAnon: no mapped files), or 20% and 4, for descriptors.
It is what stays between bursts, and what a leak raises: how many batches are under way, and how
many connections stay open for a while, depends on what the others do at the moment. glibc is told
to keep one arena, since one for each thread of the loaders keeps what threads that have ended once
needed: 1,500 loaders without a cache went from 112 to 128 MB, with one arena from 58 to 63, and
back. No process may open more than 1,024 files, the usual limit, so that a leak of them ends the
run. Cache files are told apart: a loader opens them as its epoch goes on, two descriptors each
(Python keeps one of its own for a mapped file), and closes them with its version.

STORAGE_LOADER_BENCH_SOAK_SECONDS sets the length; below five minutes all intervals are shorter.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL
from typing import Any

from storage_loader import DataConfig, DataLoader, collect_garbage, commit_log, verify_dataset

from .runner import Row, Spread
from .setting import Benchmark, Bucket, Setting
from .soak_actors import (
    FILES,
    Journal,
    Pace,
    Task,
    act,
    append,
    read_epoch,
    read_journal,
    refresh,
)
from .soak_curves import (
    KILLED,
    Sample,
    cached_nbytes,
    curve,
    draw,
    flat,
    processor_seconds,
    sample_of,
)
from .soak_rows import ATTRIBUTES, OBJECT_NBYTES, Drawn, generation_of, held, rows_of_commits

SECONDS_VARIABLE = "STORAGE_LOADER_BENCH_SOAK_SECONDS"
CACHED_SHARE = 0.5  # of the first dataset fits into the cache
END = 120.0  # seconds that a process may need for its last round

Note = dict[str, Any]


def run(setting: Setting) -> Sequence[Row]:
    seconds = float(os.environ.get(SECONDS_VARIABLE) or setting.pick(1800, 20))
    with setting.bucket() as bucket:
        soak = Soak(bucket, setting.folder(), seconds)
        soak.run()
        return soak.rows()


class Soak:
    """One run: its processes, what they wrote down, and what was seen of them."""

    def __init__(self, bucket: Bucket, folder: Path, seconds: float) -> None:
        self._bucket = bucket
        self._folder = folder
        self._seconds = seconds
        self._pace = Pace.of(seconds)
        self._configs = [
            DataConfig(name, ATTRIBUTES, max_object_size=OBJECT_NBYTES, **bucket.settings)
            for name in ("rows", "generations")
        ]
        row_nbytes = sum(a.row_nbytes for a in ATTRIBUTES)
        self._cache = folder / "cache"
        self._cache_size = int(CACHED_SHARE * self._pace.max_rows * row_nbytes)
        self._cached: list[int] = []  # bytes in the cache folder
        self._samples: dict[str, list[Sample]] = {}
        self._kills = 0
        self._cores = 0.0  # of this machine, in use by the processes
        self._notes: dict[str, list[Note]] = {}

    def run(self) -> None:
        """Raises `AssertionError` where anything is wrong."""
        self._folder.mkdir()
        start = Journal(self._folder / "start.jsonl")
        append(self._configs[0], start, 0)
        refresh(self._configs[1], start, 0)
        used, begun = processor_seconds(), time.monotonic()
        self._run_actors(begun)
        self._cores = (processor_seconds() - used) / (time.monotonic() - begun)
        self._notes = {p.stem: read_journal(p) for p in sorted(self._folder.glob("*.jsonl"))}
        ledger = Ledger.of(self._all("told"), self._all("dropping"), self._all("dropped"))
        for version in self._all("version"):
            ledger.check(version["held"], version["begun"], version["opened"])
        _check_generations(self._all("generation"), self._all("seen"))
        self._check_end(ledger)
        self._check_bucket()

    def _tasks(self, stop_at: float) -> list[Task]:
        cached = {"cache_dir": self._cache, "cache_size": self._cache_size}
        how: dict[str, tuple[str, dict[str, Any]]] = {
            KILLED: ("save jobs", {"saver": 0}),
            "saver": ("save jobs", {"saver": 1, "is_silent": True}),
            "appender": ("append", {}),
            "refresher": ("refresh", {}),
            "loader 1": ("load rows", {"loading": cached}),
            "loader 2": ("load rows", {"loading": cached}),
            "loader, index": ("load rows", {"loading": {"index": True}}),
            "loader, refreshed": ("load generations", {"loading": {"index": True}}),
            "reader of versions": ("read pinned", {}),
            "gc": ("collect", {}),
            "drop and verify": ("look after", {}),
        }
        return [
            Task(name, role, *self._configs, self._pace, stop_at, self._folder, **more)
            for name, (role, more) in how.items()
        ]

    def _run_actors(self, begun: float) -> None:
        stop_at = begun + self._seconds
        tasks = {task.name: task for task in self._tasks(stop_at)}
        actors = {name: _started(task) for name, task in tasks.items()}
        try:
            chance = random.Random(0)
            kill_at = begun + self._pace.kill
            while (now := time.monotonic()) < stop_at:
                if now >= kill_at:
                    self._kill(actors.pop(KILLED))
                    actors[KILLED] = _started(tasks[KILLED])
                    kill_at = now + chance.uniform(0.5, 1.5) * self._pace.kill
                self._sample(now - begun, actors)
                self._check_at_work(actors)
                time.sleep(min(1.0, kill_at - now, stop_at - now))
            for name, actor in actors.items():
                actor.join(max(0.0, stop_at + END - time.monotonic()))
                if actor.exitcode != 0:
                    raise AssertionError(self._why(name, actor))
        finally:
            for actor in actors.values():
                actor.kill()
                actor.join()

    def _kill(self, actor: BaseProcess) -> None:
        actor.kill()
        actor.join()
        if actor.exitcode != -SIGKILL:
            raise AssertionError(self._why(KILLED, actor))
        self._kills += 1

    def _check_at_work(self, actors: Mapping[str, BaseProcess]) -> None:
        for name, actor in actors.items():
            if actor.exitcode is not None and (actor.exitcode or name == KILLED):
                raise AssertionError(self._why(name, actor))

    def _why(self, name: str, actor: BaseProcess) -> str:
        if actor.exitcode is None:
            return f"{name} hangs: it has not ended {END:.0f} s after its time"
        notes = read_journal(self._folder / f"{name}.jsonl")
        errors = [note["error"] for note in notes if note["what"] == "failed"]
        return f"{name} ended with status {actor.exitcode}:\n" + "".join(errors)

    def _sample(self, now: float, actors: Mapping[str, BaseProcess]) -> None:
        for name, actor in actors.items():
            found = sample_of(now, actor.pid)
            if found is not None:
                self._samples.setdefault(name, []).append(found)
        self._cached.append(cached_nbytes(self._cache, self._cache_size))
        if self._cached[-1] > self._cache_size:
            raise AssertionError(
                f"the cache holds {self._cached[-1]} bytes, cache_size is {self._cache_size}"
            )

    def _all(self, *what: str) -> list[Note]:
        return [n for notes in self._notes.values() for n in notes if n["what"] in what]

    def _check_end(self, ledger: Ledger) -> None:
        """The newest versions hold what was told and not dropped, and nothing else."""
        rows, generations = self._configs
        loader = DataLoader(rows, batch_size=1000, shuffle=True, index=True, extras=("row",))
        found = held(loader.version.commits, rows_of_commits(loader), read_epoch(loader))
        if found != ledger.expected():
            raise AssertionError(f"at the end there is {found}, not {ledger.expected()}")
        loader = DataLoader(generations, batch_size=1000, index=True, extras=("row",))
        last = max(note["number"] for note in self._all("generation"))
        if generation_of(read_epoch(loader)) != last:
            raise AssertionError(f"at the end there is another generation than {last}")

    def _check_bucket(self) -> None:
        """After a last gc nothing is there that no commit names, and nothing less."""
        time.sleep(2.5)  # ages are by whole seconds
        for config in self._configs:
            before = DataLoader(config).version
            collect_garbage(config, grace=timedelta(0), keep=timedelta(0))
            prefix = f"{config.dataset_prefix}/"
            listed = self._bucket.minio.list_objects(self._bucket.name, prefix, recursive=True)
            there = {str(one.object_name) for one in listed}
            loader = DataLoader(config)
            snapshot = loader.open()
            barriers = [entry.id for entry in commit_log(config) if entry.replaces == (entry.id,)]
            named = {snapshot.key(i) for i in range(len(snapshot.objects))}
            named |= {f"{prefix}metadata/{i}.json" for i in (*loader.version.commits, *barriers)}
            named.add(f"{prefix}dataset.json")
            more = {k for k in there - named if not re.search(r"/objects/[^/]+/\d{6}\.claim$", k)}
            if more or named - there:
                raise AssertionError(f"of nobody: {sorted(more)}; missing: {named - there}")
            if loader.version != before:
                raise AssertionError(f"gc made {loader.version!r} of {before!r}")
            if problems := verify_dataset(config).problems:
                raise AssertionError("\n".join(map(str, problems)))

    def rows(self) -> list[Row]:
        """What was done, and whether it was flat."""
        words = f"soak of {self._seconds / 60:.3g} minutes"
        told = {note["name"]: note["rows"] for note in self._all("told")}
        kinds: Counter[str] = Counter()
        for note in self._all("collected"):
            kinds.update(note["kinds"])
        epochs = self._all("epoch")
        lost, pinned = self._all("lost"), self._all("pinned")
        fetched, found = (sum(note[k] for note in epochs) for k in ("fetched", "found"))
        generations = self._all("generation")
        return [
            _count(
                f"{words}: rows committed in {len(told)} jobs and appends, right to the end",
                sum(told.values()),
                "rows",
                f"{self._kills} SIGKILLs of a saver, {len(self._all('silence'))} silences longer "
                f"than gc's grace, {len(self._all('aborted'))} planned failures; "
                f"{len(generations)} refreshes of {sum(n['rows'] for n in generations):,} rows",
            ),
            _count(
                f"{words}: rows loaded in {len(epochs)} epochs, none wrong, lost or doubled",
                sum(note["rows"] for note in epochs),
                "rows",
                f"{len(self._all('version', 'seen'))} openings of the newest version; "
                f"{fetched / 1e9:.1f} GB fetched, {found / 1e9:.1f} GB found in the cache",
            ),
            _count(
                f"{words}: versions out of the log, opened and right",
                len(pinned),
                "versions",
                f"{sum(not n['is_newest'] for n in pinned)} old ones; "
                f"gone after gc's keep, here or during an epoch: {len(lost)}",
            ),
            _count(
                f"{words}: things that gc removed while all were at work",
                kinds.total(),
                "things",
                ", ".join(f"{n} {kind}s" for kind, n in sorted(kinds.items()))
                + f"; {len(self._all('dropped'))} jobs and appends dropped, "
                f"{len(self._all('verified'))} verifications without a problem",
            ),
            Row(
                f"{words}: most that the cache folder held",
                "MB",
                Spread.of([max(self._cached) / 1e6]),
                at_most=self._cache_size / 1e6,
            ),
            _count(f"{words}: cores in use by all processes but the server", self._cores, "cores"),
            *self._flat(),
        ]

    def _flat(self) -> list[Row]:
        rows = []
        for name, samples in self._samples.items():
            memory = [(one.at, one.memory / 1e6) for one in samples]
            others = [(one.at, float(one.descriptors)) for one in samples]
            cached = [(one.at, float(one.cache_files)) for one in samples]
            rows += [
                flat(f"own memory, {name}", "MB", memory, self._seconds, 0.1, 2**23 / 1e6),
                flat(f"descriptors, {name}", "files", others, self._seconds, 0.2, 4),
            ]
            if any(number for _, number in cached):
                rows.append(
                    Row(
                        f"cache files open, {name}",
                        "files",
                        Spread.of([max(number for _, number in cached)]),
                        at_most=FILES,
                        note="the most; the process may open so many of all kinds",
                        curve=curve(cached, self._seconds),
                    )
                )
        return rows


@dataclass
class Ledger:
    """Of each writer, what it was told and when, and when its rows were dropped."""

    told: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # moment, rows by then
    dropping: dict[str, float] = field(default_factory=dict)  # when that began
    dropped: dict[str, float] = field(default_factory=dict)  # when that was done

    @classmethod
    def of(cls, told: Iterable[Note], dropping: Iterable[Note], dropped: Iterable[Note]) -> Ledger:
        """From notes in journals."""
        ledger = cls()
        names: dict[str, str] = {}
        for note in told:
            ledger.told.setdefault(note["name"], []).append((note["at"], note["rows"]))
            names[note["writer"]] = note["name"]
        ledger.dropping = {names.get(n["writer"], n["writer"]): n["at"] for n in dropping}
        ledger.dropped = {names.get(n["writer"], n["writer"]): n["at"] for n in dropped}
        return ledger

    def check(self, held: Mapping[str, int], begun: float, opened: float) -> None:
        """`AssertionError` where a version that was opened from `begun` to `opened` lacks rows
        told before, or has rows dropped before."""
        for name, told in self.told.items():
            here = held.get(name, 0)
            if name in self.dropping and self.dropping[name] <= opened:
                if here and self.dropped.get(name, opened) < begun:
                    raise AssertionError(f"{name} was dropped, and {here} rows of it are there")
            elif here < (least := max((rows for at, rows in told if at < begun), default=0)):
                raise AssertionError(f"{name} has {here} rows, {least} are committed")

    def expected(self) -> dict[str, int]:
        """What there is once all have ended."""
        most = {name: max(rows for _, rows in told) for name, told in self.told.items()}
        return {name: rows for name, rows in most.items() if rows and name not in self.dropped}


def _check_generations(told: Sequence[Note], seen: Sequence[Note]) -> None:
    """Each generation seen is no earlier than what was committed, or seen, before."""
    for note in seen:
        before = [t["number"] for t in told if t["at"] < note["begun"]]
        before += [s["number"] for s in seen if s["at"] < note["begun"]]
        if note["number"] < max(before, default=0):
            raise AssertionError(f"{Drawn('generation', note['number']).name} after {max(before)}")


def _count(measure: str, value: float, unit: str, note: str = "") -> Row:
    return Row(measure, unit, Spread.of([value]), note=note)


def _started(task: Task) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(
        target=act, args=(task,), name=task.name, daemon=True
    )
    process.start()
    return process


BENCHMARK = Benchmark("Half an hour of savers, loaders and gc beside each other on S3", run, draw)
