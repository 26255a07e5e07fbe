"""A program that forks children and kills them at random moments, and says what became of them.

    python -m tests.support.killing save|read '{"config": ..., "kills": 200, "seed": 1, ...}'

Its children import nothing that it has not imported, so that hundreds of them take seconds. It
uses no store itself: threads do not survive a fork. Half of the kills come from here by the
clock, half from the child itself before or after a call of its store of a random kind, so that
short steps such as the put of a commit are hit too. Some children are not killed but stopped, and
go on while later ones run: those are the attempts that were taken for dead.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, DataSaver
from storage_loader.errors import SaverError
from tests.support.caches import LARGE, cached_files
from tests.support.faulty import Call, watch
from tests.support.rows import ATTRIBUTES_1K, in_batches, make, numbers_in, numbers_of

ROWS = 400  # of one job
COMMIT = 80
BATCH = 20

OPENING = ("get dataset", "list metadata", "get commit")
SAVING = (
    *OPENING,
    "list object",
    "get claim",
    "put object",
    "head object",
    "put claim",
    "put commit",
)
READING = (*OPENING, *["get_ranges object"] * 5)

LOST = 3  # exit status of an attempt that another one has overtaken
SECONDS = 100  # a child that takes longer hangs


class Phase:
    """What a child was last seen at, in memory that outlives it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 64)
        self.write("start")

    def write(self, text: str) -> None:
        self._memory[:] = text.encode().ljust(64)

    def read(self) -> str:
        return bytes(self._memory[:]).decode().strip()


class Child:
    """A forked child at work; `end` is where it ends itself: kind, which of them, after it or
    before, and the signal."""

    def __init__(
        self, work: Callable[[Phase], None], end: tuple[str, int, bool, int] | None, **watching: Any
    ) -> None:
        self.phase = Phase()
        self.pid = os.fork()
        if self.pid:
            return
        signal.alarm(SECONDS)
        status = 1
        try:
            self._watch(end, **watching)
            work(self.phase)
            status = 0
        except SaverError as error:
            overtaken = "another attempt saves under" in str(error)
            status = LOST if overtaken else 1
            if not overtaken:
                print(error, file=sys.stderr)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(status)

    def _watch(self, end: tuple[str, int, bool, int] | None, **watching: Any) -> None:
        calls: Counter[tuple[str, bool]] = Counter()

        def seen(call: Call, is_after: bool) -> None:
            self.phase.write(f"after {call.kind}" if is_after else call.kind)
            calls[call.kind, is_after] += 1
            if end is not None and (call.kind, calls[call.kind, is_after], is_after) == end[:3]:
                os.kill(os.getpid(), end[3])

        watch(
            pytest.MonkeyPatch(),
            before=lambda call: seen(call, False),
            after=lambda call: seen(call, True),
            **watching,
        )

    def wait(self, seconds: float | None = None) -> int | None:
        """The wait status once it has ended or was stopped; None if neither in this time."""
        if seconds is None:
            return os.waitpid(self.pid, os.WUNTRACED)[1]
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WUNTRACED | os.WNOHANG)
            if pid:
                return status
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.001)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)


@dataclass
class Ends:
    """How children ended."""

    kills: int = 0
    stops: int = 0
    finished: int = 0
    overtaken: int = 0
    phases: Counter[str] = field(default_factory=Counter)  # of the kills

    def note(self, child: Child, status: int) -> bool:
        """Count an end, or a stop; True where the child finished its work."""
        if os.WIFSTOPPED(status):
            self.stops += 1
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.kills += 1
            self.phases[child.phase.read()] += 1
        elif os.WIFEXITED(status) and os.WEXITSTATUS(status) == LOST:
            self.overtaken += 1
        elif status == 0:
            self.finished += 1
            return True
        else:
            raise AssertionError(f"a child failed, at {child.phase.read()}: wait status {status}")
        return False


