"""Objects of rows of no fixed size as a hostile writer makes them: wrong, with right checksums."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from storage_loader import DataConfig
from storage_loader.catalog import Catalog, StoredObject
from storage_loader.hdf5 import template
from storage_loader.schema import Schema
from storage_loader.store import xxh3

Columns = Mapping[str, np.ndarray]  # items by region
Change = Callable[[list[int]], None]  # of the entries of a directory


def publish(config: DataConfig, columns: Columns, change: Change = lambda words: None) -> None:
    """One object of these columns in a commit; `change` what its directory says."""
    schema = config.schema
    assert schema is not None
    rows = len(columns[schema.regions[0].name])
    data, stored = _crafted(schema, rows, columns, change)
    catalog = Catalog(config)
    catalog.store.prepare()
    catalog.create(schema, "commit")
    catalog.store.put(f"{catalog.prefix}/{stored.key}", data)
    catalog.publication(schema, [stored], writer="w", number=0, refresh=False).publish()


def _crafted(
    schema: Schema, rows: int, columns: Columns, change: Change
) -> tuple[bytes, StoredObject]:
    values = tuple(len(columns[r.name]) for r in schema.regions if r.role == "values")
    made = template(schema, rows, values)
    layout = made.layout
    data = bytearray(layout.nbytes)
    for offset, piece in made.pieces:
        data[offset : offset + len(piece)] = piece
    for region in schema.regions:
        column = layout.columns[region.name]
        if column.nbytes:
            items = np.ascontiguousarray(columns[region.name], region.dtype)
            data[column.offset : column.end] = items.tobytes()
    words = layout.words([xxh3(bytes(data[a:b])) for a, b in layout.block_ranges.tolist()])
    change(words)
    directory = np.array(words, np.uint64).tobytes()
    start, end = layout.directory_range
    data[start:end] = directory
    decoded = sum(column.nbytes for column in layout.columns.values())
    key = "objects/w/crafted-000000.h5"
    return bytes(data), StoredObject(key, xxh3(data), xxh3(directory), layout, decoded)
