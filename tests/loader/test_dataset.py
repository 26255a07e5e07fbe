"""`Dataset`: rows by their numbers, and no byte more than their blocks."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ConfigError,
    DatasetNotFoundError,
    LoaderError,
    SchemaError,
    UnknownNameError,
)
from storage_loader.hdf5 import capacity
from storage_loader.schema import Schema
from tests.support.faulty import WatchedStore, watch
from tests.support.rows import ATTRIBUTES, ROW, assert_rows, config, make, numbers_in, save_rows

COUNT = 100


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """Rows 0 to 99 in objects of 7 rows at most, in several commits."""
    attributes = [*ATTRIBUTES, Attribute("pixels", "uint8", (9000,))]
    the_config = config(
        {"storage": str(tmp_path_factory.mktemp("hundred"))},
        attributes=attributes,
        max_object_size=MIN_OBJECT_SIZE,
    )
    save_rows(the_config, COUNT, 30, commits=True)
    assert len(Dataset(the_config).open().objects) > 12
    return the_config


def attributes_of(the_config: DataConfig) -> Sequence[Attribute]:
    assert the_config.attributes is not None
    return the_config.attributes


@pytest.mark.parametrize("row", [0, 1, 17, COUNT - 1, -1, -COUNT])
@pytest.mark.parametrize("kind", [int, np.int64, np.int8, np.uint8], ids=lambda k: k.__name__)
def test_one_row_has_no_batch_axis(hundred: DataConfig, row: int, kind: Any) -> None:
    if kind is np.uint8 and row < 0:
        row += COUNT
    got = Dataset(hundred)[kind(row)]
    attributes = attributes_of(hundred)
    assert {name: value.shape for name, value in got.items()} == {
        a.name: a.shape for a in attributes
    }
    assert_rows({name: value[None] for name, value in got.items()}, [row % COUNT], attributes)
    assert all(isinstance(value, np.ndarray) for value in got.values())


INDICES: list[Any] = [
    slice(None),
    slice(10, 20),
    slice(10, 10),
    slice(20, 10),
    slice(None, None, 7),
    slice(None, None, -1),
    slice(-5, None),
    slice(90, 1000),
    slice(5, 60, 13),
    slice(60, 5, -13),
    range(10),
    range(50, 10, -7),
    range(0),
    [],
    [3],
    [3, 1, 2],
    [0, 0, 99, 0],
    [-1, 0, -100],
    (3, 1, 2),
    np.array([5, 4], np.uint16),
    np.array([], np.int64),
    np.array([], np.float64),  # what np.array([]) is
    np.arange(COUNT) % 3 == 0,
    np.zeros(COUNT, bool),
    [True] * COUNT,
]


@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index)[:30])
def test_many_rows_are_a_batch(hundred: DataConfig, index: Any) -> None:
    if isinstance(index, slice):
        numbers = np.arange(COUNT)[index]
    else:
        numbers = np.arange(COUNT)[np.asarray(index, dtype=None if len(index) else np.int64)]
    assert_rows(Dataset(hundred)[index], numbers, attributes_of(hundred))


@given(data=st.data())
@settings(max_examples=60)
def test_any_rows_in_any_order(hundred: DataConfig, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(-COUNT, COUNT - 1), max_size=150))
    expected = [number % COUNT for number in numbers]
    assert_rows(Dataset(hundred)[numbers], expected, attributes_of(hundred))


WRONG: list[tuple[Any, str]] = [
    (COUNT, "row 100 of a dataset of 100 rows"),
    (-COUNT - 1, "row -101 of a dataset of 100 rows"),
    (np.int64(100), "row 100 of a dataset of 100 rows"),
    ([0, 99, 100, 500], "row 100 of a dataset of 100 rows"),
    ([0, -101], "row -101 of a dataset of 100 rows"),
    (range(99, 101), "row 100 of a dataset of 100 rows"),
    (np.array([2**64 - 1], np.uint64), "row 18446744073709551615 of a dataset of 100 rows"),
    (1.0, "an index is a row number, a slice, or a list of them, not 1.0"),
    (
        "row",
        "an index is a row number, a slice, or a list of them, not 'row'; to read only this, make "
        "a Dataset with attributes=['row']",
    ),
    (
        "rows",
        "an index is a row number, a slice, or a list of them, not 'rows'; nor is 'rows' an "
        "attribute; did you mean 'row'?",
    ),
    (["image", "row"], "row numbers are integers, not 'image'; to read only this"),
    (("row", 3), "row numbers are integers, not 'row'; an attribute of rows is dataset[rows]"),
    ((slice(2), "row"), "row numbers are integers, not slice(None, 2, None); an attribute"),
    ((1, [2, 3]), "an index is a row number, a slice, or a list of them, not (1, [2, 3])"),
    (np.array(1.0), "an index is a row number, a slice, or a list of them, not array(1.)"),
    (np.array(True), "an index is a row number, a slice, or a list of them, not array(True)"),
    (np.array(COUNT), "row 100 of a dataset of 100 rows"),
    (None, "an index is a row number, a slice, or a list of them, not None"),
    (True, "an index is a row number, a slice, or a list of them, not True"),
    (10**30, f"row {10**30} of a dataset of 100 rows"),
    (range(10**30, 10**30 + 2), f"row {10**30 + 1} of a dataset of 100 rows"),
    ([[1, 2]], "an index is a row number, a slice, or a list of them, not [[1, 2]]"),
    (np.zeros((2, 2), int), "an index is a row number, a slice, or a list of them, not array([[0"),
    ([1.0, 2.0], "row numbers are integers, not 1.0"),
    (np.array([1.5]), "row numbers are integers, not 1.5"),
    (["a"], "row numbers are integers, not 'a'"),
    ([True, False], "a mask of 2 entries for 100 rows"),
    (np.ones(COUNT + 1, bool), "a mask of 101 entries for 100 rows"),
]


@pytest.mark.parametrize(("index", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_index_is_an_index_error(hundred: DataConfig, index: Any, message: str) -> None:
    with pytest.raises(IndexError) as caught:
        Dataset(hundred)[index]
    assert str(caught.value).startswith(message)


def test_no_rows(memory: dict[str, str]) -> None:
    with DataSaver(config(memory), refresh=True):
        pass
    dataset = Dataset(config(memory))
    assert len(dataset) == 0
    assert list(dataset) == []
    for index in (slice(None), [], np.zeros(0, bool), range(0)):
        assert_rows(dataset[index], [])
    for wrong in (0, -1, [0]):
        with pytest.raises(IndexError, match="of a dataset of 0 rows"):
            dataset[wrong]


def test_iteration_gives_each_row_once(hundred: DataConfig) -> None:
    rows = list(Dataset(hundred))
    assert len(rows) == COUNT
    for number, row in enumerate(rows):
        assert_rows(
            {name: value[None] for name, value in row.items()}, [number], attributes_of(hundred)
        )


def test_it_is_a_sequence_for_those_who_count(hundred: DataConfig) -> None:
    dataset = Dataset(hundred)
    assert len(dataset) == dataset.num_rows == COUNT
    assert [int(dataset[i][ROW]) for i in range(len(dataset))] == list(range(COUNT))
    assert [int(row[ROW]) for row in dataset.rows([5, -1])] == [5, 99]


def test_attributes_are_read_in_the_order_asked_for(hundred: DataConfig) -> None:
    dataset = Dataset(hundred, attributes=["weight", ROW])
    assert list(dataset[3]) == list(dataset[2:5]) == ["weight", ROW]
    assert dataset.schema.names == tuple(dataset.spec) == ("weight", ROW)
    assert dataset.spec["weight"] == Attribute("weight", "float32", (2,))
    as_tuple = Dataset(hundred, attributes=[ROW, "image"], as_tuple=True)
    row, image = as_tuple[7]
    assert (int(row), image.shape) == (7, (3, 5))
    assert [int(r) for r, _ in as_tuple] == list(range(COUNT))


def test_wrong_attributes(hundred: DataConfig) -> None:
    for wrong, message in [
        (["imgae"], "no attribute 'imgae'; did you mean 'image'?"),
        ("image", "attributes: a list of names, e.g. ['image'], not a string"),
        ([ROW, ROW], "attribute 'row' stands twice"),
    ]:
        with pytest.raises(SchemaError) as caught:
            Dataset(hundred, attributes=wrong).open()
        assert str(caught.value) == message


def test_wrong_arguments(hundred: DataConfig) -> None:
    with pytest.raises(ConfigError, match=r"^Dataset takes a DataConfig, not str; give DataConfig"):
        Dataset("rows")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^transform: a function of the batch, not 5$"):
        Dataset(hundred, transform=5)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"'atributes'; did you mean 'attributes'"):
        Dataset(hundred, atributes=[])  # type: ignore[call-arg]


def test_transform_gets_what_indexing_gives(hundred: DataConfig) -> None:
    def add_shape(arrays: dict[str, Any]) -> dict[str, Any]:
        return {**arrays, "shape": arrays["image"].shape}

    dataset = Dataset(hundred, attributes=["image", ROW], transform=add_shape)
    assert dataset[3]["shape"] == (3, 5)
    assert dataset[3:7]["shape"] == (4, 3, 5)
    assert [row["shape"] for row in dataset.rows([1, 2])] == [(3, 5)] * 2
    assert next(iter(dataset))["shape"] == (3, 5)
    tuples = Dataset(hundred, attributes=[ROW], transform=add_shape_of_row, as_tuple=True)
    assert tuples[5] == (5, "more")
    with pytest.raises(
        LoaderError, match=r"^as_tuple needs a dict from transform, not int; return"
    ):
        Dataset(hundred, transform=lambda arrays: 5, as_tuple=True)[0]


def add_shape_of_row(arrays: dict[str, Any]) -> dict[str, Any]:
    return {ROW: int(arrays[ROW]), "more": "more"}


def test_what_is_given_belongs_to_the_caller(hundred: DataConfig) -> None:
    dataset = Dataset(hundred)
    first, second = dataset[:10], dataset[:10]
    for array in first.values():
        assert array.flags.writeable
        array.view(np.uint8)[...] = 0
    assert_rows(second, range(10), attributes_of(hundred))
    assert_rows(dataset[:10], range(10), attributes_of(hundred))
    row = dataset[3]
    row["image"][...] = 7
    assert_rows(dataset[[3]], [3], attributes_of(hundred))


def test_it_is_picklable_and_carries_its_version(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    dataset = Dataset(config(folder), attributes=[ROW])
    copies = [pickle.loads(pickle.dumps(dataset))]  # pinned by being pickled
    save(config(folder), make([7]), refresh=True)
    assert dataset[1][ROW] == 1
    copies.append(pickle.loads(pickle.dumps(dataset)))
    for copy in copies:
        assert copy[:][ROW].tolist() == [0, 1, 2, 3, 4]
        assert copy.version == dataset.version


def test_the_repr(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    dataset = Dataset(config(folder))
    assert repr(dataset) == f"Dataset('rows' in file://{folder['storage']})"
    dataset.open()
    assert repr(dataset).endswith(f", 5 rows, {dataset.version})")


def test_a_config_with_other_attributes_is_refused(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    with pytest.raises(SchemaError, match="attribute 'image' of the dataset is missing"):
        Dataset(config(folder, attributes=[(ROW, "int64")])).open()
    with pytest.raises(DatasetNotFoundError, match="'rows'"):
        Dataset(config(folder, "Rows")).open()


def test_many_threads_may_read_at_once(storage: dict[str, str]) -> None:
    attributes = [*ATTRIBUTES, Attribute("pixels", "uint8", (9000,))]
    the_config = config(storage, attributes=attributes, max_object_size=4 * MIN_OBJECT_SIZE)
    save(the_config, make(range(200), attributes))
    dataset = Dataset(the_config)
    failures = []

    def read(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(8):
                numbers = generator.integers(0, 200, 20)
                assert_rows(dataset[numbers], numbers, attributes)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# What is read


BIG = [
    Attribute("image", "uint8", (48 * 1024,)),
    Attribute(ROW, "int64"),
    Attribute("label", "uint8", (4,)),
]
OBJECTS = 15


@pytest.fixture(scope="module")
def big() -> DataConfig:
    """20,000 rows of 48 KiB: 15 objects of the same bytes, in memory once. Row k is k % 1365."""
    the_config = DataConfig("big", BIG, storage="memory://big")
    per_object = capacity(Schema.of(BIG), the_config.max_object_size)
    save(the_config, make(range(per_object), BIG))
    catalog = Catalog(the_config)
    [one] = catalog.snapshot().objects
    body = catalog.store.get(f"{catalog.prefix}/{one.key}").obj
    copies = [replace(one, key=f"objects/copy/{number:02}.h5") for number in range(OBJECTS)]
    for copy in copies:
        catalog.store.put(f"{catalog.prefix}/{copy.key}", body)  # bytes: kept, not copied
    catalog.publish(Schema.of(BIG), copies, writer="copy", number=0, refresh=True)
    assert len(Dataset(the_config)) == OBJECTS * per_object >= 20_000
    return the_config


def taken(stores: list[WatchedStore]) -> dict[str, list[tuple[int, int]]]:
    """The ranges asked of each data object since the last call; no object was read whole."""
    found: dict[str, list[tuple[int, int]]] = {}
    for store in stores:
        assert not {"get object", "stream object"} & set(store.kinds())
        for call in store.calls:
            if call.kind == "get_ranges object" and call.ranges:
                found.setdefault(call.key, []).extend(call.ranges)
        store.calls.clear()
    return found


def nbytes(ranges: dict[str, list[tuple[int, int]]]) -> int:
    return sum(end - start for each in ranges.values() for start, end in each)


def small_nbytes(dataset: Dataset) -> int:
    """Bytes of an object's small columns and checksums."""
    layout = dataset.open().objects[0].layout
    assert layout.small == {ROW, "label"}
    start, end = layout.directory_range
    return end - start + sum(layout.columns[name].nbytes for name in layout.small)


