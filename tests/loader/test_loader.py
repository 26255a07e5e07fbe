"""`DataLoader`: batches, epochs and orders; what is fetched when, and what ends when it does."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, Pad, save, split
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ConfigError,
    LoaderAttributeError,
    LoaderError,
    SchemaError,
    TransformError,
    UnknownNameError,
)
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, fail_on, watch
from tests.support.rows import (
    ATTRIBUTES,
    ROW,
    assert_rows,
    config,
    in_batches,
    make,
    numbers_in,
    numbers_of,
    save_rows,
)
from tests.support.threads import running
from tests.support.waiting import until

COUNT = 100
WITH_PIXELS = (*ATTRIBUTES, Attribute("pixels", "uint8", (9000,)))  # 7 rows an object


def fill(storage: dict[str, str], rows: int = COUNT) -> DataConfig:
    """Numbered rows in many small objects of several commits."""
    the_config = config(storage, attributes=WITH_PIXELS, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, rows, 30, commits=True, refresh=True)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("hundred"))})


def numbers(loader: DataLoader) -> list[int]:
    """The numbers of one `iter(loader)`."""
    return numbers_in(loader, WITH_PIXELS)


# Batches


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 3, 10, 33, COUNT - 1, COUNT, COUNT + 1, 10**6])
def test_batches_hold_batch_size_rows_in_order(
    hundred: DataConfig, batch_size: int, drop_last: bool
) -> None:
    loader = DataLoader(hundred, batch_size=batch_size, drop_last=drop_last)
    expected = [list(r) for r in in_batches(0, COUNT, batch_size)]
    if drop_last and len(expected[-1]) < batch_size:
        expected.pop()
    batches = [numbers_of(batch, WITH_PIXELS) for batch in loader]
    assert batches == expected
    assert len(loader) == len(batches)
    assert loader.num_rows == COUNT


def test_the_default_batch_is_one_row(hundred: DataConfig) -> None:
    first = next(iter(DataLoader(hundred)))
    assert_rows(first, [0], WITH_PIXELS)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("index", [False, True])
def test_batch_size_none_gives_rows_without_the_batch_axis(
    hundred: DataConfig, index: bool, shuffle: Any
) -> None:
    loader = DataLoader(hundred, batch_size=None, index=index, shuffle=shuffle)
    assert len(loader) == COUNT
    rows = list(loader)
    for row in rows:
        assert {n: v.shape for n, v in row.items()} == {a.name: a.shape for a in WITH_PIXELS}
        assert all(isinstance(value, np.ndarray) for value in row.values())
    batched = DataLoader(hundred, batch_size=10, index=index, shuffle=shuffle)
    seen = numbers_in(({n: v[None] for n, v in row.items()} for row in rows), WITH_PIXELS)
    assert seen == numbers(batched)


@given(
    rows=st.integers(0, 40),
    batch_size=st.none() | st.integers(1, 50),
    drop_last=st.booleans(),
    shuffle=st.sampled_from([False, True, "global"]),
    index=st.booleans(),
    epochs=st.integers(1, 3),
)
@settings(max_examples=60)
def test_every_row_once_an_epoch_whatever_the_settings(
    rows: int, batch_size: int | None, drop_last: bool, shuffle: Any, index: bool, epochs: int
) -> None:
    the_config = filled_memory(rows)
    loader = DataLoader(
        the_config, batch_size=batch_size, drop_last=drop_last, shuffle=shuffle, index=index,
        epochs=epochs,
    )  # fmt: skip
    batches = [
        {n: v[None] for n, v in batch.items()} if batch_size is None else batch for batch in loader
    ]
    assert len(batches) == len(loader)
    seen = [numbers_of(batch, WITH_PIXELS) for batch in batches]
    size = batch_size or 1
    an_epoch = len(loader) // epochs
    for epoch in range(epochs):
        part = seen[epoch * an_epoch : (epoch + 1) * an_epoch]
        flat = [number for batch in part for number in batch]
        assert all(len(batch) == size for batch in part[:-1])
        if drop_last:
            assert len(flat) == rows - rows % size
            assert len(set(flat)) == len(flat)
            assert set(flat) <= set(range(rows))
        else:
            assert sorted(flat) == list(range(rows))
        if not shuffle:
            assert flat == sorted(flat)


_filled: dict[int, DataConfig] = {}


def filled_memory(rows: int) -> DataConfig:
    if rows not in _filled:
        _filled[rows] = fill({"storage": f"memory://loader-{rows}"}, rows)
    return _filled[rows]


def test_batches_do_not_change_when_later_ones_are_made(hundred: DataConfig) -> None:
    for index in (False, True):
        for batch_size in (None, 9):
            batches = list(DataLoader(hundred, batch_size=batch_size, index=index))
            start = 0
            for batch in batches:
                whole = batch if batch_size else {n: v[None] for n, v in batch.items()}
                rows = len(whole[ROW])
                assert_rows(whole, range(start, start + rows), WITH_PIXELS)
                start += rows
            assert start == COUNT


def test_a_batch_belongs_to_the_caller(hundred: DataConfig) -> None:
    for _ in range(2):  # nor does the next epoch see what was done to the batches of this one
        start = 0
        for batch in DataLoader(hundred, batch_size=9):
            assert_rows(batch, range(start, min(start + 9, COUNT)), WITH_PIXELS)
            start += 9
            for array in batch.values():
                assert array.flags.writeable
                array.view(np.uint8)[...] = 0
            batch.clear()


# Orders and epochs


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("shuffle", [True, "global"])
def test_each_epoch_is_another_permutation(hundred: DataConfig, shuffle: Any, index: bool) -> None:
    loader = DataLoader(hundred, batch_size=9, shuffle=shuffle, index=index)
    epochs = [numbers(loader) for _ in range(5)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert list(range(COUNT)) not in epochs


@pytest.mark.parametrize("shuffle", [True, "global"])
def test_the_order_is_that_of_seed_and_epoch(hundred: DataConfig, shuffle: Any) -> None:
    def order(epoch: int, seed: int, **settings: Any) -> list[int]:
        loader = DataLoader(hundred, shuffle=shuffle, seed=seed, **settings)
        loader.set_epoch(epoch)
        return numbers(loader)

    first = order(3, 0, batch_size=9)
    assert first == order(3, 0, batch_size=50) == order(3, 0, batch_size=7, index=True)
    assert first != order(3, 1, batch_size=9)
    assert first != order(4, 0, batch_size=9)
    default = DataLoader(hundred, shuffle=shuffle, batch_size=9)
    default.set_epoch(3)
    assert numbers(default) == first


@pytest.mark.parametrize("shuffle", [True, "global"])
def test_the_order_does_not_depend_on_the_attributes_read(
    hundred: DataConfig, shuffle: Any
) -> None:
    [everything] = DataLoader(hundred, shuffle=shuffle, batch_size=COUNT)
    [rows] = DataLoader(hundred, shuffle=shuffle, batch_size=COUNT, attributes=[ROW])
    assert rows[ROW].tolist() == everything[ROW].tolist()


def test_set_epoch_chooses_the_next_epoch(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, shuffle=True, batch_size=50)
    epochs = [numbers(loader) for _ in range(3)]
    for epoch in (1, 0, 2):
        loader.set_epoch(epoch)
        assert numbers(loader) == epochs[epoch]
    assert numbers(loader) not in epochs  # epoch 3 follows
    for wrong in (-1, 1.0, "1", True, None):
        with pytest.raises(ConfigError, match=rf"^epoch {wrong!r}: a whole number from 0 up$"):
            loader.set_epoch(wrong)  # type: ignore[arg-type]


def test_an_early_exit_ends_the_epoch(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, shuffle=True, batch_size=50)
    epochs = [numbers(loader) for _ in range(2)]
    loader.set_epoch(0)
    for batch in loader:
        assert numbers_of(batch, WITH_PIXELS) == epochs[0][:50]
        break
    assert numbers(loader) == epochs[1]


def test_several_epochs_in_one_iteration(hundred: DataConfig) -> None:
    single = DataLoader(hundred, shuffle=True, batch_size=30)
    three = DataLoader(hundred, shuffle=True, batch_size=30, epochs=3)
    assert len(three) == 3 * len(single) == 12
    expected = [numbers(single) for _ in range(6)]
    sizes = [len(batch[ROW]) for batch in three]
    assert sizes == [30, 30, 30, 10] * 3  # a batch never spans two epochs
    three.set_epoch(0)
    for start in (0, 3):
        flat = numbers(three)
        parts = [flat[i : i + COUNT] for i in range(0, 3 * COUNT, COUNT)]
        assert parts == expected[start : start + 3]


def test_nested_iterations_are_epochs_of_their_own(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, shuffle="global", batch_size=10)
    expected = [numbers(loader) for _ in range(2)]
    loader.set_epoch(0)
    outer, inner = iter(loader), iter(loader)
    seen: list[list[int]] = [[], []]
    for first, second in zip(outer, inner, strict=True):
        seen[0] += numbers_of(first, WITH_PIXELS)
        seen[1] += numbers_of(second, WITH_PIXELS)
    assert seen == expected


def test_an_iterator_is_an_iterator(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, batch_size=60)
    iterator = iter(loader)
    assert iter(iterator) is iterator
    assert [numbers_of(next(iterator), WITH_PIXELS)[0] for _ in range(2)] == [0, 60]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_window_shuffle_mixes_far_and_reads_each_object_once(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = [Attribute("pixels", "uint8", (32 * 1024,)), Attribute(ROW, "int64")]
    the_config = config(memory, attributes=attributes, max_object_size=2**20)
    save(the_config, make(range(1000), attributes))
    objects = len(Dataset(the_config).open().objects)
    stores = watch(monkeypatch)
    loader = DataLoader(the_config, batch_size=64, shuffle=True)
    seen = numbers_in(loader, attributes)
    assert sorted(seen) == list(range(1000))
    assert len(set(np.abs(np.diff(seen)))) > 100
    calls = [call for store in stores for call in store.calls]
    gets = [call.key for call in calls if call.kind == "get_ranges object"]
    assert len(gets) == len(set(gets)) == objects


# What a batch holds


def test_transform_gets_the_batch(hundred: DataConfig) -> None:
    def mean(batch: dict[str, Any]) -> dict[str, Any]:
        return {ROW: batch[ROW], "mean": batch["pixels"].mean(axis=1)}

    start = 0
    for batch in DataLoader(hundred, batch_size=30, transform=mean):
        rows = range(start, min(start + 30, COUNT))
        assert batch[ROW].tolist() == list(rows)
        assert np.array_equal(batch["mean"], make(rows, WITH_PIXELS)["pixels"].mean(axis=1))
        start += 30
    shapes = DataLoader(hundred, batch_size=None, transform=lambda row: row["image"].shape)
    assert list(shapes) == [(3, 5)] * COUNT


def test_as_tuple(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, batch_size=COUNT, as_tuple=True, attributes=[ROW, "image"])
    [(rows, images)] = loader
    assert rows.tolist() == list(range(COUNT))
    assert np.array_equal(images, make(range(COUNT))["image"])
    everything = next(iter(DataLoader(hundred, as_tuple=True)))
    assert [array.dtype.name for array in everything] == [a.dtype for a in WITH_PIXELS]
    transformed = DataLoader(
        hundred, batch_size=50, as_tuple=True, transform=lambda b: {"a": 1, "b": 2}
    )
    assert list(transformed) == [(1, 2)] * 2
    wrong = DataLoader(hundred, as_tuple=True, transform=lambda b: [1])
    with pytest.raises(LoaderError, match=r"^as_tuple needs a dict from transform, not list; "):
        next(iter(wrong))


@pytest.mark.parametrize("index", [False, True])
def test_attributes_in_the_order_asked_for(hundred: DataConfig, index: bool) -> None:
    names = ["weight", "pixels", ROW]
    chosen = [next(a for a in WITH_PIXELS if a.name == name) for name in names]
    loader = DataLoader(hundred, batch_size=COUNT, attributes=names, index=index)
    assert list(loader.spec) == names
    assert loader.schema.attributes == tuple(chosen)
    [batch] = loader
    assert_rows(batch, range(COUNT), chosen)


def test_the_spec_says_what_a_batch_holds(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, batch_size=4)
    assert loader.spec == {a.name: a for a in WITH_PIXELS}
    batch = next(iter(loader))
    for name, attribute in loader.spec.items():
        assert batch[name].dtype == attribute.numpy_dtype
        assert batch[name].shape == (4, *attribute.shape)


def test_wrong_arguments(hundred: DataConfig) -> None:
    by_name = "; give DataConfig(name), or DataConfig.load(path) of a config's file"
    for other, text in [
        ("rows", f"str{by_name}"),
        (Path("rows.json"), f"{type(Path()).__name__}{by_name}"),
        (Dataset(hundred), "Dataset; give its .config"),
        (DataLoader(hundred), "DataLoader; give its .config"),
        (["rows"], "list"),
    ]:
        with pytest.raises(ConfigError) as caught:
            DataLoader(other)  # type: ignore[arg-type]
        assert str(caught.value) == f"DataLoader takes a DataConfig, not {text}"
    for third in (True, "global"):
        with pytest.raises(TypeError) as of_place:
            DataLoader(hundred, 64, third)  # type: ignore[misc]
        assert str(of_place.value) == (
            f"DataLoader(config, batch_size, {third!r}): name what follows batch_size, "
            f"e.g. shuffle={third!r}"
        )
    for name, least, wrongs in [
        ("batch_size", 1, [0, -1, 2.0, "4", True]),
        ("epochs", 1, [0, None, 1.5]),
        ("seed", 0, [-1, None, "x"]),
    ]:
        for wrong in wrongs:
            with pytest.raises(ConfigError) as caught:
                DataLoader(hundred, **{name: wrong})
            assert str(caught.value) == f"{name} {wrong!r}: a whole number from {least} up"
    for wrong in ("globl", None, 2):
        with pytest.raises(ConfigError) as caught:
            DataLoader(hundred, shuffle=wrong)  # type: ignore[arg-type]
        assert str(caught.value) == f"shuffle {wrong!r}: False, True or 'global'"
    with pytest.raises(ConfigError, match=r"^cache_dir: a folder's path, not 3$"):
        DataLoader(hundred, cache_dir=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^transform: a function of the batch, not 5$"):
        DataLoader(hundred, transform=5)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"'batchsize'; did you mean 'batch_size'\?$"):
        DataLoader(hundred, batchsize=4)  # type: ignore[call-arg]
    with pytest.raises(SchemaError, match=r"^no attribute 'imgae'; did you mean 'image'\?$"):
        DataLoader(hundred, attributes=["imgae"])
    unknown = DataConfig(hundred.dataset_name, storage=hundred.storage)  # says no attributes
    with pytest.raises(SchemaError, match=r"^no attribute 'imgae'; did you mean 'image'\?$"):
        len(DataLoader(unknown, attributes=["imgae"]))


# As torch's users know it


def test_batch_size_may_stand_second(hundred: DataConfig) -> None:
    assert len(DataLoader(hundred, 64)) == 2
    assert len(DataLoader(hundred, None)) == COUNT


def test_settings_are_seen_and_not_set(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, 64, shuffle="global", seed=5, drop_last=True)
    seen = {"batch_size": 64, "shuffle": "global", "seed": 5, "drop_last": True, "config": hundred}
    assert {name: getattr(loader, name) for name in seen} == seen
    assert not DataLoader(hundred, last_batch="wrap").drop_last
    wrong = "^{}: a {} stays as it was made; make another {} with what you want$"
    for name in (*seen, "dataset", "num_rows", "transform", "collate_fn", "anything"):
        with pytest.raises(LoaderAttributeError, match=wrong.format(name, *["DataLoader"] * 2)):
            setattr(loader, name, 16)
        with pytest.raises(AttributeError, match=wrong.format(name, *["Dataset"] * 2)):
            setattr(loader.dataset, name, 16)
    assert {name: getattr(loader, name) for name in seen} == seen


def test_what_it_does_not_have_is_told_with_the_nearest(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, 64, subset=slice(9))
    none = "a {} has no attribute '{}'; did you mean '{}'?"
    for one, name, text in [
        (loader, "batchsize", none.format("DataLoader", "batchsize", "batch_size")),
        (Dataset(hundred), "numrows", none.format("Dataset", "numrows", "num_rows")),
        (loader, "dataset", "dataset: this loader reads a subset, of loader.num_rows rows; for"),
    ]:
        with pytest.raises(AttributeError) as caught:
            getattr(one, name)
        assert str(caught.value).startswith(text)
    assert not hasattr(loader, "sampler")
    assert not hasattr(loader, "_sampler")


def test_a_subclass_may_keep_what_is_its_own(hundred: DataConfig) -> None:
    class Named(DataLoader):
        def __init__(self, the_config: DataConfig) -> None:
            self.label = "mine"
            super().__init__(the_config, 7)

    named = Named(hundred)
    assert (named.label, named.batch_size) == ("mine", 7)
    with pytest.raises(AttributeError):
        named.batch_size = 8  # type: ignore[misc]


def test_the_seed_is_that_of_a_loaded_state(
    hundred: DataConfig, caplog: pytest.LogCaptureFixture
) -> None:
    state = DataLoader(hundred, 10, shuffle=True, seed=7).state_dict()
    for seed in (0, 7):  # 0: no other was asked for
        loader = DataLoader(hundred, 10, shuffle=True, seed=seed)
        loader.load_state_dict(state)
        assert loader.seed == 7
    assert not caplog.records
    loader = DataLoader(hundred, 10, shuffle=True, seed=8)
    for _ in range(2):
        loader.load_state_dict(state)
        assert loader.seed == 7
    assert [r.getMessage() for r in caplog.records] == [
        "the loaded state has seed 7, which this loader goes on with; its own was 8"
    ]


def test_its_dataset_has_the_rows_that_it_reads(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    loader = DataLoader(the_config, 10, attributes=["weight", ROW], transform=len)
    dataset = loader.dataset
    assert len(dataset) == loader.num_rows == COUNT
    save(the_config, make([COUNT], WITH_PIXELS))
    assert (len(dataset), dataset.version) == (COUNT, loader.version)
    kept = pickle.loads(pickle.dumps(dataset))
    for one in (dataset, kept):
        batch = one[[5, 3]]
        assert (list(batch), batch[ROW].tolist()) == (["weight", ROW], [5, 3])
    part = DataLoader(the_config, subset=slice(5))
    assert not hasattr(part, "dataset")
    with pytest.raises(LoaderAttributeError, match="reads a subset"):
        part.dataset  # noqa: B018


def test_a_loader_is_no_dataset_of_torchs_loader(hundred: DataConfig) -> None:
    with pytest.raises(LoaderError, match="torch's DataLoader takes Dataset or IterableDataset"):
        DataLoader(hundred)[3]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_counts_its_own_epochs(hundred: DataConfig, copied: Any) -> None:
    loader = DataLoader(hundred, batch_size=30, shuffle=True)
    expected = numbers(DataLoader(hundred, batch_size=30, shuffle=True))
    other = copied(loader)
    assert numbers(loader) == expected
    assert loader.state_dict()["epoch"] == 1
    assert other.state_dict()["epoch"] == 0
    next(iter(other))
    assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (1, 0)
    assert (other.state_dict()["epoch"], other.state_dict()["rows"]) == (0, 30)
    other.set_epoch(0)
    assert numbers(other) == expected


def test_numpy_integers_are_numbers(hundred: DataConfig) -> None:
    loader = DataLoader(hundred, batch_size=np.int64(60), seed=np.uint8(1), epochs=np.int8(1))
    loader.set_epoch(np.int32(2))
    assert numbers(loader) == list(range(COUNT))


# Version, copies


def test_the_version_is_fixed_at_first_use(folder: dict[str, str]) -> None:
    save(config(folder), make(range(10)))
    uses: list[Callable[[DataLoader], Any]] = [
        len,
        lambda loader: loader.spec,
        lambda loader: loader.num_rows,
        lambda loader: loader.version,
        DataLoader.open,
        lambda loader: next(iter(loader)),
        pickle.dumps,
    ]
    loaders = [DataLoader(config(folder), batch_size=4, shuffle=True) for _ in uses]
    for use, loader in zip(uses, loaders, strict=True):
        use(loader)
    save(config(folder), make(range(10, 13)))
    for loader in loaders:
        assert len(loader) == 3
        assert sorted(numbers_in(loader)) == list(range(10))
    assert sorted(numbers_in(DataLoader(config(folder)))) == list(range(13))


def test_a_saver_beside_a_loader_changes_nothing(storage: dict[str, str]) -> None:
    the_config = fill(storage, 60)
    loader = DataLoader(the_config, batch_size=10)
    seen = []
    with DataSaver(the_config) as saver:
        for batch in loader:
            seen += numbers_of(batch, WITH_PIXELS)
            saver(make(range(100, 105), WITH_PIXELS))
            saver.commit()
    assert seen == list(range(60))
    assert numbers(loader) == list(range(60))


def test_a_pickled_loader_goes_on_with_its_version_and_epoch(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    loader = DataLoader(the_config, batch_size=30, shuffle=True)
    epochs = [numbers(loader) for _ in range(2)]
    loader.set_epoch(1)
    copy = pickle.loads(pickle.dumps(loader))
    save(the_config, make([7], WITH_PIXELS), refresh=True)
    assert numbers(copy) == epochs[1]
    assert copy.version == loader.version


def test_the_repr(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    loader = DataLoader(config(folder), batch_size=4, shuffle="global")
    assert repr(loader) == (
        f"DataLoader('rows' in file://{folder['storage']}, batch_size=4, shuffle='global', epoch 0)"
    )
    list(loader)
    assert repr(loader).endswith(f", epoch 1, 5 rows, {loader.version})")


# The cache of a network store


def object_reads(stores: list[WatchedStore]) -> list[Call]:
    """What was asked of objects since the last call."""
    reads = [
        call
        for store in stores
        for call in store.calls
        if call.verb != "put" and call.kind.endswith(" object") and (call.nbytes or not call.ranges)
    ]
    for store in stores:
        store.calls.clear()
    return reads


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.cached"))


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_a_second_epoch_fetches_nothing(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shuffle: Any
) -> None:
    the_config = fill(memory)
    objects = len(Dataset(the_config).open().objects)
    stores = watch(monkeypatch, local=False)
    cache = tmp_path / "cache"
    loader = DataLoader(the_config, batch_size=9, shuffle=shuffle, cache_dir=cache)
    first = numbers(loader)
    assert len({call.key for call in object_reads(stores)}) == objects
    second = numbers(loader)
    assert sorted(first) == sorted(second) == list(range(COUNT))
    again = DataLoader(the_config, batch_size=9, shuffle=shuffle, cache_dir=str(cache))
    assert numbers(again) == first
    assert object_reads(stores) == []
    assert len(files(cache)) == objects


def test_a_first_epoch_fetches_large_objects_once(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attributes = [Attribute("pixels", "uint8", (64 * 1024,)), Attribute(ROW, "int64")]
    the_config = config(memory, attributes=attributes, max_object_size=8 * 2**20)
    save(the_config, make(range(400), attributes))
    stores = watch(monkeypatch, local=False)
    for shuffle in (False, True):
        loader = DataLoader(
            the_config, batch_size=16, shuffle=shuffle, cache_dir=tmp_path / str(shuffle)
        )
        assert sorted(numbers_in(loader, attributes)) == list(range(400))
        asked = sum(call.nbytes for call in object_reads(stores))
        assert asked <= 1.1 * loader.open().nbytes


def test_the_default_cache_is_in_the_users_cache_directory(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    the_config = fill(memory)
    watch(monkeypatch, local=False)
    list(DataLoader(the_config))
    cache = tmp_path / "home" / "cache" / "storage_loader"
    assert len(files(cache)) == len(Dataset(the_config).open().objects)


def test_two_storages_never_share_a_cached_object(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does a dataset that was deleted and saved anew."""
    import storage_loader

    watch(monkeypatch, local=False)
    for name, first in [("one", 0), ("two", 1000)]:
        the_config = config({"storage": f"memory://cache-{tmp_path.name}-{name}"})
        for shift in (0, 100):
            save(the_config, make(range(first + shift, first + shift + 5)))
            loader = DataLoader(the_config, batch_size=9, cache_dir=tmp_path)
            assert numbers_in(loader) == list(range(first + shift, first + shift + 5))
            storage_loader.delete(the_config)


