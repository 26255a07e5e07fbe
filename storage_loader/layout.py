"""Where rows lie in an object: rows -> blocks -> byte ranges. Pure arithmetic.

An attribute's rows are contiguous in the object; row i begins at `offset + i * row_nbytes`.
They form blocks of about 64 KiB, the unit of checksum and of range reading. The checksums
of all blocks are one more contiguous array, attribute after attribute in schema order.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import FormatError
from .process import cached_property
from .ranges import Range
from .schema import Schema

BLOCK_NBYTES = 64 * 1024
CHECKSUM_NBYTES = 8
ALIGNMENT = 64
MAX_OBJECT_NBYTES = 5 * 2**30  # S3 takes no larger single PUT
MAX_ROWS = 2**31 - 1  # of an object; only reached by rows without bytes
MAX_BLOCKS = 2**18  # of an object: more than the largest one has, of 32 KiB at least
LEAST_BLOCK_NBYTES = 32 * 1024  # of a block in a column that has more than ...
MAX_SMALL_BLOCKS = 128  # ... so many: else the blocks of a small object take more memory than it
SMALL_COLUMN_SHARE = 64  # a column of at most 1/64 of its object is read whole with the checksums


def block_rows(row_nbytes: int) -> int:
    """Rows of one block: as many as fit 64 KiB, at least one."""
    return max(1, BLOCK_NBYTES // max(1, row_nbytes))


@dataclass(frozen=True)
class Column:
    """One attribute in one object: `rows` rows of `row_nbytes` bytes from byte `offset` on."""

    offset: int
    rows: int
    row_nbytes: int
    block_rows: int

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_nbytes

    @property
    def end(self) -> int:
        """First byte after the last row."""
        return self.offset + self.nbytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the column; 0 where rows have no bytes."""
        return -(-self.rows // self.block_rows) if self.row_nbytes else 0

    @property
    def block_nbytes(self) -> int:
        """Bytes of every block but the last, which may be shorter."""
        return min(self.block_rows, self.rows) * self.row_nbytes

    @property
    def has_small_blocks(self) -> bool:
        """Whether a block, unless the last, is smaller than any of a large column."""
        return self.block_rows * self.row_nbytes < LEAST_BLOCK_NBYTES

    def block_range(self, block: int) -> Range:
        """Bytes of one block in the object."""
        start = self.offset + block * self.block_nbytes
        return start, min(start + self.block_nbytes, self.end)


def _column_blocks(column: Column) -> npt.NDArray[np.int64]:
    starts = column.offset + np.arange(column.num_blocks) * column.block_nbytes
    return np.stack([starts, np.minimum(starts + column.block_nbytes, column.end)], axis=1)


@dataclass(frozen=True)
class ObjectLayout:
    """Where everything lies in an object of `rows` rows and `nbytes` bytes.

    Raises `FormatError` where a part would lie outside the object or on another part, or rows
    before the checksums, and for an object or a number of blocks larger than any: a reader takes
    memory for each block.
    """

    rows: int
    nbytes: int
    columns: Mapping[str, Column]  # in schema order
    checksums_offset: int

    def __post_init__(self) -> None:
        figures = (self.nbytes, self.rows, self.num_checksums)
        if any(map(operator.gt, figures, (MAX_OBJECT_NBYTES, MAX_ROWS, MAX_BLOCKS))):
            raise FormatError(
                "object layout: {} bytes, {} rows, {} blocks; ".format(*figures)
                + f"an object has at most {MAX_OBJECT_NBYTES}, {MAX_ROWS} and {MAX_BLOCKS}"
            )
        for name, column in self.columns.items():
            if column.has_small_blocks and column.num_blocks > MAX_SMALL_BLOCKS:
                raise FormatError(
                    f"object layout: {name!r} has {column.num_blocks} blocks of "
                    f"{column.block_nbytes} bytes; an object has at most {MAX_SMALL_BLOCKS} of an "
                    f"attribute that are below {LEAST_BLOCK_NBYTES} bytes"
                )
        parts = [(repr(name), c.offset, c.end) for name, c in self.columns.items() if c.nbytes]
        parts.sort(key=lambda part: part[1:])
        if self.num_checksums:  # before all rows: how many fit is known without the number of rows
            parts.insert(0, ("checksums", *self.checksums_range))
        place = 1  # byte 0 belongs to HDF5
        for name, start, end in parts:
            if start % ALIGNMENT or start < place or end > self.nbytes:
                raise FormatError(
                    f"object layout: {name} at bytes {start} to {end} of {self.nbytes} overlaps "
                    f"another part, lies outside or is not on a {ALIGNMENT}-byte boundary"
                )
            place = end

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        rows: int,
        nbytes: int,
        offsets: Mapping[str, int],
        blocks: Mapping[str, int],
        checksums_offset: int,
    ) -> ObjectLayout:
        """From the figures a commit records: by attribute, byte offsets and rows per block."""
        columns = {
            a.name: Column(offsets[a.name], rows, a.row_nbytes, blocks[a.name]) for a in schema
        }
        return cls(rows, nbytes, columns, checksums_offset)

    @cached_property
    def first_checksum(self) -> Mapping[str, int]:
        """By attribute, the place of its block 0 in the checksum table."""
        places, place = {}, 0
        for name, column in self.columns.items():
            places[name] = place
            place += column.num_blocks
        return places

    @cached_property
    def num_checksums(self) -> int:
        """Entries of the checksum table."""
        return sum(column.num_blocks for column in self.columns.values())

    @property
    def checksums_range(self) -> Range:
        """Bytes of the checksum table: `num_checksums` little-endian uint64."""
        start = self.checksums_offset
        return start, start + self.num_checksums * CHECKSUM_NBYTES

    @cached_property
    def block_ranges(self) -> npt.NDArray[np.int64]:
        """Bytes (start, end) of each block by its place in the checksum table: shape (n, 2)."""
        ranges = [_column_blocks(column) for column in self.columns.values() if column.num_blocks]
        return np.concatenate(ranges) if ranges else np.empty((0, 2), np.int64)

    def all_blocks(self, name: str) -> slice:
        """The places of an attribute's blocks in the checksum table."""
        first = self.first_checksum[name]
        return slice(first, first + self.columns[name].num_blocks)

    def blocks_of(self, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For rows of the object, the places of their blocks in the checksum table."""
        return rows // self.columns[name].block_rows + self.first_checksum[name]

    @cached_property
    def small(self) -> frozenset[str]:
        """Attributes read whole at first touch, beside the checksums.

        One request for an 8-byte id per row would halve the rate of reading rows.
        """
        limit = max(BLOCK_NBYTES, self.nbytes // SMALL_COLUMN_SHARE)
        return frozenset(n for n, column in self.columns.items() if column.nbytes <= limit)


def misfits(
    schema: Schema,
    rows: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    layout: npt.NDArray[np.int64],
    *,
    offsets: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    checksums_offsets: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Of n objects' rows, bytes and places in m layouts, those that are wrong: shape (n,).

    Each of them is one that `ObjectLayout` refuses; there is none only where it refuses none.
    `offsets`, `blocks`: shape (m, attributes). Rows, nbytes and blocks are from 1 up, offsets from
    0, whatever else they may be.
    Of each layout the object with the most rows is looked at: where that one's parts do not
    overlap, nobody's do. So the time is that of reading the figures, however many objects have
    however many attributes. Most commits hold one object, and then it is that of numpy's calls.
    """
    all_units = np.array([a.row_nbytes for a in schema])
    columns = all_units.nonzero()[0]
    wrong = (nbytes > MAX_OBJECT_NBYTES) | (rows > MAX_ROWS)
    if not len(columns):  # what has no bytes has no part
        return wrong
    counted = np.minimum(rows, MAX_ROWS)  # more is wrong already; no sum overflows
    most = np.zeros(len(offsets), np.int64)
    np.maximum.at(most, layout, counted)
    units, starts, block_rows = all_units[columns], offsets[:, columns], blocks[:, columns]
    num_blocks = -(-most[:, None] // block_rows)
    num_checksums = num_blocks.sum(axis=1)
    too_small = (num_blocks > MAX_SMALL_BLOCKS) & (block_rows < -(-LEAST_BLOCK_NBYTES // units))

    by_start = starts.argsort(axis=1)
    sorted_starts = starts[np.arange(len(starts))[:, None], by_start]
    sorted_units = units[by_start]
    room = (sorted_starts[:, 1:] - sorted_starts[:, :-1]) // sorted_units[:, :-1]
    misplaced = (starts % ALIGNMENT != 0) | (starts == 0)  # byte 0 belongs to HDF5
    is_wrong = (
        (num_checksums > MAX_BLOCKS)
        | (num_checksums > (sorted_starts[:, 0] - checksums_offsets) // CHECKSUM_NBYTES)
        | (checksums_offsets % ALIGNMENT != 0)
        | (checksums_offsets == 0)
        | (too_small | misplaced).any(axis=1)
        | (most[:, None] > room).any(axis=1)
    )
    wrong |= rows > (nbytes - sorted_starts[layout, -1]) // sorted_units[layout, -1]
    wrong |= is_wrong[layout] & (counted == most[layout])
    return wrong