def test_random_rows_ask_for_little_more_than_their_own_bytes(
    big: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch, local=False)
    dataset = Dataset(big, cache_size=0)
    rows, generator = len(dataset), np.random.default_rng(0)
    per_object = rows // OBJECTS
    small = small_nbytes(dataset)
    touched: set[str] = set()
    for _ in range(5):
        numbers = generator.choice(rows, 64, replace=False)
        assert_rows(dataset[numbers], numbers % per_object, BIG)
        asked = taken(stores)
        new = set(asked) - touched
        touched |= new
        assert len(asked) == len({number // per_object for number in numbers.tolist()})
        assert 64 * 48 * 1024 <= nbytes(asked) <= 1.05 * 64 * 48 * 1024 + len(new) * small
    assert len(touched) == OBJECTS


def test_the_loader_with_index_asks_for_no_more_and_fills_no_cache(
    big: DataConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = small_nbytes(Dataset(big))
    some = np.random.default_rng(1).choice(len(Dataset(big)), 640, replace=False)
    stores = watch(monkeypatch, local=False)
    cache = tmp_path / "cache"
    loader = DataLoader(
        big, batch_size=64, shuffle="global", index=True, cache_dir=cache, subset=some
    )
    seen = numbers_in(loader, BIG)
    assert sorted(seen) == sorted((some % (len(Dataset(big)) // OBJECTS)).tolist())
    asked = nbytes(taken(stores))
    assert 640 * 48 * 1024 <= asked <= 1.05 * 640 * 48 * 1024 + OBJECTS * small
    assert not cache.exists()


def test_neighbours_come_in_one_request(big: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = watch(monkeypatch, local=False)
    dataset = Dataset(big, cache_size=0)
    assert_rows(dataset[[500]], [500], BIG)
    taken(stores)
    for numbers, requests in [
        ([100, 101, 102, 103], [4]),
        ([103, 100, 102, 101], [4]),
        ([7, 200, 8, 201, 9], [3, 2]),
        ([5, 5, 5], [1]),
    ]:
        assert_rows(dataset[numbers], numbers, BIG)
        [ranges] = taken(stores).values()
        assert [end - start for start, end in ranges] == [count * 48 * 1024 for count in requests]


def test_small_columns_are_read_once_for_each_object(
    big: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch, local=False)
    dataset = Dataset(big, attributes=[ROW])
    numbers = list(range(0, len(dataset), 333))
    expected = [number % (len(dataset) // OBJECTS) for number in numbers]
    assert dataset[numbers][ROW].tolist() == expected
    asked = taken(stores)
    assert len(asked) == OBJECTS
    assert nbytes(asked) <= OBJECTS * (small_nbytes(Dataset(big)) + 256)
    stores[1].calls.clear()
    assert dataset[numbers][ROW].tolist() == expected
    assert taken(stores) == {}


def test_rows_smaller_than_a_block_round_up_to_blocks(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = [Attribute("pixels", "uint8", (1000,)), Attribute(ROW, "int64")]
    the_config = DataConfig("blocks", attributes, **memory)
    save(the_config, make(range(1000), attributes))
    stores = watch(monkeypatch, local=False)
    dataset = Dataset(the_config, attributes=["pixels"], cache_size=0)
    column = dataset.open().objects[0].layout.columns["pixels"]
    assert column.block_items == 65
    for numbers, blocks in [([0], 1), ([70], 1), ([64, 65], 2), ([999], 1), ([3, 9, 64], 1)]:
        pixels = [attributes[0]]
        assert_rows(dataset[numbers], numbers, pixels)
        ranges = [r for each in taken(stores).values() for r in each if r[0] >= column.offset]
        expected = {column.block_range(number // 65) for number in numbers}
        assert sum(end - start for start, end in ranges) == sum(e - s for s, e in expected)
        assert len(ranges) == 1
        assert blocks == len(expected)


def test_a_folder_is_mapped_in_place(hundred: DataConfig, tmp_path: Path) -> None:
    """No copy of an object is made, neither in a cache nor elsewhere."""
    cache = tmp_path / "cache"
    for index in (False, True):
        loader = DataLoader(hundred, batch_size=10, index=index, cache_dir=cache)
        assert sum(len(batch[ROW]) for batch in loader) == COUNT
    assert not cache.exists()
    assert not (tmp_path / "home").exists()
