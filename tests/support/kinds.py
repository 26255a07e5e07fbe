"""Numbered rows of every kind of attribute, and how a framework gives them, undone to numpy's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import storage_loader
from storage_loader import Attribute, DataConfig, Pad, Ragged
from storage_loader.config import MIN_OBJECT_SIZE
from tests.support.rows import ROW, config, save_rows

KINDS = (
    Attribute("image", "uint8", (3, 5)),
    Attribute("tokens", "int32", (None,)),
    Attribute("boxes", "float32", (None, 4)),
    Attribute("half", "bfloat16", (None, 2)),
    Attribute("caption", "str"),
    Attribute("raw", "bytes"),
    Attribute("meta", "json"),
    Attribute(ROW, "int64"),
)
COUNT = 103

WAYS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 16},
    "rows": {"batch_size": None},
    "padded": {
        "batch_size": 16,
        "pad": {"tokens": -1, "boxes": Pad(2.5, multiple_of=4, side="left")},
    },
}


def fill(storage: Mapping[str, str]) -> DataConfig:
    """A dataset of `COUNT` rows in several objects."""
    the_config = config(storage, "kinds", attributes=KINDS, max_object_size=MIN_OBJECT_SIZE)
    return save_rows(the_config, COUNT, 40)


def expected_rows(the_config: DataConfig, **how: Any) -> list[int]:
    """The numbers in the order of the numpy loader."""
    loader = storage_loader.DataLoader(the_config, attributes=[ROW], **{**how, "pad": None})
    return [number for batch in loader for number in np.atleast_1d(batch[ROW]).tolist()]


def as_batch(given: Mapping[str, Any], way: str) -> dict[str, Any]:
    """A batch as one without padding has it; `given` are numpy's arrays, `Ragged` and texts."""
    if way == "rows":
        return {a.name: _one_row(given[a.name], a) for a in KINDS}
    if way == "padded":
        return {
            a.name: _unpadded(given[a.name], given[f"{a.name}_length"], a.name)
            if a.name in WAYS["padded"]["pad"]
            else given[a.name]
            for a in KINDS
        }
    return dict(given)


def _one_row(row: Any, attribute: Attribute) -> Any:
    if attribute.is_text:
        return [row]
    return Ragged.of_lengths(row, [len(row)]) if attribute.is_variable else row[None]


def _unpadded(dense: np.ndarray, lengths: np.ndarray, name: str) -> Ragged:
    pad = WAYS["padded"]["pad"][name]
    pad = pad if isinstance(pad, Pad) else Pad(pad)
    assert lengths.dtype == np.int64
    assert dense.shape[1] == -(-int(lengths.max()) // pad.multiple_of) * pad.multiple_of
    places = np.arange(dense.shape[1])
    if pad.side == "left":
        places = places[::-1]
    is_row = places < lengths[:, None]
    assert (dense[~is_row] == pad.value).all()
    return Ragged.of_lengths(dense[is_row], lengths)
