"""`storage_loader.torch.DataLoader(device=...)`: which memory may be used when.

On a stand-in for CUDA; `tests/support/fake_cuda.py` says what it does. The class that talks to CUDA
is the real one. The last tests run where there is a GPU.
"""

from __future__ import annotations

import itertools
import math
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import storage_loader
from storage_loader import Attribute, DataConfig, DataSaver, save
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import ConfigError, TransformError, UnknownNameError
from storage_loader.loader.fill.parts import Parts
from storage_loader.schema import DTYPES
from storage_loader.torch import DataLoader, gather
from storage_loader.torch.device import Cuda
from storage_loader.torch.ring import LAG, SLOTS, Slot, room_for
from tests.support import transforms
from tests.support.fake_cuda import FakeCuda, patch
from tests.support.rows import ROW, WITH_PIXELS, assert_rows, config, make, numbers_of, save_rows
from tests.support.threads import running
from tests.support.waiting import until

ROWS = (*WITH_PIXELS, Attribute("tile", "float32", (16, 32)))
COUNT = 203
DELAY = 2e-3  # seconds: of the stand-in's streams


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("device"))})


def fill(storage: dict[str, str]) -> DataConfig:
    the_config = config(storage, attributes=ROWS, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, COUNT, 50)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = patch(monkeypatch, DELAY)
    yield fake
    fake.close()


@pytest.fixture(autouse=True)
def no_thread_remains() -> Iterator[None]:
    yield
    assert running("ahead", "fetch", "plan", "save") == []


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor, without a hold on the tensor."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def arrays(batch: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: as_numpy(tensor) for name, tensor in batch.items()}


def train(cuda: FakeCuda, loader: Any, epochs: int = 1) -> list[list[int]]:
    """Batches of rows that the consumer's stream found; it reads each long after its drop."""
    found: list[list[int]] = []

    def kernel(memory: dict[str, np.ndarray]) -> Any:
        return lambda: found.append(numbers_of(memory, ROWS))

    for _ in range(epochs):
        for batch in loader:
            cuda.run(kernel(arrays(batch)))
            del batch
    cuda.default.finish()
    if cuda.failures:
        raise cuda.failures.pop()
    return found


def expected(the_config: DataConfig, **how: Any) -> list[list[int]]:
    return [b[ROW].tolist() for b in storage_loader.DataLoader(the_config, **how)]


