"""Children that are forked while a cache is filled: nobody waits for what they inherited."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, Dataset
from tests.support import ROOT
from tests.support.caches import LARGE, ROWS, cached_files, fill
from tests.support.faulty import Call, watch
from tests.support.loading import Loading, loading
from tests.support.rows import numbers_in, numbers_of
from tests.support.scale import scaled
from tests.support.threads import running

SECONDS = 30.0  # after which a loop hangs; it takes a second
CACHE_SIZE = 2**26

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Orphans:
    """Children that do nothing until the test is over, as a pool's idle workers."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def fork(self) -> None:
        pid = os.fork()
        if not pid:
            signal.alarm(200)  # a test that was killed leaves none
            while True:
                time.sleep(1)
        self.pids.append(pid)

    def are_alive(self) -> bool:
        return all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in self.pids)

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids.clear()


@pytest.fixture
def orphans() -> Iterator[Orphans]:
    made = Orphans()
    yield made
    made.end()


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def several(tmp_path: Path) -> DataConfig:
    """400 rows in 4 objects."""
    return fill({"storage": str(tmp_path / "store")}, ROWS, max_object_size=2**20)


@pytest.fixture
def streamed(tmp_path: Path) -> DataConfig:
    """400 rows in 2 objects, the first of which is written while it is received."""
    return fill({"storage": str(tmp_path / "store")}, ROWS, max_object_size=2 * 2**20)


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """Its result; what hangs is left to a thread that ends when the orphans do."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    [result] = results
    return result


def once_in(nth: int, hook: Callable[[], None]) -> Callable[..., None]:
    """Calls the hook each `nth` time."""
    count = iter(range(10**9))
    return lambda *_: hook() if next(count) % nth == 0 else None


@pytest.mark.parametrize("moment", ["fetching", "counting"])
@pytest.mark.parametrize("shuffle", [False, "global"])
def test_a_child_that_is_forked_while_a_lock_is_held(
    several: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    orphans: Orphans,
    moment: str,
    shuffle: Any,
) -> None:
    """The parent's loop goes on to its end, and another process has the same rows."""
    fork = once_in(4, orphans.fork)

    def during_fetch(call: Call) -> None:
        if moment == "fetching" and "/objects/" in call.key:
            fork()

    real = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if moment == "counting" and offset == 0:  # what all files take
            fork()
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    watch(monkeypatch, local=False, before=during_fetch)
    how: dict[str, Any] = {"shuffle": shuffle, "seed": 1, "cache_size": CACHE_SIZE}
    loader = DataLoader(several, batch_size=16, cache_dir=cache_dir, prefetch=10**5, **how)
    expected = numbers_in(DataLoader(several, batch_size=16, index=True, **how), LARGE)
    assert within(SECONDS, lambda: numbers_in(loader, LARGE)) == expected
    assert sorted(expected) == list(range(ROWS))
    assert orphans.pids, "none was forked: this tests nothing"
    other = Loading(several, cache_dir, **how)
    with loading(other):
        other.begin()
        assert within(SECONDS, other.result)[0] == expected
    assert orphans.are_alive()


PARENT = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import storage_loader.catalog.catalog as catalog
from tests.support.faulty import WatchedStore
from tests.support.caches import LARGE
from storage_loader import DataConfig, DataLoader
from storage_loader.store import open_store

moment = sys.argv[4]

def fork_and_wait():
    pid = os.fork()
    if not pid:
        signal.alarm(200)
        os.close(1)
        while True:
            time.sleep(1)
    os.write(1, b"%d\\n" % pid)
    time.sleep(100)

class Store(WatchedStore):
    def stream(self, key, start, end):
        for i, piece in enumerate(super().stream(key, start, end)):
            if i == 1 and moment == "fetching":
                fork_and_wait()
            yield piece

real = os.pwrite
def pwrite(descriptor, data, offset):
    if moment == "counting" and offset == 0:
        fork_and_wait()
    return real(descriptor, data, offset)

os.pwrite = pwrite
catalog.open_store = lambda config: Store(open_store(config), local=False)
config = DataConfig.from_json(sys.argv[2])
for _ in DataLoader(config, batch_size=16, cache_dir=sys.argv[3], cache_size=2**26):
    pass
"""


@pytest.mark.parametrize("moment", ["fetching", "counting"])
def test_a_parent_that_is_killed_leaves_no_lock_to_its_child(
    streamed: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    orphans: Orphans,
    moment: str,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(ROOT), streamed.to_json(),
         str(cache_dir), moment],
        stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait(20)
            watch(monkeypatch, local=False)
            loader = DataLoader(streamed, batch_size=16, cache_dir=cache_dir, cache_size=CACHE_SIZE)
            assert within(SECONDS, lambda: numbers_in(loader, LARGE)) == list(range(ROWS))
            os.kill(orphan, 0)  # it still lives
        finally:
            os.kill(orphan, signal.SIGKILL)


def first_row(number: int) -> int:
    return number


def test_a_pool_is_made_in_the_middle_of_an_epoch(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers live until the loops are over, of this process and of another one."""
    watch(monkeypatch, local=False)
    how: dict[str, Any] = {"shuffle": True, "seed": 3, "cache_size": CACHE_SIZE}
    loader = DataLoader(several, batch_size=8, cache_dir=cache_dir, prefetch=10**5, **how)
    pools: list[Any] = []

    def loop() -> list[int]:
        seen: list[int] = []
        for number, batch in enumerate(loader):
            if number in (0, 3, 10):
                pools.append(multiprocessing.get_context("fork").Pool(2))
            if pools:
                seen += pools[-1].map(first_row, numbers_of(batch, LARGE))
        return seen

    try:
        seen = within(SECONDS, loop)
        other = Loading(several, cache_dir, **how)
        with loading(other):
            other.begin()
            assert within(SECONDS, other.result)[0] == seen
    finally:
        for pool in pools:
            pool.terminate()
            pool.join()
    assert sorted(seen) == list(range(ROWS))
    assert len(pools) == 3


