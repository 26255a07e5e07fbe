"""Saving and loading while the network and the server do what they like: every row, exactly once.

STORAGE_LOADER_TEST_SCALE=17 makes more than a thousand faults of the default's sixty. Where
STORAGE_LOADER_TEST_RESULTS names a folder, chaos.md there tells what happened.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, delete, save
from storage_loader.errors import DatasetNotFoundError, SaverError, StoreConnectionError
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.s3 import S3Store
from tests.support.chaos import KINDS, ChaosProxy, chaos, table
from tests.support.rows import ROW, assert_rows, config, make, numbers_in
from tests.support.s3 import S3Server
from tests.support.scale import scaled
from tests.support.threads import running
from tests.support.waiting import until

pytestmark = pytest.mark.s3

SMALL = (Attribute("image", "uint8", (32, 32)), Attribute(ROW, "int64"))
LARGE = (Attribute("image", "uint8", (256, 256)), Attribute(ROW, "int64"))
RATE = 0.08
DEADLINE = 120.0  # seconds
SOON = 30.0  # seconds: on a machine that is busy otherwise too, and far from the deadline
CLIENTS = (DirectS3, MinioS3)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[ChaosProxy]:
    with chaos(s3_server.endpoint, seed=1) as proxy:
        yield proxy


@pytest.fixture
def storage(
    proxy: ChaosProxy, s3_storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    # Faults at the first request, and a slow machine, are no typo in the endpoint.
    monkeypatch.setattr("storage_loader.store.retried.FIRST_CONTACT", DEADLINE)
    return {**s3_storage, "endpoint": proxy.endpoint, "timeout": 10, "deadline": DEADLINE}


class Watch:
    """Counts rows, and the longest step: a step that hangs is one that never ends."""

    def __init__(self) -> None:
        self.saved = self.loaded = self.steps = self.retries = 0
        self.longest = 0.0

    def step(self, work: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        result = work()
        self.longest = max(self.longest, time.monotonic() - begun)
        self.steps += 1
        return result

    def load(self, the_config: DataConfig, attributes: Any, count: int, **how: Any) -> None:
        """An epoch of a new loader: each row once, whatever the order, all attributes of it."""
        loader = DataLoader(the_config, batch_size=32, **how)
        numbers = self.step(lambda: numbers_in(loader, attributes))
        assert sorted(numbers) == list(range(count))
        self.loaded += count
        self.retries += loader.stats.retries


def one_round(
    number: int, proxy: ChaosProxy, storage: dict[str, Any], watch: Watch, folder: Path
) -> None:
    """A dataset saved in commits, read in every way, and deleted."""
    small = config(storage, f"small-{number}", attributes=SMALL, max_object_size=2**16)
    large = config(storage, f"large-{number}", attributes=LARGE, max_object_size=2**22)

    def save_small() -> None:
        with DataSaver(small) as saver:
            for start in range(0, 300, 50):
                saver(make(range(start, start + 50), SMALL))
                if start in (50, 200):
                    saver.commit()

    watch.step(save_small)
    watch.step(lambda: save(small, make(range(300, 400), SMALL)))
    watch.step(lambda: save(large, make(range(100), LARGE)))
    watch.saved += 500
    for seed, how in enumerate(
        [
            {"shuffle": "global", "cache_dir": folder / "global"},
            {"shuffle": True, "cache_dir": folder / "windows"},
            {"shuffle": "global", "index": True},
            {"cache_dir": folder / "stored order"},
        ]
    ):
        for the_config, attributes, count in ((small, SMALL, 400), (large, LARGE, 100)):
            proxy.forget_flips()
            watch.load(the_config, attributes, count, seed=seed, **how)
    proxy.forget_flips()
    wanted = [(number * 37 + 11 * place) % 400 for place in range(40)]
    assert_rows(watch.step(lambda: Dataset(small)[wanted]), wanted, SMALL)
    watch.step(lambda: delete(small))
    watch.step(lambda: delete(large))


def test_every_row_under_faults(
    proxy: ChaosProxy,
    storage: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    s3_server: S3Server,
) -> None:
    proxy.rate = RATE
    storage = {**storage, "timeout": 1}  # what a stall costs
    watch, number = Watch(), 0
    while number < len(CLIENTS) or proxy.faults.total < scaled(60):
        client = CLIENTS[number % len(CLIENTS)]
        monkeypatch.setattr(S3Store, "_make", lambda self, client=client: client(self.place))
        one_round(number, proxy, storage, watch, tmp_path / str(number))
        number += 1
    proxy.rate = 0.0
    assert set(proxy.faults.done) == set(KINDS)
    assert watch.retries > 0
    facts = {
        "server": "a real one" if s3_server.real else "moto",
        "requests": proxy.faults.requests,
        "faults": proxy.faults.total,
        "rows saved": watch.saved,
        "rows loaded": f"{watch.loaded}, each epoch had each row once, compared bit by bit",
        "longest step": f"{watch.longest:.1f} s of {watch.steps} saves, epochs and deletions",
    }
    text = table(proxy.faults, facts)
    print(text)
    results = os.environ.get("STORAGE_LOADER_TEST_RESULTS")
    if results:
        title = (
            "# Faults between library and S3 server\n\nMade by tests/faults/test_chaos.py, which "
            "fails at a row that is wrong, lost or doubled, and at a step that hangs.\n\n"
        )
        (Path(results) / "chaos.md").write_text(title + text)


# Outages


def test_a_store_that_is_down_for_a_while(
    proxy: ChaosProxy, storage: dict[str, Any], tmp_path: Path
) -> None:
    """Saving and loading go on by themselves."""
    seconds = float(os.environ.get("STORAGE_LOADER_TEST_OUTAGE") or 2)
    the_config = config(storage, attributes=SMALL, max_object_size=2**16)

    def outage() -> float:
        proxy.down()
        begun = time.monotonic()
        timer = threading.Timer(seconds, proxy.up)
        timer.start()
        return begun

    with DataSaver(the_config) as saver:
        saver(make(range(100), SMALL))
        saver.commit()
        saver(make(range(100, 200), SMALL))
        begun = outage()
        saver(make(range(200, 1000), SMALL))
        saver.commit()
        assert seconds < time.monotonic() - begun < seconds + SOON
    for how in ({"cache_dir": tmp_path / "cache"}, {"index": True}):
        loader = DataLoader(the_config, batch_size=10, prefetch=2**17, **how)
        numbers, begun = [], 0.0
        for batch in loader:
            numbers += numbers_in([batch], SMALL)
            if len(numbers) == 100:
                begun = outage()
        assert sorted(numbers) == list(range(1000))
        assert seconds < time.monotonic() - begun < seconds + SOON
        assert loader.stats.retries > 0


def test_a_store_that_is_down_for_good(proxy: ChaosProxy, storage: dict[str, Any]) -> None:
    """A clear error within the deadline, from each wait; nothing of the save is visible."""
    deadline = 3.0
    the_config = config({**storage, "deadline": deadline}, attributes=SMALL, max_object_size=2**16)
    save(the_config, make(range(1000), SMALL))
    loader = DataLoader(the_config, batch_size=10, prefetch=2**17, index=True)
    iterator = iter(loader)
    next(iterator)
    saver = DataSaver(the_config)
    saver(make(range(1000, 1010), SMALL))
    proxy.down()
    begun = time.monotonic()
    with pytest.raises(StoreConnectionError) as caught:
        list(iterator)
    told = str(caught.value)
    assert f"at {proxy.endpoint}: " in told
    assert "/objects/" in told
    assert "; gave up after " in told
    assert isinstance(caught.value.__cause__, StoreConnectionError)
    assert time.monotonic() - begun < deadline + SOON
    begun = time.monotonic()
    with pytest.raises(SaverError, match=r"10 rows were not committed .* save them with"):
        saver.close()
    assert time.monotonic() - begun < deadline + SOON
    proxy.up()
    assert sorted(numbers_in(DataLoader(the_config), SMALL)) == list(range(1000))


def test_an_upload_that_failed_reaches_the_next_call(
    proxy: ChaosProxy, storage: dict[str, Any]
) -> None:
    the_config = config({**storage, "deadline": 1}, attributes=SMALL, max_object_size=2**16)
    for end in ("call", "commit", "close"):
        saver = DataSaver(the_config, num_worker_threads=1)
        saver(make(range(10), SMALL))
        proxy.down()
        saver(make(range(100), SMALL))  # more than an object
        with pytest.raises(SaverError, match=r"\d+ rows were not committed .*gave up after"):
            if end == "call":
                for _ in range(100):
                    saver(make(range(100), SMALL))
            elif end == "commit":
                saver.commit()
            else:
                saver.close()
        proxy.up()
        with contextlib.suppress(SaverError):
            saver.close()
        with pytest.raises(DatasetNotFoundError):
            Dataset(the_config).open()


def test_an_abort_does_not_wait_for_the_store(
    proxy: ChaosProxy, storage: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    the_config = config(storage, attributes=SMALL, max_object_size=2**16)
    saver = DataSaver(the_config, num_worker_threads=1)
    saver(make(range(200), SMALL))  # more than two objects
    until(lambda: saver._uploads.num_stored >= 2)
    proxy.down()
    begun = time.monotonic()
    saver.abort()
    assert time.monotonic() - begun < SOON
    assert re.search(r"\d objects of an aborted save remain: delete .* no connection", caplog.text)


@pytest.mark.parametrize("index", [True, False])
def test_leaving_a_loop_does_not_wait_for_the_store(
    proxy: ChaosProxy, storage: dict[str, Any], tmp_path: Path, index: bool
) -> None:
    the_config = config(storage, attributes=SMALL, max_object_size=2**16)
    save(the_config, make(range(1000), SMALL))
    loader = DataLoader(
        the_config, batch_size=10, prefetch=2**17, index=index, cache_dir=tmp_path / "cache"
    )
    iterator = iter(loader)
    for batch in iterator:
        if batch[ROW][0] == 0:
            proxy.down()
        late = time.monotonic() + 1
        while not loader.stats.retries and time.monotonic() < late:
            time.sleep(0.01)
        if loader.stats.retries:  # its threads wait for the next attempt
            break
    begun = time.monotonic()
    iterator.close()
    assert time.monotonic() - begun < SOON
    assert running("fetch") == []


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Raises KeyboardInterrupt, in a process started with `&` too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("what", ["loop", "saver", "dataset"])
def test_ctrl_c_does_not_wait_for_the_store(
    proxy: ChaosProxy, storage: dict[str, Any], what: str
) -> None:
    the_config = config(storage, attributes=SMALL, max_object_size=2**16)
    save(the_config, make(range(1000), SMALL))
    dataset = Dataset(the_config)
    dataset[0]
    saver = DataSaver(the_config)
    saver(make(range(10), SMALL))
    iterator = iter(DataLoader(the_config, batch_size=10, prefetch=2**17, index=True))
    next(iterator)
    proxy.down()
    timer = threading.Timer(
        1.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]
    )
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        if what == "loop":
            list(iterator)
        elif what == "saver":
            with saver:
                saver(make(range(1000), SMALL))
                saver.commit()
        else:
            dataset[::50]
    assert time.monotonic() - begun < SOON
    saver.abort()
    iterator.close()
