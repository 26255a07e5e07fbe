"""Nothing is fetched or read for later batches before the first one is out."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Attribute, DataConfig, DataLoader
from storage_loader.loader.fetch import mapped, verified
from tests.support.faulty import watch
from tests.support.rows import ROW, config, numbers_in, numbers_of, save_rows

LARGE = (Attribute("pixels", "float32", (3 * 2**12,)), Attribute(ROW, "int64"))  # 48 KiB rows
ROWS, OBJECT = 400, 4 * 2**20  # 5 objects, 19 MiB
BATCH = 4
BLOCK = 65_536
MOST = 2 * 2**20  # far more than a batch's blocks, far less than the dataset


@pytest.fixture
def rows(tmp_path: Path) -> DataConfig:
    the_config = config(
        {"storage": str(tmp_path / "store")}, attributes=LARGE, max_object_size=OBJECT
    )
    return save_rows(the_config, ROWS, 100)


class Gate:
    """Whoever would bring more than `MOST` bytes waits until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.nbytes = 0
        self._lock = threading.Lock()

    def pass_by(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes
            waits = self.nbytes > MOST
        assert not waits or self.is_open.wait(30), "brought before the first batch was out"


def check(loader: DataLoader, gate: Gate) -> None:
    batches = iter(loader)
    first = numbers_of(next(batches), LARGE)
    assert gate.nbytes > 0
    gate.is_open.set()
    assert sorted([*first, *numbers_in(batches, LARGE)]) == list(range(ROWS))
    assert gate.nbytes > MOST


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("place", ["folder", "filled cache"])
def test_little_is_read_here(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, shuffle: Any
) -> None:
    """Of files that are not in memory."""
    how: dict[str, Any] = {
        "batch_size": BATCH, "shuffle": shuffle, "cache_dir": tmp_path / "cache", "block": 20
    }  # fmt: skip
    if place == "filled cache":
        watch(monkeypatch, local=False)
        assert len(numbers_in(DataLoader(rows, **how), LARGE)) == ROWS
        verified._known.clear()
    monkeypatch.setattr(mapped, "is_resident", lambda data: False)
    gate = Gate()
    real = os.pread

    def pread(descriptor: int, nbytes: int, offset: int) -> bytes:
        gate.pass_by(nbytes)
        return real(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", pread)
    if shuffle == "global":  # single blocks, which the map brings
        batches = iter(DataLoader(rows, **how))
        next(batches)
        assert gate.nbytes < MOST
        batches.close()  # type: ignore[attr-defined]
    else:
        check(DataLoader(rows, **how), gate)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_little_is_fetched(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shuffle: Any
) -> None:
    gate = Gate()
    watch(monkeypatch, local=False, before=lambda call: gate.pass_by(call.nbytes))
    loader = DataLoader(rows, batch_size=BATCH, shuffle=shuffle, cache_dir=tmp_path / "cache")
    check(loader, gate)


def test_the_disk_is_read_while_rows_in_memory_are_used(
    rows: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk after one that lies in memory is begun before anybody asks for it."""
    opened = watch(monkeypatch)
    size = 50
    begun = threading.Event()
    here = property(lambda held: held._index < 2)  # two objects are in memory, three are not
    monkeypatch.setattr(mapped.MappedObject, "is_resident", here)
    loader = DataLoader(rows, batch_size=size, prefetch=1)
    last = int(loader.open().starts[2]) // size - 1  # the last batch whose rows are all in memory

    def before(call: Any) -> None:
        if call.verb == "stream" and call.nbytes > BLOCK:  # not a table
            begun.set()

    for store in opened:
        store.before = before
    batches = iter(loader)
    for _ in range(last):
        next(batches)
    assert not begun.is_set()
    next(batches)
    assert begun.wait(20), "nothing is read until it is asked for"
    batches.close()  # type: ignore[attr-defined]
