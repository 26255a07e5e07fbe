"""Items of regions that are compressed, decoded from blocks that are in memory and verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import FormatError
from ...layout import Column
from ...schema import Region
from ..fill.parts import Array, void_items
from ..order import Rows

_LONG_RUN = 4  # items in a row, in the mean, from which runs are copied one by one


class CodedItems:
    """The items of one region of an object. Of one thread: it holds the block decoded last."""

    def __init__(
        self, column: Column, region: Region, show: Callable[[int, int], memoryview], where: str
    ) -> None:
        """`show`: bytes of the object as they are stored; `where`: the object, for errors."""
        assert column.codec is not None
        self._column, self._region, self._codec = column, region, column.codec
        self._show, self._where = show, where
        self._number = -1  # of the block that is decoded
        self._block = np.empty(0, np.uint8)

    def take(self, rows: Rows, out: Array) -> None:
        """Copy items, which ascend, at least one, to `out`, contiguous void items."""
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        if len(rows) < _LONG_RUN * (1 + len(cuts)):
            self._take_each(rows, out)
            return
        nbytes, place = self._column.item_nbytes, 0
        target = out.view(np.uint8).data
        starts, stops = rows[np.append(0, cuts)], rows[np.append(cuts - 1, -1)] + 1
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            end = place + (stop - start) * nbytes
            self.copy(start * nbytes, stop * nbytes, target[place:end])
            place = end

    def _take_each(self, rows: Rows, out: Array) -> None:
        size = self._column.block_items
        blocks = rows // size
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        starts, stops = np.append(0, cuts), np.append(cuts, len(rows))
        runs = zip(blocks[starts].tolist(), starts.tolist(), stops.tolist(), strict=True)
        for block, start, stop in runs:
            items = void_items(self._decoded(block), self._region)
            items.take(rows[start:stop] - block * size, out=out[start:stop], mode="clip")

    def copy(self, start: int, stop: int, out: memoryview) -> None:
        """Copy bytes `start` to `stop` of the region, at least one, to `out`."""
        nbytes = self._column.block_nbytes
        first, last = -(-start // nbytes), stop // nbytes  # of whole blocks
        if first > last:  # inside of one
            out[:] = self._decoded(last)[start - last * nbytes : stop - last * nbytes]
            return
        head, tail = first * nbytes - start, stop - last * nbytes
        if head:
            out[:head] = self._decoded(first - 1)[nbytes - head :]
        if first < last:
            self._decode(first, last, out[head : len(out) - tail])
        if tail:
            out[len(out) - tail :] = self._decoded(last)[:tail]

    def all(self) -> Array:
        """All items."""
        out = np.empty(self._column.nbytes, np.uint8)
        self.copy(0, len(out), out.data)
        return void_items(out.data, self._region)

    def _decoded(self, block: int) -> memoryview:
        if self._number != block:
            self._number = -1
            if not len(self._block):
                self._block = np.empty(self._column.block_nbytes, np.uint8)
            self._decode(block, block + 1, self._block.data)
            self._number = block
        return self._block.data

    def _decode(self, first: int, stop: int, out: memoryview) -> None:
        """Whole blocks."""
        stored = [self._show(*place) for place in self._column.ranges[first:stop].tolist()]
        try:
            self._codec.decode(stored, out, self._region.dtype.itemsize)
        except FormatError as error:
            if stop > first + 1:  # which of them, and why that
                nbytes = self._column.block_nbytes
                for block in range(first, stop):
                    self._decode(block, block + 1, out[:nbytes])
            raise FormatError(
                f"{self._where}: attribute {self._region.attribute!r}, block {first}: {error}"
            ) from error
