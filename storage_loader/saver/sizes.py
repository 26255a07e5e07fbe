"""How large objects become whose places are known only at the end: before they are made."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from ..codecs import MAX_CODED_NBYTES, Codec
from ..errors import SchemaError
from ..hdf5 import coded_overhead, most_overhead
from ..layout import (
    ALIGNMENT,
    CODED_BLOCK_WORDS,
    MAX_OBJECT_NBYTES,
    MAX_ROWS,
    WORD_NBYTES,
    block_items,
    num_place_words,
)
from ..ragged import Ragged
from ..schema import Schema
from .batch import Rows

_CODED_BLOCK = ALIGNMENT + 24  # bytes beside its own that a coded block takes at most, in HDF5


class Sizes:
    """The bytes of objects: never too few, and at most 400 too many where nothing is coded.

    Of what is coded, as many as it has before; whoever knows more takes off what was saved.
    """

    def __init__(self, schema: Schema, max_nbytes: int, codecs: Mapping[str, Codec] = {}) -> None:
        self.max_nbytes = max_nbytes
        self._schema = schema
        self._codecs = codecs
        self._overhead = coded_overhead(schema, codecs) if codecs else most_overhead(schema)
        self._regions = [(r, block_items(r.item_nbytes)) for r in schema.regions if r.item_nbytes]
        least = int(self.of(1, {a.name: 0 for a in schema if a.is_variable}))
        if least > max_nbytes:
            what = "a row without any values" if schema.is_variable else "a row"
            raise SchemaError(
                f"{what} needs an object of {least} bytes, but max_object_size is {max_nbytes}; "
                f"set max_object_size to {least} or more"
            )

    def of(self, rows: int, items: Mapping[str, Any]) -> Any:
        """Bytes of an object of so many rows and values by attribute; or of many objects."""
        nbytes: Any = self._overhead
        words: Any = num_place_words(len(self._schema.regions))
        block_words = CODED_BLOCK_WORDS if self._codecs else 1
        for region, size in self._regions:
            count = items[region.attribute] if region.role == "values" else rows
            blocks = -(-count // size)
            if region.name in self._codecs:
                whole = np.where(blocks > 1, blocks * size, count)  # HDF5's chunks are all as long
                nbytes = nbytes + whole * region.item_nbytes + blocks * _CODED_BLOCK
            else:
                nbytes = nbytes + _aligned(count * region.item_nbytes)
            words = words + blocks * block_words
        return nbytes + _aligned(words * WORD_NBYTES)

    def fits(
        self,
        arrays: Mapping[str, Rows],
        start: int,
        stop: int,
        *,
        rows: int,
        items: Mapping[str, int],
        saved: int = 0,
    ) -> int:
        """The first of rows `start` to `stop` that an object of so much already has no room for.

        `saved`: bytes by which coding has made that smaller.
        """
        firsts = {name: int(a.offsets[start]) for name, a in ragged(arrays)}
        most = self.max_nbytes + saved
        if self._codecs:  # decoded, no more than an object that is not coded
            most = min(most, MAX_OBJECT_NBYTES)

        def nbytes(end: int) -> int:
            added = {n: int(a.offsets[end]) - firsts[n] + items[n] for n, a in ragged(arrays)}
            return int(self.of(rows + end - start, added))

        stop = min(stop, start + MAX_ROWS - rows)
        if nbytes(stop) <= most:
            return stop
        return start + bisect_right(range(start + 1, stop), most, key=nbytes)

    def room(self, rows: int, items: Mapping[str, int], saved: int) -> int:
        """Bytes that an object of so much has left."""
        return self.max_nbytes + saved - int(self.of(rows, items))

    def check(self, arrays: Mapping[str, Rows], rows: int) -> None:
        """Raise `SchemaError` where a row fits no object."""
        nothing = {name: 0 for name, _ in ragged(arrays)}
        if not nothing or self.fits(arrays, 0, rows, rows=0, items=nothing) == rows:
            return
        nbytes = self.of(1, {name: a.lengths for name, a in ragged(arrays)})
        row = int(nbytes.argmax())
        if nbytes[row] > self.max_nbytes:
            parts = {n: int(a.lengths[row]) * a.values[:1].nbytes for n, a in ragged(arrays)}
            attribute, most = max(parts.items(), key=itemgetter(1))
            raise SchemaError(
                f"row {row} of the batch needs an object of {nbytes[row]} bytes, {most} of them "
                f"for attribute {attribute!r}, but max_object_size is {self.max_nbytes}; set "
                f"max_object_size to {nbytes[row]} or more, or divide the row"
            )


def ragged(arrays: Mapping[str, Rows]) -> list[tuple[str, Ragged]]:
    """Those of the columns whose rows have no fixed size."""
    return [(name, rows) for name, rows in arrays.items() if isinstance(rows, Ragged)]


def coded_regions(schema: Schema, codec_of: Mapping[str, Codec]) -> dict[str, Codec]:
    """By region that has bytes, the codec of its attribute; `SchemaError` for too large items."""
    regions = [r for r in schema.regions if r.item_nbytes and r.attribute in codec_of]
    for region in regions:
        if region.item_nbytes > MAX_CODED_NBYTES:
            raise SchemaError(
                f"attribute {region.attribute!r}: {region.item_nbytes} bytes are too many for a "
                f"compressor, which takes at most {MAX_CODED_NBYTES}; give compressor=False to it"
            )
    return {region.name: codec_of[region.attribute] for region in regions}


def _aligned(nbytes: Any) -> Any:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
