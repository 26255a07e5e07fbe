"""Values that a forked child can use: made anew in each process, or without a lock."""

from __future__ import annotations

import logging  # noqa: F401  see below
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from typing_extensions import Self

T = TypeVar("T")

_importing = threading.RLock()
_fork = threading.local()  # `waited`: whether this one holds the lock
_PATIENCE = 10.0  # seconds; a fork that another library's locks keep from it goes on then


@contextmanager
def late_import() -> Iterator[None]:
    """Around an import that not everybody needs: no thread forks the process meanwhile.

    A child that is forked in the middle of an import has half of the module, for ever.
    """
    with _importing:
        yield


def _before_fork() -> None:
    _fork.waited = _importing.acquire(timeout=_PATIENCE)


def _after_fork() -> None:
    if _fork.waited:
        _importing.release()


# What is registered last is called first: after `logging`, whose lock many modules take when they
# are imported. Were it held already, a fork and an import would wait for each other.
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class PerProcess(Generic[T]):
    """A value made at first use and again after a fork. Thread-safe.

    Its maker may wait for other threads that make other ones. What makes it is not kept: an
    owner's own method would tie owner and value in a cycle, and files or processes would stay
    open until a garbage collection. Pickled or copied, it is one that nothing was made of yet.
    """

    def __init__(self) -> None:
        self._held: tuple[int, T] | None = None
        # By process: one that is held at the moment of a fork is never released there.
        self._making: dict[int, threading.RLock] = {}

    def get(self, make: Callable[[], T]) -> T:
        """The value of this process, made by `make` where there is none yet."""
        held = self._held
        if held is None or held[0] != os.getpid():
            with self._making.setdefault(os.getpid(), threading.RLock()):  # atomic
                held = self._held
                if held is None or held[0] != os.getpid():
                    held = self._held = (os.getpid(), make())
        return held[1]

    def peek(self) -> T | None:
        """The value of this process, or None where none was made."""
        held = self._held
        return held[1] if held is not None and held[0] == os.getpid() else None

    def __reduce__(self) -> tuple[type[PerProcess[T]], tuple[()]]:
        return type(self), ()


class cached_property(Generic[T]):  # as functools' own
    """A property computed once; threads that do so at the same time all get one of the values.

    That of functools has a lock in Python 3.10 and 3.11, one for all instances: a child that is
    forked while any thread computes a value would wait for that thread, which it does not have.
    """

    def __init__(self, func: Callable[[Any], T]) -> None:
        self.func = func
        self.__doc__ = func.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value: T = instance.__dict__.setdefault(self._name, self.func(instance))  # atomic
        return value
