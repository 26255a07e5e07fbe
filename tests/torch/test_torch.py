"""`storage_loader.torch`: the same rows as tensors, and under torch's own DataLoader."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.utils.data

import storage_loader
from storage_loader import Attribute, DataConfig, DataSaver, save
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.loader.fill.parts import Parts
from storage_loader.schema import DTYPES
from storage_loader.torch import DataLoader, Dataset, as_tensor, gather
from tests.support.own_process import import_without
from tests.support.rows import (
    ROW,
    WITH_PIXELS,
    assert_rows,
    config,
    make,
    numbers_of,
    save_rows,
    stored,
)
from tests.support.spawned import TORCH, imported_once

COUNT = 103


def as_numpy(batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {
        name: tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        if tensor.dtype == torch.bfloat16
        else tensor.numpy()
        for name, tensor in batch.items()
    }


def fill(storage: dict[str, str], rows: int = COUNT) -> DataConfig:
    the_config = config(storage, attributes=WITH_PIXELS, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, rows, 40)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("numbered"))})


# Tensors


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_torchs_own(
    memory: dict[str, str], dtype: str, shape: tuple[int, ...]
) -> None:
    attributes = [Attribute("values", dtype, shape)]
    the_config = DataConfig("dtypes", attributes, **memory)
    save(the_config, make(range(10), attributes))
    expected = getattr(torch, dtype)
    for index in (False, True):
        [batch] = DataLoader(the_config, batch_size=20, index=index)
        assert batch["values"].dtype is expected
        assert batch["values"].shape == (10, *shape)
        assert_rows(as_numpy(batch), range(10), attributes)
        rows = list(DataLoader(the_config, batch_size=None, index=index))
        assert [(r["values"].dtype, tuple(r["values"].shape)) for r in rows] == [
            (expected, shape)
        ] * 10
        whole = {"values": torch.stack([row["values"] for row in rows])}
        assert_rows(as_numpy(whole), range(10), attributes)
    row = Dataset(the_config)[3]["values"]
    assert isinstance(row, torch.Tensor)
    assert (row.dtype, tuple(row.shape)) == (expected, shape)
    assert_rows(as_numpy(Dataset(the_config)[[3, 1]]), [3, 1], attributes)


def test_tensors_lie_on_the_batchs_own_memory(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    for batch in DataLoader(the_config, batch_size=10):
        for tensor in batch.values():
            tensor.zero_()
    for number, batch in enumerate(DataLoader(the_config, batch_size=10)):
        assert_rows(as_numpy(batch), range(number * 10, min(number * 10 + 10, COUNT)), WITH_PIXELS)
    array = np.arange(5, dtype=np.float32)
    as_tensor(array)[2] = 9
    assert array[2] == 9


def test_transform_and_as_tuple_get_tensors(memory: dict[str, str]) -> None:
    the_config = fill(memory)

    def scaled(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"image": batch["image"].float() / 255, ROW: batch[ROW]}

    loader = DataLoader(the_config, batch_size=COUNT, transform=scaled, as_tuple=True)
    [(images, rows)] = loader
    assert rows.tolist() == list(range(COUNT))
    assert torch.equal(images, torch.from_numpy(make(range(COUNT))["image"]).float() / 255)
    image, row = Dataset(the_config, transform=scaled, as_tuple=True)[7]
    assert (image.shape, int(row)) == ((3, 5), 7)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_the_order_is_that_of_the_numpy_loader(memory: dict[str, str], shuffle: Any) -> None:
    the_config = fill(memory)
    ours = DataLoader(the_config, batch_size=10, shuffle=shuffle, seed=5)
    numpys = storage_loader.DataLoader(the_config, batch_size=10, shuffle=shuffle, seed=5)
    for _ in range(2):
        for tensors, arrays in zip(ours, numpys, strict=True):
            assert tensors[ROW].tolist() == arrays[ROW].tolist()
            assert numbers_of(as_numpy(tensors), WITH_PIXELS) == arrays[ROW].tolist()


def test_a_dataset_is_torchs(memory: dict[str, str]) -> None:
    dataset = Dataset(fill(memory))
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert isinstance(dataset, storage_loader.Dataset)
    assert len(dataset) == COUNT
    items = dataset.__getitems__([5, 3, -1])
    assert [int(item[ROW]) for item in items] == [5, 3, COUNT - 1]
    part = torch.utils.data.Subset(dataset, [4, 2])
    assert [int(part[i][ROW]) for i in range(2)] == [4, 2]
    with pytest.raises(IndexError):
        dataset[COUNT]


def test_tensors_are_saved_as_they_were_read(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    copy = config(memory, "copy", attributes=WITH_PIXELS)
    with DataSaver(copy) as saver:
        for batch in DataLoader(the_config, batch_size=10):
            saver(batch)
    assert stored(copy, WITH_PIXELS) == list(range(COUNT))


@pytest.mark.parametrize("nbytes", [1024, 1032, 3001, 49152, 2**20])
def test_large_batches_are_gathered_by_torch(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    """Rows at odd places, of several objects, padding among them; a kept batch stays as it is.

    Not while rows are made ready: torch's threads would spin on cores that need to work.
    """
    attributes = (Attribute("pixels", "uint8", (nbytes,)), Attribute(ROW, "int64"))
    count = max(12, 3 * 2**18 // nbytes)
    the_config = config(folder, attributes=attributes, max_object_size=2**21)
    save(the_config, make(range(count), attributes))
    gathers = []  # for each, whether others are to run beside it, and how often torch copied
    by_us, by_torch = gather.select_rows, torch.index_select

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        gathers[-1][1] += 1
        return by_torch(*args, **kwargs)

    def noted(parts: Parts, *args: Any) -> None:
        gathers.append([parts.frees_gil, 0])
        by_us(parts, *args)

    pace = gather.Pace()
    pace.copied_alone(nbytes, 1, math.inf)  # no copy takes longer than that
    monkeypatch.setattr(gather, "_pace", pace)
    monkeypatch.setattr(torch, "index_select", counted)
    monkeypatch.setattr(DataLoader, "_feed", replace(DataLoader._feed, copy_rows=noted))
    # Files that are in memory are made ready by nobody else.
    monkeypatch.setattr("storage_loader.loader.fetch.mapped.is_resident", lambda data: False)
    size = max(1, count // 2 - 1)
    loader = DataLoader(the_config, batch_size=size, shuffle="global", last_batch="pad")
    for _ in range(2):
        batches = list(loader)
        found = []
        for batch in batches:
            valid = batch["pixels"].bool().any(dim=1)
            arrays = {name: array[valid.numpy()] for name, array in as_numpy(batch).items()}
            found += numbers_of(arrays, attributes)
        assert sorted(found) == list(range(count))
    assert len(gathers) == 2 * len(batches)
    assert gathers[0] == [True, 0]
    assert gathers[-len(batches) :] == [[False, 1]] * len(batches)
    assert all(selected == (not others) for others, selected in gathers)


def test_a_trainers_count_of_epochs_leaves_a_loaded_state(numbered: DataConfig) -> None:
    def loader() -> DataLoader:
        return DataLoader(numbered, 10, shuffle=True, epochs=2)

    by_hand, counted = loader(), loader()
    by_hand.set_epoch(6)
    counted.batch_sampler.sampler.set_epoch(3)
    assert counted.state_dict() == by_hand.state_dict()
    assert counted.batch_sampler.batch_size == 10
    next(iter(by_hand))
    counted.load_state_dict(by_hand.state_dict())
    counted.batch_sampler.sampler.set_epoch(0)
    assert counted.state_dict() == by_hand.state_dict()
    # Lightning would turn the shuffling off, as it says, of a loader that has one.
    assert not hasattr(counted, "sampler")


def test_one_thread_copies_for_a_while_after_torch_was_slow() -> None:
    pace = gather.Pace()
    assert not pace.allows(4096, 0.0)  # what one thread takes is not known yet
    pace.copied_alone(4096, 10**6, 0.001)
    assert pace.allows(4096, 0.0)
    assert not pace.allows(3000, 0.0)
    pace.copied(4096, 2 * 10**6, 1.0, 1.005)  # one thread takes 2 ms
    assert pace.allows(4096, 1.005)
    pace.copied(4096, 2 * 10**6, 2.0, 2.012)
    assert not pace.allows(4096, 2.5)  # 50 times the 10 ms that were lost
    assert pace.allows(4096, 2.513)
    pace.copied_alone(4096, 10**6, 0.01)
    pace.copied(4096, 2 * 10**6, 3.0, 3.012)
    assert pace.allows(4096, 3.012)


def test_a_gather_gives_way_where_the_cores_are_somebody_elses(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = (Attribute("pixels", "uint8", (2**17,)), Attribute(ROW, "int64"))
    the_config = config(folder, attributes=attributes)
    save(the_config, make(range(60), attributes))
    now, delay, selected = 0.0, 0.0, 0
    by_torch = torch.index_select

    def held_up(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal now, selected
        now += delay
        selected += 1
        return by_torch(*args, **kwargs)

    clock = SimpleNamespace(perf_counter=lambda: now, thread_time=time.thread_time)
    monkeypatch.setattr(gather, "time", clock)
    monkeypatch.setattr(gather, "_pace", gather.Pace())
    monkeypatch.setattr(torch, "index_select", held_up)
    loader = DataLoader(the_config, batch_size=6, shuffle="global")

    def selected_in_an_epoch() -> int:
        nonlocal selected
        selected = 0
        batches = [as_numpy(batch) for batch in loader]
        assert sorted(n for b in batches for n in numbers_of(b, attributes)) == list(range(60))
        return selected

    for _ in range(2):
        selected_in_an_epoch()  # makes the rows ready, and tells what one thread takes
    assert selected_in_an_epoch() == 10
    delay = 10.0
    assert selected_in_an_epoch() == 1
    assert selected_in_an_epoch() == 0
    now, delay = now + 1000, 0.0
    assert selected_in_an_epoch() == 10


def read_large_batches_in_a_fork(the_config: DataConfig) -> None:
    give_up(200)
    torch.set_num_threads(2)
    loader = DataLoader(the_config, batch_size=16, shuffle="global")
    for _ in range(3):
        assert sorted(int(n) for batch in loader for n in batch[ROW]) == list(range(48))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            give_up(100)
            for each in (loader, DataLoader(the_config, batch_size=16, shuffle="global")):
                assert sorted(int(n) for batch in each for n in batch[ROW]) == list(range(48))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("torch_once")
def test_a_fork_does_not_wait_for_threads_of_torch(folder: dict[str, str]) -> None:
    attributes = (Attribute("pixels", "uint8", (70_000,)), Attribute(ROW, "int64"))
    the_config = config(folder, attributes=attributes)
    save(the_config, make(range(48), attributes))
    process = multiprocessing.get_context("spawn").Process(
        target=read_large_batches_in_a_fork, args=(the_config,)
    )
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0


# Under torch's own DataLoader


def give_up(seconds: int) -> None:
    """End this process by then, whatever hangs in it: no Python code runs for that."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)


