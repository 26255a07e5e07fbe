"""A dataset at one version: which rows there are, and in which objects they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..schema import Schema
from .commits import CommitId, StoredObject


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


@dataclass(frozen=True)
class Snapshot:
    """The objects of one version in row order. Immutable, picklable, knows no store."""

    prefix: str  # of the dataset in its storage
    schema: Schema
    version: Version
    objects: Sequence[StoredObject]

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each object, and the number of rows last: shape (objects + 1,)."""
        rows = np.fromiter((o.rows for o in self.objects), np.int64, len(self.objects))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(rows)])

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.starts[-1])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all objects."""
        return sum(o.nbytes for o in self.objects)

    def key(self, index: int) -> str:
        """The key of an object in the store."""
        return f"{self.prefix}/{self.objects[index].key}"
