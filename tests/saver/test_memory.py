"""Saving takes a bounded amount of memory, however much is saved and however slow the store is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support import ROOT

SAVED_NBYTES = int(os.environ.get("STORAGE_LOADER_TEST_SAVED_NBYTES", "512000000"))
ROW_NBYTES = 150_528
BATCH_ROWS = 256
THREADS = 4

SAVE = f"""
import sys, time
import numpy as np
from storage_loader import DataConfig, DataSaver
from datetime import datetime, timezone
from storage_loader.store import MemoryStore, ObjectInfo

class SlowAndForgetful(MemoryStore):
    # Of objects it keeps no bytes, only how many there were.

    def put(self, key, data, *, create=False):
        if key.endswith("dataset.json"):
            super().put(key, data, create=create)
        time.sleep(0.05)
        sizes[key] = memoryview(data).nbytes

    def head(self, key):
        return ObjectInfo(key, sizes[key], datetime.now(timezone.utc))

    def list(self, prefix=""):
        return (self.head(key) for key in sizes if key.startswith(prefix + "/"))

sizes = {{}}
object_nbytes, saved_nbytes = map(int, sys.argv[1:])

import storage_loader.catalog.catalog as catalog
catalog.open_store = lambda config: SlowAndForgetful(config.storage)

def memory(name):
    [line] = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024

config = DataConfig(
    "big", [("image", "uint8", (3, 224, 224)), ("row", "int64")], storage="memory://nothing",
    max_object_size=object_nbytes,
)
batch = {{
    "image": np.zeros(({BATCH_ROWS}, 3, 224, 224), np.uint8) + 1,
    "row": np.arange({BATCH_ROWS}),
}}
with DataSaver(config, num_worker_threads={THREADS}) as saver:
    saver({{name: array[:1] for name, array in batch.items()}})
before = memory("VmRSS")
rows = 0
with DataSaver(config, num_worker_threads={THREADS}) as saver:
    while rows * {ROW_NBYTES} < saved_nbytes:
        saver(batch)
        rows += {BATCH_ROWS}
assert saver.rows_committed == rows
assert sum(sizes.values()) > saved_nbytes and max(sizes.values()) <= object_nbytes
print(memory("VmHWM") - before)
"""


@pytest.mark.parametrize("object_nbytes", [4 * 2**20, 64 * 2**20])
def test_the_peak_is_within_the_bound(object_nbytes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(object_nbytes), str(SAVED_NBYTES)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    growth = int(done.stdout)
    bound = (THREADS + 2) * object_nbytes
    assert bound < SAVED_NBYTES  # else it would say nothing
    print(f"saved {SAVED_NBYTES:,} bytes: peak {growth:,} bytes, the bound is {bound:,}")
    assert growth <= bound
