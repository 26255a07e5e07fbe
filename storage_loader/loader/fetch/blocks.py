"""Blocks of an object verified by the checksum table of its commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...catalog import StoredObject, rows_text
from ...errors import ChecksumError
from ...schema import Schema
from ...store import Buffer, xxh3
from ..order import Rows
from .objects import Objects

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

    def wrong(self, blocks: Rows, data: Iterable[Buffer]) -> list[int]:
        """Those of `blocks`, by place in the table, whose `data` are not what they were."""
        found = np.fromiter(map(xxh3, data), np.uint64, len(blocks))
        wrong: list[int] = blocks[found != self._table[blocks]].tolist()
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
class ObjectRows:
    """Rows that lie in one object."""

    index: int  # of the object in the snapshot
    rows: Rows  # in the object; ascending, each once
    place: int  # of the first of them among the rows that were grouped


def by_object(starts: Rows, rows: Rows) -> Iterator[ObjectRows]:
    """Group rows of the dataset, which ascend; `starts` as in `Snapshot.starts`."""
    if not len(rows):
        return
    if len(rows) < len(starts):  # whichever is fewer is looked up in the other
        objects = np.searchsorted(starts, rows, "right") - 1
        cuts = np.append(0, np.flatnonzero(np.diff(objects)) + 1)
        found = objects[cuts]
    else:
        places = np.searchsorted(rows, starts)
        found = np.flatnonzero(np.diff(places))
        cuts = places[found]
    stops = np.append(cuts[1:], len(rows))
    for index, place, stop in zip(found.tolist(), cuts.tolist(), stops.tolist(), strict=True):
        yield ObjectRows(index, rows[place:stop] - starts[index], place)


def needed_blocks(stored: StoredObject, schema: Schema, rows: Rows) -> npt.NDArray[np.bool_]:
    """By place in the checksum table: the blocks that hold these rows' attributes.

    Small columns are taken whole.
    """
    layout = stored.layout
    needed = np.zeros(layout.num_checksums, bool)
    for attribute in schema:
        if attribute.name in layout.small:
            needed[layout.all_blocks(attribute.name)] = True
        else:
            needed[layout.blocks_of(attribute.name, rows)] = True
    return needed
