"""`storage_loader.jax`: the same rows as `jax.Array`s, on one device, several, or of processes."""

from __future__ import annotations

import gc
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, save
from storage_loader.errors import ConfigError, LoaderError, TransformError, UnknownNameError
from storage_loader.loader.fill.memory import ALIGNMENT
from storage_loader.schema import DTYPES
from tests.support.examples import EXAMPLES, run
from tests.support.own_process import import_without, in_processes
from tests.support.rows import ATTRIBUTES, ROW, assert_rows, config, make, numbers_in
from tests.support.waiting import until

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from storage_loader.jax import DataLoader, alike  # noqa: E402
from storage_loader.jax.placing import Placing  # noqa: E402
from storage_loader.loader.iteration import _taken_ahead  # noqa: E402

COUNT = 103
NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


def fill(storage: dict[str, str], rows: int = COUNT, name: str = "rows") -> DataConfig:
    the_config = config(storage, name)
    save(the_config, make(range(rows)))
    return the_config


def as_numpy(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    """With the number as it was stored; the tests do not enable 64 bits."""
    arrays = {name: np.asarray(array) for name, array in batch.items()}
    return {**arrays, ROW: arrays[ROW].astype(np.int64)}


# Arrays


@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_with_64_bits(
    memory: dict[str, str], dtype: str, shape: tuple[int, ...]
) -> None:
    attributes = [Attribute("values", dtype, shape)]
    the_config = DataConfig("dtypes", attributes, **memory)
    save(the_config, make(range(10), attributes))
    with jax.enable_x64(True):
        [batch] = DataLoader(the_config, batch_size=20)
        assert isinstance(batch["values"], jax.Array)
        assert batch["values"].dtype == DTYPES[dtype]
        assert_rows({"values": np.asarray(batch["values"])}, range(10), attributes)
        rows = [row["values"] for row in DataLoader(the_config, batch_size=None)]
        assert [(row.dtype, row.shape) for row in rows] == [(DTYPES[dtype], shape)] * 10
        assert_rows({"values": np.stack([np.asarray(row) for row in rows])}, range(10), attributes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_without_64_bits(memory: dict[str, str], dtype: str) -> None:
    attributes = [Attribute("values", dtype, (2,))]
    the_config = DataConfig("dtypes", attributes, **memory)
    values = np.arange(20).reshape(10, 2).astype(DTYPES[dtype])
    save(the_config, {"values": values})
    [batch] = DataLoader(the_config, batch_size=20)
    expected = NARROW.get(dtype, dtype)
    assert batch["values"].dtype == DTYPES[expected]
    assert np.asarray(batch["values"]).tobytes() == values.astype(DTYPES[expected]).tobytes()


@pytest.mark.parametrize(
    ("dtype", "fitting", "value"),
    [
        ("int64", [2**31 - 1, -(2**31)], 2**31),
        ("int64", [0, 1], -(2**31) - 1),
        ("uint64", [2**32 - 1, 0], 2**32),
    ],
)
def test_an_integer_that_does_not_fit_names_row_and_remedies(
    memory: dict[str, str], dtype: str, fitting: list[int], value: int
) -> None:
    attributes = [Attribute(ROW, "int32"), Attribute("id", dtype, (2,))]
    the_config = DataConfig("wide", attributes, **memory)
    ids = np.tile(np.array(fitting, dtype), (30, 1))
    save(the_config, {ROW: np.arange(30), "id": ids})
    for batch in DataLoader(the_config, batch_size=7):
        assert batch["id"].dtype == NARROW[dtype]
        assert np.asarray(batch["id"]).tolist() == [fitting] * len(batch[ROW])
    ids[17, 1] = value
    save(the_config, {ROW: np.arange(30), "id": ids}, refresh=True)
    given = []
    loader = DataLoader(the_config, batch_size=7, shuffle="global", seed=2)
    with pytest.raises(LoaderError) as caught:
        for batch in loader:
            given += np.asarray(batch[ROW]).tolist()
    plain = [row for batch in DataLoader(
        the_config, batch_size=7, shuffle="global", seed=2, attributes=[ROW]
    ) for row in np.asarray(batch[ROW]).tolist()]  # fmt: skip
    assert given == plain[: plain.index(17) // 7 * 7]  # all batches before that one
    assert loader.state_dict()["rows"] == len(given)
    text = str(caught.value)
    assert f"batch['id'] of dataset 'wide' has {value} in row 17, which {NARROW[dtype]}" in text
    assert "jax.config.update('jax_enable_x64', True)" in text
    assert "attributes=" in text
    assert "cast it narrower" in text
    with pytest.raises(LoaderError, match="in row 17"):
        list(DataLoader(the_config, batch_size=None))
    with pytest.raises(LoaderError, match=r"batch\[1\]"):
        list(DataLoader(the_config, batch_size=7, as_tuple=True))
    with jax.enable_x64(True):
        wide = np.concatenate([np.asarray(b["id"]) for b in DataLoader(the_config, batch_size=7)])
    assert wide.tobytes() == ids.tobytes()
    cast = DataLoader(the_config, batch_size=7, transform=lambda b: {ROW: b[ROW], "id": b["id"][0]})
    with pytest.raises(LoaderError, match=f"has {value}"):
        list(DataLoader(the_config, batch_size=30, transform=lambda b: {"ids": b["id"][17:]}))
    assert sum(len(b[ROW]) for b in cast) == 30


def test_extras_are_arrays_too(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "float32")], **memory)
    save(the_config, {"x": np.arange(5)})
    batches = list(DataLoader(the_config, batch_size=4, last_batch="pad", extras=("row", "valid")))
    assert [b["row"].tolist() for b in batches] == [[0, 1, 2, 3], [4, -1, -1, -1]]
    assert [b["valid"].tolist() for b in batches] == [[True] * 4, [True] + [False] * 3]
    assert {(b["row"].dtype.name, b["valid"].dtype.name) for b in batches} == {("int32", "bool")}


@pytest.mark.parametrize("length", [3000, 1000], ids=["large rows", "small rows"])
def test_arrays_lie_on_the_batchs_own_memory(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    attributes = [Attribute("pixels", "uint8", (length,))]
    the_config = DataConfig("rows", attributes, **memory)
    save(the_config, make(range(210), attributes))
    gathered: list[dict[str, Any]] = []
    finish = DataLoader._finish

    def seen(self: DataLoader, arrays: Any, rows: Any, place: Any, **how: Any) -> Any:
        gathered.append({n: a.__array_interface__["data"][0] for n, a in arrays.items()})
        return finish(self, arrays, rows, place, **how)

    monkeypatch.setattr(DataLoader, "_finish", seen)
    for number, batch in enumerate(DataLoader(the_config, batch_size=70)):
        for name, array in batch.items():
            assert array.unsafe_buffer_pointer() == gathered[number][name]
            assert array.unsafe_buffer_pointer() % ALIGNMENT == 0
    assert len(gathered) == 3


def test_batches_that_are_kept_do_not_change(memory: dict[str, str]) -> None:
    attributes = (*ATTRIBUTES, Attribute("pixels", "uint8", (3000,)))
    the_config = config(memory, attributes=attributes)
    save(the_config, make(range(600), attributes))
    kept = [b for _ in range(2) for b in DataLoader(the_config, batch_size=30, shuffle="global")]
    once = numbers_in(map(as_numpy, kept[:20]), attributes)
    assert sorted(once) == sorted(numbers_in(map(as_numpy, kept[20:]), attributes))
    assert sorted(once) == list(range(600))


def test_memory_lives_as_long_as_its_array(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "float32", (2**14,))], **memory)
    save(the_config, {"x": np.ones((8, 2**14))})
    loader = DataLoader(the_config, batch_size=8)
    [batch] = loader
    assert loader._memory.num_free == 0  # nothing came back
    total = jax.numpy.sum(batch.pop("x")).item()
    assert total == 2**17
    # JAX lets go of what is not used any more when it next has the occasion.
    until(lambda: gc.collect() is not None and loader._memory.num_free)
    assert loader._memory.num_free == 1


