"""A stand-in for `torch.cuda`: streams are threads that take their time, memory is recycled.

What the real one may do, this one does: copies begin late and are slow, memory of the device is
used again as soon as the rules allow, and what is not there yet is poison. So whoever reads too
early, or writes over what is still to be read, gets rows that are wrong.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
import torch

POISON = 0xEE


class Event:
    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "waiting for it would spin"
        self._reached = threading.Event()
        self._cuda = FakeCuda.current

    def record(self, stream: Stream) -> None:
        stream.work(self._reached.set)

    def query(self) -> bool:
        return self._reached.is_set()

    def synchronize(self) -> None:
        self._cuda.waiting.append(threading.get_ident())
        assert self._reached.wait(60), "the stream never came there"


class Stream:
    """Does its work in order in a thread, each piece after a delay."""

    def __init__(self, device: Any = None) -> None:
        self._cuda = FakeCuda.current
        self._cuda.streams.append(self)
        self._random = random.Random(len(self._cuda.streams))
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.delay = 0.0  # seconds, instead of the common one
        self.gate = threading.Event()
        self.gate.set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def work(self, piece: Callable[[], None]) -> None:
        self._works.put(piece)

    def wait_event(self, event: Event) -> None:
        self.work(lambda: event._reached.wait(60))

    def _run(self) -> None:
        while (piece := self._works.get()) is not None:
            assert self.gate.wait(60)
            time.sleep(self._random.random() * (self.delay or self._cuda.delay))
            try:
                piece()
            except BaseException as error:  # the test's own check: it rises in `close`
                self._cuda.failures.append(error)
            del piece

    def finish(self) -> None:
        done = threading.Event()
        self.work(done.set)
        assert done.wait(60)

    def close(self) -> None:
        self.gate.set()
        self._works.put(None)
        self._thread.join()


class Block:
    """Memory of the device. One freed is used again by the stream it was allocated for."""

    def __init__(self, nbytes: int) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8)
        self.used_by: list[Stream] = []


class FakeCuda:
    """Install with `patch`; `run` is a kernel of the consumer's stream."""

    current: FakeCuda

    def __init__(self, delay: float) -> None:
        FakeCuda.current = self
        self.delay = delay  # seconds that a piece of a stream's work waits at most
        self.streams: list[Stream] = []
        self.failures: list[BaseException] = []
        self.waiting: list[int] = []  # threads that waited for an event
        self.free: list[Block] = []
        self.blocks = 0  # ever made
        self.on_device = 0  # tensors there now
        self.pinned: dict[int, tuple[int, int]] = {}  # address and size of what is pinned now
        self._lock = threading.RLock()
        self._local = threading.local()
        self.default = Stream()

    def stream_of_thread(self, device: Any = None) -> Stream:
        return getattr(self._local, "stream", self.default)

    @contextlib.contextmanager
    def with_stream(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.stream_of_thread(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def run(self, kernel: Callable[[], None]) -> None:
        self.stream_of_thread().work(kernel)

    def new_pinned(self, nbytes: int, make: Callable[..., torch.Tensor]) -> torch.Tensor:
        tensor = make(nbytes, dtype=torch.uint8)
        self.pinned[id(tensor)] = (tensor.data_ptr(), nbytes)
        weakref.finalize(tensor, self.pinned.pop, id(tensor))
        return tensor

    def to_device(self, source: torch.Tensor) -> torch.Tensor:
        nbytes = source.numel() * source.element_size()
        address = source.data_ptr()
        assert not nbytes or any(
            start <= address and address + nbytes <= start + size
            for start, size in list(self.pinned.values())
        ), "a copy from memory that is not pinned waits for it"
        block = self._allocate(nbytes)
        memory = block.memory[:nbytes].view(source.dtype)
        copy = memory.as_strided(source.shape, source.stride())
        copy._block = block  # type: ignore[attr-defined]
        weakref.finalize(copy, self._drop, block)
        target = copy.detach()  # the work must not keep the consumer's tensor alive

        def move() -> None:
            block.memory.fill_(POISON)
            time.sleep(self.delay / 4)
            target.copy_(source)

        self.stream_of_thread().work(move)
        return copy

    def _allocate(self, nbytes: int) -> Block:
        with self._lock:
            self.on_device += 1
            for block in self.free:
                if block.memory.numel() == nbytes:
                    self.free.remove(block)
                    return block
            self.blocks += 1
        return Block(nbytes)

    def _drop(self, block: Block) -> None:
        """As torch's allocator: at once, or when the streams that use it come to here."""
        with self._lock:
            self.on_device -= 1
            users, block.used_by = block.used_by, []
        if users:
            users[0].work(lambda: self._release(block))
        else:
            self._release(block)

    def _release(self, block: Block) -> None:
        with self._lock:
            self.free.append(block)

    def close(self) -> None:
        for stream in self.streams:
            stream.close()
        if self.failures:
            raise self.failures[0]


def patch(monkeypatch: pytest.MonkeyPatch, delay: float) -> FakeCuda:
    fake = FakeCuda(delay)
    real_empty, real_to = torch.empty, torch.Tensor.to

    def empty(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return fake.new_pinned(*size, real_empty) if pin_memory else real_empty(*size, **how)

    def to(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
        if where and isinstance(where[0], torch.device) and where[0].type == "cuda":
            assert how == {"non_blocking": True, "copy": True}
            return fake.to_device(tensor)
        return real_to(tensor, *where, **how)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 1,
        "device": lambda device: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "stream": fake.with_stream,
        "current_stream": fake.stream_of_thread,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: tensor._block.used_by.append(stream)
    )
    return fake
