"""`decode=`: what functions of the user make of bytes, text and JSON while rows are loaded."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset, Pad
from storage_loader.errors import ConfigError, LoaderError, SchemaError, TransformError
from storage_loader.loader.decode import InThreads, stacked
from tests.support import decoders
from tests.support.decoders import COUNT, SIDE


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return decoders.fill({"storage": str(tmp_path_factory.mktemp("decoded"))})


EVERY = {"raw": decoders.image, "words": decoders.word_count, "meta": decoders.label}


def check(batch: Any, rows: list[int]) -> None:
    """A batch of just these rows, decoded by `EVERY`."""
    assert list(batch) == ["raw", "row_", "words", "meta"]
    assert batch["row_"].tolist() == rows
    assert (batch["raw"].shape, batch["raw"].dtype) == ((len(rows), SIDE, SIDE), np.uint8)
    assert [np.unique(image).tolist() for image in batch["raw"]] == [[n % 251] for n in rows]
    assert (batch["words"].dtype, batch["words"].tolist()) == (np.int16, [n % 4 for n in rows])
    assert (batch["meta"].dtype, batch["meta"].tolist()) == (np.int64, rows)
    batch["raw"][:] = 0  # it is the caller's


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 7, COUNT])
def test_arrays_of_one_shape_are_stacked(saved: DataConfig, size: int, workers: int) -> None:
    how: dict[str, Any] = {"batch_size": size, "shuffle": True, "seed": 4}
    expected = [batch["row_"].tolist() for batch in DataLoader(saved, **how)]
    batches = [*DataLoader(saved, decode=EVERY, num_workers=workers, **how)]
    for batch, rows in zip(batches, expected, strict=True):
        check(batch, rows)


def test_single_rows(saved: DataConfig) -> None:
    dataset = Dataset(saved, decode=EVERY)
    given = [dataset[5], dataset[-1], *dataset.rows([7])]
    given += [*DataLoader(saved, None, decode=EVERY, subset=[3])]
    for row, number in zip(given, [5, COUNT - 1, 7, 3], strict=True):
        assert {type(field) for field in row.values()} == {np.ndarray}
        check({name: field[None] for name, field in row.items()}, [number])
    check(dataset[[9, 2]], [9, 2])
    assert dataset[[]]["raw"] == []


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_not_alike_is_a_list(saved: DataConfig, workers: int) -> None:
    decode = {"raw": decoders.cut_image, "words": str.split}
    for batch in DataLoader(saved, 10, decode=decode, num_workers=workers):
        rows = batch["row_"].tolist()
        assert isinstance(batch["raw"], list)
        assert [image.shape for image in batch["raw"]] == [(1 + n % SIDE, SIDE) for n in rows]
        assert batch["words"] == [[*map(str, range(n % 4))] for n in rows]
        assert [meta["label"] for meta in batch["meta"]] == rows


@pytest.mark.parametrize(
    ("made", "field"),
    [
        ([1, 2.5], [1, 2.5]),
        ([True, False], np.array([True, False])),
        ([1, True], [1, True]),
        ([2**70, 2**70], [2**70, 2**70]),
        ([None, None], [None, None]),
        (["a", "b"], ["a", "b"]),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.zeros(2, ">f4")] * 2, np.zeros((2, 2), np.float32)),
        ([np.array(["x"])] * 2, [np.array(["x"])] * 2),
    ],
)
def test_numbers_are_alike_if_their_dtypes_are(made: list[Any], field: Any) -> None:
    given = stacked(made, np.ones(2, bool))
    assert type(given) is type(field)
    if isinstance(field, np.ndarray):
        assert (given.dtype, given.tolist()) == (field.dtype, field.tolist())
    else:
        assert [*map(repr, given)] == [*map(repr, field)]


def test_rows_of_padding_are_not_decoded(saved: DataConfig) -> None:
    how: dict[str, Any] = {"last_batch": "pad", "extras": ["valid"]}
    *_, last = DataLoader(saved, 64, decode=EVERY, **how)
    kept = {name: field[last["valid"]] for name, field in last.items() if name != "valid"}
    padding = [last[name][~last["valid"]] for name in ("raw", "words", "meta")]
    assert [field.any() for field in padding] == [False] * 3
    assert {len(field) for field in padding} == {28}
    check(kept, [*range(64, COUNT)])
    *_, last = DataLoader(saved, 64, decode={"words": str.split}, **how)
    assert last["words"][36:] == [None] * 28


def test_a_rank_that_has_only_padding_gets_batches_of_the_same_shape(saved: DataConfig) -> None:
    how: dict[str, Any] = {"last_batch": "pad", "world_size": 2, "decode": EVERY, "subset": [9]}
    for size in (3, None):
        [given], [empty] = ([*DataLoader(saved, size, rank=rank, **how)] for rank in (0, 1))
        shapes = [{n: (f.shape, f.dtype) for n, f in batch.items()} for batch in (given, empty)]
        assert shapes[0] == shapes[1]
        assert (given["meta"].max(), empty["meta"].max(), empty["raw"].any()) == (9, 0, False)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "raw": batch["raw"] * 2}


@pytest.mark.parametrize("workers", [0, 1])
def test_beside_the_other_settings(saved: DataConfig, workers: int) -> None:
    """It comes before `transform`, and stands in its attribute's place of a tuple."""
    how: dict[str, Any] = {"batch_size": 10, "num_workers": workers}
    decode = {"raw": decoders.image}
    loader = DataLoader(saved, attributes=["row_", "raw"], as_tuple=True, decode=decode, **how)
    for rows, images in loader:
        assert images[:, 0, 0].tolist() == rows.tolist()
    for batch in DataLoader(saved, transform=doubled, decode=decode, **how):
        assert batch["raw"][:, 0, 0].tolist() == [2 * n % 256 for n in batch["row_"].tolist()]


