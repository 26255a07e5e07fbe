"""One sequence of rows, whoever reads it: ranks, batch sizes, threads, workers, caches, stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save, split
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import ConfigError, DatasetNotFoundError, SchemaError
from tests.support.faulty import WatchedStore, watch
from tests.support.rows import ATTRIBUTES, ROW, assert_rows, config, make, numbers_of, save_rows

NUMBER = Attribute(ROW, "int64")
LARGE = (NUMBER, Attribute("pixels", "uint8", (9000,)))  # 7 rows a block
Batch = dict[str, np.ndarray]


def fill(
    storage: dict[str, str],
    rows: int,
    attributes: tuple[Attribute, ...] = ATTRIBUTES,
    *,
    max_object_size: int = MIN_OBJECT_SIZE,
) -> DataConfig:
    """Numbered rows in several objects and two commits."""
    the_config = config(storage, attributes=attributes, max_object_size=max_object_size)
    return save_rows(the_config, rows, max(1, -(-rows // 2)), commits=True, refresh=True)


_filled: dict[int, DataConfig] = {}


def of_rows(rows: int) -> DataConfig:
    """A dataset of so many rows in memory, kept for all tests of this module."""
    if rows not in _filled:
        _filled[rows] = fill({"storage": f"memory://ranks-{rows}"}, rows)
    return _filled[rows]


def checked(batch: Batch, attributes: Sequence[Attribute]) -> tuple[list[int], list[bool]]:
    """The rows' numbers (-1: padding), every attribute of each being its own; which are valid."""
    arrays = dict(batch)
    number, valid = arrays.pop("row"), arrays.pop("valid")
    padding = number < 0
    rows = {name: array[~padding] for name, array in arrays.items()}
    assert_rows(rows, number[~padding], attributes)
    for array in arrays.values():
        assert not array[padding].any()
    assert not valid[padding].any()
    return number.tolist(), valid.tolist()


def read(
    the_config: DataConfig, epoch: int = 0, *, of: Sequence[Attribute] = ATTRIBUTES, **how: Any
) -> list[tuple[list[int], list[bool]]]:
    """What `checked` gives for each batch of an epoch.

    Rows are saved in the order of their numbers: a row's place in the dataset is its number.
    """
    others = [a for a in of if a.name != ROW]
    names = [a.name for a in others]
    loader = DataLoader(the_config, extras=("row", "valid"), attributes=names, **how)
    loader.set_epoch(epoch)
    found = [checked(batch, others) for batch in loader]
    assert len(found) == len(loader)
    return found


