"""`storage_loader.torch.IterableDataset` under torch's DataLoader and torchdata's stateful one."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import storage_loader
from storage_loader import DataConfig, save
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import ConfigError, LoaderError, TransformError, UnknownNameError
from storage_loader.loader.order.partition import LAST_BATCH, Partition
from storage_loader.torch import DataLoader, IterableDataset
from storage_loader.torch import epochs as epochs_module
from storage_loader.torch.epochs import Epochs
from tests.support.rows import ROW, config, make, numbers_of, save_rows

COUNT = 103
pytestmark = [
    pytest.mark.usefixtures("torch_once"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more than CPUs
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    the_config = config(
        {"storage": str(tmp_path_factory.mktemp("iterable"))}, max_object_size=MIN_OBJECT_SIZE
    )
    return save_rows(the_config, COUNT, 40, commits=True)


@pytest.fixture(autouse=True)
def no_worker_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def rows_of(batches: Any) -> list[list[int]]:
    return [
        numbers_of({name: tensor.numpy() for name, tensor in batch.items()}) for batch in batches
    ]


def epochs(the_config: DataConfig, count: int, **how: Any) -> list[list[list[int]]]:
    """Each epoch's batches, of one process."""
    loader = storage_loader.DataLoader(the_config, **how)
    return [[batch[ROW].tolist() for batch in loader] for _ in range(count)]


def batches_of(dataset: IterableDataset, **how: Any) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(dataset, batch_size=None, **how)


# Shares


@settings(max_examples=200)
@given(
    num_rows=st.integers(0, 200),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 3),
    workers=st.integers(1, 5),
    start=st.integers(0, 50),
    last_batch=st.sampled_from(LAST_BATCH),
    contiguous=st.booleans(),
)
def test_shares_in_turn_are_the_whole(
    num_rows: int,
    batch_size: int,
    world_size: int,
    workers: int,
    start: int,
    last_batch: Any,
    contiguous: bool,
) -> None:
    def partition(worker: int, workers: int) -> Partition:
        return Partition(
            num_rows, batch_size, world_size, last_batch, contiguous, start, (worker, workers)
        )

    for rank in range(world_size):
        whole = partition(0, 1)
        expected = [whole.batch(i, rank).positions.tolist() for i in range(whole.num_batches)]
        shares = []
        for worker in range(workers):
            share = partition(worker, workers)
            mine = [share.batch(i, rank).positions.tolist() for i in range(share.num_batches)]
            full = share.full_batches(0, share.num_full, rank).tolist()
            assert mine[: share.num_full] == full
            for i in range(share.num_batches - 1):  # gone on from there: the rest of the share
                rest = Partition(
                    num_rows, batch_size, world_size, last_batch, contiguous,
                    share.rows_after(i), (worker, workers),
                )  # fmt: skip
                assert rest.num_batches == share.num_batches - i - 1
                assert rest.position(0) == share.position(i + 1)
            shares.append(mine)
        turns = max(map(len, shares))
        assert [s[i] for i in range(turns) for s in shares if i < len(s)] == expected


# Under torch's DataLoader


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_the_batches_of_one_process_in_their_order_epoch_after_epoch(
    saved: DataConfig, workers: int, persistent: bool, shuffle: Any
) -> None:
    if persistent and not workers:
        return
    how: dict[str, Any] = {**ORDER, "shuffle": shuffle, "batch_size": 8}
    dataset = IterableDataset(saved, **how)
    loader = batches_of(dataset, num_workers=workers, persistent_workers=persistent)
    expected = epochs(saved, 4, **how)
    assert len(loader) == 13
    assert rows_of(loader) == expected[0]
    assert rows_of([next(iter(loader))]) == expected[1][:1]  # left early
    assert rows_of(loader) == expected[2]
    dataset.set_epoch(1)
    assert rows_of(loader) == expected[1]
    assert rows_of(loader) == expected[2]
    del loader


