"""A state names the next row: gone on from anywhere, on any ranks and batches, nothing lost."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ConfigError,
    LoaderError,
    StorageLoaderError,
    UnknownNameError,
    VersionNotFoundError,
)
from tests.support.faulty import watch
from tests.support.rows import ATTRIBUTES, ROW, config, make, numbers_in, numbers_of, save_rows

COUNT = 50
SHUFFLES: list[Any] = [False, True, "global"]
ORDER: dict[str, Any] = {"seed": 3, "block": 4, "window": 16}


def fill(storage: dict[str, str], rows: int = COUNT, name: str = "rows") -> DataConfig:
    the_config = config(storage, name, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, rows, 20, commits=True)


@pytest.fixture(scope="module")
def fifty() -> DataConfig:
    return fill({"storage": "memory://resume-fifty"})


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint; integers and strings only."""
    assert all(type(key) is str and type(value) in (int, str) for key, value in state.items())
    return json.loads(json.dumps(state))


def epochs_of(the_config: DataConfig, shuffle: Any, epochs: int = 3) -> list[list[int]]:
    """The sequence of rows of each epoch."""
    loader = DataLoader(the_config, batch_size=7, shuffle=shuffle, **ORDER)
    return [numbers_in(loader) for _ in range(epochs)]


def in_order(batches: list[list[int]], shuffle: Any) -> list[int]:
    """One global batch, of the parts of all ranks."""
    if shuffle is False:
        return [n for part in batches for n in part]
    return [part[i] for i in range(max(map(len, batches))) for part in batches if i < len(part)]


def global_rows(loaders: list[DataLoader], shuffle: Any) -> Iterator[list[int]]:
    """The global batches of one `iter` of each rank's loader, without repeats."""
    for batches in zip(*loaders, strict=True):
        kept = []
        for batch in batches:
            valid = batch.pop("valid")
            kept.append(numbers_of({name: array[valid] for name, array in batch.items()}))
        yield in_order(kept, shuffle)


def ranks(the_config: DataConfig, world_size: int, **how: Any) -> list[DataLoader]:
    return [
        DataLoader(the_config, rank=rank, world_size=world_size, extras=["valid"], **ORDER, **how)
        for rank in range(world_size)
    ]


# Every batch, from W ranks to W'


@functools.cache  # several ranks stop where one does, with the same state
def resumed(the_config: DataConfig, state: str, world_size: int, shuffle: Any) -> list[int]:
    """What is left of an epoch, on so many ranks."""
    after = ranks(the_config, world_size, batch_size=2 + world_size, shuffle=shuffle)
    for loader in after:
        loader.load_state_dict(json.loads(state))
    return [n for rows in global_rows(after, shuffle) for n in rows]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_from_any_batch_to_other_ranks_and_batches(
    fifty: DataConfig, world_size: int, shuffle: Any
) -> None:
    expected = epochs_of(fifty, shuffle)
    before = ranks(fifty, world_size, batch_size=3, shuffle=shuffle)
    for epoch in (0, 1):
        seen: list[int] = []
        states = [[loader.state_dict() for loader in before]]
        prefixes: list[list[int]] = [[]]
        for rows in global_rows(before, shuffle):
            seen = seen + rows
            states.append([loader.state_dict() for loader in before])
            prefixes.append(seen)
        assert seen == expected[epoch]
        for state, prefix in zip(states, prefixes, strict=True):
            assert all(other == state[0] for other in state), "ranks stand at different rows"
            at_end = len(prefix) == COUNT
            assert (state[0]["epoch"], state[0]["rows"]) == (
                (epoch + 1, 0) if at_end else (epoch, len(prefix))
            )
            for other_size in (1, 2, 3, 4):
                rest = resumed(fifty, json.dumps(through_json(state[0])), other_size, shuffle)
                if at_end:
                    assert rest == expected[epoch + 1]
                else:
                    assert prefix + rest == expected[epoch]


