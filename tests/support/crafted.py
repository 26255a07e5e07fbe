"""Objects as a hostile writer makes them: wrong, with right checksums."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from storage_loader import DataConfig
from storage_loader.catalog import Bounds, Catalog, Extreme, StoredObject, has_bounds
from storage_loader.codecs import Codec
from storage_loader.hdf5 import CodedRegion, coded_template, template
from storage_loader.layout import ObjectLayout, block_items
from storage_loader.schema import Region, Schema
from storage_loader.store import xxh3

Columns = Mapping[str, np.ndarray]  # items by region
Change = Callable[[list[int]], None]  # of the entries of a directory
Swap = Callable[[str, int, bytes, bytes], bytes]
"""What is stored of a region's block, given its number, its values and their coded bytes."""


def publish(
    config: DataConfig,
    columns: Columns,
    change: Change = lambda words: None,
    *,
    codecs: Mapping[str, Codec] = {},
    swap: Swap = lambda region, number, values, coded: coded,
) -> None:
    """One object of these columns in a commit; `change` what its directory says.

    `codecs`: by region that is compressed.
    """
    schema = config.schema
    assert schema is not None
    rows = len(columns[schema.regions[0].name])
    data, stored = _crafted(schema, rows, columns, change, codecs, swap)
    catalog = Catalog(config)
    catalog.store.prepare()
    catalog.create(schema, "commit")
    catalog.store.put(f"{catalog.prefix}/{stored.key}", data)
    catalog.publication(schema, [stored], writer="w", number=0, refresh=False).publish()


def republish(config: DataConfig, change: Callable[[dict[str, Any], bytes], object]) -> None:
    """Change what the one commit says; `change` gets its JSON and the bytes of its object."""
    store, prefix = Catalog(config).store, Catalog(config).prefix
    [commit] = [i.key for i in store.list(f"{prefix}/metadata") if i.key.endswith(".json")]
    body = json.loads(bytes(store.get(commit)))
    [key] = body["objects"]["key"]
    change(body, bytes(store.get(f"{prefix}/{key}")))
    store.put(commit, json.dumps(body).encode())


def _crafted(
    schema: Schema,
    rows: int,
    columns: Columns,
    change: Change,
    codecs: Mapping[str, Codec],
    swap: Swap,
) -> tuple[bytes, StoredObject]:
    values = tuple(len(columns[r.name]) for r in schema.regions if r.role == "values")
    blocks = {r.name: _coded(r, columns[r.name], codecs[r.name], swap)
              for r in schema.regions if r.name in codecs}  # fmt: skip
    if codecs:
        coded = {n: CodedRegion(codecs[n], tuple(map(len, some))) for n, some in blocks.items()}
        made = coded_template(schema, rows, values, coded)
    else:
        made = template(schema, rows, values)
    layout = made.layout
    data = bytearray(layout.nbytes)
    for offset, piece in made.pieces:
        data[offset : offset + len(piece)] = piece
    for region in schema.regions:
        column = layout.columns[region.name]
        if region.name in blocks:
            for (start, end), block in zip(
                column.ranges.tolist(), blocks[region.name], strict=True
            ):
                data[start:end] = block
        elif column.nbytes:
            items = np.ascontiguousarray(columns[region.name], region.dtype)
            data[column.offset : column.end] = items.tobytes()
    stored = _with_directory(data, layout, change)
    return bytes(data), replace(stored, extremes=extremes_of(schema, columns))


def extremes_of(schema: Schema, columns: Columns) -> dict[str, tuple[Extreme, Extreme]]:
    """What a commit says of the values, by attribute."""
    found = {}
    for name in (a.name for a in schema if has_bounds(a)):
        bounds = Bounds()
        bounds.add(columns[name])
        found[name] = bounds.found
    return found


def _with_directory(data: bytearray, layout: ObjectLayout, change: Change) -> StoredObject:
    checksums = [xxh3(bytes(data[a:b])) for a, b in layout.block_ranges.tolist()]
    words = layout.words(np.array(checksums, np.uint64)).tolist()
    change(words)
    directory = np.array(words, np.uint64).tobytes()
    start, end = layout.directory_range
    data[start:end] = directory
    decoded = sum(column.nbytes for column in layout.columns.values())
    key = "objects/w/crafted-000000.h5"
    return StoredObject(key, xxh3(data), xxh3(directory), layout, decoded)


def _coded(region: Region, items: np.ndarray, codec: Codec, swap: Swap) -> list[bytes]:
    """The region's blocks as a saver would store them, but for what is swapped."""
    octets = np.ascontiguousarray(items, region.dtype).tobytes()
    nbytes = block_items(region.item_nbytes) * region.item_nbytes
    blocks = [octets[first : first + nbytes] for first in range(0, len(octets), nbytes)]
    if len(blocks) > 1:
        blocks[-1] = blocks[-1].ljust(nbytes, b"\0")
    return [
        swap(region.name, i, block, codec.encode(memoryview(block), region.dtype.itemsize))
        for i, block in enumerate(blocks)
    ]
