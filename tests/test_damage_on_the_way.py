"""Bytes that come wrong and requests that fail, amid an epoch: right rows or an error."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from faulty import FailAt, Injected, watch
from rows import numbers_in
from test_cache_files import LARGE, alter, cached_files, fetching_threads, fill, pixels_of, table_of

from storage_loader import DataConfig, DataLoader
from storage_loader.errors import ChecksumError

ROWS = 400
PATHS: dict[str, dict[str, Any]] = {
    "held": {},
    "held, all at once": {"batch_size": 400},
    "held, global": {"shuffle": "global"},
    "copied": {"cache_size": 200_000},
    "remote": {"index": True},
    "remote, global": {"index": True, "shuffle": "global"},
}


@pytest.fixture
def one_object(tmp_path: Path) -> DataConfig:
    return fill({"storage": str(tmp_path / "store")})


def place_of(the_config: DataConfig, what: str) -> int:
    """A byte of the object: of row 30, of the small column, or of the checksum table."""
    column = DataLoader(the_config).open().objects[0].layout.columns["row"]
    return {
        "a row": pixels_of(the_config)[0] + 30 * 9000 + 17,
        "a small column": column.offset + 30 * 8,
        "the table": table_of(the_config)[0] + 3,
    }[what]


class Wrong:
    """Flips a bit of the byte at `place` in the first `times` answers that hold it."""

    def __init__(self, place: int, times: float) -> None:
        self._place = place
        self._times = times
        self.seen = 0
        self._lock = threading.Lock()

    def __call__(self, key: str, start: int, data: bytearray) -> None:
        if start <= self._place < start + len(data):
            with self._lock:
                self.seen += 1
                if self.seen <= self._times:
                    data[self._place - start] ^= 4


def loader_of(the_config: DataConfig, cache_dir: Path, path: str, **how: Any) -> DataLoader:
    settings = {"batch_size": 16, "cache_dir": cache_dir, **PATHS[path], **how}
    return DataLoader(the_config, **settings)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", ["a row", "a small column", "the table"])
def test_what_comes_wrong_once_is_fetched_once_more(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(one_object, what), 1)
    alter(monkeypatch, wrong)
    loader = loader_of(one_object, tmp_path / "cache", path)
    assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert wrong.seen >= 2
    assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", ["a row", "a small column", "the table"])
def test_what_comes_wrong_again_is_an_error_that_names_it(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, what: str
) -> None:
    wrong = Wrong(place_of(one_object, what), float("inf"))
    alter(monkeypatch, wrong)
    with pytest.raises(ChecksumError) as caught:
        numbers_in(loader_of(one_object, tmp_path / "cache", path), LARGE)
    assert wrong.seen >= 2
    key = DataLoader(one_object).open().key(0)
    named = {
        "a row": "attribute 'pixels', rows 28 to 35 of this object differ",
        "a small column": "attribute 'row', rows 0 to 400 of this object differ",
        "the table": "the checksum table differs",
    }[what]
    assert f"{key}: {named}" in str(caught.value)
    wrong._times = 0  # the store is right again, and nothing wrong was kept
    again = loader_of(one_object, tmp_path / "cache", path)
    assert sorted(numbers_in(again, LARGE)) == list(range(ROWS))


@pytest.mark.parametrize("path", PATHS)
def test_any_bit_of_any_answer(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """An answer is wrong somewhere, unless one that held any of its wrong bytes was before."""
    flipped: list[int] = []
    lock = threading.Lock()

    def wrong(key: str, start: int, data: bytearray) -> None:
        with lock:
            if data and not any(start <= place < start + len(data) for place in flipped):
                place = hash((start, len(data))) % len(data)
                data[place] ^= 1
                flipped.append(start + place)

    alter(monkeypatch, wrong)
    loader = loader_of(one_object, tmp_path / "cache", path)
    for _ in range(3):
        assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert flipped


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("verb", ["get_ranges object", "stream object"])
@pytest.mark.parametrize("nth", [0, 1, 2, 5, 9])
def test_a_failed_request_never_ends_an_epoch_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, verb: str, nth: int
) -> None:
    """The error rises, or all rows came because there was no such request."""
    the_config = fill({"storage": str(tmp_path / "store")}, ROWS, max_object_size=2**21)
    opened = watch(monkeypatch, local=False, before=FailAt(verb, nth, onwards=True))
    how: dict[str, Any] = {"batch_size": 16, **PATHS[path]}
    loader = DataLoader(the_config, cache_dir=tmp_path / "cache", prefetch=10**6, **how)
    seen: list[int] = []
    failed = False
    try:
        for batch in loader:
            seen += numbers_in([batch], LARGE)
    except Injected:
        failed = True
    requests = [kind for store in opened for kind in store.kinds(verb)]
    assert failed == (len(requests) > nth)
    if failed:
        assert len(seen) < ROWS
    else:
        assert sorted(seen) == list(range(ROWS))
    assert fetching_threads() == []
    watch(monkeypatch, local=False)
    again = DataLoader(the_config, cache_dir=tmp_path / "cache", prefetch=10**6, **how)
    order = numbers_in(again, LARGE)
    assert sorted(order) == list(range(ROWS))
    assert order[: len(seen)] == seen


def test_nothing_wrong_stays_in_the_cache(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Wrong(place_of(one_object, "a row"), 1)
    alter(monkeypatch, wrong)
    assert numbers_in(loader_of(one_object, tmp_path / "cache", "held"), LARGE)
    [file] = cached_files(tmp_path / "cache")
    start, end = pixels_of(one_object)
    snapshot = DataLoader(one_object).open()
    [stored] = Path(one_object.storage.removeprefix("file://")).rglob(
        snapshot.key(0).rsplit("/", 1)[1]
    )
    assert file.read_bytes()[start:end] == stored.read_bytes()[start:end]
