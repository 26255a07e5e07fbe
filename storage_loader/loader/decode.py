"""What a user's functions make of bytes, text and JSON while rows are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, TransformError
from ..keywords import brief, nearest, shown
from ..schema import DTYPES, Schema
from ..sync import Future
from ..threads import Threads
from .fill.parts import Array
from .order import Rows

Decode = Callable[[Any], Any]
Mask = npt.NDArray[np.bool_]
Each = Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]]
"""Calls a function with each number, perhaps in several threads; results are in order."""

_STACKED = frozenset(DTYPES.values())


def decode_of(decode: Mapping[str, Decode] | None) -> dict[str, Decode]:
    """By attribute, what is made of its rows; raises `ConfigError`, as all here do."""
    if decode is None:
        return {}
    if not isinstance(decode, Mapping):
        raise ConfigError(f"decode {shown(decode)}: a dict of attribute to function")
    for name, function in decode.items():
        if not callable(function):
            raise ConfigError(
                f"decode: for attribute {shown(name)} a function of one row's value, not "
                f"{shown(function)}"
            )
    return dict(decode)


def check_decode(decode: Mapping[str, Decode], read: Schema, stored: Schema) -> None:
    """Raise where an attribute is not there, not `read`, or no text."""
    for name in decode:
        if name not in stored.names:
            raise ConfigError(f"decode: no attribute {shown(name)}{nearest(name, read.names)}")
        if name not in read.names:
            raise ConfigError(
                f"decode: attribute {name!r} is not read; name it in attributes=, or leave it out "
                "here"
            )
        if not read[name].is_text:
            texts = [a.name for a in read if a.is_text]
            raise ConfigError(
                f"decode: rows of attribute {name!r} are {read[name].dtype} {read[name].shape}, "
                f"not bytes, text or JSON{nearest(name, texts)}"
            )


@dataclass(frozen=True)
class Decoder:
    """A user's function, and whose rows it gets."""

    function: Decode
    attribute: str
    dataset: str

    def one(self, value: Any, row: int) -> Any:
        """What it makes of a row; raises `TransformError`, which names the row."""
        try:
            return self.function(value)
        except Exception as error:
            raise TransformError(
                f"decode of attribute {self.attribute!r} failed on row {row} of dataset "
                f"{self.dataset!r}: {brief(error)}"
            ) from error

    def all(self, values: Sequence[Any], rows: Rows, each: Each = map) -> list[Any]:
        """What it makes of a batch; of padding, whose row is -1, nothing."""
        stored = np.flatnonzero(rows >= 0).tolist()
        return [*each(lambda i: self.one(values[i], int(rows[i])), stored)]


def stacked(made: Sequence[Any], is_stored: Mask) -> Array | list[Any]:
    """The field of a batch: one array where all are arrays or numbers of one shape and dtype.

    Else a list of them. `made`: of the rows that are stored, in order; where none is, of another
    row, as an example. Padding is zeros, or None in a list.
    """
    arrays = [as_array(value) for value in made]
    count = int(is_stored.sum())
    kinds = {None if a is None else (a.shape, a.dtype) for a in arrays}
    if len(kinds) != 1 or None in kinds:
        following = iter(made[:count])
        return [next(following) if stored else None for stored in is_stored.tolist()]
    every: Array = np.stack([a for a in arrays if a is not None])
    if count == len(is_stored):
        return every
    field = np.zeros((len(is_stored), *every.shape[1:]), every.dtype)
    field[is_stored] = every[:count]
    return field


def as_array(value: Any) -> Array | None:
    """An array of a dtype that we store, of numpy's array or a number; None of anything else."""
    if not isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        return None
    array = np.asarray(value)
    native = array.dtype.newbyteorder("=")
    return array.astype(native, copy=False) if native in _STACKED else None


class InThreads:
    """See `Each`: the numbers are shared out among threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads = Threads(most, "storage_loader-decode")

    def __call__(self, call: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
        parts = min(self._most, len(numbers))
        shares = [numbers[part::parts] for part in range(parts)]
        futures = [
            self._threads.submit(lambda share: [*map(call, share)], share) for share in shares
        ]
        return _dealt(futures, len(numbers))

    def close(self) -> None:
        """End the threads, each after what it does."""
        self._threads.end()


def _dealt(futures: Sequence[Future[list[Any]]], count: int) -> Iterator[Any]:
    """Results in the order of what was dealt out in turns."""
    results = [future.result() for future in futures]
    return (results[i % len(results)][i // len(results)] for i in range(count))