def test_the_main_process_and_workers_by_turns(saved: DataConfig) -> None:
    how: dict[str, Any] = {**ORDER, "batch_size": 8}
    dataset = IterableDataset(saved, **how)
    expected = epochs(saved, 5, **how)
    two, one = batches_of(dataset, num_workers=2), batches_of(dataset, num_workers=1)
    assert rows_of(dataset) == expected[0]
    assert rows_of(two) == expected[1]
    assert rows_of([next(iter(dataset))]) == expected[2][:1]
    assert rows_of(one) == expected[3]
    assert rows_of(two) == expected[4]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_torch_collates(saved: DataConfig, workers: int) -> None:
    dataset = IterableDataset(saved, **ORDER)
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=workers)
    for _ in range(2):
        batches = rows_of(loader)
        assert sorted(n for batch in batches for n in batch) == list(range(COUNT))
        assert max(map(len, batches)) == 8
    assert len(dataset) == COUNT


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew(saved: DataConfig, method: str) -> None:
    dataset = IterableDataset(saved, batch_size=8, **ORDER)
    loader = batches_of(dataset, num_workers=2, multiprocessing_context=method)
    expected = epochs(saved, 2, batch_size=8, **ORDER)
    assert rows_of(loader) == expected[0]
    assert rows_of(dataset) == expected[1]  # this process knows of it


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_workers_together_give_each_row_once(saved: DataConfig, workers: int) -> None:
    found = []
    for rank in range(2):
        dataset = IterableDataset(saved, batch_size=7, rank=rank, world_size=2, **ORDER)
        found.append(rows_of(batches_of(dataset, num_workers=workers)))
    assert len(found[0]) == len(found[1]) == 8
    assert sorted(n for part in found for batch in part for n in batch) == list(range(COUNT))


def test_more_workers_than_batches(saved: DataConfig) -> None:
    dataset = IterableDataset(saved, batch_size=60, epochs=2)
    assert rows_of(batches_of(dataset, num_workers=3)) == [
        b for _ in range(2) for b in ([*range(60)], [*range(60, COUNT)])
    ]


def test_a_version_is_fixed_before_workers_are(memory: dict[str, str], folder: Any) -> None:
    the_config = config(folder)
    save(the_config, make(range(20)))
    dataset = IterableDataset(the_config, batch_size=8)
    save(the_config, make(range(20, 30)))
    assert [n for b in rows_of(batches_of(dataset, num_workers=2)) for n in b] == [*range(20)]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_that_have_not_met_cannot_fix_one(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = IterableDataset(saved, batch_size=8)
    workers = {"num_workers": 1, "multiprocessing_context": method}
    with pytest.raises(LoaderError, match="call open"):
        next(iter(batches_of(dataset, **workers)))
    dataset.open()
    assert len(rows_of(batches_of(dataset, **workers))) == 13


def test_ranks_that_meet_after_rows_were_read_read_what_they_agree_on(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(folder)
    save(the_config, make(range(20)))
    dataset = IterableDataset(the_config, batch_size=8)
    assert [n for b in rows_of(dataset) for n in b] == [*range(20)]
    save(the_config, make(range(20, 30)))
    monkeypatch.setattr("storage_loader.torch.distributed.group", lambda: (0, 2))
    asked: list[Any] = []
    monkeypatch.setattr(
        "storage_loader.torch.distributed._broadcast", lambda value: asked.append(value) or value
    )
    dataset.open()
    expected = epochs(the_config, 1, batch_size=8, rank=0, world_size=2)
    assert rows_of(dataset) == expected[0]
    assert len(asked) == 1


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, StatefulDataLoader])
def test_batches_are_not_made_batches_of(saved: DataConfig, workers: int, kind: Any) -> None:
    loader = kind(IterableDataset(saved, 8), num_workers=workers)
    with pytest.raises(ConfigError, match=r"\(batch_size=8\) gives .* give it batch_size=None"):
        rows_of(loader)
    [expected] = epochs(saved, 1, batch_size=8)
    # These know what they do.
    own = kind(IterableDataset(saved, 8), num_workers=workers, collate_fn=one_of)
    assert rows_of(own) == expected
    rows = kind(IterableDataset(saved), batch_size=8, num_workers=workers)
    assert rows_of(rows) == expected


