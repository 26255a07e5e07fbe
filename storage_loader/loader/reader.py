"""Two ways to read the batches of an epoch: from whole objects fetched ahead, or by blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..catalog import Snapshot
from ..schema import Schema
from .gather import Array, allocate, by_object, copy_rows
from .order import Order, Rows, walk
from .prefetch import Prefetcher, ahead
from .source import Source

Arrays = dict[str, Array]

FETCH_THREADS = 4
FETCH_NBYTES = 256 * 2**20  # of objects begun ahead of the consumer
FETCH_OBJECTS = (2, 64)
KEEP_OBJECTS = 128  # mapped at a time: each map holds a file descriptor
_WALK_ROWS = 65_536
INDEX_BATCHES = 3  # read ahead of the consumer when indexing


def read_whole_objects(
    source: Source,
    snapshot: Snapshot,
    schema: Schema,
    order: Order,
    epoch: int,
    batches: Iterable[tuple[int, int]],
) -> Iterator[Arrays]:
    """Arrays of each batch (start, stop), from objects that are fetched before they are needed."""
    mean_nbytes = max(1, snapshot.nbytes // max(1, len(snapshot.objects)))
    least, most = FETCH_OBJECTS
    with Prefetcher(
        source.columns,
        _objects_in_order(snapshot, order, epoch),
        depth=min(most, max(least, FETCH_NBYTES // mean_nbytes)),
        threads=FETCH_THREADS,
        keep=KEEP_OBJECTS,
    ) as objects:
        for start, stop in batches:
            yield _gather(snapshot, schema, objects, order.rows(epoch, start, stop))


def _gather(
    snapshot: Snapshot,
    schema: Schema,
    objects: Prefetcher[int, Mapping[str, Array]],
    rows: Rows,
) -> Arrays:
    out = allocate(schema, len(rows))
    for group in by_object(snapshot.starts, rows):
        columns = objects[group.index]
        for name, array in out.items():
            copy_rows(array, group.positions, columns[name], group.rows)
    return out


def _objects_in_order(snapshot: Snapshot, order: Order, epoch: int) -> Iterator[int]:
    """Each object once, by the first row of it that the epoch needs."""
    seen = np.zeros(len(snapshot.objects), bool)
    for rows in walk(order, epoch, chunk=_WALK_ROWS):
        objects = np.searchsorted(snapshot.starts, rows, "right") - 1
        found, first = np.unique(objects, return_index=True)
        for index in found[np.argsort(first)]:
            if not seen[index]:
                seen[index] = True
                yield int(index)
        if seen.all():
            return


def read_blocks(
    source: Source, order: Order, epoch: int, batches: Iterable[tuple[int, int]]
) -> Iterator[Arrays]:
    """Arrays of each batch (start, stop), reading only the blocks of its rows."""
    rows = (order.rows(epoch, start, stop) for start, stop in batches)
    return ahead(source.read, rows, depth=INDEX_BATCHES, threads=INDEX_BATCHES)
