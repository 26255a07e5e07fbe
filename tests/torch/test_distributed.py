"""`torch.distributed`: processes that train together read one version, each its own rows."""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, DataSaver, save
from storage_loader.config import MIN_OBJECT_SIZE
from tests.support.rows import ROW, config, in_batches, make, save_rows
from tests.support.spawned import TORCH, imported_once

pytest.importorskip("torch")

COUNT = 301
WORLD_SIZE = 2

# A rank runs jobs, which are told to go on by a line of input and answer with lines of JSON.
RANK = """
import json, sys, traceback
import torch.distributed as distributed
from storage_loader import DataConfig
from storage_loader.torch import DataLoader, Dataset

def answer(value):
    print(json.dumps(value), flush=True)

def wait():
    assert sys.stdin.readline(), "the test is gone"

rank, world_size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
distributed.init_process_group(
    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
)
for line in sys.stdin:
    job, config = json.loads(line)
    config = DataConfig.from_json(config)
    try:
        exec(job, globals() | {"config": config})
    except Exception:
        answer({"failed": traceback.format_exc()})
distributed.destroy_process_group()
"""
TIMEOUT = 200  # seconds: a rank that waits for another for ever is what these tests are about


class Rank:
    """One process of the group."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lines = b""

    def start(self, the_config: DataConfig, job: str) -> None:
        self._send(json.dumps([job, the_config.to_json()]))

    def go(self) -> None:
        self._send("")

    def _send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._lines:
            if not select.select([descriptor], [], [], TIMEOUT)[0]:
                self.process.kill()
                pytest.fail("a rank hangs")
            received = os.read(descriptor, 2**16)
            assert received, "the process ended"
            self._lines += received
        line, _, self._lines = self._lines.partition(b"\n")
        value = json.loads(line)
        assert not (isinstance(value, dict) and "failed" in value), value["failed"]
        return value


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Rank]]:
    meeting = str(tmp_path_factory.mktemp("group") / "meeting")
    with imported_once(*TORCH, starts=True):
        ranks = [Rank(str(rank), str(WORLD_SIZE), meeting) for rank in range(WORLD_SIZE)]
    try:
        yield ranks
        for rank in ranks:
            assert rank.process.stdin is not None
            rank.process.stdin.close()
        assert [rank.process.wait(timeout=TIMEOUT) for rank in ranks] == [0] * WORLD_SIZE
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()
            for pipe in (rank.process.stdin, rank.process.stdout):
                assert pipe is not None
                pipe.close()


def start(ranks: list[Rank], the_config: DataConfig, job: str) -> None:
    for rank in ranks:
        rank.start(the_config, job)


def fill(storage: dict[str, str], rows: int = COUNT) -> DataConfig:
    the_config = config(storage, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, rows, 100, commits=True)


TRAIN = """
loader = DataLoader(config, batch_size=8, shuffle=SHUFFLE, block=10, window=50, extras=["valid"])
answer("here")
if rank:
    wait()  # until more was appended: rank 0 may have fixed the version before
rows, sizes = [], []
for batch in loader:
    sizes.append(len(batch["row"]))
    rows.append(batch["row"][batch["valid"]].tolist())
    total = batch["row"].sum()
    distributed.all_reduce(total)  # hangs where a rank has fewer batches
state = loader.state_dict()
answer([rows, sizes, len(loader), loader.num_rows, str(loader.version), state])
"""


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_ranks_train_an_epoch_while_rows_are_appended(
    folder: dict[str, str], group: list[Rank], shuffle: Any
) -> None:
    the_config = fill(folder)
    job = TRAIN.replace("SHUFFLE", repr(shuffle))
    start(group, the_config, job)
    for rank in group:
        assert rank.answer() == "here"
    with DataSaver(the_config) as saver:
        for numbers in in_batches(COUNT, COUNT + 200, 20):
            saver(make(numbers))
            saver.commit()
            if numbers.start == COUNT + 100:
                group[1].go()  # half of it is there, the rest comes beside
    found = [rank.answer() for rank in group]
    (rows_0, sizes_0, *same_0), (rows_1, sizes_1, *same_1) = found
    assert same_0 == same_1  # number of batches, rows, version and state
    num_batches, num_rows, version, state = same_0
    assert len(rows_0) == len(rows_1) == num_batches
    assert num_rows >= COUNT
    seen = [n for part in (*rows_0, *rows_1) for n in part]
    assert sorted(seen) == list(range(num_rows))
    assert sizes_0[:-1] == sizes_1[:-1] == [8] * (num_batches - 1)
    assert abs(sizes_0[-1] - sizes_1[-1]) <= 1
    assert (state["epoch"], state["rows"]) == (1, 0)
    alone = DataLoader(
        the_config, version=version, batch_size=16, shuffle=shuffle, block=10, window=50
    )
    for batch, part_0, part_1 in zip(alone, rows_0, rows_1, strict=True):
        together = part_0 + part_1
        if shuffle:
            together = [n for pair in zip(part_0, part_1, strict=False) for n in pair]
            together += part_0[len(part_1) :]
        assert batch[ROW].tolist() == together


ONE_VERSION = """
import storage_loader.loader.peers as ours
catalog = ours.Catalog

class Slow(catalog):
    def snapshot(self, version=None):
        found = super().snapshot(version)
        answer("listed")
        return found

if rank == 0:
    ours.Catalog = Slow
else:
    wait()