@settings(max_examples=40)
@given(
    rows=st.integers(1, 300),
    shuffle=st.sampled_from(SHUFFLES),
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 20), st.integers(0, 5)), max_size=6),
    last_batch=st.sampled_from(["partial", "pad", "wrap"]),
)
def test_any_chain_of_stops(
    rows: int, shuffle: Any, steps: list[tuple[int, int, int]], last_batch: Any
) -> None:
    """Stopped again and again, each time with other ranks and batches: the same sequence."""
    the_config = _of_rows(rows)
    expected = [n for epoch in epochs_of(the_config, shuffle, 8) for n in epoch]
    state, seen = DataLoader(the_config, shuffle=shuffle, **ORDER).state_dict(), []
    for world_size, batch_size, batches in [*steps, (1, 7, 10**6)]:
        loaders = ranks(
            the_config, world_size, batch_size=batch_size, shuffle=shuffle, last_batch=last_batch
        )
        for loader in loaders:
            loader.load_state_dict(through_json(state))
        running = global_rows(loaders, shuffle)
        for _, part in zip(range(batches), running, strict=False):
            seen += part
        running.close()  # type: ignore[attr-defined]  # a generator
        [state] = {
            json.dumps(loader.state_dict()): loader.state_dict() for loader in loaders
        }.values()
    assert seen == expected[: len(seen)]
    assert len(seen) % rows == 0
    assert (state["epoch"], state["rows"]) == (len(seen) // rows, 0)


_filled: dict[int, DataConfig] = {}


def _of_rows(rows: int) -> DataConfig:
    if rows not in _filled:
        _filled[rows] = fill({"storage": f"memory://resume-{rows}"}, rows)
    return _filled[rows]


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad", "wrap"])
def test_the_last_batch_of_a_resumed_epoch(fifty: DataConfig, last_batch: Any) -> None:
    """21 rows received of 50; 29 more come in global batches of 8."""
    expected = epochs_of(fifty, True)
    before = DataLoader(fifty, batch_size=7, shuffle=True, last_batch=last_batch, **ORDER)
    running = iter(before)
    for _ in range(3):
        next(running)
    after = ranks(fifty, 2, batch_size=4, shuffle=True, last_batch=last_batch)
    for loader in after:
        loader.load_state_dict(before.state_dict())
    batches = [[batch[ROW].tolist() for batch in loader] for loader in after]
    sizes = [[len(rows) for rows in part] for part in batches]
    last = {"partial": [[3], [2]], "drop": [[], []], "pad": [[4], [4]], "wrap": [[4], [4]]}
    assert sizes == [[4, 4, 4, *last[last_batch][rank]] for rank in (0, 1)]
    rest = [n for parts in zip(*batches, strict=True) for n in in_order(list(parts), True)]
    kept = 24 if last_batch == "drop" else 29
    assert rest[:kept] == expected[0][21 : 21 + kept]
    if last_batch == "wrap":
        assert rest[kept:] == expected[0][: len(rest) - kept]
    assert all(s["epoch"] == 1 and s["rows"] == 0 for s in (r.state_dict() for r in after))


# Where a state comes from


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_rows_read_ahead_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: bool, batch_size: int | None
) -> None:
    the_config = fill({"storage": str(tmp_path / "store")})
    watch(monkeypatch, local=False)
    how: dict[str, Any] = {
        "shuffle": True, "index": index, "batch_size": batch_size, "cache_dir": tmp_path / "cache",
        **ORDER,
    }  # fmt: skip
    [expected] = epochs_of(the_config, True, 1)
    loader = DataLoader(the_config, prefetch=10**9, **how)
    seen: list[int] = []
    for batch in loader:
        seen += np.atleast_1d(batch[ROW]).tolist()
        if len(seen) >= 12:
            break
    state = loader.state_dict()
    assert state["rows"] == len(seen) == 12
    again = DataLoader(the_config, **how)
    again.load_state_dict(through_json(state))
    for batch in again:
        seen += np.atleast_1d(batch[ROW]).tolist()
    assert seen == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_when_a_batch_was_received(folder: dict[str, str], num_workers: int) -> None:
    loader = DataLoader(fill(folder), batch_size=8, num_workers=num_workers)
    found = []
    for _ in loader:
        state = loader.state_dict()
        found.append((state["epoch"], state["rows"]))
    assert found == [(0, 8), (0, 16), (0, 24), (0, 32), (0, 40), (0, 48), (1, 0)]


