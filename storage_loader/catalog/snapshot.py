"""A dataset at one version: which rows there are, and in which objects they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..process import cached_property
from ..schema import Schema
from .commits import CommitId
from .objects import StoredObjects
from .parse import refuse_repeated


@dataclass(frozen=True)
class Version:
    """An ordered list of commit ids, and its hash."""

    commits: tuple[str, ...]

    @classmethod
    def of(cls, commits: Iterable[CommitId]) -> Version:
        """The version made of these commits."""
        return cls(tuple(str(commit) for commit in commits))

    @cached_property
    def hash(self) -> str:
        """16 hex digits."""
        return hashlib.sha256("\n".join(self.commits).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self.hash

    def __repr__(self) -> str:
        return f"Version({self.hash}, {len(self.commits)} commits)"


def rows_text(start: int, stop: int) -> str:
    """Rows `start` to `stop`, the first not meant, as people count: `rows 3 to 5`, or `row 3`."""
    return f"row {start}" if stop == start + 1 else f"rows {start} to {stop - 1}"


@dataclass(frozen=True)
class Snapshot:
    """The objects of one version in row order. Immutable, picklable, knows no store.

    Raises `FormatError` where an object stands twice, in one commit or in two.
    """

    prefix: str  # of the dataset in its storage
    schema: Schema
    version: Version
    objects: StoredObjects
    counts: tuple[int, ...]  # objects of each commit of the version

    def __post_init__(self) -> None:
        refuse_repeated(self.objects, self.prefix)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each object, and the number of rows last: shape (objects + 1,)."""
        # An object has fewer than 2**31: so many that the sum would wrap fit no memory.
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.objects.rows)])

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.starts[-1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all objects."""
        return sum(self.objects.nbytes.tolist())

    def key(self, index: int) -> str:
        """The key of an object in the store."""
        return f"{self.prefix}/{self.objects.key(index)}"

    def described(self, index: int, start: int = 0, stop: int | None = None) -> str:
        """What rows of an object are to people: `rows 3 to 5 of dataset <prefix>, commit <id>`.

        `start`, `stop` (first row not meant): rows of the object; all of them by default.
        """
        first = int(self.starts[index])
        last = int(self.starts[index + 1]) if stop is None else first + stop
        commit = int(np.searchsorted(np.cumsum(self.counts), index, "right"))
        return (
            f"{rows_text(first + start, last)} of dataset {self.prefix}, "
            f"commit {self.version.commits[commit]}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "starts"}  # 8 bytes an object
