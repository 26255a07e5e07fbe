"""`storage_loader.torch` with rows of no fixed size: jagged nested tensors, and lists of texts."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.utils.data
from torchdata.stateful_dataloader import StatefulDataLoader

from storage_loader import Attribute, DataConfig, Pad, Ragged, save
from storage_loader.errors import LoaderError
from storage_loader.schema import DTYPES
from storage_loader.torch import DataLoader, Dataset, IterableDataset, as_tensor, collate, jagged
from storage_loader.torch.ring import SLOTS
from tests.support import decoders
from tests.support.fake_cuda import FakeCuda, patch
from tests.support.kinds import COUNT, KINDS, WAYS, as_batch, expected_rows, fill
from tests.support.rows import ROW, numbers_in, numbers_of

pytestmark = pytest.mark.usefixtures("torch_once")
TORCHS_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return fill({"storage": str(tmp_path_factory.mktemp("kinds"))})


def array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def as_numpy(batch: Any) -> dict[str, Any]:
    """Arrays, `Ragged` of jagged nested tensors, lists as they are."""

    def one(field: Any) -> Any:
        if not isinstance(field, torch.Tensor):
            return field
        if not field.is_nested:
            return array(field)
        assert field.layout is torch.jagged
        nested: Any = field
        return Ragged(array(nested.values()), array(nested.offsets()))

    return {name: one(field) for name, field in batch.items()}


def numbers(batches: Any) -> list[int]:
    return numbers_in(map(as_numpy, batches), KINDS)


# Our loader


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_as_numpys_loader_gives_it(saved: DataConfig, way: str, workers: int) -> None:
    how: dict[str, Any] = {**WAYS[way], "shuffle": True, "seed": 2}
    loader = DataLoader(saved, num_workers=workers, **how)
    found = numbers_in((as_batch(as_numpy(batch), way) for batch in loader), KINDS)
    assert found == expected_rows(saved, **how)
    assert sorted(found) == list(range(COUNT))


def test_a_dataset_gives_rows_and_batches(saved: DataConfig) -> None:
    dataset = Dataset(saved)
    rows = [as_batch(as_numpy(dataset[i]), "rows") for i in (5, -1, np.int64(7), torch.tensor(8))]
    assert numbers_in(rows, KINDS) == [5, COUNT - 1, 7, 8]
    indices: list[tuple[Any, list[int]]] = [
        (slice(3, 6), [3, 4, 5]),
        ([3, 1, -1], [3, 1, COUNT - 1]),
        (torch.tensor([4]), [4]),
        (np.arange(COUNT) == 6, [6]),
        ([], []),
    ]
    for index, expected in indices:
        batch = dataset[index]
        assert type(batch) is dict
        assert numbers_of(as_numpy(batch), KINDS) == expected
    assert type(Dataset(saved, attributes=[ROW])[0]) is dict


@pytest.mark.parametrize("dtype", ["float32", "bool", "uint16", "complex64", "bfloat16"])
def test_a_jagged_tensor_lies_on_the_memory_of_its_rows(dtype: str) -> None:
    rows = Ragged.of_lengths(np.arange(10).reshape(5, 2).astype(DTYPES[dtype]), [2, 0, 3])
    made: Any = as_tensor(rows)
    assert made.is_nested
    assert made.layout is torch.jagged
    assert made.values().data_ptr() == rows.values.__array_interface__["data"][0]
    assert made.offsets().data_ptr() == rows.offsets.__array_interface__["data"][0]
    assert [array(row).tobytes() for row in made.unbind()] == [row.tobytes() for row in rows]


@pytest.mark.parametrize("lengths", [[], [0], [0, 0], [3]])
def test_batches_without_values(lengths: list[int]) -> None:
    made = as_tensor(Ragged.of_lengths(np.ones((sum(lengths), 4), np.float32), lengths))
    assert made.shape[0] == len(lengths)
    assert [len(row) for row in made.unbind()] == lengths


def refused(*_: Any) -> Any:
    raise TypeError("other arguments")


def of_other_rows(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(values + 1, offsets)


@pytest.mark.parametrize("step", [None, refused, of_other_rows])
def test_without_the_step_that_we_know_torch_makes_all(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    monkeypatch.setattr(jagged, "_known", None)
    monkeypatch.setattr(jagged, "_last_step", step)
    assert numbers(DataLoader(saved, 16)) == list(range(COUNT))
    assert jagged._known is False


def test_a_model_learns_from_jagged_tokens(saved: DataConfig) -> None:
    table = torch.nn.Embedding(5, 3)
    for batch in DataLoader(saved, 16, attributes=["tokens"]):
        tokens: Any = batch["tokens"]
        embedded = table(tokens % 5)
        torch.nested.to_padded_tensor(embedded, 0.0).sum().backward()
        assert [len(row) for row in embedded.unbind()] == [len(row) for row in tokens.unbind()]
    assert table.weight.grad is not None
    assert table.weight.grad.abs().min() > 0


def with_gaps(batch: dict[str, Any]) -> dict[str, Any]:
    """Jagged tensors that are more than values and offsets."""
    values = torch.arange(12.0).view(6, 2)
    gaps = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([0, 4, 6]), torch.tensor([2, 1])
    )
    turned = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 6])).transpose(1, 2)
    return {"gaps": gaps, "turned": turned, "doubled": batch["tokens"] * 2, **batch}


def assert_with_gaps(batch: dict[str, Any]) -> None:
    assert batch["doubled"].values().equal(batch["tokens"].values() * 2)
    assert [row.tolist() for row in batch["gaps"].unbind()] == [
        [[0.0, 1.0], [2.0, 3.0]],
        [[8.0, 9.0]],
    ]
    assert [row.shape for row in batch["turned"].unbind()] == [(2, 2), (2, 4)]
    assert batch["turned"].unbind()[1].tolist() == [[4, 6, 8, 10], [5, 7, 9, 11]]


def test_a_transform_gets_and_gives_jagged_tensors_in_worker_processes(saved: DataConfig) -> None:
    for batch in DataLoader(saved, 16, transform=with_gaps, num_workers=2):
        assert_with_gaps(batch)
        given = {name: batch[name] for name in (a.name for a in KINDS)}
        assert numbers_of(as_numpy(given), KINDS)


def test_an_epoch_goes_on_in_its_middle(saved: DataConfig) -> None:
    how: dict[str, Any] = {"shuffle": True, "seed": 5}
    loader = DataLoader(saved, 16, **how)
    batches = iter(loader)
    first = numbers(next(batches) for _ in range(3))
    resumed = DataLoader(saved, 10, **how)
    resumed.load_state_dict(loader.state_dict())
    assert first + numbers(resumed) == expected_rows(saved, batch_size=16, **how)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_padding_are_empty(saved: DataConfig, workers: int) -> None:
    loader = DataLoader(saved, 16, last_batch="pad", extras=("valid",), num_workers=workers)
    *_, last = loader
    valid = int(last["valid"].sum())
    assert (valid, len(last["valid"])) == (COUNT % 16, 16)
    for name in ("tokens", "boxes", "half"):
        assert [len(row) for row in last[name].unbind()[valid:]] == [0] * (16 - valid)
    assert last["caption"][valid:] == [""] * (16 - valid)
    assert last["raw"][valid:] == [b""] * (16 - valid)
    assert last["meta"][valid:] == [None] * (16 - valid)


# Torch's DataLoader


@TORCHS_WORKERS
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set:UserWarning")
@pytest.mark.parametrize(
    ("start", "pin"),
    [(None, False), (None, True), ("fork", False), ("fork", True), ("spawn", True),
     ("forkserver", False)],
)  # fmt: skip
def test_torchs_loader_collates_rows_of_every_kind(
    saved: DataConfig, start: str | None, pin: bool
) -> None:
    loader = torch.utils.data.DataLoader(
        Dataset(saved),
        batch_size=16,
        shuffle=True,
        pin_memory=pin,
        num_workers=2 if start else 0,
        multiprocessing_context=start,
    )
    assert sorted(numbers(loader)) == list(range(COUNT))


def test_collate_is_what_torch_does_by_itself(saved: DataConfig) -> None:
    how: dict[str, Any] = {"batch_size": 16}
    named = torch.utils.data.DataLoader(Dataset(saved), collate_fn=collate, **how)
    assert numbers(named) == numbers(torch.utils.data.DataLoader(Dataset(saved), **how))
    fixed = Dataset(saved, attributes=["image", ROW])
    assert collate(fixed.rows([3, 1]))[ROW].tolist() == [3, 1]
    dataset = Dataset(saved)
    rows = [pickle.loads(pickle.dumps(row)) for row in [dataset[4], *dataset.rows([9, 2])]]
    assert numbers_of(as_numpy(collate(rows)), KINDS) == [4, 9, 2]


def test_rows_of_several_datasets_and_of_a_subset(saved: DataConfig) -> None:
    both = torch.utils.data.ConcatDataset([Dataset(saved), Dataset(saved)])
    some = torch.utils.data.Subset(both, [3, COUNT + 7, 5])
    assert numbers(torch.utils.data.DataLoader(some, batch_size=2)) == [3, 7, 5]


def test_rows_that_happen_to_be_of_one_length_are_jagged_too(memory: dict[str, str]) -> None:
    the_config = DataConfig("x", [("x", "int32", (None,))], **memory)
    save(the_config, {"x": [np.full(3, n, np.int32) for n in range(4)]})
    for batch in torch.utils.data.DataLoader(Dataset(the_config), batch_size=2):
        assert batch["x"].is_nested


def cut(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokens": row["tokens"][:3],
        "first": row["tokens"][:1].sum(),
        "caption": torch.tensor(len(row["caption"])),
        "meta": row["meta"],
        ROW: row[ROW],
    }


def test_what_a_transform_makes_of_a_row(saved: DataConfig) -> None:
    plain = Dataset(saved)
    loader = torch.utils.data.DataLoader(Dataset(saved, transform=cut), batch_size=16)
    for batch in loader:
        rows = [cut(plain[number]) for number in batch[ROW].tolist()]
        assert [t.tolist() for t in batch["tokens"].unbind()] == [
            r["tokens"].tolist() for r in rows
        ]
        assert batch["first"].tolist() == [int(row["first"]) for row in rows]
        assert batch["caption"].tolist() == [int(row["caption"]) for row in rows]
        assert batch["meta"] == [row["meta"] for row in rows]


def test_tuples(saved: DataConfig) -> None:
    dataset = Dataset(saved, attributes=[ROW, "tokens", "meta"], as_tuple=True)
    assert isinstance(dataset[3], tuple)
    for rows, tokens, meta in torch.utils.data.DataLoader(dataset, batch_size=16):
        batch = Dataset(saved)[rows.tolist()]
        assert tokens.values().equal(batch["tokens"].values())
        assert tokens.offsets().equal(batch["tokens"].offsets())
        assert meta == batch["meta"]


@TORCHS_WORKERS
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ours", [16, None])
def test_iterable_batches_and_rows(saved: DataConfig, ours: int | None, workers: int) -> None:
    theirs = None if ours else 16
    dataset = IterableDataset(saved, ours, shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(dataset, batch_size=theirs, num_workers=workers)
    assert sorted(numbers(loader)) == list(range(COUNT))
    if ours or not workers:
        expected = expected_rows(saved, batch_size=16, shuffle=True, seed=3)
        dataset.set_epoch(0)
        assert numbers(loader) == expected


@TORCHS_WORKERS
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(saved: DataConfig, workers: int) -> None:
    def made() -> StatefulDataLoader[Any]:
        dataset = IterableDataset(saved, 16, shuffle=True, seed=3)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    loader = made()
    batches = iter(loader)
    first = numbers(next(batches) for _ in range(3))
    resumed = made()
    resumed.load_state_dict(loader.state_dict())
    rest = numbers(resumed)
    assert first + rest == expected_rows(saved, batch_size=16, shuffle=True, seed=3)


# To a device


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = patch(monkeypatch, 2e-3)
    yield fake
    fake.close()


def train(cuda: FakeCuda, loader: Any, way: str = "batches") -> list[int]:
    """The rows that the consumer's stream found; it reads each batch long after its drop."""
    found: list[int] = []

    def kernel(memory: dict[str, Any]) -> None:
        found.extend(numbers_of(as_batch(memory, way), KINDS))

    for batch in loader:
        cuda.run(functools.partial(kernel, as_numpy(batch)))
        del batch
    cuda.default.finish()
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["batches", "padded"])
def test_every_kind_comes_to_a_device(
    saved: DataConfig, cuda: FakeCuda, way: str, workers: int
) -> None:
    how: dict[str, Any] = {**WAYS[way], "shuffle": True, "seed": 1, "epochs": 2}
    loader = DataLoader(saved, device="cuda:0", num_workers=workers, **how)
    assert train(cuda, loader, way) == expected_rows(saved, **how)
    assert cuda.on_device == 0


