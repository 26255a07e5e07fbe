"""`storage_loader.jax` with rows of no fixed size: `Ragged` of `jax.Array`s, and lists of texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, Ragged, save
from storage_loader.errors import ConfigError, LoaderError
from tests.support import decoders
from tests.support.kinds import COUNT, KINDS, WAYS, as_batch, expected_rows, fill
from tests.support.own_process import in_processes
from tests.support.rows import ROW, numbers_in, numbers_of

jax = pytest.importorskip("jax")

from storage_loader.jax import DataLoader, alike  # noqa: E402
from storage_loader.jax.placing import Placing  # noqa: E402

DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("kinds"))})


def as_numpy(batch: dict[str, Any]) -> dict[str, Any]:
    """Arrays, `Ragged` of them, texts; integers as wide as they were stored."""

    def wide(name: str, array: Any) -> np.ndarray:
        found = np.asarray(array)
        return found.astype(np.int64) if name == ROW or name.endswith("_length") else found

    def one(name: str, field: Any) -> Any:
        if isinstance(field, Ragged):
            assert isinstance(field.values, jax.Array)
            assert isinstance(field.offsets, jax.Array)
            return Ragged(np.asarray(field.values), np.asarray(field.offsets).astype(np.int64))
        return wide(name, field) if isinstance(field, jax.Array) else field

    return {name: one(name, field) for name, field in batch.items()}


@pytest.mark.usefixtures("jax_once")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_as_numpys_loader_gives_it(saved: DataConfig, way: str, workers: int) -> None:
    how: dict[str, Any] = {**WAYS[way], "shuffle": True, "seed": 2}
    loader = DataLoader(saved, num_workers=workers, **how)
    found = numbers_in((as_batch(as_numpy(batch), way) for batch in loader), KINDS)
    assert found == expected_rows(saved, **how)
    assert sorted(found) == list(range(COUNT))


def test_ragged_is_a_node_of_jaxs_trees(saved: DataConfig) -> None:
    @jax.jit
    def doubled(rows: Ragged) -> Ragged:
        return jax.tree.map(lambda array: array * 2, rows)

    batch = next(iter(DataLoader(saved, 16)))
    tokens, more = batch["tokens"], doubled(batch["tokens"])
    assert type(more) is Ragged
    assert (more.values == tokens.values * 2).all()
    assert (more.offsets == tokens.offsets * 2).all()
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    assert "['tokens'].values" in names
    assert "['tokens'].offsets" in names


def test_texts_stay_as_they_are(saved: DataConfig) -> None:
    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        made.append(batch)
        return {**batch, "both": [batch["image"], "name"], "few": [{"b": 1, "a": None}]}

    made: list[dict[str, Any]] = []
    for batch, before in zip(DataLoader(saved, 16, transform=transform), made, strict=False):
        for name in ("caption", "raw", "meta"):
            assert batch[name] is before[name]
        array, text = batch["both"]
        assert isinstance(array, jax.Array)
        assert text == "name"
        assert list(batch["few"][0]) == ["b", "a"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The shapes that JAX was asked to place."""
    shapes: list[tuple[int, ...]] = []
    by_jax = Placing._placed_by_jax

    def counted(self: Placing, array: np.ndarray) -> Any:
        shapes.append(array.shape)
        return by_jax(self, array)

    monkeypatch.setattr(Placing, "_placed_by_jax", counted)
    return shapes


def test_jax_is_asked_for_two_shapes_of_rows_that_differ(asked: list[tuple[int, ...]]) -> None:
    placing = Placing(None)
    for size in range(1, 200):
        rows = Ragged.of_lengths(np.arange(2 * size, dtype=np.float32).reshape(-1, 2), [size, 0])
        found = placing.place({"x": rows})["x"]
        assert found.values.tolist() == rows.values.tolist()
        assert found.values.aval == jax.device_put(rows.values).aval
        assert found.values.sharding == jax.device_put(rows.values).sharding
    assert asked == [(1, 2), (3,), (2, 2)]


def of_one_shape(aval: Any, sharding: Any, arrays: Any, devices: Any, committed: bool) -> Any:
    """A step that knows no shape but the first."""
    if arrays[0].shape[0] != 1:
        raise TypeError("another shape")
    return alike.xla_client.batched_device_put(aval, sharding, arrays, devices, committed)


def test_a_step_that_fits_one_shape_only_serves_that(
    asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike, "_last_step", of_one_shape)
    placing = Placing(None)
    for size in (1, 2, 3, 1, 2, 3):
        array = np.arange(size, dtype=np.float32)
        assert placing.place({"x": array})["x"].tolist() == array.tolist()
    assert asked == [(1,), (2,), (3,), (2,), (3,)]


