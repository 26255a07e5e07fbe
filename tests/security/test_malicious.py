"""The cases of `malicious`: changes of a small dataset that an attacker, or a bug, might make.

Each is a JSON file: `why` it is there, what is changed (`set`: file, path in its JSON, value;
`files`: whole files, null for none) and what readers say (`error`, a part of the message) or give
(`rows`: their numbers). {"repeat": [what, count]} stands for a long text or list.
"""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataLoader, Dataset
from storage_loader.catalog import Catalog, StoredObject
from storage_loader.errors import (
    FormatError,
    ObjectNotFoundError,
    ObjectShortError,
    StorageLoaderError,
)
from storage_loader.layout import ObjectLayout
from tests.support.faulty import watch
from tests.support.hostile import BASE, MALICIOUS, PREFIX
from tests.support.rows import numbers_in

CASES = sorted(MALICIOUS.glob("*.json"))
MOST = 64 * 2**20  # bytes of memory that reading a storage of 8 KB may take

Read = Callable[[DataConfig, Path], Any]


def arrays(batch: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in batch.items()}


READERS: dict[str, Read] = {
    "Dataset": lambda c, cache: [Dataset(c, cache_dir=cache)[:]],
    "index": lambda c, cache: DataLoader(c, batch_size=4, index=True),
    "cache": lambda c, cache: DataLoader(c, batch_size=4, cache_dir=cache),
}
if find_spec("torch") is not None:
    from storage_loader import torch as for_torch

    READERS["torch"] = lambda c, cache: map(
        arrays, for_torch.DataLoader(c, shuffle=True, cache_dir=cache)
    )


def expanded(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"repeat"}:
        what, count = value["repeat"]
        return what * count if isinstance(what, str) else [what] * count
    return value


def body(value: Any) -> bytes:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"])
    return str(expanded(value)).encode("utf-8", "surrogatepass")


def lay_out(case: dict[str, Any], root: Path) -> None:
    """The base in a folder, with the case's changes."""
    for path in BASE.rglob("*"):
        if path.is_file():
            target = root / path.relative_to(BASE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    for name, where, value in case.get("set", ()):
        path = root / PREFIX / name
        document = part = json.loads(path.read_text())
        for step in where[:-1]:
            part = part[step]
        part[where[-1]] = expanded(value)
        path.write_text(json.dumps(document))
    for name, value in case.get("files", {}).items():
        path = root / PREFIX / name
        path.unlink(missing_ok=True)
        if value is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body(value))


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def outcome(read: Read, the_config: DataConfig, cache: Path) -> list[int] | StorageLoaderError:
    """The numbers of the rows, each of which is right, or the library's error."""
    try:
        return sorted(numbers_in(read(the_config, cache)))
    except StorageLoaderError as error:
        return error


@pytest.mark.parametrize("local", [True, False], ids=["folder", "network"])
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_malicious_storage(
    path: Path, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = json.loads(path.read_text())
    assert set(case) <= {"why", "error", "rows", "network", "set", "files"}
    assert case["why"]
    expected = case if local else {**case, **case.get("network", {})}
    lay_out(case, tmp_path / "store")
    before = files_in(tmp_path)
    the_config = DataConfig("rows", storage=tmp_path / "store")
    if not local:
        watch(monkeypatch, local=False)
    for name, read in READERS.items():
        tracemalloc.start()
        found = outcome(read, the_config, tmp_path / "cache")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MOST, name
        if "rows" in expected:
            assert found == expected["rows"], name
            continue
        assert isinstance(found, FormatError | ObjectNotFoundError), (name, found)
        assert expected["error"] in str(found), name
        assert f"{tmp_path}/store/{PREFIX}" in str(found) or PREFIX in str(found), name
        assert len(str(found)) < 3000
    made = {name for name in files_in(tmp_path) - before if name.split("/")[0] != "cache"}
    assert made == set()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_malicious_storage_that_is_not_verified(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong rows may come, but nothing else."""
    lay_out(json.loads(path.read_text()), tmp_path / "store")
    the_config = DataConfig("rows", storage=tmp_path / "store")
    for local in (True, False):
        watch(monkeypatch, local=local)
        with contextlib.suppress(FormatError, ObjectNotFoundError):
            for batch in DataLoader(the_config, cache_dir=tmp_path / "cache", verify=False):
                assert [(a.dtype, a.shape) for a in batch.values()] == SPEC
            Dataset(the_config, verify=False)[:]


SPEC = [(np.dtype("uint8"), (1, 3, 5)), (np.dtype("int64"), (1,)), (np.dtype("float32"), (1, 2))]


def test_memory_for_large_rows_is_taken_only_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 1 GiB, a commit that says it is there, and an object of 5 bytes."""
    the_config = DataConfig("rows", [("x", "uint8", (2**30,))], storage=tmp_path / "store")
    schema = the_config.schema
    assert schema is not None
    catalog = Catalog(the_config)
    catalog.create(schema)
    figures = {"rows": 1, "nbytes": 2**30 + 4096, "directory_offset": 64}
    layout = ObjectLayout.of(schema, **figures, offsets={"x": 1024}, blocks={"x": 1})
    stored = StoredObject("objects/w/a.h5", 1, 2, layout, 2**30)
    catalog.store.put(f"{the_config.dataset_prefix}/{stored.key}", b"small")
    catalog.publish(schema, [stored], writer="w", number=0)
    watch(monkeypatch, local=False)
    said = "has 5 bytes, its commit says 1073745920; it holds"
    cached = "it ends at byte 64, its commit says more; it holds"
    readers = (
        (lambda: Dataset(the_config, cache_size=0)[0], said),
        (lambda: Dataset(the_config, cache_size=0)[[0]], said),
        (lambda: list(DataLoader(the_config, index=True)), said),
        (lambda: Dataset(the_config)[0], cached),
    )
    for read, text in readers:
        tracemalloc.start()
        with pytest.raises((FormatError, ObjectShortError), match=text):
            read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MOST
