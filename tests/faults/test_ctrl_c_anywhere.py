"""Ctrl-C after any call of the main thread: nobody waits for ever, no row is lost or doubled."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Attribute, DataLoader, DataSaver, Dataset
from tests.support.anywhere import Moments, ends
from tests.support.rows import (
    ATTRIBUTES_1K,
    config,
    make,
    numbers_in,
    numbers_of,
    save_rows,
    stored,
)
from tests.support.scale import scaled

POINTS = 25  # of each, chosen at random

EVERY = (*ATTRIBUTES_1K, Attribute("text", "str"), Attribute("tokens", "int32", (None,)))
ROWS = 60

Calls = tuple[Callable[[], object], Callable[[], object]]
"""What is interrupted, and what must be possible afterwards."""


def in_objects(storage: str, **settings: Any) -> Any:
    return config({"storage": storage}, attributes=EVERY, max_object_size=2**16, **settings)


def saving(storage: str, folder: Path, **settings: Any) -> Calls:
    saver = DataSaver(in_objects(storage, **settings))

    def save() -> None:
        with saver:
            for start in range(0, ROWS, 20):
                saver(make(range(start, start + 20), EVERY))
                if start:
                    saver.commit()

    def go_on() -> None:
        saver.abort()
        first = saver.rows_committed
        with DataSaver(saver.config) as other:
            other(make(range(first, ROWS), EVERY))
        assert stored(saver.config, EVERY) == list(range(ROWS))

    return save, go_on


def reading(storage: str, folder: Path) -> Calls:
    the_config = save_rows(in_objects(storage), ROWS, 20)
    dataset = Dataset(the_config, cache_dir=folder / "cache")

    def read() -> None:
        assert numbers_of(dataset[[3, 50, 20]], EVERY) == [3, 50, 20]
        assert dataset[7]["row"] == 7
        assert numbers_of(dataset[10:40], EVERY) == list(range(10, 40))

    def read_all() -> None:
        assert numbers_of(dataset[:], EVERY) == list(range(ROWS))

    return read, read_all


def loading(storage: str, folder: Path) -> Calls:
    the_config = save_rows(in_objects(storage), ROWS, 20)
    loader = DataLoader(the_config, batch_size=7, shuffle=True, cache_dir=folder / "cache")

    def load() -> None:
        assert sorted(numbers_in(loader, EVERY)) == list(range(ROWS))

    return lambda: [load(), load()], load


ZLIB = {"compressor": {"complib": "zlib"}}


@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize(
    "calls",
    [saving, partial(saving, **ZLIB), reading, loading],
    ids=["saving", "saving-zlib", "reading", "loading"],
)
def test_what_comes_afterwards_goes_on(
    tmp_path: Path, calls: Callable[[str, Path], Calls], place: str
) -> None:
    def interrupted(at: int) -> Moments:
        name = uuid.uuid4().hex
        folder = tmp_path / name
        first, then = calls(f"memory://{name}" if place == "memory" else str(folder), folder)
        moments = Moments(at)
        with contextlib.suppress(KeyboardInterrupt), moments.watched():
            first()
        ends(then, moments.where)
        return moments

    passed = interrupted(-1).passed
    assert passed > 2000
    for at in random.Random(0).sample(range(passed), scaled(POINTS)):
        interrupted(at)


def test_a_kind_that_this_finds() -> None:
    """Python's own condition does not pass: one interrupted where its lock is taken keeps it."""

    def interrupted(at: int) -> tuple[threading.Condition, Moments]:
        condition, moments = threading.Condition(), Moments(at)
        with contextlib.suppress(KeyboardInterrupt, RuntimeError), moments.watched():
            for _ in range(2):
                with condition:
                    condition.notify_all()
        return condition, moments

    _, whole = interrupted(-1)
    kept = [at for at in range(whole.passed) if interrupted(at)[0]._is_owned()]  # type: ignore[attr-defined]
    assert kept
