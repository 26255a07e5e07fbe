"""Ctrl-C while rows are saved: `rows_committed` says what readers see; going on doubles none."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from storage_loader import DataConfig, DataSaver, Dataset, commit_log, save
from storage_loader.catalog import Catalog
from storage_loader.errors import DatasetNotFoundError, ObjectExistsError, SaverError
from storage_loader.store import Store, open_store
from tests.support import ROOT
from tests.support.faulty import Call, Injected, WatchedStore, watch
from tests.support.forked import OTHER_PROCESS, in_fork
from tests.support.rows import config, in_batches, make, stored

NAMES = pytest.mark.parametrize("name", [None, "part-0007"])
ROWS = 12
BATCH = 3


def save_all(saver: DataSaver, first: int) -> None:
    """Save the rows from `first` on, and commit every other batch."""
    for number, numbers in enumerate(in_batches(first, ROWS, BATCH)):
        saver(make(numbers))
        if number % 2:
            saver.commit()


def rows_seen(the_config: DataConfig) -> list[int]:
    try:
        return stored(the_config)
    except DatasetNotFoundError:
        return []


def go_on(the_config: DataConfig, saver: DataSaver, name: str | None) -> None:
    """As docs/faults.md says: what is committed is there, once, and the rest is saved anew."""
    if name is None:
        first = saver.rows_committed
        assert saver.rows_pending in range(ROWS + 1 - first)
        assert rows_seen(the_config) == list(range(first))
    else:
        with contextlib.suppress(SaverError):  # it was not open yet
            assert rows_seen(the_config) == list(range(saver.rows_committed))
    with DataSaver(the_config, writer=name) as other:
        if name is not None:
            first = other.rows_committed
            assert rows_seen(the_config) == list(range(first))
        save_all(other, first)
    assert stored(the_config) == list(range(ROWS))


def steps_of(name: str | None) -> int:
    """Calls of the store while all rows are saved."""
    with pytest.MonkeyPatch.context() as patch:
        stores = watch(patch)
        with DataSaver(
            config({"storage": f"memory://steps-of-{name}"}), writer=name, num_worker_threads=1
        ) as saver:
            save_all(saver, 0)
    return len(stores[0].calls)


STEPS = max(steps_of(None), steps_of("part-0007"))


class Interrupt:
    """A hook that raises `KeyboardInterrupt` in the main thread's call number `step`, from 0; with
    `again` in all later ones, too."""

    def __init__(self, step: int, *, again: bool = False) -> None:
        self._left = step
        self._again = again

    def __call__(self, call: Call) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._left -= 1
        if self._left == -1 or (self._again and self._left < 0):
            raise KeyboardInterrupt


def interrupted(
    the_config: DataConfig, monkeypatch: pytest.MonkeyPatch, name: str | None, **hooks: Any
) -> DataSaver:
    """A saver of all rows that was interrupted, or not, and ended."""
    with monkeypatch.context() as patch:
        stores = watch(patch, **hooks)
        saver = DataSaver(the_config, writer=name, num_worker_threads=1)
        with contextlib.suppress(KeyboardInterrupt), saver:
            save_all(saver, 0)
        for store in stores:
            store.before = store.after = lambda call: None
    with contextlib.suppress(KeyboardInterrupt):
        saver.abort()
    return saver


@NAMES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("step", range(STEPS))
def test_an_interrupt_at_any_call(
    memory: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    step: int,
    after: bool,
    again: bool,
) -> None:
    hook = Interrupt(step, again=again)
    saver = interrupted(config(memory), monkeypatch, name, **{"after" if after else "before": hook})
    go_on(config(memory), saver, name)


@NAMES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["put claim", "put commit", "list metadata", "put dataset"])
def test_an_interrupt_of_a_commit_in_any_storage(
    storage: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    after: bool,
    kind: str,
) -> None:
    def hook(call: Call) -> None:
        if call.kind == kind:
            raise KeyboardInterrupt

    saver = interrupted(
        config(storage), monkeypatch, name, **{"after" if after else "before": hook}
    )
    go_on(config(storage), saver, name)


class LateStore(WatchedStore):
    """Interrupts the put of a commit, whose request is then under way until `arrive`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.under_way: list[tuple[str, bytes]] = []
        self.is_late = False

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        if self.is_late and "/metadata/" in key:
            self.is_late = False
            self.under_way.append((key, bytes(data)))
            raise KeyboardInterrupt
        super().put(key, data, create=create)

    def arrive(self) -> bool:
        """Whether the request takes effect now."""
        [(key, data)] = self.under_way
        try:
            self.inner.put(key, data, create=True)
        except ObjectExistsError:
            return False
        return True


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[LateStore]:
    """`LateStore`s before all stores; the list fills with them."""
    opened: list[LateStore] = []

    def made(the_config: DataConfig) -> Store:
        opened.append(LateStore(open_store(the_config)))
        return opened[-1]

    monkeypatch.setattr("storage_loader.catalog.catalog.open_store", made)
    return opened