def one_of(batches: list[Any]) -> Any:
    [batch] = batches
    return batch


def test_a_loader_of_ours_is_no_dataset_of_torchs(saved: DataConfig) -> None:
    for batch_size in (1, None):
        given = torch.utils.data.DataLoader(DataLoader(saved), batch_size=batch_size)  # type: ignore[arg-type]
        with pytest.raises(LoaderError, match="torch's DataLoader takes Dataset or IterableData"):
            next(iter(given))


def test_what_is_torchs_is_not_ours(saved: DataConfig) -> None:
    for name, value in (("num_workers", 2), ("device", "cpu"), ("pin_memory", True),
                        ("prefetch_factor", 2), ("collate_fn", list)):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{name}: torch's DataLoader does that"):
            IterableDataset(saved, **{name: value})
    with pytest.raises(UnknownNameError, match="did you mean 'shuffle'"):
        IterableDataset(saved, shufle=True)
    assert isinstance(IterableDataset(saved), torch.utils.data.IterableDataset)


def forges(batch: Any) -> Any:
    raise ValueError("a\nforged \x1b[31m")


def test_an_error_of_torchs_worker_keeps_its_lines(saved: DataConfig) -> None:
    """Torch makes it anew, with the traceback in its text."""
    dataset = IterableDataset(saved, batch_size=8, transform=forges)
    with pytest.raises(TransformError, match="transform failed on rows 0, 1") as caught:
        next(iter(batches_of(dataset, num_workers=1)))
    lines = str(caught.value).split("\n")
    del caught  # and the iterator in its frames, with the worker
    assert all(line.isprintable() for line in lines)
    assert "Original Traceback (most recent call last):" in lines
    ours = [line for line in lines if "transform failed on rows" in line]
    assert [line.split(": ", 1)[0] for line in ours] == ["storage_loader.errors.TransformError"]
    assert ours[0].endswith(r"ValueError: a\nforged \x1b[31m")


def noisy(batch: dict[str, Any], rng: Any) -> Any:
    return batch[ROW].tolist(), rng.random()


@pytest.mark.parametrize("workers", [1, 3])
def test_what_a_transform_draws_is_the_same_by_any_workers(saved: DataConfig, workers: int) -> None:
    how: dict[str, Any] = {"batch_size": 8, "transform": noisy, **ORDER}
    expected = list(DataLoader(saved, **how))
    assert len({draw for _, draw in expected}) == len(expected)
    dataset = IterableDataset(saved, **how)
    assert list(batches_of(dataset, num_workers=workers, collate_fn=one)) == expected


def one(batch: Any) -> Any:
    return batch


# States


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_resumes_it_exactly(saved: DataConfig, workers: int) -> None:
    how: dict[str, Any] = {**ORDER, "batch_size": 8}
    expected = epochs(saved, 4, **how)

    def loader(**more: Any) -> StatefulDataLoader:
        dataset = IterableDataset(saved, **how)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **more)

    for given_before in (0, 1, 5, 12, 13):
        before = loader()
        assert rows_of(before) == expected[0]
        running = iter(before)
        seen = rows_of(next(running) for _ in range(given_before))
        if given_before == 13:
            assert next(running, None) is None
        file = io.BytesIO()
        torch.save({"data": before.state_dict()}, file)
        del running, before
        file.seek(0)
        after = loader()
        after.load_state_dict(torch.load(file, weights_only=False)["data"])
        following = rows_of(after)
        if given_before == 13:
            assert seen == expected[1]
            assert following == expected[2]
        else:
            assert seen + following == expected[1]
            assert rows_of(after) == expected[2]
        del after


