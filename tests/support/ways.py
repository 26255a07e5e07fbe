"""Ways to read a dataset whole, and what they must give: every row in order, with every bit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, Dataset, Ragged
from storage_loader.catalog import Catalog
from storage_loader.hdf5 import DIRECTORY
from tests.support.rows import ROW, assert_rows

HAS_TORCH = find_spec("torch") is not None
if HAS_TORCH:
    import torch

    import storage_loader.torch

NUMBER = Attribute(ROW, "int64")
MIXED = [
    Attribute("flag", "bool"),
    Attribute("image", "uint8", (3, 17)),
    NUMBER,
    Attribute("nothing", "float64", (0,)),
    Attribute("wave", "complex64", (9,)),
    Attribute("thin", "bfloat16", (1,)),
]
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


def assert_in_any_order(
    config: DataConfig,
    rows: int,
    attributes: Sequence[Attribute] = EVERY_KIND,
    subsets: Sequence[Sequence[str]] = (["tokens"], ["meta", ROW], ["image"], ["thin", "caption"]),
) -> None:
    """Rows of the attributes by their numbers, and of some of these alone; cached and not."""
    generator = np.random.default_rng(0)
    for settings in ({}, {"cache_size": 0}):
        source = Dataset(config, **settings)
        for index in (
            generator.permutation(rows),
            generator.integers(0, rows, 50),
            np.arange(rows)[::-1],
            np.array([rows - 1, 0, 0, rows - 1]),
        ):
            assert_rows(source[index], index, attributes)
        for subset in subsets:
            some = Dataset(config, attributes=subset, **settings)
            assert_rows(some[::3], range(0, rows, 3), named(attributes, subset))


def named(attributes: Sequence[Attribute], names: Sequence[str]) -> list[Attribute]:
    """Those of the attributes, in the order of the names."""
    return [next(a for a in attributes if a.name == name) for name in names]