# The rows


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 300])
def test_the_same_rows_in_the_same_order(
    saved: DataConfig, cuda: FakeCuda, shuffle: Any, batch_size: int
) -> None:
    how: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "seed": 3, "epochs": 2}
    if batch_size == 1:
        how["subset"] = slice(0, 30)
    loader = DataLoader(saved, device="cuda:0", **how)
    assert train(cuda, loader) == expected(saved, **how)
    assert threading.get_ident() not in cuda.waiting, "the consumer's thread waited for the device"
    assert cuda.on_device == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_timing(saved: DataConfig, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whoever is slow: the copies, the model, or the loader."""
    cuda = patch(monkeypatch, [0.0, 5e-4, 4e-3, 1e-3][seed])
    rest = itertools.cycle([0, 0, seed * 1e-3])
    loader = DataLoader(saved, device="cuda", batch_size=8, shuffle="global", seed=seed, epochs=2)
    found: list[list[int]] = []
    held: list[dict[str, torch.Tensor]] = []
    for number, batch in enumerate(loader):
        memory = arrays(batch)
        cuda.run(lambda memory=memory: found.append(numbers_of(memory, ROWS)))
        if number % 3 == seed % 3:
            held.append(batch)
        time.sleep(next(rest))
        del batch
    cuda.default.finish()
    assert found == expected(saved, batch_size=8, shuffle="global", seed=seed, epochs=2)
    places = [t.data_ptr() for b in held for t in b.values()]
    assert len(set(places)) == len(places)
    for number, batch in enumerate(held):  # as they were, whatever came after them
        assert numbers_of(arrays(batch), ROWS) == found[seed % 3 + number * 3]
    cuda.close()


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(
    memory: dict[str, str], cuda: FakeCuda, dtype: str, shape: tuple[int, ...]
) -> None:
    attributes = [Attribute("values", dtype, shape)]
    the_config = DataConfig("dtypes", attributes, **memory)
    save(the_config, make(range(10), attributes))
    for number, batch in enumerate(DataLoader(the_config, batch_size=4, device="cuda:1")):
        cuda.default.finish()
        assert batch["values"].dtype is getattr(torch, dtype)
        assert_rows(arrays(batch), range(10)[number * 4 : number * 4 + 4], attributes)


def test_single_rows_tuples_and_extras(saved: DataConfig, cuda: FakeCuda) -> None:
    single = DataLoader(saved, batch_size=None, device="cuda:0", subset=slice(40))
    for number, row in enumerate(single):
        cuda.default.finish()
        assert (row[ROW].shape, row["image"].shape) == ((), (3, 5))
        batch = {name: tensor[None] for name, tensor in row.items()}
        assert numbers_of(arrays(batch), ROWS) == [number]
    assert number == 39
    extras = DataLoader(
        saved, attributes=["pixels"], extras=("row", "valid"), as_tuple=True, device="cuda:0",
        batch_size=50, last_batch="pad",
    )  # fmt: skip
    rows: list[int] = []
    for pixels, numbers, valid in extras:
        cuda.default.finish()
        assert len(pixels) == 50
        kept = pixels[valid].numpy()
        assert kept.tobytes() == make(numbers[valid].tolist(), [ROWS[3]])["pixels"].tobytes()
        assert not pixels[~valid].any()
        rows += numbers[valid].tolist()
    assert rows == list(range(COUNT))


def test_more_ranks_and_an_empty_dataset(
    saved: DataConfig, cuda: FakeCuda, memory: dict[str, str]
) -> None:
    seen = [
        n
        for rank in range(2)
        for part in train(
            cuda, DataLoader(saved, rank=rank, world_size=2, batch_size=9, device="cuda:0")
        )
        for n in part
    ]
    assert sorted(set(seen)) == list(range(COUNT))
    empty = config(memory, attributes=ROWS)
    with DataSaver(empty) as saver:
        saver(make(range(1), ROWS))
    with DataSaver(empty, refresh=True):
        pass
    assert list(DataLoader(empty, device="cuda:0")) == []


# Transforms and workers


def nested(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    time.sleep(float(batch[ROW].sum() % 3) / 1000)
    return {
        "all": [batch, (batch[ROW] * 2, "text")],
        "last": batch["tile"].view(-1, 4, 4, 32).to(memory_format=torch.channels_last),
        "spread": batch[ROW][:, None].expand(-1, 3),
        "none": None,
        "grad": torch.ones(3, requires_grad=True),
    }


def test_whatever_a_transform_gives(saved: DataConfig, cuda: FakeCuda) -> None:
    how: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 1}
    loader = DataLoader(saved, device="cuda:0", transform=nested, **how)
    for result, rows in zip(loader, expected(saved, **how), strict=True):
        cuda.default.finish()
        batch, (doubled, text) = result["all"]
        assert numbers_of(arrays(batch), ROWS) == rows
        assert (doubled.tolist(), text, result["none"]) == ([2 * n for n in rows], "text", None)
        last = result["last"]
        assert last.is_contiguous(memory_format=torch.channels_last)
        bits = batch["tile"].view(-1, 4, 4, 32).view(torch.int32)  # there are NaNs
        assert torch.equal(last.view(torch.int32), bits)
        assert result["spread"].tolist() == [[n] * 3 for n in rows]
        assert result["grad"].tolist() == [1, 1, 1]
    assert threading.get_ident() not in cuda.waiting


def test_a_transform_may_keep_what_it_gets(saved: DataConfig, cuda: FakeCuda) -> None:
    kept: list[dict[str, torch.Tensor]] = []

    def keep(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        kept.append(batch)
        return batch[ROW]

    for rows in DataLoader(saved, device="cuda:0", batch_size=20, transform=keep):
        assert rows.shape[0] in (20, 3)
    cuda.default.finish()
    assert sorted(n for b in kept for n in numbers_of(arrays(b), ROWS)) == list(range(COUNT))


@pytest.mark.usefixtures("torch_once")
def test_from_worker_processes(saved: DataConfig, cuda: FakeCuda) -> None:
    loader = DataLoader(
        saved, device="cuda:0", batch_size=16, num_workers=1, transform=transforms.keep
    )
    assert train(cuda, loader) == expected(saved, batch_size=16)
    assert threading.get_ident() not in cuda.waiting
    assert loader.stats.rows == COUNT
    del loader


def test_an_error_of_the_transform_rises_at_its_place(saved: DataConfig, cuda: FakeCuda) -> None:
    def fail(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        assert 70 not in batch[ROW], "seventy"
        return batch

    seen: list[int] = []
    with pytest.raises(TransformError, match="seventy"):
        for batch in DataLoader(saved, device="cuda:0", batch_size=20, transform=fail):
            cuda.default.finish()
            seen += batch[ROW].tolist()
    assert seen == list(range(60))


# How far ahead, and how it ends


def test_few_batches_are_ahead(saved: DataConfig, cuda: FakeCuda) -> None:
    iterator = iter(DataLoader(saved, device="cuda:0", batch_size=5, subset=slice(0, 200)))
    for received in range(1, 20):
        batch = next(iterator)
        until(lambda n=received: cuda.on_device >= (n > 0) * 3 * len(ROWS))
        time.sleep(0.01)
        assert cuda.on_device <= 4 * len(ROWS)  # what is received, two ready, one being made
        assert len(cuda.pinned) <= SLOTS
        del batch
    iterator.close()  # type: ignore[attr-defined]
    assert (cuda.on_device, len(cuda.pinned)) == (0, 0)


def test_a_device_that_falls_behind_is_waited_for(saved: DataConfig, cuda: FakeCuda) -> None:
    """Else all of the epoch would come to lie on it."""
    loader = DataLoader(saved, device="cuda:0", batch_size=1)
    cuda.default.gate.clear()
    received = 0

    def consume() -> None:
        nonlocal received
        for batch in loader:
            memory = arrays(batch)
            cuda.default.work(lambda memory=memory: numbers_of(memory, ROWS))
            received += 1
            del batch

    thread = threading.Thread(target=consume)
    thread.start()
    until(lambda: received > LAG)
    time.sleep(0.2)
    assert received <= LAG + 6
    assert cuda.blocks <= (received + 3) * len(ROWS)
    cuda.default.gate.set()
    thread.join()
    assert received == COUNT


@pytest.mark.parametrize("how", ["close", "exception", "interrupt", "dropped", "never begun"])
@pytest.mark.parametrize("transform", [None, dict])
def test_leaving_ends_the_thread_and_frees_pinned_memory(
    saved: DataConfig, cuda: FakeCuda, how: str, transform: Any
) -> None:
    loader = DataLoader(saved, device="cuda:0", batch_size=5, transform=transform)
    iterator: Any = iter(loader)
    if how != "never begun":
        next(iterator)
        assert running("ahead")
        assert len(cuda.pinned) > 0
    if how == "close":
        iterator.close()
    elif how in ("exception", "interrupt"):
        kind = KeyboardInterrupt if how == "interrupt" else ZeroDivisionError
        with pytest.raises(kind):
            iterator.throw(kind)
    del iterator
    assert running("ahead", "fetch", "plan") == []
    for stream in cuda.streams:
        stream.finish()
    assert (cuda.on_device, len(cuda.pinned)) == (0, 0)
    assert sum(len(rows) for rows in train(cuda, loader)) == COUNT


def test_the_state_counts_what_was_received(saved: DataConfig, cuda: FakeCuda) -> None:
    loader = DataLoader(saved, device="cuda:0", batch_size=10, shuffle=True)
    iterator: Any = iter(loader)
    for received in range(1, 5):
        next(iterator)
        until(lambda n=received: cuda.on_device >= 3 * len(ROWS))
        assert loader.state_dict()["rows"] == 10 * received
    rest = DataLoader(saved, device="cuda:0", batch_size=25, shuffle=True)
    rest.load_state_dict(loader.state_dict())
    iterator.close()
    plain = expected(saved, batch_size=10, shuffle=True)
    assert [n for b in train(cuda, rest) for n in b] == [n for b in plain[4:] for n in b]


def test_two_iterations_at_once_and_pickling(saved: DataConfig, cuda: FakeCuda) -> None:
    loader = DataLoader(saved, device="cuda:0", batch_size=10, epochs=1)
    for one, two in zip(loader, loader, strict=True):
        cuda.default.finish()
        assert numbers_of(arrays(one), ROWS) == numbers_of(arrays(two), ROWS)
        assert {t.data_ptr() for t in one.values()}.isdisjoint(t.data_ptr() for t in two.values())
    copy = pickle.loads(pickle.dumps(loader))
    assert train(cuda, copy) == expected(saved, batch_size=10)


def test_stats_say_what_was_waited_for(saved: DataConfig, cuda: FakeCuda) -> None:
    loader = DataLoader(saved, device="cuda:0", batch_size=10)
    train(cuda, loader)
    stats = loader.stats
    assert (stats.rows, stats.batches) == (COUNT, 21)
    assert stats.wait_gather > 0  # the copies are slower than anything else
    assert stats.seconds == pytest.approx(stats.wait_seconds + stats.user_seconds)


# The stand-in finds what it is for


def spoil_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.fake_cuda.Stream.wait_event", lambda stream, event: None)


def spoil_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)


def spoil_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Slot.begin

    def at_once(slot: Slot, nbytes: int) -> None:
        slot.event = None
        begin(slot, nbytes)

    monkeypatch.setattr(Slot, "begin", at_once)


@pytest.mark.parametrize("spoil", [spoil_wait, spoil_record, spoil_slots])
def test_each_rule_is_needed(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, spoil: Any
) -> None:
    spoil(monkeypatch)
    cuda.delay = 4e-3
    cuda.default.delay = 4e-2 if spoil is spoil_record else 1e-6  # who is slow
    with pytest.raises(AssertionError):
        train(cuda, DataLoader(saved, device="cuda:0", batch_size=8, shuffle="global"))
    cuda.default.finish()
    cuda.failures.clear()


# Slots


def plain(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


def test_a_slot_grows_to_the_largest_batch() -> None:
    sizes: list[int] = []

    def pinned(nbytes: int) -> torch.Tensor:
        sizes.append(nbytes)
        return plain(nbytes)

    slot = Slot(pinned)
    slot.begin(0)
    wanted = (100, 0, 3, 1000)
    parts = [slot.empty(n) for n in wanted]
    assert [len(part) for part in parts] == [100, 0, 3, 1000]
    assert room_for(wanted) == 128 + 0 + 64 + 1024
    for part, value in zip(parts, range(4), strict=True):
        part[...] = value
    assert [set(part.tolist()) for part in parts] == [{0}, set(), {2}, {3}]
    before = len(sizes)
    for _ in range(3):
        slot.begin(room_for(wanted))
        for n in wanted:
            slot.empty(n)
    assert sizes[before:] == [128 + 64 + 1024]


def test_what_is_in_the_slot_is_not_copied_again() -> None:
    slot = Slot(plain)
    slot.begin(0)
    inside = torch.from_numpy(slot.empty(96)).view(torch.float32).view(4, 6)
    assert slot.staged(inside[1:3]).data_ptr() == inside[1:3].data_ptr()
    inside.copy_(torch.arange(24.0).view(4, 6))
    turned = slot.staged(inside.T)
    assert torch.equal(turned, inside.T)
    assert turned.data_ptr() != inside.data_ptr()
    elsewhere = torch.arange(5)
    assert slot.staged(elsewhere).data_ptr() != elsewhere.data_ptr()
    assert slot.staged(torch.tensor(3.0)).item() == 3.0


@settings(max_examples=60)
@given(
    nbytes=st.sampled_from([1024, 1025, 1026, 1028, 1032, 3000, 49152, 2**20 + 16]),
    shift=st.sampled_from([0, 1, 2, 4, 8, 16]),
    rows=st.lists(st.integers(0, 9), max_size=20),
)
def test_rows_are_filled_as_by_numpy(nbytes: int, shift: int, rows: list[int]) -> None:
    memory = np.random.default_rng(nbytes).integers(0, 256, 12 * nbytes + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64 + shift
    first, second = (memory[start + at * nbytes :] for at in (0, 6))
    arrays = [a[: 5 * nbytes].view(f"V{nbytes}") for a in (first, second)]
    parts = Parts(Attribute("x", "uint8", (nbytes,)).regions[0], np.array([0, 5]), arrays)
    chosen = np.array(rows, np.int64)
    places = parts.places(chosen)
    slot = Slot(plain)
    slot.begin(0)
    out = slot.empty(len(rows) * nbytes).reshape(len(rows), nbytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_WORTH", 1)
        pace = gather.Pace()
        pace.copied_alone(nbytes, 1, math.inf)
        patch.setattr(gather, "_pace", pace)
        gather.select_rows(parts, chosen, places, out)
    whole = np.concatenate(arrays)
    assert out.tobytes() == whole[chosen].tobytes()


# Which device


def test_without_cuda_the_constructor_says_so(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:0", torch.device("cuda", 1)):
        with pytest.raises(ConfigError, match=r"^device .*cuda.*: PyTorch .* no CUDA device here"):
            DataLoader(saved, device=device)


def test_a_wrong_device_is_named(saved: DataConfig, cuda: FakeCuda) -> None:
    with pytest.raises(ConfigError, match=r"device 'cuda:2': there are 2, cuda:0 to cuda:1"):
        DataLoader(saved, device="cuda:2")
    with pytest.raises(ConfigError, match="device 'gpu': "):
        DataLoader(saved, device="gpu")
    with pytest.raises(ConfigError, match=r"device 'mps': 'cpu' or a CUDA device"):
        DataLoader(saved, device="mps")
    with pytest.raises(UnknownNameError, match=r"'devise'; did you mean 'device'"):
        DataLoader(saved, devise="cuda")
    with pytest.raises(UnknownNameError, match=r"'batchsize'; did you mean 'batch_size'"):
        DataLoader(saved, batchsize=1)
    assert Cuda(torch.device("cuda")).device == torch.device("cuda:1")  # the current one


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_in_the_hosts_memory_there_is_no_copy(saved: DataConfig, device: Any) -> None:
    loader = DataLoader(saved, device=device, batch_size=10)
    batches = list(loader)
    assert [numbers_of(arrays(b), ROWS) for b in batches] == expected(saved, batch_size=10)
    assert running("ahead") == []
    for batch in batches:
        batch["pixels"].zero_()
    assert loader.stats.rows == COUNT


# Where there is a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("how", [{}, {"transform": dict}], ids=str)
def test_on_a_gpu(saved: DataConfig, tmp_path: Path, how: dict[str, Any]) -> None:
    loader = DataLoader(saved, device="cuda", batch_size=8, shuffle=True, epochs=3, **how)
    seen = []
    for number, batch in enumerate(loader):
        assert {t.device.type for t in batch.values()} == {"cuda"}
        if number % 3 == 0:
            torch.cuda._sleep(10_000_000)
        seen.append({name: tensor.clone() for name, tensor in batch.items()})
        del batch
    found = [numbers_of(arrays({k: v.cpu() for k, v in b.items()}), ROWS) for b in seen]
    assert found == expected(saved, batch_size=8, shuffle=True, epochs=3)
