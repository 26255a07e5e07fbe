"""Compressed rows come back bit for bit, through every way of reading, HDF5 with plugins too."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  gives HDF5 the filters that it lacks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save
from storage_loader import verify_dataset as verify
from storage_loader.catalog import Catalog
from storage_loader.codecs import COMPLIBS
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.schema import DTYPES, TEXTS
from tests.support.rows import ROW, assert_rows, make, save_rows
from tests.support.ways import (
    EVERY_KIND,
    MIXED,
    NUMBER,
    assert_all_there,
    assert_in_any_order,
    dataset,
    index_loader,
    loader,
    plain_h5py,
)

FEW = [dataset, loader, index_loader, plain_h5py]
COMPRESSORS = [
    {"complib": name, "shuffle": shuffle} for name in COMPLIBS for shuffle in (True, False)
]


def compressed(storage: Mapping[str, str], attributes: list[Attribute], **how: Any) -> DataConfig:
    settings_ = {"max_object_size": MIN_OBJECT_SIZE, "compressor": {}, **how, **storage}
    return DataConfig("compressed", attributes, **settings_)


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
def test_every_codec_with_every_dtype(memory: dict[str, str], compressor: dict[str, Any]) -> None:
    attributes = [
        NUMBER,
        *(Attribute(f"of {dtype}", dtype, (3,)) for dtype in DTYPES),
        *(Attribute(f"some {dtype}", dtype, (None, 2)) for dtype in DTYPES),
        *(Attribute(text, text) for text in TEXTS),
    ]
    config = compressed(memory, attributes, compressor=compressor, max_object_size=2**20)
    save(config, make(range(400), attributes))
    assert_all_there(config, 400, attributes, FEW)
    assert verify(config).problems == ()


@pytest.mark.parametrize("rows", [0, 1, 2, 8, 500])
def test_every_kind(storage: dict[str, str], rows: int) -> None:
    config = compressed(storage, EVERY_KIND)
    save_rows(config, rows, 37, refresh=True)
    assert_all_there(config, rows, EVERY_KIND)
    assert verify(config).problems == ()


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (3, 224, 224), (0,), (2, 0, 3)], ids=str)
def test_fixed_shapes(memory: dict[str, str], shape: tuple[int, ...]) -> None:
    attributes = [Attribute("alone", "int16", shape)]
    config = compressed(memory, attributes, max_object_size=2**20)
    for rows in (1, 23):
        save(config, make(range(rows), attributes), refresh=True)
        assert_all_there(config, rows, attributes)


def test_rows_in_any_order(storage: dict[str, str]) -> None:
    """Of attributes alone too; small columns are read whole, others by the block."""
    config = compressed(storage, EVERY_KIND)
    save_rows(config, 900, 100)
    assert_in_any_order(config, 900)


def test_objects_are_filled_by_what_is_stored(memory: dict[str, str]) -> None:
    """Rows of zeros: many times as many as an object has room for."""
    attributes = [NUMBER, Attribute("zeros", "float32", (250,)), Attribute("noise", "uint8", (9,))]
    config = compressed(memory, attributes, max_object_size=2**20)
    noise = np.random.default_rng(0).integers(0, 256, (150_000, 9), np.uint8)
    zeros = np.zeros((1000, 250), np.float32)
    with DataSaver(config) as saver:
        for first in range(0, 150_000, 1000):
            numbers = np.arange(first, first + 1000)
            saver({ROW: numbers, "zeros": zeros, "noise": noise[numbers]})
    objects = Dataset(config).open().objects
    sizes = [one.nbytes for one in objects]
    assert max(sizes) <= 2**20
    assert min(sizes[:-1]) >= 0.75 * 2**20
    assert sum(one.decoded for one in objects) > 20 * sum(sizes)
    for batch in DataLoader(config, batch_size=999, shuffle=True):
        assert not batch["zeros"].any()
        assert (batch["noise"] == noise[batch[ROW]]).all()


def test_what_cannot_be_compressed_takes_no_more(memory: dict[str, str]) -> None:
    attributes = [Attribute("noise", "uint8", (1000,))]
    noise = np.random.default_rng(0).integers(0, 256, (3000, 1000), np.uint8)
    sizes = {}
    for compressor in (None, {"complib": "zstd"}):
        config = DataConfig(str(bool(compressor)), attributes, compressor=compressor, **memory)
        save(config, {"noise": noise})
        assert (Dataset(config)[:]["noise"] == noise).all()
        sizes[bool(compressor)] = Dataset(config).open().nbytes
    assert sizes[True] < sizes[False] * 1.005


def test_one_attribute_is_and_another_is_not(storage: dict[str, str]) -> None:
    attributes = [
        NUMBER,
        Attribute("tokens", "int32", (None,), compressor={"complib": "lz4"}),
        Attribute("image", "uint8", (3, 17)),
        Attribute("caption", "str", compressor={"complib": "zlib", "complevel": 9}),
        Attribute("wave", "complex64", (9,), compressor={"complib": "blosc:zstd"}),
        Attribute("boxes", "float32", (None, 2)),
    ]
    config = compressed(storage, attributes, compressor=None)
    save_rows(config, 500, 70)
    assert_all_there(config, 500, attributes)
    plain = Dataset(config, attributes=["image", ROW])
    assert_rows(plain[[3, 499, 0]], [3, 499, 0], [attributes[2], attributes[0]])


def test_commits_of_several_codecs(storage: dict[str, str]) -> None:
    """In one dataset: as it is, by one codec, by another."""
    ways = [None, {"complib": "zstd"}, {"complib": "lz4", "shuffle": False}, None]
    config = compressed(storage, MIXED)
    for number, compressor in enumerate(ways):
        with DataSaver(compressed(storage, MIXED, compressor=compressor)) as saver:
            saver(make(range(number * 400, (number + 1) * 400), MIXED))
    rows = len(ways) * 400
    for batches in (dataset, loader, index_loader):
        assert_all_there(config, rows, MIXED, [batches])
    index = np.random.default_rng(0).permutation(rows)
    assert_rows(Dataset(config)[index], index, MIXED)
    seen = np.concatenate([b[ROW] for b in DataLoader(config, batch_size=33, shuffle="global")])
    assert sorted(seen) == list(range(rows))
    assert verify(config).problems == ()


def test_a_saver_that_knows_no_compressor_appends_without(memory: dict[str, str]) -> None:
    config = compressed(memory, MIXED)
    save(config, make(range(10), MIXED))
    save(DataConfig("compressed", **memory), make(range(10, 20), MIXED))
    assert_rows(Dataset(config)[:], range(20), MIXED)
    assert [bool(getattr(o.layout, "codecs", {})) for o in Dataset(config).open().objects] == [
        True,
        False,
    ]


def test_bytes_are_the_same_for_the_same_rows(memory: dict[str, str]) -> None:
    copies = []
    for name in ("one", "two"):
        config = DataConfig(name, EVERY_KIND, compressor={}, **memory)
        save(config, make(range(300), EVERY_KIND))
        catalog = Catalog(config)
        copies.append(bytes(catalog.store.get(catalog.snapshot().key(0))))
    assert copies[0] == copies[1]


def test_hdf5_shows_the_filters(memory: dict[str, str]) -> None:
    """With the names and values that HDF5's own tools would have given."""
    attributes = [
        Attribute(name, "float32", (3,), compressor={"complib": name, "complevel": 1})
        for name in ("zlib", "zstd", "lz4")
    ]
    attributes.append(Attribute("bytes", "uint8", (5,), compressor={"complib": "zlib"}))
    config = DataConfig("filters", attributes, **memory)
    save(config, make(range(90), attributes))
    catalog = Catalog(config)
    with h5py.File(io.BytesIO(catalog.store.get(catalog.snapshot().key(0)))) as h5:
        assert (h5["zlib"].shuffle, h5["zlib"].compression, h5["zlib"].compression_opts) == (
            True,
            "gzip",
            1,
        )
        assert not h5["bytes"].shuffle
        assert h5["zstd"].chunks == (90, 3)
        kinds = {
            name: [
                h5[name].id.get_create_plist().get_filter(i)[0]
                for i in range(h5[name].id.get_create_plist().get_nfilters())
            ]
            for name in ("zlib", "zstd", "lz4", "bytes")
        }
        assert kinds == {"zlib": [2, 1], "zstd": [2, 32015], "lz4": [2, 32004], "bytes": [1]}


