"""Bytes of compressed rows come wrong: right rows, or an error that names them."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import (
    Attribute,
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    Ragged,
    verify_dataset,
)
from storage_loader.errors import ChecksumError
from storage_loader.layout import ObjectLayout, Outline
from tests.support.caches import alter, cached_files
from tests.support.wrong_bytes import Wrong, WrongAnywhere, paths

ROWS = 20_000  # several blocks of ends, too
KINDS = (
    Attribute("tokens", "int32", (None,)),
    Attribute("row", "int64", compressor=False),
    Attribute("caption", "str", compressor={"complib": "lz4"}),
    Attribute("pixels", "uint8", (100,), compressor={"complib": "zlib"}),
)
PATHS = paths(ROWS)
WHAT = ["directory", "tokens/ends", "tokens/values", "caption/ends", "caption/values", "pixels"]


@functools.cache
def all_rows() -> dict[str, Any]:
    """Rows that become smaller."""
    numbers = np.arange(ROWS)
    return {
        "tokens": Ragged.of_lengths(
            np.concatenate([np.arange(n % 7, dtype=np.int32) + n // 100 for n in range(ROWS)]),
            numbers % 7,
        ),
        "row": numbers,
        "caption": [f"row {n}" * (n % 4) for n in range(ROWS)],
        "pixels": (numbers[:, None] + np.arange(100) // 9).astype(np.uint8),
    }


def assert_rows(batch: dict[str, Any]) -> list[int]:
    """The numbers of the rows, if every attribute is right."""
    right = all_rows()
    numbers = np.asarray(batch["row"])
    assert (batch["pixels"] == right["pixels"][numbers]).all()
    assert batch["caption"] == [right["caption"][n] for n in numbers.tolist()]
    lengths = right["tokens"].lengths[numbers]
    assert batch["tokens"].lengths.tolist() == lengths.tolist()
    first = np.repeat(right["tokens"].offsets[numbers] - batch["tokens"].offsets[:-1], lengths)
    assert (batch["tokens"].values == right["tokens"].values[first + np.arange(len(first))]).all()
    return numbers.tolist()


def numbers_in(loader: DataLoader) -> list[int]:
    return sorted(number for batch in loader for number in assert_rows(batch))


def config_in(folder: Path) -> DataConfig:
    return DataConfig("coded", KINDS, storage=folder, compressor={})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds one object; no test changes it."""
    folder = tmp_path_factory.mktemp("saved")
    with DataSaver(config_in(folder)) as saver:
        for first in range(0, ROWS, 5000):
            saver({name: rows[first : first + 5000] for name, rows in all_rows().items()})
    return folder


@pytest.fixture
def kinds(saved: Path, tmp_path: Path) -> DataConfig:
    """One object, which the test may change."""
    shutil.copytree(saved, tmp_path / "store")
    return config_in(tmp_path / "store")


def object_of(the_config: DataConfig) -> tuple[Path, ObjectLayout]:
    """Its file, and what its directory says."""
    snapshot = DataLoader(the_config).open()
    [stored] = snapshot.objects
    path = Path(the_config.storage.removeprefix("file://")) / snapshot.key(0)
    assert isinstance(stored.layout, Outline)
    start, end = stored.layout.directory_range
    return path, stored.layout.layout(snapshot.schema, memoryview(path.read_bytes())[start:end])


def place_of(the_config: DataConfig, what: str) -> int:
    """A byte of the object: of its directory, or in the middle of a region's block 1."""
    _, layout = object_of(the_config)
    if what == "directory":
        return layout.directory_range[0] + 3
    start, end = layout.columns[what].block_range(1)
    assert layout.columns[what].codec is not None
    assert end - start < layout.columns[what].block_nbytes
    return (start + end) // 2


def loader_of(the_config: DataConfig, cache_dir: Path, path: str) -> DataLoader:
    return DataLoader(the_config, **{"batch_size": 5000, "cache_dir": cache_dir, **PATHS[path]})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", WHAT)
def test_what_comes_wrong_once_is_fetched_once_more(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(kinds, what), 1)
    alter(monkeypatch, wrong)
    loader = loader_of(kinds, tmp_path / "cache", path)
    for _ in range(2):
        assert numbers_in(loader) == list(range(ROWS))
    assert wrong.seen >= 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", WHAT)
