"""What is known of an object before its rows are read: its layout, checksums, small columns."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...catalog import rows_text
from ...errors import ChecksumError, FormatError
from ...layout import ObjectLayout, Outline
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
    """The checksums of an object's blocks, from its directory, which is verified itself."""

    def __init__(
        self, objects: Objects, index: int, layout: ObjectLayout, directory: Buffer
    ) -> None:
        check_directory(objects, index, directory)
        self._layout = layout
        self._objects, self._index = objects, index
        words: npt.NDArray[Any] = np.frombuffer(bytes(directory), "<u8")
        self._table = layout.checksums(words)

    @property
    def nbytes(self) -> int:
        """Bytes of them all."""
        return self._table.nbytes

    def wrong(self, blocks: Rows, data: Iterable[Buffer]) -> Rows:
        """Those of `blocks`, by place among the checksums, whose `data` are not what they were."""
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
        first = (block - self._layout.first_checksum[name]) * column.block_items
        stop = min(first + column.block_items, column.items)
        snapshot = self._objects.snapshot
        attribute, _, role = name.partition("/")
        if role == "values":  # whose they are, only the ends would say
            what, where = f"values {first} to {stop - 1}", snapshot.described(self._index)
            where = f"some of {where}"
        else:
            what = rows_text(first, stop)
            where = snapshot.described(self._index, first, stop)
        return ChecksumError(
            f"{self._objects.url(self._index)}: attribute {attribute!r}, {what} of this object "
            "differ from their checksum; the object was altered or damaged after it was saved; "
            f"they are {where}; {_REMEDY}"
        )


def check_directory(objects: Objects, index: int, directory: Buffer) -> None:
    """Raise `ChecksumError` where an object's directory is not what it was."""
    if xxh3(directory) != objects.stored(index).directory_checksum:
        raise ChecksumError(
            f"{objects.url(index)}: the directory differs from its own checksum in the commit; "
            "the object was altered or damaged after it was saved, and nothing can be "
            f"verified of {objects.needing(index)}; {_REMEDY}"
        )


@dataclass(frozen=True)
class Directory:
    """What is known of an object before its rows are read."""

    layout: ObjectLayout
    checksums: Checksums | None  # None: nothing is to be verified
    small: Mapping[str, Array]  # by region that is read whole, a void item for each item
    data: bytes = b""  # of the directory, where it says how the object lies

    @property
    def nbytes(self) -> int:
        """What it takes, about."""
        nbytes = sum(column.nbytes for column in self.small.values()) + len(self.data)
        return nbytes + (0 if self.checksums is None else self.checksums.nbytes)


class Directories:
    """Those of a snapshot's objects that were used last, up to 64 MiB. Thread-safe."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
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
        """Keep it instead of what is kept, and drop what was not used for longest beyond it."""
        with self._lock:
            before = self._kept.pop(index, None)
            self._kept[index] = directory
            self._nbytes += directory.nbytes - (0 if before is None else before.nbytes)
            while self._nbytes > _NBYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._nbytes -= dropped.nbytes

    def get(
        self,
        index: int,
        stop: threading.Event,
        here: Callable[[int, int], Iterable[Buffer]] | None = None,
    ) -> Directory | None:
        """An object's, read where it says how the object lies; None where the commit says that.

        `here` reads a copy that lies on this machine. Raises `ChecksumError`, `FormatError` or a
        `StoreError`.
        """
        found = self.find(index)
        outline = self._objects.stored(index).layout
        if found is not None or isinstance(outline, ObjectLayout):
            return found
        if here is not None:
            with suppress(ChecksumError):
                return self._made(index, outline, b"".join(here(*outline.directory_range)))
        objects = self._objects.until(stop)
        for is_last in (False, True):
            [data] = objects.get_ranges(index, [outline.directory_range])
            try:
                return self._made(index, outline, bytes(data))
            except ChecksumError:
                if is_last:
                    raise
            objects.note_retry(index)
        return None

    def _made(self, index: int, outline: Outline, data: bytes) -> Directory:
        check_directory(self._objects, index, data)  # always: all else follows from it
        try:
            layout = outline.layout(self._objects.snapshot.schema, memoryview(data))
        except FormatError as error:
            raise FormatError(f"{self._objects.url(index)}: {error}") from error
        checksums = None
        if self._objects.verify:
            checksums = Checksums(self._objects, index, layout, data)
        directory = Directory(layout, checksums, {}, data)
        self.keep(index, directory)
        return directory