def test_a_state_knows_nothing_of_it(saved: DataConfig) -> None:
    loader = DataLoader(saved, 10, shuffle=True, decode=EVERY)
    batches = iter(loader)
    first = [next(batches)["meta"].tolist() for _ in range(3)]
    plain = DataLoader(saved, 10, shuffle=True)
    plain.load_state_dict(loader.state_dict())
    rest = [[meta["label"] for meta in batch["meta"]] for batch in plain]
    whole = [batch["row_"].tolist() for batch in DataLoader(saved, 10, shuffle=True)]
    assert first + rest == whole


def test_several_threads_and_batches_at_once(saved: DataConfig) -> None:
    """Two rows at a time meet here, or the test fails."""
    barrier = threading.Barrier(2, timeout=60)

    def meet(raw: bytes) -> int:
        barrier.wait()
        return threading.get_ident()

    here = threading.get_ident()
    each = InThreads(2)
    assert len({*each(lambda _: meet(b""), range(2))}) == 2
    each.close()
    if (os.cpu_count() or 1) > 1:
        batches = [*DataLoader(saved, 10, decode={"raw": meet}, threads=2)]
        assert len({one for batch in batches for one in batch["raw"].tolist()} - {here}) == 2
    for size in (COUNT, 10, 1):
        loader = DataLoader(saved, size, decode={"raw": lambda _: threading.get_ident()}, threads=1)
        assert len({one for batch in loader for one in batch["raw"].tolist()} - {here}) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_threads_give_results_in_order(count: int) -> None:
    each = InThreads(3)
    assert [*each(lambda n: n * n, range(count))] == [n * n for n in range(count)]
    each.close()


def test_worker_processes_decode(saved: DataConfig) -> None:
    decode = {"raw": decoders.with_process}
    made = [*DataLoader(saved, 10, decode=decode, num_workers=2)]
    processes = {int(pid) for batch in made for pid in batch["raw"][:, 1]}
    assert len(processes) == 2
    assert os.getpid() not in processes
    with pytest.raises(
        LoaderError, match=r"decode or transform cannot be sent .*lambda.*top level"
    ):
        list(DataLoader(saved, 10, decode={"raw": lambda raw: raw}, num_workers=1))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_attribute_row_and_dataset(saved: DataConfig, workers: int) -> None:
    loader = DataLoader(
        saved, 16, shuffle=True, decode={"meta": decoders.fail_at_70}, num_workers=workers
    )
    text = "decode of attribute 'meta' failed on row 70 of dataset 'decoded': ZeroDivisionError: s"
    with pytest.raises(TransformError, match=text) as raised:
        list(loader)
    first, *rest = str(raised.value).split("\n")
    assert len(first) < 1000
    assert first.endswith("... (8000 characters)")
    if workers:  # the traceback of the other process
        assert "in fail_at_70" in str(raised.value)
        assert max(map(len, rest)) < 1000
    else:
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_an_error_of_a_single_row(saved: DataConfig) -> None:
    dataset = Dataset(saved, decode={"meta": decoders.fail_at_70})
    assert dataset[69]["meta"] == 69
    for read in (lambda: dataset[70], lambda: dataset[60:80], lambda: dataset.rows([1, 70])):
        with pytest.raises(TransformError, match="'meta' failed on row 70 of dataset 'decoded'"):
            read()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"decode": decoders.image}, "decode <function image .*: a dict of attribute to function"),
        ({"decode": {"raw": "jpeg"}}, "attribute 'raw' a function of one row's value, not 'jpeg'"),
        ({"decode": {"word": len}}, "decode: no attribute 'word'; did you mean 'words'"),
        ({"decode": {"row_": len}}, r"'row_' are int64 \(\), not bytes, text or JSON; valid: 'm"),
        ({"decode": {"raw": len}, "attributes": ["meta"]}, "'raw' is not read; name it in attri"),
        ({"decode": {7: len}}, "decode: no attribute 7"),
        ({"pad": {"raw": Pad(0)}}, "pad: rows of attribute 'raw' are bytes"),
        ({"pad": {"word": 0}}, "no attribute 'word'; did you mean 'words'"),
    ],
)
@pytest.mark.parametrize("made", [Dataset, DataLoader])
def test_wrong_settings(saved: DataConfig, made: Any, settings: Any, text: str) -> None:
    """At once where the config knows the attributes, and else when the loader is opened."""
    with pytest.raises((ConfigError, SchemaError), match=text):
        made(saved, **settings)
    with pytest.raises((ConfigError, SchemaError), match=text):
        made(DataConfig("decoded", storage=saved.storage), **settings).open()


def test_its_dataset_decodes_too(saved: DataConfig) -> None:
    loader = DataLoader(saved, 10, decode=EVERY)
    check(loader.dataset[[4, 2]], [4, 2])