def test_what_comes_wrong_again_is_an_error_that_names_it(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(kinds, what), float("inf"))
    alter(monkeypatch, wrong)
    with pytest.raises(ChecksumError) as caught:
        numbers_in(loader_of(kinds, tmp_path / "cache", path))
    assert wrong.seen >= 2
    attribute, _, role = what.partition("/")
    named = f"attribute '{attribute}', {'values' if role == 'values' else 'rows'} "
    if what == "directory":
        named = "the directory differs from its own checksum"
    assert f"{DataLoader(kinds).open().key(0)}: {named}" in str(caught.value)
    wrong.times = 0  # the store is right again, and nothing wrong was kept
    assert numbers_in(loader_of(kinds, tmp_path / "cache", path)) == list(range(ROWS))


@pytest.mark.parametrize("path", PATHS)
def test_any_bit_of_any_answer(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    wrong = WrongAnywhere()
    alter(monkeypatch, wrong)
    loader = loader_of(kinds, tmp_path / "cache", path)
    for _ in range(3):
        assert numbers_in(loader) == list(range(ROWS))
    assert wrong.flipped


def test_any_bit_of_the_object_is_seen(kinds: DataConfig) -> None:
    """Of rows and directory; what is changed in the store itself stays wrong."""
    path, layout = object_of(kinds)
    body = path.read_bytes()
    parts = [layout.directory_range, *map(tuple, layout.block_ranges.tolist())]
    generator = np.random.default_rng(0)
    for start, end in parts:
        place = int(generator.integers(start, end))
        wrong = bytearray(body)
        wrong[place] ^= 1 << int(generator.integers(8))
        path.unlink()  # what maps the file may still be at work: it must not be cut
        path.write_bytes(wrong)
        with pytest.raises(ChecksumError, match=path.name):
            Dataset(kinds)[:]
    path.unlink()
    path.write_bytes(body)
    assert assert_rows(Dataset(kinds)[:]) == list(range(ROWS))


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros"])
def test_a_file_of_the_cache_that_another_process_damaged(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    cache_dir = tmp_path / "cache"
    alter(monkeypatch, lambda key, start, data: None)  # the store is no folder
    assert numbers_in(loader_of(kinds, cache_dir, "held")) == list(range(ROWS))
    [file] = cached_files(cache_dir)
    body = bytearray(file.read_bytes())
    place = place_of(kinds, "pixels")
    if damage == "cut":
        body = body[:place]
    else:
        body[place : place + 10] = bytes(10) if damage == "zeros" else bytes([body[place] ^ 1]) * 10
    file.unlink()
    file.write_bytes(body)
    assert numbers_in(loader_of(kinds, cache_dir, "held")) == list(range(ROWS))


@pytest.mark.parametrize("what", WHAT[1:])
def test_verify_names_the_rows_of_a_damaged_block(kinds: DataConfig, what: str) -> None:
    path, layout = object_of(kinds)
    body = bytearray(path.read_bytes())
    body[place_of(kinds, what)] ^= 1
    path.write_bytes(body)
    [problem] = verify_dataset(kinds).problems
    attribute, _, role = what.partition("/")
    column = layout.columns[what]
    first, stop = column.block_items, min(2 * column.block_items, column.items)
    if role == "values":
        ends = np.cumsum([len(row) for row in all_rows()[attribute]])
        holding = np.flatnonzero((ends > first) & (ends - np.diff(ends, prepend=0) < stop))
        first, stop = int(holding[0]), int(holding[-1]) + 1
    elif role == "ends":  # the next row begins where this one ends
        stop = min(stop + 1, ROWS)
    assert problem.what == "differ from their checksum"
    assert (problem.attribute, problem.rows) == (attribute, (first, stop))


def test_verify_where_ends_and_values_are_damaged(kinds: DataConfig) -> None:
    """Then nobody knows which rows the values are of."""
    path, _ = object_of(kinds)
    body = bytearray(path.read_bytes())
    for what in ("tokens/ends", "tokens/values"):
        body[place_of(kinds, what)] ^= 1
    path.write_bytes(body)
    problems = verify_dataset(kinds).problems
    assert [problem.attribute for problem in problems] == ["tokens", "tokens"]
    assert (0, ROWS) in [problem.rows for problem in problems]