@NAMES
@pytest.mark.parametrize("arrival", ["before it is asked", "after", "after the end", "never"])
def test_a_request_that_arrives_late(
    memory: dict[str, str], late: list[LateStore], name: str | None, arrival: str
) -> None:
    the_config = config(memory)
    saver = DataSaver(the_config, writer=name)
    saver(make(range(3)))
    saver.commit()
    saver(make(range(3, 6)))
    late[0].is_late = True
    with pytest.raises(KeyboardInterrupt):
        saver.commit()
    assert "3 in commit 000000000002-" in repr(saver)
    if arrival == "before it is asked":
        assert late[0].arrive()
    if arrival != "after the end":
        assert saver.rows_committed == (6 if arrival == "before it is asked" else 3)
    if arrival == "after":
        assert not late[0].arrive()
    with pytest.raises(SaverError, match=r"rows were not committed .*: KeyboardInterrupt$"):
        saver.commit()  # it does not commit these rows again
    with pytest.raises(SaverError):
        saver(make(range(6, 9)))
    saver.abort()
    if arrival == "after the end":  # nothing becomes visible any more
        assert not late[0].arrive()
    go_on(the_config, saver, name)


@NAMES
def test_what_is_not_known_is_no_number(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Neither the answer to the commit came, nor one to the question what became of it."""
    the_config = config(memory)
    with monkeypatch.context() as patch:
        stores = watch(patch)
        saver = DataSaver(the_config, writer=name)
        saver(make(range(3)))
        saver.commit()
        saver(make(range(3, 6)))
        arrived: list[Call] = []

        def silent(call: Call) -> None:
            if call.kind == "put commit" and not arrived:
                arrived.append(call)
                return
            if arrived:
                raise Injected("no answer")

        stores[0].before = stores[0].after = silent
        with pytest.raises(SaverError, match="the commit may have arrived all the same"):
            saver.commit()
        commit = arrived[0].key.rsplit("/", 1)[-1].removesuffix(".json")
        message = (
            rf"^saving to dataset 'rows' failed, and whether its last commit, {commit}, was "
            r"published is not known: 3 rows were committed before, 3 rows may be; read "
            r"rows_committed once the store answers, or see whether `storage-loader log` lists "
            r"the commit, before you save them again: "
        )
        for _ in range(2):
            for ask in (lambda: saver.rows_committed, lambda: saver.rows_pending, saver.commit):
                with pytest.raises(SaverError, match=message):
                    ask()
        with pytest.raises(SaverError, match=message):
            saver.close()
        with pytest.raises(SaverError, match=message):
            _ = saver.rows_committed
        stores[0].before = stores[0].after = lambda call: None
        assert (saver.rows_committed, saver.rows_pending) == (6, 0)
        assert commit in [entry.id for entry in commit_log(the_config)]
    go_on(the_config, saver, name)


def test_an_interrupt_of_the_question_leaves_it_open(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(memory)
    stores = watch(monkeypatch)
    saver = DataSaver(the_config)
    saver(make(range(3)))

    def stop(call: Call) -> None:
        if call.kind.endswith(" commit"):
            raise KeyboardInterrupt

    stores[0].after = stop
    with pytest.raises(KeyboardInterrupt):
        saver.commit()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            _ = saver.rows_committed
    stores[0].after = lambda call: None
    assert saver.rows_committed == 3
    assert saver.rows_committed == 3
    asked = len(stores[0].calls)
    assert (saver.rows_committed, saver.rows_pending) == (3, 0)
    assert len(stores[0].calls) == asked  # what is known is not asked again
    saver.abort()
    assert stored(the_config) == [0, 1, 2]


@NAMES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_refresh_that_was_interrupted(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str | None, after: bool
) -> None:
    the_config = config(memory)
    save(the_config, make([90, 91]))

    def stop(call: Call) -> None:
        if call.kind == "put commit":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        stores = watch(patch, **{"after" if after else "before": stop})
        saver = DataSaver(the_config, writer=name, refresh=True)
        saver(make(range(3)))
        with pytest.raises(KeyboardInterrupt):
            saver.commit()
        stores[0].before = stores[0].after = lambda call: None
        saver.abort()
    assert saver.rows_committed == (3 if after else 0)
    assert stored(the_config) == ([0, 1, 2] if after else [90, 91])
    if name is not None:
        with DataSaver(the_config, writer=name, refresh=True) as saver:
            saver(make(range(saver.rows_committed, 5)))
        assert stored(the_config) == list(range(5))


def test_another_process_or_thread_decides_nothing(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks at the counts while a commit is under way does not bar it."""
    seen: list[object] = []

    def look(call: Call) -> None:
        if call.kind == "put commit":
            thread = threading.Thread(target=lambda: seen.append(saver.rows_committed))
            thread.start()
            thread.join()
            seen.append(saver.rows_committed)  # as the handler of a signal

    watch(monkeypatch, before=look)
    with DataSaver(config(memory)) as saver:
        saver(make(range(3)))
        saver.commit()
        saver(make(range(3, 5)))
    assert seen == [0, 0, 3, 3]
    assert stored(config(memory)) == [0, 1, 2, 3, 4]


def test_a_forked_process_decides_nothing(memory: dict[str, str], late: list[LateStore]) -> None:
    saver = DataSaver(config(memory))
    saver(make(range(3)))
    saver.open()
    late[0].is_late = True
    with pytest.raises(KeyboardInterrupt):
        saver.commit()
    assert in_fork(lambda: saver.rows_committed) == OTHER_PROCESS
    assert late[0].arrive()
    assert saver.rows_committed == 3
    assert in_fork(lambda: saver.rows_committed) == "3"
    saver.abort()
    assert stored(config(memory)) == [0, 1, 2]


@pytest.mark.parametrize("arrives", [False, True])
def test_a_folder_is_only_looked_at(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """Its puts end where they raise: no barrier is needed, and there may be no room for one."""
    the_config = config(folder)
    store = Catalog(the_config).store
    put = type(store).put

    def cut_short(self: Any, key: str, data: Any, *, create: bool = False) -> None:
        if arrives or "/metadata/" not in key:
            put(self, key, data, create=create)
        if "/metadata/" in key:
            raise KeyboardInterrupt

    monkeypatch.setattr(type(store), "put", cut_short)
    saver = DataSaver(the_config)
    saver(make([7]))
    with pytest.raises(KeyboardInterrupt):
        saver.commit()
    assert saver.rows_committed == int(arrives)
    saver.abort()
    assert [entry.num_rows for entry in commit_log(the_config)] == [1] * arrives
    assert stored(the_config) == [7] * arrives


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[float], threading.Timer]]:
    """Starts a timer that sends SIGINT to this process's main thread."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timers: list[threading.Timer] = []

    def after(seconds: float) -> threading.Timer:
        ident = threading.main_thread().ident
        timers.append(threading.Timer(seconds, signal.pthread_kill, [ident, signal.SIGINT]))
        timers[-1].start()
        return timers[-1]

    yield after
    for timer in timers:
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGINT, before)


# One that comes in a callback of Python's own set of threads is lost, and Python says so.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function WeakSet:pytest.PytestUnraisableExceptionWarning"
)
@NAMES
def test_ctrl_c_at_any_moment(
    storage: dict[str, str], ctrl_c: Callable[[float], threading.Timer], name: str | None
) -> None:
    chance = random.Random(7)
    for attempt in range(10):
        the_config = config(storage, f"rows-{attempt}")
        saver = DataSaver(the_config, writer=name).open()
        try:
            timer = ctrl_c(chance.uniform(0.001, 0.05))
            for number in range(1000):
                saver(make([number]))
                saver.commit()
                if number > 3 and not timer.is_alive():
                    break
            timer.join()
        except KeyboardInterrupt:
            pass
        saver.abort()
        committed = saver.rows_committed
        assert rows_seen(the_config) == list(range(committed))
        with DataSaver(the_config, writer=name) as other:
            other(make(range(committed, committed + 2)))
        assert stored(the_config) == list(range(committed + 2))
        assert len(Dataset(the_config)) == committed + 2


@NAMES
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("then", ["rows_committed", "commit", "close", "save"])
def test_a_second_interrupt_where_the_first_one_is_noted(
    memory: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    after: bool,
    then: str,
) -> None:
    the_config = config(memory)

    def interrupt(call: Call) -> None:
        if call.verb == "put" and "/metadata/" in call.key:
            raise KeyboardInterrupt

    def second(frame: Any, event: str, argument: object) -> None:
        if event == "call" and frame.f_code is DataSaver._fail.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        stores = watch(patch, **{"after" if after else "before": interrupt})
        saver = DataSaver(the_config, writer=name)
        saver(make(range(BATCH)))
        tracer = sys.gettrace()
        sys.settrace(second)
        try:
            with pytest.raises(KeyboardInterrupt):
                saver.commit()
        finally:
            sys.settrace(tracer)
    for store in stores:
        store.before = store.after = lambda call: None
    if then != "rows_committed":
        with pytest.raises(SaverError, match="KeyboardInterrupt"):
            {"commit": saver.commit, "close": saver.close, "save": lambda: saver(make([9]))}[then]()
    go_on(the_config, saver, name)
    saver.abort()


# A server that hangs


@pytest.mark.usefixtures("library_once")
def test_a_second_save_waits_for_a_server_that_died_since_the_first() -> None:
    """For longer than the 3 s that an endpoint gets which never answered."""
    with contextlib.ExitStack() as ends:

        def served(port: str) -> subprocess.Popen[str]:
            server = ends.enter_context(
                subprocess.Popen(
                    [sys.executable, HANGING, "serve", port], stdout=subprocess.PIPE, text=True
                )
            )
            ends.callback(server.kill)
            return server

        server = served("0")
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        place = {"storage": "s3://restarted", "endpoint": f"http://127.0.0.1:{port}"}
        keys = {"access_key": "any", "secret_key": "any", "region": "us-east-1"}
        the_config = config({**place, **keys}, deadline=100)
        save(the_config, make([1]))
        server.kill()
        server.wait()
        again = threading.Timer(5, served, [port])
        ends.callback(again.join)
        begun = time.monotonic()
        again.start()
        save(the_config, make([2]))
        assert time.monotonic() - begun > 5
        assert stored(the_config) == [2]  # the server had kept all in its memory


HANGING = ROOT / "tests" / "support" / "hanging.py"
WORKS = ["open", "list", "gc", "verify", "save", "commit", "load", "load by index", "rows"]


@pytest.fixture(scope="module")
def hanging() -> Iterator[tuple[int, str]]:
    """An S3 server of its own process, which can be stopped; its process and its port."""
    with subprocess.Popen(
        [sys.executable, HANGING, "serve", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        try:
            client = Minio(
                f"127.0.0.1:{port}", access_key="any", secret_key="any", region="us-east-1",
                secure=False,
            )  # fmt: skip
            client.make_bucket("hanging")
            subprocess.run([sys.executable, HANGING, "prepare", port, ""], check=True, timeout=100)
            yield server.pid, port
        finally:
            server.kill()


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("work", WORKS)
def test_ctrl_c_ends_the_process_while_a_server_hangs(
    hanging: tuple[int, str], tmp_path: Path, work: str
) -> None:
    """Within 2 s; here 6 are given, on a machine that is busy otherwise. A request takes 20."""
    server, port = hanging
    with subprocess.Popen(
        [sys.executable, HANGING, work, port, tmp_path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(server, signal.SIGSTOP)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate("\n", timeout=1.5)
            assert process.poll() is None  # it waits
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=6)
        finally:
            process.kill()
            os.kill(server, signal.SIGCONT)
    assert said.endswith("KeyboardInterrupt\n")
    assert process.returncode == -signal.SIGINT