class Killer:
    """Runs children one after another, most of them to an end before theirs."""

    def __init__(
        self, seed: int, *, kinds: Sequence[str], stop_share: float, **watching: Any
    ) -> None:
        self.ends = Ends()
        self._random = random.Random(seed)
        self._kinds = kinds  # of calls of its store that a child ends itself at
        self._stop_share = stop_share
        self._watching = watching
        self.longest = 0.0  # seconds that a whole attempt has taken
        self._stopped: list[Child] = []

    def run(self, work: Callable[[Phase], None], *, spare: bool = False) -> bool:
        """One child; True where it finished its work."""
        if spare:
            begun = time.monotonic()
            child = Child(work, None, **self._watching)
            status = child.wait()
            self.longest = max(self.longest, time.monotonic() - begun)
            assert status is not None
            return self.ends.note(child, status)
        chance = self._random
        number = signal.SIGSTOP if chance.random() < self._stop_share else signal.SIGKILL
        by_itself = chance.random() < 0.5
        kind, nth = chance.choice(self._kinds), chance.randint(1, 4)
        at_call = (kind, nth, chance.random() < 0.5, int(number))
        child = Child(work, at_call if by_itself else None, **self._watching)
        if self._stopped and chance.random() < 0.5:
            self._go_on(chance.uniform(0, 0.5 * self.longest))
        status = child.wait(None if by_itself else chance.uniform(0, self.longest))
        if status is None:
            child.send(number)
            status = child.wait()
        assert status is not None
        if os.WIFSTOPPED(status):
            self._stopped.append(child)
        return self.ends.note(child, status)

    def kill(self, child: Child, within: float) -> None:
        """Kill a child within some seconds, unless it ends before."""
        status = child.wait(self._random.uniform(0, within))
        if status is None:
            child.send(signal.SIGKILL)
            status = child.wait()
        assert status is not None
        self.ends.note(child, status)

    def _go_on(self, after: float) -> None:
        """One that was stopped goes on to its own end, beside the one that runs."""
        time.sleep(after)
        child = self._stopped.pop(self._random.randrange(len(self._stopped)))
        child.send(signal.SIGCONT)
        status = child.wait()
        while status is not None and os.WIFSTOPPED(status):
            child.send(signal.SIGCONT)
            status = child.wait()
        assert status is not None
        self.ends.note(child, status)

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._stopped:  # none, unless something failed
            child.send(signal.SIGKILL)
            child.wait()

    def let_all_go_on(self) -> None:
        while self._stopped:
            self._go_on(0)


def save_jobs(config: DataConfig, kills: int, seed: int) -> dict[str, Any]:
    """Jobs of `ROWS` rows, one after another, each started until it has finished."""

    def save_job(number: int, phase: Phase) -> None:
        first, stop = number * ROWS, (number + 1) * ROWS
        with DataSaver(
            config, writer=f"part-{number:04d}", commit_every=COMMIT, num_worker_threads=2
        ) as saver:
            for numbers in in_batches(first + saver.rows_committed, stop, BATCH):
                phase.write("rows")
                saver(make(numbers, ATTRIBUTES_1K))
        assert saver.rows_committed == ROWS

    jobs = 0
    with Killer(seed, kinds=SAVING, stop_share=0.2) as killer:
        killer.run(partial(save_job, 0), spare=True)
        while killer.ends.kills < kills:
            jobs += 1
            while not killer.run(partial(save_job, jobs), spare=killer.ends.kills >= kills):
                pass
        killer.let_all_go_on()
    return {**vars(killer.ends), "rows": (jobs + 1) * ROWS}


def read_through_caches(
    config: DataConfig, kills: int, seed: int, rows: int, cache_dir: str
) -> dict[str, Any]:
    """Readers that fill a cache until killed, two at once; after some of them, or once it is full,
    it is read whole and again, and a new one is begun. `half_filled`: kills that left it so."""
    chance = random.Random(seed)
    nbytes = rows * sum(a.row_nbytes for a in LARGE)
    caches = half_filled = 0

    def read(folder: Path, shuffle: Any, seed: int, phase: Phase) -> None:
        loader = DataLoader(config, batch_size=16, shuffle=shuffle, seed=seed, cache_dir=folder)
        numbers = []
        for batch in loader:
            numbers += numbers_of(batch, LARGE)
            phase.write("rows")
        assert sorted(numbers) == list(range(rows))

    def read_what_is_there(folder: Path, phase: Phase) -> None:
        loader = DataLoader(config, batch_size=16, cache_dir=folder)
        assert numbers_in(loader, LARGE) == list(range(rows))
        assert loader.stats.bytes_fetched == 0

    with Killer(seed, kinds=READING, stop_share=0.0, local=False) as killer:
        killer.run(partial(read, Path(cache_dir, "spared"), False, 0), spare=True)
        while killer.ends.kills < kills or not half_filled:
            folder = Path(cache_dir, str(caches))
            for _ in range(3):
                before = killer.ends.kills
                shuffle, order = chance.choice([False, True, "global"]), chance.randrange(100)
                beside = Child(partial(read, folder, True, order), None, local=False)
                killer.run(partial(read, folder, shuffle, order))
                killer.kill(beside, within=0.3 * killer.longest)
                if nbytes_held(folder) >= nbytes:
                    break
                half_filled += killer.ends.kills - before
            for work in (partial(read, folder, "global", 7), partial(read_what_is_there, folder)):
                assert killer.run(work, spare=True)
            assert nbytes_held(folder) >= nbytes
            caches += 1
    return {**vars(killer.ends), "caches": caches, "half_filled": half_filled}


def nbytes_held(folder: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in cached_files(folder))


if __name__ == "__main__":
    how = json.loads(sys.argv[2])
    how["config"] = DataConfig.from_json(how["config"])
    result = {"save": save_jobs, "read": read_through_caches}[sys.argv[1]](**how)
    print(json.dumps(result))
