"""Rows read straight from the store: only their blocks, many requests in flight, nothing kept
but each object's small columns and checksums."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..catalog import Snapshot
from ..layout import Column
from ..ranges import Range, coalesce
from ..schema import Schema
from ..store import Store
from .blocks import Checksums
from .gather import Array, ObjectRows, allocate, by_object, copy_rows
from .order import Rows

_HEADS_NBYTES = 64 * 2**20  # kept small columns and checksum tables
_GAP = 4096  # bytes between two ranges that are not worth another request


@dataclass(frozen=True)
class _Head:
    """What is read whole at the first touch of an object."""

    checksums: Checksums
    small: Mapping[str, Array]
    nbytes: int


class RemoteReader:
    """Reads the attributes of `schema` from a snapshot's objects. Safe from many threads."""

    def __init__(self, store: Store, snapshot: Snapshot, schema: Schema) -> None:
        self.store = store
        self.snapshot = snapshot
        self.schema = schema
        self._heads: OrderedDict[int, _Head] = OrderedDict()
        self._heads_nbytes = 0
        self._lock = threading.Lock()

    def read(self, rows: Rows) -> dict[str, Array]:
        """Rows of the dataset, shape (len(rows), *shape), verified; a row of -1 is zeros."""
        out = allocate(self.schema, rows)
        reads = [_ObjectRead(self, group) for group in by_object(self.snapshot.starts, rows)]
        buffers = self.store.get_many([(read.key, read.requests) for read in reads])
        for read, received in zip(reads, buffers, strict=True):
            read.finish(received, out)
        return out

    def head(self, index: int) -> _Head | None:
        """What is kept of an object."""
        with self._lock:
            head = self._heads.get(index)
            if head is not None:
                self._heads.move_to_end(index)
            return head

    def keep_head(self, index: int, head: _Head) -> None:
        """Keep it, and drop what was not used for longest beyond the limit."""
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

    def __init__(self, reader: RemoteReader, group: ObjectRows) -> None:
        self._reader = reader
        self._group = group
        self._stored = reader.snapshot.objects[group.index]
        self.key = reader.snapshot.key(group.index)
        layout = self._stored.layout
        self._head = reader.head(group.index)
        self._ranges: list[Range] = []
        self._places: dict[int, int] = {}  # block, by its place in the table -> its range
        self._blocks: dict[str, Rows] = {}
        if self._head is None:
            self._ranges.append(layout.checksums_range)
        for a in reader.schema:
            column = layout.columns[a.name]
            first = layout.first_checksum[a.name]
            if a.name not in layout.small:
                wanted = np.unique(layout.blocks_of(a.name, group.rows))
            elif self._head is None:
                wanted = np.arange(first, first + column.num_blocks)
            else:
                continue
            self._blocks[a.name] = wanted
            for block in wanted.tolist():
                self._places[block] = len(self._ranges)
                self._ranges.append(column.block_range(block - first))
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
        layout, group = self._stored.layout, self._group
        head = self._head or self._make_head(parts)
        for a in self._reader.schema:
            if a.name in layout.small:
                copy_rows(out[a.name], group.positions, head.small[a.name], group.rows)
                continue
            first = layout.first_checksum[a.name]
            blocks = self._blocks[a.name] - first
            for block, positions, rows in self._rows_by_block(layout.columns[a.name], blocks):
                data = self._verified(first + block, parts, head.checksums)
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
        place = f"{self._reader.store.url}/{self.key}"
        checksums = Checksums(self._stored, parts[0], place)
        layout = self._stored.layout
        small = {}
        for a in self._reader.schema:
            if a.name in layout.small:
                blocks = self._blocks[a.name].tolist()
                pieces = [self._verified(block, parts, checksums) for block in blocks]
                values = np.frombuffer(b"".join(pieces), a.numpy_dtype)
                small[a.name] = values.reshape(layout.rows, *a.shape)
        nbytes = parts[0].nbytes + sum(column.nbytes for column in small.values())
        head = _Head(checksums, small, nbytes)
        self._reader.keep_head(self._group.index, head)
        return head

    def _verified(
        self, block: int, parts: Sequence[memoryview], checksums: Checksums
    ) -> memoryview:
        data = parts[self._places[block]]
        if not checksums.holds(block, data):
            raise checksums.error(block)
        return data
