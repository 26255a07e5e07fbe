"""Functions for `decode=`, at the top level so that worker processes can import them.

Row n holds an image of `SIDE` x `SIDE` pixels, each n % 251, compressed.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from storage_loader import DataConfig, save

SIDE = 8
COUNT = 100


def fill(storage: Mapping[str, Any], count: int = COUNT) -> DataConfig:
    """Rows 0 to `count` - 1 as they are said above."""
    config = DataConfig(
        "decoded",
        attributes=[("raw", "bytes"), ("row_", "int64"), ("words", "str"), ("meta", "json")],
        **storage,
    )
    numbers = range(count)
    save(
        config,
        {
            "raw": [zlib.compress(bytes([n % 251]) * SIDE**2) for n in numbers],
            "row_": [*numbers],
            "words": [" ".join(map(str, range(n % 4))) for n in numbers],
            "meta": [{"label": n, "tags": ["x"] * (n % 3)} for n in numbers],
        },
    )
    return config


def image(raw: bytes) -> np.ndarray:
    octets = np.frombuffer(zlib.decompress(raw), np.uint8)  # which nobody may write to
    return octets.reshape(SIDE, SIDE)


def cut_image(raw: bytes) -> np.ndarray:
    """Of another size in each row, or nearly."""
    whole = image(raw)
    return whole[: 1 + whole[0, 0] % SIDE]


def label(meta: Any) -> int:
    return meta["label"]


def word_count(words: str) -> np.ndarray:
    return np.array(len(words.split()), ">i2")


def with_process(raw: bytes) -> np.ndarray:
    return np.array([zlib.decompress(raw)[0], os.getpid(), threading.get_ident()])


def fail_at_70(meta: Any) -> Any:
    if meta["label"] == 70:
        raise ZeroDivisionError("seventy " * 1000)
    return meta["label"]
