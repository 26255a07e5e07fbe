"""Bytes of rows that have no fixed size come wrong: right rows, or an error that names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_loader import Attribute, DataConfig, DataLoader
from storage_loader.errors import ChecksumError
from storage_loader.layout import Outline
from tests.support.caches import alter
from tests.support.rows import ROW, config, numbers_in, save_rows
from tests.support.wrong_bytes import Wrong, WrongAnywhere, paths

ROWS = 600
KINDS = (
    Attribute("tokens", "int32", (None,)),
    Attribute(ROW, "int64"),
    Attribute("caption", "str"),
    Attribute("pixels", "uint8", (3000,)),
)
PATHS = paths(ROWS)


@pytest.fixture
def kinds(tmp_path: Path) -> DataConfig:
    """One object."""
    the_config = config({"storage": str(tmp_path / "store")}, attributes=KINDS)
    return save_rows(the_config, ROWS, 100)


def place_of(the_config: DataConfig, what: str) -> int:
    """A byte of the object: of its directory, or in the middle of a region."""
    snapshot = DataLoader(the_config).open()
    outline = snapshot.objects[0].layout
    assert isinstance(outline, Outline)
    start, end = outline.directory_range
    if what == "directory":
        return start + 3
    path = the_config.storage.removeprefix("file://") + "/" + snapshot.key(0)
    directory = memoryview(Path(path).read_bytes())[start:end]
    column = outline.layout(snapshot.schema, directory).columns[what]
    return column.offset + column.nbytes // 2


def loader_of(the_config: DataConfig, cache_dir: Path, path: str) -> DataLoader:
    return DataLoader(the_config, **{"batch_size": 16, "cache_dir": cache_dir, **PATHS[path]})


WHAT = ["directory", "tokens/ends", "tokens/values", "caption/ends", "caption/values", "pixels"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", WHAT)
def test_what_comes_wrong_once_is_fetched_once_more(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(kinds, what), 1)
    alter(monkeypatch, wrong)
    loader = loader_of(kinds, tmp_path / "cache", path)
    for _ in range(2):
        assert sorted(numbers_in(loader, KINDS)) == list(range(ROWS))
    assert wrong.seen >= 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", WHAT)
def test_what_comes_wrong_again_is_an_error_that_names_it(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(kinds, what), float("inf"))
    alter(monkeypatch, wrong)
    with pytest.raises(ChecksumError) as caught:
        numbers_in(loader_of(kinds, tmp_path / "cache", path), KINDS)
    assert wrong.seen >= 2
    attribute, _, role = what.partition("/")
    named = f"attribute '{attribute}', {'values' if role == 'values' else 'rows'} "
    if what == "directory":
        named = "the directory differs from its own checksum"
    assert f"{DataLoader(kinds).open().key(0)}: {named}" in str(caught.value)
    wrong.times = 0  # the store is right again, and nothing wrong was kept
    again = loader_of(kinds, tmp_path / "cache", path)
    assert sorted(numbers_in(again, KINDS)) == list(range(ROWS))


@pytest.mark.parametrize("path", PATHS)
def test_any_bit_of_any_answer(
    kinds: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    wrong = WrongAnywhere()
    alter(monkeypatch, wrong)
    loader = loader_of(kinds, tmp_path / "cache", path)
    for _ in range(3):
        assert sorted(numbers_in(loader, KINDS)) == list(range(ROWS))
    assert wrong.flipped
