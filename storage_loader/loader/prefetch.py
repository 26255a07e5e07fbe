"""Work done ahead of use, in order, by a few threads."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def ahead(work: Callable[[K], V], items: Iterable[K], *, depth: int, threads: int) -> Iterator[V]:
    """`map(work, items)` with up to `depth` results begun before they are asked for.

    An error of `work` rises at its place in the order. Closing the iterator ends the threads.
    """
    pending: deque[Future[V]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="storage_loader-ahead") as pool:
        try:
            for item in items:
                pending.append(pool.submit(work, item))
                if len(pending) > depth:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


class Prefetcher(Generic[K, V]):
    """Values by key, made by `make` in `order` ahead of use; the last `keep` used are held.

    `depth` values are begun beyond those that were asked for. For one consumer thread; leave
    the `with` to end the threads.
    """

    def __init__(
        self, make: Callable[[K], V], order: Iterator[K], *, depth: int, threads: int, keep: int
    ) -> None:
        self._make = make
        self._order = order
        self._depth = depth
        self._keep = keep
        self._begun: dict[K, Future[V]] = {}
        self._held: OrderedDict[K, V] = OrderedDict()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="storage_loader-fetch")

    def __enter__(self) -> Prefetcher[K, V]:
        self._begin_more()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _begin_more(self) -> None:
        while len(self._begun) < self._depth:
            key = next(self._order, None)
            if key is None:
                return
            self._begun[key] = self._threads.submit(self._make, key)

    def __getitem__(self, key: K) -> V:
        """The value of a key; waits for it. Raises what `make` raised."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        begun = self._begun.pop(key, None)
        self._begin_more()
        value = self._make(key) if begun is None else begun.result()
        self._held[key] = value
        if len(self._held) > self._keep:
            self._held.popitem(last=False)
        return value
