"""What makes bytes wrong, in a store, a file or on their way, and rows of each kind to try it on.

`Wrong` and `WrongAnywhere` are for `alter` of tests/support/caches.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Ragged
from storage_loader.layout import ObjectLayout, Outline
from tests.support.caches import LARGE, fill
from tests.support.rows import ROW, config, numbers_of, save_rows


def flipped(place: int) -> Callable[[bytes], bytes]:
    """Gives a body with another bit at this byte."""

    def damage(body: bytes) -> bytes:
        return body[:place] + bytes([body[place] ^ 0x10]) + body[place + 1 :]

    return damage


def flip(path: Path, place: int) -> None:
    """The same in a file, which stays the one that others have open or mapped."""
    with path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


class Wrong:
    """Flips a bit of the byte at `place` in the first `times` answers that hold it."""

    def __init__(self, place: int, times: float) -> None:
        self.place, self.times, self.seen = place, times, 0
        self._lock = threading.Lock()

    def __call__(self, key: str, start: int, data: bytearray) -> None:
        if start <= self.place < start + len(data):
            with self._lock:
                self.seen += 1
                if self.seen <= self.times:
                    data[self.place - start] ^= 4


class WrongAnywhere:
    """Every answer is wrong somewhere, unless one that held any of its wrong bytes was before."""

    def __init__(self) -> None:
        self.flipped: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, key: str, start: int, data: bytearray) -> None:
        with self._lock:
            if data and not any(start <= place < start + len(data) for place in self.flipped):
                place = hash((start, len(data))) % len(data)
                data[place] ^= 1
                self.flipped.append(start + place)


@dataclass(frozen=True)
class Kind:
    """Rows of one kind, which are saved as one object, and how they are loaded."""

    num_rows: int
    batch_size: int
    save: Callable[[Path], DataConfig]
    numbers_of: Callable[[Any], list[int]]
    """The numbers of the rows of a batch; asserts that each is right in all that it has."""
    parts: tuple[str, ...]
    """Of the object that may be damaged: the directory, and regions."""

    def numbers_in(self, batches: Iterable[Any]) -> list[int]:
        """Those of all batches, ascending."""
        return sorted(number for batch in batches for number in self.numbers_of(batch))

    @property
    def paths(self) -> dict[str, dict[str, Any]]:
        """Settings of a loader, for each way that bytes take."""
        return {
            "held": {},
            "held, all at once": {"batch_size": self.num_rows},
            "held, global": {"shuffle": "global"},
            "copied": {"cache_size": 200_000},
            "remote": {"index": True},
            "remote, global": {"index": True, "shuffle": "global"},
        }

    def loader(self, the_config: DataConfig, cache_dir: Path, path: str, **how: Any) -> DataLoader:
        """By one of the `paths`."""
        settings = {"batch_size": self.batch_size, "cache_dir": cache_dir, **self.paths[path]}
        return DataLoader(the_config, **{**settings, **how})


def object_of(the_config: DataConfig) -> tuple[Path, ObjectLayout]:
    """The file of a folder's only object, and what its commit and directory say."""
    snapshot = DataLoader(the_config).open()
    [stored] = snapshot.objects
    path = Path(the_config.storage.removeprefix("file://")) / snapshot.key(0)
    if isinstance(stored.layout, ObjectLayout):
        return path, stored.layout
    assert isinstance(stored.layout, Outline)
    start, end = stored.layout.directory_range
    return path, stored.layout.layout(snapshot.schema, memoryview(path.read_bytes())[start:end])


def place_of(the_config: DataConfig, part: str) -> int:
    """A byte of the object: of its directory, or in the middle of `block_of` that region."""
    _, layout = object_of(the_config)
    if part == "directory":
        return layout.directory_range[0] + 3
    start, end = layout.columns[part].block_range(block_of(layout, part))
    return (start + end) // 2


def block_of(layout: ObjectLayout, part: str) -> int:
    """Which block of a region is damaged: one that is not the first, if there is any."""
    return min(1, layout.columns[part].num_blocks - 1)