def read_with_workers(the_config: DataConfig, method: str, shuffle: bool, answer: Any) -> None:
    """In a process of its own, which may hang: read in the parent first, then by workers."""
    give_up(250)
    dataset = Dataset(the_config)
    assert int(dataset[5][ROW]) == 5
    assert sum(len(b[ROW]) for b in DataLoader(the_config, batch_size=9, index=True)) == COUNT
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=8, shuffle=shuffle, num_workers=2, multiprocessing_context=method
    )
    epochs = []
    for _ in range(2 if method == "fork" else 1):
        epochs.append([numbers_of(as_numpy(batch), WITH_PIXELS) for batch in loader])
        assert int(dataset[7][ROW]) == 7
    answer.send(epochs)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def shared(request: pytest.FixtureRequest) -> dict[str, str]:
    """A storage that other processes reach."""
    return request.getfixturevalue("s3_storage" if request.param == "s3" else "folder")


@pytest.mark.parametrize(
    ("storage", "method"),
    [
        ("folder", "fork"),
        ("folder", "forkserver"),
        *(pytest.param("s3", method, marks=pytest.mark.s3) for method in ("fork", "spawn")),
    ],
    indirect=["storage"],
)
def test_torchs_loader_with_two_workers(storage: dict[str, str], method: str) -> None:
    the_config = fill(storage)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    shuffle = method == "fork"
    process = context.Process(target=read_with_workers, args=(the_config, method, shuffle, there))
    with imported_once(*TORCH, starts=True):
        process.start()
    there.close()
    try:
        assert here.poll(300)
        epochs = here.recv()
    finally:
        process.join(100)
        process.kill()
    assert process.exitcode == 0
    for batches in epochs:
        assert [len(batch) for batch in batches] == [8] * 12 + [7]
        numbers = [number for batch in batches for number in batch]
        assert sorted(numbers) == list(range(COUNT))
        assert (numbers == sorted(numbers)) != shuffle