def test_an_integer_that_does_not_fit_names_its_row(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "int64", (None,)), (ROW, "int64")], **memory)
    save(the_config, {"x": [[1], [], [2, 3], [4, 2**40]], ROW: range(4)})
    with pytest.raises(LoaderError, match=rf"batch\['x'\].* has {2**40} in row 3, which int32"):
        list(DataLoader(the_config, 4))
    with pytest.raises(LoaderError, match=rf"batch\['x'\].* has {2**40} in row 3, which int32"):
        list(DataLoader(the_config, None))
    with jax.enable_x64(True):
        [batch] = DataLoader(the_config, 4)
        assert batch["x"].values.tolist() == [1, 2, 3, 4, 2**40]
        assert batch["x"].offsets.dtype == "int64"


def test_an_epoch_goes_on_in_its_middle(saved: DataConfig) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5}
    loader = DataLoader(saved, 16, **how)
    batches = iter(loader)
    first = numbers_in((as_numpy(next(batches)) for _ in range(3)), KINDS)
    resumed = DataLoader(saved, 10, **how)
    resumed.load_state_dict(loader.state_dict())
    rest = numbers_in(map(as_numpy, resumed), KINDS)
    assert first + rest == expected_rows(saved, batch_size=16, **how)


@pytest.mark.usefixtures("jax_once")
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_padding_are_empty(saved: DataConfig, workers: int) -> None:
    loader = DataLoader(saved, 16, last_batch="pad", extras=("valid",), num_workers=workers)
    *_, last = loader
    valid = int(last["valid"].sum())
    assert (valid, len(last["valid"])) == (COUNT % 16, 16)
    for name in ("tokens", "boxes", "half"):
        assert np.diff(last[name].offsets)[valid:].tolist() == [0] * (16 - valid)
    for name, empty in (("caption", ""), ("raw", b""), ("meta", None)):
        assert last[name][valid:] == [empty] * (16 - valid)


@pytest.mark.parametrize("sharded", [False, True])
def test_one_device_takes_every_kind(saved: DataConfig, sharded: bool) -> None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if sharded else None
    with jax.transfer_guard("disallow"):
        batches = list(DataLoader(saved, 16, sharding=one))
    assert numbers_in(map(as_numpy, batches), KINDS) == list(range(COUNT))
    assert {batch["tokens"].values.committed for batch in batches} == {sharded}


def test_several_devices_share_arrays_only(saved: DataConfig) -> None:
    in_processes(of_eight_devices, (saved,), **DEVICES)


def of_eight_devices(the_config: DataConfig) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == 8
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    how: dict[str, Any] = {"batch_size": 16, "last_batch": "drop", "sharding": sharding}
    for name, remedy in (("tokens", r"give pad=\{'tokens': 0\}"), ("caption", "in transform")):
        loader = DataLoader(the_config, attributes=[ROW, name], **how)
        with pytest.raises(ConfigError, match=f"cannot share attribute '{name}'.*{remedy}"):
            len(loader)
    raw = DataLoader(the_config, transform=lambda b: {"x": b["tokens"]}, **how)
    with pytest.raises(ConfigError, match="differ in length"):
        next(iter(raw))

    def dense(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "tokens": batch["tokens"].lengths, "boxes": None, "half": None}

    for batch in DataLoader(the_config, transform=dense, **how):
        assert batch["tokens"].sharding == sharding
        assert isinstance(batch["caption"], list)
    for batch in DataLoader(the_config, attributes=["caption"], decode={"caption": len}, **how):
        assert batch["caption"].sharding == sharding
    padded = DataLoader(the_config, attributes=[ROW, "tokens"], pad={"tokens": 0}, **how)
    for batch in padded:
        assert batch["tokens"].sharding == sharding
        assert batch["tokens_length"].sharding == sharding
        lengths = np.asarray(batch["tokens_length"])
        dense_rows = np.asarray(batch["tokens"])
        rows = Ragged.of_lengths(
            dense_rows[np.arange(dense_rows.shape[1]) < lengths[:, None]], lengths
        )
        found = {ROW: np.asarray(batch[ROW]).astype(np.int64), "tokens": rows}
        assert numbers_of(found, (Attribute(ROW, "int64"), Attribute("tokens", "int32", (None,))))


def array_of(raw: bytes) -> Any:
    return jax.numpy.asarray(decoders.image(raw))


@pytest.mark.parametrize("function", [decoders.image, array_of])
def test_decoded_rows_are_arrays(tmp_path: Path, function: Any) -> None:
    saved = decoders.fill({"storage": str(tmp_path)})
    decode = {"raw": function, "meta": decoders.label, "words": str.split}
    seen: list[int] = []
    for batch in DataLoader(saved, 32, decode=decode):
        assert isinstance(batch["raw"], jax.Array)
        assert batch["raw"].dtype == np.uint8
        labels = batch["meta"].tolist()
        assert batch["raw"][:, 0, 0].tolist() == labels == batch["row_"].tolist()
        assert batch["words"] == [[*map(str, range(n % 4))] for n in labels]
        seen += labels
    assert seen == [*range(100)]
    for batch in DataLoader(saved, 10, decode={"raw": decoders.cut_image}):
        assert {isinstance(image, jax.Array) for image in batch["raw"]} == {True}
        assert [len(image) for image in batch["raw"]] == [1 + n % 8 for n in batch["row_"].tolist()]
