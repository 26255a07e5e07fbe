"""docs/format.md is enough to read a dataset, and what was stored once stays readable.

`Independent` is a reader written from that page alone: JSON, byte ranges, XXH3 and decompressors,
nothing of this library and no HDF5.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import (
    Attribute,
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    save,
    verify_dataset,
)
from storage_loader.config import MIN_OBJECT_SIZE
from storage_loader.errors import SaverError, StorageLoaderError
from storage_loader.schema import DTYPES
from storage_loader.store import MemoryStore
from tests.format.golden import make as golden
from tests.format.golden.make import ADDITIONAL, ATTRIBUTES, RAGGED, RAGGED_ROWS, ROWS
from tests.support import ROOT
from tests.support.faulty import FailAt, watch
from tests.support.rows import ATTRIBUTES as NUMBERED
from tests.support.rows import assert_rows, config, make, stored

GOLDEN = Path(__file__).parent / "golden" / "store"
FILES = sorted(path for path in GOLDEN.rglob("*") if path.is_file())

ITEM = {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
ITEM |= {"complex64": 8, "complex128": 16}
TEXTS = ("bytes", "str", "json")
ITEM |= {f"{u}int{bits}": bits // 8 for u in ("", "u") for bits in (8, 16, 32, 64)}


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8"
    )


def lz4_block(data: bytes) -> bytes:
    """Sequences of literals and matches: https://github.com/lz4/lz4, lz4_Block_format.md."""
    out, place = bytearray(), 0

    def length(nibble: int) -> int:
        nonlocal place
        total, more = nibble, nibble == 15
        while more:
            total, more, place = total + data[place], data[place] == 255, place + 1
        return total

    while True:
        token = data[place]
        place += 1
        literals = length(token >> 4)
        out += data[place : place + literals]
        place += literals
        if place == len(data):
            return bytes(out)
        distance = int.from_bytes(data[place : place + 2], "little")
        assert 0 < distance <= len(out)
        place += 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-distance])


def lz4_frame(data: bytes) -> bytes:
    out = lz4_block(data[16:])
    sizes = (len(out), 8), (len(out), 4), (len(data) - 16, 4)
    assert data[:16] == b"".join(number.to_bytes(size, "big") for number, size in sizes)
    return out


def zstd_frame(data: bytes) -> bytes:
    out = zstandard.ZstdDecompressor().decompress(data)  # needs the content's size
    assert len(out) == zstandard.frame_content_size(data)
    return out


DECODERS = {"zlib": zlib.decompress, "zstd": zstd_frame, "lz4": lz4_frame}


def decoded_block(data: bytes, codec: dict[str, Any], nbytes: int, value_nbytes: int) -> bytes:
    assert 0 < len(data) <= nbytes
    if len(data) == nbytes:
        return data
    out = DECODERS[codec["complib"]](data)
    assert len(out) == nbytes
    if codec["shuffle"] and value_nbytes > 1:
        count = nbytes // value_nbytes
        out = b"".join(out[i::count] for i in range(count))
    return out