def test_nested_iteration(fifty: DataConfig) -> None:
    """The state is that of the iteration that gave a batch last."""
    expected = epochs_of(fifty, "global")
    loader = DataLoader(fifty, batch_size=10, shuffle="global", **ORDER)
    seen = []
    for outer_number, outer in enumerate(loader):
        seen += numbers_of(outer)
        assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (
            (0, 10 * (outer_number + 1)) if outer_number < 4 else (1, 0)
        )
        outer_state = loader.state_dict()
        if outer_number == 2:
            inner_seen = []
            for inner in loader:  # epoch 1, in the midst of epoch 0
                inner_seen += numbers_of(inner)
                if len(inner_seen) == 20:
                    break
            assert inner_seen == expected[1][:20]
            state = loader.state_dict()
            assert (state["epoch"], state["rows"]) == (1, 20)
            for saved, rest in ((state, expected[1][20:]), (outer_state, expected[0][30:])):
                other = DataLoader(fifty, batch_size=7, shuffle="global", **ORDER)
                other.load_state_dict(through_json(saved))
                assert numbers_in(other) == rest
    assert seen == expected[0]


def test_several_epochs_in_one_iteration(fifty: DataConfig) -> None:
    expected = epochs_of(fifty, True, 6)
    whole = [n for epoch in expected[:3] for n in epoch]
    loader = DataLoader(fifty, batch_size=8, shuffle=True, epochs=3, **ORDER)
    seen: list[int] = []
    for batch in loader:
        seen += numbers_of(batch)
        state = through_json(loader.state_dict())
        other = DataLoader(fifty, batch_size=9, shuffle=True, epochs=3, **ORDER)
        other.load_state_dict(state)
        rest = numbers_in(other)
        if len(seen) < len(whole):
            assert seen + rest == whole
        else:
            assert rest == [n for epoch in expected[3:6] for n in epoch]
    assert seen == whole
    assert numbers_in(loader) == [n for epoch in expected[3:6] for n in epoch]


def test_the_epoch_after_a_resumed_one(fifty: DataConfig) -> None:
    expected = epochs_of(fifty, True)
    loader = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    next(iter(loader))
    other = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    other.load_state_dict(loader.state_dict())
    assert numbers_in(other) == expected[0][8:]
    assert numbers_in(other) == expected[1]
    assert numbers_in(other) == expected[2]


def test_a_state_of_a_loader_that_read_nothing(fifty: DataConfig) -> None:
    loader = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    loader.set_epoch(2)
    other = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    other.load_state_dict(loader.state_dict())
    assert other.state_dict() == loader.state_dict()
    assert numbers_in(other) == epochs_of(fifty, True)[2]


def test_loading_twice_and_after_iterating(fifty: DataConfig) -> None:
    expected = epochs_of(fifty, True)
    loader = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    running = iter(loader)
    next(running)
    first = loader.state_dict()
    next(running)
    second = loader.state_dict()
    loader.load_state_dict(first)
    loader.load_state_dict(second)
    assert loader.state_dict() == second
    assert numbers_in(loader) == expected[0][16:]
    loader.load_state_dict(first)
    assert numbers_in(loader) == expected[0][8:]


def test_set_epoch_and_a_loaded_state(fifty: DataConfig) -> None:
    expected = epochs_of(fifty, True)
    loader = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    next(iter(loader))
    state = loader.state_dict()

    other = DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    other.set_epoch(2)
    other.load_state_dict(state)  # the later one holds
    assert numbers_in(other) == expected[0][8:]

    other.load_state_dict(state)
    other.set_epoch(0)  # as a training loop does at the start of the epoch it resumes
    assert numbers_in(other) == expected[0][8:]

    other.load_state_dict(state)
    other.set_epoch(1)
    assert numbers_in(other) == expected[1]


