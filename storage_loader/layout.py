"""Where rows lie in an object: rows -> blocks -> byte ranges. Pure arithmetic.

A region's items are contiguous in the object; item i begins at `offset + i * item_nbytes`. They
form blocks of about 64 KiB, the unit of checksum and of range reading. The checksums of all blocks,
region after region in schema order, are one more contiguous array: the object's directory. Where
rows have no fixed size, each object's regions lie elsewhere, and its directory says where before.
The blocks of a region that is compressed lie apart from each other, and are as long as they became;
then the directory says of every block where it lies, too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .codecs import MAX_CODED_NBYTES, Codec
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
CODED_BLOCK_WORDS = 3  # of a directory for each block, where any is coded: checksum, start, bytes

Ranges = npt.NDArray[np.int64]
"""Bytes (start, end) of blocks: shape (n, 2)."""


def block_items(item_nbytes: int) -> int:
    """Items of one block: as many as fit 64 KiB, at least one."""
    return max(1, BLOCK_NBYTES // max(1, item_nbytes))


@dataclass(frozen=True)
class Column:
    """One region in one object: `items` items of `item_nbytes` bytes from byte `offset` on.

    With a `codec`, its blocks lie at `coded`, each of them coded by itself, and `offset` is where
    the first one begins. HDF5 knows no shorter block: values that no row has follow in the last.
    """

    offset: int
    items: int
    item_nbytes: int
    block_items: int
    codec: Codec | None = None
    coded: Ranges | None = field(default=None, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all items, decoded."""
        return self.items * self.item_nbytes

    @property
    def end(self) -> int:
        """First byte after the last item, where they are not coded."""
        return self.offset + self.nbytes

    @property
    def stored_nbytes(self) -> int:
        """Bytes of all blocks as they are stored."""
        return (
            self.nbytes if self.coded is None else int((self.coded[:, 1] - self.coded[:, 0]).sum())
        )

    @property
    def num_blocks(self) -> int:
        """Blocks of the column; 0 where items have no bytes."""
        return -(-self.items // self.block_items) if self.item_nbytes else 0

    @property
    def block_nbytes(self) -> int:
        """Bytes of every block, decoded, but the last, which may be shorter where none is coded."""
        return min(self.block_items, self.items) * self.item_nbytes

    @property
    def has_small_blocks(self) -> bool:
        """Whether a block, unless the last, is smaller than any of a large column."""
        return self.block_items * self.item_nbytes < LEAST_BLOCK_NBYTES

    def block_range(self, block: int) -> Range:
        """Bytes of one block in the object."""
        start, end = self.ranges[block].tolist()
        return start, end

    @property
    def ranges(self) -> Ranges:
        """Bytes of each block in the object."""
        if self.coded is not None:
            return self.coded
        starts = self.offset + np.arange(self.num_blocks) * self.block_nbytes
        ends = np.minimum(starts + self.block_nbytes, self.end)
        return np.stack([starts, ends], axis=1)


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
    is_coded: bool = False  # regions may be, and the directory says where each block lies

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
            most = min(MAX_CODED_NBYTES, max(BLOCK_NBYTES, column.item_nbytes))
            if column.codec is not None and column.block_nbytes > most:  # a reader decodes it whole
                raise FormatError(
                    f"object layout: {name!r} has coded blocks of {column.block_nbytes} bytes, the "
                    f"most are {most}"
                )
        self._check_places()

    def _check_places(self) -> None:
        """Raise `FormatError` where a part, or a coded block, lies where it cannot."""
        parts = [("directory", np.array([self.directory_range]))] if self.num_words else []
        for name, column in self.columns.items():
            if column.coded is not None:
                parts.append((f"a block of {name!r}", column.coded))
            elif column.nbytes:
                parts.append((repr(name), np.array([(column.offset, column.end)])))
        if not parts:
            return
        ranges = np.concatenate([some for _, some in parts])
        order = ranges[:, 0].argsort(kind="stable")
        if self.num_words:  # before all columns: how many rows fit is known without their number
            order = np.append(0, order[order > 0])
        starts, ends = ranges[order].T
        wrong = (starts % ALIGNMENT != 0) | (starts >= ends) | (ends > self.nbytes)
        wrong |= starts < np.append(1, ends[:-1])  # byte 0 belongs to HDF5
        if wrong.any():
            i = int(wrong.argmax())
            before = np.cumsum([len(some) for _, some in parts])
            name, _ = parts[int(np.searchsorted(before, order[i], "right"))]
            raise FormatError(
                f"object layout: {name} at bytes {starts[i]} to {ends[i]} of {self.nbytes} "
                f"overlaps another part, lies outside or is not on a {ALIGNMENT}-byte boundary"
            )

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
        codecs: Mapping[str, Codec] = {},
        coded: Mapping[str, Ranges] = {},
    ) -> ObjectLayout:
        """From figures by region: byte offsets, items per block, and how many values there are.

        `codecs` are of regions that are compressed, and `coded` says where their blocks lie.
        """
        columns = {}
        for r in schema.regions:
            items = values.get(r.name, rows)
            codec = codecs.get(r.name) if items * r.item_nbytes else None
            ranges = None if codec is None else coded[r.name]
            columns[r.name] = Column(
                offsets[r.name], items, r.item_nbytes, blocks[r.name], codec, ranges
            )
        return cls(
            rows,
            nbytes,
            columns,
            directory_offset,
            schema.is_variable or bool(codecs),
            bool(codecs),
        )

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
        """Entries of the directory: places, where they stand there, then those of blocks."""
        places = num_place_words(len(self.columns)) if self.has_places else 0
        return places + self.num_checksums * (CODED_BLOCK_WORDS if self.is_coded else 1)

    def checksums(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Those of all blocks, of what the directory holds."""
        first = num_place_words(len(self.columns)) if self.has_places else 0
        return words[first : first + self.num_checksums]

    @property
    def directory_range(self) -> Range:
        """Bytes of the directory: `num_words` little-endian uint64."""
        start = self.directory_offset
        return start, start + self.num_words * WORD_NBYTES

    def words(self, checksums: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """What the directory holds, for the checksums of all blocks."""
        if not self.has_places:
            return checksums
        figures = [0]
        for column in self.columns.values():
            figures += [column.offset, column.items, column.stored_nbytes]
        parts = [np.array(figures, np.uint64), checksums]
        if self.is_coded:
            starts, ends = self.block_ranges.T
            parts += [starts.astype(np.uint64), (ends - starts).astype(np.uint64)]
        return np.concatenate(parts)

    @cached_property
    def block_ranges(self) -> Ranges:
        """Bytes (start, end) of each block by its place among the checksums: shape (n, 2)."""
        ranges = [column.ranges for column in self.columns.values() if column.num_blocks]
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
    codecs: Mapping[str, Codec] = field(default_factory=dict)  # by region that has one

    @property
    def num_checksums(self) -> int:
        """Blocks of all columns."""
        start, end = self.directory_range
        words = (end - start) // WORD_NBYTES - num_place_words(len(self.blocks))
        return words // CODED_BLOCK_WORDS if self.codecs else words

    def layout(self, schema: Schema, directory: memoryview) -> ObjectLayout:
        """What the directory says; raises `FormatError` where that cannot be.

        Of an object without a checksum of its own, as a directory that was not verified, anything
        may be said: nothing here takes memory but for what the directory holds.
        """
        words = np.frombuffer(directory, "<u8")
        offsets, counts, nbytes = self._places(schema, words)
        coded = self._coded(schema, counts, words[num_place_words(len(schema.regions)) :])
        for region in schema.regions:
            name, stored = region.name, counts[region.name] * region.item_nbytes
            if stored and name in coded:
                starts, ends = coded[name].T
                stored = int((ends - starts).sum())
                if offsets[name] != starts[0]:
                    raise FormatError(
                        f"object directory: {name!r} begins at byte {offsets[name]}, its first "
                        f"block at {starts[0]}"
                    )
            if stored != nbytes[name]:
                raise FormatError(
                    f"object directory: {name!r} has {counts[name]} items in {nbytes[name]} bytes"
                )
        made = ObjectLayout.of(
            schema,
            rows=self.rows,
            nbytes=self.nbytes,
            offsets=offsets,
            blocks=self.blocks,
            directory_offset=self.directory_range[0],
            values=counts,
            codecs=self.codecs,
            coded=coded,
        )
        if made.num_words != len(words):
            raise FormatError(
                f"object directory: {len(words)} entries, the object needs {made.num_words}"
            )
        if made.is_coded and (made.words(made.checksums(words)) != words).any():
            raise FormatError("object directory: what it says of blocks is not what it says of all")
        return made

    def _places(
        self, schema: Schema, words: npt.NDArray[np.uint64]
    ) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Where each region begins, its items and its bytes, as the directory has them."""
        num_places = num_place_words(len(schema.regions))
        if len(words) < num_places:
            raise FormatError(f"object directory: {len(words)} entries are too few")
        if (words[1:num_places] > MAX_OBJECT_NBYTES).any():
            most = words[1:num_places].max()
            raise FormatError(f"object directory: {most} is larger than any object")
        requires, *figures = words[:num_places].tolist()
        if requires:
            raise FormatError(
                f"object directory: it needs what this version of storage_loader does not know "
                f"({requires:#x}): upgrade it"
            )
        names = [region.name for region in schema.regions]
        offsets, counts, nbytes = (dict(zip(names, figures[i::3], strict=True)) for i in range(3))
        for region in schema.regions:
            count = counts[region.name]
            if region.role != "values" and count != self.rows:
                raise FormatError(
                    f"object directory: {region.name!r} has {count} items in an object of "
                    f"{self.rows} rows"
                )
            if count * region.item_nbytes > MAX_OBJECT_NBYTES:
                raise FormatError(
                    f"object directory: {region.name!r} has {count} items; decoded they are more "
                    f"than {MAX_OBJECT_NBYTES} bytes"
                )
        return offsets, counts, nbytes

    def _coded(
        self, schema: Schema, counts: Mapping[str, int], words: npt.NDArray[np.uint64]
    ) -> dict[str, Ranges]:
        """Where the blocks of regions lie that have a codec, as the directory has it."""
        if not self.codecs:
            return {}
        if len(words) % CODED_BLOCK_WORDS or (words[len(words) // 3 :] > MAX_OBJECT_NBYTES).any():
            raise FormatError("object directory: blocks that lie outside of any object")
        _, starts, sizes = words.reshape(CODED_BLOCK_WORDS, -1).astype(np.int64)
        ranges: dict[str, Ranges] = {}
        place = 0
        for region in schema.regions:
            column = Column(0, counts[region.name], region.item_nbytes, self.blocks[region.name])
            stop = place + column.num_blocks
            some = np.stack([starts[place:stop], starts[place:stop] + sizes[place:stop]], axis=1)
            if len(some) < column.num_blocks:
                raise FormatError(f"object directory: {len(words)} entries of blocks are too few")
            if region.name in self.codecs:
                if (sizes[place:stop] > column.block_nbytes).any():
                    raise FormatError(
                        f"object directory: a block of {region.name!r} is larger than its items"
                    )
                ranges[region.name] = some
            place = stop
        return ranges


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
