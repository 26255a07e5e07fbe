"""Which objects and blocks rows lie in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...layout import ObjectLayout
from ...schema import Region
from ..fill.ready import Span
from ..order import Rows


@dataclass(frozen=True)
class ObjectRows:
    """Rows that lie in one object."""

    index: int  # of the object in the snapshot
    rows: Rows  # in the object; ascending, each once
    places: Rows  # of each among the rows that were grouped
    spans: Mapping[str, Span] = field(default_factory=dict)  # by attribute of no fixed size

    def some(self, chosen: Any) -> ObjectRows:
        """Those that a slice or a mask chooses."""
        spans = {name: span.some(chosen) for name, span in self.spans.items()}
        return ObjectRows(self.index, self.rows[chosen], self.places[chosen], spans)


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


def needed_blocks(
    layout: ObjectLayout, regions: Iterable[Region], group: ObjectRows
) -> npt.NDArray[np.bool_]:
    """By place among the checksums: the blocks that hold these rows in some regions.

    Small ones are taken whole, values only where the group says where they lie.
    """
    needed = np.zeros(layout.num_checksums, bool)
    for region in regions:
        name, rows = region.name, group.rows
        if name in layout.small:
            needed[layout.all_blocks(name)] = True
        elif region.role != "values":
            needed[layout.blocks_of(name, rows)] = True
            if region.role == "ends":  # where a row begins, the one before it ends
                needed[layout.blocks_of(name, np.maximum(rows - 1, 0))] = True
        elif region.attribute in group.spans:
            span = group.spans[region.attribute]
            filled = span.some(span.stops > span.starts)
            firsts = layout.blocks_of(name, filled.starts)
            lasts = layout.blocks_of(name, filled.stops - 1)
            size = len(needed) + 1
            changes = np.bincount(firsts, minlength=size) - np.bincount(lasts + 1, minlength=size)
            needed |= np.cumsum(changes)[:-1] > 0
    return needed


def every_block(layout: ObjectLayout, regions: Iterable[Region]) -> npt.NDArray[np.bool_]:
    """By place among the checksums: the blocks of some regions."""
    every = np.zeros(layout.num_checksums, bool)
    for region in regions:
        every[layout.all_blocks(region.name)] = True
    return every
