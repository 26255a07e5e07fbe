"""A dataset at one version: which rows there are, and in which objects they lie."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import VersionNotFoundError
from ..process import cached_property
from ..schema import Schema
from .commits import Commit, CommitId
from .objects import StoredObjects
from .parse import refuse_repeated

_HASH = re.compile(r"[0-9a-f]{16}", re.ASCII)


@dataclass(frozen=True)
class Version:
    """An ordered list of commits: their ids, and a hash of what these hold.

    A dataset that is deleted and made again by writers of the same names has the same ids. The
    hash differs: the bytes of a commit hold its objects' checksums and keys, which are random.
    """

    commits: tuple[str, ...]
    hash: str = ""  # 16 hex digits; "": of whatever contents these commits are

    @classmethod
    def of(cls, commits: Mapping[CommitId, Commit]) -> Version:
        """The version made of these commits, which were read, in this order."""
        version = Versions(commits).of(tuple(commits))
        assert version is not None
        return version

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """The version that `text` wrote; None for what it cannot have written."""
        hash_, *commits = text.split(" ")
        return cls(tuple(commits), hash_) if _HASH.fullmatch(hash_) else None

    @property
    def text(self) -> str:
        """The hash and the ids, separated by spaces."""
        return " ".join((self.hash, *self.commits))

    def check(self, commits: Mapping[CommitId, Commit]) -> None:
        """Raise `VersionNotFoundError` where the commits of its ids have other contents."""
        if self.hash and self != Version.of(commits):
            raise VersionNotFoundError(
                f"the commits of version {self.hash} have other contents than this version had: "
                "the dataset was deleted and made again"
            )

    def __str__(self) -> str:
        return self.hash

    def __repr__(self) -> str:
        return f"Version({self.hash}, {len(self.commits)} commits)"


class Versions:
    """Versions of the same commits, one after another.

    What one begins with as the one before it is not hashed again: else the versions after each of
    10,000 commits would take minutes.
    """

    def __init__(self, commits: Mapping[CommitId, Commit]) -> None:
        self._commits = commits
        self._ids: list[CommitId] = []  # of the version before
        self._names: list[str] = []
        self._hashes = [hashlib.sha256()]  # of its first commits: none, one, two ...

    def of(self, ids: Sequence[CommitId]) -> Version | None:
        """The version made of these commits, in this order; None where one of them is gone."""
        found = self.hash_of(ids)
        return None if found is None else Version(tuple(self._names), found)

    def hash_of(self, ids: Sequence[CommitId]) -> str | None:
        """Its hash alone."""
        self._cut(ids)
        for commit_id in ids[len(self._ids) :]:
            commit = self._commits.get(commit_id)
            if commit is None:
                return None
            line = f"{commit_id} {commit.digest:016x}"
            extended = self._hashes[-1].copy()
            extended.update(f"\n{line}".encode() if self._ids else line.encode())
            self._ids.append(commit_id)
            self._names.append(str(commit_id))
            self._hashes.append(extended)
        return self._hashes[-1].hexdigest()[:16]

    def _cut(self, ids: Sequence[CommitId]) -> None:
        """Keep what the version before begins with as this one."""
        count = len(self._ids)
        if self._ids != list(ids[:count]):
            pairs = enumerate(zip(self._ids, ids, strict=False))
            count = next((place for place, (a, b) in pairs if a != b), min(count, len(ids)))
            del self._ids[count:], self._names[count:], self._hashes[count + 1 :]


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

    @cached_property
    def row_nbytes(self) -> int:
        """Bytes of a row; where rows have no fixed size, their mean as a power of two."""
        if not self.schema.is_variable:
            return self.schema.row_nbytes
        return 1 << max(0, round(math.log2(max(1, self._mean_nbytes))))

    @cached_property
    def _mean_nbytes(self) -> int:
        return int(self.objects.decoded.sum()) // max(1, self.num_rows)

    @property
    def values_nbytes(self) -> int | None:
        """Bytes of a row's values, without the ends: a mean where rows have no fixed size, and
        None where there is no row to take it of."""
        if not self.schema.is_variable:
            return self.schema.row_nbytes
        if not self.num_rows:
            return None
        ends = sum(a.row_nbytes for a in self.schema if a.is_variable)
        return round(int(self.objects.decoded.sum()) / self.num_rows) - ends

    def read_nbytes(self, schema: Schema) -> int:
        """Bytes of some attributes of a row, in the mean: at most, where others have no fixed
        size."""
        if not schema.is_variable:
            return schema.row_nbytes
        others = set(self.schema.names) - set(schema.names)
        fixed = (self.schema[name] for name in others)
        unread = sum(a.row_nbytes for a in fixed if not a.is_variable)
        return max(schema.row_nbytes, self._mean_nbytes - unread)

    def key(self, index: int) -> str:
        """The key of an object in the store."""
        return f"{self.prefix}/{self.objects.key(index)}"

    def keys(self) -> Iterator[str]:
        """Those of all objects."""
        return map(self.key, range(len(self.objects)))

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
