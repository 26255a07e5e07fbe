"""What is known of an object before its rows are read: checksums of its blocks, small columns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...catalog import rows_text
from ...errors import ChecksumError
from ...store import Buffer, xxh3
from ..fill.parts import Array
from ..order import Rows
from .objects import Objects

_NBYTES = 64 * 2**20  # of directories that are kept
_REMEDY = (
    "`storage-loader verify` lists all that is damaged; bring the object back from a copy, save "
    "its rows anew, or read them as they are with verify=False"
)


class Checksums:
    """An object's checksum table, itself verified."""

    def __init__(self, objects: Objects, index: int, table: Buffer) -> None:
        stored = objects.stored(index)
        if xxh3(table) != stored.blocks_checksum:
            raise ChecksumError(
                f"{objects.url(index)}: the checksum table differs from its own checksum in the "
                "commit; the object was altered or damaged after it was saved, and nothing can be "
                f"verified of {objects.needing(index)}; {_REMEDY}"
            )
        self._layout = stored.layout
        self._objects, self._index = objects, index
        self._table: npt.NDArray[Any] = np.frombuffer(bytes(table), "<u8")

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def wrong(self, blocks: Rows, data: Iterable[Buffer]) -> Rows:
        """Those of `blocks`, by place in the table, whose `data` are not what they were."""
        found = np.fromiter(map(xxh3, data), np.uint64, len(blocks))
        wrong: Rows = blocks[found != self._table[blocks]]
        return wrong

    def error(self, block: int) -> ChecksumError:
        """The error for a block that is wrong."""
        name, column = next(
            (name, column)
            for name, column in self._layout.columns.items()
            if 0 <= block - self._layout.first_checksum[name] < column.num_blocks
        )
        first = (block - self._layout.first_checksum[name]) * column.block_rows
        stop = min(first + column.block_rows, column.rows)
        snapshot = self._objects.snapshot
        return ChecksumError(
            f"{self._objects.url(self._index)}: attribute {name!r}, {rows_text(first, stop)} of "
            "this object differ from their checksum; the object was altered or damaged after it "
            f"was saved; they are {snapshot.described(self._index, first, stop)}; {_REMEDY}"
        )


@dataclass(frozen=True)
class Directory:
    """What is read whole at the first touch of an object, into memory."""

    checksums: Checksums | None  # None: nothing is to be verified
    small: Mapping[str, Array]  # by attribute, a void item for each row
    nbytes: int


class Directories:
    """Those of a snapshot's objects that were used last, up to 64 MiB. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Directory] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def find(self, index: int) -> Directory | None:
        """An object's, if it is kept."""
        with self._lock:
            directory = self._kept.get(index)
            if directory is not None:
                self._kept.move_to_end(index)
            return directory

    def keep(self, index: int, directory: Directory) -> None:
        """Keep it, and drop what was not used for longest beyond the limit."""
        with self._lock:
            if index in self._kept:
                return
            self._kept[index] = directory
            self._nbytes += directory.nbytes
            while self._nbytes > _NBYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._nbytes -= dropped.nbytes