def named(the_config: DataConfig, part: str) -> str:
    """How an error begins that names what was damaged."""
    _, layout = object_of(the_config)
    key = DataLoader(the_config).open().key(0)
    if part == "directory":
        return f"{key}: the directory differs from its own checksum"
    column, block = layout.columns[part], block_of(layout, part)
    first = block * column.block_items
    last = min(first + column.block_items, column.items) - 1
    attribute, _, role = part.partition("/")
    what = "values" if role == "values" else "rows"
    return f"{key}: attribute '{attribute}', {what} {first} to {last} of this object differ"


_VARIABLE = (
    Attribute("tokens", "int32", (None,)),
    Attribute(ROW, "int64"),
    Attribute("caption", "str"),
    Attribute("pixels", "uint8", (3000,)),
)
_REGIONS = ("tokens/ends", "tokens/values", "caption/ends", "caption/values", "pixels")
_COMPRESSED = (
    Attribute("tokens", "int32", (None,)),
    Attribute(ROW, "int64", compressor=False),
    Attribute("caption", "str", compressor={"complib": "lz4"}),
    Attribute("pixels", "uint8", (100,), compressor={"complib": "zlib"}),
)
_NUM_COMPRESSED = 20_000  # several blocks of ends, too


@functools.cache
def smaller_rows() -> dict[str, Any]:
    """Rows that become smaller."""
    numbers = np.arange(_NUM_COMPRESSED)
    values = [np.arange(n % 7, dtype=np.int32) + n // 100 for n in numbers.tolist()]
    return {
        "tokens": Ragged.of_lengths(np.concatenate(values), numbers % 7),
        ROW: numbers,
        "caption": [f"row {n}" * (n % 4) for n in numbers.tolist()],
        "pixels": (numbers[:, None] + np.arange(100) // 9).astype(np.uint8),
    }


def smaller_config(folder: Path) -> DataConfig:
    return DataConfig("coded", _COMPRESSED, storage=folder, compressor={})


def _save_smaller(folder: Path) -> DataConfig:
    with DataSaver(smaller_config(folder)) as saver:
        for first in range(0, _NUM_COMPRESSED, 5000):
            saver({name: rows[first : first + 5000] for name, rows in smaller_rows().items()})
    the_config = smaller_config(folder)
    _, layout = object_of(the_config)
    for region in _REGIONS:
        column = layout.columns[region]
        assert column.codec is not None
        start, end = column.block_range(1)
        assert end - start < column.block_nbytes
    return the_config


def _smaller_numbers(batch: dict[str, Any]) -> list[int]:
    right = smaller_rows()
    numbers = np.asarray(batch[ROW])
    assert (batch["pixels"] == right["pixels"][numbers]).all()
    assert batch["caption"] == [right["caption"][n] for n in numbers.tolist()]
    lengths = right["tokens"].lengths[numbers]
    assert batch["tokens"].lengths.tolist() == lengths.tolist()
    first = np.repeat(right["tokens"].offsets[numbers] - batch["tokens"].offsets[:-1], lengths)
    assert (batch["tokens"].values == right["tokens"].values[first + np.arange(len(first))]).all()
    return numbers.tolist()


def _save_variable(folder: Path) -> DataConfig:
    return save_rows(config({"storage": str(folder)}, attributes=_VARIABLE), 600, 100)


KINDS = {
    "fixed": Kind(
        400,
        16,
        lambda folder: fill({"storage": str(folder)}),
        lambda batch: numbers_of(batch, LARGE),
        ("directory", "pixels", ROW),
    ),
    "variable": Kind(
        600,
        16,
        _save_variable,
        lambda batch: numbers_of(batch, _VARIABLE),
        ("directory", *_REGIONS),
    ),
    "compressed": Kind(
        _NUM_COMPRESSED, 5000, _save_smaller, _smaller_numbers, ("directory", *_REGIONS)
    ),
}