def test_an_epoch_without_batches_ends_too(memory: dict[str, str]) -> None:
    """Else a loop over states would stand still."""
    the_config = fill(memory, 5)
    loader = DataLoader(the_config, batch_size=8, drop_last=True)
    assert list(loader) == []
    assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (1, 0)
    state = {**loader.state_dict(), "first_epoch": 0, "epoch": 0, "stop_epoch": 1, "rows": 3}
    loader.load_state_dict(state)
    assert list(loader) == []
    assert (loader.state_dict()["epoch"], loader.state_dict()["rows"]) == (1, 0)


# Versions


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_after_an_append_the_old_rows_go_on(memory: dict[str, str], shuffle: Any) -> None:
    the_config = fill(memory)
    expected = epochs_of(the_config, shuffle)
    loader = DataLoader(the_config, batch_size=8, shuffle=shuffle, **ORDER)
    next(iter(loader))
    state = through_json(loader.state_dict())
    with DataSaver(the_config) as saver:
        saver(make(range(COUNT, COUNT + 30)))
    other = DataLoader(the_config, batch_size=5, shuffle=shuffle, **ORDER)
    following = epochs_of(the_config, shuffle)
    for is_open in (True, False):
        other = DataLoader(the_config, batch_size=5, shuffle=shuffle, **ORDER)
        if is_open:
            assert other.num_rows == COUNT + 30
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert (other.num_rows, len(other)) == (COUNT + 30, 16)
        assert numbers_in(other) == expected[0][8:]
        assert numbers_in(other) == following[1]
        assert (other.num_rows, len(other)) == (COUNT + 30, 16)
        assert str(other.version) == str(DataLoader(the_config).version)


