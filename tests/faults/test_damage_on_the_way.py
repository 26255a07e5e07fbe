"""Bytes that come wrong and requests that fail, amid an epoch: right rows or an error."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
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
from tests.support.caches import LARGE, alter, cached_files, fill, pixels_of
from tests.support.damage import KINDS, Wrong, WrongAnywhere, named, object_of, place_of
from tests.support.faulty import Call, FailAt, Injected, WatchedStore, watch
from tests.support.rows import make, numbers_in
from tests.support.threads import running

ROWS = 400
FIXED = KINDS["fixed"]
PATHS = FIXED.paths
CASES = [
    pytest.param(kind, part, path, id=f"{kind}-{part}-{path}")
    for kind, rows in KINDS.items()
    for part in rows.parts
    for path in PATHS
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DataConfig]:
    """Gives a folder that holds one object of a kind of rows; no test changes it."""

    @functools.cache
    def by_kind(kind: str) -> DataConfig:
        return KINDS[kind].save(tmp_path_factory.mktemp(kind))

    return by_kind


@pytest.fixture
def one_object(saved: Callable[[str], DataConfig]) -> DataConfig:
    return saved("fixed")


@pytest.mark.parametrize(("kind", "part", "path"), CASES)
def test_what_comes_wrong_once_is_fetched_once_more(
    saved: Callable[[str], DataConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    part: str,
    path: str,
) -> None:
    rows, the_config = KINDS[kind], saved(kind)
    wrong = Wrong(place_of(the_config, part), 1)
    alter(monkeypatch, wrong)
    loader = rows.loader(the_config, tmp_path, path)
    for _ in range(2):
        assert rows.numbers_in(loader) == list(range(rows.num_rows))
    assert wrong.seen >= 2


@pytest.mark.parametrize(("kind", "part", "path"), CASES)
def test_what_comes_wrong_again_is_an_error_that_names_it(
    saved: Callable[[str], DataConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    part: str,
    path: str,
) -> None:
    rows, the_config = KINDS[kind], saved(kind)
    said = named(the_config, part)
    wrong = Wrong(place_of(the_config, part), float("inf"))
    alter(monkeypatch, wrong)
    with pytest.raises(ChecksumError) as caught:
        rows.numbers_in(rows.loader(the_config, tmp_path, path))
    assert wrong.seen >= 2
    assert said in str(caught.value)
    wrong.times = 0  # the store is right again, and nothing wrong was kept
    again = rows.loader(the_config, tmp_path, path)
    assert rows.numbers_in(again) == list(range(rows.num_rows))


def test_which_rows_the_errors_above_name(one_object: DataConfig) -> None:
    """In numbers, not as the layout says: 7 rows of 9,000 bytes are a block."""
    assert named(one_object, "pixels").endswith("'pixels', rows 7 to 13 of this object differ")
    assert named(one_object, "row").endswith("'row', rows 0 to 399 of this object differ")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_bit_of_any_answer(
    saved: Callable[[str], DataConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    path: str,
) -> None:
    rows = KINDS[kind]
    wrong = WrongAnywhere()
    alter(monkeypatch, wrong)
    loader = rows.loader(saved(kind), tmp_path, path)
    for _ in range(3):
        assert rows.numbers_in(loader) == list(range(rows.num_rows))
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
    wrong = Wrong(place_of(one_object, "pixels"), 1)
    alter(monkeypatch, wrong)
    assert FIXED.numbers_in(FIXED.loader(one_object, tmp_path / "cache", "held"))
    [file] = cached_files(tmp_path / "cache")
    start, end = pixels_of(one_object)
    stored, _ = object_of(one_object)
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
    loader = FIXED.loader(one_object, tmp_path / "cache", path, threads=1)
    assert FIXED.numbers_in(loader) == list(range(ROWS))
    if not lost.seen:
        assert verb == "stream"  # this path has none
        return
    assert lost.seen >= 2
    assert loader.stats.retries >= 1
    lost = Lost(error, verb, float("inf"))
    watch(monkeypatch, local=False, before=lost)
    with pytest.raises(error) as caught:
        FIXED.numbers_in(FIXED.loader(one_object, tmp_path / "other cache", path, threads=1))
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
    loader = FIXED.loader(one_object, tmp_path / "cache", "held, all at once")
    if times == 1:
        assert FIXED.numbers_in(loader) == list(range(ROWS))
        assert EndsEarly.ended >= 2
    else:
        with pytest.raises(ObjectShortError, match="its commit says more; it holds attributes"):
            FIXED.numbers_in(loader)


@pytest.mark.parametrize("path", PATHS)
def test_without_verification_rows_come_as_they_are(
    one_object: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """And nothing of the checksum table is fetched; who verifies later finds what is wrong."""
    place = place_of(one_object, "pixels")
    wrong = Wrong(place, float("inf"))
    row = (place - pixels_of(one_object)[0]) // LARGE[0].row_nbytes
    table = Wrong(place_of(one_object, "directory"), float("inf"))

    def both(key: str, start: int, data: bytearray) -> None:
        wrong(key, start, data)
        table(key, start, data)

    alter(monkeypatch, both)
    given = FIXED.loader(one_object, tmp_path / "cache", path, verify=False)
    for _ in range(2):
        rows = {
            int(number): batch["pixels"][i]
            for batch in given
            for i, number in enumerate(batch["row"])
        }
        right = make(range(ROWS), LARGE)["pixels"]
        differing = [n for n in range(ROWS) if (rows[n] != right[n]).any()]
        assert differing == [row]
        assert (rows[row] != right[row]).sum() == 1
    if path != "copied":  # whose cache file is fetched around the table
        assert table.seen == 0
    with pytest.raises(ChecksumError):
        FIXED.numbers_in(FIXED.loader(one_object, tmp_path / "cache", path))
    alter(monkeypatch, lambda key, start, data: None)
    assert FIXED.numbers_in(FIXED.loader(one_object, tmp_path / "cache", path)) == list(range(ROWS))


def test_verify_is_a_flag(one_object: DataConfig) -> None:
    makers: list[Any] = [DataLoader, Dataset]
    if find_spec("torch") is not None:
        from storage_loader import torch as for_torch

        makers += [for_torch.DataLoader, for_torch.Dataset]
    for made in makers:
        with pytest.raises(ConfigError, match=r"^verify 'no': True or False"):
            made(one_object, verify="no")
