"""Work done ahead of use, in order, by a few threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    work: Callable[[T], R], items: Iterable[T], *, depth: int, threads: int
) -> Generator[R, None, None]:
    """`map(work, items)` with up to `depth` results begun before they are asked for.

    An error of `work` rises at its place in the order. Closing the iterator waits for what is
    running and drops the rest.
    """
    pending: deque[Future[R]] = deque()
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