# Placed as the first of their kind


def placed(the_config: DataConfig, **settings: Any) -> list[dict[str, Any]]:
    return list(DataLoader(the_config, batch_size=10, shuffle=True, **settings))


def assert_same_arrays(batches: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for batch, other in zip(batches, expected, strict=True):
        for name, array in batch.items():
            assert type(array) is type(other[name])
            assert array.aval == other[name].aval
            assert array.sharding == other[name].sharding
            assert array.committed == other[name].committed
            assert np.asarray(array).tobytes() == np.asarray(other[name]).tobytes()


def refused(*_: Any) -> None:
    raise TypeError("other arguments")


def of_another_kind(aval: Any, sharding: Any, arrays: Any, devices: Any, committed: bool) -> Any:
    return jax.device_put(np.zeros(arrays[0].shape, np.int8), devices[0])


def of_another_value(aval: Any, sharding: Any, arrays: Any, devices: Any, committed: bool) -> Any:
    return alike.xla_client.batched_device_put(
        aval, sharding, [np.zeros_like(arrays[0])], devices, committed
    )


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("step", [None, refused, of_another_kind, of_another_value])
def test_without_the_step_that_we_know_jax_places_all(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, step: Any, sharded: bool
) -> None:
    the_config = fill(memory)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharded else None
    known = placed(the_config, sharding=one)
    assert numbers_in(map(as_numpy, known)) != list(range(COUNT))
    assert sorted(numbers_in(map(as_numpy, known))) == list(range(COUNT))
    monkeypatch.setattr(alike, "_last_step", step)
    assert_same_arrays(placed(the_config, sharding=one), known)


@pytest.mark.parametrize("sharded", [False, True])
def test_jax_is_asked_once_for_each_shape_and_dtype(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    asked: list[tuple[Any, ...]] = []
    by_jax = Placing._placed_by_jax

    def counted(self: Placing, array: np.ndarray) -> Any:
        asked.append((array.shape, array.dtype))
        return by_jax(self, array)

    monkeypatch.setattr(Placing, "_placed_by_jax", counted)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharded else None
    loader = DataLoader(fill(memory), batch_size=10, sharding=one)
    for _ in range(2):
        assert numbers_in(map(as_numpy, loader)) == list(range(COUNT))
    # The narrowed number's and two more attributes', in whole batches and the last one.
    assert len(asked) == len(set(asked)) == 2 * len(ATTRIBUTES)


def test_a_loader_that_was_used_can_be_pickled(memory: dict[str, str]) -> None:
    loader = DataLoader(fill(memory), batch_size=10)
    for each in (loader, pickle.loads(pickle.dumps(loader))):
        assert numbers_in(map(as_numpy, each)) == list(range(COUNT))


def test_shapes_without_end_are_not_all_remembered(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [(ROW, "int32")], **memory)
    save(the_config, {ROW: np.arange(200)})
    sizes = iter(range(1, 201))
    loader = DataLoader(
        the_config, batch_size=1, transform=lambda b: {ROW: np.repeat(b[ROW], next(sizes))}
    )
    assert [batch[ROW].tolist() for batch in loader] == [[i] * (i + 1) for i in range(200)]
    placing = Placing(None)
    for size in range(1, 201):
        assert placing.place({ROW: np.zeros(size, np.float32)})[ROW].shape == (size,)
    assert placing._one is not None
    assert 0 < len(placing._one._kinds) <= 64


def test_settings_that_change_between_batches_count(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "float64"), ("n", "int64")], **memory)
    save(the_config, {"x": np.arange(8) / 3, "n": np.arange(8)})
    loader = DataLoader(the_config, batch_size=2)
    batches = iter(loader)
    dtypes = []
    for wide in (False, True, True, False):
        with jax.enable_x64(wide):
            batch = next(batches)
        dtypes.append([batch[name].dtype.name for name in ("x", "n")])
    narrow = ["float32", "int32"]
    assert dtypes == [narrow, ["float64", "int64"], ["float64", "int64"], narrow]


