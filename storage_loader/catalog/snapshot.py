"""A dataset at one version: which rows there are, and in which objects they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FormatError
from ..schema import Schema
from .commits import CommitId
from .objects import StoredObjects


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
    objects: StoredObjects

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each object, and the number of rows last: shape (objects + 1,)."""
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.objects.rows)])
        if starts.min() < 0:  # wrapped: each object alone has fewer than 2**63
            raise FormatError(f"{self.prefix}: its commits say that it has 2**63 rows or more")
        return starts

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

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "starts"}  # 8 bytes an object
