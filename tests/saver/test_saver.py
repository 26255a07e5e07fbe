"""`DataSaver`: what becomes visible when, and what a failure leaves behind."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataSaver, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    CastError,
    ConfigError,
    SaverError,
    SchemaError,
    UnknownNameError,
)
from storage_loader.hdf5 import capacity, template
from storage_loader.layout import ALIGNMENT
from storage_loader.saver.buffer import ObjectBuffer
from storage_loader.schema import Schema
from storage_loader.store import open_store
from tests.support import ROOT
from tests.support.faulty import FailAt, Injected, watch
from tests.support.forked import OTHER_PROCESS, in_fork
from tests.support.rows import ATTRIBUTES, config, in_batches, make, stored
from tests.support.s3 import remove_bucket
from tests.support.saved import WIDE, WIDE_ROWS, files, nothing_there, wide
from tests.support.threads import running
from tests.support.waiting import until

# What becomes visible, and when


def test_leaving_with_commits(storage: dict[str, str]) -> None:
    with DataSaver(config(storage)) as saver:
        saver(make(range(7)))
        assert nothing_there(config(storage))
        saver(make(range(7, 9)))
    assert stored(config(storage)) == list(range(9))


def test_leaving_by_an_exception_makes_nothing_visible_and_removes_what_was_stored(
    storage: dict[str, str],
) -> None:
    with pytest.raises(ZeroDivisionError), DataSaver(wide(storage)) as saver:
        saver(make(range(5 * WIDE_ROWS), WIDE))
        raise ZeroDivisionError
    assert nothing_there(wide(storage))
    assert files(Catalog(wide(storage)).store) == []


def test_close_commits_and_a_second_close_does_nothing(folder: dict[str, str]) -> None:
    saver = DataSaver(config(folder))
    saver(make(range(3)))
    saver.close()
    saver.close()
    saver.abort()
    assert stored(config(folder)) == [0, 1, 2]
    assert len(Dataset(config(folder)).version.commits) == 1


def test_abort_makes_nothing_visible(folder: dict[str, str]) -> None:
    saver = DataSaver(wide(folder))
    saver(make(range(3 * WIDE_ROWS), WIDE))
    saver.abort()
    saver.abort()
    saver.close()
    assert nothing_there(wide(folder))
    assert files(Catalog(wide(folder)).store) == []


def test_abort_inside_with_holds(folder: dict[str, str]) -> None:
    with DataSaver(config(folder)) as saver:
        saver(make(range(3)))
        saver.abort()
    assert nothing_there(config(folder))


def test_an_exception_after_a_commit_takes_back_only_what_came_later(
    folder: dict[str, str],
) -> None:
    with pytest.raises(KeyboardInterrupt), DataSaver(wide(folder)) as saver:
        saver(make(range(2 * WIDE_ROWS), WIDE))
        saver.commit()
        saver(make(range(2 * WIDE_ROWS, 4 * WIDE_ROWS), WIDE))
        raise KeyboardInterrupt
    assert stored(wide(folder), WIDE) == list(range(2 * WIDE_ROWS))
    assert len(files(Catalog(wide(folder)).store, "objects")) == 2


def test_commit_publishes_so_far_and_goes_on(storage: dict[str, str]) -> None:
    seen = []
    with DataSaver(config(storage)) as saver:
        assert saver.commit() is None
        assert nothing_there(config(storage))
        for numbers in in_batches(0, 10, 4):
            saver(make(numbers))
            seen.append(saver.commit())
            assert stored(config(storage)) == list(range(numbers.stop))
            assert saver.commit() is None
    assert Dataset(config(storage)).version.commits == tuple(seen)
    assert stored(config(storage)) == list(range(10))


def test_save_is_one_line(folder: dict[str, str]) -> None:
    save(config(folder), make([1, 2]))
    save(config(folder), make([3]), num_worker_threads=1)
    assert stored(config(folder)) == [1, 2, 3]
    save(config(folder), make([4]), refresh=True)
    assert stored(config(folder)) == [4]


def test_refresh_replaces_once_and_then_appends(storage: dict[str, str]) -> None:
    save(config(storage), make(range(5)))
    with DataSaver(config(storage), refresh=True) as saver:
        saver(make([10, 11]))
        assert stored(config(storage)) == list(range(5))
        saver.commit()
        assert stored(config(storage)) == [10, 11]
        saver(make([12]))
    assert stored(config(storage)) == [10, 11, 12]


def test_refresh_that_fails_leaves_the_old_rows(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    with pytest.raises(ZeroDivisionError), DataSaver(config(folder), refresh=True) as saver:
        saver(make([10, 11]))
        raise ZeroDivisionError
    assert stored(config(folder)) == list(range(5))


def test_refresh_without_rows_empties(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    with DataSaver(config(folder), refresh=True):
        pass
    assert stored(config(folder)) == []
    saver = DataSaver(config(folder, "new"), refresh=True)  # without `with`, and nothing to replace
    saver.close()
    assert stored(config(folder, "new")) == []


@pytest.mark.parametrize("batches", [[], [0], [0, 0]], ids=str)
def test_a_saver_without_rows_publishes_nothing(folder: dict[str, str], batches: list[int]) -> None:
    with DataSaver(config(folder)) as saver:
        for rows in batches:
            saver(make(range(rows)))
    assert nothing_there(config(folder))
    assert files(Catalog(config(folder)).store) == []
    unopened = DataSaver(config(folder))
    unopened.close()
    assert nothing_there(config(folder))


def test_attributes_may_be_left_out_where_the_dataset_exists(folder: dict[str, str]) -> None:
    bare = DataConfig("rows", **folder)
    with pytest.raises(
        SchemaError,
        match=r"^dataset 'rows' does not exist yet in file:///.*: its config needs attributes$",
    ):
        save(bare, make([0]))
    save(config(folder), make([0]))
    save(bare, make([1]))
    assert stored(bare) == [0, 1]


# Use after the end, and by another process


@pytest.mark.parametrize("state", ["closed", "aborted"])
@pytest.mark.parametrize("opened", [True, False], ids=["with rows", "unused"])
def test_use_after_the_end_is_an_error(folder: dict[str, str], state: str, opened: bool) -> None:
    saver = DataSaver(config(folder))
    if opened:
        saver(make([1]))
    saver.close() if state == "closed" else saver.abort()
    for use in (lambda: saver(make([2])), saver.commit, saver.__enter__):
        with pytest.raises(SaverError, match=f"^this saver is {state}; make another one$"):
            use()


@pytest.mark.parametrize("opened", [True, False], ids=["with rows", "unused"])
def test_use_in_a_forked_process_is_an_error(folder: dict[str, str], opened: bool) -> None:
    saver = DataSaver(wide(folder))
    if opened:
        saver(make(range(2 * WIDE_ROWS + 1), WIDE))
    assert in_fork(lambda: saver(make([9], WIDE))) == OTHER_PROCESS
    assert in_fork(saver.commit) == OTHER_PROCESS
    assert in_fork(saver.__enter__) == OTHER_PROCESS
    saver(make([1000], WIDE))
    saver.close()
    kept = list(range(2 * WIDE_ROWS + 1)) if opened else []
    assert stored(wide(folder), WIDE) == [*kept, 1000]


def test_a_forked_process_that_leaves_with_takes_nothing_from_its_parent(
    folder: dict[str, str],
) -> None:
    def leave() -> None:
        with saver:
            raise ZeroDivisionError

    with DataSaver(wide(folder)) as saver:
        saver(make(range(3 * WIDE_ROWS), WIDE))
        until(lambda: "3 objects" in repr(saver))
        assert in_fork(saver.close) == OTHER_PROCESS
        assert in_fork(saver.abort) == "None"
        assert in_fork(lambda: saver.__exit__(ZeroDivisionError, None, None)) == "None"
        assert "open" in repr(saver)
    assert stored(wide(folder), WIDE) == list(range(3 * WIDE_ROWS))


# What may be saved


def test_a_wrong_batch_is_refused_whole_and_saving_goes_on(folder: dict[str, str]) -> None:
    good = make(range(3))
    with DataSaver(config(folder)) as saver:
        saver(good)
        with pytest.raises(SchemaError, match=r"^the batch lacks attribute 'weight'$"):
            saver({k: v for k, v in good.items() if k != "weight"})
        with pytest.raises(SchemaError, match=r"^attributes 'image' and 'row' have 3 and 2 rows"):
            saver({**good, "row": good["row"][:2]})
        with pytest.raises(CastError, match=r"^attribute 'image': row 1 holds 300 .*out of range"):
            saver({**good, "image": np.array([[[1]], [[300]], [[2]]]) + np.zeros((1, 3, 5), int)})
        assert (saver.rows_pending, saver.rows_committed) == (3, 0)
        saver(make([3]))
    assert stored(config(folder)) == [0, 1, 2, 3]


def test_a_row_that_fits_no_object_is_refused_before_anything_is_stored(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    big = DataConfig(
        "big", [("image", "uint8", (MIN_OBJECT_SIZE,))], max_object_size=MIN_OBJECT_SIZE, **folder
    )
    with pytest.raises(SchemaError) as caught:
        DataSaver(big)({"image": np.zeros((1, MIN_OBJECT_SIZE), np.uint8)})
    words = str(caught.value).split()
    needed = int(words[-3])
    assert str(caught.value) == (
        f"a row of 65536 bytes needs an object of {needed} bytes, but max_object_size is 65536; "
        f"set max_object_size to {needed} or more"
    )
    assert all(call.verb == "get" for store in stores for call in store.calls)
    fits = DataConfig(
        "big", [("image", "uint8", (MIN_OBJECT_SIZE,))], max_object_size=needed, **folder
    )
    save(fits, {"image": np.zeros((2, MIN_OBJECT_SIZE), np.uint8)})
    assert len(Dataset(fits)) == 2
    assert [size for _, size in objects(fits)] == [needed, needed]
    less = DataConfig(
        "less", [("image", "uint8", (MIN_OBJECT_SIZE,))], max_object_size=needed - 1, **folder
    )
    with pytest.raises(SchemaError, match=f"needs an object of {needed} bytes"):
        save(less, {"image": np.zeros((1, MIN_OBJECT_SIZE), np.uint8)})


def test_a_config_of_another_schema_is_refused_with_each_difference(
    folder: dict[str, str],
) -> None:
    save(config(folder), make([0]))
    other = config(
        folder,
        attributes=[
            Attribute("image", "uint8", (3, 5, 1)),
            Attribute("row", "int32"),
            Attribute("label", "int8"),
        ],
    )
    with pytest.raises(SchemaError) as caught, DataSaver(other):
        pass
    assert str(caught.value).splitlines() == [
        f"dataset 'rows' in file://{folder['storage']} has other attributes:",
        "  attribute 'image': uint8 (3, 5, 1), the dataset stores uint8 (3, 5)",
        "  attribute 'row': int32 (), the dataset stores int64 ()",
        "  attribute 'label' is not in the dataset",
        "  attribute 'weight' of the dataset is missing",
        "to read it, leave attributes out of the config; to save these, give another dataset_name "
        "or additional, or delete the dataset first",
    ]
    swapped = config(folder, attributes=ATTRIBUTES[::-1])
    with pytest.raises(
        SchemaError, match=r"the order is \('weight', 'row', 'image'\), the dataset"
    ):
        save(swapped, make([0]))


def test_of_two_first_savers_with_different_schemas_the_later_fails(
    folder: dict[str, str],
) -> None:
    other = config(folder, attributes=[Attribute("row", "int64")])
    with DataSaver(config(folder)) as first:
        second = DataSaver(other)
        second({"row": [7]})
        first(make([1]))
    with pytest.raises(SaverError) as caught:
        second.close()
    text = str(caught.value)
    assert text.startswith(
        "saving to dataset 'rows' failed, 1 rows were not committed (0 were before), "
        "save them with another DataSaver: dataset 'rows'"
    )
    assert "\n  attribute 'image' of the dataset is missing" in text
    assert "\n  attribute 'weight' of the dataset is missing" in text
    assert stored(config(folder)) == [1]
    assert len(files(Catalog(config(folder)).store, "objects")) == 1  # the loser's is gone


def test_of_two_schemas_written_at_once_one_is_kept(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other dataset.json arrives between the look and the put."""
    other = config(folder, attributes=[Attribute("row", "int64")])

    def overtake(call: Any) -> None:
        if call.kind == "put dataset":
            with monkeypatch.context() as inner:
                inner.setattr("storage_loader.catalog.catalog.open_store", open_store)
                save(other, {"row": [7]})

    watch(monkeypatch, before=overtake)
    with pytest.raises(SaverError, match="attribute 'image' is not in the dataset"):
        save(config(folder), make([1]))
    monkeypatch.undo()
    assert Dataset(other)[:]["row"].tolist() == [7]
    assert len(files(Catalog(other).store, "objects")) == 1