def test_nothing_is_ahead_where_a_batch_lies_on_its_device(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    place = Placing.place

    def counted(self: Placing, batch: Any) -> Any:
        made.append(len(batch[ROW]))
        return place(self, batch)

    monkeypatch.setattr(Placing, "place", counted)
    the_config = fill(memory)
    counts = []
    for is_at_once in (True, False):
        monkeypatch.setattr(Placing, "is_at_once", is_at_once)
        made.clear()
        batches = iter(DataLoader(the_config, batch_size=10))
        counts.append([len(made) for _ in zip(range(3), batches, strict=False)])
    assert counts == [[1, 2, 3], [1, 3, 4]]
    monkeypatch.undo()
    one = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    assert Placing(one).is_at_once
    assert Placing(None).is_at_once == (jax.devices()[0].platform == "cpu")
    with jax.default_device("cpu"):
        assert Placing(None).is_at_once


# The transform


def test_transform_gets_numpy_and_its_result_is_placed(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    kinds = set()

    def pairs(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        kinds.update(map(type, batch.values()))
        return {"pair": (batch[ROW], {"image": batch["image"] / np.float32(255)}), "text": "kept"}

    [batch] = DataLoader(the_config, batch_size=COUNT, transform=pairs)
    assert kinds == {np.ndarray}
    row, inner = batch["pair"]
    assert row.tolist() == list(range(COUNT))
    assert isinstance(inner["image"], jax.Array)
    assert inner["image"].dtype == np.float32
    assert batch["text"] == "kept"
    [(image, row, weight)] = DataLoader(the_config, batch_size=COUNT, as_tuple=True)
    assert (image.shape, row.shape, weight.shape) == ((COUNT, 3, 5), (COUNT,), (COUNT, 2))


def test_errors_come_as_they_are(memory: dict[str, str]) -> None:
    the_config = fill(memory)

    def fail_at_70(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if 70 in batch[ROW]:
            raise ZeroDivisionError("seventy")
        return batch

    given = []
    with pytest.raises(TransformError, match="ZeroDivisionError: seventy"):
        for batch in DataLoader(the_config, batch_size=10, transform=fail_at_70):
            given += batch[ROW].tolist()
    assert given == list(range(70))


def doubled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    assert all(type(array) is np.ndarray for array in batch.values())
    return {**batch, "weight": batch["weight"] * 2}


@pytest.mark.usefixtures("jax_once")
def test_worker_processes_give_numpy_arrays_that_are_placed_here(folder: dict[str, str]) -> None:
    the_config = DataConfig("rows", [(ROW, "int64"), ("weight", "float32", (2,))], **folder)
    save(the_config, {ROW: np.arange(50), "weight": np.arange(100).reshape(50, 2)})
    loader = DataLoader(the_config, batch_size=20, transform=doubled, num_workers=1)
    batches = list(loader)
    assert all(isinstance(array, jax.Array) for batch in batches for array in batch.values())
    assert [row for batch in batches for row in batch[ROW].tolist()] == list(range(50))
    weights = np.concatenate([np.asarray(batch["weight"]) for batch in batches])
    assert weights.tolist() == (2 * np.arange(100).reshape(50, 2)).tolist()
    # A sharding stays here: its devices are of this process.
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    sharded = DataLoader(the_config, batch_size=20, transform=doubled, num_workers=1, sharding=one)
    for batch, expected in zip(sharded, batches, strict=True):
        assert batch["weight"].sharding == one
        assert batch["weight"].tolist() == expected["weight"].tolist()
    with pytest.raises(LoaderError, match="make the loader in this one"):
        list(pickle.loads(pickle.dumps(sharded)))
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 3


# Ahead


def test_items_are_taken_one_ahead_and_the_first_at_once() -> None:
    taken: list[int] = []

    def items(stop: int, error: Exception | None = None) -> Iterator[int]:
        for number in range(stop):
            taken.append(number)
            yield number
        if error is not None:
            raise error

    seen = [(number, len(taken)) for number in _taken_ahead(items(5))]
    assert seen == [(0, 1), (1, 3), (2, 4), (3, 5), (4, 5)]
    for stop in (0, 1, 2):
        assert list(_taken_ahead(items(stop))) == list(range(stop))
        given = []
        with pytest.raises(OSError, match="broken"):
            for number in _taken_ahead(items(stop, OSError("broken"))):
                given.append(number)  # noqa: PERF402
        assert given == list(range(stop))


def test_the_state_is_of_what_was_received_not_of_what_was_placed(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    loader = DataLoader(the_config, batch_size=10, shuffle=True)
    expected = [row for batch in loader for row in batch[ROW].tolist()]
    loader.set_epoch(0)
    given = iter(loader)
    for _ in range(4):
        next(given)
    state = loader.state_dict()
    given.close()
    assert state["rows"] == 40
    resumed = DataLoader(the_config, batch_size=7, shuffle=True)
    resumed.load_state_dict(state)
    assert [row for batch in resumed for row in batch[ROW].tolist()] == expected[40:]


# Settings


def test_wrong_settings_are_named(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    with pytest.raises(UnknownNameError, match=r"unknown DataLoader keyword 'shard.*'sharding'"):
        DataLoader(the_config, shard=None)
    with pytest.raises(UnknownNameError, match="did you mean 'batch_size'"):
        DataLoader(the_config, batchsize=1)
    with pytest.raises(ConfigError, match=r"sharding 'data': a jax\.sharding\.Sharding"):
        DataLoader(the_config, sharding="data")
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ConfigError, match="give batch_size"):
        DataLoader(the_config, sharding=one, batch_size=None)
    assert numbers_in(map(as_numpy, DataLoader(the_config, sharding=one))) == list(range(COUNT))


@pytest.mark.parametrize("sharded", [False, True])
def test_batches_come_where_the_user_forbids_implicit_transfers(
    memory: dict[str, str], sharded: bool
) -> None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharded else None
    loader = DataLoader(fill(memory), batch_size=10, sharding=one)
    with jax.transfer_guard_host_to_device("disallow"):
        batches = list(loader)
    assert numbers_in(map(as_numpy, batches)) == list(range(COUNT))
    assert {array.committed for batch in batches for array in batch.values()} == {sharded}


def test_a_scalar_of_transform_is_placed_by_a_sharding(memory: dict[str, str]) -> None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    loader = DataLoader(
        fill(memory),
        batch_size=10,
        sharding=one,
        transform=lambda batch: {"sum": batch[ROW].sum(), "mean": np.array(0.5), ROW: batch[ROW]},
    )
    for batch in loader:
        assert int(batch["sum"]) == int(np.asarray(batch[ROW]).sum())
        assert batch["mean"].shape == batch["sum"].shape == ()
        assert batch["mean"].sharding == batch["sum"].sharding == one


def test_the_example_learns_digits() -> None:
    run(example=EXAMPLES / "digits_jax.py")


def test_without_jax_the_import_says_what_to_install() -> None:
    assert import_without("jax", "storage_loader.jax") == (
        "storage_loader.jax needs JAX: pip install 'storage-loader[jax]'"
    )


# Several devices


def test_batches_over_a_mesh_of_eight_devices(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    in_processes(eight_devices, (the_config,), **DEVICES)


def eight_devices(the_config: DataConfig) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    plain = [as_numpy(b) for b in DataLoader(the_config, batch_size=12, last_batch="drop")]
    loader = DataLoader(the_config, batch_size=12, last_batch="drop", sharding=sharding)
    for batch, expected in zip(loader, plain, strict=True):
        for name, array in batch.items():
            assert array.sharding == sharding
            for shard in array.addressable_shards:
                start = 3 * (shard.device.id // 2)
                assert shard.data.shape == (3, *array.shape[1:])
                assert np.array_equal(shard.data, expected[name][start : start + 3])
        assert as_numpy(batch)[ROW].tolist() == expected[ROW].tolist()
        image = jax.jit(lambda x: x.sum(axis=0, dtype=np.uint32))(batch["image"])
        assert np.array_equal(image, expected["image"].sum(axis=0, dtype=np.uint32))
    both = NamedSharding(mesh, PartitionSpec(("data", "model")))
    last = list(DataLoader(the_config, batch_size=16, last_batch="pad", sharding=both))[-1]
    assert as_numpy(last)[ROW].tolist() == [*range(96, 103)] + [0] * 9
    copies = NamedSharding(mesh, PartitionSpec(None, "model"))
    loader = DataLoader(the_config, batch_size=5, sharding=copies, attributes=["weight"])
    assert [b["weight"].shape for b in loader][-1] == (3, 2)
    some = DataLoader(the_config, batch_size=20, sharding=sharding, subset=slice(92))
    assert numbers_in(map(as_numpy, some)) == list(range(92))
    for size, shards, name in ((10, sharding, "'data'"), (12, both, "('data', 'model')")):
        with pytest.raises(ConfigError, match="cannot split") as caught:
            next(iter(DataLoader(the_config, batch_size=size, sharding=shards)))
        assert f"batch_size {size} " in str(caught.value)
        assert f"mesh axis {name}" in str(caught.value)
    for use in (len, lambda loader: next(iter(loader))):
        with pytest.raises(ConfigError, match="last_batch='drop', 'pad' or 'wrap'") as caught:
            use(DataLoader(the_config, batch_size=12, sharding=sharding))
        assert "batch_size 12" in str(caught.value)
        assert "only 7 rows: mesh axis 'data'" in str(caught.value)


# Several processes


def test_two_processes_read_their_own_rows_of_one_array(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    fill(folder, name="changing")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = {**DEVICES, "XLA_FLAGS": DEVICES["XLA_FLAGS"].replace("8", "4")}
    arguments = [(the_config, address, rank) for rank in range(2)]
    in_processes(of_two_processes, *arguments, **flags)


def of_two_processes(the_config: DataConfig, address: str, rank: int) -> None:
    from jax.experimental import multihost_utils

    jax.distributed.initialize(address, num_processes=2, process_id=rank)
    assert (jax.process_count(), len(jax.devices()), len(jax.local_devices())) == (2, 8, 4)
    # Each by itself: ranks are processes.
    loader = DataLoader(the_config, batch_size=10, shuffle="global", last_batch="drop")
    mine = numbers_in(map(as_numpy, loader))
    both = np.asarray(multihost_utils.process_allgather(np.array(mine, np.int32))).reshape(-1)
    assert len(loader) == 5
    assert len(set(both.tolist())) == len(both) == 100
    # One array over both: this process's shards are the rows it read.
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    for shuffle in (False, "global"):
        settings = {"batch_size": 12, "shuffle": shuffle, "last_batch": "drop"}
        loader = DataLoader(the_config, sharding=sharding, **settings)
        alone = DataLoader(the_config, rank=rank, world_size=2, **settings)
        with jax.transfer_guard_host_to_device("disallow"):
            batches = list(loader)
        for batch, own in zip(batches, alone, strict=True):
            assert batch["image"].shape == (24, 3, 5)
            assert batch["image"].sharding == sharding
            for name, array in batch.items():
                shards = sorted(array.addressable_shards, key=lambda s: s.index[0].start)
                assert [s.index[0].start for s in shards] == [12 * rank + 3 * i for i in range(4)]
                mine = np.concatenate([np.asarray(s.data) for s in shards])
                assert np.array_equal(mine, own[name]), name
    # Devices of both processes that hold the same rows: both read them.
    crossed = Mesh(np.array(jax.devices()).reshape(2, 4).T, ("data", "model"))
    same = NamedSharding(crossed, PartitionSpec("data"))
    loader = DataLoader(the_config, batch_size=8, sharding=same, last_batch="drop")
    assert len(loader) == COUNT // 8
    for number, batch in enumerate(loader):
        for shard in batch[ROW].addressable_shards:
            assert np.array_equal(shard.data, number * 8 + np.arange(8)[shard.index])
    with pytest.raises(ConfigError, match="hold part 0 of 1 of the sharding"):
        len(DataLoader(the_config, sharding=same, rank=rank, world_size=2))
    with pytest.raises(ConfigError, match="batch_size 6 on 2 processes: mesh axis 'data'"):
        len(DataLoader(the_config, batch_size=6, sharding=sharding))
    # One version, that of process 0, whatever the other one sees.
    changing = DataConfig("changing", storage=the_config.storage)
    if rank == 0:
        first = DataLoader(changing).version
        multihost_utils.sync_global_devices("seen")
    else:
        from storage_loader.loader import peers

        class Late(peers.Catalog):
            def snapshot(self, *arguments: Any) -> Any:
                raise AssertionError("only process 0 asks for the newest version")

        peers.Catalog = Late
        first = DataLoader(changing).version
        multihost_utils.sync_global_devices("seen")
    hashes = multihost_utils.process_allgather(np.array([int(first.hash[:7], 16)], np.int32))
    assert len(set(np.asarray(hashes).reshape(-1).tolist())) == 1
    missing = DataConfig("missing", storage=the_config.storage)
    with pytest.raises((LoaderError, FileNotFoundError), match="missing"):
        DataLoader(missing).open()
    jax.distributed.shutdown()
