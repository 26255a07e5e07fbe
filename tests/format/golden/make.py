"""Made the datasets beside it, once; they stay so, and every later version must read them.

    python -m tests.format.golden.make FOLDER

"golden": rows are numbered as tests/support/rows.py does. What a reader must cope with: all dtypes,
an axis of 0, blocks of 3 rows with a shorter last one, two layouts in one commit, a replaced
commit, two refreshes at once of which one is void, an append.

"ragged": rows of no fixed size, numbered as tests/support/ragged.py does. Blocks of 3 items, of
text 30 bytes; rows and whole regions without values; a fixed attribute beside them.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterable
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
    Attribute("image", "uint8", (3, 5)),
    Attribute(ROW, "int64"),
    Attribute("one", "float32", (1,)),
    Attribute("nothing", "float64", (2, 0)),
    *(Attribute(f"a {dtype}", dtype, (3,)) for dtype in DTYPES),
]
ADDITIONAL = {"split": "trän", "version": 1, "share": 0.5, "final": True, "note": None}
ROWS = [*range(200, 217), *range(300, 304)]  # what the newest version holds
OBJECT_ROWS = 7


RAGGED = [*KINDS, Attribute("none", "int8", (None,)), Attribute("half", "bfloat16", (None, 2))]
RAGGED_ROWS = [*range(12), *range(40, 43), 0]


def ragged(numbers: Iterable[int]) -> dict[str, Any]:
    """Rows of `RAGGED`."""
    rows = rows_of(numbers)
    halves = [np.full((n % 4, 2), n, "float32").astype(ml_dtypes.bfloat16) for n in rows["row"]]
    return {**rows, "none": [np.zeros(0, np.int8)] * len(halves), "half": halves}


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
    for left in Path(folder).rglob(".tmp-*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
