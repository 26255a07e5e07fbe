"""No HDF5 library sees what is read from storage: `verify` compares headers, and never dies."""

from __future__ import annotations

import ast
from pathlib import Path

import h5py
import pytest

import storage_loader
from tests.support.hostile_headers import bases, try_many
from tests.support.own_process import in_processes
from tests.support.scale import scaled

PACKAGE = Path(storage_loader.__file__).parent
COUNT = scaled(400)


@pytest.mark.parametrize("name", sorted(bases()))
def test_a_changed_header_is_a_problem_and_ends_nothing(name: str) -> None:
    """In a process of its own: where HDF5 parsed them it died, or looped for ever."""
    in_processes(try_many, (name, COUNT, 1), seconds=120)


def test_the_bases_are_what_hdf5_reads() -> None:
    """Else what is changed would be nothing that it parses."""
    superblocks = {name: base.body[8] for name, base in bases().items()}
    assert {superblocks[name] for name in ("earliest", "v108", "latest")} == {0, 2, 3}
    for name, base in bases().items():
        assert len(base.sealed) > 4 or "earliest" in name
        assert len(base.header) > 1000


def test_verify_opens_no_file_with_hdf5(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("HDF5 opens a file")

    bases()
    monkeypatch.setattr(h5py.h5f, "open", refuse)
    for name in bases():
        try_many(name, 20, seed=3)


def opening(source: str) -> list[str]:
    """What of a module hands bytes to HDF5: all but files that it creates."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        text
        for text in map(ast.unparse, calls)
        if text.startswith(("h5py.h5f.open", "h5py.File", "h5py.is_hdf5", "h5py.h5f.is_hdf5"))
        and not text.startswith("h5py.File(h5py.h5f.create(")
    ]


def test_no_module_opens_a_file_with_hdf5() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        assert opening(path.read_text()) == [], path
    for source in ("h5py.File(x, 'r')", "h5py.h5f.open(b'x')", "h5py.is_hdf5(x)"):
        assert opening(source) == [source]
