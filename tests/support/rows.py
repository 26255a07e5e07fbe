"""Numbered rows: every attribute of a row is a function of the row's number.

So a test that has read rows knows which they are and that no attribute of one came from another:
loss, duplication, order and alignment are all asserted, bit for bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataSaver, Dataset, Ragged
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


def make(numbers: Iterable[int], attributes: Sequence[Attribute] = ATTRIBUTES) -> dict[str, Any]:
    """The rows of these numbers, in this order: arrays, `Ragged` and lists of texts."""
    rows = np.fromiter(numbers, np.int64)
    return {a.name: _values(a, rows) for a in attributes}


def _values(attribute: Attribute, rows: np.ndarray) -> Any:
    """Any bits, NaN's and denormal ones too, that differ by attribute, row and place in the row."""
    if attribute.name == ROW:
        assert (attribute.dtype, attribute.shape) == ("int64", ())
        return rows.copy()
    salt = np.uint64(int.from_bytes(attribute.name.encode()[:8], "little"))
    if attribute.is_variable:
        return _variable(attribute, rows, salt)
    shape = (len(rows), *attribute.shape)
    if attribute.dtype == "bool":
        return (
            (_mixed(rows, math.prod(attribute.item_shape), salt) & np.uint64(1))
            .astype(bool)
            .reshape(shape)
        )
    if attribute.row_nbytes > 2**15:  # a copy takes a tenth of the time
        distinct, places = np.unique(rows, return_inverse=True)
        if len(distinct) < len(rows):
            copied: np.ndarray = _values(attribute, distinct)[places]
            return copied
    words = -(-attribute.row_nbytes // 8)
    octets = _mixed(rows, words, salt).view(np.uint8)[:, : attribute.row_nbytes]
    return np.ascontiguousarray(octets).view(attribute.numpy_dtype).reshape(shape)


MOST_ITEMS = 700  # of a row of numbers; one in 64 rows has so many, one in 8 none


def count_of(number: int, name: str) -> int:
    """Items, characters or bytes of a row that has no fixed size."""
    return int(_counts(np.array([number]), name)[0])


def _counts(rows: np.ndarray, name: str) -> np.ndarray:
    drawn = _mixed(rows, 1, np.uint64(len(name)))[:, 0] >> np.uint64(20)
    counts = np.where(drawn % 64 == 1, MOST_ITEMS, drawn % 23).astype(np.int64)
    return np.where(drawn % 8 == 0, 0, counts)


def _variable(attribute: Attribute, rows: np.ndarray, salt: np.uint64) -> Any:
    counts = _counts(rows, attribute.name)
    if attribute.is_text:
        octets = np.split(_octets(rows, counts, salt), np.cumsum(counts)[:-1]) if len(rows) else []
        each = zip(rows.tolist(), octets, strict=True)
        return [_text(attribute.dtype, number, one) for number, one in each]
    octets = _octets(rows, counts * attribute.item_nbytes, salt)
    if attribute.dtype == "bool":
        octets = octets & 1
    shape = (counts.sum(), *attribute.item_shape)
    return Ragged.of_lengths(octets.view(attribute.numpy_dtype).reshape(shape), counts.tolist())


LETTERS = 'ab\0\u00e9\u6f22\U0001f600\n"'


def _text(dtype: str, number: int, octets: np.ndarray) -> Any:
    if dtype == "bytes":
        return octets.tobytes()
    text = "".join(map(LETTERS.__getitem__, (octets % 8).tolist()))
    if dtype == "str":
        return text
    count = len(octets)
    return (
        {"row": number, "text": text, "nested": [None, True, {"": number / 8}]} if count else count
    )


def _octets(rows: np.ndarray, nbytes: np.ndarray, salt: np.uint64) -> np.ndarray:
    """The first `nbytes` of each row's words, one row after another."""
    words = -(-nbytes // 8)
    row = np.repeat(np.arange(len(rows)), words)
    place = np.arange(len(row)) - (np.cumsum(words) - words)[row]
    mixed = _mix((rows.astype(np.uint64)[row] << np.uint64(24)) + place.astype(np.uint64) + salt)
    kept = 8 * place[:, None] + np.arange(8) < nbytes[row][:, None]
    return mixed.view(np.uint8).reshape(-1, 8)[kept]


def _mixed(rows: np.ndarray, words: int, salt: np.uint64) -> np.ndarray:
    """Shape (rows, words): of salt, row and place."""
    place = np.arange(words, dtype=np.uint64)
    return _mix((rows.astype(np.uint64)[:, None] << np.uint64(24)) + place[None, :] + salt)


def _mix(x: np.ndarray) -> np.ndarray:
    """Splitmix64, a bijection of 64-bit words, in place."""
    x += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return x


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
    rows = np.fromiter(numbers, np.int64)
    assert list(batch) == [a.name for a in attributes]
    for a in attributes:
        expected = _expected if len(rows) * a.row_nbytes > MOST_KEPT else _kept
        assert (a.name, _plain(batch[a.name])) == (
            a.name,
            expected(a.name, a.dtype, a.shape, rows.tobytes()),
        )


def _expected(name: str, dtype: str, shape: tuple[int | None, ...], numbers: bytes) -> Any:
    """What `_plain` makes of an attribute's values in the rows of these numbers, as int64."""
    return _plain(_values(Attribute(name, dtype, shape), np.frombuffer(numbers, np.int64)))


# The same batches come again in many tests; to make them took longer than to load them.
_kept = functools.lru_cache(maxsize=5000)(_expected)
MOST_KEPT = 2**14  # bytes of each


def _plain(value: Any) -> Any:
    """What is equal only of equal types, shapes and bits."""
    if isinstance(value, Ragged):
        return Ragged, value.lengths.tolist(), _plain(value.values)
    if isinstance(value, list):
        return value
    return value.dtype, value.shape, np.ascontiguousarray(value).tobytes()


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
