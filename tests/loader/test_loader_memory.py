"""Loading takes a bounded amount of memory and files, however much is read and however often."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Attribute, DataConfig, DataLoader
from tests.support import ROOT
from tests.support.caches import fill
from tests.support.rows import ROW, config, save_rows
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("library_once")

MIB = 2**20

START = """
import collections, ctypes, gc, json, os, resource, sys, threading
import storage_loader.catalog.catalog as catalog
from tests.support.faulty import WatchedStore
from tests.support.rows import ROW, numbers_in
from storage_loader import DataConfig, DataLoader
from storage_loader.store import open_store

class Copying(WatchedStore):
    # What comes from a network lies in memory, not in a map of a file.
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = collections.deque(maxlen=1)

    def get_ranges(self, key, ranges):
        return [memoryview(bytes(b)) for b in super().get_ranges(key, ranges)]

    def stream(self, key, start, end):
        for piece in super().stream(key, start, end):
            yield bytes(piece)

# glibc gives back at once what is freed.
mallopt = ctypes.CDLL(None).mallopt
assert mallopt(-1, 65536) and mallopt(-3, 65536)  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD

def anonymous():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024

arguments = json.loads(sys.argv[1])
if not arguments["local"]:
    catalog.open_store = lambda config: Copying(open_store(config), local=False)
configs = [DataConfig.from_json(text) for text in arguments["configs"]]
how = arguments["how"]
"""


def run(script: str, configs: list[DataConfig], local: bool = False, **how: Any) -> Any:
    """What a process of its own prints as JSON."""
    arguments = {"configs": [c.to_json() for c in configs], "local": local, "how": how}
    done = subprocess.run(
        [sys.executable, "-c", START + script, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Memory


WIDE = (Attribute("pixels", "uint8", (30_000,)), Attribute(ROW, "int64"))
BATCH, WINDOW, PREFETCH = 32, 64, 4 * MIB
NEED = PREFETCH + (2 * BATCH + WINDOW) * 30_008
THREADS = 2
SLACK = THREADS * 2 * MIB + 4 * MIB  # a piece that is received, and its copy here; tables, stacks

PEAK = """
peaks = []
for config in configs:
    def epoch():
        loader = DataLoader(config, **how)
        seen = []
        for batch in loader:
            seen += batch[ROW].tolist()
        assert sorted(seen) == list(range(loader.num_rows))
    if not peaks:
        epoch()  # imports, threads, pools
    gc.collect()
    before = peak = anonymous()
    ended = threading.Event()
    def watch():
        global peak
        while not ended.wait(0.001):
            peak = max(peak, anonymous())
    thread = threading.Thread(target=watch)
    thread.start()
    epoch()
    ended.set()
    thread.join()
    peaks.append(peak - before)
print(json.dumps(peaks))
"""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> list[DataConfig]:
    """Data of 3 MB and of 60 MB."""
    configs = []
    for rows in (100, 2000):
        storage = {"storage": str(tmp_path_factory.mktemp("memory"))}
        configs.append(config(storage, attributes=WIDE, max_object_size=16 * MIB))
        save_rows(configs[-1], rows, 100)
    return configs


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("cache_size", [0, 10**7, None])
def test_memory_stays_within_the_bound(
    sizes: list[DataConfig], tmp_path: Path, cache_size: int | None, shuffle: Any
) -> None:
    small, large = run(
        PEAK, sizes, batch_size=BATCH, prefetch=PREFETCH, shuffle=shuffle, window=WINDOW, block=2,
        cache_size=cache_size, cache_dir=str(tmp_path / "cache"), threads=THREADS,
    )  # fmt: skip
    assert NEED + SLACK < 20 * MIB  # a third of the data: else it would say nothing
    print(f"peaks {small:,} and {large:,} bytes, the bound is {NEED:,}")
    assert large <= NEED + SLACK
    assert small <= NEED + SLACK


SOAK = """
def state():
    gc.collect()
    maps = sum(1 for _ in open("/proc/self/maps"))
    return anonymous(), len(os.listdir("/proc/self/fd")), maps, threading.active_count()

loader = DataLoader(configs[0], **how)
states = []
for epoch in range(100):
    if epoch % 5 == 4:
        for batch in loader:
            break
        continue
    seen = []
    for batch in loader:
        seen += batch[ROW].tolist()
    assert sorted(seen) == list(range(loader.num_rows))
    if epoch in (25, 50, 98):
        states.append(state())
print(json.dumps(states))
"""


@pytest.mark.parametrize(
    ("local", "cache_size"), [(True, 0), (False, 0), (False, None), (False, 300_000)]
)
def test_100_epochs_take_no_more_than_50(
    tmp_path: Path, local: bool, cache_size: int | None
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 100, max_object_size=300_000)
    _, early, late = run(  # the first one, as looking takes memory itself
        SOAK, [the_config], local, batch_size=10, shuffle="global", prefetch=10**6,
        cache_size=cache_size, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    assert late[1] <= early[1] + 2 * 4  # descriptors: of some of the 4 objects, 2 each
    assert late[2] <= early[2] + 20  # maps: the allocator has some of its own
    assert late[3] == early[3] == 1  # threads
    assert late[0] <= early[0] + 2 * MIB  # 38 epochs of 0.9 MB; the allocator grows once by 1


# Files


@pytest.fixture(scope="module")
def five_hundred(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """500 objects of one row."""
    attributes = (Attribute("pixels", "uint8", (33_000,)), Attribute(ROW, "int64"))
    storage = {"storage": str(tmp_path_factory.mktemp("many"))}
    the_config = config(storage, attributes=attributes, max_object_size=2**16)
    save_rows(the_config, 500, 250)
    assert len(DataLoader(the_config).open().objects) == 500
    return the_config


FEW = """
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
seen = []
for batch in DataLoader(configs[0], **how):
    seen += batch[ROW].tolist()
print(json.dumps(seen))
"""


@pytest.mark.parametrize(
    ("local", "cache_size"), [(True, 0), (False, 0), (False, None), (False, 10**6)]
)
def test_64_open_files_are_enough(
    five_hundred: DataConfig, tmp_path: Path, local: bool, cache_size: int | None
) -> None:
    seen = run(
        FEW, [five_hundred], local, batch_size=64, shuffle="global", cache_size=cache_size,
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    assert sorted(seen) == list(range(500))


KILLED = """
import multiprocessing
from tests.support import transforms
loader = DataLoader(configs[0], transform=transforms.held, **how)
for batch in loader:
    print(json.dumps([p.pid for p in multiprocessing.active_children()]), flush=True)
    sys.stdin.readline()
"""


def test_a_killed_run_with_workers_leaves_nothing(tmp_path: Path) -> None:
    the_config = fill({"storage": str(tmp_path / "store")}, 100)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = orphans()
    arguments = {
        "configs": [the_config.to_json()],
        "local": True,
        "how": {"batch_size": 8, "num_workers": 2},
    }
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-c", START + KILLED, json.dumps(arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        workers = json.loads(process.stdout.readline())
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not any(is_running(pid) for pid in workers))
    until(lambda: orphans() <= before)
    assert list(temporary.rglob("*")) == []


def orphans() -> set[str]:
    """Names of shared memory that no process uses: other tests have some that is in use."""
    shared = Path("/dev/shm")
    found = {str(path) for path in shared.iterdir()} if shared.is_dir() else set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            found -= {
                line.split()[-1] for line in maps.read_text().splitlines() if "/dev/shm" in line
            }
    return found


def is_running(pid: int) -> bool:
    """Whether this process lives; one that nobody has waited for yet does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