def test_torchdata_resumes_with_workers_that_persist(saved: DataConfig) -> None:
    how: dict[str, Any] = {**ORDER, "batch_size": 8}
    expected = epochs(saved, 4, **how)
    before = StatefulDataLoader(IterableDataset(saved, **how), batch_size=None, num_workers=2)
    running = iter(before)
    seen = rows_of(next(running) for _ in range(3))
    state = before.state_dict()
    del running, before
    after = StatefulDataLoader(
        IterableDataset(saved, **how), batch_size=None, num_workers=2, persistent_workers=True
    )
    after.load_state_dict(state)
    assert seen + rows_of(after) == expected[0]
    assert rows_of(after) == expected[1]
    assert rows_of(after) == expected[2]
    del after


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_through_a_checkpoint(saved: DataConfig, workers: int) -> None:
    """And between `DataLoader` and `IterableDataset`, and to workers of torch's DataLoader."""
    how: dict[str, Any] = {**ORDER, "batch_size": 8}
    expected = epochs(saved, 3, **how)
    before = DataLoader(saved, **how)
    list(before)
    running = iter(before)
    for _ in range(4):
        next(running)
    file = io.BytesIO()
    torch.save(before.state_dict(), file)
    file.seek(0)
    after = IterableDataset(saved, **how)
    after.load_state_dict(torch.load(file, weights_only=True))
    assert after.state_dict() == before.state_dict()
    assert rows_of(batches_of(after, num_workers=workers)) == expected[1][4:]
    assert after.state_dict()["rows"] == 0
    assert rows_of(batches_of(after, num_workers=2 - workers)) == expected[2]
    third = DataLoader(saved, **how)
    third.load_state_dict(after.state_dict())
    assert third.state_dict()["epoch"] == 3


def test_a_workers_state_is_for_that_worker(saved: DataConfig) -> None:
    dataset = IterableDataset(saved, batch_size=8)
    state = {**dataset.state_dict(), "worker": 1, "num_workers": 2, "is_over": False}
    with pytest.raises(LoaderError, match="is of worker 1 of 2"):
        dataset.load_state_dict(state)


# A state, and commits since


def appended(folder: Any) -> tuple[DataConfig, dict[str, Any]]:
    """A dataset of 103 rows to which `append` adds 50, and how it is read."""
    the_config = config(folder, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, COUNT, 40, commits=True), {**ORDER, "batch_size": 8}


def of_versions(the_config: DataConfig, how: dict[str, Any], count: int) -> list[Any]:
    """Of each version, oldest first, the epochs."""
    return [
        epochs(the_config, count, version=version, **how)
        for version in (storage_loader.commit_log(the_config)[2].version, None)
    ]


def stateful(the_config: DataConfig, how: dict[str, Any], **torchs: Any) -> StatefulDataLoader:
    return StatefulDataLoader(IterableDataset(the_config, **how), batch_size=None, **torchs)


WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("after", WORKERS, ids=str)
@pytest.mark.parametrize("seed", [3, 99])
def test_a_begun_epoch_ends_at_its_version_and_the_next_is_of_the_newest(
    folder: Any, after: dict[str, Any], seed: int
) -> None:
    the_config, how = appended(folder)
    before = stateful(the_config, how, num_workers=after.get("num_workers", 0))
    running = iter(before)
    seen = rows_of(next(running) for _ in range(3))
    state = before.state_dict()
    del running, before
    save(the_config, make(range(COUNT, COUNT + 50)))
    old, new = of_versions(the_config, how, 4)

    loader = stateful(the_config, {**how, "seed": seed}, **after)
    assert len(loader) == 20
    loader.load_state_dict(state)
    assert len(loader) == 20
    assert seen + rows_of(loader) == old[0]
    assert len(loader) == 20
    assert [rows_of(loader) for _ in range(2)] == new[1:3]
    assert len(loader) == 20
    last = iter(loader)
    seen = rows_of(next(last) for _ in range(5))
    state = loader.state_dict()
    del last, loader
    save(the_config, make(range(COUNT + 50, COUNT + 60)))
    loader = stateful(the_config, how, **after)
    loader.load_state_dict(state)
    assert seen + rows_of(loader) == new[3]
    assert sorted(n for b in rows_of(loader) for n in b) == list(range(COUNT + 60))
    del loader