@pytest.mark.parametrize("made", [1, 2, 3])
@pytest.mark.parametrize("loading", [1, 2, 3])
@pytest.mark.parametrize("batches", [0, 1, 7])  # none, one, an epoch's
def test_an_iteration_that_has_begun_is_known_whatever_the_epochs(
    memory: dict[str, str], made: int, loading: int, batches: int
) -> None:
    the_config = fill(memory)
    expected = [n for epoch in range(3) for n in epochs_of(the_config, True)[epoch]]
    loader = DataLoader(the_config, batch_size=8, shuffle=True, epochs=made, **ORDER)
    iterator = iter(loader)
    seen = [number for _ in range(batches) for number in numbers_of(next(iterator))]
    state = through_json(loader.state_dict())
    save(the_config, make(range(COUNT, COUNT + 30)))
    following = [n for epoch in range(3) for n in epochs_of(the_config, True)[epoch]]
    other = DataLoader(the_config, batch_size=8, shuffle=True, epochs=loading, **ORDER)
    other.load_state_dict(state)
    if seen and len(seen) < made * COUNT:  # in the middle: at the state's version to its end
        assert seen + numbers_in(other) == expected[: made * COUNT]
    elif seen:  # over: the next one is the loader's own
        assert numbers_in(other) == following[COUNT + 30 :][: made * (COUNT + 30)]
    else:
        assert numbers_in(other) == following[: made * (COUNT + 30)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterations_of_two_versions_do_not_mix(folder: dict[str, str], num_workers: int) -> None:
    """One that was resumed runs on while another has begun, and its workers end with it."""
    the_config = fill(folder)
    before = DataLoader(the_config, batch_size=8, shuffle=True, **ORDER)
    next(iter(before))
    state = before.state_dict()
    expected = epochs_of(the_config, True)[0]
    save(the_config, make(range(COUNT, 2 * COUNT)))
    loader = DataLoader(the_config, batch_size=8, shuffle=True, num_workers=num_workers, **ORDER)
    loader.load_state_dict(state)
    resumed, seen = iter(loader), expected[:8]
    seen += numbers_of(next(resumed))
    other, others = iter(loader), []
    for batch in resumed:
        seen += numbers_of(batch)
        others += numbers_of(next(other))
        at = loader.state_dict()
        assert (at["epoch"], at["rows"]) == (1, len(others))
    del resumed
    others += numbers_in(other)
    assert seen == expected
    assert others == epochs_of(the_config, True)[1]


def test_a_state_of_an_epoch_that_is_over_says_which_comes_next(memory: dict[str, str]) -> None:
    """Nothing of that one was read at the state's version, so it is of the newest."""
    the_config = fill(memory)
    loader = DataLoader(the_config, batch_size=8, shuffle=True, **ORDER)
    list(loader)
    save(the_config, make(range(COUNT, COUNT + 30)))
    other = DataLoader(the_config, batch_size=8, shuffle=True, **{**ORDER, "seed": 99})
    other.load_state_dict(through_json(loader.state_dict()))
    assert numbers_in(other) == epochs_of(the_config, True)[1]


def test_after_a_refresh_the_old_rows_go_on(memory: dict[str, str]) -> None:
    """Replaced commits stay until they are removed."""
    the_config = fill(memory)
    loader = DataLoader(the_config, batch_size=8)
    next(iter(loader))
    with DataSaver(the_config, refresh=True) as saver:
        saver(make(range(7)))
    other = DataLoader(the_config, batch_size=8)
    other.load_state_dict(loader.state_dict())
    assert numbers_in(other) == list(range(8, COUNT))
    assert numbers_in(DataLoader(the_config, batch_size=8)) == list(range(7))


def test_deleted_commits_are_an_error_at_once(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    loader = DataLoader(the_config, batch_size=8)
    next(iter(loader))
    state = loader.state_dict()
    other = DataLoader(the_config, batch_size=8)
    gone = loader.version.commits[1]
    catalog = Catalog(the_config)
    catalog.store.delete([f"{catalog.prefix}/metadata/{gone}.json"])
    with pytest.raises(VersionNotFoundError, match=gone):
        other.load_state_dict(state)
    assert len(numbers_in(other)) == COUNT - 20  # it is as it was


SCRIPT = """
import json, sys
from storage_loader import DataConfig, DataLoader
config, state, how = DataConfig.from_json(sys.argv[1]), *map(json.loads, sys.argv[2:])
loader = DataLoader(config, **how)
if state is not None:
    loader.load_state_dict(state)
rows = []
for batch in loader:
    rows += batch["row"].tolist()
    if state is None and len(rows) == 24:
        break
print(json.dumps([rows, loader.state_dict()]))
"""


@pytest.mark.usefixtures("library_once")
def test_in_another_process(folder: dict[str, str]) -> None:
    the_config = fill(folder)
    how = {"shuffle": True, **ORDER}

    def run(state: Any, batch_size: int) -> Any:
        arguments = [
            the_config.to_json(),
            json.dumps(state),
            json.dumps({**how, "batch_size": batch_size}),
        ]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            capture_output=True, text=True, timeout=500, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    first, state = run(None, 8)
    second, end = run(state, 7)
    assert first + second == epochs_of(the_config, True)[0]
    assert (end["epoch"], end["rows"]) == (1, 0)


def test_torch_save(fifty: DataConfig) -> None:
    torch = pytest.importorskip("torch")
    from storage_loader import torch as for_torch

    loader = for_torch.DataLoader(fifty, batch_size=8, shuffle=True, **ORDER)
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    other = DataLoader(fifty, batch_size=6, shuffle=True, **ORDER)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert numbers_in(other) == epochs_of(fifty, True)[0][8:]


# Refused


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"shuffle": "global"}, "the state was made with shuffle True, this loader has global"),
        ({"shuffle": False}, "the state was made with shuffle True, this loader has False"),
        ({"shuffle": True, "block": 5}, "the state was made with block 4, this loader has 5"),
        ({"shuffle": True, "window": 32}, "the state was made with window 16, this loader has 32"),
        ({"shuffle": True, "subset": 0.5}, "the state was made with subset all"),
        ({"shuffle": True, "subset": range(COUNT)}, "the state was made with subset all"),
    ],
    ids=str,
)
def test_other_order_settings_are_refused(
    fifty: DataConfig, how: dict[str, Any], text: str
) -> None:
    state = DataLoader(fifty, shuffle=True, **ORDER).state_dict()
    other = DataLoader(fifty, **{**ORDER, **how})
    before = other.state_dict()
    with pytest.raises(LoaderError) as caught:
        other.load_state_dict(state)
    assert text in str(caught.value)
    assert other.state_dict() == before


