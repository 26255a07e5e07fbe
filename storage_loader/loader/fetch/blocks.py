"""Which objects and blocks rows lie in. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...catalog import StoredObject
from ...schema import Schema
from ..order import Rows


@dataclass(frozen=True)
class ObjectRows:
    """Rows that lie in one object."""

    index: int  # of the object in the snapshot
    rows: Rows  # in the object; ascending, each once
    places: Rows  # of each among the rows that were grouped

    def some(self, chosen: Any) -> ObjectRows:
        """Those that a slice or a mask chooses."""
        return ObjectRows(self.index, self.rows[chosen], self.places[chosen])


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
        yield ObjectRows(index, rows[place:stop] - starts[index], np.arange(place, stop))


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


def every_block(stored: StoredObject, schema: Schema) -> npt.NDArray[np.bool_]:
    """By place in the checksum table: the blocks of all attributes."""
    every = np.zeros(stored.layout.num_checksums, bool)
    for attribute in schema:
        every[stored.layout.all_blocks(attribute.name)] = True
    return every
