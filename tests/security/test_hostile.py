"""What is read from storage is not trusted: any change of it is an error of ours, or harmless."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storage_loader
from tests.support.hostile import (
    FILES,
    JSONS,
    ROWS,
    damage,
    try_commit,
    try_dataset,
    try_mutations,
    try_storage,
)
from tests.support.scale import scaled


def test_the_base_is_read() -> None:
    for local in (False, True):
        assert try_storage(FILES, local=local) == list(ROWS)


@settings(max_examples=scaled(200))
@given(st.data())
def test_any_change_of_any_file_is_refused_or_harmless(data: st.DataObject) -> None:
    try_mutations(lambda n: data.draw(st.integers(0, n - 1)))


@settings(max_examples=scaled(200))
@given(st.data())
def test_any_bytes_for_json(data: st.DataObject) -> None:
    body = FILES[data.draw(st.sampled_from(JSONS))]
    for _ in range(data.draw(st.integers(1, 6))):
        body = damage(body, lambda n: data.draw(st.integers(0, n - 1)))
    for target in (try_commit, try_dataset):
        target(body)


# Nothing that is read is ever run

PACKAGE = Path(storage_loader.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
RUNNING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
# Batches of our own worker processes, in memory that only they and we have; tensors in these.
OWN = {"loader/run/workers.py"}


def running(source: str) -> list[str]:
    """What of a module could run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in RUNNING]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in RUNNING:
            found.append(str(node.module))
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found.append(node.arg)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "__import__", "np.load", "numpy.load", "torch.load"):
                found.append(called)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_module_runs_what_it_reads(path: Path) -> None:
    if path.relative_to(PACKAGE).as_posix() not in OWN:
        assert running(path.read_text()) == []


def test_what_would_run_is_found() -> None:
    for source in (
        "import pickle",
        "from pickle import loads",
        "def f():\n import joblib.memory",
        "eval(text)",
        "np.load(path)",
        "f(x, allow_pickle=True)",
    ):
        assert len(running(source)) == 1, source