def test_wrong_arguments(folder: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^DataSaver takes a DataConfig, not str; give Data"):
        DataSaver("rows")  # type: ignore[arg-type]
    for wrong in (0, -1, 1.5, "4", True):
        with pytest.raises(ConfigError, match=f"^num_worker_threads {wrong!r}: at least 1$"):
            DataSaver(config(folder), num_worker_threads=wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="'refesh'; did you mean 'refresh'"):
        DataSaver(config(folder), refesh=True)  # type: ignore[call-arg]
    with pytest.raises(UnknownNameError, match="'num_workers'; did you mean 'num_worker_threads'"):
        save(config(folder), make([0]), num_workers=1)  # type: ignore[call-arg]


# Objects


def objects(the_config: DataConfig) -> list[tuple[str, int]]:
    """Key and size of each stored object of a dataset."""
    store = Catalog(the_config).store
    prefix = f"{the_config.dataset_prefix}/objects"
    return sorted((i.key, i.nbytes) for i in store.list(prefix))


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("full", [1, 3])
def test_objects_are_full_and_never_too_large(
    memory: dict[str, str], full: int, extra: int
) -> None:
    rows = full * WIDE_ROWS + extra
    save(wide(memory), make(range(rows), WIDE))
    snapshot = Dataset(wide(memory)).open()
    expected = [WIDE_ROWS] * (rows // WIDE_ROWS) + [rows % WIDE_ROWS] * bool(rows % WIDE_ROWS)
    assert [o.rows for o in snapshot.objects] == expected
    sizes = [nbytes for _, nbytes in objects(wide(memory))]
    assert [o.nbytes for o in snapshot.objects] == sizes
    assert max(sizes) <= MIN_OBJECT_SIZE
    if rows >= WIDE_ROWS:
        assert max(sizes) > MIN_OBJECT_SIZE - (1024 + 8) - 2 * ALIGNMENT  # full
    assert stored(wide(memory), WIDE) == list(range(rows))


@given(
    attributes=st.lists(
        st.tuples(
            st.sampled_from(["bool", "int16", "float64", "complex128"]),
            st.sampled_from([(), (1,), (7,), (0,), (100, 9)]),
        ),
        min_size=1,
        max_size=4,
    ),
    size=st.integers(MIN_OBJECT_SIZE, 4 * MIN_OBJECT_SIZE),
)
def test_capacity_is_the_most_that_fits(attributes: list[Any], size: int) -> None:
    schema = Schema.of((f"a{i}", *a) for i, a in enumerate(attributes))
    rows = capacity(schema, size)
    assert template(schema, rows).layout.nbytes <= size
    if schema.row_nbytes:
        slack = ALIGNMENT * (len(schema) + 1)  # between the parts
        assert template(schema, rows + 1).layout.nbytes > size - slack


def test_object_keys_are_unique_over_savers_and_commits(memory: dict[str, str]) -> None:
    for _ in range(3):
        with DataSaver(wide(memory)) as saver:
            for _ in range(3):
                saver(make(range(2 * WIDE_ROWS), WIDE))
                saver.commit()
    snapshot = Dataset(wide(memory)).open()
    keys = [o.key for o in snapshot.objects]
    assert len(set(keys)) == len(keys) == 18
    assert sorted(f"{snapshot.prefix}/{key}" for key in keys) == [
        k for k, _ in objects(wide(memory))
    ]


def test_no_key_is_put_twice(memory: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    stores = watch(monkeypatch)
    for _ in range(3):
        with DataSaver(wide(memory)) as saver:
            for _ in range(2):
                saver(make(range(2 * WIDE_ROWS), WIDE))
                saver.commit()
    puts = [call.key for store in stores for call in store.calls if call.verb == "put"]
    assert len(puts) == len(set(puts)) == 12 + 6 + 1


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_rows_keep_their_order_however_late_an_upload_ends(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    delays = random.Random(threads)
    watch(monkeypatch, before=lambda call: time.sleep(delays.random() * 0.01))
    with DataSaver(wide(memory), num_worker_threads=threads) as saver:
        for numbers in in_batches(0, 30 * WIDE_ROWS, 37):
            saver(make(numbers, WIDE))
    assert stored(wide(memory), WIDE) == list(range(30 * WIDE_ROWS))


def test_the_caller_may_change_a_batch_once_it_is_saved(memory: dict[str, str]) -> None:
    batch = make(range(5))
    with DataSaver(config(memory)) as saver:
        for first in range(0, 50, 5):
            for name, array in make(range(first, first + 5)).items():
                batch[name][:] = array
            saver(batch)
    assert stored(config(memory)) == list(range(50))


@given(
    sizes=st.lists(st.integers(0, 3 * WIDE_ROWS), max_size=8),
    commits=st.sets(st.integers(0, 7)),
)
def test_any_batch_sizes_and_commits_give_the_same_rows(
    sizes: list[int], commits: set[int]
) -> None:
    import uuid

    the_config = wide({"storage": f"memory://{uuid.uuid4().hex}"})
    start = 0
    with DataSaver(the_config, num_worker_threads=2) as saver:
        for place, size in enumerate(sizes):
            saver(make(range(start, start + size), WIDE))
            start += size
            if place in commits:
                saver.commit()
                assert (saver.rows_committed, saver.rows_pending) == (start, 0)
    if start:
        assert stored(the_config, WIDE) == list(range(start))
    else:
        assert nothing_there(the_config)


# A slow store


def test_a_blocked_store_makes_the_saver_wait_with_few_buffers(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    stores = watch(
        monkeypatch, before=lambda call: (call.kind == "put object" and go.wait(60)) or None
    )
    made = []
    new = ObjectBuffer.__init__

    def counted(self: ObjectBuffer, *args: Any) -> None:
        made.append(self)
        new(self, *args)

    monkeypatch.setattr(ObjectBuffer, "__init__", counted)
    accepted = []

    def produce() -> None:
        with DataSaver(wide(memory), num_worker_threads=3) as saver:
            for number in range(20 * WIDE_ROWS):
                saver(make([number], WIDE))
                accepted.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    until(lambda: stores and len(stores[0].kinds("put object")) == 3)
    until(lambda: len(accepted) == 4 * WIDE_ROWS)
    time.sleep(0.3)
    # Three buffers are stuck in threads, the fourth waits for a thread: the fifth is not made.
    assert len(accepted) == 4 * WIDE_ROWS
    assert len(made) == 4
    assert len(stores[0].kinds("put object")) == 3
    go.set()
    producer.join()
    assert len(made) == 4
    assert stored(wide(memory), WIDE) == list(range(20 * WIDE_ROWS))


def test_an_upload_that_fails_wakes_a_saver_that_waits(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def hold(call: Any) -> None:
        if call.kind == "put object":
            go.wait(60)
            raise Injected("the disk is on fire")

    watch(monkeypatch, before=hold)
    threading.Timer(0.2, go.set).start()
    saver = DataSaver(wide(memory), num_worker_threads=2)
    with pytest.raises(SaverError, match="the disk is on fire"):
        saver(make(range(20 * WIDE_ROWS), WIDE))
    assert saver.rows_pending < 6 * WIDE_ROWS  # it did not go on for nothing
    saver.abort()
    assert nothing_there(wide(memory))


@pytest.mark.parametrize("end", ["call", "commit"])
def test_a_long_wait_says_for_what(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    go, logged = threading.Event(), []

    def log(text: str, *values: object) -> None:
        logged.append(text % values)
        go.set()

    monkeypatch.setattr("storage_loader.saver.upload._LONG", 0.05)
    monkeypatch.setattr("storage_loader.saver.upload._log.info", log)
    watch(monkeypatch, before=lambda call: call.kind == "put object" and go.wait(60))
    with DataSaver(wide(memory), num_worker_threads=1) as saver:
        saver(make(range((20 if end == "call" else 1) * WIDE_ROWS), WIDE))
    what, count = ("a buffer", 2) if end == "call" else ("its uploads", 1)
    text = f"saving has waited 0 s for {what}: {count} objects are being stored in "
    assert logged[0].startswith(text + memory["storage"])


# A store that fails


def failed(pending: int, committed: int = 0) -> str:
    """The beginning of the error of a saver that has failed."""
    return (
        rf"^saving to dataset 'wide' failed, {pending} rows were not committed "
        rf"\({committed} were before\), save them with another DataSaver: "
        r"put .*: the disk is on fire$"
    )


@pytest.mark.parametrize("nth", [0, 1, 4, 9])
def test_after_an_upload_failed_close_commits_nothing_and_says_so(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    stores = watch(monkeypatch, before=FailAt("put object", nth))
    saver = DataSaver(wide(memory), num_worker_threads=2)
    rows = 0
    with pytest.raises(SaverError):
        for numbers in in_batches(0, 10 * WIDE_ROWS, 20):
            saver(make(numbers, WIDE))
            rows = numbers.stop
        saver.commit()
    rows = saver.rows_pending
    for use in (lambda: saver(make([0], WIDE)), saver.commit):
        with pytest.raises(SaverError, match=failed(rows)) as caught:
            use()
        assert isinstance(caught.value.__cause__, Injected)
    assert "failed" in repr(saver)
    with pytest.raises(SaverError, match=failed(rows)):
        saver.close()
    saver.close()
    assert "put commit" not in stores[0].kinds()
    assert "put dataset" not in stores[0].kinds()
    assert nothing_there(wide(memory))
    assert files(stores[0]) == []  # what was stored before is taken back


def test_a_failed_upload_leaves_with_as_an_error(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("put object", 3))
    with pytest.raises(SaverError, match=failed(4 * WIDE_ROWS)), DataSaver(wide(memory)) as saver:
        saver(make(range(4 * WIDE_ROWS), WIDE))
    assert nothing_there(wide(memory))


def test_an_error_of_the_caller_is_not_hidden_by_a_failed_upload(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("put object", onwards=True))
    with pytest.raises(ZeroDivisionError), DataSaver(wide(memory)) as saver:
        saver(make(range(WIDE_ROWS), WIDE))
        raise ZeroDivisionError


def test_what_was_committed_before_a_failure_stays(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("put object", 3))
    with (
        pytest.raises(SaverError, match=failed(2 * WIDE_ROWS, 2 * WIDE_ROWS)),
        DataSaver(wide(memory), num_worker_threads=1) as saver,
    ):
        saver(make(range(2 * WIDE_ROWS), WIDE))
        saver.commit()
        saver(make(range(2 * WIDE_ROWS, 4 * WIDE_ROWS), WIDE))
    assert stored(wide(memory), WIDE) == list(range(2 * WIDE_ROWS))
    assert len(objects(wide(memory))) == 2


@pytest.mark.parametrize("kind", ["get dataset", "put dataset", "list metadata", "put commit"])
def test_a_publish_that_fails_commits_nothing(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stores = watch(monkeypatch, before=FailAt(kind, 1 if kind == "get dataset" else 0))
    saver = DataSaver(wide(memory))
    saver(make(range(2 * WIDE_ROWS), WIDE))
    pattern = failed(2 * WIDE_ROWS).replace("put", "(put|get|list)")
    with pytest.raises(SaverError, match=pattern):
        saver.commit()
    with pytest.raises(SaverError, match=pattern):
        saver(make([1], WIDE))
    with pytest.raises(SaverError, match=pattern):
        saver.close()
    assert nothing_there(wide(memory)) or len(Dataset(wide(memory))) == 0
    if kind in ("get dataset", "put dataset"):
        assert files(stores[0]) == []


def test_a_later_saver_succeeds_after_a_failed_publish(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        watch(broken, before=FailAt("put commit"))
        with pytest.raises(SaverError):
            save(wide(memory), make(range(5), WIDE))
    assert stored(wide(memory), WIDE) == []  # dataset.json without commits
    save(wide(memory), make(range(3), WIDE))
    assert stored(wide(memory), WIDE) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["put dataset", "put commit"])
def test_a_put_that_arrived_although_it_raised_keeps_its_objects(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Its answer was lost: the commit may be visible, so its objects are never deleted."""
    stores = watch(monkeypatch, after=FailAt(kind, onwards=True))
    try:
        save(wide(memory), make(range(2 * WIDE_ROWS), WIDE))
    except SaverError:
        pass
    else:
        assert kind == "put commit"
        assert stored(wide(memory), WIDE) == list(range(2 * WIDE_ROWS))
    monkeypatch.undo()
    snapshot = Dataset(wide(memory)).open()
    held = files(stores[0], "objects")
    assert [snapshot.key(i) for i in range(len(snapshot.objects))] == held
    assert stored(wide(memory), WIDE) in ([], list(range(2 * WIDE_ROWS)))


def test_a_commit_that_arrived_although_its_put_raised_is_no_failure(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, after=FailAt("put commit"))
    with DataSaver(wide(memory)) as saver:
        saver(make(range(3), WIDE))
        saver.commit()
        assert (saver.rows_committed, saver.rows_pending) == (3, 0)
        saver(make(range(3, 5), WIDE))
    assert stored(wide(memory), WIDE) == list(range(5))


def test_a_publish_that_is_ambiguous_and_cannot_be_looked_up_keeps_its_objects(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put, get = FailAt("put commit"), FailAt("get commit")
    stores = watch(monkeypatch, after=put, before=get)
    saver = DataSaver(wide(memory))
    saver(make(range(2 * WIDE_ROWS), WIDE))
    with pytest.raises(SaverError, match="the commit may have arrived all the same"):
        saver.commit()
    with pytest.raises(SaverError):
        saver.close()
    assert stored(wide(memory), WIDE) == list(range(2 * WIDE_ROWS))
    assert stores[0].kinds("delete") == []


def test_a_delete_that_fails_while_aborting_is_a_warning(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch(monkeypatch, before=FailAt("delete object"))
    saver = DataSaver(wide(memory), num_worker_threads=1)
    saver(make(range(2 * WIDE_ROWS), WIDE))
    until(lambda: "2 objects" in repr(saver))
    saver.abort()
    [record] = caplog.records
    assert (record.name, record.levelname) == ("storage_loader.saver.saver", "WARNING")
    assert record.getMessage().startswith("2 objects of an aborted save remain: delete ")
    assert "the disk is on fire" in record.getMessage()


def test_a_failed_open_can_be_tried_again(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("get dataset"))
    saver = DataSaver(wide(memory))
    with pytest.raises(Injected):
        saver(make([1], WIDE))
    monkeypatch.undo()
    saver(make([2], WIDE))
    saver.close()
    assert stored(wide(memory), WIDE) == [2]


def test_a_batch_cut_short_is_never_committed(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt in the middle of a batch leaves half of it in the buffers."""
    saver = DataSaver(wide(memory), num_worker_threads=4)
    saver(make(range(3), WIDE))
    append = ObjectBuffer.append

    def interrupted(self: ObjectBuffer, arrays: Any, start: int, stop: int) -> None:
        if start:
            raise KeyboardInterrupt
        append(self, arrays, start, stop)

    monkeypatch.setattr(ObjectBuffer, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saver(make(range(3, 2 * WIDE_ROWS), WIDE))
    monkeypatch.undo()
    with pytest.raises(SaverError, match="rows were not committed"):
        saver.close()
    assert nothing_there(wide(memory))


# Threads, forgotten savers, what is shown


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_end_joins_the_threads(memory: dict[str, str], end: str) -> None:
    saver = DataSaver(wide(memory))
    saver(make(range(5 * WIDE_ROWS), WIDE))
    assert running("save")
    getattr(saver, end)()
    assert running("save") == []


def test_a_failure_joins_the_threads(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, before=FailAt("put object", onwards=True))
    with pytest.raises(SaverError), DataSaver(wide(memory)) as saver:
        saver(make(range(5 * WIDE_ROWS), WIDE))
    assert running("save") == []


def test_a_forgotten_saver_warns_how_many_rows_were_lost(folder: dict[str, str]) -> None:
    saver = DataSaver(config(folder))
    saver(make(range(5)))
    saver.commit()
    saver(make(range(7)))
    with pytest.warns(
        ResourceWarning,
        match=r"^a DataSaver of dataset 'rows' was forgotten with 7 rows that were never "
        r"committed; use `with`, or call close\(\)$",
    ):
        del saver
        gc.collect()
    assert stored(config(folder)) == list(range(5))
    until(lambda: running("save") == [])


def test_a_saver_forgotten_until_the_process_ends_warns_too(folder: dict[str, str]) -> None:
    script = (
        "import sys\n"
        "from tests.support.rows import config, make\n"
        "from storage_loader import DataSaver\n"
        "saver = DataSaver(config({'storage': sys.argv[1]}))\n"
        "saver(make(range(7)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", script, folder["storage"]],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0
    assert "ResourceWarning: a DataSaver of dataset 'rows' was forgotten with 7 rows" in done.stderr
    assert nothing_there(config(folder))


LOGGING = {
    "none": "",
    "on stderr": "logging.basicConfig()",
    "in a file": "logging.basicConfig(filename=sys.argv[1] + '.log')",
    "switched off": "logging.disable()",
}


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("logs", LOGGING)
@pytest.mark.parametrize("end", ["at exit", "collected", "uncaught"])
def test_a_forgotten_saver_is_said_once_on_standard_error(
    folder: dict[str, str], logs: str, end: str
) -> None:
    """However Python filters warnings, and wherever the log goes."""
    script = (
        "import logging, sys; from tests.support.rows import config, make\n"
        "from storage_loader import DataSaver\n"
        f"{LOGGING[logs]}\n"
        "saver = DataSaver(config({'storage': sys.argv[1]}))\n"
        "saver(make(range(7)))\n"
        + {"at exit": "", "collected": "del saver\n", "uncaught": "1 / 0\n"}[end]
    )
    done = subprocess.run(
        [sys.executable, "-c", script, folder["storage"]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    said = (
        "a DataSaver of dataset 'rows' was forgotten with 7 rows that were never committed; use "
        "`with`, or call close()"
    )
    assert done.stderr.count(said) == 1
    assert done.returncode == (end == "uncaught")
    if logs == "in a file":
        assert (
            f"WARNING:storage_loader.saver.saver:{said}\n"
            in Path(f"{folder['storage']}.log").read_text()
        )


@pytest.mark.parametrize("end", ["close", "abort", "commit", "unused", "no rows"])
def test_no_warning_where_no_row_was_forgotten(folder: dict[str, str], end: str) -> None:
    saver = DataSaver(config(folder))
    if end not in ("unused", "no rows"):
        saver(make(range(5)))
        getattr(saver, end)()
    elif end == "no rows":
        saver(make([]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del saver
        gc.collect()


def test_the_repr_shows_live_figures(memory: dict[str, str]) -> None:
    url = memory["storage"]
    saver = DataSaver(wide(memory))
    assert repr(saver) == f"DataSaver('wide' in {url}, new, 0 rows committed, 0 pending)"
    saver(make(range(5), WIDE))
    assert repr(saver) == (
        f"DataSaver('wide' in {url}, open, 0 rows committed, 5 pending, 0 objects, 0.0 MiB stored)"
    )
    saver.commit()
    saver(make(range(5, 7), WIDE))
    assert ", open, 5 rows committed, 2 pending, 1 objects, 0.0 MiB stored)" in repr(saver)
    saver.close()
    assert ", closed, 7 rows committed, 0 pending, 2 objects, " in repr(saver)
    assert (saver.rows_committed, saver.rows_pending) == (7, 0)


def test_no_repr_or_error_shows_the_keys() -> None:
    the_config = config(
        {
            "storage": "s3://bucket",
            "endpoint": "http://127.0.0.1:9",
            "access_key": "hidden-access",
            "secret_key": "hidden-secret",
        }
    )
    assert "hidden" not in repr(DataSaver(the_config))


def test_the_progress_bar_counts_rows(
    memory: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with DataSaver(wide(memory), progress=True) as saver:
        for numbers in in_batches(0, 3 * WIDE_ROWS, 50):
            saver(make(numbers, WIDE))
    shown = capsys.readouterr().err
    assert "save wide" in shown
    assert f"{3 * WIDE_ROWS} rows" in shown
    with DataSaver(wide(memory)) as saver:
        saver(make([1], WIDE))
    assert capsys.readouterr().err == ""


# The bucket


def test_a_missing_bucket_is_made(s3_server: Any, s3_storage: dict[str, str]) -> None:
    bucket = s3_storage["storage"].split("/")[2]
    client = s3_server.client()
    remove_bucket(client, bucket)
    save(config(s3_storage), make(range(4)))
    assert client.bucket_exists(bucket)
    assert stored(config(s3_storage)) == [0, 1, 2, 3]