def test_torch_workers_are_forked_in_the_middle_of_an_epoch(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside our loader, and reading the same dataset."""
    data = pytest.importorskip("torch.utils.data")
    watch(monkeypatch, local=False)
    dataset = Dataset(several)
    loader = DataLoader(
        several, batch_size=8, cache_dir=cache_dir, cache_size=CACHE_SIZE, prefetch=10**5
    )

    def loop() -> tuple[list[int], list[int]]:
        seen: list[int] = []
        others: list[int] = []
        workers = None
        for number, batch in enumerate(loader):
            seen += numbers_of(batch, LARGE)
            if number == 2:
                by_torch = data.DataLoader(
                    dataset, batch_size=40, num_workers=2, multiprocessing_context="fork",
                    collate_fn=lambda rows: [int(row["row"]) for row in rows],
                )  # fmt: skip
                workers = iter(by_torch)
        assert workers is not None
        for numbers in workers:
            others += numbers
        return seen, others

    assert within(60, loop) == (list(range(ROWS)), list(range(ROWS)))


def test_children_are_forked_at_any_moment(
    several: DataConfig, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread, while several loaders fill and empty a cache that is too small for them."""
    watch(monkeypatch, local=False)
    stop, seen, failed = threading.Event(), [0] * 3, []
    end = time.monotonic() + scaled(8)

    def load(i: int) -> None:
        try:
            while time.monotonic() < end:
                loader = DataLoader(
                    several, batch_size=16, shuffle="global", seed=i, cache_dir=cache_dir,
                    cache_size=[CACHE_SIZE, 2**21, 2**21][i],
                )  # fmt: skip
                assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
                seen[i] += 1
                if i == 0:
                    for file in cached_files(cache_dir):
                        file.unlink(missing_ok=True)
        except BaseException as error:
            failed.append(error)

    own, theirs = os.pipe()  # a descriptor that a child must still have
    os.write(theirs, b"." * 10_000)
    threads = [threading.Thread(target=load, args=(i,), daemon=True) for i in range(3)]
    children: list[int] = []
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and time.monotonic() < end + SECONDS:
            pid = os.fork()
            if not pid:
                signal.alarm(100)
                fine = os.read(own, 1) == b"."
                time.sleep(0.2 * (os.getpid() % 5))
                os._exit(0 if fine else 1)
            children.append(pid)
            time.sleep(0.02)
        hanging = [thread for thread in threads if thread.is_alive()]
    finally:
        stop.set()
        ends = [os.waitpid(pid, 0)[1] for pid in children]
        os.close(own)
        os.close(theirs)
    assert failed == []
    assert not hanging
    assert min(seen) >= 1
    assert ends == [0] * len(children)


# Who holds a lock and does not go on


def test_rows_come_although_a_process_has_stopped(
    streamed: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it was about to fetch goes through memory; what it holds is said once."""
    monkeypatch.setattr("storage_loader.loader.fetch.cache_file.PATIENCE", 1.0)
    stopped = Loading(streamed, cache_dir, hold=True)
    with loading(stopped):
        stopped.begin()
        stopped.wait_for("holding")
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            watch(monkeypatch, local=False)
            loader = DataLoader(streamed, batch_size=16, cache_dir=cache_dir, epochs=2)
            seen = within(SECONDS, lambda: numbers_in(loader, LARGE))
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        assert seen == [*range(ROWS)] * 2
        texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert texts, "nobody waited: this tests nothing"
        for text in texts:
            assert text.startswith(f"process {stopped.pid} has had blocks of ")
        stopped.begin()
        assert within(SECONDS, stopped.result)[0] == list(range(ROWS))
    assert running("fetch", "plan") == []


COUNTING = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("patience", [1.0, 100.0])
def test_a_process_that_stops_while_it_counts(
    several: DataConfig,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
) -> None:
    """Rows go through memory; leaving the loop meanwhile waits for nothing."""
    monkeypatch.setattr("storage_loader.loader.fetch.cache.PATIENCE", patience)
    watch(monkeypatch, local=False)
    how: dict[str, Any] = {"batch_size": 16, "cache_dir": cache_dir, "cache_size": CACHE_SIZE}
    assert numbers_in(DataLoader(several, **how), LARGE) == list(range(ROWS))
    for file in cached_files(cache_dir):
        file.unlink()
    [usage] = cache_dir.rglob("usage")
    with subprocess.Popen(
        [sys.executable, "-c", COUNTING, str(usage)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            loader = DataLoader(several, **how)
            if patience < 10:
                assert within(SECONDS, lambda: numbers_in(loader, LARGE)) == list(range(ROWS))
            else:
                interrupt = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])
                interrupt.start()
                begun = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    numbers_in(loader, LARGE)
                assert time.monotonic() - begun < SECONDS
                assert running("fetch", "plan") == []
        finally:
            process.kill()
