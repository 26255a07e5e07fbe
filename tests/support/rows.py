"""Numbered rows: every attribute of a row is a function of the row's number.

So a test that has read rows knows which they are and that no attribute of one came from another:
loss, duplication, order and alignment are all asserted, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataSaver, Dataset
from storage_loader.config import MIN_OBJECT_SIZE

ROW = "row"  # the attribute that holds the number itself

ATTRIBUTES = (
    Attribute("image", "uint8", (3, 5)),
    Attribute(ROW, "int64"),
    Attribute("weight", "float32", (2,)),
)

WITH_PIXELS = (*ATTRIBUTES, Attribute("pixels", "uint8", (3000,)))  # blocks of 21 rows
ATTRIBUTES_1K = (*ATTRIBUTES, Attribute("pixels", "uint8", (1000,)))  # several objects a saver


def config(storage: Mapping[str, Any], name: str = "rows", **settings: Any) -> DataConfig:
    """A config of numbered rows in the storage that these keywords give."""
    return DataConfig(name, **{"attributes": ATTRIBUTES, **storage, **settings})


def make(
    numbers: Iterable[int], attributes: Sequence[Attribute] = ATTRIBUTES
) -> dict[str, np.ndarray]:
    """The rows of these numbers, in this order."""
    rows = np.fromiter(numbers, np.int64)
    return {a.name: _values(a, rows) for a in attributes}


def _values(attribute: Attribute, rows: np.ndarray) -> np.ndarray:
    """Any bits, NaN's and denormal ones too, that differ by attribute, row and place in the row."""
    if attribute.name == ROW:
        assert (attribute.dtype, attribute.shape) == ("int64", ())
        return rows.copy()
    salt = np.uint64(int.from_bytes(attribute.name.encode()[:8], "little"))
    shape = (len(rows), *attribute.shape)
    if attribute.dtype == "bool":
        return (
            (_mixed(rows, int(np.prod(attribute.shape, dtype=np.int64)), salt) & np.uint64(1))
            .astype(bool)
            .reshape(shape)
        )
    words = -(-attribute.row_nbytes // 8)
    octets = _mixed(rows, words, salt).view(np.uint8)[:, : attribute.row_nbytes]
    return np.ascontiguousarray(octets).view(attribute.numpy_dtype).reshape(shape)


def _mixed(rows: np.ndarray, words: int, salt: np.uint64) -> np.ndarray:
    """Shape (rows, words): splitmix64 of salt, row and place, a bijection of 64-bit words."""
    place = np.arange(words, dtype=np.uint64)
    x = (rows.astype(np.uint64)[:, None] << np.uint64(24)) + place[None, :] + salt
    x = (x + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def save_rows(
    the_config: DataConfig, rows: int, size: int, *, commits: bool = False, **settings: Any
) -> DataConfig:
    """Save `rows` rows in batches of `size`; `commits`: each in a commit of its own."""
    with DataSaver(the_config, **settings) as saver:
        for numbers in in_batches(0, rows, size):
            saver(make(numbers, the_config.schema))
            if commits:
                saver.commit()
    return the_config


def assert_rows(
    batch: Mapping[str, Any],
    numbers: Iterable[int],
    attributes: Sequence[Attribute] = ATTRIBUTES,
) -> None:
    """The batch is exactly these rows: names in order, dtypes, shapes and every bit."""
    expected = make(numbers, attributes)
    assert list(batch) == list(expected)
    for name, array in expected.items():
        got = batch[name]
        assert (name, got.dtype, got.shape) == (name, array.dtype, array.shape)
        assert np.ascontiguousarray(got).tobytes() == array.tobytes(), name


def numbers_of(batch: Mapping[str, Any], attributes: Sequence[Attribute] = ATTRIBUTES) -> list[int]:
    """The numbers of the rows in a batch whose attributes all belong to them."""
    numbers: list[int] = np.asarray(batch[ROW]).tolist()
    assert_rows(batch, numbers, attributes)
    return numbers


def numbers_in(
    batches: Iterable[Mapping[str, Any]], attributes: Sequence[Attribute] = ATTRIBUTES
) -> list[int]:
    """`numbers_of` over batches, one after another."""
    return [number for batch in batches for number in numbers_of(batch, attributes)]


def stored(config: DataConfig, attributes: Sequence[Attribute] = ATTRIBUTES) -> list[int]:
    """The numbers of all rows of a dataset in order, as it is now."""
    return numbers_of(Dataset(config)[:], attributes)


def in_batches(start: int, stop: int, size: int) -> Iterable[range]:
    """The numbers from start to stop in ranges of `size`; the last may be shorter."""
    return (range(first, min(first + size, stop)) for first in range(start, stop, size))


def kilobytes(storage: dict[str, str], name: str = "rows") -> DataConfig:
    """A config of rows of 1 KB, in objects as small as may be."""
    return config(storage, name, attributes=ATTRIBUTES_1K, max_object_size=MIN_OBJECT_SIZE)
