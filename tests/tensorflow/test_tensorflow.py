"""`storage_loader.tensorflow`: the same rows as tensors, and as a `tf.data.Dataset`."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storage_loader
from storage_loader import Attribute, DataConfig, save
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ConfigError,
    ObjectNotFoundError,
    TransformError,
)
from storage_loader.loader.fill.memory import ALIGNMENT
from storage_loader.schema import DTYPES
from tests.support.examples import EXAMPLES, run
from tests.support.own_process import import_without, in_processes
from tests.support.rows import ROW, WITH_PIXELS, assert_rows, config, make, numbers_in, save_rows
from tests.support.threads import running

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from storage_loader.tensorflow import DataLoader, _Convert, as_tensor  # noqa: E402

COUNT = 103


def fill(storage: dict[str, str], rows: int = COUNT) -> DataConfig:
    the_config = config(storage, attributes=WITH_PIXELS, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, rows, 40)


def as_numpy(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    """In attribute order: tf.data sorts the names."""
    order = [a.name for a in WITH_PIXELS if a.name in batch] or list(batch)
    return {name: batch[name].numpy() for name in order}


def rows_of(batches: Any) -> list[list[int]]:
    """The numbers of each batch, all of whose attributes belong to them."""
    return [numbers_in([as_numpy(batch)], WITH_PIXELS) for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def address(tensor: Any) -> int:
    return int(np.asarray(tensor).__array_interface__["data"][0])


# Tensors


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_tensorflows_own(
    memory: dict[str, str], dtype: str, shape: tuple[int, ...]
) -> None:
    attributes = [Attribute("values", dtype, shape)]
    the_config = DataConfig("dtypes", attributes, **memory)
    save(the_config, make(range(10), attributes))
    loader = DataLoader(the_config, batch_size=20)
    [batch] = loader
    [element] = loader.as_dataset()
    for each in (batch, element):
        assert each["values"].dtype is getattr(tf, dtype)
        assert each["values"].shape == (10, *shape)
        assert_rows({"values": each["values"].numpy()}, range(10), attributes)
    rows = [row["values"] for row in DataLoader(the_config, batch_size=None)]
    assert [(row.dtype, row.shape) for row in rows] == [(getattr(tf, dtype), shape)] * 10
    assert_rows({"values": tf.stack(rows).numpy()}, range(10), attributes)


@pytest.mark.parametrize("length", [3000, 1000], ids=["large rows", "small rows"])
def test_tensors_lie_on_the_batchs_own_memory(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    attributes = [Attribute("pixels", "bfloat16", (length // 2,))]
    the_config = DataConfig("rows", attributes, **memory)
    save(the_config, make(range(210), attributes))
    gathered: list[dict[str, int]] = []
    convert = _Convert.__call__

    def seen(self: _Convert, arrays: Any) -> Any:
        gathered.append({n: a.__array_interface__["data"][0] for n, a in arrays.items()})
        return convert(self, arrays)

    monkeypatch.setattr(_Convert, "__call__", seen)
    loader = DataLoader(the_config, batch_size=70)
    for batches in (loader, loader.as_dataset()):
        gathered.clear()
        for number, batch in enumerate(batches):
            for name, tensor in batch.items():
                assert address(tensor) == gathered[number][name]
                assert address(tensor) % ALIGNMENT == 0
        assert len(gathered) == 3


def test_an_array_that_tensorflow_cannot_take_is_copied() -> None:
    room = as_tensor(np.zeros(256, np.uint8))
    assert address(room) % ALIGNMENT == 0
    octets = np.arange(1024, dtype=np.uint8)
    start = -octets.ctypes.data % ALIGNMENT
    aligned = octets[start : start + 512].view(np.float32)
    assert address(as_tensor(aligned)) == aligned.ctypes.data
    for array in (aligned[1:], aligned[::2], octets[start + 1 :][:8].view(np.float64)):
        tensor = as_tensor(array)
        assert address(tensor) % ALIGNMENT == 0
        assert tensor.numpy().tobytes() == array.tobytes()
    constant = aligned.copy()
    constant.setflags(write=False)
    assert as_tensor(constant).numpy().tobytes() == aligned.tobytes()


def test_batches_that_are_kept_do_not_change(memory: dict[str, str]) -> None:
    the_config = fill(memory, 600)
    loader = DataLoader(the_config, batch_size=30, shuffle="global")
    for batches in (loader, loader.as_dataset(), loader.as_dataset().prefetch(3)):
        once, again = list(batches), list(batches)
        for kept in (once, again):
            assert sorted(flat(rows_of(kept))) == list(range(600))


def test_memory_lives_as_long_as_its_tensor(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "float32", (2**14,))], **memory)
    save(the_config, {"x": np.ones((8, 2**14))})
    loader = DataLoader(the_config, batch_size=8)
    [batch] = loader
    assert loader._memory.num_free == 0  # nothing came back
    half = batch.pop("x")[:4]  # lies on the same memory
    assert loader._memory.num_free == 0
    assert float(tf.reduce_sum(half)) == 2**16
    del half
    assert loader._memory.num_free == 1


def test_transform_and_as_tuple_get_tensors(memory: dict[str, str]) -> None:
    the_config = fill(memory)

    def scaled(batch: dict[str, Any]) -> dict[str, Any]:
        return {"image": tf.cast(batch["image"], tf.float32) / 255, ROW: batch[ROW]}

    loader = DataLoader(the_config, batch_size=50, transform=scaled, as_tuple=True)
    spec = (tf.TensorSpec((None, 3, 5), tf.float32), tf.TensorSpec((None,), tf.int64))
    for batches in (loader, loader.as_dataset(spec)):
        numbers: list[int] = []
        for image, row in batches:
            expected = make(row.numpy().tolist())["image"].astype(np.float32) / np.float32(255)
            assert image.numpy().tobytes() == expected.tobytes()
            numbers += row.numpy().tolist()
        assert numbers == list(range(COUNT))
    with pytest.raises(ConfigError, match="give element_spec"):
        loader.as_dataset()
    wrong = loader.as_dataset((spec[0], tf.TensorSpec((None,), tf.int32)))
    with pytest.raises(tf.errors.UnknownError, match=r"element_spec has int32.* gave int64"):
        list(wrong)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    half = tf.cast(batch["weight"], tf.bfloat16)
    more = {"half": half, "text": tf.constant("kept"), "is_late": batch[ROW] > 30}
    return {**batch, "weight": batch["weight"] * 2, **more}


@pytest.mark.usefixtures("tensorflow_once")
def test_worker_processes_give_tensors(folder: dict[str, str]) -> None:
    the_config = DataConfig("rows", [(ROW, "int64"), ("weight", "float32", (2,))], **folder)
    weights = np.arange(100, dtype=np.float32).reshape(50, 2)
    save(the_config, {ROW: np.arange(50), "weight": weights})
    loader = DataLoader(the_config, batch_size=20, transform=doubled, num_workers=1)
    batches = list(loader)
    assert tf.concat([b[ROW] for b in batches], 0).numpy().tolist() == list(range(50))
    assert tf.concat([b["weight"] for b in batches], 0).numpy().tobytes() == (2 * weights).tobytes()
    half = tf.concat([b["half"] for b in batches], 0)
    assert half.dtype is tf.bfloat16
    assert np.array_equal(tf.cast(half, tf.float32), weights)
    assert {b["text"].numpy() for b in batches} == {b"kept"}
    assert tf.concat([b["is_late"] for b in batches], 0).numpy().tolist() == [
        row > 30 for row in range(50)
    ]
    assert address(batches[0]["weight"]) % ALIGNMENT == 0  # in the file that the worker sent


# tf.data


@pytest.mark.parametrize(
    ("settings", "axis", "num_batches"),
    [
        ({"batch_size": 10}, [None], 11),
        ({"batch_size": 10, "last_batch": "drop"}, [10], 10),
        ({"batch_size": 10, "last_batch": "pad"}, [10], 11),
        ({"batch_size": 10, "last_batch": "wrap", "epochs": 3}, [10], 33),
        ({"batch_size": 10, "subset": slice(100)}, [10], 10),
        ({"batch_size": 103, "epochs": 2}, [103], 2),
        ({"batch_size": 200}, [None], 1),
        ({"batch_size": None}, [], 103),
        ({"batch_size": 5, "rank": 1, "world_size": 2}, [None], 11),
        ({"batch_size": 5, "rank": 1, "world_size": 2, "subset": slice(100)}, [5], 10),
        ({"batch_size": 10, "subset": slice(0)}, [10], 0),
    ],
    ids=str,
)
def test_element_spec_and_cardinality_are_exact(
    memory: dict[str, str], settings: dict[str, Any], axis: list[int | None], num_batches: int
) -> None:
    loader = DataLoader(fill(memory), extras=("valid",), **settings)
    dataset = loader.as_dataset()
    kinds = {a.name: (a.shape, a.dtype) for a in WITH_PIXELS} | {"valid": ((), "bool")}
    expected = {name: tf.TensorSpec((*axis, *shape), kind) for name, (shape, kind) in kinds.items()}
    assert dataset.element_spec == expected
    assert int(dataset.cardinality()) == num_batches == len(loader)
    elements = list(dataset)
    assert len(elements) == num_batches
    for element in elements:
        for name, spec in expected.items():
            assert spec.is_compatible_with(element[name])
    as_tuple = DataLoader(fill(memory), as_tuple=True, **settings).as_dataset()
    assert as_tuple.element_spec == tuple(expected[a.name] for a in WITH_PIXELS)


def test_each_iterator_is_an_epoch_of_its_own(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    settings: dict[str, Any] = {"batch_size": 10, "shuffle": "global", "seed": 3}
    plain = storage_loader.DataLoader(the_config, **settings)
    epochs = [[batch[ROW].tolist() for batch in plain] for _ in range(5)]
    assert epochs[0] != epochs[1]
    loader = DataLoader(the_config, **settings)
    dataset = loader.as_dataset()
    assert rows_of(dataset.repeat(2)) == epochs[0] + epochs[1]
    assert rows_of(dataset) == epochs[2]
    # map and prefetch keep the order, shuffle and unbatch the rows
    again = dataset.map(lambda batch: {**batch, "image": batch["image"] + 1}).prefetch(2)
    assert [batch[ROW].numpy().tolist() for batch in again] == epochs[3]
    single = dataset.unbatch().shuffle(50).batch(20)
    assert sorted(flat(rows_of(single))) == list(range(COUNT))
    loader.set_epoch(1)
    assert rows_of(dataset) == epochs[1]


def test_a_model_is_fitted_on_every_row_of_each_epoch(memory: dict[str, str]) -> None:
    the_config = DataConfig("xy", [("x", "float32", (2,)), ("y", "float32")], **memory)
    x = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2)
    save(the_config, {"x": x, "y": x[:, 0]})
    loader = DataLoader(the_config, batch_size=10, shuffle=True, as_tuple=True)
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.layers[0].set_weights([np.zeros((2, 1)), np.zeros(1)])
    model.optimizer.learning_rate = 0.0
    dataset = loader.as_dataset()
    history = model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    # The loss of a model that says 0 is the mean of all squares, if each row was seen once.
    expected = np.mean(np.square(x[:, 0], dtype=np.float64))
    assert np.allclose(history.history["loss"], expected, rtol=1e-4)
    assert loader.state_dict()["epoch"] == 3
    assert np.allclose(model.evaluate(dataset, verbose=0), expected, rtol=1e-4)


def test_errors_come_as_they_are_and_with_their_text_through_tf_data(
    folder: dict[str, str],
) -> None:
    the_config = fill(folder)

    def fail_at_70(batch: dict[str, Any]) -> dict[str, Any]:
        if 70 in batch[ROW].numpy():
            raise ZeroDivisionError("seventy")
        return batch

    spec = DataLoader(the_config, batch_size=10).as_dataset().element_spec
    loader = DataLoader(the_config, batch_size=10, transform=fail_at_70)
    given: list[int] = []
    with pytest.raises(TransformError, match="ZeroDivisionError: seventy"):
        for batch in loader:
            given += batch[ROW].numpy().tolist()
    assert given == list(range(70))
    given.clear()
    with pytest.raises(tf.errors.UnknownError) as caught:
        for batch in loader.as_dataset(spec):
            given += batch[ROW].numpy().tolist()
    assert given == list(range(70))
    assert "TransformError: transform failed on rows 70, 71" in str(caught.value)
    assert "ZeroDivisionError: seventy" in str(caught.value)
    # of a thread that fetches
    lost = DataLoader(the_config, batch_size=10)
    dataset = lost.as_dataset()
    for objects in Path(folder["storage"]).glob("*/*/objects"):
        shutil.rmtree(objects)
    with pytest.raises(ObjectNotFoundError):
        list(lost)
    with pytest.raises(tf.errors.UnknownError, match=r"ObjectNotFoundError: [\s\S]*objects/"):
        list(dataset)


def test_leaving_a_loop_ends_our_threads(memory: dict[str, str]) -> None:
    loader = DataLoader(fill(memory), batch_size=10, transform=lambda batch: batch)
    spec = DataLoader(loader.config, batch_size=10).as_dataset().element_spec
    for batches in (loader, loader.as_dataset(spec), loader.as_dataset(spec).prefetch(2).repeat()):
        for batch in batches:
            assert batch[ROW].numpy()[0] == 0
            assert running("ahead", "fetch", "plan")
            break
        del batch
        assert running("ahead", "fetch", "plan") == []


def test_a_state_goes_on_in_a_loop_and_in_a_dataset(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    settings: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 1}
    expected = flat(rows_of(DataLoader(the_config, **settings)))
    loader = DataLoader(the_config, **settings)
    dataset = loader.as_dataset()
    assert rows_of(dataset.take(4)) == [expected[i : i + 10] for i in range(0, 40, 10)]
    state = loader.state_dict()
    assert state["rows"] == 40
    for size in (10, 7):
        resumed = DataLoader(the_config, **{**settings, "batch_size": size})
        resumed.load_state_dict(state)
        assert flat(rows_of(resumed)) == expected[40:]
        resumed.load_state_dict(state)
        rest = resumed.as_dataset()
        assert int(rest.cardinality()) == tf.data.UNKNOWN_CARDINALITY
        assert rest.element_spec[ROW].shape == [None]
        assert flat(rows_of(rest)) == expected[40:]
        assert len(flat(rows_of(rest))) == COUNT
    loader.load_state_dict(state)
    with pytest.raises(tf.errors.UnknownError, match=r"call as_dataset\(\) again"):
        list(dataset)
    assert flat(rows_of(loader.as_dataset())) == expected[40:]


def test_a_state_counts_what_was_received_however_long_a_step_takes(memory: dict[str, str]) -> None:
    """tf.data takes batches ahead of its own accord, unless it is told not to."""
    loader = DataLoader(fill(memory), batch_size=10, shuffle=True, seed=1)
    batches = iter(loader.as_dataset())
    counted = []
    for _ in range(5):
        next(batches)
        time.sleep(0.1)  # in which tf.data would take another
        counted.append(loader.state_dict()["rows"])
    assert counted == [10, 20, 30, 40, 50]


# tf.distribute


def test_replicas_share_the_rows(folder: dict[str, str]) -> None:
    in_processes(of_two_replicas, (fill(folder),))


def of_two_replicas(the_config: DataConfig) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def of_pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return DataLoader(
            the_config,
            batch_size=context.get_per_replica_batch_size(10),
            rank=context.input_pipeline_id,
            world_size=context.num_input_pipelines,
            shuffle=True,
        ).as_dataset()

    loader = DataLoader(the_config, batch_size=10, shuffle=True)
    for distributed in (
        strategy.distribute_datasets_from_function(of_pipeline),
        strategy.experimental_distribute_dataset(loader.as_dataset()),
    ):
        numbers: list[int] = []
        for batch in distributed:
            per_replica = strategy.experimental_local_results(batch[ROW])
            assert len(per_replica) == 2
            numbers += [number for rows in per_replica for number in rows.numpy().tolist()]
        assert sorted(numbers) == list(range(COUNT))


def test_two_input_pipelines_read_disjoint_rows(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    numbers: list[int] = []
    for rank in range(2):
        loader = DataLoader(
            the_config, batch_size=5, rank=rank, world_size=2, shuffle="global", last_batch="drop"
        )
        dataset = loader.as_dataset()
        policy = dataset.options().experimental_distribute.auto_shard_policy
        assert policy == tf.data.experimental.AutoShardPolicy.OFF
        assert int(dataset.cardinality()) == 10
        numbers += flat(rows_of(dataset))
    assert len(set(numbers)) == len(numbers) == 100


# Elsewhere


def test_the_example_learns_digits() -> None:
    run(example=EXAMPLES / "digits_keras.py", is_silent=False)  # TensorFlow writes there


def test_without_tensorflow_the_import_says_what_to_install() -> None:
    assert import_without("tensorflow", "storage_loader.tensorflow") == (
        "storage_loader.tensorflow needs TensorFlow: pip install 'storage-loader[tensorflow]'"
    )
