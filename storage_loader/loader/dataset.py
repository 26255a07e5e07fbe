"""`Dataset`: random access to rows by their numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..catalog import Snapshot, Version
from ..config import DataConfig
from ..errors import ConfigError
from ..keywords import checked_keywords, nearest, shown, whole_repr
from ..ragged import Ragged
from .decode import Decode
from .fetch.engine import one_row
from .fill.ragged import length_name
from .order import Rows
from .settings import cache_size_of
from .view import Transform, View

_ITERATED_NBYTES = 4 * 2**20  # read at once when iterating row by row


class Dataset(View):
    """A dataset as a sequence of rows; reads only the blocks of the rows asked for.

    `ds[17]` is one row: a dict of arrays without a batch axis, of `bytes`, `str` and JSON
    values. `ds[10:20]`, `ds[[3, 1, 2]]` and `ds[mask]` are batches as `DataLoader`'s: of a slice,
    a list or array of row numbers, or a boolean array of one entry a row. Rows that differ in
    length are a `Ragged` there. Out of range is `IndexError`. Safe from many
    threads, after a fork, and picklable.
    """

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        *,
        attributes: Sequence[str] | None = None,
        transform: Transform | None = None,
        as_tuple: bool = False,
        version: Version | str | Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
        verify: bool = True,
        pad: Mapping[str, Any] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        """`attributes`: read only these, in this order. `transform` gets what `ds[i]` gives:
        one row or a batch. `as_tuple`: a tuple in attribute order instead of a dict.
        `version`: a `Version`, its hash or a list of commit ids instead of the newest.
        `cache_dir`, `cache_size`: as `DataLoader`'s, whose cache this shares.
        `verify=False`: rows are given without a look at their checksums. `pad`, `decode`: as
        `DataLoader`'s; one row is as long as its `Pad` says for it alone, and functions run in the
        thread that asks.
        """
        super().__init__(
            config,
            attributes=attributes,
            version=version,
            transform=transform,
            as_tuple=as_tuple,
            verify=verify,
            cache_dir=cache_dir,
            cache_size=cache_size_of(cache_size, index=False),
            pad=pad,
            decode=decode,
        )
        if self._draws:
            raise ConfigError(
                "transform takes a second argument: only the batches of a DataLoader have a random "
                "generator, made of seed and epoch; here, take one of your own"
            )

    _source: View | None = None  # whose version this reads

    def _reading_as(self, source: View) -> Dataset:
        """The dataset itself, from now on at the version that `source` reads."""
        self._source = source
        return self

    def _pin(self) -> Snapshot:
        return super()._pin() if self._source is None else self._source.open()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_source": None}

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, index: int | slice | Sequence[int] | Any) -> Any:
        number = _whole_number(index)
        if number is not None:
            number = _row_number(number, self.num_rows)
            return self._finish_row(self._engine.row(number), number)
        if isinstance(index, slice):
            self._engine.confirm(range(*index.indices(self.num_rows)))
        try:
            rows = _row_numbers(index, self.num_rows)
        except IndexError as error:
            raise IndexError(f"{error}{_meant(index, self.schema.names)}") from None
        return self._finish(self._engine.read(rows, self._fillers()), rows)

    def rows(self, index: Sequence[int]) -> list[Any]:
        """`[ds[i] for i in index]`, read at once."""
        numbers = _row_numbers(index, self.num_rows)
        arrays = self._engine.read(numbers)
        return [
            self._finish_row(one_row(arrays, i), number)
            for i, number in enumerate(numbers.tolist())
        ]

    def _finish_row(self, row: Mapping[str, Any], number: int) -> Any:
        """One row as the user gets it: padded for itself."""
        if not self._pad:
            return self._finish(row, (number,), is_row=True)
        fields: dict[str, Any] = {}
        for name, field in row.items():
            if name in self._pad:
                alone, pad = Ragged.of_lengths(field, [len(field)]), self._pad[name]
                fields[name] = pad.dense(alone, name)[0]
                fields[length_name(name)] = pad.kept(alone.lengths)[0, ...]
            else:
                fields[name] = field
        return self._finish(fields, (number,), is_row=True)

    def __iter__(self) -> Iterator[Any]:
        step = max(1, _ITERATED_NBYTES // max(1, self._row_nbytes))
        step = min(step, 4096)
        for start in range(0, self.num_rows, step):
            yield from self.rows(range(start, min(start + step, self.num_rows)))

    @whole_repr
    def __repr__(self) -> str:
        at = "" if self._snapshot is None else f", {self.num_rows} rows, {self.version}"
        return f"Dataset({self.config.dataset_name!r} in {self.config.storage}{at})"


def _meant(index: Any, known: Sequence[str]) -> str:
    """The end of an error message where names of attributes are given, as of a table's columns."""
    if isinstance(index, tuple) and any(isinstance(one, str) and one in known for one in index):
        name = next(one for one in index if isinstance(one, str) and one in known)
        return f"; an attribute of rows is dataset[rows][{shown(name)}]"
    names = [index] if isinstance(index, str) else index if isinstance(index, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        return ""
    unknown = [name for name in names if name not in known]
    if unknown:
        return f"; nor is {shown(unknown[0])} an attribute{nearest(unknown[0], known)}"
    return f"; to read only this, make a Dataset with attributes={shown(names)}"


def _whole_number(index: Any) -> int | None:
    """An integer of any kind, an array or tensor without axes too; None for anything else."""
    if isinstance(index, (int, np.integer)):
        return None if isinstance(index, bool) else int(index)
    if getattr(index, "ndim", None) != 0:  # of a list, a slice, an array with axes
        return None
    number = np.asarray(index)
    return int(number) if number.dtype.kind in "iu" else None


def _row_number(index: int, num_rows: int) -> int:
    """From 0 to num_rows - 1; counted from the end where `index` is negative."""
    if not -num_rows <= index < num_rows:
        raise IndexError(f"row {index} of a dataset of {num_rows} rows")
    return index + num_rows if index < 0 else index


def _row_numbers(index: Any, num_rows: int) -> Rows:
    """Row numbers from 0 to num_rows - 1 for an index of any kind."""
    if isinstance(index, slice):
        return np.arange(*index.indices(num_rows), dtype=np.int64)
    try:
        numbers = np.asarray(index)
    except ValueError:  # of lists that are not equally long
        numbers = np.array(0)
    if numbers.ndim != 1:
        raise IndexError(
            f"an index is a row number, a slice, or a list of them, not {shown(index)}"
        )
    if numbers.dtype == np.bool_:
        if len(numbers) != num_rows:
            raise IndexError(f"a mask of {len(numbers)} entries for {num_rows} rows")
        return np.flatnonzero(numbers)
    if not len(numbers):
        return np.empty(0, np.int64)
    if numbers.dtype == object and all(isinstance(number, int) for number in numbers):
        raise IndexError(f"row {max(numbers, key=abs)} of a dataset of {num_rows} rows")
    if numbers.dtype.kind not in "iu":
        listed = numbers.tolist() if isinstance(index, np.ndarray) else index
        wrongs = (shown(one) for one in listed if _whole_number(one) is None)
        raise IndexError(f"row numbers are integers, not {next(wrongs, numbers.dtype.name)}")
    wrong = (numbers < -num_rows) | (numbers >= num_rows)
    if wrong.any():
        raise IndexError(f"row {numbers[wrong][0]} of a dataset of {num_rows} rows")
    rows = numbers.astype(np.int64)
    return np.where(rows < 0, rows + num_rows, rows)
