"""Commits say the smallest and the largest of each attribute of single numbers, by object."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader import Attribute, DataConfig, DataSaver, Dataset
from storage_loader.catalog import Catalog
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.saver.extremes import Extremes
from storage_loader.schema import DTYPES, Schema
from tests.support.rows import ROW

SCALARS = [
    Attribute(ROW, "int64"),
    *(Attribute(name, name) for name in DTYPES if not name.startswith("complex")),
]
OTHERS = [
    Attribute("pixels", "uint8", (300,)),
    Attribute("wave", "complex64"),
    Attribute("one", "int8", (1,)),
    Attribute("text", "str"),
]


def columns(config: DataConfig) -> list[dict[str, Any]]:
    """The objects' columns of each commit."""
    catalog = Catalog(config)
    keys = sorted(info.key for info in catalog.store.list(f"{catalog.prefix}/metadata"))
    return [json.loads(bytes(catalog.store.get(key)))["objects"] for key in keys]


@pytest.mark.parametrize("compressor", [None, {"complib": "zstd"}])
@pytest.mark.parametrize("others", [OTHERS, OTHERS[:3]], ids=["text too", "fixed"])
def test_of_each_object(
    memory: dict[str, str], compressor: dict[str, Any] | None, others: list[Attribute]
) -> None:
    config = DataConfig("e", [*SCALARS, *others], max_object_size=MIN_OBJECT_SIZE,
                        compressor=compressor, **memory)  # fmt: skip
    rng = np.random.default_rng(0)
    with DataSaver(config) as saver:
        for first in range(0, 900, 90):
            rows = np.arange(first, first + 90)
            batch = {a.name: rng.integers(0, 2, 90).astype(a.numpy_dtype) for a in SCALARS}
            batch |= {ROW: rows, "int8": rows % 120 - 60, "uint64": rows.astype(np.uint64) + 2**63}
            batch |= {"float64": rows / 7 - 30, "bfloat16": (rows % 50).astype(np.float32)}
            batch |= {"pixels": rng.integers(0, 255, (90, 300)), "text": ["x"] * 90}
            batch |= {"wave": rows * 1j, "one": np.ones((90, 1), np.int8)}
            saver({a.name: batch[a.name] for a in [*SCALARS, *others]})
            if first == 360:
                saver.commit()
    found = [one for commit in columns(config) for one in _by_object(commit)]
    objects = Dataset(config).open().objects
    assert len(found) == len(objects) > 3
    first = 0
    for one, stored in zip(found, objects, strict=True):
        rows = Dataset(config)[first : first + stored.rows]
        expected = {a.name: (rows[a.name].min(), rows[a.name].max()) for a in SCALARS}
        assert one == {name: tuple(map(_plain, both)) for name, both in expected.items()}
        first += stored.rows


def _plain(value: Any) -> Any:
    return float(value) if value.dtype.kind == "V" else value.item()


def _by_object(commit: dict[str, Any]) -> list[dict[str, tuple[Any, Any]]]:
    assert commit["least"].keys() == commit["most"].keys()
    return [
        {name: (commit["least"][name][i], commit["most"][name][i]) for name in commit["least"]}
        for i in range(len(commit["key"]))
    ]


@given(
    parts=st.lists(
        st.lists(st.floats() | st.just(math.nan), max_size=4).map(np.array), min_size=1, max_size=5
    )
)
def test_what_is_no_finite_number_is_not_known(parts: list[np.ndarray]) -> None:
    extremes = Extremes(Schema.of([("x", "float64")]))
    for part in parts:
        extremes.add({"x": part}, 0, len(part))
    every = np.concatenate(parts)
    if not len(every):
        assert extremes.taken() == {}
    elif np.isfinite(every).all():
        assert extremes.taken() == {"x": (every.min(), every.max())}
    else:
        assert extremes.taken() == {"x": (None, None)}
    assert extremes.taken() == {}
