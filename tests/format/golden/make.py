"""Made the datasets beside it, once; they stay so, and every later version must read them.

    python -m tests.format.golden.make FOLDER

"golden": rows are numbered as tests/support/rows.py does. What a reader must cope with: all dtypes,
units and descriptions, an axis of 0, blocks of 3 rows with a shorter last one, two layouts in one
commit, a replaced commit, two refreshes at once of which one is void, an append.

"ragged": rows of no fixed size, numbered as tests/support/ragged.py does. Blocks of 3 items, of
text 30 bytes; rows and whole regions without values; a fixed attribute beside them.

"compressed": fixed and variable rows under each codec that every HDF5 reader may have, one
attribute that is not compressed, and noise, whose blocks are stored as they are. Blocks of 7 items,
of text 300 bytes, the last one filled up; appended is a commit where the codecs are others.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

from storage_loader import Attribute, DataConfig, DataSaver, save
from storage_loader.catalog import Catalog
from storage_loader.schema import DTYPES
from tests.support.ragged import KINDS, rows_of
from tests.support.rows import ROW, make

ATTRIBUTES = [
    Attribute(
        "image", "uint8", (3, 5), unit="grey level", description="what the row's number gives"
    ),
    Attribute(ROW, "int64", description="Nummer der Reihe: äé€😀\n" * 20),
    Attribute("one", "float32", (1,), unit="µm"),
    Attribute("nothing", "float64", (2, 0)),
    *(Attribute(f"a {dtype}", dtype, (3,)) for dtype in DTYPES),
]
ADDITIONAL = {"split": "trän", "version": 1, "share": 0.5, "final": True, "note": None}
ROWS = [*range(200, 217), *range(300, 304)]  # what the newest version holds
OBJECT_ROWS = 7


HALF = Attribute("half", "bfloat16", (None, 2), unit="m", description="the row's number, twice")
RAGGED = [*KINDS, Attribute("none", "int8", (None,)), HALF]
RAGGED_ROWS = [*range(12), *range(40, 43), 0]


def ragged(numbers: Iterable[int]) -> dict[str, Any]:
    """Rows of `RAGGED`."""
    rows = rows_of(numbers)
    halves = [np.full((n % 4, 2), n, "float32").astype(ml_dtypes.bfloat16) for n in rows["row"]]
    return {**rows, "none": [np.zeros(0, np.int8)] * len(halves), "half": halves}


KINDS_COMPRESSED = [
    Attribute(ROW, "int64"),
    Attribute("wave", "float32", (40,), unit="V", description="steps of one, from the number on"),
    Attribute("image", "uint8", (5, 9)),
    Attribute("noise", "uint8", (40,)),
    Attribute("plain", "int16", (3,)),
    Attribute("spectrum", "complex64", (6,)),
    Attribute("tokens", "int32", (None,)),
    Attribute("boxes", "float64", (None, 4)),
    Attribute("half", "bfloat16", (None, 2)),
    Attribute("caption", "str", description="é" * 300),
    Attribute("meta", "json"),
]
CODERS = [
    {"complib": "zstd", "complevel": 3},
    {"complib": "zlib", "complevel": 9},
    {"complib": "lz4"},
    {"complib": "zlib", "complevel": 1, "shuffle": False},
    {"complib": "zstd", "complevel": 19, "shuffle": False},
]
COMPRESSED_ROWS = [*range(24), *range(24, 31), *range(50, 75)]


def compressed_attributes(first: int) -> list[Attribute]:
    """The attributes with codecs in turn, from the `first` one on, but for one without."""
    coders = itertools.islice(itertools.cycle(CODERS), first, None)
    return [
        replace(a, compressor=False if a.name == "plain" else coder)
        for a, coder in zip(KINDS_COMPRESSED, coders, strict=False)
    ]


def compressed(numbers: Iterable[int]) -> dict[str, Any]:
    """Rows of `KINDS_COMPRESSED`: most of them alike, so that they become smaller."""
    n = np.fromiter(numbers, np.int64)
    waves = (np.arange(40) % 8 + n[:, None]).astype(np.float32)
    return {
        ROW: n,
        "wave": waves,
        "image": np.broadcast_to(n[:, None, None] % 5, (len(n), 5, 9)).astype(np.uint8),
        "noise": make(n, [Attribute("noise", "uint8", (40,))])["noise"],
        "plain": np.stack([n, n + 1, -n], axis=1).astype(np.int16),
        "spectrum": (waves[:, :6] + 1j).astype(np.complex64),
        "tokens": [np.arange(i % 13, dtype=np.int32) for i in n.tolist()],
        "boxes": [np.full((i % 4, 4), i / 2) for i in n.tolist()],
        "half": [np.full((i % 6, 2), i, np.float32).astype(ml_dtypes.bfloat16) for i in n.tolist()],
        "caption": [f"row {i}, é€😀 " * (i % 7) for i in n.tolist()],
        "meta": [{"row": i, "same": [None, True, "\0"] * 3} for i in n.tolist()],
    }


def main(folder: str) -> None:
    config = DataConfig("golden", ATTRIBUTES, ADDITIONAL, folder)
    names = (f"{number:016x}" for number in itertools.count())
    stale = Catalog(config).commit_ids
    with (
        patch("storage_loader.saver.saver.capacity", lambda *args: OBJECT_ROWS),
        patch("storage_loader.hdf5.template.block_items", lambda nbytes: 30 if nbytes == 1 else 3),
        patch("storage_loader.saver.saver.secrets.token_hex", lambda n: next(names)[-2 * n :]),
    ):
        save(config, make(range(4), ATTRIBUTES))
        listed = stale()
        save(config, make(range(100, 102), ATTRIBUTES), refresh=True)
        with patch.object(Catalog, "commit_ids", lambda self: listed):
            save(config, make(range(200, 217), ATTRIBUTES), refresh=True)
        save(config, make(range(300, 304), ATTRIBUTES))
        config = DataConfig("ragged", RAGGED, storage=folder)
        with DataSaver(config) as saver:
            for first, stop in ((0, 5), (5, 12), (12, 16)):
                saver(ragged(RAGGED_ROWS[first:stop]))
                if stop > 5:
                    saver.commit()
    save_compressed(folder, names)
    for left in Path(folder).rglob(".tmp-*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def save_compressed(folder: str, names: Iterator[str]) -> None:
    def items(nbytes: int) -> int:
        return 300 if nbytes == 1 else 7

    with (
        patch("storage_loader.hdf5.template.block_items", items),
        patch("storage_loader.saver.gathered.block_items", items),
        patch("storage_loader.saver.sizes.block_items", items),
        patch("storage_loader.saver.saver.secrets.token_hex", lambda n: next(names)[-2 * n :]),
    ):
        for first, parts in ((0, ((0, 24), (24, 31))), (2, ((31, 56),))):
            attributes = compressed_attributes(first)
            with DataSaver(DataConfig("compressed", attributes, storage=folder)) as saver:
                for start, stop in parts:
                    saver(compressed(COMPRESSED_ROWS[start:stop]))
                    saver.commit()


if __name__ == "__main__":
    main(sys.argv[1])
