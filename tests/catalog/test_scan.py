"""One reading of an object: what it sees of values, whatever order blocks and pieces come in."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader.catalog.scan import Ends, Scan, scanned
from storage_loader.codecs import Codec
from storage_loader.layout import ObjectLayout
from storage_loader.schema import Schema

SCHEMA = Schema.of([("tokens", "int8", (None,)), ("x", "float64")])
CODEC = Codec.of({"complib": "zlib"})
ITEMS = 100  # of a block of ends and of x
ROWS = 3 * ITEMS - 10


def scan_of(order: tuple[int, ...], size: int, ends: Any, x: Any) -> Scan:
    """An object whose blocks of ends and of x lie in this order, read in pieces of a size."""
    coded: dict[str, np.ndarray[Any, Any]] = {}
    body = bytearray(1024)
    for name, values in (("tokens/ends", ends), ("x", x)):
        filled = np.zeros(3 * ITEMS, values.dtype)
        filled[:ROWS] = values
        blocks = [CODEC.encode(memoryview(p.tobytes()), 8) for p in filled.reshape(3, ITEMS)]
        places = {}
        for block in order:
            places[block] = len(body), len(body) + len(blocks[block])
            body += bytes(blocks[block]) + bytes(-len(blocks[block]) % 64)
        coded[name] = np.array([places[block] for block in range(3)])
    layout = ObjectLayout.of(
        SCHEMA,
        rows=ROWS,
        nbytes=len(body),
        offsets={"tokens/ends": int(coded["tokens/ends"][0, 0]), "tokens/values": 0,
                 "x": int(coded["x"][0, 0])},
        blocks={"tokens/ends": ITEMS, "tokens/values": ITEMS, "x": ITEMS},
        directory_offset=64,
        values={"tokens/ends": ROWS, "tokens/values": 0, "x": ROWS},
        codecs={"tokens/ends": CODEC, "x": CODEC},
        coded=coded,
    )  # fmt: skip
    pieces = [bytes(body[at : at + size]) for at in range(0, len(body), size)]
    return scanned(pieces, SCHEMA, layout, threading.Event())


@pytest.mark.parametrize("size", [1, 100, 10**6])
@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_blocks_that_are_coded_lie_in_any_order(order: tuple[int, ...], size: int) -> None:
    """Values that fill up the last one are of no row: a 0 that is neither smallest nor an end."""
    rng = np.random.default_rng(0)
    ends, x = np.sort(rng.integers(0, 9, ROWS)), rng.uniform(1, 2, ROWS)
    scan = scan_of(order, size, ends, x)
    assert scan.undecoded == {}
    assert scan.bounds["x"].found == (x.min(), x.max())
    assert scan.ends["tokens/ends"].ascend_to(int(ends[-1]))
    assert not scan.ends["tokens/ends"].ascend_to(int(ends[-1]) + 1)
    ends[ITEMS], ends[ITEMS - 1] = 3, 4  # across a block's border
    assert not scan_of(order, size, ends, x).ends["tokens/ends"].ascend_to(int(ends[-1]))


@given(
    parts=st.lists(st.lists(st.integers(-2, 9), max_size=5), max_size=6),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=300)
def test_ends_ascend_whatever_order_they_come_in(parts: list[list[int]], order: Any) -> None:
    whole = [end for part in parts for end in part]
    starts = [0, *itertools.accumulate(map(len, parts))]
    some = list(zip(parts, starts, strict=False))
    order.shuffle(some)
    ends = Ends()
    for part, first in some:
        ends.add(np.array(part, np.int64), first)
    last = whole[-1] if whole else 0
    assert ends.ascend_to(last) == (sorted([0, *whole]) == [0, *whole])
    assert not ends.ascend_to(last + 1)