@pytest.mark.parametrize("after", WORKERS, ids=str)
def test_an_epoch_that_was_over_is_followed_by_one_of_the_newest_version(
    folder: Any, after: dict[str, Any]
) -> None:
    the_config, how = appended(folder)
    before = stateful(the_config, how, **after)
    rows = rows_of(before)
    state = before.state_dict()
    del before
    save(the_config, make(range(COUNT, COUNT + 50)))
    old, new = of_versions(the_config, how, 3)
    assert rows == old[0]
    loader = stateful(the_config, how, **after)
    loader.load_state_dict(state)
    assert [rows_of(loader) for _ in range(2)] == new[1:3]
    assert len(loader) == 20
    del loader


@pytest.mark.parametrize("after", WORKERS, ids=str)
def test_one_of_several_epochs_belongs_to_its_iteration(folder: Any, after: dict[str, Any]) -> None:
    """What begins at one version ends at it: workers come to an epoch's end one by one."""
    the_config, how = appended(folder)
    how["epochs"] = 2
    before = stateful(the_config, how, **after)
    running = iter(before)
    seen = [n for b in rows_of(next(running) for _ in range(13)) for n in b]  # one epoch's
    state = before.state_dict()
    del running, before
    save(the_config, make(range(COUNT, COUNT + 50)))
    loader = stateful(the_config, how, **after)
    loader.load_state_dict(state)
    seen += [n for b in rows_of(loader) for n in b]
    assert sorted(seen) == sorted([*range(COUNT)] * 2)
    following = [n for b in rows_of(loader) for n in b]
    assert sorted(following) == sorted([*range(COUNT + 50)] * 2)
    del loader


@pytest.mark.parametrize("after", WORKERS, ids=str)
def test_a_state_loaded_before_torch_starts_workers(folder: Any, after: dict[str, Any]) -> None:
    """Into the dataset itself, under torch's own DataLoader and none."""
    the_config, how = appended(folder)
    before = DataLoader(the_config, **how)
    running = iter(before)
    seen = rows_of(next(running) for _ in range(3))
    state = before.state_dict()
    save(the_config, make(range(COUNT, COUNT + 50)))
    old, new = of_versions(the_config, how, 3)
    dataset = IterableDataset(the_config, **{**how, "seed": 99})
    loader = batches_of(dataset, **after)
    dataset.load_state_dict(state)
    assert len(loader) == 20
    assert seen + rows_of(loader) == old[0]
    assert dataset.state_dict()["rows"] == 0
    assert [rows_of(loader) for _ in range(2)] == new[1:3]
    assert len(loader) == 20
    del loader
    torchs = DataLoader(the_config, **{**how, "seed": 99})
    torchs.load_state_dict(state)
    assert seen + rows_of(torchs) == old[0]
    assert [rows_of(torchs) for _ in range(2)] == new[1:3]


def test_a_version_that_was_given_is_that_of_later_epochs(folder: Any) -> None:
    the_config, how = appended(folder)
    first = storage_loader.commit_log(the_config)[0].version
    before = stateful(the_config, how, num_workers=2)
    running = iter(before)
    seen = rows_of(next(running) for _ in range(3))
    state = before.state_dict()
    del running, before
    [old, *_] = of_versions(the_config, how, 1)
    loader = stateful(the_config, {**how, "version": first}, num_workers=2)
    loader.load_state_dict(state)
    assert seen + rows_of(loader) == old[0]
    assert rows_of(loader) == epochs(the_config, 2, version=first, **how)[1]
    assert len(loader) == 5
    del loader


