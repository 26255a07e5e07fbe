"""Rows of the soak: a row's values follow from its number, and its number from who saved it.

So whoever reads a version can tell, knowing nothing but its commits' ids, whether these are the
rows that its writers saved, all of them, in their places. Three kinds of writers:

- a job, which saves under its own name `part-<saver>-<number>`, commit after commit;
- an append, by a saver without a name, in one commit;
- a generation, which replaces the whole dataset, in one commit.

How many rows an append or a generation has, and whether it fails before its commit, is drawn from
its number.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from storage_loader import Attribute, DataLoader, Dataset

Numbers = npt.NDArray[np.int64]

ATTRIBUTES = (
    Attribute("values", "uint64", (1024,)),
    Attribute("number", "int64"),
    Attribute("mark", "float32", (2,)),
)
OBJECT_NBYTES = 2**20
OBJECT_ROWS = OBJECT_NBYTES // sum(a.row_nbytes for a in ATTRIBUTES)  # and never more

# First numbers lie so far apart that no two writers share one.
_OF_SAVER = 10**10
_OF_JOB = 10**5
_OF_DRAWN = 10**4
_MAX_DRAWN = 900
_FAILING = 0.2  # of the appends and generations

_ODD = np.uint64(0x9E3779B97F4A7C15)
_PLACES = np.arange(1024, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B8) + np.uint64(1)  # odd
_PRIME = 4093  # below 2**24: exact in float32
_JOB = re.compile(r"part-(\d+)-(\d{5})")


@dataclass(frozen=True)
class Job:
    """A part of the work, saved under its name by one saver after another until it is done."""

    saver: int
    number: int

    @classmethod
    def of(cls, writer: str) -> Job | None:
        """The job that saves under this name; None where it is no job's."""
        match = _JOB.fullmatch(writer)
        return cls(int(match[1]), int(match[2])) if match else None

    @property
    def writer(self) -> str:
        return f"part-{self.saver}-{self.number:05d}"

    @property
    def first(self) -> int:
        """The number of its first row."""
        return (self.saver + 1) * _OF_SAVER + self.number * _OF_JOB


@dataclass(frozen=True)
class Drawn:
    """An append or a generation."""

    kind: Literal["append", "generation"]
    number: int

    @classmethod
    def of(cls, kind: Literal["append", "generation"], first: int) -> Drawn:
        """The one that a row of this number would be the first of."""
        return cls(kind, first // _OF_DRAWN)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def numbers(self) -> range:
        first = self.number * _OF_DRAWN
        return range(first, first + random.Random(self.name).randint(1, _MAX_DRAWN))

    @property
    def fails(self) -> bool:
        """Never the first: there is a dataset from the beginning."""
        return self.number > 0 and random.Random(f"{self.name} fails").random() < _FAILING


def make(numbers: Iterable[int]) -> dict[str, np.ndarray]:
    """The rows of these numbers: every word of `values` differs by row and by place."""
    rows = np.fromiter(numbers, np.int64)
    keys = (rows.astype(np.uint64) + np.uint64(1)) * _ODD
    return {
        "values": keys[:, None] * _PLACES[None, :],
        "number": rows,
        "mark": np.stack([rows % _PRIME, rows // _PRIME % _PRIME], axis=1).astype(np.float32),
    }


def check_values(batch: Mapping[str, Any]) -> None:
    """Each row of the batch has the values of its number."""
    for name, expected in make(batch["number"]).items():
        if not np.array_equal(batch[name], expected):
            wrong = (batch[name] != expected).reshape(len(expected), -1).any(axis=1)
            raise AssertionError(f"{name}: wrong values in rows {batch['number'][wrong].tolist()}")


def writer_of(commit: str) -> str:
    """The writer in a commit's id, which is `<seq>-<writer>-<number>`."""
    return commit.split("-", 1)[1].rsplit("-", 1)[0]


def rows_of_commits(opened: DataLoader | Dataset) -> list[int]:
    """By commit of its version, the rows."""
    snapshot = opened.open()
    ends = snapshot.starts[np.cumsum(snapshot.counts, dtype=np.int64)]
    return np.diff(ends, prepend=0).tolist()


def held(commits: Sequence[str], counts: Sequence[int], numbers: Numbers) -> dict[str, int]:
    """By name of job or append, its rows in a version with these commits of so many rows.

    `numbers`: of all rows in their order. Raises `AssertionError` where they are not each writer's
    first rows, one after another, or are not an append's whole.
    """
    if sum(counts) != len(numbers):
        raise AssertionError(f"{len(numbers)} rows, the commits have {sum(counts)}")
    rows: Counter[str] = Counter()
    stop = 0
    for commit, count in zip(commits, counts, strict=True):
        start, stop = stop, stop + count
        if not count:  # it drops another
            continue
        here = numbers[start:stop]
        job = Job.of(writer_of(commit))
        if job is not None:
            name = job.writer
            expected = range(job.first + rows[name], job.first + rows[name] + count)
        else:
            append = Drawn.of("append", int(here[0]))
            name, expected = append.name, append.numbers
            if append.fails or name in rows:
                raise AssertionError(f"commit {commit}: {name} failed, or is there before")
        if not np.array_equal(here, np.array(expected)):
            raise AssertionError(
                f"commit {commit}: rows {here[0]} to {here[-1]}, {len(here)} of them; {name} has "
                f"{expected.start} to {expected.stop - 1} there"
            )
        rows[name] += count
    return dict(rows)


def generation_of(numbers: Numbers) -> int:
    """Which generation these rows are; `AssertionError` where they are not one, whole."""
    found = Drawn.of("generation", int(numbers[0])) if len(numbers) else None
    if found is None or found.fails or not np.array_equal(numbers, np.array(found.numbers)):
        raise AssertionError(
            f"{len(numbers)} rows are not one generation: {np.unique(numbers // _OF_DRAWN)}"
        )
    return found.number
