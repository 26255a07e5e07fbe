"""Where rows lie in an object: rows -> blocks -> byte ranges. Pure arithmetic.

A region's items are contiguous in the object; item i begins at `offset + i * item_nbytes`. They
form blocks of about 64 KiB, the unit of checksum and of range reading. The checksums of all blocks,
region after region in schema order, are one more contiguous array: the object's directory. Where
rows have no fixed size, each object's regions lie elsewhere, and its directory says where before.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .errors import FormatError
from .process import cached_property
from .ranges import Range
from .schema import Schema

BLOCK_NBYTES = 64 * 1024
WORD_NBYTES = 8  # of an entry of a directory
ALIGNMENT = 64
MAX_OBJECT_NBYTES = 5 * 2**30  # S3 takes no larger single PUT
MAX_ROWS = 2**31 - 1  # of an object; only reached by rows without bytes
MAX_BLOCKS = 2**18  # of an object: more than the largest one has, of 32 KiB at least
LEAST_BLOCK_NBYTES = 32 * 1024  # of a block in a column that has more than ...
MAX_SMALL_BLOCKS = 128  # ... so many: else the blocks of a small object take more memory than it
SMALL_COLUMN_SHARE = 64  # a column of at most 1/64 of its object is read whole with the checksums


def block_items(item_nbytes: int) -> int:
    """Items of one block: as many as fit 64 KiB, at least one."""
    return max(1, BLOCK_NBYTES // max(1, item_nbytes))


@dataclass(frozen=True)
class Column:
    """One region in one object: `items` items of `item_nbytes` bytes from byte `offset` on."""

    offset: int
    items: int
    item_nbytes: int
    block_items: int

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self.items * self.item_nbytes

    @property
    def end(self) -> int:
        """First byte after the last item."""
        return self.offset + self.nbytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the column; 0 where items have no bytes."""
        return -(-self.items // self.block_items) if self.item_nbytes else 0

    @property
    def block_nbytes(self) -> int:
        """Bytes of every block but the last, which may be shorter."""
        return min(self.block_items, self.items) * self.item_nbytes

    @property
    def has_small_blocks(self) -> bool:
        """Whether a block, unless the last, is smaller than any of a large column."""
        return self.block_items * self.item_nbytes < LEAST_BLOCK_NBYTES

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

    Raises `FormatError` where a part would lie outside the object or on another part, or a column
    before the directory, and for an object or a number of blocks larger than any: a reader takes
    memory for each block.
    """

    rows: int
    nbytes: int
    columns: Mapping[str, Column]  # by region, in schema order
    directory_offset: int
    has_places: bool = False  # the directory says where the columns lie; else the commit does

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
        if self.num_words:  # before all columns: how many rows fit is known without their number
            parts.insert(0, ("directory", *self.directory_range))
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
        directory_offset: int,
        values: Mapping[str, int] = {},
    ) -> ObjectLayout:
        """From figures by region: byte offsets, items per block, and how many values there are."""
        columns = {
            r.name: Column(offsets[r.name], values.get(r.name, rows), r.item_nbytes, blocks[r.name])
            for r in schema.regions
        }
        return cls(rows, nbytes, columns, directory_offset, schema.is_variable)

    @cached_property
    def first_checksum(self) -> Mapping[str, int]:
        """By region, the place of its block 0 among the checksums."""
        places, place = {}, 0
        for name, column in self.columns.items():
            places[name] = place
            place += column.num_blocks
        return places

    @cached_property
    def num_checksums(self) -> int:
        """Blocks of all columns."""
        return sum(column.num_blocks for column in self.columns.values())

    @property
    def num_words(self) -> int:
        """Entries of the directory: places, where they stand there, then checksums."""
        places = num_place_words(len(self.columns)) if self.has_places else 0
        return places + self.num_checksums

    @property
    def directory_range(self) -> Range:
        """Bytes of the directory: `num_words` little-endian uint64."""
        start = self.directory_offset
        return start, start + self.num_words * WORD_NBYTES

    def words(self, checksums: Sequence[int]) -> list[int]:
        """What the directory holds, for the checksums of all blocks."""
        if not self.has_places:
            return [*checksums]
        places = [(c.offset, c.items, c.nbytes) for c in self.columns.values()]
        return [0, *(figure for place in places for figure in place), *checksums]

    @cached_property
    def block_ranges(self) -> npt.NDArray[np.int64]:
        """Bytes (start, end) of each block by its place among the checksums: shape (n, 2)."""
        ranges = [_column_blocks(column) for column in self.columns.values() if column.num_blocks]
        return np.concatenate(ranges) if ranges else np.empty((0, 2), np.int64)

    def all_blocks(self, name: str) -> slice:
        """The places of a region's blocks among the checksums."""
        first = self.first_checksum[name]
        return slice(first, first + self.columns[name].num_blocks)

    def blocks_of(self, name: str, items: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """For items of a region, the places of their blocks among the checksums."""
        return items // self.columns[name].block_items + self.first_checksum[name]

    @cached_property
    def small(self) -> frozenset[str]:
        """Regions read whole at first touch, beside the directory.

        One request for an 8-byte id per row would halve the rate of reading rows.
        """
        limit = max(BLOCK_NBYTES, self.nbytes // SMALL_COLUMN_SHARE)
        return frozenset(n for n, column in self.columns.items() if column.nbytes <= limit)


def num_place_words(regions: int) -> int:
    """Entries of a directory before the checksums, where it says where so many regions lie."""
    return 1 + 3 * regions


@dataclass(frozen=True)
class Outline:
    """What a commit says of an object whose own directory says where its regions lie."""

    rows: int
    nbytes: int
    directory_range: Range
    blocks: Mapping[str, int]  # by region, items per block

    @property
    def num_checksums(self) -> int:
        """Blocks of all columns."""
        start, end = self.directory_range
        return (end - start) // WORD_NBYTES - num_place_words(len(self.blocks))

    def layout(self, schema: Schema, directory: memoryview) -> ObjectLayout:
        """What the directory says; raises `FormatError` where that cannot be.

        Of an object without a checksum of its own, as a directory that was not verified, anything
        may be said: nothing here takes memory but for what the directory holds.
        """
        words = np.frombuffer(directory, "<u8")
        regions = schema.regions
        places = words[: num_place_words(len(regions))].tolist()
        if len(places) < num_place_words(len(regions)):
            raise FormatError(f"object directory: {len(words)} entries are too few")
        requires, *figures = places
        if requires:
            raise FormatError(
                f"object directory: it needs what this version of storage_loader does not know "
                f"({requires:#x}): upgrade it"
            )
        if max(figures) > MAX_OBJECT_NBYTES:
            raise FormatError(f"object directory: {max(figures)} is larger than any object")
        offsets, items, nbytes = figures[::3], figures[1::3], figures[2::3]
        for region, count, size in zip(regions, items, nbytes, strict=True):
            if size != count * region.item_nbytes or (
                region.role != "values" and count != self.rows
            ):
                raise FormatError(
                    f"object directory: {region.name!r} has {count} items in {size} bytes, in an "
                    f"object of {self.rows} rows"
                )
        names = [region.name for region in regions]
        made = ObjectLayout.of(
            schema,
            rows=self.rows,
            nbytes=self.nbytes,
            offsets=dict(zip(names, offsets, strict=True)),
            blocks=self.blocks,
            directory_offset=self.directory_range[0],
            values=dict(zip(names, items, strict=True)),
        )
        if made.num_words != len(words):
            raise FormatError(
                f"object directory: {len(words)} entries, the object needs {made.num_words}"
            )
        return made


def misfits(
    schema: Schema,
    rows: npt.NDArray[np.int64],
    nbytes: npt.NDArray[np.int64],
    layout: npt.NDArray[np.int64],
    *,
    offsets: npt.NDArray[np.int64],
    blocks: npt.NDArray[np.int64],
    directory_offsets: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Of n objects' rows, bytes and places in m layouts, those that are wrong: shape (n,).

    Rows are of fixed size here.

    Each of them is one that `ObjectLayout` refuses; there is none only where it refuses none.
    `offsets`, `blocks`: shape (m, regions). Rows, nbytes and blocks are from 1 up, offsets from
    0, whatever else they may be.
    Of each layout the object with the most rows is looked at: where that one's parts do not
    overlap, nobody's do. So the time is that of reading the figures, however many objects have
    however many attributes. Most commits hold one object, and then it is that of numpy's calls.
    """
    all_units = np.array([region.item_nbytes for region in schema.regions])
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
        | (num_checksums > (sorted_starts[:, 0] - directory_offsets) // WORD_NBYTES)
        | (directory_offsets % ALIGNMENT != 0)
        | (directory_offsets == 0)
        | (too_small | misplaced).any(axis=1)
        | (most[:, None] > room).any(axis=1)
    )
    wrong |= rows > (nbytes - sorted_starts[layout, -1]) // sorted_units[layout, -1]
    wrong |= is_wrong[layout] & (counted == most[layout])
    return wrong
