"""Rows -> blocks -> byte ranges -> fewer requests: arithmetic, held against slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader.errors import FormatError
from storage_loader.layout import Column, ObjectLayout, block_items
from storage_loader.ranges import Range, are_apart, coalesce
from storage_loader.schema import Schema

ranges = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1]))


@pytest.mark.parametrize(
    ("asked", "gap", "requests"),
    [
        ([], 0, []),
        ([(3, 7)], 0, [(3, 7)]),
        ([(3, 3)], 0, [(3, 3)]),
        ([(0, 4), (4, 8)], 0, [(0, 8)]),  # touching
        ([(0, 4), (5, 8)], 0, [(0, 4), (5, 8)]),
        ([(0, 4), (5, 8)], 1, [(0, 8)]),
        ([(0, 4), (6, 8)], 1, [(0, 4), (6, 8)]),
        ([(6, 8), (0, 4)], 0, [(0, 4), (6, 8)]),  # out of order
        ([(0, 9), (2, 4), (8, 12)], 0, [(0, 12)]),  # overlapping
        ([(2, 4), (2, 4)], 0, [(2, 4)]),  # twice
        ([(0, 9), (1, 2), (20, 21)], 0, [(0, 9), (20, 21)]),
    ],
)
def test_coalesce(asked: list[Range], gap: int, requests: list[Range]) -> None:
    assert coalesce(asked, gap=gap) == requests


def joined(asked: list[Range], gap: int) -> list[Range]:
    """Join any two ranges at most `gap` apart until there are none: slow and plain."""
    requests = set(asked)
    while True:
        pairs = [(a, b) for a in requests for b in requests if a < b and b[0] <= a[1] + gap]
        if not pairs:
            return sorted(requests)
        a, b = pairs[0]
        requests = (requests - {a, b}) | {(a[0], max(a[1], b[1]))}


@given(st.lists(ranges, max_size=12), st.integers(0, 6))
def test_every_range_is_asked_for_and_no_more(asked: list[Range], gap: int) -> None:
    requests = coalesce(asked, gap=gap)
    assert requests == joined(asked, gap)
    assert are_apart(requests) or any(start == end for start, end in requests)


@given(st.lists(ranges, max_size=12))
def test_ranges_are_apart_that_need_a_request_each(asked: list[Range]) -> None:
    is_each = asked == coalesce(asked) and all(start < end for start, end in asked)
    assert are_apart(asked) == is_each


@pytest.mark.parametrize(
    ("row_nbytes", "rows"),
    [
        (0, 65536),
        (1, 65536),
        (2, 32768),
        (3, 21845),
        (8, 8192),
        (32767, 2),
        (32768, 2),
        (32769, 1),
        (65535, 1),
        (65536, 1),
        (65537, 1),
        (2**40, 1),
    ],
)
def test_a_block_is_about_64_kib(row_nbytes: int, rows: int) -> None:
    assert block_items(row_nbytes) == rows


columns = st.builds(
    Column, st.integers(1, 50), st.integers(0, 40), st.integers(0, 9), st.integers(1, 12)
)


@given(columns)
def test_blocks_tile_a_column(column: Column) -> None:
    covered = [
        byte for block in range(column.num_blocks) for byte in range(*column.block_range(block))
    ]
    assert covered == list(range(column.offset, column.end))
    assert column.nbytes == column.items * column.item_nbytes
    for row in range(column.items if column.item_nbytes else 0):
        start, end = column.block_range(row // column.block_items)
        first = column.offset + row * column.item_nbytes
        assert start <= first < first + column.item_nbytes <= end
    for block in range(column.num_blocks):
        start, end = column.block_range(block)
        whole = block < column.num_blocks - 1
        assert (end - start == column.block_nbytes) or not whole
        assert end > start


SCHEMA = Schema.of([("a", "uint8", (10,)), ("b", "int64"), ("empty", "uint8", (0,))])


def layout(**changes: object) -> ObjectLayout:
    """100 rows: the table at 256, `b` at 320, `a` at 1152."""
    given = {
        "rows": 100,
        "nbytes": 2152,
        "offsets": {"a": 1152, "b": 320, "empty": 0},
        "blocks": {"a": 30, "b": 100, "empty": 65536},
        "directory_offset": 256,
    }
    return ObjectLayout.of(SCHEMA, **{**given, **changes})  # type: ignore[arg-type]


def test_an_object_layout() -> None:
    made = layout()
    assert list(made.columns) == ["a", "b", "empty"]
    assert made.columns["a"] == Column(1152, 100, 10, 30)
    assert made.columns["b"] == Column(320, 100, 8, 100)
    assert [made.columns[n].num_blocks for n in ("a", "b", "empty")] == [4, 1, 0]
    assert made.first_checksum == {"a": 0, "b": 4, "empty": 5}
    assert made.num_checksums == 5
    assert made.directory_range == (256, 296)
    assert made == layout()
    assert made != layout(rows=99)


def test_blocks_by_their_place_in_the_table() -> None:
    made = layout()
    blocks = [
        (name, made.columns[name].block_range(block))
        for name in SCHEMA.names
        for block in range(made.columns[name].num_blocks)
    ]
    assert made.block_ranges.tolist() == [list(place) for _, place in blocks]
    for name in ("a", "b"):
        places = made.blocks_of(name, np.arange(100)).tolist()
        for row, place in enumerate(places):
            assert blocks[place][0] == name
            first = made.columns[name].offset + row * made.columns[name].item_nbytes
            start, end = blocks[place][1]
            assert start <= first < end


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"directory_offset": 0}, "directory at bytes 0 to 40 of 2152"),
        ({"directory_offset": 257}, "directory at bytes 257 to 297 of 2152"),
        ({"directory_offset": 320}, "'b' at bytes 320 to 1120 of 2152"),
        ({"directory_offset": 2176}, "directory at bytes 2176 to 2216 of 2152"),
        ({"nbytes": 2151}, "'a' at bytes 1152 to 2152 of 2151"),
        ({"offsets": {"a": 1160, "b": 320, "empty": 0}}, "'a' at bytes 1160 to 2160 of 2152"),
        ({"offsets": {"a": 1088, "b": 320, "empty": 0}}, "'a' at bytes 1088 to 2088 of 2152"),
        ({"offsets": {"a": 1152, "b": 384, "empty": 0}}, "'a' at bytes 1152 to 2152 of 2152"),
        ({"offsets": {"a": 1152, "b": 0, "empty": 0}}, "'b' at bytes 0 to 800 of 2152"),
        ({"nbytes": 3000, "offsets": {"a": 1184, "b": 320, "empty": 0}},
         "'a' at bytes 1184 to 2184 of 3000"),
        ({"rows": 101}, "'a' at bytes 1152 to 2162 of 2152"),
        ({"blocks": {"a": 1, "b": 100, "empty": 1}}, "'b' at bytes 320 to 1120 of 2152"),
    ],
)  # fmt: skip
def test_parts_may_not_overlap_nor_leave_the_object(changes: dict, part: str) -> None:
    with pytest.raises(FormatError) as error:
        layout(**changes)
    assert str(error.value) == (
        f"object layout: {part} overlaps another part, lies outside or is not on a 64-byte boundary"
    )


def test_an_object_without_bytes_has_no_checksums() -> None:
    schema = Schema.of([("empty", "uint8", (0,))])
    made = ObjectLayout.of(
        schema, rows=5, nbytes=1, offsets={"empty": 0}, blocks={"empty": 1}, directory_offset=0
    )
    assert (made.num_checksums, made.directory_range) == (0, (0, 0))
    assert made.small == {"empty"}
    assert made.block_ranges.shape == (0, 2)


@pytest.mark.parametrize(
    ("rows", "row_nbytes", "nbytes", "small"),
    [
        (8192, 8, 2**20, True),  # exactly a block
        (8193, 8, 2**20, False),
        (8193, 8, 64 * 8193 * 8, True),  # exactly 1/64 of the object
        (8193, 8, 64 * 8193 * 8 - 1, False),
    ],
)
def test_small_columns(rows: int, row_nbytes: int, nbytes: int, small: bool) -> None:
    schema = Schema.of([("id", "uint8", (row_nbytes,))])
    made = ObjectLayout.of(
        schema,
        rows=rows,
        nbytes=nbytes,
        offsets={"id": 2048},
        blocks={"id": 8192},
        directory_offset=64,
    )
    assert ("id" in made.small) == small