def test_another_subset_is_refused_and_the_same_is_not(fifty: DataConfig) -> None:
    def loader(subset: Any) -> DataLoader:
        return DataLoader(fifty, shuffle=True, batch_size=4, subset=subset, **ORDER)

    one = loader([5, 3, 8, 40, 41, 42])
    next(iter(one))
    with pytest.raises(LoaderError, match="subset"):
        loader([3, 5, 8, 40, 41, 42]).load_state_dict(one.state_dict())
    same = loader(np.array([5, 3, 8, 40, 41, 42], np.uint16))
    same.load_state_dict(one.state_dict())
    assert len(numbers_in(same)) == 2
    half = loader(0.5)
    half_state = half.state_dict()
    loader(slice(25)).load_state_dict(half_state)  # the same rows
    mask = np.arange(COUNT) < 25
    loader(mask).load_state_dict(half_state)


def test_a_fraction_is_of_the_state_version(memory: dict[str, str]) -> None:
    the_config = fill(memory)
    one = DataLoader(the_config, subset=0.5, batch_size=5)
    next(iter(one))
    save(the_config, make(range(COUNT, 100)))
    other = DataLoader(the_config, subset=0.5, batch_size=5)
    assert other.num_rows == 50
    other.load_state_dict(one.state_dict())
    assert numbers_in(other) == list(range(5, 25))


def test_another_seed_is_taken_from_the_state(fifty: DataConfig) -> None:
    one = DataLoader(fifty, shuffle=True, batch_size=8, **ORDER)
    next(iter(one))
    other = DataLoader(fifty, shuffle=True, batch_size=8, **{**ORDER, "seed": 99})
    other.load_state_dict(one.state_dict())
    assert numbers_in(other) == epochs_of(fifty, True)[0][8:]
    assert numbers_in(other) == epochs_of(fifty, True)[1]


def test_another_dataset_is_refused(memory: dict[str, str]) -> None:
    state = DataLoader(fill(memory, name="one")).state_dict()
    other = DataLoader(fill(memory, name="two"))
    with pytest.raises(LoaderError, match=r"the state is of dataset one/\w+, not of two/"):
        other.load_state_dict(state)
    other_schema = config(memory, "one", attributes=[Attribute(ROW, "int64")], additional={"a": 1})
    save(other_schema, {ROW: np.arange(3)})
    with pytest.raises(LoaderError, match="the state is of dataset"):
        DataLoader(other_schema).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (None, "a loader's state is a dict, not NoneType"),
        ([1], "a loader's state is a dict, not list"),
        ({"rows": -1}, "a loader's state has 'rows': -1"),
        ({"rows": 1.0}, "a loader's state has 'rows': 1.0"),
        ({"rows": "1"}, "a loader's state has 'rows': '1'"),
        ({"rows": True}, "a loader's state has 'rows': True"),
        ({"epoch": None}, "a loader's state has 'epoch': None"),
        ({"version": 3}, "a loader's state has 'version': 3"),
        ({"version": "nothing"}, "a loader's state has 'version': 'nothing', which no loader"),
        ({"version": f"{0:016x} nothing"}, "of this version are gone or never were: ['nothing']"),
        ({"rows": COUNT + 1}, "no loader made it"),
        ({"stop_epoch": 0}, "no loader made it"),
        ({"first_epoch": 1}, "no loader made it"),
        ({"row": 3}, "unknown key of a loader's state 'row'"),
        ({"order": 2}, "the state has order 2, this storage_loader knows 1: a later one made it"),
        ({"order": 7, "lanes": 48, "rows": None}, "the state has order 7, this storage_loader"),
        ({"order": 0}, "a loader's state has 'order': 0, which no loader wrote"),
        ({"order": -1}, "a loader's state has 'order': -1"),
        ({"order": "1"}, "a loader's state has 'order': '1'"),
        ({"order": True}, "a loader's state has 'order': True"),
    ],
    ids=str,
)
def test_a_malformed_state_says_what_is_wrong(fifty: DataConfig, change: Any, text: str) -> None:
    loader = DataLoader(fifty, batch_size=8)
    state = loader.state_dict()
    broken = {**state, **change} if isinstance(change, dict) else change
    with pytest.raises((LoaderError, UnknownNameError, VersionNotFoundError)) as caught:
        loader.load_state_dict(broken)
    assert text in str(caught.value)
    assert loader.state_dict() == state
    assert len(numbers_in(loader)) == COUNT


