"""The objects of a snapshot as arrays: whole and mapped, or only the blocks of some rows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..catalog import Snapshot
from ..errors import ChecksumError, FormatError
from ..layout import Column
from ..ranges import Range, coalesce
from ..schema import Attribute, Schema
from ..store import Store, xxh3
from .gather import Array, ObjectRows, allocate, by_object, copy_rows
from .order import Rows

_HEADS_NBYTES = 64 * 2**20  # kept small columns and checksum tables
_GAP = 4096  # bytes between two ranges that are not worth another request


@dataclass(frozen=True)
class _Head:
    """What is read whole at the first touch of an object."""

    checksums: npt.NDArray[np.uint64]
    small: Mapping[str, Array]

    @property
    def nbytes(self) -> int:
        return self.checksums.nbytes + sum(column.nbytes for column in self.small.values())


class Source:
    """Reads the attributes of `schema` from a snapshot's objects. Safe from many threads."""

    def __init__(self, store: Store, snapshot: Snapshot, schema: Schema) -> None:
        self._store = store
        self._snapshot = snapshot
        self._schema = schema
        self._heads: OrderedDict[int, _Head] = OrderedDict()
        self._heads_nbytes = 0
        self._lock = threading.Lock()

    def columns(self, index: int) -> Mapping[str, Array]:
        """An object's attributes, shape (rows, *shape), read-only; verified as a whole."""
        stored = self._snapshot.objects[index]
        key = self._snapshot.key(index)
        data = self._store.get(key, checksum=stored.checksum)
        if data.nbytes != stored.nbytes:
            raise FormatError(
                f"{self._place(index)} has {data.nbytes} bytes, its commit says {stored.nbytes}"
            )
        return {a.name: _view(data, a, stored.layout.columns[a.name]) for a in self._schema}

    def read(self, rows: Rows) -> dict[str, Array]:
        """Rows of the dataset, shape (len(rows), *shape): only their blocks, each verified.

        Small columns and checksums are read whole at an object's first touch and kept.
        """
        out = allocate(self._schema, len(rows))
        groups = list(by_object(self._snapshot.starts, rows))
        reads = [_ObjectRead(self, group) for group in groups]
        buffers = self._store.get_many([(read.key, read.requests) for read in reads])
        for read, received in zip(reads, buffers, strict=True):
            read.finish(received, out)
        return out

    def _place(self, index: int) -> str:
        return f"{self._store.url}/{self._snapshot.key(index)}"

    def _head(self, index: int) -> _Head | None:
        with self._lock:
            head = self._heads.get(index)
            if head is not None:
                self._heads.move_to_end(index)
            return head

    def _keep_head(self, index: int, head: _Head) -> None:
        with self._lock:
            if index in self._heads:
                return
            self._heads[index] = head
            self._heads_nbytes += head.nbytes
            while self._heads_nbytes > _HEADS_NBYTES and len(self._heads) > 1:
                _, dropped = self._heads.popitem(last=False)
                self._heads_nbytes -= dropped.nbytes


class _ObjectRead:
    """Planned on construction: which ranges of one object a batch needs."""

    def __init__(self, source: Source, group: ObjectRows) -> None:
        self._source = source
        self._group = group
        self._stored = source._snapshot.objects[group.index]
        self.key = source._snapshot.key(group.index)
        layout = self._stored.layout
        self._head = source._head(group.index)
        self._ranges: list[Range] = []
        self._places: dict[tuple[str, int], int] = {}  # (attribute, block) -> its range
        self._blocks: dict[str, Rows] = {}
        if self._head is None:
            self._ranges.append(layout.checksums_range)
        for a in source._schema:
            column = layout.columns[a.name]
            if a.name not in layout.small:
                wanted = np.unique(group.rows // column.block_rows)
            elif self._head is None:
                wanted = np.arange(column.num_blocks)
            else:
                continue
            self._blocks[a.name] = wanted
            for block in wanted.tolist():
                self._places[a.name, block] = len(self._ranges)
                self._ranges.append(column.block_range(block))
        self._coalesced = coalesce(self._ranges, gap=_GAP)
        self.requests: Sequence[Range] = self._coalesced.requests

    def finish(self, buffers: Sequence[memoryview], out: Mapping[str, Array]) -> None:
        """Verify what was received and copy its rows into the batch."""
        parts = [
            buffers[request][offset : offset + end - start]
            for (request, offset), (start, end) in zip(
                self._coalesced.sources, self._ranges, strict=True
            )
        ]
        layout, group, source = self._stored.layout, self._group, self._source
        head = self._head or self._make_head(parts)
        for a in source._schema:
            if a.name in layout.small:
                copy_rows(out[a.name], group.positions, head.small[a.name], group.rows)
                continue
            column = layout.columns[a.name]
            for block, positions, rows in self._rows_by_block(column, self._blocks[a.name]):
                data = parts[self._places[a.name, block]]
                self._verify(a.name, block, data, head.checksums)
                values = np.frombuffer(data, a.numpy_dtype).reshape(-1, *a.shape)
                copy_rows(out[a.name], positions, values, rows)

    def _rows_by_block(self, column: Column, blocks: Rows) -> list[tuple[int, Rows, Rows]]:
        """For each block: its number, positions in the batch, and rows within the block."""
        group = self._group
        of_row = group.rows // column.block_rows
        order = np.argsort(of_row, kind="stable")
        cuts = np.searchsorted(of_row[order], blocks[1:])
        return [
            (block, group.positions[members], group.rows[members] - block * column.block_rows)
            for block, members in zip(blocks.tolist(), np.split(order, cuts), strict=True)
        ]

    def _make_head(self, parts: Sequence[memoryview]) -> _Head:
        table = parts[0]
        layout = self._stored.layout
        if xxh3(table) != self._stored.blocks_checksum:
            raise ChecksumError(
                f"{self._source._place(self._group.index)}: the checksum table differs from its "
                "own checksum in the commit; the object was altered or damaged"
            )
        checksums = np.frombuffer(bytes(table), "<u8")
        small = {}
        for a in self._source._schema:
            column = layout.columns[a.name]
            if a.name not in layout.small:
                continue
            blocks = range(column.num_blocks)
            pieces = [parts[self._places[a.name, block]] for block in blocks]
            for block, piece in zip(blocks, pieces, strict=True):
                self._verify(a.name, block, piece, checksums)
            values = np.frombuffer(b"".join(pieces), a.numpy_dtype)
            small[a.name] = values.reshape(column.rows, *a.shape)
        head = _Head(checksums, small)
        self._source._keep_head(self._group.index, head)
        return head

    def _verify(
        self, name: str, block: int, data: memoryview, checksums: npt.NDArray[np.uint64]
    ) -> None:
        layout = self._stored.layout
        if xxh3(data) != int(checksums[layout.first_checksum[name] + block]):
            first = block * layout.columns[name].block_rows
            raise ChecksumError(
                f"{self._source._place(self._group.index)}: attribute {name!r}, the block of rows "
                f"from {first} of this object differs from its checksum; the object was altered "
                "or damaged after it was saved"
            )


def _view(data: memoryview, attribute: Attribute, column: Column) -> Array:
    values = np.frombuffer(data[column.offset : column.end], attribute.numpy_dtype)
    return values.reshape(column.rows, *attribute.shape)