def test_loaders_on_s3_use_the_cache(s3_storage: dict[str, str], tmp_path: Path) -> None:
    the_config = fill(s3_storage)
    loader = DataLoader(the_config, batch_size=9, shuffle=True, cache_dir=tmp_path / "cache")
    epochs = [numbers(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(COUNT))] * 2
    assert len(files(tmp_path / "cache")) == len(loader.open().objects)
    remote = DataLoader(the_config, batch_size=9, index=True, cache_dir=tmp_path / "unused")
    assert numbers(remote) == list(range(COUNT))
    assert not (tmp_path / "unused").exists()


# What is done ahead, and how it ends


def test_training_starts_after_the_first_object(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = fill(memory)
    first = Dataset(the_config).open().key(0)
    go = threading.Event()

    def hold(call: Call) -> None:
        if call.kind.endswith(" object") and call.key != first:
            go.wait(60)

    watch(monkeypatch, before=hold)
    iterator = iter(DataLoader(the_config, batch_size=7))
    assert numbers_of(next(iterator), WITH_PIXELS) == list(range(7))
    assert not go.is_set()
    go.set()
    assert numbers_in(iterator, WITH_PIXELS) == list(range(7, COUNT))


def test_objects_are_fetched_ahead_but_not_all(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While a batch is being consumed: later objects, in the order they will be needed."""
    the_config = fill(memory, 700)
    stores = watch(monkeypatch, local=False)
    loader = DataLoader(the_config, batch_size=7, cache_dir=tmp_path / "cache")
    iterator = iter(loader)
    next(iterator)
    ahead: set[str] = set()

    def are_ahead() -> bool:
        ahead.update(call.key for call in object_reads(stores))
        return len(ahead) > 2

    until(are_ahead)
    time.sleep(0.5)  # for what must not be fetched
    assert are_ahead()
    snapshot = loader.open()
    assert len(ahead) < len(snapshot.objects) / 2
    assert ahead == {snapshot.key(i) for i in range(len(ahead))}
    iterator.close()  # type: ignore[attr-defined]


def consume(loader: DataLoader, how: str) -> None:
    if how == "to the end":
        for _ in loader:
            pass
    elif how == "break":
        for _ in loader:
            break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
    elif how == "one by hand":
        iterator = iter(loader)
        next(iterator)
        del iterator
    elif how == "never begun":
        iter(loader)


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("how", ["to the end", "break", "exception", "one by hand", "never begun"])
def test_threads_end_with_the_iteration(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, how: str, index: bool, tmp_path: Path
) -> None:
    the_config = fill(memory)
    watch(monkeypatch, local=False, before=lambda call: time.sleep(0.001))
    consume(DataLoader(the_config, batch_size=9, index=index, cache_dir=tmp_path), how)
    assert running("ahead", "fetch", "plan") == []


@pytest.mark.parametrize("index", [False, True])
def test_an_error_of_transform_reaches_the_caller_and_ends_the_threads(
    hundred: DataConfig, index: bool
) -> None:
    def fail(batch: Any) -> Any:
        raise ZeroDivisionError("in transform")

    with pytest.raises(
        TransformError, match=r"on rows 0, 1, 2 .*: ZeroDivisionError: in transf"
    ) as e:
        list(DataLoader(hundred, batch_size=3, transform=fail, index=index))
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert running("ahead", "fetch", "plan") == []


def test_an_error_of_transform_that_shows_a_batch_is_cut(hundred: DataConfig) -> None:
    def fail(batch: Any) -> Any:
        raise KeyError(str(batch) * 100)

    with pytest.raises(TransformError, match=r"on rows 0, 1, 2 .*: KeyError: .*characters\)$") as e:
        list(DataLoader(hundred, batch_size=3, transform=fail))
    assert len(str(e.value)) < 700
    assert len(str(e.value.__cause__)) > 10_000


@pytest.mark.parametrize("extras", ["row", "valid"])
def test_extras_are_a_list(hundred: DataConfig, extras: Any) -> None:
    with pytest.raises(ConfigError, match=rf"extras '{extras}': a list, extras=\['{extras}'\]"):
        DataLoader(hundred, extras=extras)


@pytest.mark.parametrize("index", [False, True])
def test_an_error_of_the_store_reaches_the_caller(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, index: bool, tmp_path: Path
) -> None:
    the_config = fill(memory)
    watch(monkeypatch, local=False, before=fail_on(Dataset(the_config).open().key(8)))
    seen: list[int] = []
    loader = DataLoader(the_config, batch_size=1, index=index, cache_dir=tmp_path)
    with pytest.raises(Injected, match="the disk is on fire"):
        for batch in loader:
            seen += numbers_of(batch, WITH_PIXELS)
    before = int(Dataset(the_config).open().starts[8])
    assert 0 < len(seen) <= before
    assert seen == list(range(len(seen)))
    assert running("ahead", "fetch", "plan") == []
    monkeypatch.undo()
    assert numbers(DataLoader(the_config, batch_size=9, index=index)) == list(range(COUNT))


def test_a_loader_can_be_used_again_after_an_error(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    the_config = fill(memory)
    watch(monkeypatch, local=False, before=FailAt("get_ranges object", 3))
    loader = DataLoader(the_config, batch_size=9, cache_dir=tmp_path)
    with pytest.raises(Injected):
        list(loader)
    assert numbers(loader) == list(range(COUNT))


def test_many_threads_may_iterate(storage: dict[str, str], tmp_path: Path) -> None:
    the_config = fill(storage)
    loaders = [
        DataLoader(the_config, batch_size=9, index=n % 2 == 0, cache_dir=tmp_path / "cache")
        for n in range(4)
    ]
    results: dict[int, list[int]] = {}

    def run(place: int) -> None:
        results[place] = numbers(loaders[place])

    threads = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {place: list(range(COUNT)) for place in range(4)}


def test_one_loader_iterated_by_several_threads(hundred: DataConfig) -> None:
    """Each runs an epoch of its own."""
    loader = DataLoader(hundred, batch_size=9, shuffle="global")
    expected = [numbers(loader) for _ in range(4)]
    loader.set_epoch(0)
    iterators: list[Iterator[Any]] = [iter(loader) for _ in range(4)]
    results: dict[int, list[int]] = {}

    def run(place: int) -> None:
        results[place] = numbers_in(iterators[place], WITH_PIXELS)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[place] for place in range(4)] == expected


TOKENS = [("tokens", "int16", (None,)), ("half", "float32", (None,)), ("caption", "str")]


@pytest.mark.parametrize(
    ("pad", "text"),
    [
        ({"tokens": 0.5}, "value 0.5 for attribute 'tokens' is no int16"),
        ({"tokens": 70_000}, "value 70000 for attribute 'tokens' is no int16"),
        ({"tokens": float("nan")}, "value nan for attribute 'tokens' is no int16"),
        ({"tokens": "x"}, "value 'x' for attribute 'tokens' is no int16"),
        ({"tokens": np.zeros(2)}, "for attribute 'tokens' is no int16"),
        ({"half": 1e300}, "value 1e\\+300 for attribute 'half' is no float32"),
        ({"caption": ""}, "rows of attribute 'caption' are str"),
        (5, "pad 5: a dict of attribute to value"),
    ],
)
def test_a_value_that_pads_nothing_is_refused(memory: dict[str, str], pad: Any, text: str) -> None:
    the_config = DataConfig("padded", TOKENS, **memory)
    save(the_config, {"tokens": [[1], [2, 3]], "half": [[], [0.5]], "caption": ["a", "b"]})
    with pytest.raises(ConfigError, match=text):
        DataLoader(the_config, 2, pad=pad).open()
    with pytest.raises(LoaderError, match=r"^attribute 'tokens': row 1 of the batch has 2 items"):
        list(DataLoader(the_config, 2, pad={"tokens": Pad(0, length=1)}))
    [batch] = DataLoader(the_config, 2, pad={"half": 0.1, "tokens": np.int64(-1)})
    assert batch["tokens"].tolist() == [[1, -1], [2, 3]]
    assert batch["half"].tolist() == [[np.float32(0.1)], [0.5]]


def test_text_is_no_class_to_split_by(memory: dict[str, str]) -> None:
    the_config = DataConfig("split", TOKENS, **memory)
    save(the_config, {"tokens": [[1]], "half": [[]], "caption": ["a"]})
    for name in ("caption", "tokens"):
        with pytest.raises(ConfigError, match=f"by '{name}': rows of .* are no classes"):
            split(the_config, [1.0], by=name)
