"""Gathering rows that lie in memory, against plain indexing of an array that holds them all."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import Attribute
from storage_loader.loader.fill.fixed import LARGE_ROW
from storage_loader.loader.fill.gather import gathered
from storage_loader.loader.fill.memory import AlignedMemory
from storage_loader.loader.fill.parts import Parts, void_items
from storage_loader.loader.fill.ready import Copies, Ready
from storage_loader.schema import Schema
from tests.support.rows import ROW, assert_rows, make

NBYTES = [0, 1, 8, 72, 1023, 1024, 16383, 49152, 2**20]
MANY = 2_100_000  # bytes in all parts of one attribute


def schema_of(sizes: Sequence[int]) -> Schema:
    """uint8 attributes of these sizes, and the number of the row last."""
    return Schema((*(Attribute(f"a{i}", "uint8", (n,)) for i, n in enumerate(sizes)),
                   Attribute(ROW, "int64")))  # fmt: skip


def parts_of(
    schema: Schema,
    lengths: Sequence[int],
    places: Sequence[int],
    first: int,
    *,
    frees_gil: bool = True,
) -> Ready:
    """Rows from `first` on in parts of these lengths, in one memory in the order of `places`.

    Between and around the parts lie other bytes.
    """
    starts = first + np.append(0, np.cumsum(lengths))
    parts = {}
    for a in schema:
        if not a.row_nbytes:
            continue
        memory = np.full(sum(lengths) * a.row_nbytes + 7 * (len(lengths) + 1), 0xEE, np.uint8)
        arrays: dict[int, Any] = {}
        offset = 7
        for i in np.argsort(np.array(places)).tolist():
            rows = make(range(starts[i], starts[i + 1]), [a])[a.name]
            nbytes = rows.nbytes
            memory[offset : offset + nbytes] = rows.reshape(-1).view(np.uint8)
            arrays[i] = void_items(memoryview(memory)[offset : offset + nbytes], a.regions[0])
            offset += nbytes + 7
        arrays_in_order = [arrays[i] for i in range(len(lengths))]
        parts[a.name] = Parts(a.regions[0], starts[:-1], arrays_in_order, frees_gil)
    return Ready(parts)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, list[int], list[int], int, np.ndarray]:
    """A schema, the lengths and places of parts, the first row, and rows asked for."""
    sizes = draw(st.lists(st.sampled_from(NBYTES), min_size=1, max_size=3))
    most = max(1, min(40, MANY // max(*sizes, 1)))  # rows in all parts
    count = draw(st.integers(1, min(most, 5)))
    lengths = [draw(st.integers(1, max(1, most // count))) for _ in range(count)]
    places = draw(st.permutations(range(count)))
    first = draw(st.sampled_from([0, 3, 10**12]))
    stop = first + sum(lengths)
    shape = draw(st.integers(0, 4)), draw(st.integers(1, 12))
    if draw(st.booleans()):
        rows = st.integers(first, stop - 1) | st.just(-1) if draw(st.booleans()) else st.integers(
            first, stop - 1
        )  # fmt: skip
        numbers = [draw(rows) for _ in range(shape[0] * shape[1])]
    else:  # consecutive
        numbers = [first + i % (stop - first) for i in range(shape[0] * shape[1])]
    return (
        schema_of(sizes),
        lengths,
        list(places),
        first,
        np.array(numbers, np.int64).reshape(shape),
    )


def in_new_arrays(schema: Schema, ready: Ready, rows: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [batch for batch, _ in gathered(schema, ready, rows)]


def in_aligned_memory(
    schema: Schema, ready: Ready, rows: np.ndarray
) -> list[dict[str, np.ndarray]]:
    memories = [AlignedMemory() for _ in rows]
    left = iter(memories)
    pairs = list(gathered(schema, ready, rows, lambda: next(left)))
    assert [memory for _, memory in pairs] == memories
    for batch, memory in pairs:
        for a in schema:
            array = batch[a.name]
            if array.nbytes and (a.row_nbytes >= LARGE_ROW or memory.wants(array.nbytes)):
                assert array.__array_interface__["data"][0] % 64 == 0
    return [batch for batch, _ in pairs]


def check(schema: Schema, ready: Ready, rows: np.ndarray) -> None:
    for batches_of in (in_new_arrays, in_aligned_memory):
        check_batches(batches_of(schema, ready, rows), schema, rows)


def check_batches(batches: list[dict[str, np.ndarray]], schema: Schema, rows: np.ndarray) -> None:
    assert len(batches) == len(rows)
    for batch, numbers in zip(batches, rows, strict=True):
        valid = numbers >= 0
        assert_rows({n: array[valid] for n, array in batch.items()}, numbers[valid], list(schema))
        for a in schema:
            assert batch[a.name].shape == (len(numbers), *a.shape)
            assert not batch[a.name][~valid].any()
            assert batch[a.name].flags.writeable
            assert batch[a.name].flags.c_contiguous


@given(case=cases())
@settings(max_examples=100)
def test_rows_are_those_of_plain_indexing(case: Any) -> None:
    schema, lengths, places, first, rows = case
    check(schema, parts_of(schema, lengths, places, first), rows)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 8, 72, 1023, 1024]), min_size=1, max_size=3),
    parts=st.integers(1, 3),
    batch=st.sampled_from([1, 7, 256]),
    seed=st.integers(0, 2**32),
    run=st.booleans(),
)
@settings(max_examples=30)
def test_many_rows_of_few_parts(
    sizes: list[int], parts: int, batch: int, seed: int, run: bool
) -> None:
    """More rows than 16 a part: they are gathered as they lie, several batches at once."""
    schema, draw = schema_of(sizes), np.random.default_rng(seed)
    lengths = draw.integers(1, 300, parts).tolist()
    stop = sum(lengths)
    count = -(-512 // batch)
    if run:
        rows = np.arange(count * batch).reshape(count, batch) % stop
    else:
        rows = draw.integers(0, stop, (count, batch))
    check(schema, parts_of(schema, lengths, draw.permutation(parts).tolist(), 0), rows)
    rows[draw.random(rows.shape) < 0.1] = -1
    check(schema, parts_of(schema, lengths, draw.permutation(parts).tolist(), 0), rows)


@pytest.mark.parametrize("nbytes", [40961, 49152, 150_000, 2**20 - 8])
@pytest.mark.parametrize("count", [1, 2, 64, 128])
@pytest.mark.parametrize("frees_gil", [True, False])
def test_rows_copied_in_pieces(nbytes: int, count: int, frees_gil: bool) -> None:
    schema = schema_of([nbytes])
    rows = np.random.default_rng(nbytes).integers(3, 10, (2, count))
    check(schema, parts_of(schema, [4, 1, 2], [1, 2, 0], 3, frees_gil=frees_gil), rows)


def test_other_threads_run_while_large_rows_are_copied() -> None:
    schema = schema_of([600_000])
    ready = parts_of(schema, [20], [0], 0)
    rows = np.arange(128).reshape(2, 64) % 20
    is_copying, seen, end = threading.Event(), [], threading.Event()

    def watch() -> None:
        while not end.wait(1e-4):
            seen.append(is_copying.is_set())

    interval = sys.getswitchinterval()
    watcher = threading.Thread(target=watch)
    try:
        sys.setswitchinterval(100)  # no thread is made to let go of the GIL
        watcher.start()
        part = ready.parts["a0"]
        places = part.places(rows[0])
        for _ in range(100):  # on a busy machine the watcher may not get a core in time
            is_copying.set()
            copied = part.take(rows[0], places)
            is_copying.clear()
            if any(seen):
                break
    finally:
        sys.setswitchinterval(interval)
        end.set()
        watcher.join()
    assert_rows({"a0": copied}, rows[0], [schema["a0"]])
    assert any(seen)


@pytest.mark.parametrize(
    ("nbytes", "lengths", "size", "count"),
    [
        (0, [5000] * 4, 512, 200),  # more than 32,768 rows
        (1, [5000] * 4, 512, 200),
        (8, [5000] * 4, 1, 40_000),
        (72, [5000] * 4, 512, 200),
        (1023, [500] * 4, 512, 20),  # more than 4 MiB
        (1024, [500] * 4, 512, 8),
        (49152, [10] * 4, 8, 12),
        (2**20, [1, 2, 1, 1], 4, 5),
    ],
)
def test_more_rows_than_are_gathered_at_once(
    nbytes: int, lengths: list[int], size: int, count: int
) -> None:
    schema = schema_of([nbytes])
    ready = parts_of(schema, lengths, [2, 0, 3, 1], 0)
    rows = np.random.default_rng(1).permutation(np.arange(count * size) % sum(lengths))
    if size > 1:
        check(schema, ready, rows.reshape(count, size))
    else:  # too many to look at each
        batches = in_new_arrays(schema, ready, rows[:, None])
        whole = {a.name: np.concatenate([batch[a.name] for batch in batches]) for a in schema}
        assert_rows(whole, rows, list(schema))


def test_all_padding_and_nothing_at_all() -> None:
    schema = schema_of([0, 5, 2000])
    ready = parts_of(schema, [3, 4], [1, 0], 0)
    check(schema, ready, np.full((3, 4), -1))
    check(schema, ready, np.empty((0, 4), np.int64))
    check(schema, ready, np.empty((2, 0), np.int64))
    check(schema, Ready({}), np.full((2, 3), -1))


# A row that is not here: an error, never other memory


@given(
    nbytes=st.sampled_from(NBYTES[1:]),
    wrong=st.sampled_from(["before", "after", "far after", "in a gap", "far before"]),
    among=st.integers(0, 63),
    many=st.booleans(),
)
@settings(max_examples=150)
def test_a_row_of_no_part_is_an_error(nbytes: int, wrong: str, among: int, many: bool) -> None:
    schema = Schema((Attribute("a", "uint8", (nbytes,)),))
    count = 3
    ready = parts_of(schema, [count, count], [1, 0], 100)
    [part] = ready.parts.values()
    gap = Parts(part.region, np.array([100, 110]), part.arrays)  # rows 100 to 103, 110 to 113
    row = {"before": 99, "after": 113, "far after": 10**15, "in a gap": 105, "far before": 0}[wrong]
    rows = np.resize([100, 101, 102, 110, 111, 112], 64 if many else 4)
    list(gathered(schema, Ready({"a": gap}), rows[None]))
    rows[among % len(rows)] = row
    with pytest.raises(AssertionError, match="are not here"):
        list(gathered(schema, Ready({"a": gap}), rows[None]))


def copied(schema: Schema, numbers: Sequence[int]) -> Ready:
    rows = np.array(numbers, np.int64)
    copies = Copies(schema, rows)
    with copies.part(np.arange(len(rows))) as part:
        for name, out in part.items():
            whole = make(rows, [a for a in schema if a.name == name])[name]
            out[:] = whole.reshape(-1).view(out.dtype)
    return copies.ready()


@pytest.mark.parametrize("nbytes", [1, 72, 1024, 2**20])
def test_copies_hold_the_rows_they_were_made_for_and_no_others(nbytes: int) -> None:
    schema = schema_of([nbytes])
    here = [3, 5, 6, 10**12]
    ready = copied(schema, here)
    rows = np.array([[6, 3, 3], [10**12, 5, -1]])
    check(schema, ready, rows)
    for wrong in (0, 4, 7, 10**12 - 1, 10**12 + 1):
        for several in (1, 40):
            rows = np.resize([*here, wrong], (1, 5 * several))
            with pytest.raises(AssertionError, match="are not here"):
                in_new_arrays(schema, ready, rows)


@given(
    nbytes=st.sampled_from([1, 72, 1024, 40_000]),
    lies=st.lists(
        st.sampled_from(["copied", "alone", "with the one before"]), min_size=1, max_size=9
    ),
    drawn=st.randoms(use_true_random=False),
)
def test_rows_that_stay_where_they_lie_and_copies_are_all_there(
    nbytes: int, lies: list[str], drawn: random.Random
) -> None:
    attribute = Attribute("a", "uint8", (nbytes,))
    schema = Schema((attribute,))
    numbers = np.arange(len(lies)) * 3
    whole = make(numbers, list(schema))[attribute.name].reshape(-1).view(f"V{nbytes}")
    copies = Copies(schema, numbers)
    copied = [i for i, how in enumerate(lies) if how == "copied"]
    stays: list[tuple[int, int]] = []  # rows that lie together, from, to
    for i, how in enumerate(lies):
        if how == "joined" and stays and stays[-1][1] == i:
            stays[-1] = stays[-1][0], i + 1
        elif how != "copied":
            stays.append((i, i + 1))
    drawn.shuffle(stays)
    for start, stop in stays:
        copies.refer(attribute.name, start, whole[start:stop].copy())
    if copied:
        with copies.part(np.array(copied), but={attribute.name}) as part:
            assert not part
        with copies.part(np.array(copied)) as part:
            part[attribute.name][:] = whole[copied]
    check(schema, copies.ready(), np.array([drawn.choices([*numbers, -1], k=30)]))


def test_batches_own_their_memory() -> None:
    """Nothing that is written to one reaches another, or what they were gathered from."""
    schema = schema_of([1, 72, 2000])
    ready = parts_of(schema, [30, 30], [1, 0], 0)
    rows = np.arange(60).reshape(6, 10)
    batches = in_new_arrays(schema, ready, rows)
    for batch in batches[::2]:
        for array in batch.values():
            array.view(np.uint8)[...] = 0xAA
    for batch, numbers in zip(batches[1::2], rows[1::2], strict=True):
        assert_rows(batch, numbers, list(schema))
    check(schema, ready, rows)


def test_many_threads_gather_at_once() -> None:
    """What is worked out at first use is worked out alike by all."""
    schema = schema_of([8, 1500])
    ready = parts_of(schema, [40] * 5, [4, 2, 0, 1, 3], 0)
    failed: list[BaseException] = []
    barrier = threading.Barrier(4)

    def run(seed: int) -> None:
        try:
            rows = np.random.default_rng(seed).integers(0, 200, (20, 16))
            barrier.wait(60)
            check(schema, ready, rows)
        except BaseException as error:
            failed.append(error)

    started = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert failed == []
