"""Objects that were altered, cut short or lost after they were saved: an error that names them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import (
    ChecksumError,
    FormatError,
    ObjectNotFoundError,
    StorageLoaderError,
)
from tests.support.damage import flipped
from tests.support.rows import ROW, WITH_PIXELS, config, make, numbers_in, numbers_of

COUNT = 200
DAMAGED = 2  # which object

READERS: dict[str, Callable[[DataConfig], list[Any]]] = {
    "Dataset": lambda c: [Dataset(c)[:]],
    "Dataset rows": lambda c: list(Dataset(c)),
    "DataLoader": lambda c: list(DataLoader(c, batch_size=10)),
    "DataLoader index": lambda c: list(DataLoader(c, batch_size=10, index=True)),
    "DataLoader shuffle": lambda c: list(DataLoader(c, batch_size=None, shuffle="global")),
}
if find_spec("torch") is not None:
    import storage_loader.torch

    READERS["torch DataLoader"] = lambda c: list(storage_loader.torch.DataLoader(c, batch_size=10))


def saved(storage: dict[str, str]) -> DataConfig:
    the_config = config(storage, attributes=WITH_PIXELS, max_object_size=2 * MIN_OBJECT_SIZE)
    save(the_config, make(range(COUNT), WITH_PIXELS))
    return the_config


@pytest.fixture
def place(near_or_far: dict[str, str]) -> DataConfig:
    """Rows in several objects, in a folder that is mapped or behind a cache."""
    return saved(near_or_far)


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest) -> Callable[[DataConfig], list[Any]]:
    return READERS[request.param]


def change(the_config: DataConfig, damage: Callable[[bytes], bytes]) -> str:
    """Replace an object by what `damage` makes of it; its key."""
    catalog = Catalog(the_config)
    key = catalog.snapshot().key(DAMAGED)
    body = damage(bytes(catalog.store.get(key)))
    catalog.store.put(key, body)
    return key


REMEDY = (
    "`storage-loader verify` lists all that is damaged; bring the object back from a copy, save "
    "its rows anew, or read them as they are with verify=False"
)


def needing(the_config: DataConfig) -> str:
    """What an error says that cannot be read without the damaged object."""
    snapshot = Dataset(the_config).open()
    first, stop = snapshot.starts[DAMAGED : DAMAGED + 2]
    return (
        f"attributes {', '.join(repr(a.name) for a in WITH_PIXELS)}, rows {first} to {stop - 1} "
        f"of dataset {the_config.dataset_prefix}, commit {snapshot.version.commits[0]}"
    )


@pytest.mark.parametrize("name", [a.name for a in WITH_PIXELS])
def test_a_flipped_bit_in_rows_is_a_checksum_error(
    place: DataConfig, read: Callable[[DataConfig], list[Any]], name: str
) -> None:
    layout = Dataset(place).open().objects[DAMAGED].layout
    column = layout.columns[name]
    row = column.items - 1
    key = change(place, flipped(column.offset + row * column.item_nbytes))
    first = row // column.block_items * column.block_items
    with pytest.raises(ChecksumError) as caught:
        read(place)
    url = Catalog(place).store.url
    snapshot = Dataset(place).open()
    start = int(snapshot.starts[DAMAGED])
    assert str(caught.value) == (
        f"{url}/{key}: attribute '{name}', rows {first} to {column.items - 1} of this object "
        "differ from their checksum; the object was altered or damaged after it was saved; they "
        f"are rows {start + first} to {start + column.items - 1} of dataset "
        f"{place.dataset_prefix}, commit {snapshot.version.commits[0]}; {REMEDY}"
    )
    # Put right again, it is read: nothing wrong was kept.
    change(place, flipped(column.offset + row * column.item_nbytes))
    for batch in DataLoader(place, batch_size=COUNT):
        assert numbers_of(batch, WITH_PIXELS) == list(range(COUNT))


def test_a_flipped_bit_in_the_checksums_is_a_checksum_error(
    place: DataConfig, read: Callable[[DataConfig], list[Any]]
) -> None:
    start, _ = Dataset(place).open().objects[DAMAGED].layout.directory_range
    key = change(place, flipped(start + 3))
    with pytest.raises(ChecksumError) as caught:
        read(place)
    assert str(caught.value) == (
        f"{Catalog(place).store.url}/{key}: the directory differs from its own checksum in "
        "the commit; the object was altered or damaged after it was saved, and nothing can be "
        f"verified of {needing(place)}; {REMEDY}"
    )
    change(place, flipped(start + 3))
    assert numbers_in(DataLoader(place, batch_size=10), WITH_PIXELS) == list(range(COUNT))


@pytest.mark.parametrize("kept", [0, 100, 0.5, -1])
def test_an_object_cut_short_is_an_error_that_names_it(
    place: DataConfig, read: Callable[[DataConfig], list[Any]], kept: float
) -> None:
    key = change(place, lambda body: body[: int(kept * len(body)) if kept == 0.5 else int(kept)])
    with pytest.raises(FormatError) as caught:
        read(place)
    assert key in str(caught.value)
    assert needing(place) in str(caught.value)


def test_a_lost_object_is_an_error_that_names_it(
    place: DataConfig, read: Callable[[DataConfig], list[Any]]
) -> None:
    catalog = Catalog(place)
    key = catalog.snapshot().key(DAMAGED)
    catalog.store.delete([key])
    with pytest.raises(ObjectNotFoundError, match=key) as caught:
        read(place)
    assert str(caught.value).endswith(f"; it holds {needing(place)}")


def test_rows_of_other_blocks_are_still_read(place: DataConfig) -> None:
    snapshot = Dataset(place).open()
    column = snapshot.objects[DAMAGED].layout.columns["pixels"]
    change(place, flipped(column.offset))
    start = int(snapshot.starts[DAMAGED])
    dataset = Dataset(place)
    fine = [0, start + column.block_items, start + column.items - 1, COUNT - 1]
    assert numbers_of(dataset[fine], WITH_PIXELS) == fine
    wrong = f"'pixels', rows 0 to {column.block_items - 1} of this"
    with pytest.raises(ChecksumError, match=wrong):
        dataset[start]
    small = Dataset(place, attributes=[ROW])
    assert small[:][ROW].tolist() == list(range(COUNT))


def test_another_object_under_the_key_is_an_error(
    place: DataConfig, read: Callable[[DataConfig], list[Any]]
) -> None:
    """An object of the same size and layout, whole in itself, is not the one that was saved."""
    catalog = Catalog(place)
    snapshot = catalog.snapshot()
    other = bytes(catalog.store.get(snapshot.key(DAMAGED - 1)))
    assert len(other) == snapshot.objects[DAMAGED].nbytes
    key = change(place, lambda body: other)
    with pytest.raises(ChecksumError, match=key):
        read(place)


@pytest.mark.parametrize("index", [False, True])
def test_damage_on_s3(s3_storage: dict[str, str], index: bool) -> None:
    the_config = saved(s3_storage)
    offset = Dataset(the_config).open().objects[DAMAGED].layout.columns["pixels"].offset

    def read() -> list[int]:
        return numbers_in(DataLoader(the_config, batch_size=10, index=index), WITH_PIXELS)

    key = change(the_config, flipped(offset))
    with pytest.raises(ChecksumError, match=f"{key}: attribute 'pixels', rows 0 to 20 "):
        read()
    change(the_config, lambda body: body[: offset + 5000])
    with pytest.raises(FormatError, match=key) as caught:
        read()
    assert needing(the_config) in str(caught.value)
    Catalog(the_config).store.delete([key])
    with pytest.raises(ObjectNotFoundError, match=key) as lost:
        read()
    assert str(lost.value).endswith(f"; it holds {needing(the_config)}")


def test_a_loader_verifies_a_folders_objects_once(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_loader.loader.fetch import directory

    the_config = saved(folder)
    hashed: list[int] = []
    xxh3 = directory.xxh3

    def counted(data: Any) -> int:
        hashed.append(memoryview(data).nbytes)
        return xxh3(data)

    monkeypatch.setattr(directory, "xxh3", counted)
    loader = DataLoader(the_config, batch_size=9, shuffle=True)
    list(loader)
    stored = sum(a.row_nbytes for a in WITH_PIXELS) * COUNT
    assert stored <= sum(hashed) < stored * 1.01
    hashed.clear()
    list(loader)
    assert hashed == []


def test_without_verification_a_folders_rows_come_as_they_are(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = saved(folder)
    column = Dataset(the_config).open().objects[DAMAGED].layout.columns["pixels"]
    first = int(Dataset(the_config).open().starts[DAMAGED])
    change(the_config, flipped(column.offset))
    right = make(range(COUNT), WITH_PIXELS)["pixels"]
    monkeypatch.setattr(
        "storage_loader.loader.fetch.directory.xxh3", lambda data: pytest.fail("hashed")
    )
    dataset = Dataset(the_config, verify=False)
    [loaded] = DataLoader(the_config, batch_size=COUNT, verify=False)
    for pixels in (dataset[:]["pixels"], loaded["pixels"]):
        assert np.argwhere(pixels != right).tolist() == [[first, 0]]
    assert (dataset[first]["pixels"] != right[first]).sum() == 1


def test_worker_processes_verify_too(folder: dict[str, str]) -> None:
    the_config = saved(folder)
    column = Dataset(the_config).open().objects[DAMAGED].layout.columns["pixels"]
    change(the_config, flipped(column.offset))
    with pytest.raises(ChecksumError, match="attribute 'pixels', rows 0 to 20 of this object"):
        list(DataLoader(the_config, batch_size=10, num_workers=1))
    assert len(list(DataLoader(the_config, batch_size=10, num_workers=1, verify=False))) == 20


def test_damage_is_an_error_of_this_library() -> None:
    assert issubclass(ChecksumError, FormatError)
    assert issubclass(FormatError, StorageLoaderError)
    assert issubclass(ObjectNotFoundError, FileNotFoundError)


def test_objects_lie_where_the_commit_says(folder: dict[str, str]) -> None:
    save(config(folder), make(range(5)))
    snapshot = Dataset(config(folder)).open()
    assert (Path(folder["storage"]) / snapshot.key(0)).is_file()