def test_a_seed_that_workers_cannot_share_is_refused(saved: DataConfig) -> None:
    with pytest.raises(ConfigError, match=r"^seed \d+: at most 9223372036854775807 here"):
        IterableDataset(saved, seed=2**63)
    dataset = IterableDataset(saved, seed=2**63 - 1)
    before = dataset.state_dict()
    state = DataLoader(saved, seed=2**70).state_dict()
    with pytest.raises(ConfigError, match=r"^seed \d+: at most"):
        dataset.load_state_dict(state)
    assert dataset.state_dict() == before


# Epochs that are shared


def test_groups_agree_in_any_order() -> None:
    shared = Epochs(3)
    late = 7
    assert shared.begin(5, 0, None, 1) == (0, False)
    assert shared.begin(late, 0, None, 1) == (1, False)  # a second group, of an iteration left
    assert shared.begin(5, 0, None, 1) == (0, False)  # the first one's other worker
    assert shared.begin(9, 0, None, 1) == (2, False)
    assert shared.begin(late, 0, None, 1) == (1, False)
    assert shared.begin(9, 1, None, 1) == (3, False)  # which persists
    shared.start(1, resumes=True)
    assert [shared.begin(9, 4, 2, 1) for _ in range(3)] == [(1, True)] * 3
    assert shared.begin(9, 5, 2, 1) == (2, False)
    shared.start(10, resumes=False)
    assert [shared.begin(3, 0, None, 4) for _ in range(2)] == [(10, False)] * 2
    assert shared.begin(3, 1, None, 4) == (14, False)
    copy = pickle.loads(pickle.dumps(shared))
    copy.set(epoch=99, seed=4)
    assert (copy.epoch, copy.seed) == (99, 4)
    assert (shared.epoch, shared.seed) == (14, 3)


def what_others_see(monkeypatch: pytest.MonkeyPatch, act: Any) -> Iterator[Epochs]:
    """What another process may find while `act` writes: each record with any of its words new."""
    steps: list[tuple[Epochs, Any, Any]] = []
    write = Epochs._write

    def noted(shared: Epochs, place: int, numbers: list[int]) -> None:
        before = shared._words.clone()
        write(shared, place, numbers)
        steps.append((shared, before, shared._words.clone()))

    with monkeypatch.context() as patch:
        patch.setattr(Epochs, "_write", noted)
        act()
    for shared, before, after in steps:
        changed = torch.nonzero(before != after).flatten().tolist()
        for count in range(len(changed) + 1):
            for words in itertools.combinations(changed, count):
                other = pickle.loads(pickle.dumps(shared))
                other._words.copy_(before)
                other._words[list(words)] = after[list(words)]
                yield other


@pytest.mark.parametrize("resumes", [False, True])
def test_workers_agree_though_one_looks_while_another_writes(
    monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    shared = Epochs(3)
    shared.start(7, resumes=resumes)
    shared._write(epochs_module._place(5), [5, 2, 6, 1])  # of long ago, in the place of group 21
    first: list[Any] = []
    seen = list(what_others_see(monkeypatch, lambda: first.append(shared.begin(21, 0, 8, 1))))
    assert len(seen) > 30
    assert (shared.epoch, shared.resumes) == (8, False)
    for other in seen:
        assert [other.begin(21, 0, 8, 1) for _ in range(2)] == [(7, resumes)] * 2 == first * 2
        other.set(epoch=8, resumes=False)  # the writer goes on
        assert other.begin(22, 0, 8, 1) == (8, False)  # the iteration after it


def test_what_comes_next_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Epochs(3)
    shared.set(epoch=4, resumes=False, seed=1)
    seen = what_others_see(monkeypatch, lambda: shared.set(epoch=6, resumes=True, seed=2))
    found = {(other.epoch, other.resumes, other.seed) for other in seen}
    assert found == {(4, False, 1), (6, True, 2)}


def test_a_writer_that_is_killed_leaves_what_can_be_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Epochs(3)
    for other in what_others_see(monkeypatch, lambda: shared.set(epoch=6, resumes=True, seed=2)):
        other.set(epoch=8)
        assert other.epoch == 8
    other._words[:] = 5
    with pytest.raises(LoaderError, match="make it again"):
        other.set(epoch=1)
