"""`storage_loader.tensorflow` with rows of no fixed size: ragged and string tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, Pad, Ragged
from storage_loader.errors import ConfigError, LoaderError
from storage_loader.loader.fill.memory import AlignedMemory
from storage_loader.schema import DTYPES
from tests.support import decoders
from tests.support.kinds import COUNT, KINDS, WAYS, as_batch, expected_rows, fill
from tests.support.rows import ROW, make, numbers_in

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from storage_loader.tensorflow import DataLoader, as_tensor  # noqa: E402

pytestmark = pytest.mark.usefixtures("tensorflow_once")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("kinds"))})


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_numpy(batch: dict[str, Any]) -> dict[str, Any]:
    """Arrays, `Ragged` of ragged tensors, texts; in attribute order: tf.data sorts the names."""
    order = [n for a in KINDS for n in (a.name, f"{a.name}_length") if n in batch]
    return {name: _undone(name, batch[name]) for name in order}


def _undone(name: str, field: Any) -> Any:
    if isinstance(field, tf.RaggedTensor):
        assert (field.ragged_rank, field.row_splits.dtype) == (1, tf.int64)
        return Ragged(field.flat_values.numpy(), field.row_splits.numpy())
    if field.dtype != tf.string:
        return field.numpy()
    octets = field.numpy()
    texts = octets.tolist() if isinstance(octets, np.ndarray) else [octets]
    if name == "caption":
        texts = [text.decode() for text in texts]
    elif name == "meta":
        texts = [json.loads(text) for text in texts]
        found = octets.tolist() if isinstance(octets, np.ndarray) else [octets]
        assert [text.decode() for text in found] == [compact(value) for value in texts]
    return texts if isinstance(octets, np.ndarray) else texts[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_as_numpys_loader_gives_it(saved: DataConfig, way: str, workers: int) -> None:
    how: dict[str, Any] = {**WAYS[way], "shuffle": True, "seed": 2}
    loader = DataLoader(saved, num_workers=workers, **how)
    expected = expected_rows(saved, **how)
    assert sorted(expected) == list(range(COUNT))
    assert numbers_in((as_batch(as_numpy(batch), way) for batch in loader), KINDS) == expected
    if workers:  # TensorFlow refers to what it was given for good, so they would stay
        return
    loader.set_epoch(0)
    dataset = loader.as_dataset()
    assert dataset.element_spec == loader.element_spec
    assert numbers_in((as_batch(as_numpy(batch), way) for batch in dataset), KINDS) == expected


def test_element_spec_says_what_comes(saved: DataConfig) -> None:
    pads = {"tokens": Pad(0, 1024, multiple_of=64), "boxes": 0}
    names = ["tokens", "boxes", "half", "meta"]
    loader = DataLoader(saved, 16, attributes=names, pad=pads, extras=("row",), drop_last=True)
    assert list(loader.element_spec.items()) == [
        ("tokens", tf.TensorSpec((16, 1024), tf.int32)),
        ("tokens_length", tf.TensorSpec((16,), tf.int64)),
        ("boxes", tf.TensorSpec((16, None, 4), tf.float32)),
        ("boxes_length", tf.TensorSpec((16,), tf.int64)),
        ("half", tf.RaggedTensorSpec((16, None, 2), tf.bfloat16, 1, tf.int64)),
        ("meta", tf.TensorSpec((16,), tf.string)),
        ("row", tf.TensorSpec((16,), tf.int64)),
    ]
    [*_] = loader.as_dataset()
    rows = DataLoader(saved, None, attributes=names, pad=pads, as_tuple=True)
    assert rows.element_spec == (
        tf.TensorSpec((1024,), tf.int32),
        tf.TensorSpec((), tf.int64),
        tf.TensorSpec((None, 4), tf.float32),
        tf.TensorSpec((), tf.int64),
        tf.TensorSpec((None, 2), tf.bfloat16),
        tf.TensorSpec((), tf.string),
    )
    assert sum(1 for _ in rows.as_dataset()) == COUNT


@pytest.mark.parametrize("dtype", ["float32", "bool", "uint16", "complex64", "bfloat16"])
def test_a_ragged_tensor_lies_on_the_memory_of_its_rows(dtype: str) -> None:
    room = AlignedMemory().empty(10 * DTYPES[dtype].itemsize)
    values = room.view(DTYPES[dtype]).reshape(5, 2)
    values[...] = np.arange(10).reshape(5, 2) % 2
    rows = Ragged.of_lengths(values, [2, 0, 3])
    made = as_tensor(rows)
    assert made.row_lengths().numpy().tolist() == [2, 0, 3]
    assert [row.numpy().tobytes() for row in made] == [row.tobytes() for row in rows]
    if dtype != "bfloat16":  # whose numpy() is a copy
        address = np.asarray(made.flat_values).__array_interface__["data"][0]
        assert address == room.__array_interface__["data"][0]


def lengths(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        ROW: batch[ROW],
        "tokens": batch["tokens"] + 1,
        "characters": tf.strings.length(batch["caption"], "UTF8_CHAR"),
        "raw": tf.strings.join([batch["raw"], "\0"]),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_gets_and_gives_ragged_and_string_tensors(
    saved: DataConfig, workers: int
) -> None:
    loader = DataLoader(saved, 16, transform=lengths, num_workers=workers)
    spec = {
        ROW: tf.TensorSpec((None,), tf.int64),
        "tokens": tf.RaggedTensorSpec((None, None), tf.int32, 1),
        "characters": tf.TensorSpec((None,), tf.int32),
        "raw": tf.TensorSpec((None,), tf.string),
    }
    # Of TensorFlow's dataset no worker: it refers to what it was given for good.
    for batches in (loader,) if workers else (loader, loader.as_dataset(spec)):
        found: list[int] = []
        for batch in batches:
            numbers = batch[ROW].numpy().tolist()
            expected = make(numbers, KINDS)
            tokens = batch["tokens"]
            assert (tokens.flat_values.numpy() - 1).tolist() == expected["tokens"].values.tolist()
            assert tokens.row_lengths().numpy().tolist() == expected["tokens"].lengths.tolist()
            assert batch["characters"].numpy().tolist() == [*map(len, expected["caption"])]
            assert batch["raw"].numpy().tolist() == [raw + b"\0" for raw in expected["raw"]]
            found += numbers
        assert found == list(range(COUNT))


def test_a_spec_of_another_dtype_is_refused(saved: DataConfig) -> None:
    for name, spec, dtype in (
        ("tokens", tf.RaggedTensorSpec((None, None), tf.int64, 1), "int32"),
        ("raw", tf.TensorSpec((None,), tf.int32), "string"),
    ):
        dataset = DataLoader(saved, 16, attributes=[name]).as_dataset({name: spec})
        text = rf"element_spec has {spec.dtype.name}, transform gave .*{dtype}"
        with pytest.raises(tf.errors.UnknownError, match=f"{LoaderError.__name__}.*{text}"):
            list(dataset)


def test_an_epoch_goes_on_in_its_middle(saved: DataConfig) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5}
    loader = DataLoader(saved, 16, **how)
    batches = iter(loader)
    first = numbers_in((as_numpy(next(batches)) for _ in range(3)), KINDS)
    for as_dataset in (False, True):
        resumed = DataLoader(saved, 10, **how)
        resumed.load_state_dict(loader.state_dict())
        rest = map(as_numpy, resumed.as_dataset() if as_dataset else resumed)
        assert first + numbers_in(rest, KINDS) == expected_rows(saved, batch_size=16, **how)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_padding_are_empty(saved: DataConfig, workers: int) -> None:
    loader = DataLoader(saved, 16, last_batch="pad", extras=("valid",), num_workers=workers)
    *_, last = loader
    valid = int(last["valid"].numpy().sum())
    assert (valid, len(last["valid"])) == (COUNT % 16, 16)
    for name in ("tokens", "boxes", "half"):
        assert last[name].row_lengths().numpy()[valid:].tolist() == [0] * (16 - valid)
    for name, empty in (("caption", b""), ("raw", b""), ("meta", b"null")):
        assert last[name].numpy()[valid:].tolist() == [empty] * (16 - valid)


def tensor_of(raw: bytes) -> Any:
    return tf.constant(decoders.image(raw))


@pytest.mark.parametrize("function", [decoders.image, tensor_of])
def test_decoded_rows_are_tensors(tmp_path: Path, function: Any) -> None:
    saved = decoders.fill({"storage": str(tmp_path)})
    decode = {"raw": function, "meta": decoders.label, "words": str.upper}
    how: dict[str, Any] = {"batch_size": 32, "last_batch": "pad", "decode": decode}
    loader = DataLoader(saved, **how)
    spec = {
        "raw": tf.TensorSpec((None, 8, 8), tf.uint8),
        "row_": tf.TensorSpec(None, tf.int64),
        "words": tf.TensorSpec(None, tf.string),
        "meta": tf.TensorSpec(None, tf.int64),
    }
    with pytest.raises(ConfigError, match="what a batch is, is up to decode; give element_spec"):
        loader.element_spec  # noqa: B018
    for batches in (loader, DataLoader(saved, **{**how, "last_batch": "drop"}).as_dataset(spec)):
        seen: list[int] = []
        for batch in batches:
            labels = batch["meta"].numpy().tolist()
            assert batch["raw"].dtype == tf.uint8
            assert batch["raw"].numpy()[:, 0, 0].tolist() == labels
            if len(seen) < 96:
                words = [b" ".join(str(i).encode() for i in range(n % 4)) for n in labels]
                assert batch["words"].numpy().tolist() == words
            seen += labels
        assert seen in ([*range(96)], [*range(100)] + [0] * 28)
    [row] = DataLoader(saved, None, decode=decode, subset=[7])
    assert (row["raw"].shape, int(row["meta"]), row["words"]) == ((8, 8), 7, b"0 1 2")


def test_decoded_rows_that_differ_are_a_list_of_tensors(tmp_path: Path) -> None:
    saved = decoders.fill({"storage": str(tmp_path)})
    for batch in DataLoader(saved, 10, decode={"raw": decoders.cut_image, "words": str.split}):
        rows = batch["row_"].numpy().tolist()
        assert [tuple(image.shape) for image in batch["raw"]] == [(1 + n % 8, 8) for n in rows]
        assert [int(image[0, 0]) for image in batch["raw"]] == rows
        assert batch["words"] == [[*map(str, range(n % 4))] for n in rows]
