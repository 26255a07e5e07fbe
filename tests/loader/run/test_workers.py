"""Worker processes: the same rows in the same order, and every way they can fail."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset
from storage_loader.errors import ConfigError, LoaderError, TransformError
from tests.support.transforms import (
    NotHere,
    die_at_70,
    die_at_70_in_a_message,
    die_at_70_with_a_child,
    double,
    exit_at_70,
    fail_at_70,
    noisy,
    unpicklable_result,
)
from tests.support.waiting import until
from tests.support.worked import ROWS, save_worked

# As in real ones, which tests of resuming, statistics and credentials start.
pytestmark = pytest.mark.usefixtures("library_once")
SOON = 45  # seconds: on a busy machine too, and before any process ends by itself


def check(batches: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    assert len(batches) == len(alone)
    for batch, expected in zip(batches, alone, strict=True):
        assert np.asarray(batch["id"]).tolist() == np.asarray(expected["id"]).tolist()
        ids = np.asarray(batch["id"])
        assert (np.asarray(batch["x"]) == 2.0 * ids[:, None]).all()
        assert batch["text"] == "kept"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return save_worked(tmp_path_factory.mktemp("workers"))


@pytest.fixture(autouse=True)
def no_process_remains() -> Iterator[None]:
    yield
    until(lambda: multiprocessing.active_children() == [])


def test_the_same_rows_in_the_same_order_for_any_number(stored: DataConfig) -> None:
    settings: dict[str, Any] = {"batch_size": 33, "shuffle": True, "seed": 3, "block": 10}
    alone = list(DataLoader(stored, transform=double, **settings))
    again = list(DataLoader(stored, transform=double, epochs=2, **settings))[len(alone) :]
    for number in (1, 2):
        loader = DataLoader(stored, transform=double, num_workers=number, **settings)
        first, second = list(loader), list(loader)  # the processes of the first are used again
        check(first, alone)
        check(second, again)
        pids = {batch["pid"] for batch in first}
        assert len(pids) == number
        assert os.getpid() not in pids
        assert {batch["pid"] for batch in second} == pids
        del loader


def test_batches_are_the_callers_own_and_survive_the_workers(stored: DataConfig) -> None:
    loader = DataLoader(stored, batch_size=100, transform=double, num_workers=2)
    batches = list(loader)
    batches[0]["x"][:] = -1
    del loader
    check(batches[1:], list(DataLoader(stored, batch_size=100, transform=double))[1:])


def test_single_rows_ranks_and_state(stored: DataConfig) -> None:
    singles = DataLoader(stored, batch_size=None, num_workers=2, subset=slice(0, 40))
    assert [int(row["id"]) for row in singles] == list(range(40))
    ranked = DataLoader(
        stored, batch_size=16, num_workers=2, rank=1, world_size=3, shuffle="global", seed=1
    )
    alone = DataLoader(stored, batch_size=16, rank=1, world_size=3, shuffle="global", seed=1)
    batches = iter(ranked)
    for expected in list(alone)[:3]:
        assert next(batches)["id"].tolist() == expected["id"].tolist()
    state = ranked.state_dict()
    assert state["rows"] == 3 * 3 * 16  # what was received, not what the workers made ahead
    batches.close()  # type: ignore[attr-defined]
    resumed = DataLoader(stored, batch_size=16, rank=1, world_size=3, shuffle="global")
    resumed.load_state_dict(state)
    rest = list(DataLoader(stored, batch_size=16, rank=1, world_size=3, shuffle="global", seed=1))
    assert [b["id"].tolist() for b in resumed] == [b["id"].tolist() for b in rest[3:]]


def test_an_error_names_the_rows_and_carries_the_traceback(stored: DataConfig) -> None:
    loader = DataLoader(stored, batch_size=32, transform=fail_at_70, num_workers=2)
    got = []
    with pytest.raises(TransformError, match=r"on rows 64, 65, .* 'worked': .*seventy") as raised:
        got = [batch["id"][0] for batch in loader]
    assert got == []
    assert "fail_at_70" in str(raised.value)
    assert "transforms.py" in str(raised.value)


def test_a_killed_worker_is_an_error_at_once(stored: DataConfig) -> None:
    loader = DataLoader(stored, batch_size=32, transform=die_at_70, num_workers=2)
    with pytest.raises(LoaderError, match=r"^worker process \d+ ended with exit code -9 before"):
        list(loader)
    loader = DataLoader(stored, batch_size=100, transform=double, num_workers=1)
    check(list(loader), list(DataLoader(stored, batch_size=100, transform=double)))


@pytest.mark.parametrize(
    ("transform", "code"),
    [
        (die_at_70, -9),
        (exit_at_70, 3),
        (die_at_70_with_a_child, -9),
        (die_at_70_in_a_message, -9),
    ],
)
def test_however_a_worker_dies_it_is_an_error_soon(
    stored: DataConfig, transform: Any, code: int
) -> None:
    """Also where a process that it began keeps its files open, so that no pipe ends."""
    batches = iter(DataLoader(stored, batch_size=10, transform=transform, num_workers=2))
    assert next(batches)["id"].tolist() == list(range(10))  # processes are there
    start = time.monotonic()
    with pytest.raises(LoaderError, match=r"^worker process ") as raised:
        for _ in batches:
            pass
    assert time.monotonic() - start < SOON
    if transform is not die_at_70_in_a_message:  # there the message itself says it
        assert f"ended with exit code {code} before" in str(raised.value)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("when", ["between batches", "between epochs"])
def test_a_worker_killed_while_it_has_nothing_to_do(stored: DataConfig, when: str) -> None:
    loader = DataLoader(stored, batch_size=10, transform=double, num_workers=1)
    batches = iter(loader)
    pid = next(batches)["pid"]
    if when == "between epochs":
        assert len(list(batches)) == ROWS // 10 - 1
        batches = iter(loader)
    else:
        time.sleep(0.5)  # what was begun ahead is made
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(LoaderError, match=rf"^worker process {pid} ended with exit code -9"):
        list(batches)
    assert time.monotonic() - start < SOON
    check(list(loader), list(DataLoader(stored, batch_size=10, transform=double)))
    del loader


def test_a_transform_that_a_worker_cannot_load(stored: DataConfig) -> None:
    with pytest.raises(TransformError, match="no module named moon") as raised:
        list(DataLoader(stored, transform=NotHere(), num_workers=1))
    assert "_load_not_here" in str(raised.value)


def test_workers_end_with_a_killed_parent(stored: DataConfig) -> None:
    """Even in the middle of a transform that does not return."""
    program = f"""
    from tests.support.transforms import sleep_at_70
    from storage_loader import DataConfig, DataLoader
    if __name__ == "__main__":
        config = DataConfig("worked", storage={stored.storage!r})
        for batch in DataLoader(config, batch_size=10, transform=sleep_at_70, num_workers=2):
            print(batch["pid"], flush=True)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = {int(parent.stdout.readline()) for _ in range(7)}
    assert len(pids) == 2
    parent.kill()
    until(lambda: not any(map(_runs, pids)))
    parent.communicate()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_cannot_be_sent_is_an_error(stored: DataConfig) -> None:
    with pytest.raises(LoaderError, match="transform cannot be sent to worker processes"):
        list(DataLoader(stored, transform=lambda batch: batch, num_workers=1))
    with pytest.raises(TransformError, match=r"in a worker: .*local object"):
        list(DataLoader(stored, batch_size=ROWS, transform=unpicklable_result, num_workers=1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["-c"],
            "num_workers: a worker process cannot load decode or transform (Can't get attribute",
        ),
        (["-"], "what is read from standard input cannot be imported"),
    ],
    ids=["python -c", "standard input"],
)
def test_a_transform_that_workers_cannot_import_is_an_error(
    folder: dict[str, str], stored: DataConfig, tmp_path: Path, arguments: list[str], said: str
) -> None:
    place = tmp_path / "config.json"
    stored.save(place)
    script = f"""
from storage_loader import DataConfig, DataLoader
def transform(batch): return batch
if __name__ == "__main__":
    config = DataConfig.load({str(place)!r})
    list(DataLoader(config, transform=transform, num_workers=1))
"""
    from_input = arguments == ["-"]
    done = subprocess.run(
        [sys.executable, *arguments, *([] if from_input else [script])],
        input=script if from_input else None,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr


def test_an_early_exit_ends_the_workers(stored: DataConfig) -> None:
    loader = DataLoader(stored, batch_size=8, transform=double, num_workers=2)
    for batch in loader:
        assert batch["id"].tolist() == list(range(8))
        break
    assert multiprocessing.active_children() == []
    assert [b["id"][0] for b in loader][:2] == [0, 8]  # the next epoch has others
    del loader


def test_memory_of_batches_has_no_name(stored: DataConfig, tmp_path: Path) -> None:
    before = _files_in_memory()
    held = list(DataLoader(stored, batch_size=50, transform=double, num_workers=2))
    assert len(held) == 8
    assert _files_in_memory() - before  # what is held is seen here ...
    new = {file for file in _files_in_memory() - before if ".so" not in file}  # no library
    assert {file for file in new if os.path.exists(file)} == set()


def _files_in_memory() -> Counter[str]:
    """The files that this process has mapped, and how often: one line of /proc each."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return Counter(line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6)


# What a transform draws


def drawn(stored: DataConfig, epochs: int = 1, **how: Any) -> list[tuple[list[int], list[float]]]:
    """Rows and noise of each batch."""
    loader = DataLoader(stored, how.pop("batch_size", 16), shuffle=True, transform=noisy, **how)
    return [(b["id"].tolist(), b["noise"].tolist()) for _ in range(epochs) for b in loader]


def test_what_a_transform_draws_is_the_same_by_any_workers(stored: DataConfig) -> None:
    expected = drawn(stored, epochs=2)
    assert drawn(stored, epochs=2) == expected
    assert drawn(stored, epochs=2, num_workers=2) == expected
    assert drawn(stored, epochs=2, index=True, threads=1) == expected
    noises = [tuple(noise) for _, noise in expected]
    assert len(set(noises)) == len(noises) == 50  # no two batches draw alike, of two epochs
    assert not {*noises} & {tuple(noise) for _, noise in drawn(stored, seed=1)}


def test_what_it_draws_is_the_same_after_resuming(stored: DataConfig) -> None:
    expected = drawn(stored)
    loader = DataLoader(stored, 16, shuffle=True, transform=noisy)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    other = DataLoader(stored, 16, shuffle=True, transform=noisy)
    other.load_state_dict(loader.state_dict())
    assert [(b["id"].tolist(), b["noise"].tolist()) for b in other] == expected[7:]


def test_ranks_draw_apart(stored: DataConfig) -> None:
    ranks = [drawn(stored, rank=rank, world_size=2) for rank in (0, 1)]
    assert ranks == [drawn(stored, rank=rank, world_size=2) for rank in (0, 1)]
    noises = [tuple(noise) for rank in ranks for _, noise in rank]
    assert len(set(noises)) == len(noises)


def test_who_gets_a_generator(stored: DataConfig) -> None:
    def optional(batch: Any, scale: float = 2.0) -> float:
        return scale

    def named(batch: Any, rng: Any = None) -> Any:
        return rng

    assert set(DataLoader(stored, 100, transform=optional)) == {2.0}
    [*given] = DataLoader(stored, 100, transform=named)
    assert all(isinstance(rng, np.random.Generator) for rng in given)
    for transform in (keep_all, sorted):  # *args, and no Python function
        assert len(list(DataLoader(stored, 100, transform=transform))) == 4
    with pytest.raises(ConfigError, match="only the batches of a DataLoader have a random"):
        Dataset(stored, transform=noisy)


def keep_all(*batches: Any) -> Any:
    [batch] = batches
    return batch
