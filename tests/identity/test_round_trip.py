"""What was saved comes back bit for bit, through every way of reading."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, Ragged, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.hdf5 import DIRECTORY, capacity
from storage_loader.schema import DTYPES, TEXTS, Schema
from tests.support.rows import ROW, assert_rows, make, save_rows

HAS_TORCH = find_spec("torch") is not None
if HAS_TORCH:
    import torch

    import storage_loader.torch

NUMBER = Attribute(ROW, "int64")
SHAPES: list[tuple[int, ...]] = [(), (1,), (2, 3), (3, 224, 224), (0,), (2, 0, 3)]

Batches = Iterator[Mapping[str, Any]]
Way = Callable[[DataConfig], Batches]


def dataset(config: DataConfig) -> Batches:
    yield Dataset(config)[:]


def dataset_by_row(config: DataConfig) -> Batches:
    for row in Dataset(config):
        yield batch_of(row, config)


def batch_of(row: Mapping[str, Any], config: DataConfig) -> dict[str, Any]:
    """One row as a batch of one."""
    return {a.name: _one(a, row[a.name]) for a in config.schema}


def _one(attribute: Attribute, value: Any) -> Any:
    if attribute.is_text:
        return [value]
    return Ragged.of_lengths(value, [len(value)]) if attribute.is_variable else value[None]


def loader(config: DataConfig) -> Batches:
    yield from DataLoader(config, batch_size=7)


def loader_by_row(config: DataConfig) -> Batches:
    for row in DataLoader(config, batch_size=None):
        yield batch_of(row, config)


def index_loader(config: DataConfig) -> Batches:
    yield from DataLoader(config, batch_size=7, index=True)


def torch_loader(config: DataConfig) -> Batches:
    yield from map(as_numpy, storage_loader.torch.DataLoader(config, batch_size=7))


def torch_index_loader(config: DataConfig) -> Batches:
    yield from map(as_numpy, storage_loader.torch.DataLoader(config, batch_size=7, index=True))


def torch_dataset(config: DataConfig) -> Batches:
    yield as_numpy(storage_loader.torch.Dataset(config)[:])


def as_numpy(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _from_torch(value) for name, value in batch.items()}


def _from_torch(value: Any) -> Any:
    if isinstance(value, list):
        return value
    if value.is_nested:
        return Ragged(_from_torch(value.values()), value.offsets().numpy())
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def plain_h5py(config: DataConfig) -> Batches:
    """The stored files, opened with h5py alone; which ones there are, and their order, is asked."""
    catalog = Catalog(config)
    snapshot = catalog.snapshot()
    for index in range(len(snapshot.objects)):
        data = catalog.store.get(snapshot.key(index))
        with h5py.File(io.BytesIO(data), "r") as h5:
            assert set(h5) == {DIRECTORY, *snapshot.schema.names}
            coded = config.codecs(snapshot.schema)
            yield {a.name: _h5py_rows(h5[a.name], a, coded.get(a.name)) for a in snapshot.schema}


def _h5py_rows(found: h5py.Dataset | h5py.Group, attribute: Attribute, codec: object) -> Any:
    if not attribute.is_variable:
        return _h5py_values(found, attribute, codec)
    rows = Ragged(_h5py_values(found["values"], attribute, codec), np.append(0, found["ends"][:]))
    if not attribute.is_text:
        return rows
    texts = [row.tobytes() for row in rows]
    if attribute.dtype == "bytes":
        return texts
    return [json.loads(t) if attribute.dtype == "json" else t.decode() for t in texts]


def _h5py_values(dataset: h5py.Dataset, attribute: Attribute, codec: object) -> np.ndarray:
    assert dataset.shape[1:] == attribute.item_shape
    is_coded = codec is not None and dataset.size > 0
    assert (dataset.chunks is not None) == is_coded
    assert bool(dataset.id.get_create_plist().get_nfilters()) == is_coded
    kind = dataset.id.get_type()
    if attribute.dtype == "bfloat16":
        assert (kind.get_size(), kind.get_ebias(), kind.get_fields()) == (2, 127, (15, 7, 8, 0, 7))
        raw = np.empty(dataset.shape, "<u2")  # HDF5 converts to no type of its own: take the bits
        if raw.size:
            dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=kind)
        values = raw.view(ml_dtypes.bfloat16)
    else:
        values = dataset[:]
        assert values.dtype == attribute.numpy_dtype
    return values


WAYS: list[Way] = [
    dataset,
    dataset_by_row,
    loader,
    loader_by_row,
    index_loader,
    *([torch_dataset, torch_loader, torch_index_loader] if HAS_TORCH else []),
    plain_h5py,
]


def assert_all_there(
    config: DataConfig, rows: int, attributes: Sequence[Attribute], ways: Sequence[Way] = WAYS
) -> None:
    """Every way of reading gives rows 0 to rows - 1 in order, once, with every bit."""
    for way in ways:
        number = 0
        for batch in way(config):
            size = len(batch[attributes[0].name])
            assert_rows(batch, range(number, number + size), attributes)
            number += size
        assert number == rows, way.__name__


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_in_this_shape(storage: dict[str, str], shape: tuple[int, ...]) -> None:
    attributes = [NUMBER, *(Attribute(f"of {dtype}", dtype, shape) for dtype in DTYPES)]
    config = DataConfig("all", attributes, max_object_size=24 * 2**20, **storage)
    save(config, make(range(5), attributes))
    assert_all_there(config, 5, attributes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_attribute_alone(memory: dict[str, str], dtype: str) -> None:
    """No other attribute helps to count the rows, nor to align the bytes."""
    for shape in [(), (1,), (3, 5), (0,)]:
        attributes = [Attribute("alone", dtype, shape)]
        config = DataConfig(f"alone{len(shape)}{shape[:1] == (0,)}", attributes, **memory)
        save(config, make(range(23), attributes))
        assert_all_there(config, 23, attributes)


MIXED = [
    Attribute("flag", "bool"),
    Attribute("image", "uint8", (3, 17)),
    NUMBER,
    Attribute("nothing", "float64", (0,)),
    Attribute("wave", "complex64", (9,)),
    Attribute("thin", "bfloat16", (1,)),
]
FULL = capacity(Schema.of(MIXED), MIN_OBJECT_SIZE)


def mixed(storage: Mapping[str, str]) -> DataConfig:
    return DataConfig("mixed", MIXED, max_object_size=MIN_OBJECT_SIZE, **storage)


@pytest.mark.parametrize("rows", [0, 1, 2, FULL - 1, FULL, FULL + 1, 3 * FULL])
def test_row_counts_around_an_object(storage: dict[str, str], rows: int) -> None:
    with DataSaver(mixed(storage), refresh=True) as saver:
        saver(make(range(rows), MIXED))
    assert_all_there(mixed(storage), rows, MIXED)
    assert [o.rows for o in Dataset(mixed(storage)).open().objects] == (
        [FULL] * (rows // FULL) + [rows % FULL] * bool(rows % FULL)
    )


EVERY_KIND = [
    Attribute("tokens", "int32", (None,)),
    NUMBER,
    Attribute("boxes", "float32", (None, 2, 2)),
    Attribute("caption", "str"),
    Attribute("image", "uint8", (3, 17)),
    Attribute("raw", "bytes"),
    Attribute("meta", "json"),
    Attribute("thin", "bfloat16", (None,)),
]


def every_kind(storage: Mapping[str, str]) -> DataConfig:
    return DataConfig("kinds", EVERY_KIND, max_object_size=MIN_OBJECT_SIZE, **storage)


@pytest.mark.parametrize("rows", [0, 1, 2, 8, 500])
def test_every_kind(storage: dict[str, str], rows: int) -> None:
    config = every_kind(storage)
    save_rows(config, rows, 37, refresh=True)
    assert_all_there(config, rows, EVERY_KIND)
    assert rows < 500 or len(Dataset(config).open().objects) > 3


@pytest.mark.parametrize("dtype", [*DTYPES, *TEXTS])
def test_rows_of_any_length_alone(memory: dict[str, str], dtype: str) -> None:
    for inner in [()] if dtype in TEXTS else [(), (3,)]:
        shape = () if dtype in TEXTS else (None, *inner)
        attributes = [Attribute("alone", dtype, shape)]
        config = DataConfig(f"alone{len(inner)}", attributes, **memory)
        save(config, make(range(90), attributes))
        assert_all_there(config, 90, attributes)


@given(rows=st.integers(0, 200), size=st.integers(1, 90))
@settings(max_examples=10)
def test_any_number_of_rows_of_every_kind(rows: int, size: int) -> None:
    config = every_kind({"storage": f"memory://{uuid.uuid4().hex}"})
    save_rows(config, rows, size, refresh=True)
    ways = [w for w in WAYS if w in (dataset, loader, index_loader, torch_loader, plain_h5py)]
    assert_all_there(config, rows, EVERY_KIND, ways)


def test_rows_of_every_kind_in_any_order(storage: dict[str, str]) -> None:
    """Of attributes alone too; small columns are read whole, others by the block."""
    config = every_kind(storage)
    save_rows(config, 700, 100)
    generator = np.random.default_rng(0)
    for settings_ in ({}, {"cache_size": 0}):
        source = Dataset(config, **settings_)
        for index in (
            generator.permutation(700),
            generator.integers(0, 700, 50),
            np.arange(700)[::-1],
            np.array([699, 0, 0, 699]),
        ):
            assert_rows(source[index], index, EVERY_KIND)
        for subset in (["tokens"], ["meta", ROW], ["image"], ["thin", "caption"]):
            chosen = [next(a for a in EVERY_KIND if a.name == name) for name in subset]
            some = Dataset(config, attributes=subset, **settings_)
            assert_rows(some[::3], range(0, 700, 3), chosen)


@given(rows=st.integers(0, 4 * FULL), size=st.integers(1, 2 * FULL))
@settings(max_examples=10)
def test_any_number_of_rows_in_batches_of_any_size(rows: int, size: int) -> None:
    config = mixed({"storage": f"memory://{uuid.uuid4().hex}"})
    save_rows(config, rows, size, refresh=True)
    ways = [w for w in WAYS if w in (dataset, loader, index_loader, torch_loader, plain_h5py)]
    assert_all_there(config, rows, MIXED, ways)


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 4), max_size=3).map(tuple)
            | st.just((700,))
            | st.lists(st.integers(1, 3), max_size=2).map(lambda inner: (None, *inner)),
        )
        | st.tuples(st.sampled_from(TEXTS), st.just(())),
        min_size=1,
        max_size=5,
    ),
    rows=st.integers(1, 200),
    commits=st.integers(1, 3),
)
@settings(max_examples=40)
def test_any_schema(
    drawn: list[tuple[str, tuple[int | None, ...]]], rows: int, commits: int
) -> None:
    attributes = [Attribute(f"a{i}", dtype, shape) for i, (dtype, shape) in enumerate(drawn)]
    config = DataConfig(
        "any",
        attributes,
        storage=f"memory://{uuid.uuid4().hex}",
        max_object_size=MIN_OBJECT_SIZE,
    )
    with DataSaver(config) as saver:
        for number in range(commits):
            saver(make(range(number * rows, (number + 1) * rows), attributes))
            saver.commit()
    assert_all_there(
        config, commits * rows, attributes, [dataset, loader, index_loader, plain_h5py]
    )


def test_rows_of_several_blocks_and_objects_in_any_order(storage: dict[str, str]) -> None:
    """Some columns are read whole, others by the block; one row is larger than a block."""
    attributes = [
        Attribute("huge", "uint8", (70_000,)),
        Attribute("small", "float16", (3,)),
        NUMBER,
        Attribute("large", "float32", (2_500,)),
    ]
    config = DataConfig("blocks", attributes, max_object_size=2**20, **storage)
    rows = 3 * capacity(Schema.of(attributes), 2**20) + 4
    save(config, make(range(rows), attributes))
    source = Dataset(config)
    generator = np.random.default_rng(0)
    for index in (
        generator.permutation(rows),
        generator.integers(0, rows, 50),
        np.arange(rows)[::-1],
        np.array([rows - 1, 0, 0, rows - 1]),
    ):
        assert_rows(source[index], index, attributes)
    for subset in (["small"], ["large", "huge"], [ROW, "small"]):
        chosen = [next(a for a in attributes if a.name == name) for name in subset]
        assert_rows(Dataset(config, attributes=subset)[::3], range(0, rows, 3), chosen)
        for way in (DataLoader(config, attributes=subset, batch_size=rows, index=True),
                    DataLoader(config, attributes=subset, batch_size=rows)):  # fmt: skip
            [batch] = way
            assert_rows(batch, range(rows), chosen)


def test_bytes_are_the_same_for_the_same_rows(tmp_path: Path) -> None:
    """Nothing of a buffer's earlier use, of the time or of the machine lies in an object."""
    copies = []
    for name, junk in [("one", 0), ("two", 2 * FULL)]:
        config = mixed({"storage": str(tmp_path / name)})
        with DataSaver(config, num_worker_threads=1) as saver:
            saver(make(range(1000, 1000 + junk), MIXED))
            saver.commit()
            saver(make(range(FULL + 3), MIXED))
        catalog = Catalog(config)
        snapshot = catalog.snapshot()
        last = range(len(snapshot.objects))[-2:]
        copies.append([bytes(catalog.store.get(snapshot.key(i))) for i in last])
    assert copies[0] == copies[1]
