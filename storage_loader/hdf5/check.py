"""Whether an object's header is the one that this library writes. A comparison of bytes.

No HDF5 library sees what was read from storage: one changed byte of a header can end the process
that parses it. What HDF5 shows is known all the same where the bytes are those of our template,
which are the same with every HDF5 library.
"""

from __future__ import annotations

import numpy as np

from ..layout import ObjectLayout
from ..schema import Schema
from .template import LEAST_HEADER, CodedRegion, Template, coded_template, template

_PERHAPS = "HDF5 may show other rows than this library gives"


def header_problems(schema: Schema, layout: ObjectLayout, header: bytes) -> list[tuple[str, str]]:
    """What is not as it is written: (attribute, what), "" for the file itself.

    `header`: all bytes of the object that are of no column and not of the directory, in order.
    """
    elsewhere = f"its parts do not lie where this version of storage_loader puts them; {_PERHAPS}"
    notes = sum(len(text.encode()) for a in schema for text in a.notes.values())
    if len(header) < LEAST_HEADER * len(schema) + notes:  # a template of that many takes seconds
        return [("", elsewhere)]
    values = tuple(layout.columns[r.name].items for r in schema.regions if r.role == "values")
    blocks = tuple(c.block_items for c in layout.columns.values())
    if layout.is_coded:
        made = coded_template(schema, layout.rows, values, _coded(layout), blocks)
    else:
        made = template(schema, layout.rows, values, blocks)
    if _figures(made.layout) != _figures(layout):
        return [("", elsewhere)]
    expected = b"".join(piece for _, piece in made.pieces)
    if header == expected:
        return []
    what = "the HDF5 header differs from what storage_loader writes, from byte {} on; " + _PERHAPS
    return [(name, what.format(offset)) for name, offset in _differing(made, expected, header)]


def _coded(layout: ObjectLayout) -> dict[str, CodedRegion]:
    """What was told HDF5 of regions that are compressed."""
    return {
        name: CodedRegion(column.codec, tuple((column.coded[:, 1] - column.coded[:, 0]).tolist()))
        for name, column in layout.columns.items()
        if column.codec is not None and column.coded is not None
    }


def _figures(layout: ObjectLayout) -> tuple[int, ...]:
    """All that HDF5 knows of a layout."""
    offsets = (c.offset if c.nbytes else 0 for c in layout.columns.values())
    directory = layout.directory_offset if layout.num_words else 0
    blocks = layout.block_ranges.reshape(-1).tolist() if layout.is_coded else ()
    return (layout.rows, layout.nbytes, layout.num_words, directory, *offsets, *blocks)


def _differing(made: Template, expected: bytes, header: bytes) -> list[tuple[str, int]]:
    """Whose headers differ, and the object's first byte that does; both have the same length."""
    starts = np.array([offset for offset, _ in made.pieces])
    before = np.cumsum([0, *(len(piece) for _, piece in made.pieces)])
    wrong = np.flatnonzero(np.frombuffer(expected, np.uint8) != np.frombuffer(header, np.uint8))
    pieces = np.searchsorted(before, wrong, "right") - 1
    offsets = starts[pieces] + wrong - before[pieces]
    names, firsts, ends = zip(*made.headers, strict=True)
    owners = np.searchsorted(np.array(firsts), offsets, "right") - 1
    owners[offsets >= np.array(ends)[owners]] = -1  # the first of all headers is the superblock's
    places, first = np.unique(owners, return_index=True)
    whose = ["" if place < 0 else names[place] for place in places.tolist()]
    found: dict[str, int] = {}
    for name, offset in zip(whose, offsets[first].tolist(), strict=True):
        found.setdefault(name, offset)
    return list(found.items())
