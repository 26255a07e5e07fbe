"""What was saved comes back bit for bit, through every way of reading."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.hdf5 import capacity
from storage_loader.schema import DTYPES, TEXTS, Schema
from tests.support.rows import ROW, assert_rows, make, save_rows
from tests.support.ways import (
    EVERY_KIND,
    MIXED,
    NUMBER,
    WAYS,
    assert_all_there,
    assert_in_any_order,
    dataset,
    index_loader,
    loader,
    named,
    plain_h5py,
    torch_loader,
)

SHAPES: list[tuple[int, ...]] = [(), (1,), (2, 3), (3, 224, 224), (0,), (2, 0, 3)]


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
    assert_in_any_order(config, 700)


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
    subsets = (["small"], ["large", "huge"], [ROW, "small"])
    assert_in_any_order(config, rows, attributes, subsets)
    for subset in subsets:
        for way in (DataLoader(config, attributes=subset, batch_size=rows, index=True),
                    DataLoader(config, attributes=subset, batch_size=rows)):  # fmt: skip
            [batch] = way
            assert_rows(batch, range(rows), named(attributes, subset))


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