def test_a_slot_learns_how_large_its_batches_are(
    saved: DataConfig, monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda
) -> None:
    pinned: list[int] = []
    new = cuda.new_pinned

    def counted(nbytes: int, make: Any) -> torch.Tensor:
        pinned.append(nbytes)
        return new(nbytes, make)

    monkeypatch.setattr(cuda, "new_pinned", counted)
    counts = [len(pinned) for _ in DataLoader(saved, 16, device="cuda:0", epochs=20)]
    # The largest batch was met in the first epoch; each epoch begins with new slots.
    assert counts[-1] - counts[len(counts) // 2] <= 10 * SLOTS


def test_what_a_transform_makes_comes_to_a_device(saved: DataConfig, cuda: FakeCuda) -> None:
    before = cuda.blocks
    batches = list(DataLoader(saved, 16, device="cuda:0", transform=with_gaps))
    cuda.default.finish()
    for batch in batches:
        assert_with_gaps(batch)
    assert cuda.blocks - before >= 3 * len(batches)


def strided(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.nested.nested_tensor([torch.ones(2), torch.zeros(1)]), ROW: batch[ROW]}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_of_another_layout_stay(saved: DataConfig, cuda: FakeCuda) -> None:
    for batch in DataLoader(saved, 16, device="cuda:0", transform=strided):
        assert [row.tolist() for row in batch["x"].unbind()] == [[1.0, 1.0], [0.0]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_kind_comes_to_a_gpu(saved: DataConfig) -> None:
    found: list[int] = []
    for batch in DataLoader(saved, 16, shuffle=True, device="cuda"):
        tensors = [field for field in batch.values() if isinstance(field, torch.Tensor)]
        assert {tensor.device.type for tensor in tensors} == {"cuda"}
        back = {n: f.cpu() if isinstance(f, torch.Tensor) else f for n, f in batch.items()}
        found += numbers_of(as_numpy(back), KINDS)
    assert sorted(found) == list(range(COUNT))


def test_attributes_are_named_in_the_test() -> None:
    """Every kind there is, so that a new one is tested here as well."""
    kinds = {(a.dtype if a.is_text else "number", a.is_variable) for a in KINDS}
    assert kinds == {("number", False), ("number", True)} | {
        (dtype, Attribute("x", dtype).is_variable) for dtype in ("bytes", "str", "json")
    }


# Padded rows, and decoded ones


PAD = {"tokens": Pad(-1, multiple_of=4), "boxes": Pad(2.5, side="left")}


def check_padded(batch: Any, rows: list[int], saved: DataConfig) -> None:
    """As our own loader pads just these rows."""
    [expected] = DataLoader(saved, COUNT, pad=PAD, subset=rows)
    assert [*batch] == [*expected]
    for name in ("tokens", "tokens_length", "boxes", "boxes_length"):
        assert array(batch[name]).tobytes() == array(expected[name]).tobytes(), name
        assert not batch[name].is_nested
    assert batch[ROW].tolist() == rows


@TORCHS_WORKERS
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_padded_stay_dense_under_torchs_loader(
    saved: DataConfig, workers: int
) -> None:
    for dataset in (Dataset(saved, pad=PAD), IterableDataset(saved, pad=PAD)):
        loader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=workers)
        seen: list[int] = []
        for batch in loader:
            check_padded(batch, batch[ROW].tolist(), saved)
            seen += batch[ROW].tolist()
        assert sorted(seen) == list(range(COUNT))


def test_a_padded_dataset_gives_rows_and_batches(saved: DataConfig) -> None:
    dataset = Dataset(saved, pad=PAD)
    check_padded(dataset[[3, 4, 9]], [3, 4, 9], saved)
    for number, row in zip([5, 6], [dataset[5], *dataset.rows([6])], strict=True):
        tensors = {n: f[None] if isinstance(f, torch.Tensor) else f for n, f in row.items()}
        check_padded(tensors, [number], saved)
    short = Dataset(saved, pad={"tokens": Pad(0, length=3, truncate=True, side="left")})
    [batch] = torch.utils.data.DataLoader(short, batch_size=COUNT)
    tokens = [row["tokens"] for row in Dataset(saved).rows(range(COUNT))]
    assert batch["tokens"].tolist() == [[0] * (3 - len(t[-3:])) + t[-3:].tolist() for t in tokens]
    assert batch["tokens_length"].tolist() == [min(3, len(t)) for t in tokens]
    with pytest.raises(LoaderError, match=r"attribute 'tokens': row 0 .* pad says length 1"):
        Dataset(saved, pad={"tokens": Pad(0, length=1)}).rows(range(COUNT))


def test_padded_tuples(saved: DataConfig) -> None:
    """The length stands right after what it is the length of, extras at the end."""
    how: dict[str, Any] = {"attributes": ["caption", "tokens", "image"], "as_tuple": True}
    pad = {"tokens": -1}
    dataset = IterableDataset(saved, pad=pad, extras=["row"], **how)
    [expected] = DataLoader(saved, COUNT, pad=pad, extras=["row"], **how)
    [batch] = torch.utils.data.DataLoader(dataset, batch_size=COUNT)
    assert len(batch) == len(expected) == 5
    assert batch[0] == expected[0]
    assert batch[1].shape[0] == COUNT
    assert batch[2].shape == (COUNT,)
    assert [t.tolist() for t in batch[1:]] == [t.tolist() for t in expected[1:]]


def without_length(row: dict[str, Any]) -> dict[str, Any]:
    return {name: field for name, field in row.items() if name != "tokens_length"}


def test_padded_rows_whose_lengths_a_transform_has_left_out(saved: DataConfig) -> None:
    dataset = Dataset(saved, pad={"tokens": -1}, transform=without_length)
    [batch] = torch.utils.data.DataLoader(dataset, batch_size=COUNT)
    [expected] = DataLoader(saved, COUNT, pad={"tokens": -1})
    assert batch["tokens"].equal(expected["tokens"])


def test_rows_copied_into_plain_dicts(saved: DataConfig) -> None:
    rows = Dataset(saved).rows([1, 2, 3])
    with pytest.raises(LoaderError, match=r"plain dicts .*use row\.copy\(\)"):
        collate([dict(row) for row in rows])
    expected = as_numpy(collate(rows))
    for copied in ([row.copy() for row in rows], [row | {"more": 1} for row in rows]):
        batch = as_numpy(collate(copied))
        assert numbers_of({name: batch[name] for name in expected}, KINDS) == [1, 2, 3]
    assert batch["more"].tolist() == [1, 1, 1]
    with pytest.raises(LoaderError, match="collate: no rows"):
        collate([])


def as_tensor_of(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(decoders.image(raw).copy())


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    return decoders.fill({"storage": str(tmp_path_factory.mktemp("decoded"))})


@pytest.mark.parametrize("function", [decoders.image, as_tensor_of])
@pytest.mark.parametrize("workers", [0, 1])
def test_decoded_rows_are_tensors(decoded: DataConfig, function: Any, workers: int) -> None:
    decode = {"raw": function, "meta": decoders.label}
    how: dict[str, Any] = {"batch_size": 32, "last_batch": "pad", "num_workers": workers}
    seen: list[int] = []
    for batch in DataLoader(decoded, decode=decode, **how):
        images, labels = batch["raw"], batch["meta"]
        assert (images.dtype, images.shape) == (torch.uint8, (32, 8, 8))
        assert images[:, 0, 0].tolist() == labels.tolist()
        images.add_(1)  # its memory is the batch's own
        seen += labels.tolist()
    assert seen == [*range(decoders.COUNT)] + [0] * 28


@TORCHS_WORKERS
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_collates_decoded_rows(decoded: DataConfig, workers: int) -> None:
    decode = {"raw": decoders.image, "meta": decoders.label, "words": str.split}
    for dataset in (Dataset(decoded, decode=decode), IterableDataset(decoded, decode=decode)):
        loader = torch.utils.data.DataLoader(dataset, batch_size=32, num_workers=workers)
        seen: list[int] = []
        for batch in loader:
            rows = batch["row_"].tolist()
            assert batch["raw"][:, 0, 0].tolist() == batch["meta"].tolist() == rows
            assert batch["words"] == [[*map(str, range(n % 4))] for n in rows]
            seen += rows
        assert sorted(seen) == [*range(decoders.COUNT)]


@pytest.mark.filterwarnings("error")  # torch's, of memory that must not be written to
def test_decoded_rows_of_several_shapes_are_a_list_of_tensors(decoded: DataConfig) -> None:
    for flipped in (decoders.cut_image, lambda raw: decoders.cut_image(raw)[::-1]):
        for batch in DataLoader(decoded, 10, decode={"raw": flipped}):
            shapes = [tuple(image.shape) for image in batch["raw"]]
            assert shapes == [(1 + n % 8, 8) for n in batch["row_"].tolist()]
            assert [int(image[0, 0]) for image in batch["raw"]] == batch["row_"].tolist()
        dataset = Dataset(decoded, decode={"raw": flipped})
        [batch] = torch.utils.data.DataLoader(dataset, batch_size=100)
        assert [len(image) for image in batch["raw"]] == [1 + n % 8 for n in range(100)]


@pytest.mark.parametrize("workers", [0, 1])
def test_decoded_rows_come_to_a_device(decoded: DataConfig, cuda: FakeCuda, workers: int) -> None:
    decode = {"raw": decoders.image, "words": str.split}
    found: list[int] = []

    def kernel(images: torch.Tensor, rows: torch.Tensor) -> None:
        assert images[:, 0, 0].tolist() == rows.tolist()
        found.extend(rows.tolist())

    loader = DataLoader(decoded, 16, device="cuda:0", decode=decode, num_workers=workers, epochs=2)
    for batch in loader:
        assert isinstance(batch["words"], list)
        cuda.run(functools.partial(kernel, batch["raw"], batch["row_"]))
        del batch
    cuda.default.finish()
    assert found == [*range(decoders.COUNT)] * 2
    assert cuda.on_device == 0
