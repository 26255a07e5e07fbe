"""What the tests share: an S3 server, fresh buckets on it, and hypothesis's profiles.

S3 is moto in this process, one server for each pytest-xdist worker. Where
STORAGE_LOADER_TEST_S3_ENDPOINT is set it is that server instead, with the _ACCESS_KEY, _SECRET_KEY
and _REGION beside it; tests/support/s3_server.py starts one and prints them.

A test that takes a fixture named s3_* carries the marker `s3` by itself. One that asks for it only
while running (`request.getfixturevalue`) has to be marked by hand.
"""

from __future__ import annotations

import functools
import gc
import os
import resource
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

from tests.support import threads
from tests.support.answers import Answers, answering
from tests.support.faulty import watch
from tests.support.s3 import S3Server, moto_server, new_bucket
from tests.support.spawned import JAX, LIBRARY, TENSORFLOW, TORCH, imported_once

collect_ignore_glob = [] if find_spec("torch") else ["torch/test_torch*.py"]

SETTINGS = [
    f"STORAGE_LOADER_TEST_S3_{name}" for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "REGION")
]

# The time of one example says nothing here: the first one may import torch or start a server, and
# the machine may be busy.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
# Other examples on every run: HYPOTHESIS_PROFILE=dev, for a change to what they test.
hypothesis.settings.register_profile("dev", **UNTIMED)
# The same examples on every run, so that a failure is the change's and can be repeated.
hypothesis.settings.register_profile("ci", **UNTIMED, derandomize=True, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")


def pytest_configure() -> None:
    missing = [name for name in SETTINGS if not os.environ.get(name)]
    if 0 < len(missing) < len(SETTINGS):
        raise pytest.UsageError(f"for a real S3 server set {', '.join(missing)} too")
    # As many open files as most systems allow; some tests' servers are other processes.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most), most))
    # A shell's background job ignores Ctrl-C, and so would all processes that the tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m s3` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name.startswith("s3_") for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.s3)


def pytest_collection_finish() -> None:
    """What was imported stays: else each collection of garbage would look at all of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_thread_goes_round() -> Iterator[None]:
    """No server of a test that is over takes time from those after it."""
    yield
    for thread in set(threading.enumerate()) - {threading.main_thread()}:
        with suppress(OSError):  # it has ended, or this is not Linux
            seconds = computed(thread)
            if seconds > 10:
                time.sleep(0.5)
                assert computed(thread) == seconds, f"{thread} computes while no test runs"


def computed(thread: threading.Thread) -> float:
    """Seconds of a core."""
    fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2]
    return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of this machine reaches a test, and no cache or data folder outlives it."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name == "STORAGE_LOADER_STORAGE":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home" / "keras"))


@pytest.fixture(autouse=True)
def threads_of_this_test() -> None:
    """Whatever an earlier test left behind is no thread of this one."""
    threads.forget_earlier()


@pytest.fixture
def speed_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check reads and writes for a tenth of a second, not for three, to tell the speed."""
    from storage_loader.checks.trial import Effort

    little = functools.partial(Effort, speed_seconds=0.1)
    monkeypatch.setattr("storage_loader.checks.examine.Effort", little)


@pytest.fixture
def library_once() -> Iterator[None]:
    """Processes that the test starts have imported the library, by tests/support/spawned.py."""
    with imported_once(*LIBRARY):
        yield


@pytest.fixture
def torch_once() -> Iterator[None]:
    """Processes that the test starts have imported torch."""
    with imported_once(*TORCH):
        yield


@pytest.fixture
def tensorflow_once() -> Iterator[None]:
    """Processes that the test starts have imported TensorFlow."""
    with imported_once(*TENSORFLOW):
        yield


@pytest.fixture
def jax_once() -> Iterator[None]:
    """Processes that the test starts have imported JAX."""
    with imported_once(*JAX):
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The server of this test run."""
    values = [os.environ.get(name, "") for name in SETTINGS]
    if values[0]:
        yield S3Server(*values, real=True)
    else:
        yield from moto_server()


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """The name of a new, empty bucket; it goes, with all that is in it, after the test."""
    with new_bucket(s3_server) as bucket:
        yield bucket


@pytest.fixture
def s3_storage(s3_server: S3Server, s3_bucket: str) -> dict[str, str]:
    """Keyword arguments that put a `DataConfig` into a new bucket, under a prefix with a space."""
    return {
        "storage": f"s3://{s3_bucket}/some prefix",
        "endpoint": s3_server.endpoint,
        "access_key": s3_server.access_key,
        "secret_key": s3_server.secret_key,
        "region": s3_server.region,
    }


@pytest.fixture
def folder(tmp_path: Path) -> dict[str, str]:
    """Keyword arguments that put a `DataConfig` into a new folder."""
    return {"storage": str(tmp_path / "store")}


@pytest.fixture
def memory() -> dict[str, str]:
    """Keyword arguments that put a `DataConfig` into this process's memory."""
    return {"storage": f"memory://{uuid.uuid4().hex}"}


@pytest.fixture(params=["folder", "network"])
def near_or_far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keyword arguments that put a `DataConfig` into a folder, or what looks like a network."""
    if request.param == "folder":
        return request.getfixturevalue("folder")
    watch(monkeypatch, local=False)
    return request.getfixturevalue("memory")


@pytest.fixture
def answers() -> Iterator[Answers]:
    """An S3 server that answers what it is told; another one for each test."""
    with answering() as server:
        yield server


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest) -> dict[str, str]:
    """Keyword arguments that put a `DataConfig` into each kind of storage in turn."""
    name = "s3_storage" if request.param == "s3" else request.param
    return request.getfixturevalue(name)
