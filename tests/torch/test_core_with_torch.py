"""What the core knows of torch: its dtypes, and its tensors as batches and from workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from storage_loader import Attribute, DataConfig, save
from storage_loader.errors import SchemaError
from storage_loader.saver.batch import as_arrays
from storage_loader.schema import dtype_name
from tests.support.batches import IMAGES, SCHEMA, STORABLE, TARGETS, check_both, refused, taken
from tests.support.rows import ROW, config, make
from tests.support.transforms import double
from tests.support.waiting import until
from tests.support.worked import ROWS, save_worked

torch = pytest.importorskip("torch")

import storage_loader.torch  # noqa: E402

# Dtypes and shapes


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.bfloat16, "bfloat16"), (torch.float32, "float32"), (torch.bool, "bool")],
)
def test_torchs_dtypes_are_known_by_our_names(dtype: object, name: str) -> None:
    assert Attribute("x", dtype).dtype == name


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (torch.qint8, "unknown dtype 'qint8'; did you mean 'int8'?"),
        (torch.float8_e4m3fn, f"dtype 'float8_e4m3fn' cannot be stored; storable: {STORABLE}"),
    ],
)
def test_dtypes_that_cannot_be_stored(dtype: object, reason: str) -> None:
    with pytest.raises(SchemaError) as error:
        dtype_name(dtype, attribute="x")
    assert str(error.value) == f"attribute 'x': {reason}"


def test_a_shape_of_torchs() -> None:
    attribute = Attribute("x", "float32", torch.Size([2, 3]))
    assert (attribute.shape, attribute.item_nbytes) == ((2, 3), 24)


# Batches


@pytest.mark.parametrize(
    "batch",
    [
        {"image": torch.from_numpy(IMAGES), "target": torch.arange(4)},
        {"image": list(torch.from_numpy(IMAGES)), "target": list(torch.arange(4))},
        pd.DataFrame({"image": list(torch.from_numpy(IMAGES)), "target": TARGETS}),
    ],
    ids=range(3),
)
def test_kinds_of_batch(batch: object) -> None:
    check_both(batch)


def test_tensors_of_the_stored_dtype_are_not_copied() -> None:
    arrays, _ = as_arrays({"image": IMAGES, "target": torch.from_numpy(TARGETS)}, SCHEMA)
    assert np.shares_memory(arrays["image"], IMAGES)
    assert np.shares_memory(arrays["target"], TARGETS)


def test_no_rows() -> None:
    _, rows = as_arrays({"image": torch.zeros((0, 2, 3)), "target": torch.zeros(0)}, SCHEMA)
    assert rows == 0


def test_a_single_value_is_one_row() -> None:
    expected = "shape () is one row; a batch has a leading axis, (rows,)"
    assert refused(torch.tensor(5)) == expected


@pytest.mark.parametrize(
    ("tensor", "dtype", "values"),
    [
        (torch.tensor([1.5, -2.0]).bfloat16(), "bfloat16", [1.5, -2.0]),
        (torch.tensor([1.5, -2.0]).bfloat16(), "float32", [1.5, -2.0]),
        (torch.tensor([1.5, -2.0, 3.0]).bfloat16()[::2], "bfloat16", [1.5, 3.0]),
        (torch.tensor([1.5, -2.0], requires_grad=True), "float32", [1.5, -2.0]),
        (torch.nn.Parameter(torch.tensor([1.5]).bfloat16()), "bfloat16", [1.5]),
        ([torch.tensor(1.5, requires_grad=True), torch.tensor(2.0)], "float32", [1.5, 2.0]),
        ([torch.tensor(1.5).bfloat16(), torch.tensor(2.0).bfloat16()], "bfloat16", [1.5, 2.0]),
        (torch.tensor([1 + 2j]).conj(), "complex64", [1 - 2j]),
        (torch.tensor([1 + 2j]).conj().imag, "float32", [-2.0]),
        (torch.tensor([True, False]), "bool", [True, False]),
        (torch.tensor([1.5, 2.0]).half(), "float16", [1.5, 2.0]),
        (torch.tensor([2**64 - 1], dtype=torch.uint64), "uint64", [2**64 - 1]),
        (torch.arange(6)[::2], "int64", [0, 2, 4]),
    ],
)
def test_tensors(tensor: object, dtype: str, values: list[object]) -> None:
    assert taken(tensor, dtype).tolist() == values


def test_a_transposed_tensor() -> None:
    tensor = torch.arange(6).reshape(2, 3).T
    np.testing.assert_array_equal(taken(tensor, "int64", (2,)), [[0, 3], [1, 4], [2, 5]])


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(2).to_sparse(), "not an array: can't convert Sparse layout tensor to numpy"),
        (torch.zeros(2, device="meta"), "not an array: "),
        (torch.zeros(2).to(torch.float8_e4m3fn), "not an array: "),
        ([torch.zeros(2), torch.zeros(3)], "row 1 has shape (3,), the dataset stores (2,)"),
    ],
)
def test_tensors_that_numpy_does_not_know(tensor: object, reason: str) -> None:
    assert refused(tensor, "float32", (2,)).startswith(reason)


# The transform, in threads and in worker processes


def test_tensors_are_made_before_the_transform(memory: dict[str, str]) -> None:
    the_config = config(memory)
    save(the_config, make(range(200)))
    loader = storage_loader.torch.DataLoader(
        the_config, batch_size=50, transform=lambda b: b[ROW].double().mean().item()
    )
    assert list(loader) == [24.5, 74.5, 124.5, 174.5]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return save_worked(tmp_path_factory.mktemp("workers"))


@pytest.fixture(autouse=True)
def no_process_remains() -> Iterator[None]:
    yield
    until(lambda: multiprocessing.active_children() == [])


@pytest.mark.usefixtures("torch_once")
@pytest.mark.parametrize("index", [False, True])
def test_tensors_of_every_kind(stored: DataConfig, index: bool) -> None:
    loader = storage_loader.torch.DataLoader(
        stored, batch_size=64, num_workers=1, transform=double, index=index, extras=("row", "valid")
    )
    rows = []
    for batch in loader:
        assert batch["half"].dtype == torch.bfloat16
        assert (batch["half"][:, 0] == (batch["id"] % 256).to(torch.bfloat16)).all()
        assert (batch["x"][:, 4] == 2 * batch["id"]).all()
        assert batch["row"].tolist() == batch["id"].tolist()
        rows += batch["row"][batch["valid"]].tolist()
    assert rows == list(range(ROWS))
