"""The header of a compressed object: HDF5 finds each chunk, and it depends on nothing else."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator

import h5py
import numpy as np
import pytest

from storage_loader import Attribute
from storage_loader.codecs import Codec
from storage_loader.hdf5 import CodedRegion, coded_template
from storage_loader.schema import Schema
from tests.support import ROOT

CODEC = Codec.of({})

Drawn = tuple[Schema, int, dict[str, CodedRegion]]


def drawn(width: int, count: int, most: int, seed: int) -> Drawn:
    """Rows of `width` bytes and their numbers; of `count` blocks some have all their bytes."""
    rng = np.random.default_rng(seed)
    items = max(1, 65536 // width)
    rows = count * items - int(rng.integers(items))
    nbytes = min(items, rows) * width
    sizes = rng.integers(1, min(most, nbytes) + 1, count)
    sizes[rng.random(count) < 0.3] = nbytes
    numbers = rng.integers(1, min(8 * rows, 65536) + 1, -(-rows * 8 // 65536))
    schema = Schema.of([Attribute("x", "uint8", (width,)), Attribute("number", "int64")])
    coded = {
        "x": CodedRegion(CODEC, tuple(sizes.tolist())),
        "number": CodedRegion(CODEC, tuple(numbers.tolist())),
    }
    return schema, rows, coded


def all_drawn() -> Iterator[Drawn]:
    counts = 1, 2, 127, 128, 129, 1023, 1024, 1025, 1153, 2100
    for seed, count in enumerate(counts):
        for most in (40, 3000, 65536):
            yield drawn(65536 - seed, count, most, seed)
    yield drawn(100, 300, 5000, 0)
    yield drawn(1, 3, 100, 0)
    yield drawn(9_000_000, 5, 2**23, 0)


@pytest.mark.parametrize("of", [*all_drawn()], ids=lambda of: f"{of[1]}-{len(of[2]['x'].sizes)}")
def test_the_index_is_that_of_hdf5(of: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes and places are as HDF5 makes them where it is told of each chunk."""
    schema, rows, coded = of
    made = coded_template(schema, rows, (), coded)
    module = sys.modules["storage_loader.hdf5.template"]
    each = lambda count, nbytes: [(i, i + 1) for i in range(count)]  # noqa: E731
    monkeypatch.setattr(module, "told_together", each)
    monkeypatch.setattr(module, "list_chunks", lambda written, address, chunks: None)
    expected = coded_template(schema, rows, (), coded)
    assert made.pieces == expected.pieces
    for name in coded:
        places = expected.layout.columns[name].ranges
        assert made.layout.columns[name].ranges.tolist() == places.tolist()


def test_hdf5_finds_each_chunk() -> None:
    schema, rows, coded = drawn(65536, 1500, 30_000, 1)
    made = coded_template(schema, rows, (), coded)
    data = bytearray(made.layout.nbytes)
    for offset, piece in made.pieces:
        data[offset : offset + len(piece)] = piece
    with h5py.File(io.BytesIO(data)) as file:
        for name, region in coded.items():
            dataset = file[name].id
            found = [dataset.get_chunk_info(i) for i in range(dataset.get_num_chunks())]
            places = [(one.byte_offset, one.byte_offset + one.size) for one in found]
            assert places == [tuple(place) for place in made.layout.columns[name].ranges.tolist()]
            whole = made.layout.columns[name].block_nbytes
            assert [one.filter_mask != 0 for one in found] == [n == whole for n in region.sizes]


SCRIPT = """
import hashlib, sys
if sys.argv[1] == "with":
    import hdf5plugin
from storage_loader import Attribute
from storage_loader.codecs import COMPLIBS, Codec
from storage_loader.hdf5 import CodedRegion, coded_template
from storage_loader.schema import Schema

assert ("hdf5plugin" in sys.modules) == (sys.argv[1] == "with")
attributes = [Attribute(f"a{i}", "float32", (1000,)) for i in range(len(COMPLIBS))]
schema = Schema.of([*attributes, Attribute("text", "str")])
codecs = {f"a{i}": Codec.of({"complib": name}) for i, name in enumerate(COMPLIBS)}
codecs["text/values"] = codecs["a1"]
coded = {name: CodedRegion(codec, (100, 64_000, 7)) for name, codec in codecs.items()}
coded["text/values"] = CodedRegion(codecs["text/values"], (60, 65_536))
made = coded_template(schema, 40, (70_000,), coded)
digest = hashlib.sha256()
for offset, piece in made.pieces:
    digest.update(b"%d:" % offset)
    digest.update(piece)
print(len(made.pieces), digest.hexdigest())
"""


def test_bytes_are_the_same_with_and_without_plugins() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, plugins],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True, timeout=100,
        ).stdout
        for plugins in ("with", "without")
    }  # fmt: skip
    assert len(printed) == 1
    assert int(printed.pop().split()[0]) > 10
