"""Processes that run a user's transform, for transforms that hold the GIL.

A worker is given row numbers, gathers them as the parent would, applies the transform, and
hands the batch back in an anonymous memory file that is passed by its descriptor: it has no
name, so nothing is left of it when the processes are gone, however they end. Workers are
spawned, never forked.
"""

from __future__ import annotations

import io
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Generic, TypeVar

from ..errors import LoaderError, TransformError

T = TypeVar("T")

_TASKS_EACH = 2  # one being made, one waiting: a worker never waits for the parent
_ALIGNMENT = 64


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
                f"num_workers: the transform cannot be sent to worker processes ({error}); define "
                "it at the top level of a module, or leave num_workers out"
            ) from error
        context = multiprocessing.get_context("spawn")
        self._workers = []
        for number in range(num_workers):
            ours, theirs = context.Pipe(duplex=True)
            process = context.Process(
                target=_serve,
                args=(theirs, bytes(payload)),
                name=f"storage_loader-worker-{number}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._workers.append((process, ours))

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
            self._workers[worker][1].send(task)
        except OSError as error:
            raise self._died(worker) from error

    def _receive(self, task: T, worker: int) -> tuple[T, Any]:
        process, connection = self._workers[worker]
        ready = multiprocessing.connection.wait([connection, process.sentinel])
        if connection not in ready:
            raise self._died(worker)
        try:
            failure, sizes = connection.recv()
            if failure is not None:
                raise TransformError(failure)
            descriptor = reduction.recv_handle(connection)
        except (EOFError, OSError) as error:
            raise self._died(worker) from error
        return task, _unpack(descriptor, sizes)

    def _died(self, worker: int) -> LoaderError:
        process, _ = self._workers[worker]
        process.join(timeout=5)
        return LoaderError(
            f"worker process {process.pid} ended with exit code {process.exitcode} before it "
            "handed its batch back; was it killed, or out of memory? A script that uses "
            "num_workers needs the guard `if __name__ == '__main__':`, since workers import it"
        )

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process, connection in self._workers:
            connection.close()
            process.terminate()
        for process, _ in self._workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers.clear()


def _serve(connection: multiprocessing.connection.Connection[Any, Any], payload: bytes) -> None:
    """A worker's life: it ends when the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which then closes
    job: Job = pickle.loads(payload)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            descriptor, sizes = _pack(job.make(task), job.reduce)
        except Exception as error:
            text = str(error) if isinstance(error, TransformError) else f"in a worker: {error!r}"
            connection.send((f"{text}\n\n{traceback.format_exc()}", None))
            continue
        try:
            connection.send((None, sizes))
            reduction.send_handle(connection, descriptor, os.getppid())
        finally:
            os.close(descriptor)


class _Pickler(pickle.Pickler):
    """Keeps large buffers out of the pickle, and lets a framework say how its arrays go."""

    def __init__(self, file: io.BytesIO, buffers: list[memoryview], reduce: Callable[[Any], Any]):
        super().__init__(file, protocol=5, buffer_callback=lambda b: buffers.append(b.raw()))
        self._reduce = reduce

    def reducer_override(self, value: Any) -> Any:
        return self._reduce(value)


def _pack(value: Any, reduce: Callable[[Any], Any]) -> tuple[int, list[int]]:
    """A value in a memory file: its descriptor, and the sizes of pickle and buffers."""
    file = io.BytesIO()
    buffers: list[memoryview] = []
    _Pickler(file, buffers, reduce).dump(value)
    parts = [file.getbuffer(), *buffers]
    sizes = [part.nbytes for part in parts]
    descriptor = _anonymous_file()
    try:
        os.ftruncate(descriptor, max(1, _places(sizes)[-1]))
        for place, part in zip(_places(sizes), parts, strict=False):
            while part.nbytes:
                written = os.pwrite(descriptor, part, place)
                place, part = place + written, part[written:]  # noqa: PLW2901
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, sizes


def _unpack(descriptor: int, sizes: list[int]) -> Any:
    """The value; its arrays lie in the mapped file, which lives as long as they do."""
    try:
        mapped = memoryview(mmap.mmap(descriptor, max(1, _places(sizes)[-1])))
    finally:
        os.close(descriptor)
    parts = [
        mapped[place : place + size] for place, size in zip(_places(sizes), sizes, strict=False)
    ]
    return pickle.loads(parts[0], buffers=parts[1:])


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