def test_a_worker_reads_a_batch_by_one_call(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Dataset(fill(memory))
    calls: list[int] = []
    rows = Dataset.rows

    def counted(self: Dataset, index: Any) -> list[Any]:
        calls.append(len(index))
        return rows(self, index)

    monkeypatch.setattr(Dataset, "rows", counted)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=20):
        assert numbers_of(as_numpy(batch), WITH_PIXELS)
    assert calls == [20] * 5 + [3]


def test_a_sampler_may_be_replaced_by_a_distributed_one(memory: dict[str, str]) -> None:
    """What Lightning, Accelerate and the HF Trainer do with a DataLoader that they are given."""
    dataset = Dataset(fill(memory))
    given = torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True)
    seen: list[int] = []
    for rank in range(2):
        sampler = torch.utils.data.DistributedSampler(
            given.dataset, num_replicas=2, rank=rank, shuffle=True, seed=3
        )
        replaced = torch.utils.data.DataLoader(
            given.dataset,
            batch_sampler=torch.utils.data.BatchSampler(sampler, given.batch_size, drop_last=False),
            collate_fn=given.collate_fn,
        )
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append([n for b in replaced for n in numbers_of(as_numpy(b), WITH_PIXELS)])
        assert epochs[0] != epochs[1]
        seen += epochs[0]
    assert len(seen) == COUNT + 1  # torch's sampler repeats a row
    assert sorted(set(seen)) == list(range(COUNT))