@pytest.mark.parametrize("missing", DataLoader(fill({"storage": "memory://k"}, 1)).state_dict())
def test_a_state_that_lacks_a_key(fifty: DataConfig, missing: str) -> None:
    loader = DataLoader(fifty)
    state = loader.state_dict()
    del state[missing]
    with pytest.raises(LoaderError, match=f"lacks '{missing}'"):
        loader.load_state_dict(state)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(
            ["dataset", "version", "subset", "shuffle", "block", "window", "seed", "epoch",
             "first_epoch", "stop_epoch", "rows", "order"]
        ),
        st.none() | st.integers(-3, 100) | st.text(max_size=4) | st.floats() | st.lists(st.none()),
        min_size=1,
    )
)  # fmt: skip
def test_any_change_is_an_error_of_ours_or_a_state(changes: dict[str, Any]) -> None:
    loader = DataLoader(_of_rows(20), batch_size=8)
    before = loader.state_dict()
    try:
        loader.load_state_dict({**before, **changes})
    except StorageLoaderError:
        assert loader.state_dict() == before
    else:
        assert loader.state_dict() == {**before, **changes}
        assert len(numbers_in(loader)) % 20 <= 20


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", None, True])
def test_set_epoch_refuses(fifty: DataConfig, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        DataLoader(fifty).set_epoch(epoch)


# What it costs


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("index", [False, True])
def test_rows_before_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: Any, index: bool
) -> None:
    """Late in an epoch, only what still comes is fetched."""
    large = (*ATTRIBUTES, Attribute("pixels", "uint8", (9000,)))  # 7 rows an object
    the_config = config(
        {"storage": str(tmp_path / "store")}, attributes=large, max_object_size=MIN_OBJECT_SIZE
    )
    save(the_config, make(range(700), large))
    how: dict[str, Any] = {
        "batch_size": 10, "shuffle": shuffle, "block": 7, "window": 70, "index": index,
    }  # fmt: skip
    opened = watch(monkeypatch, local=False)
    first = DataLoader(the_config, cache_dir=tmp_path / "a", **how)
    running = iter(first)
    for _ in range(66):
        next(running)
    state = first.state_dict()
    running.close()  # type: ignore[attr-defined]  # a generator
    opened.clear()
    second = DataLoader(the_config, cache_dir=tmp_path / "b", **how)
    second.load_state_dict(state)
    assert not [call for store in opened for call in store.calls if "/objects/" in call.key]
    assert len(numbers_in(second, large)) == 40
    touched = {call.key for store in opened for call in store.calls if "/objects/" in call.key}
    # 40 rows: of 40 objects at most where all are mixed, else of the last window's blocks.
    assert len(touched) <= {False: 7, True: 20, "global": 40}[shuffle]
