"""This checkout beside another one: what a change of the code costs, or gains.

`python -m benchmarks change --before FOLDER` saves and loads with both; FOLDER is another checkout,
as `git worktree add` makes one. Each has a process of its own and reads what it has saved itself,
and they run in turn, a round of each. Warm epochs have a new process for each round: they copy rows
and do little else, at a rate that differs by a third from one process to the next. The ratio is the
time before over the time now, taken within each round: above 1, now is faster. The brackets hold
the 95% interval of its median, by bootstrap; a row fails if that lies wholly below 0.97.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .pages import at_hand
from .peer_process import PeerProcess, variables
from .runner import Row, Spread
from .setting import VARIABLE, Benchmark, Bucket, Server, Setting

PROGRAM = Path(__file__).with_name("change_side.py")
HERE = Path(__file__).parents[1]
SLOWER = 0.97  # a change below this is one


@dataclass(frozen=True)
class Job:
    """What both sides do in turn: `amount` of `unit` each time."""

    measure: str
    do: str
    settings: dict[str, Any]
    amount: float
    unit: str = "rows/s"
    memory: int = 0  # bytes that it writes to the kernel's cache; see pages.py
    saves: bool = False  # a new dataset each time
    alone: bool = False  # in a new process each time: where its memory lies decides, too

    @property
    def dataset(self) -> tuple[str, bool]:
        """What it saves or reads."""
        return self.settings["name"], self.settings.get("s3", False)


class Checkout:
    """A process that runs one checkout's code, and the places where it saves."""

    def __init__(
        self, setting: Setting, name: str, root: Path, bucket: Bucket, far: Server
    ) -> None:
        """`far`: what the bucket's server is with a delay."""
        self.name = name
        self.folder = setting.folder()
        environment = {k: v for k, v in os.environ.items() if not k.startswith(VARIABLE)}
        environment |= {**variables(setting.s3), "PYTHONPATH": str(root)}
        log = setting.scratch / f"{name}.log"
        self._words = sys.executable, environment, log, PROGRAM
        self._process = PeerProcess(*self._words)
        found = Path(self._process.ask({"do": "root"})["root"])
        if found.resolve() != root.resolve():
            raise RuntimeError(f"{name}: the process imports storage_loader from {found}")
        settings = {k: v for k, v in bucket.settings.items() if not k.endswith("_key")}
        self._s3 = {**settings, "storage": f"{settings['storage']}/{name}"}
        self._far = {**self._s3, "endpoint": far.endpoint}
        self._bucket = bucket

    def ask(self, job: Job) -> float:
        """Seconds of one run."""
        if job.alone:
            self._process.close()
            self._process = PeerProcess(*self._words)
        settings = dict(job.settings)
        place = self._s3 if settings.pop("s3", False) else {"storage": str(self.folder)}
        settings["place"] = self._far if settings.pop("far", False) else place
        if job.do in ("first_epoch", "first_batch"):
            settings["cache"] = str(self.folder.with_suffix(".cache"))
        answer = self._process.ask({"do": job.do, "settings": settings})
        return float(answer["seconds"])

    def remove(self, job: Job) -> None:
        """Free what a job saved: the server keeps its objects in memory."""
        if job.settings.get("s3"):
            self._bucket.clear(f"{self.name}/{job.settings['name']}/")
        shutil.rmtree(self.folder / job.settings["name"], ignore_errors=True)

    def close(self) -> None:
        """End the process, remove what it saved in the folder."""
        self._process.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def run(setting: Setting) -> Sequence[Row]:
    before = setting.before
    if before is None:
        print("change: --before FOLDER names the checkout to compare with: no figures")
        return []
    with setting.bucket() as bucket, contextlib.ExitStack() as held:
        far = held.enter_context(bucket.server.far(0.02))
        sides = []
        for name, root in (("now", HERE), ("before", before)):
            sides.append(Checkout(setting, name, root, bucket, far))
            held.callback(sides[-1].close)
        jobs = list(_jobs(setting))
        saved: set[tuple[str, bool]] = set()
        rows = []
        for job in jobs:
            if not setting.wants(job.measure):
                continue
            if not job.saves and job.dataset not in saved:  # `--only` left out what saves it
                maker = next(j for j in jobs if j.saves and j.dataset == job.dataset)
                for side in sides:
                    side.ask(maker)
            saved.add(job.dataset)
            rows.append(_compared(setting, job, *sides))
        return rows


