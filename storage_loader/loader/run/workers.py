"""Processes that run a user's transform, for transforms that hold the GIL.

A worker is given row numbers, gathers them as the parent would, applies the transform, and
hands the batch back in an anonymous memory file that is passed by its descriptor: it has no
name, so nothing is left of it when the processes are gone, however they end. Tasks go the same
way. A message is one byte with a descriptor: a process that dies has sent it or has not, and
none waits for the rest of one. Workers are spawned, never forked.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import tempfile
import threading
import traceback
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import reduction
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from ...errors import LoaderError, TransformError
from ...keywords import brief
from ...process import PerProcess

T = TypeVar("T")

_TASKS_EACH = 2  # one being made, one waiting: a worker never waits for the parent
_ALIGNMENT = 64
_LONGEST_LINE = 500  # characters of a worker's traceback
_MOST_LINES = 100  # of its beginning, and of its end


def plainly(value: Any) -> Any:
    """A reducer for what no framework has a say in."""
    return NotImplemented


@dataclass(frozen=True)
class Job:
    """What workers do: `make(task)`; picklable. `reduce` is a pickler's `reducer_override`."""

    make: Callable[[Any], Any]
    reduce: Callable[[Any], Any]


class Workers(Generic[T]):
    """`num_workers` processes. `map` gives results in the order of the tasks."""

    def __init__(self, job: Job, num_workers: int) -> None:
        """Raises `LoaderError` where the job cannot be sent to another process."""
        try:
            payload = reduction.ForkingPickler.dumps(job)
        except Exception as error:
            raise LoaderError(
                f"num_workers: decode or transform cannot be sent to worker processes ({error}); "
                "define the function at the top level of a module, or leave num_workers out"
            ) from error
        context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        for number in range(num_workers):
            ours, theirs = socket.socketpair()
            process = context.Process(
                target=_serve,
                args=(theirs, bytes(payload)),
                name=f"storage_loader-worker-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, _Exit(process.pid, process.sentinel)))

    def map(self, tasks: Iterable[T]) -> Iterator[tuple[T, Any]]:
        """Each task with its result, in order; a few tasks are begun ahead.

        Raises `TransformError` for an error in a worker, `LoaderError` where one died.
        """
        waiting: deque[tuple[T, int]] = deque()
        for number, task in enumerate(tasks):
            if len(waiting) == _TASKS_EACH * len(self._workers):
                yield self._receive(*waiting.popleft())
            worker = number % len(self._workers)
            self._send(worker, task)
            waiting.append((task, worker))
        while waiting:
            yield self._receive(*waiting.popleft())

    def _send(self, worker: int, task: T) -> None:
        try:
            _send_file(self._workers[worker].connection, _pack(task, plainly))
        except OSError as error:
            raise self._died(worker) from error

    def _receive(self, task: T, worker: int) -> tuple[T, Any]:
        connection, ended = self._workers[worker].connection, self._workers[worker].ended
        if connection not in multiprocessing.connection.wait([connection, ended.fileno()]):
            raise self._died(worker)
        try:
            descriptor = _receive_file(connection)
        except (EOFError, OSError) as error:
            raise self._died(worker) from error
        failure, result = _unpack(descriptor)
        if failure is not None:
            raise TransformError(*failure.split("\n"))  # with the worker's traceback
        return task, result

    def _died(self, worker: int) -> LoaderError:
        process = self._workers[worker].process
        process.join(timeout=5)
        return LoaderError(
            f"worker process {process.pid} ended with exit code {process.exitcode} before it "
            "handed its batch back; was it killed, or out of memory? A script that uses "
            "num_workers needs the guard `if __name__ == '__main__':`, since workers import it; "
            "what is read from standard input cannot be imported"
        )

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.ended.close()
        self._workers.clear()


class Pool:
    """A loader's workers that are idle, in each process its own. They end with it."""

    def __init__(self) -> None:
        self._idle: PerProcess[list[Workers[Any]]] = PerProcess()
        weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def workers(self, job: Job, num_workers: int) -> Iterator[Workers[Any]]:
        """Some that do the job, always the same one; kept for the next if all goes well."""
        idle = self._idle.get(list)
        workers = idle.pop() if idle else Workers[Any](job, num_workers)
        try:
            yield workers
        except BaseException:
            workers.close()
            raise
        idle.append(workers)

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()


def _close_all(pool: PerProcess[list[Workers[Any]]]) -> None:
    idle = pool.peek() or []
    while idle:
        idle.pop().close()


@dataclass(frozen=True)
class _Worker:
    process: SpawnProcess
    connection: socket.socket
    ended: _Exit


class _Exit:
    """Readable once a process has ended, whoever else holds its files.

    A sentinel is a pipe that a process forked by the transform keeps open.
    """

    def __init__(self, pid: int | None, sentinel: int) -> None:
        self._own: int | None = None
        self._sentinel = sentinel
        if hasattr(os, "pidfd_open") and pid is not None:
            with contextlib.suppress(OSError):  # an old kernel, or the process has gone
                self._own = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._sentinel if self._own is None else self._own

    def close(self) -> None:
        if self._own is not None:
            os.close(self._own)
            self._own = None


def _serve(connection: socket.socket, payload: bytes) -> None:
    """A worker's life: it ends when the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failure, job = _tried(partial(_loaded, payload))
    while True:
        try:
            task = _unpack(_receive_file(connection))
        except (EOFError, OSError):
            return
        text, descriptor = failure, None
        if failure is None:
            text, descriptor = _tried(partial(_make, job, task))
        if descriptor is None:
            descriptor = _pack((text, None), plainly)
        try:
            _send_file(connection, descriptor)
        except OSError:
            return


def _make(job: Job, task: Any) -> int:
    return _pack((None, job.make(task)), job.reduce)


def _tried(work: Callable[[], Any]) -> tuple[str | None, Any]:
    """What went wrong as text, and the result."""
    try:
        return None, work()
    except Exception as error:
        is_ours = isinstance(error, TransformError)
        text = str(error) if is_ours else f"in a worker: {brief(error)}"
        return f"{text}\n\n{_cut(traceback.format_exc())}", None


def _cut(text: str) -> str:
    """A traceback without most of what errors show that show all they were given."""
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()]
    left_out = len(lines) - 2 * _MOST_LINES
    if left_out > 0:
        lines[_MOST_LINES:-_MOST_LINES] = [f"... {left_out} lines ..."]
    return "\n".join(lines)


def _loaded(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:
        raise TransformError(
            f"num_workers: a worker process cannot load decode or transform ({error}); define the "
            "function in a module, since workers import neither a notebook nor `python -c`"
        ) from error


def _end_with_parent() -> None:
    """In a worker: a transform that never returns must not outlive a killed parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    ended = _Exit(parent.pid, parent.sentinel)
    if parent.pid == os.getppid():
        multiprocessing.connection.wait([ended.fileno()])
    os._exit(1)


def _send_file(connection: socket.socket, descriptor: int) -> None:
    """Hand over a file, and close it here. One byte, so that it arrives whole or not at all."""
    try:
        socket.send_fds(connection, [b"."], [descriptor])
    finally:
        os.close(descriptor)


def _receive_file(connection: socket.socket) -> int:
    """The descriptor of a file that was sent; `EOFError` where the other end is closed."""
    received, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if not received or len(descriptors) != 1:
        raise EOFError
    return descriptors[0]


class _Pickler(pickle.Pickler):
    """Keeps large buffers out of the pickle, and lets a framework say how its arrays go."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview], reduce: Callable[[Any], Any]):
        super().__init__(file, protocol=5, buffer_callback=lambda b: buffers.append(b.raw()))
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        return self._reduce(value)


def _pack(value: Any, reduce: Callable[[Any], Any]) -> int:
    """A value in a memory file, by its descriptor.

    A table of 64-bit numbers (how many parts, the size of each), the pickle, its buffers.
    """
    file = io.BytesIO()
    buffers: list[memoryview] = []
    _Pickler(file, buffers, reduce).dump(value)
    parts = [memoryview(b""), file.getbuffer(), *buffers]
    sizes = [part.nbytes for part in parts[1:]]
    parts[0] = memoryview(array("q", [len(sizes), *sizes]).tobytes())
    places = _places([part.nbytes for part in parts])
    descriptor = _anonymous_file()
    try:
        os.ftruncate(descriptor, places[-1])
        for place, part in zip(places, parts, strict=False):
            while part.nbytes:
                written = os.pwrite(descriptor, part, place)
                place, part = place + written, part[written:]  # noqa: PLW2901
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _unpack(descriptor: int) -> Any:
    """The value; its arrays lie in the mapped file, which lives as long as they do."""
    try:
        mapped = memoryview(mmap.mmap(descriptor, 0))
    finally:
        os.close(descriptor)
    [count] = mapped[:8].cast("q")
    table = mapped[: 8 * (1 + count)]
    sizes = [table.nbytes, *table.cast("q")[1:]]
    places = _places(sizes)
    parts = [mapped[place : place + size] for place, size in zip(places, sizes, strict=False)]
    return pickle.loads(parts[1], buffers=parts[2:])


def _places(sizes: list[int]) -> list[int]:
    """Where each part begins, and the end of the last."""
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    return places


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("storage_loader-batch")
    descriptor, path = tempfile.mkstemp(prefix="storage_loader-batch-")
    os.unlink(path)
    return descriptor