class Independent:
    """Reads a dataset by docs/format.md. `files`: keys below the storage to their bytes."""

    def __init__(self, files: dict[str, bytes], name: str, additional: dict[str, Any]) -> None:
        digest = hashlib.sha256(canonical([name, additional])).hexdigest()
        prefix = f"{name}/{digest[:16]}/"
        self.files = {k.removeprefix(prefix): v for k, v in files.items() if k.startswith(prefix)}
        description = json.loads(self.files["dataset.json"])
        self.order = description.get("order")
        assert set(description) >= {"format", "name", "additional", "attributes"}
        assert not description.get("requires")
        assert self.order in (None, "writer")
        assert (description["format"], description["name"]) == (1, name)
        assert description["additional"] == additional
        assert canonical(description) == self.files["dataset.json"]
        self.attributes = description["attributes"]
        self.commits = {}
        for key, body in self.files.items():
            found = re.fullmatch(r"metadata/(0\d{11})-(.+)-(\d{6})\.json", key)
            if found:
                identity = (int(found[1]), found[2], int(found[3]))
                self.commits[identity] = key[len("metadata/") : -len(".json")], json.loads(body)

    def live(self) -> list[dict[str, Any]]:
        replaced: set[str] = set()
        standing = []
        counting = {identity[1:]: identity for identity in sorted(self.commits, reverse=True)}
        for identity in sorted(counting.values(), reverse=True):
            name, commit = self.commits[identity]
            if replaced.isdisjoint(commit["replaces"]):
                replaced |= set(commit["replaces"])
                standing.append((identity, name, commit))
        live = [one for one in reversed(standing) if one[1] not in replaced]
        if self.order == "writer":
            live.sort(key=lambda one: one[0][1:])
        return [commit for _, _, commit in live]

    def rows(self) -> dict[str, Any]:
        """Each attribute's values over all rows, every checksum verified.

        The bytes of them all; of rows that have no fixed size a list, the bytes of each row.
        """
        values: dict[str, Any] = {
            a["name"]: [] if self.is_variable(a) else b"" for a in self.attributes
        }
        identity = [{k: a[k] for k in ("name", "dtype", "shape")} for a in self.attributes]
        digest = hashlib.sha256(canonical(identity)).hexdigest()
        for commit in self.live():
            assert commit["format"] == 1
            assert commit["schema"] == digest[:16]
            assert not commit.get("requires")
            known = ["key", "rows", "nbytes", "checksum", "directory_checksum", "layout"]
            is_coded = any("codecs" in layout for layout in commit["layouts"])
            if is_coded or any(map(self.is_variable, self.attributes)):
                known += ["directory", "directory_nbytes", "decoded"]
            columns = commit["objects"]
            for place in range(len(columns["key"])):
                one = {name: columns[name][place] for name in known}
                for name, piece in self._object(one, commit["layouts"]).items():
                    values[name] += piece
                    stated = [columns.get(what, {}).get(name) for what in ("least", "most")]
                    self._check_bounds(name, piece, [some and some[place] for some in stated])
        return values

    def _check_bounds(self, name: str, piece: Any, stated: list[Any]) -> None:
        """Of single real numbers the commit says the smallest and the largest."""
        [attribute] = [a for a in self.attributes if a["name"] == name]
        dtype = attribute["dtype"]
        if attribute["shape"] or dtype in TEXTS or dtype.startswith("complex"):
            assert stated == [None, None]
            return
        if dtype == "bfloat16":
            values = (np.frombuffer(piece, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(piece, np.dtype(dtype).newbyteorder("<"))
        is_known = np.isfinite(values).all()
        assert stated == ([values.min(), values.max()] if is_known else [None, None])

    @staticmethod
    def is_variable(attribute: dict[str, Any]) -> bool:
        return attribute["dtype"] in TEXTS or attribute["shape"][:1] == [None]

    @staticmethod
    def value_nbytes(attribute: dict[str, Any], region: str) -> int:
        """Bytes of one value of the dtype, which are shuffled."""
        return 8 if region.endswith("/ends") else ITEM.get(attribute["dtype"], 1)

    def regions(self) -> list[tuple[str, str, int]]:
        """Name, attribute and bytes of an item, in order."""
        found = []
        for a in self.attributes:
            name, shape = a["name"], [axis for axis in a["shape"] if axis is not None]
            nbytes = int(np.prod(shape, dtype=np.int64)) * ITEM.get(a["dtype"], 1)
            if self.is_variable(a):
                found += [(f"{name}/ends", name, 8), (f"{name}/values", name, nbytes)]
            else:
                found.append((name, name, nbytes))
        return found

    def _object(self, one: dict[str, Any], layouts: list[Any]) -> dict[str, Any]:
        assert re.fullmatch(r"objects/[^/]+/[^/]+\.h5", one["key"])
        data = self.files[one["key"]]
        assert len(data) == one["nbytes"]
        assert f"{xxhash.xxh3_64_intdigest(data):016x}" == one["checksum"]
        layout = layouts[one["layout"]]
        regions = self.regions()
        codecs = layout.get("codecs", {})
        assert set(codecs) <= {name for name, _, _ in regions}
        places: list[int] = []
        of_blocks = iter(())  # start and bytes of each block
        if "directory" in one:
            table = data[one["directory"] : one["directory"] + one["directory_nbytes"]]
            words = np.frombuffer(table, "<u8").tolist()
            places, words = words[: 1 + 3 * len(regions)], words[1 + 3 * len(regions) :]
            assert places[0] == 0
            if codecs:
                third = len(words) // 3
                of_blocks = zip(words[third : 2 * third], words[2 * third :], strict=True)
        all_blocks, found, parts = [], {}, []
        for i, (name, attribute, item_nbytes) in enumerate(regions):
            if places:
                start, items, nbytes = places[1 + 3 * i : 4 + 3 * i]
            else:
                start, items, nbytes = layout["offsets"][name], one["rows"], None
            decoded = items * item_nbytes
            assert items == one["rows"] or name == f"{attribute}/values"
            if not decoded:
                assert (start, nbytes or 0) == (0, 0)
                found[name] = b""
                continue
            block = layout["blocks"][name] * item_nbytes
            if name in codecs:
                blocks = [next(of_blocks) for _ in range(-(-decoded // block))]
                assert (start, nbytes) == (blocks[0][0], sum(n for _, n in blocks))
                block = min(block, decoded)
                [value] = [
                    self.value_nbytes(a, name) for a in self.attributes if a["name"] == attribute
                ]
                pieces = [
                    decoded_block(data[b : b + n], codecs[name], block, value) for b, n in blocks
                ]
                found[name] = b"".join(pieces)[:decoded]
                parts += [(b, b + n) for b, n in blocks]
            else:
                assert nbytes in (None, decoded)
                found[name] = data[start : start + decoded]
                parts.append((start, start + decoded))
                blocks = [
                    (b, min(block, start + decoded - b))
                    for b in range(start, start + decoded, block)
                ]
                assert not codecs or [next(of_blocks) for _ in blocks] == blocks
            all_blocks += blocks
        checksums = [xxhash.xxh3_64_intdigest(data[b : b + n]) for b, n in all_blocks]
        if codecs:
            checksums += [number for column in zip(*all_blocks, strict=True) for number in column]
        table = np.array([*places, *checksums], "<u8").tobytes()
        start = one.get("directory", layout.get("directory"))
        assert data[start : start + len(table)] == table
        assert one.get("directory_nbytes", len(table)) == len(table)
        assert f"{xxhash.xxh3_64_intdigest(table):016x}" == one["directory_checksum"]
        parts = sorted([*parts, (start, start + len(table))])
        for (_, end), (following, _) in zip(parts, [*parts[1:], (len(data), 0)], strict=True):
            assert end <= following
        assert not table or all(first % 64 == 0 for first, _ in parts)
        assert one.get("decoded", 0) in (0, sum(map(len, found.values())))
        return {a["name"]: self._rows(a, found) for a in self.attributes}

    def _rows(self, attribute: dict[str, Any], found: dict[str, bytes]) -> Any:
        name = attribute["name"]
        if not self.is_variable(attribute):
            return found[name]
        values = found[f"{name}/values"]
        ends = np.frombuffer(found[f"{name}/ends"], "<i8").tolist()
        [item_nbytes] = [n for region, _, n in self.regions() if region == f"{name}/values"]
        assert ends[-1] * item_nbytes == len(values)
        starts = [0, *ends[:-1]]
        rows = [
            values[a * item_nbytes : b * item_nbytes] for a, b in zip(starts, ends, strict=True)
        ]
        if attribute["dtype"] in ("str", "json"):
            for row in rows:
                row.decode("utf-8")
        return rows


def golden_files() -> dict[str, bytes]:
    return {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in FILES}


def expected(numbers: Any, attributes: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in make(numbers, attributes).items()}


GOLDEN_CONFIG = DataConfig("golden", additional=ADDITIONAL, storage=GOLDEN)
ROW_1 = Dataset(GOLDEN_CONFIG).open().objects[1].layout.columns["image"].offset + 15


def test_the_golden_dataset_is_read_by_the_specification_alone() -> None:
    reader = Independent(golden_files(), "golden", ADDITIONAL)
    assert reader.rows() == expected(ROWS, ATTRIBUTES)
    assert len(reader.commits) == 4
    assert [len(commit["objects"]["key"]) for commit in reader.live()] == [3, 1]
    assert len(reader.live()[0]["layouts"]) == 2


def test_a_dataset_with_a_barrier_a_second_commit_of_a_number_and_foreign_files(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    the_config = config(memory)
    with monkeypatch.context() as broken:
        watch(broken, before=FailAt("put commit"))
        with pytest.raises(SaverError), DataSaver(the_config, writer="w") as saver:
            saver(make([90]))
    with DataSaver(the_config, writer="w", commit_every=3) as saver:
        for first in (0, 3, 6):
            saver(make(range(first, first + 3)))
    store = MemoryStore(memory["storage"])
    names = {i.key.rsplit("/", 1)[1]: i.key for i in store.list(the_config.dataset_prefix)}
    assert {"000000.claim", "000003.claim", "000000000001-w-000000.json"} < set(names)
    second = names["000000000003-w-000002.json"]
    store.put(second.replace("000000000003", "000000000005"), store.get(second))
    store.put(second.replace("000000000003", "100000000000"), b"its number is no commit's")
    store.put(second.replace("metadata", "metadata/copy"), b"no commit lies here")
    files = {i.key: bytes(store.get(i.key)) for i in store.list()}
    reader = Independent(files, "rows", {})
    assert len(reader.commits) == 5
    assert reader.rows() == expected(range(9), NUMBERED)
    assert stored(the_config) == list(range(9))


def test_the_golden_dataset_is_read_by_this_version() -> None:
    dataset = Dataset(GOLDEN_CONFIG)
    assert_rows(dataset[:], ROWS, ATTRIBUTES)
    some = [20, 3, 0, 16, 17]
    assert_rows(dataset[some], [ROWS[i] for i in some], ATTRIBUTES)
    assert list(dataset.schema) == ATTRIBUTES
    for index in (False, True):
        [batch] = DataLoader(GOLDEN_CONFIG, batch_size=100, index=index)
        assert_rows(batch, ROWS, ATTRIBUTES)
    first = Dataset(GOLDEN_CONFIG, version=["000000000001-0000000000000000-000000"])
    assert_rows(first[:], range(4), ATTRIBUTES)


def as_octets(rows: list[Any], attribute: Attribute) -> list[bytes]:
    """Of each row what is stored."""
    if attribute.dtype == "json":
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in rows]
    if attribute.dtype == "str":
        return [row.encode() for row in rows]
    return [bytes(row) if isinstance(row, bytes) else row.tobytes() for row in rows]


def expected_ragged(numbers: list[int]) -> dict[str, Any]:
    rows = golden.ragged(numbers)
    found: dict[str, Any] = {a.name: as_octets(rows[a.name], a) for a in RAGGED[1:]}
    return {"row": np.array(numbers, "<i8").tobytes(), **found}


RAGGED_CONFIG = DataConfig("ragged", storage=GOLDEN)


def test_the_ragged_golden_dataset_is_read_by_the_specification_alone() -> None:
    reader = Independent(golden_files(), "ragged", {})
    assert reader.rows() == expected_ragged(RAGGED_ROWS)
    assert [len(commit["objects"]["key"]) for commit in reader.live()] == [1, 1]
    for commit in reader.live():
        [layout] = commit["layouts"]
        assert list(layout) == ["blocks"]
        assert set(layout["blocks"].values()) == {3, 30}


def test_the_ragged_golden_dataset_is_read_by_this_version() -> None:
    rows = golden.ragged(RAGGED_ROWS)
    for batch in (Dataset(RAGGED_CONFIG)[:], *DataLoader(RAGGED_CONFIG, batch_size=100)):
        assert list(batch) == [a.name for a in RAGGED]
        assert batch["row"].tolist() == RAGGED_ROWS
        for a in RAGGED[1:]:
            assert as_octets([*batch[a.name]], a) == as_octets(rows[a.name], a)


def test_the_ragged_golden_dataset_is_right_by_this_version() -> None:
    verified = verify_dataset(RAGGED_CONFIG)
    assert (verified.problems, verified.num_rows) == ((), len(RAGGED_ROWS))


def test_the_ragged_golden_objects_are_hdf5() -> None:
    [path, _] = sorted((GOLDEN / "ragged").rglob("*.h5"))
    rows = expected_ragged(RAGGED_ROWS[:12])
    with h5py.File(path) as h5:
        assert h5["row"][:].tolist() == RAGGED_ROWS[:12]
        for a in RAGGED[1:]:
            assert list(h5[a.name]) == ["ends", "values"]
            ends, values = h5[a.name]["ends"], h5[a.name]["values"]
            assert (ends.shape, ends.dtype) == ((12,), np.dtype("<i8"))
            assert values.shape == (ends[-1], *a.item_shape)
            assert ends[-1] * a.item_nbytes == sum(map(len, rows[a.name]))


COMPRESSED_CONFIG = DataConfig("compressed", storage=GOLDEN)


def expected_compressed(numbers: list[int]) -> dict[str, Any]:
    rows = golden.compressed(numbers)
    return {
        a.name: as_octets([*rows[a.name]], a) if a.is_variable else rows[a.name].tobytes()
        for a in golden.KINDS_COMPRESSED
    }


def test_the_compressed_golden_dataset_is_read_by_the_specification_alone() -> None:
    reader = Independent(golden_files(), "compressed", {})
    assert reader.rows() == expected_compressed(golden.COMPRESSED_ROWS)
    libraries = []
    for commit in reader.live():
        [layout] = commit["layouts"]
        assert set(layout) == {"blocks", "codecs"}
        assert "plain" not in layout["codecs"]
        libraries.append({codec["complib"] for codec in layout["codecs"].values()})
    assert libraries == [set(DECODERS)] * 3
    waves = [commit["layouts"][0]["codecs"]["wave"] for commit in reader.live()]
    assert [wave["shuffle"] for wave in waves] == [True, True, False]


def test_the_compressed_golden_dataset_is_read_by_this_version() -> None:
    numbers, kinds = golden.COMPRESSED_ROWS, golden.KINDS_COMPRESSED
    some = [40, 3, 0, 23, 24, 30, 31]
    dataset = Dataset(COMPRESSED_CONFIG)
    for chosen, batch in (
        (numbers, dataset[:]),
        ([numbers[i] for i in some], dataset[some]),
        *((numbers, one) for one in DataLoader(COMPRESSED_CONFIG, batch_size=100)),
        *((numbers, one) for one in DataLoader(COMPRESSED_CONFIG, batch_size=100, index=True)),
    ):
        rows = golden.compressed(chosen)
        assert list(batch) == [a.name for a in kinds]
        for a in kinds:
            if a.is_variable:
                assert as_octets([*batch[a.name]], a) == as_octets([*rows[a.name]], a)
            else:
                assert batch[a.name].tobytes() == rows[a.name].tobytes()
    verified = verify_dataset(COMPRESSED_CONFIG)
    assert (verified.problems, verified.num_rows) == ((), len(numbers))


PLAIN_H5PY = """
import sys
import h5py, hdf5plugin, numpy
parts = {}
for path in sys.argv[2:]:
    with h5py.File(path) as h5:
        def add(name, one):
            if isinstance(one, h5py.Dataset) and name != ".directory":
                parts.setdefault(name, []).append(one[...].tobytes())
        h5.visititems(add)
assert not [name for name in sys.modules if name.startswith("storage_loader")]
arrays = {n.replace("/", "@"): numpy.frombuffer(b"".join(p), "u1") for n, p in parts.items()}
numpy.savez(sys.argv[1], **arrays)
"""


def test_plain_h5py_with_plugins_reads_the_compressed_golden_objects(tmp_path: Path) -> None:
    """In a process that has nothing of this library, nor where it could be imported from."""
    objects = sorted((GOLDEN / "compressed").rglob("*.h5"))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = tmp_path / "read.npz"
    done = subprocess.run(
        [sys.executable, "-I", "-c", PLAIN_H5PY, out, *objects],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {name.replace("@", "/"): array.tobytes() for name, array in np.load(out).items()}
    rows = golden.compressed(golden.COMPRESSED_ROWS)
    for a in golden.KINDS_COMPRESSED:
        if not a.is_variable:
            assert found.pop(a.name) == rows[a.name].tobytes()
            continue
        octets = b"".join(as_octets([*rows[a.name]], a))
        if a.dtype == "bfloat16":  # which h5py shows in the next larger float
            octets = np.frombuffer(octets, a.numpy_dtype).astype("<f4").tobytes()
        assert found.pop(f"{a.name}/values") == octets
        ends = np.frombuffer(found.pop(f"{a.name}/ends"), "<i8")
        lengths = [len(row) // a.item_nbytes for row in as_octets([*rows[a.name]], a)]
        parts = np.split(np.array(lengths), [24, 31])  # an object each
        assert ends.tolist() == np.concatenate([part.cumsum() for part in parts]).tolist()
    assert not found


SHOWN = """
import json, sys
import h5py
shown = {}
for path in sys.argv[1:]:
    with h5py.File(path) as h5:
        shown[path] = {
            name: {k: v.tolist() if k == "shape" else v.decode() for k, v in one.attrs.items()}
            for name, one in h5.items()
            if name != ".directory"
        }
        assert not h5.attrs and not h5[".directory"].attrs
assert not [name for name in sys.modules if name.startswith("storage_loader")]
print(json.dumps(shown))
"""


def test_plain_h5py_shows_what_the_golden_attributes_are(tmp_path: Path) -> None:
    """In such a process: what dataset.json says of them."""
    objects = sorted(map(str, GOLDEN.rglob("*.h5")))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", "-c", SHOWN, *objects],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    noted = set()
    assert len(shown) == len(objects) > 10
    for path, attributes in shown.items():
        described = json.loads((Path(path).parents[2] / "dataset.json").read_bytes())["attributes"]
        expected = {
            a.pop("name"): {**a, "shape": [-1 if n is None else n for n in a.pop("shape")]}
            for a in described
        }
        assert attributes == expected
        noted |= {what for one in attributes.values() for what in one}
    assert noted == {"dtype", "shape", "unit", "description"}


@pytest.mark.parametrize("part", ["wave", "tokens/values", "meta/ends", "plain", ".directory"])
def test_the_independent_reader_sees_damage_of_compressed_rows(part: str) -> None:
    files = golden_files()
    key = min(key for key in files if key.startswith("compressed/") and key.endswith(".h5"))
    with h5py.File(GOLDEN / key) as h5:
        plain = h5[part].chunks is None
        one = h5[part].id
        offset = one.get_offset() if plain else one.get_chunk_info(1).byte_offset
    body = bytearray(files[key])
    body[offset + 1] ^= 1
    files[key] = bytes(body)
    with pytest.raises(AssertionError):
        Independent(files, "compressed", {}).rows()


@pytest.mark.parametrize("part", ["tokens/values", "caption/ends", "row", ".directory"])
def test_the_independent_reader_sees_damage_of_ragged_rows(part: str) -> None:
    files = golden_files()
    [key, _] = sorted(key for key in files if key.startswith("ragged/") and key.endswith(".h5"))
    with h5py.File(GOLDEN / key) as h5:
        offset = h5[part].id.get_offset()
    body = bytearray(files[key])
    body[offset + 1] ^= 1
    files[key] = bytes(body)
    with pytest.raises(AssertionError):
        Independent(files, "ragged", {}).rows()


def test_the_golden_objects_are_hdf5() -> None:
    reader = Independent(golden_files(), "golden", ADDITIONAL)
    [path] = [p for p in FILES if p.name == "0000000a-000001.h5"]
    [columns] = [c["objects"] for c in reader.live() if len(c["objects"]["key"]) == 3]
    rows = columns["rows"][1]
    with h5py.File(path) as h5:
        assert h5["row"][:].tolist() == ROWS[rows : 2 * rows]
        for a in ATTRIBUTES:
            assert h5[a.name].shape == (rows, *a.shape)
        assert h5[".directory"].dtype == np.dtype("<u8")


def test_this_version_appends_to_the_golden_dataset(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "store")
    config = DataConfig("golden", ATTRIBUTES, ADDITIONAL, tmp_path / "store")
    save(config, make([7, 8], ATTRIBUTES))
    assert stored(config, ATTRIBUTES) == [*ROWS, 7, 8]
    files = {
        path.relative_to(tmp_path / "store").as_posix(): path.read_bytes()
        for path in (tmp_path / "store").rglob("*")
        if path.is_file()
    }
    assert Independent(files, "golden", ADDITIONAL).rows() == expected([*ROWS, 7, 8], ATTRIBUTES)


def test_the_script_still_makes_the_golden_dataset(tmp_path: Path) -> None:
    """Headers of another HDF5 may differ; keys, dataset.json, commits and rows may not."""
    golden.main(str(tmp_path))
    made = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert sorted(made) == sorted(golden_files())
    for name, additional in (("golden", ADDITIONAL), ("ragged", {}), ("compressed", {})):
        check_same(*(Independent(f, name, additional) for f in (made, golden_files())))


def check_same(ours: Independent, theirs: Independent) -> None:
    assert ours.files["dataset.json"] == theirs.files["dataset.json"]
    assert ours.rows() == theirs.rows()
    for identity, (_, commit) in ours.commits.items():
        for key in ("format", "schema", "replaces"):
            assert commit[key] == theirs.commits[identity][1][key]


@pytest.mark.parametrize("damage", [0, 100, 5000, -1, -10])
def test_the_independent_reader_sees_damage(damage: int) -> None:
    files = golden_files()
    [key] = [key for key in files if key.endswith("0000000a-000001.h5")]
    body = bytearray(files[key])
    body[damage] ^= 1
    files[key] = bytes(body)
    with pytest.raises(AssertionError):
        Independent(files, "golden", ADDITIONAL).rows()


@given(
    drawn=st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 3), max_size=3).map(tuple) | st.just((3000,)),
        ),
        min_size=1,
        max_size=4,
    ),
    sizes=st.lists(st.tuples(st.integers(0, 70), st.booleans(), st.booleans()), max_size=6),
    additional=st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5)
        | st.floats(allow_nan=False, allow_infinity=False),
        max_size=3,
    ),
)  # fmt: skip
@settings(max_examples=40)
def test_what_is_written_is_read_by_the_specification_alone(
    drawn: list[Any], sizes: list[tuple[int, bool, bool]], additional: dict[str, Any]
) -> None:
    attributes = [Attribute(f"a{i}", *a) for i, a in enumerate(drawn)]
    url = f"memory://{uuid.uuid4().hex}"
    config = DataConfig("any", attributes, additional, url, max_object_size=2 * MIN_OBJECT_SIZE)
    numbers: list[int] = []
    start = 0
    for rows, refresh, commit in [(0, True, True), *sizes]:
        new = range(start, start + rows)
        with DataSaver(config, refresh=refresh) as saver:
            saver(make(new[: rows // 2], attributes))
            if commit:
                saver.commit()
            saver(make(new[rows // 2 :], attributes))
        numbers = [*new] if refresh else [*numbers, *new]
        start += rows
    store = MemoryStore(url)
    files = {info.key: bytes(store.get(info.key)) for info in store.list()}
    assert Independent(files, "any", additional).rows() == expected(numbers, attributes)


# What the page says and the code holds


def test_the_specification_is_two_screens_and_says_what_is_forbidden() -> None:
    """One for fixed rows, and one for the rest."""
    text = (ROOT / "docs" / "format.md").read_text()
    fixed, rest = text.split("## Rows of no fixed size\n")
    assert len(fixed.splitlines()) <= 75
    assert len(rest.splitlines()) <= 65
    for name in TEXTS:
        assert f'"{name}"' in rest
    assert "## What is forbidden, and why" in text
    for name in DTYPES:
        assert re.search(rf"\b{name}\b", text) or re.fullmatch(r"u?int(8|16|32|64)", name), name


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: data[:ROW_1] + bytes([data[ROW_1] ^ 1]) + data[ROW_1 + 1 :],
    ],
    ids=["one byte short", "half", "nothing", "one byte more", "one bit"],
)
def test_a_damaged_golden_object_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    shutil.copytree(GOLDEN, tmp_path / "store")
    config = DataConfig("golden", additional=ADDITIONAL, storage=tmp_path / "store")
    [path] = (tmp_path / "store").rglob("0000000a-000001.h5")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StorageLoaderError, match=r"0000000a-000001\.h5"):
        list(DataLoader(config, batch_size=5))
    with pytest.raises(StorageLoaderError, match=r"0000000a-000001\.h5"):
        Dataset(config)[:]
