"""The same rows in the same order, bit for bit, in numpy, torch, TensorFlow and JAX."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import storage_loader
from storage_loader import Attribute, DataConfig, DataSaver
from storage_loader.errors import StorageLoaderError, UnknownNameError
from storage_loader.schema import DTYPES
from tests.support.rows import ROW, make, numbers_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
torch = pytest.importorskip("torch")
tf = pytest.importorskip("tensorflow")
jax = pytest.importorskip("jax")

import storage_loader.jax  # noqa: E402
import storage_loader.tensorflow  # noqa: E402
import storage_loader.torch  # noqa: E402

COUNT = 103
ATTRIBUTES = (
    Attribute(ROW, "int64"),
    *(Attribute(f"{dtype} values", dtype, (2, 3)) for dtype in DTYPES),
    Attribute("pixels", "uint8", (2000,)),
)


def of_torch(tensor: Any) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


LOADERS: dict[str, tuple[type[storage_loader.DataLoader], Callable[[Any], np.ndarray]]] = {
    "numpy": (storage_loader.DataLoader, lambda array: array),
    "torch": (storage_loader.torch.DataLoader, of_torch),
    "tensorflow": (storage_loader.tensorflow.DataLoader, lambda tensor: tensor.numpy()),
    "jax": (storage_loader.jax.DataLoader, np.asarray),
}


def batches(framework: str, loader: Any) -> list[dict[str, np.ndarray]]:
    as_array = LOADERS[framework][1]
    with jax.enable_x64(True):
        return [{name: as_array(v) for name, v in batch.items()} for batch in loader]


@pytest.fixture
def the_config(memory: dict[str, str]) -> DataConfig:
    config = DataConfig("rows", ATTRIBUTES, max_object_size=2**16, **memory)
    with DataSaver(config) as saver:
        for start in range(0, COUNT, 40):
            saver(make(range(start, min(start + 40, COUNT)), ATTRIBUTES))
    return config


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad", "wrap"])
@pytest.mark.parametrize("shuffle", [False, True, "global"])
def test_batches_are_equal_bit_for_bit(
    the_config: DataConfig, shuffle: Any, last_batch: Any
) -> None:
    settings: dict[str, Any] = {
        "batch_size": 10,
        "shuffle": shuffle,
        "seed": 4,
        "last_batch": last_batch,
        "extras": ("valid",),
        "epochs": 3,
    }
    loaded = {
        name: batches(name, kind(the_config, **settings)) for name, (kind, _) in LOADERS.items()
    }
    dataset = storage_loader.tensorflow.DataLoader(the_config, **settings).as_dataset()
    order = [a.name for a in ATTRIBUTES] + ["valid"]  # tf.data sorts names
    elements = [{name: element[name] for name in order} for element in dataset]
    loaded["tf.data"] = batches("tensorflow", elements)
    expected = loaded["numpy"]
    assert len(expected) == 3 * (10 if last_batch == "drop" else 11)
    epochs = [
        expected[i : i + len(expected) // 3] for i in range(0, len(expected), len(expected) // 3)
    ]
    for epoch in epochs:
        rows = [row for b in epoch for row in b[ROW][b["valid"]].tolist()]
        assert len(set(rows)) == len(rows) == (100 if last_batch == "drop" else COUNT)
    orders = {tuple(row for b in epoch for row in b[ROW].tolist()) for epoch in epochs}
    assert len(orders) == (3 if shuffle else 1)
    for framework, got in loaded.items():
        assert len(got) == len(expected), framework
        for theirs, ours in zip(got, expected, strict=True):
            assert list(theirs) == list(ours), framework
            for name, array in ours.items():
                assert (theirs[name].dtype, theirs[name].shape) == (array.dtype, array.shape)
                assert theirs[name].tobytes() == array.tobytes(), (framework, name)


def test_a_state_of_one_framework_goes_on_in_another(the_config: DataConfig) -> None:
    settings: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 4, "epochs": 2}
    expected = [
        row
        for batch in storage_loader.DataLoader(the_config, **settings)
        for row in numbers_of(batch, ATTRIBUTES)
    ]
    for first, then in permutations(LOADERS, 2):
        loader = LOADERS[first][0](the_config, **settings)
        started = iter(loader)
        with jax.enable_x64(True):
            batch_rows = [LOADERS[first][1](next(started)[ROW]).tolist() for _ in range(13)]
        given = [row for rows in batch_rows for row in rows]
        state = loader.state_dict()
        started.close()  # type: ignore[attr-defined]
        resumed = LOADERS[then][0](the_config, **{**settings, "batch_size": 7})
        resumed.load_state_dict(state)
        rest = [row for b in batches(then, resumed) for row in numbers_of(b, ATTRIBUTES)]
        assert given + rest == expected, (first, then)


# What is repeated for editors: the keywords of the base, in each adapter's own signature

ADAPTERS: list[tuple[Any, Any, set[str], dict[str, Any]]] = [
    # the adapter, whose keywords it takes, which it adds, which it leaves out or changes
    (storage_loader.torch.DataLoader, storage_loader.DataLoader, {"device"}, {}),
    (storage_loader.jax.DataLoader, storage_loader.DataLoader, {"sharding"}, {}),
    (storage_loader.tensorflow.DataLoader, storage_loader.DataLoader, set(), {}),
    (storage_loader.torch.Dataset, storage_loader.Dataset, set(), {}),
    (
        storage_loader.torch.IterableDataset,
        storage_loader.DataLoader,
        set(),
        {"num_workers": None, "batch_size": None},
    ),
]
by_name = pytest.mark.parametrize(
    ("kind", "base", "own", "other"), ADAPTERS, ids=lambda value: getattr(value, "__module__", "")
)


def keywords(kind: Any) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


@by_name
def test_no_keyword_is_forgotten(kind: Any, base: Any, own: Any, other: Any) -> None:
    theirs, ours = keywords(kind), keywords(base)
    assert {p.kind for p in theirs.values()} == {p.kind for p in ours.values()}
    assert not {p.VAR_KEYWORD for p in theirs.values()} & {p.kind for p in theirs.values()}
    assert theirs.keys() - ours.keys() == own
    assert ours.keys() - theirs.keys() == other.keys() - {"batch_size"}
    for name in theirs.keys() & ours.keys() - other.keys():
        assert theirs[name] == ours[name]  # its default and its type, too


@by_name
def test_a_framework_adds_a_feed_and_overrides_nothing_private(
    kind: Any, base: Any, own: Any, other: Any
) -> None:
    """One path of a batch: a framework gives values to it, see `storage_loader.loader.feed`."""
    inherited = {name for each in base.__mro__[:-1] for name in vars(each)}
    overridden = {
        name
        for each in kind.__mro__
        if each.__module__.startswith("storage_loader") and not issubclass(base, each)
        for name in vars(each).keys() & inherited
        if name.startswith("_") and not name.startswith("__")
    }
    assert overridden == {"_feed"}


@by_name
def test_each_keyword_comes_to_the_base(
    the_config: DataConfig, kind: Any, base: Any, own: Any, other: Any
) -> None:
    def outcome(of: Any, name: str) -> str:
        """What comes of a value that means nothing."""
        try:
            return str(len(of(the_config, **{name: 2.5j})))
        except (StorageLoaderError, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    for name in keywords(kind).keys() & keywords(base).keys() - {"config"}:
        assert outcome(kind, name) == outcome(base, name)
        assert outcome(kind, name) != str(COUNT), name


@by_name
def test_the_nearest_keyword_is_named(
    the_config: DataConfig, kind: Any, base: Any, own: Any, other: Any
) -> None:
    with pytest.raises(UnknownNameError, match="keyword 'verfy'; did you mean 'verify'"):
        kind(the_config, verfy=True)
