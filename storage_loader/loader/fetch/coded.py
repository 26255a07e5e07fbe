"""Items of regions that are compressed, decoded from blocks that are in memory and verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import FormatError
from ...layout import Column
from ...schema import Region
from ..fill.parts import Array, void_items
from ..order import Rows


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
        size, items = self._column.block_items, self._column.items
        blocks = rows // size
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        starts, stops = np.append(0, cuts), np.append(cuts, len(rows))
        whole = min(size, items)
        for block, start, stop in zip(
            blocks[starts].tolist(), starts.tolist(), stops.tolist(), strict=True
        ):
            within, some = rows[start:stop] - block * size, out[start:stop]
            if stop - start == whole and (np.diff(within) == 1).all():
                self._decode(block, some.view(np.uint8).data)
            else:
                void_items(self._decoded(block), self._region).take(within, out=some, mode="clip")

    def copy(self, start: int, stop: int, out: memoryview) -> None:
        """Copy bytes `start` to `stop` of the region, at least one, to `out`."""
        nbytes = self._column.block_nbytes
        for block in range(start // nbytes, -(-stop // nbytes)):
            first = block * nbytes
            begin, end = max(start, first), min(stop, first + nbytes)
            part = out[begin - start : end - start]
            if end - begin == nbytes:
                self._decode(block, part)
            else:
                part[:] = self._decoded(block)[begin - first : end - first]

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
            self._decode(block, self._block.data)
            self._number = block
        return self._block.data

    def _decode(self, block: int, out: memoryview) -> None:
        stored = self._show(*self._column.block_range(block))
        try:
            self._codec.decode(stored, out, self._region.dtype.itemsize)
        except FormatError as error:
            raise FormatError(
                f"{self._where}: attribute {self._region.attribute!r}, block {block}: {error}"
            ) from error
