"""Bytes that come wrong and requests that fail, amid an epoch: right rows or an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, DataLoader, Dataset
from storage_loader.errors import (
    ChecksumError,
    ConfigError,
    ObjectNotFoundError,
    ObjectShortError,
    StoreError,
)
from storage_loader.store import open_store
from tests.support.caches import LARGE, alter, cached_files, fill, pixels_of, table_of
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, watch
from tests.support.rows import make, numbers_in
from tests.support.threads import running
from tests.support.wrong_bytes import Wrong, WrongAnywhere, paths

ROWS = 400
PATHS = paths(ROWS)


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
        "a row": "attribute 'pixels', rows 28 to 34 of this object differ",
        "a small column": "attribute 'row', rows 0 to 399 of this object differ",
        "the table": "the directory differs",
    }[what]
    assert f"{key}: {named}" in str(caught.value)
    wrong.times = 0  # the store is right again, and nothing wrong was kept
    again = loader_of(one_object, tmp_path / "cache", path)
    assert sorted(numbers_in(again, LARGE)) == list(range(ROWS))


@pytest.mark.parametrize("path", PATHS)
def test_any_bit_of_any_answer(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    wrong = WrongAnywhere()
    alter(monkeypatch, wrong)
    loader = loader_of(one_object, tmp_path / "cache", path)
    for _ in range(3):
        assert sorted(numbers_in(loader, LARGE)) == list(range(ROWS))
    assert wrong.flipped


STREAMED = [path for path in PATHS if path.startswith("held")]  # on others is no such request
FAILED = [
    (path, verb, nth)
    for path in PATHS
    for verb in ("get_ranges object", "stream object")
    for nth in ((0, 1, 2, 5, 9) if path in STREAMED or verb != "stream object" else (0,))
]


@pytest.mark.parametrize(("path", "verb", "nth"), FAILED)
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
    assert path in STREAMED or not (verb == "stream object" and requests)
    if failed:
        assert len(seen) < ROWS
    else:
        assert sorted(seen) == list(range(ROWS))
    assert running("fetch", "plan") == []
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


class Lost:
    """A hook: the first `times` requests for an object find it missing, or short."""

    def __init__(self, error: type[StoreError], verb: str, times: float) -> None:
        self._error, self._verb = error, verb
        self._times = times
        self.seen = 0
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        if call.kind == f"{self._verb} object":
            with self._lock:
                self.seen += 1
                if self.seen <= self._times:
                    raise self._error(f"{self._verb} {call.key}: not all is there")


def rows_of(loader: DataLoader) -> list[int]:
    return sorted(numbers_in(loader, LARGE))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("error", [ObjectNotFoundError, ObjectShortError])
@pytest.mark.parametrize("verb", ["get_ranges", "stream"])
def test_what_is_lost_is_asked_for_once_more_and_then_named(
    one_object: DataConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    error: type[StoreError],
    verb: str,
) -> None:
    lost = Lost(error, verb, 1)
    watch(monkeypatch, local=False, before=lost)
    loader = loader_of(one_object, tmp_path / "cache", path, threads=1)
    assert rows_of(loader) == list(range(ROWS))
    if not lost.seen:
        assert verb == "stream"  # this path has none
        return
    assert lost.seen >= 2
    assert loader.stats.retries >= 1
    lost = Lost(error, verb, float("inf"))
    watch(monkeypatch, local=False, before=lost)
    with pytest.raises(error) as caught:
        rows_of(loader_of(one_object, tmp_path / "other cache", path, threads=1))
    snapshot = DataLoader(one_object).open()
    assert str(caught.value) == (
        f"{verb} {snapshot.key(0)}: not all is there; it holds attributes 'pixels', 'row', rows "
        f"0 to {ROWS - 1} of dataset {one_object.dataset_prefix}, commit "
        f"{snapshot.version.commits[0]}"
    )


@pytest.mark.parametrize("times", [1, float("inf")])
def test_a_stream_that_ends_early_goes_on_where_it_ended(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    class EndsEarly(WatchedStore):
        ended = 0

        def stream(self, key: str, start: int, end: int) -> Iterator[Any]:
            EndsEarly.ended += 1
            stop = end - 1000 if EndsEarly.ended <= times else end
            yield from super().stream(key, start, max(stop, start + 1))

    monkeypatch.setattr(
        "storage_loader.catalog.catalog.open_store",
        lambda config: EndsEarly(open_store(config), local=False),
    )
    loader = loader_of(one_object, tmp_path / "cache", "held, all at once")
    if times == 1:
        assert rows_of(loader) == list(range(ROWS))
        assert EndsEarly.ended >= 2
    else:
        with pytest.raises(ObjectShortError, match="its commit says more; it holds attributes"):
            rows_of(loader)


@pytest.mark.parametrize("path", PATHS)
def test_without_verification_rows_come_as_they_are(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """And nothing of the checksum table is fetched; who verifies later finds what is wrong."""
    wrong = Wrong(place_of(one_object, "a row"), float("inf"))
    table = Wrong(place_of(one_object, "the table"), float("inf"))

    def both(key: str, start: int, data: bytearray) -> None:
        wrong(key, start, data)
        table(key, start, data)

    alter(monkeypatch, both)
    given = loader_of(one_object, tmp_path / "cache", path, verify=False)
    for _ in range(2):
        rows = {
            int(number): batch["pixels"][i]
            for batch in given
            for i, number in enumerate(batch["row"])
        }
        right = make(range(ROWS), LARGE)["pixels"]
        differing = [n for n in range(ROWS) if (rows[n] != right[n]).any()]
        assert differing == [30]
        assert (rows[30] != right[30]).sum() == 1
    if path != "copied":  # whose cache file is fetched around the table
        assert table.seen == 0
    with pytest.raises(ChecksumError):
        rows_of(loader_of(one_object, tmp_path / "cache", path))
    alter(monkeypatch, lambda key, start, data: None)
    assert rows_of(loader_of(one_object, tmp_path / "cache", path)) == list(range(ROWS))


def test_verify_is_a_flag(one_object: DataConfig) -> None:
    makers: list[Any] = [DataLoader, Dataset]
    if find_spec("torch") is not None:
        from storage_loader import torch as for_torch

        makers += [for_torch.DataLoader, for_torch.Dataset]
    for made in makers:
        with pytest.raises(ConfigError, match=r"^verify 'no': True or False"):
            made(one_object, verify="no")