@pytest.mark.usefixtures("torch_once")
def test_a_fork_after_reading_may_read_again(shared: dict[str, str]) -> None:
    """With the objects the parent has used, and with new ones."""
    the_config = fill(shared)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=read_in_forks, args=(the_config,))
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0


def read_in_forks(the_config: DataConfig) -> None:
    give_up(200)
    dataset = Dataset(the_config)
    loader = DataLoader(the_config, batch_size=10, shuffle=True)
    assert sum(len(batch[ROW]) for batch in loader) == COUNT
    assert dataset[:][ROW].tolist() == list(range(COUNT))
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                give_up(100)
                for source in (dataset, Dataset(the_config), storage_loader.Dataset(the_config)):
                    assert source[:][ROW].tolist() == list(range(COUNT))
                for each in (loader, DataLoader(the_config, batch_size=10, index=True)):
                    assert sorted(n for b in each for n in b[ROW].tolist()) == list(range(COUNT))
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert dataset[[3]][ROW].tolist() == [3]


def test_a_pickled_dataset_carries_its_version(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    text = pickle.dumps(Dataset(the_config))
    save(the_config, make([7], WITH_PIXELS), refresh=True)
    assert pickle.loads(text)[:][ROW].tolist() == list(range(COUNT))
    assert len(text) < 20_000


# Without torch


def test_without_torch_the_import_says_what_to_install() -> None:
    assert import_without("torch", "storage_loader.torch") == (
        "storage_loader.torch needs PyTorch: pip install 'storage-loader[torch]'"
    )


def test_importing_the_library_imports_no_torch() -> None:
    script = "import sys, storage_loader, storage_loader.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=500)


@pytest.fixture(autouse=True)
def no_worker_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("number", [torch.tensor(3), torch.tensor(-100), np.array(3), np.uint8(3)])
def test_an_integer_of_any_kind_is_one_row(numbered: DataConfig, number: Any) -> None:
    row = Dataset(numbered)[number]
    assert row[ROW].shape == ()
    assert row[ROW] == int(number) % COUNT


def test_batch_size_stands_second_everywhere(numbered: DataConfig) -> None:
    loader = DataLoader(numbered, 50, shuffle=True)
    assert (len(loader), loader.batch_size, len(loader.dataset)) == (3, 50, COUNT)
    assert isinstance(loader.dataset, Dataset)
    assert isinstance(loader.dataset[0][ROW], torch.Tensor)