ds = Dataset(config)
answer([str(ds.version), len(ds)])
ours.Catalog = catalog
loader = DataLoader(config)
answer([str(loader.version), loader.num_rows])
"""


def test_all_ranks_read_the_version_of_rank_0(folder: dict[str, str], group: list[Rank]) -> None:
    """Rank 1 comes late, when there is more: it reads what rank 0 found before."""
    the_config = fill(folder)
    start(group, the_config, ONE_VERSION)
    assert group[0].answer() == "listed"
    save(the_config, make(range(COUNT, COUNT + 9)))
    group[1].go()
    first = group[0].answer()
    assert first == group[1].answer()
    assert first[1] == COUNT
    second = group[0].answer()
    assert second == group[1].answer()
    assert second[1] == COUNT + 9


GIVEN = """
loader = DataLoader(config, rank=1 - rank, world_size=2, batch_size=20)
answer([n for batch in loader for n in batch["row"].tolist()])
if rank == 0:
    alone = DataLoader(config, rank=0, world_size=1, batch_size=20)  # no other rank takes part
    assert len(alone) == 3
    assert Dataset(config, version=alone.version)[3]["row"] == 3
"""


def test_ranks_that_are_given_hold(folder: dict[str, str], group: list[Rank]) -> None:
    the_config = fill(folder, 60)
    start(group, the_config, GIVEN)
    assert group[0].answer() == [*range(20, 40), *range(50, 60)]
    assert group[1].answer() == [*range(20), *range(40, 50)]


RESUME = """
loader = DataLoader(config, batch_size=3, shuffle=True, block=10, window=50)
running = iter(loader)
rows = [n for _ in range(4) for n in next(running)["row"].tolist()]
state = loader.state_dict()
other = DataLoader(config, batch_size=5, shuffle=True, block=10, window=50)
other.load_state_dict(state)
rows += [n for batch in other for n in batch["row"].tolist()]
answer([rows, state])
"""


def test_ranks_resume(folder: dict[str, str], group: list[Rank]) -> None:
    the_config = fill(folder, 64)
    start(group, the_config, RESUME)
    (rows_0, state_0), (rows_1, state_1) = [rank.answer() for rank in group]
    assert state_0 == state_1
    assert state_0["rows"] == 24
    assert sorted(rows_0 + rows_1) == list(range(64))


MISSING = """
for make in (DataLoader, Dataset):
    try:
        len(make(config))
    except Exception as error:
        answer([type(error).__name__, str(error)])
    else:
        answer("no error")
"""


def test_a_missing_dataset_is_an_error_on_every_rank(
    folder: dict[str, str], group: list[Rank]
) -> None:
    """None waits for the others."""
    the_config = config(folder, "nothing")
    start(group, the_config, MISSING)
    for _ in range(2):
        (kind_0, text_0), (kind_1, text_1) = [rank.answer() for rank in group]
        assert kind_0 == "DatasetNotFoundError"
        assert kind_1 == "LoaderError"
        assert text_1.startswith("rank 0 could not open the dataset: ")
        assert text_0 in text_1
        assert "no dataset 'nothing'" in text_1


WORKERS = """
import torch.utils.data
ds = Dataset(config)
len(ds)
sampler = torch.utils.data.DistributedSampler(ds, shuffle=False)
given = torch.utils.data.DataLoader(
    ds, batch_size=4, sampler=sampler, num_workers=1, multiprocessing_context="fork"
)
answer([n for batch in given for n in batch["row"].tolist()])
"""


def test_workers_of_a_rank_are_no_ranks(folder: dict[str, str], group: list[Rank]) -> None:
    the_config = fill(folder, 20)
    start(group, the_config, WORKERS)
    assert sorted(group[0].answer() + group[1].answer()) == list(range(20))


ITERABLE = """
import torch.utils.data
from storage_loader.torch import IterableDataset
if rank:
    wait()  # rank 0 has fixed the version before
dataset = IterableDataset(config, batch_size=8, shuffle=True, block=10, window=50)
given = torch.utils.data.DataLoader(
    dataset, batch_size=None, num_workers=NUMBER, multiprocessing_context=METHOD
)
epochs = [[b["row"].tolist() for b in given] for _ in range(EPOCHS)]
answer([epochs, str(dataset.version), len(given)])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_ranks_share_out_an_epoch(
    folder: dict[str, str], group: list[Rank], method: str
) -> None:
    the_config = fill(folder)
    # What is spawned for each epoch imports torch anew.
    how = {"METHOD": repr(method), **({"NUMBER": "2", "EPOCHS": "2"} if method == "fork" else
                                      {"NUMBER": "1", "EPOCHS": "1"})}  # fmt: skip
    job = functools.reduce(lambda text, pair: text.replace(*pair), how.items(), ITERABLE)
    start(group, the_config, job)
    save(the_config, make(range(COUNT, COUNT + 9)))  # before or after rank 0 has looked
    group[1].go()
    (epochs_0, *same_0), (epochs_1, *same_1) = [rank.answer() for rank in group]
    assert same_0 == same_1
    version, num_batches = same_0
    alone = DataLoader(
        the_config, version=version, batch_size=16, shuffle=True, block=10, window=50
    )
    for part_0, part_1 in zip(epochs_0, epochs_1, strict=True):
        assert len(part_0) == len(part_1) == num_batches
        for batch, one, two in zip(alone, part_0, part_1, strict=True):
            assert sorted(batch[ROW].tolist()) == sorted(one + two)
