"""Compressed rows that were altered in the store or a cache: right rows, or an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage_loader import DataConfig, Dataset, verify_dataset
from storage_loader.errors import ChecksumError
from tests.support.caches import alter, cached_files
from tests.support.damage import KINDS, object_of, place_of, smaller_config, smaller_rows

COMPRESSED = KINDS["compressed"]
ALL = list(range(COMPRESSED.num_rows))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds one object; no test changes it."""
    folder = tmp_path_factory.mktemp("saved")
    COMPRESSED.save(folder)
    return folder


@pytest.fixture
def kinds(saved: Path, tmp_path: Path) -> DataConfig:
    """One object, which the test may change."""
    shutil.copytree(saved, tmp_path / "store")
    return smaller_config(tmp_path / "store")


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
    assert COMPRESSED.numbers_of(Dataset(kinds)[:]) == ALL


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros"])
def test_a_file_of_the_cache_that_another_process_damaged(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    cache_dir = tmp_path / "cache"
    alter(monkeypatch, lambda key, start, data: None)  # the store is no folder
    assert COMPRESSED.numbers_in(COMPRESSED.loader(kinds, cache_dir, "held")) == ALL
    [file] = cached_files(cache_dir)
    body = bytearray(file.read_bytes())
    place = place_of(kinds, "pixels")
    if damage == "cut":
        body = body[:place]
    else:
        body[place : place + 10] = bytes(10) if damage == "zeros" else bytes([body[place] ^ 1]) * 10
    file.unlink()
    file.write_bytes(body)
    assert COMPRESSED.numbers_in(COMPRESSED.loader(kinds, cache_dir, "held")) == ALL


@pytest.mark.parametrize("what", COMPRESSED.parts[1:])
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
        ends = np.cumsum([len(row) for row in smaller_rows()[attribute]])
        holding = np.flatnonzero((ends > first) & (ends - np.diff(ends, prepend=0) < stop))
        first, stop = int(holding[0]), int(holding[-1]) + 1
    elif role == "ends":  # the next row begins where this one ends
        stop = min(stop + 1, len(ALL))
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
    assert (0, len(ALL)) in [problem.rows for problem in problems]