def _jobs(setting: Setting) -> Iterator[Job]:
    images, tiles = setting.pick(2048, 256), setting.pick(4096, 256)
    vectors, few = setting.pick(2_000_000, 20_000), setting.pick(100, 5)
    for s3, where in ((False, "a folder"), (True, "S3")):
        for kind, count, words, row in (
            ("images", images, "150 KB rows", 150_536),
            ("tiles", tiles, "48 KiB rows", 49_160),
        ):
            settings = {"kind": kind, "num_rows": count, "s3": s3, "name": kind}
            yield Job(
                f"save {words} to {where}",
                "saving",
                settings,
                count,
                memory=count * row,
                saves=True,
            )
    settings = {"kind": "vectors", "num_rows": vectors, "name": "vectors"}
    yield Job("save 72 B rows to a folder", "saving", settings, vectors, saves=True)
    for s3, where in ((False, "a folder"), (True, "S3")):
        settings = {"count": few, "s3": s3, "name": "commits"}
        words = f"commit one row at a time to {where}"
        yield Job(words, "commits", settings, few, "commits/s", saves=True)
        settings = {"rounds": setting.pick(20, 2), "s3": s3, "name": "commits"}
        yield Job(
            f"open {few} commits from {where}",
            "opening",
            settings,
            few * setting.pick(20, 2),
            "commits/s",
        )
    for name, size, count, epochs in (("tiles", 64, tiles, 5), ("vectors", 4096, vectors, 5)):
        settings = {"epochs": epochs, "batch_size": size, "num_rows": count, "name": name}
        yield Job(f"warm epochs of a folder, {name}", "warm", settings, epochs * count, alone=True)
    settings = {"num_rows": tiles, "name": "tiles"}
    yield Job("first epoch of a new loader, folder", "fresh_loader", settings, tiles)
    yield Job("an epoch in a new process, folder", "fresh_process", settings, tiles)
    batches = setting.pick(200, 5)
    settings = {"batches": batches, "num_rows": tiles, "name": "tiles"}
    yield Job("Dataset[64 random rows], folder", "dataset", settings, 64 * batches)
    settings = {"kind": "vectors", "num_rows": vectors, "s3": True, "name": "vectors"}
    yield Job("save 72 B rows to S3", "saving", settings, vectors, saves=True)
    for name, size, count, row in (
        ("tiles", 64, tiles, 49_160),
        ("images", 64, images, 150_536),
        ("vectors", 4096, vectors, 72),
    ):
        settings = {"num_rows": count, "name": name, "s3": True, "batch_size": size}
        yield Job(
            f"first epoch from S3, {name}", "first_epoch", settings, count, memory=2 * count * row
        )
    settings = {"name": "tiles", "s3": True}
    yield Job("first batch of 64 from S3, tiles", "first_batch", settings, 1, "batches/s")
    settings = {"num_rows": tiles, "name": "tiles", "s3": True}
    yield Job("an epoch by index from S3", "by_index", settings, tiles)
    settings = {**settings, "far": True}
    yield Job("an epoch by index from S3, 20 ms a request", "by_index", settings, tiles)


def _compared(setting: Setting, job: Job, now: Checkout, before: Checkout) -> Row:
    rounds = setting.effort.rounds
    times: dict[str, list[float]] = {now.name: [], before.name: []}
    for index in range(-1, rounds):  # the first round is for imports and connections
        this = job
        if job.saves and index < rounds - 1:  # the last one's dataset is what is loaded later
            name = f"{job.settings['name']}-{index + 1}"
            this = replace(job, settings={**job.settings, "name": name})
        for side in (now, before) if index % 2 else (before, now):
            if job.memory:
                at_hand(setting.scratch, job.memory)
            seconds = side.ask(this)
            if index >= 0:
                times[side.name].append(seconds)
        if this is not job:
            for side in (now, before):
                side.remove(this)
    pairs = zip(times[before.name], times[now.name], strict=True)
    ratio = Spread.of_the_median([b / n for b, n in pairs])
    return Row(
        job.measure,
        job.unit,
        Spread.of([job.amount / s for s in times[now.name]]),
        Spread.of([job.amount / s for s in times[before.name]]),
        "before",
        ratio,
        rounds,
        note="slower" if ratio.high < SLOWER else "",
        at_least=SLOWER if ratio.high < SLOWER else None,  # the median lies below it, too
    )


BENCHMARK = Benchmark("This checkout beside another one", run)