@settings(max_examples=150)
@given(
    rows=st.integers(0, 3000),
    batch_size=st.integers(1, 40) | st.integers(100, 3500),
    world_size=st.integers(1, 9),
    last_batch=st.sampled_from(["partial", "drop", "pad", "wrap"]),
    shuffle=st.sampled_from([False, True, "global"]),
    epoch=st.integers(0, 3),
    block=st.integers(1, 300),
    blocks=st.integers(1, 8),
)
def test_ranks_share_one_sequence(
    rows: int,
    batch_size: int,
    world_size: int,
    last_batch: Any,
    shuffle: Any,
    epoch: int,
    block: int,
    blocks: int,
) -> None:
    if batch_size < 20:
        rows = rows % 300  # fewer batches, not fewer cases
    the_config = of_rows(rows)
    how: dict[str, Any] = {
        "shuffle": shuffle, "seed": 5, "block": block, "window": block * blocks,
    }  # fmt: skip
    whole = [n for part, _ in read(the_config, epoch, batch_size=777, **how) for n in part]
    assert sorted(whole) == list(range(rows))
    ranks = [
        read(the_config, epoch, batch_size=batch_size, last_batch=last_batch, rank=rank,
             world_size=world_size, **how)
        for rank in range(world_size)
    ]  # fmt: skip
    assert len({len(batches) for batches in ranks}) == 1, "ranks with unequal numbers of batches"
    sequence = []
    for number in range(len(ranks[0])):
        parts = [batches[number] for batches in ranks]
        valid = [[n for n, ok in zip(*part, strict=True) if ok] for part in parts]
        is_last = number == len(ranks[0]) - 1
        if not is_last or last_batch != "partial":
            assert [len(n) for n, _ in parts] == [batch_size] * world_size
        if shuffle is False:
            sequence += [n for part in valid for n in part]
        else:  # dealt like cards
            deepest = max(map(len, valid))
            sequence += [part[i] for i in range(deepest) for part in valid if i < len(part)]
        repeats = [n for part, ok in parts for n, o in zip(part, ok, strict=True) if not o]
        if last_batch == "pad":
            assert set(repeats) <= {-1}
        else:
            assert set(repeats) <= set(whole[: len(repeats)])
        assert is_last or not repeats
    left = rows % (batch_size * world_size)
    assert sequence == (whole[: rows - left] if last_batch == "drop" else whole)


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize(
    ("last_batch", "sizes", "valid"),
    [
        ("partial", [4, 4, 3], [4, 4, 3]),
        ("drop", [], []),
        ("pad", [10, 10, 10], None),
        ("wrap", [10, 10, 10], None),
    ],
)
def test_the_last_global_batch(
    shuffle: Any, last_batch: Any, sizes: list[int], valid: list[int] | None
) -> None:
    """101 rows over 3 ranks of 10: three full global batches, and one of 11 rows."""
    the_config = of_rows(101)
    ranks = [
        read(the_config, shuffle=shuffle, batch_size=10, world_size=3, rank=rank,
             last_batch=last_batch)[3:]
        for rank in range(3)
    ]  # fmt: skip
    assert [len(numbers) for batches in ranks for numbers, _ in batches] == sizes
    found = [sum(ok) for batches in ranks for _, ok in batches]
    assert sum(found) == (11 if sizes else 0)
    if valid is not None:
        assert found == valid


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_fewer_rows_than_ranks(shuffle: Any) -> None:
    """Each rank gets a batch all the same, else the others would wait for it for ever."""
    the_config = of_rows(2)
    first, second = read(the_config, shuffle=shuffle, batch_size=5)[0][0]
    ranks = [
        read(the_config, shuffle=shuffle, batch_size=5, world_size=5, rank=rank)
        for rank in range(5)
    ]
    assert ranks == [
        [([first], [True])],
        [([second], [True])],
        [([first], [False])],
        [([second], [False])],
        [([first], [False])],
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_padding_is_zeros_and_marked(rank: int) -> None:
    loader = DataLoader(
        of_rows(2), attributes=["image", "weight"], extras=["row", "valid"], batch_size=2,
        last_batch="pad", rank=rank, world_size=2, shuffle=True,
    )  # fmt: skip
    [batch] = loader
    assert list(batch) == ["image", "weight", "row", "valid"]
    assert (batch["row"].dtype, batch["valid"].dtype) == (np.int64, np.bool_)
    assert batch["row"][1] == -1
    assert batch["valid"].tolist() == [True, False]
    assert not batch["image"][1].any()
    assert batch["image"][0].any()
    assert not batch["weight"][1].any()


# The same whoever fetches


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """200 rows, 7 a block, 5 objects of several blocks."""
    folder = str(tmp_path_factory.mktemp("ranks"))
    return fill({"storage": folder}, 200, LARGE, max_object_size=5 * 2**17)


HOW: dict[str, Any] = {"of": LARGE, "batch_size": 8, "block": 5, "window": 50, "seed": 3}


@pytest.fixture(scope="module")
def expected(hundred: DataConfig) -> dict[Any, Any]:
    return {
        (shuffle, rank): read(hundred, 1, shuffle=shuffle, rank=rank, world_size=2, **HOW)
        for shuffle in (False, True, "global")
        for rank in (0, 1)
    }


@pytest.mark.parametrize("shuffle", [False, True, "global"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_same_for_any_threads_and_cache(
    hundred: DataConfig,
    expected: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    threads: int,
    shuffle: Any,
) -> None:
    """From the folder itself, through a cold and a warm cache, and with nothing kept."""
    how = {**HOW, "shuffle": shuffle, "threads": threads, "cache_dir": tmp_path / "cache"}
    for rank in (0, 1):
        right = expected[shuffle, rank]
        assert read(hundred, 1, rank=rank, world_size=2, **how) == right
    opened = watch(monkeypatch, local=False)
    for state in ("cold", "warm", "index"):
        opened.clear()
        for rank in (0, 1):
            found = read(hundred, 1, rank=rank, world_size=2, index=state == "index",
                         prefetch=(10**5 if rank else 10**8), **how)  # fmt: skip
            assert found == expected[shuffle, rank], state
        fetched = [kind for store in opened for kind in store.kinds() if "object" in kind]
        if state == "warm":
            assert not [c for s in opened for c in s.calls if "/objects/" in c.key and c.nbytes]
        else:
            assert fetched


@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_the_same_from_s3(
    s3_storage: dict[str, str], hundred: DataConfig, expected: dict[Any, Any], shuffle: Any
) -> None:
    the_config = fill(s3_storage, 200, LARGE, max_object_size=5 * 2**17)
    for index in (False, False, True):
        for rank in (0, 1):
            found = read(
                the_config, 1, shuffle=shuffle, rank=rank, world_size=2, index=index, **HOW
            )
            assert found == expected[shuffle, rank]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on 2 cores
@pytest.mark.parametrize("workers", range(5))
def test_the_same_in_worker_processes_of_torch(hundred: DataConfig, workers: int) -> None:
    """torch's DataLoader over the map-style dataset, in the loader's order."""
    torch_data = pytest.importorskip("torch.utils.data")
    from storage_loader.torch import Dataset

    for shuffle in (True, "global") if workers < 3 else (True,):
        order = DataLoader(hundred, batch_size=16, shuffle=shuffle, attributes=[ROW], seed=1)
        batches = [batch[ROW].tolist() for batch in order]
        given_out = torch_data.DataLoader(
            Dataset(hundred), batch_sampler=batches, num_workers=workers
        )
        found = []
        for batch in given_out:
            arrays = {name: tensor.numpy() for name, tensor in batch.items()}
            found.append(arrays[ROW].tolist())
            assert_rows(arrays, found[-1], LARGE)
        assert found == batches


def _nothing(batch: Batch) -> Batch:
    """A transform, as the loader's workers are for."""
    return batch


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("workers", range(5))
def test_the_same_in_worker_processes_of_the_loader(
    hundred: DataConfig, expected: dict[Any, Any], workers: int
) -> None:
    for shuffle in (False, True, "global") if workers == 2 else (True,):
        for last_batch in ("partial", "pad") if workers == 2 else ("partial",):
            how = {**HOW, "shuffle": shuffle, "rank": 1, "world_size": 2, "last_batch": last_batch}
            found = read(hundred, 1, num_workers=workers, transform=_nothing, **how)
            assert found == read(hundred, 1, **how)
            if last_batch == "partial":
                assert found == expected[shuffle, 1]


def test_worker_processes_cannot_read_memory() -> None:
    with pytest.raises(ConfigError, match="no other process can read memory://"):
        DataLoader(of_rows(2), num_workers=1)


# Subsets


@pytest.mark.parametrize(
    ("subset", "expected_rows"),
    [
        (0.5, range(50)),
        (0.0, []),
        (1.0, range(101)),
        (np.float32(0.25), range(25)),
        (slice(10, 20), range(10, 20)),
        (slice(None, None, -1), range(100, -1, -1)),
        (slice(-5, None), range(96, 101)),
        (slice(50, 1000, 7), range(50, 101, 7)),
        (np.arange(101) % 3 == 0, range(0, 101, 3)),
        ([True] + [False] * 100, [0]),
        (np.array([5, 3, 99, 0]), [5, 3, 99, 0]),
        ([7], [7]),
        ((9, 8), [9, 8]),
        (range(20, 40, 5), range(20, 40, 5)),
        (np.array([5, 3], np.uint8), [5, 3]),
        ([], []),
        (np.zeros(101, bool), []),
    ],
    ids=str,
)
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_a_subset_is_a_dataset_of_its_rows(
    subset: Any, expected_rows: list[int], shuffle: Any
) -> None:
    the_config = of_rows(101)
    expected_rows = list(expected_rows)
    found = read(the_config, subset=subset, shuffle=shuffle, batch_size=7)
    rows = [n for part, _ in found for n in part]
    if shuffle is False:
        assert rows == expected_rows
    else:
        assert sorted(rows) == sorted(expected_rows)
    assert DataLoader(the_config, subset=subset).num_rows == len(expected_rows)
    ranks = [
        n
        for rank in range(3)
        for part, ok in read(
            the_config, subset=subset, shuffle=shuffle, batch_size=2, rank=rank, world_size=3
        )
        for n, o in zip(part, ok, strict=True)
        if o
    ]
    assert sorted(ranks) == sorted(expected_rows)


@pytest.mark.parametrize(
    ("subset", "text"),
    [
        (1.5, "subset 1.5: a fraction is from 0.0 to 1.0"),
        (-0.1, "a fraction is from 0.0 to 1.0"),
        (float("nan"), "a fraction is from 0.0 to 1.0"),
        (3, "a fraction (float), a slice, a boolean mask or row numbers"),
        (True, "a fraction (float), a slice, a boolean mask or row numbers"),
        ("half", "a fraction (float), a slice, a boolean mask or row numbers"),
        ([[1, 2]], "2 axes"),
        (np.array(3), "0 axes"),
        ([True, False], "a mask of 2 entries for 101 rows"),
        ([1.0, 2.0], "row numbers are integers, not float64"),
        (["a"], "row numbers are integers"),
        ([5, 101], "row 101 of a dataset of 101 rows"),
        ([-1], "row -1 of a dataset of 101 rows"),
        ([4, 5, 4], "a row number stands twice"),
    ],
    ids=str,
)
def test_a_wrong_subset_says_so(subset: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        len(DataLoader(of_rows(101), subset=subset))
    assert text in str(caught.value)


def object_calls(opened: list[WatchedStore]) -> Iterator[tuple[str, int, int]]:
    """(key, start, end) of each range of an object that was asked for."""
    for store in opened:
        for call in store.calls:
            if "/objects/" in call.key:
                assert call.verb != "get"
                yield from ((call.key, start, end) for start, end in call.ranges)


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_only_what_a_subset_needs_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shuffle: Any, index: bool
) -> None:
    """Two rows of the first object, one of the last: two objects are asked for, no other."""
    storage = {"storage": str(tmp_path / "store")}
    the_config = fill(storage, 2000, LARGE, max_object_size=2**22)
    opened = watch(monkeypatch, local=False)
    found = read(the_config, subset=[3, 4, 1999], shuffle=shuffle, of=LARGE, batch_size=2,
                 index=index, cache_dir=tmp_path / "cache")  # fmt: skip
    assert sorted(n for part, _ in found for n in part) == [3, 4, 1999]
    calls = list(object_calls(opened))
    assert len({key for key, _, _ in calls}) == 2
    assert sum(end - start for _, start, end in calls) < 4 * 2**16


@pytest.mark.parametrize(
    "fractions", [[1.0], [0.5, 0.5], [0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [1 / 3] * 3]
)
def test_split_is_disjoint_and_complete(fractions: list[float]) -> None:
    for rows in (0, 1, 2, 101):
        parts = split(of_rows(rows), fractions, seed=4)
        assert len(parts) == len(fractions)
        assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
        for part, fraction in zip(parts, fractions, strict=True):
            assert part.dtype == np.int64
            assert (np.diff(part) > 0).all()
            assert abs(len(part) - fraction * rows) <= 1
        again = split(of_rows(rows), fractions, seed=4)
        assert [p.tolist() for p in again] == [p.tolist() for p in parts]


def test_split_parts_are_subsets() -> None:
    the_config = of_rows(101)
    train, test = split(the_config, [0.8, 0.2])
    found = [
        [n for part, _ in read(the_config, subset=part_rows, shuffle=True, batch_size=9)
         for n in part]
        for part_rows in (train, test)
    ]  # fmt: skip
    assert [len(f) for f in found] == [81, 20]
    assert sorted(found[0] + found[1]) == list(range(101))
    other = split(the_config, [0.8, 0.2], seed=1)
    assert other[1].tolist() != test.tolist()
    assert len(set(test.tolist()) - set(range(81, 101))) > 5


@pytest.mark.parametrize(
    "fractions",
    [[], [0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0], [2.0], 0.5, ["half", "half"], None],
    ids=str,
)
def test_wrong_fractions_say_so(fractions: Any) -> None:
    with pytest.raises(ConfigError, match="numbers from 0 to 1 whose sum is 1"):
        split(of_rows(101), fractions)


@pytest.mark.parametrize("fractions", [["0.8", "0.2"], [0.8, b"0.2"], "19"], ids=str)
def test_fractions_that_are_texts_say_so(fractions: Any) -> None:
    with pytest.raises(ConfigError, match=r"texts, not numbers; give numbers, e.g. \[0.9, 0.1\]"):
        split(of_rows(101), fractions)


@pytest.mark.parametrize("seed", [0.5, -1, True, "0", None])
def test_a_wrong_seed_says_so(seed: Any) -> None:
    with pytest.raises(ConfigError, match="a whole number from 0 up"):
        split(of_rows(101), [0.5, 0.5], seed)


def test_split_of_a_version_and_of_nothing(memory: dict[str, str]) -> None:
    the_config = fill(memory, 10)
    version = DataLoader(the_config).version
    with DataSaver(the_config) as saver:
        saver(make(range(10, 30)))
    assert sum(map(len, split(the_config, [0.5, 0.5]))) == 30
    assert sum(map(len, split(the_config, [0.5, 0.5], version=version))) == 10
    with pytest.raises(DatasetNotFoundError):
        split(config(memory, "other"), [1.0])


def test_split_by_numbers_of_rows() -> None:
    parts = split(of_rows(101), [80, 20, 1], seed=4)
    assert [len(part) for part in parts] == [80, 20, 1]
    assert sorted(np.concatenate(parts).tolist()) == list(range(101))
    assert [len(part) for part in split(of_rows(101), [1, 0])] == [101, 0]
    for counts, text in [
        ([80, 20], "these are 100 rows, and there are 101; give a part for the other 1, too"),
        ([80, 23], "these are 103 rows, and there are 101; take 2 away"),
    ]:
        with pytest.raises(ConfigError) as caught:
            split(of_rows(101), counts)
        assert str(caught.value) == f"fractions {counts}: {text}"


@pytest.mark.parametrize("fractions", [[0.8, 0.1, 0.1], [1 / 3] * 3, [0.0, 1.0], [400, 597, 3]])
def test_split_by_classes_gives_each_part_its_share_of_each(
    memory: dict[str, str], fractions: list[float]
) -> None:
    the_config = DataConfig("classes", [("label", "uint8"), ("x", "int64", (2,))], **memory)
    labels = np.repeat(np.arange(5, dtype=np.uint8), [500, 250, 200, 40, 10])
    save(the_config, {"label": labels, "x": np.zeros((1000, 2), int)})
    parts = split(the_config, fractions, seed=4, by="label")
    shares = [f / sum(fractions) for f in fractions]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    for part, share in zip(parts, shares, strict=True):
        assert (np.diff(part) > 0).all()
        assert abs(len(part) - share * 1000) <= 1
        for label in range(5):
            rows = labels == label
            assert abs(rows[part].sum() - share * rows.sum()) <= 2
    again = split(the_config, fractions, seed=4, by="label")
    assert [p.tolist() for p in again] == [p.tolist() for p in parts]
    if fractions[0] == 0.8:
        other = split(the_config, fractions, seed=5, by="label")
        assert set(other[0].tolist()) != set(parts[0].tolist())
        # Drawn at random within a class, not its first rows.
        assert set(parts[0][:400].tolist()) != set(range(400))
    with pytest.raises(ConfigError, match=r"by 'x': rows of \w+ \(2,\) are no classes"):
        split(the_config, [1.0], by="x")
    with pytest.raises(SchemaError, match="no attribute 'lable'; did you mean 'label'"):
        split(the_config, [1.0], by="lable")


def test_split_of_a_subset_is_of_its_rows(memory: dict[str, str]) -> None:
    the_config = DataConfig("classes", [("label", "uint8"), (ROW, "int64")], **memory)
    labels = np.tile(np.arange(4, dtype=np.uint8), 50)
    save(the_config, {"label": labels, ROW: np.arange(200)})
    first, second = split(the_config, [0.5, 0.5])
    for rows in (first, second[::-1], slice(120, None), 0.25, labels == 3, []):
        expected = np.sort(np.arange(200)[: int(rows * 200)] if isinstance(rows, float) else
                           np.arange(200)[rows].astype(int))  # fmt: skip
        for by in (None, "label"):
            parts = split(the_config, [0.8, 0.2], seed=3, subset=rows, by=by)
            assert np.sort(np.concatenate(parts)).tolist() == expected.tolist()
            for part, share in zip(parts, (0.8, 0.2), strict=True):
                assert (np.diff(part) > 0).all()
                assert abs(len(part) - share * len(expected)) <= 1
                if by is not None:
                    for label in range(4):
                        there = (labels[expected] == label).sum()
                        assert abs((labels[part] == label).sum() - share * there) <= 2
    assert [len(part) for part in split(the_config, [70, 30], subset=slice(100, None))] == [70, 30]
    with pytest.raises(ConfigError, match="these are 200 rows, and there are 100; take 100 away"):
        split(the_config, [100, 100], subset=slice(100))


def test_the_parts_of_a_split_are_no_subset_together() -> None:
    the_config = of_rows(101)
    for parts in (split(the_config, [100, 1]), tuple(split(the_config, [0.5, 0.5])), [[1], [2]]):
        with pytest.raises(ConfigError, match=r"^subset: 2 parts; give one of them, as of `train"):
            len(DataLoader(the_config, subset=parts))
    for wrong in ([3, [4]], [[], 3]):
        with pytest.raises(ConfigError, match=r"^subset .*: a mask or row numbers$"):
            len(DataLoader(the_config, subset=wrong))


def test_parts_keep_their_rows_when_rows_are_appended(memory: dict[str, str]) -> None:
    the_config = fill(memory, 60)
    train, test = split(the_config, [0.8, 0.2])
    version = DataLoader(the_config).version
    before = [numbers_of(Dataset(the_config)[part]) for part in (train, test)]
    with DataSaver(the_config) as saver:
        saver(make(range(60, 90)))
    assert [numbers_of(Dataset(the_config)[part]) for part in (train, test)] == before
    again = split(the_config, [0.8, 0.2], version=version)
    assert [part.tolist() for part in again] == [train.tolist(), test.tolist()]