codecs = st.none() | st.fixed_dictionaries(
    {"complib": st.sampled_from(COMPLIBS), "shuffle": st.booleans()}
)


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 4), max_size=3).map(tuple)
            | st.just((700,))
            | st.lists(st.integers(1, 3), max_size=2).map(lambda inner: (None, *inner)),
            codecs,
        )
        | st.tuples(st.sampled_from(TEXTS), st.just(()), codecs),
        min_size=1,
        max_size=5,
    ),
    compressor=codecs,
    rows=st.integers(1, 200),
    size=st.integers(1, 200),
    commits=st.integers(1, 2),
)
@settings(max_examples=40)
def test_any_schema(
    drawn: list[tuple[str, tuple[int | None, ...], dict[str, Any] | None]],
    compressor: dict[str, Any] | None,
    rows: int,
    size: int,
    commits: int,
) -> None:
    attributes = [
        Attribute(f"a{i}", dtype, shape, compressor=own)
        for i, (dtype, shape, own) in enumerate(drawn)
    ]
    storage = {"storage": f"memory://{uuid.uuid4().hex}"}
    config = compressed(storage, attributes, compressor=compressor)
    with DataSaver(config) as saver:
        for number in range(commits):
            for first in range(0, rows, size):
                start, stop = number * rows + first, number * rows + min(rows, first + size)
                saver(make(range(start, stop), attributes))
            saver.commit()
    assert_all_there(config, commits * rows, attributes, FEW)
