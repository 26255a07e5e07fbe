"""Who may import whom: the layers of the package, and the one place of each foreign library."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = "storage_loader"

# A unit is a module or package right below storage_loader. It imports itself and lower layers.
LAYERS = {
    "text": 0,
    "sync": 0,
    "errors": 0.1,
    "codecs": 1.05,
    "credentials": 1,
    "interruptible": 1.1,
    "keywords": 1,
    "process": 1,
    "ranges": 1,
    "ragged": 1.1,
    "threads": 1,
    "schema": 1.1,
    "layout": 1.2,
    "config": 2,
    "hdf5": 3,
    "store": 3,
    "catalog": 4,
    "loader": 5,
    "saver": 5,
    "jax": 6,
    "tensorflow": 6,
    "torch": 6,
    "bench": 6,
    "checks": 6,
    "cli": 7,
    "__main__": 8,
}

# The same within a unit: what stands right below it.
ROOMS = {
    "loader": {
        "tuning": 0,
        "order": 0,
        "fill": 1,
        "fetch": 2,
        "run": 3,
        "peers": 3,
        "settings": 3,
        "decode": 3,
        "feed": 4,
        "view": 5,
        "dataset": 6,
        "split": 7,
        "iteration": 6,
        "loader": 7,
    },
}

# Foreign libraries that only one unit may import.
ONLY_IN = {
    "boto3": "store",
    "botocore": "store",
    "h5py": "hdf5",
    "jax": "jax",
    "matplotlib": "bench",
    "minio": "store",
    "tensorflow": "tensorflow",
    "torch": "torch",
}

FRAMEWORKS = ("torch", "tensorflow", "jax")
CLIENTS = ("minio", "urllib3", "boto3")  # of S3: imported when a bucket is opened


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute name."""

    name: str
    line: int


def imports(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Yield what a module imports, at the top, in functions and for type checking alike.

    `from storage_loader import errors` is reported as `storage_loader.errors`.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, is_package)
            if base == PACKAGE:
                yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield Import(base, node.lineno)


def _base(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the absolute name that stands between `from` and `import`."""
    if not node.level:
        return node.module or ""
    parents = module.split(".")
    keep = len(parents) - node.level + (1 if is_package else 0)
    return ".".join([*parents[:keep], *([node.module] if node.module else [])])


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return what is wrong with a module's imports, a sentence each."""
    unit = module.split(".")[1]
    if unit not in LAYERS:
        return [f"{module}: `{unit}` has no layer; give it one in {Path(__file__).name}"]
    wrong = []
    for found in imports(source, module, is_package):
        top, *rest = found.name.split(".")
        if top != PACKAGE:
            home = ONLY_IN.get(top, unit)
            if home != unit:
                wrong.append(f"{module}:{found.line}: only {home} imports {top}")
        elif not rest or rest[0] not in LAYERS:
            wrong.append(f"{module}:{found.line}: imports {found.name}, which is in no layer")
        elif rest[0] != unit and LAYERS[rest[0]] >= LAYERS[unit]:
            wrong.append(
                f"{module}:{found.line}: {unit} (layer {LAYERS[unit]}) imports "
                f"{rest[0]} (layer {LAYERS[rest[0]]})"
            )
        elif (
            rest[0] == unit
            and unit in ROOMS
            and len(rest) > 1
            and len(parts := module.split(".")) > 2
        ):
            rooms, room = ROOMS[unit], parts[2]
            if room not in rooms or rest[1] not in rooms:
                wrong.append(f"{module}:{found.line}: {room} or {rest[1]} is no room of {unit}")
            elif rest[1] != room and rooms[rest[1]] >= rooms[room]:
                wrong.append(f"{module}:{found.line}: {unit}/{room} imports {unit}/{rest[1]}")
    return wrong


def modules() -> list[tuple[str, Path]]:
    """Return the name and file of each module, without storage_loader itself: it re-exports."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    named = []
    for path in paths:
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        if len(parts) > 1:
            named.append((".".join(parts), path))
    return named


@pytest.mark.parametrize(("module", "path"), modules(), ids=lambda value: str(value).split("/")[-1])
def test_module_imports_only_lower_layers(module: str, path: Path) -> None:
    assert violations(path.read_text(), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("errors", "from storage_loader import schema", "errors (layer 0.1) imports schema (layer"),
        ("config", "import storage_loader.store.s3", "config (layer 2) imports store (layer 3)"),
        ("store.s3", "from storage_loader.hdf5 import x", "store (layer 3) imports hdf5 (layer 3)"),
        ("store.s3", "from ..hdf5 import x", "store (layer 3) imports hdf5 (layer 3)"),
        ("saver.saver", "def f():\n    from .. import loader", "saver (layer 5) imports loader"),
        ("torch.loader", "import storage_loader.jax", "torch (layer 6) imports jax (layer 6)"),
        ("loader.order.x", "from ..fetch import x", "loader/order imports loader/fetch"),
        ("loader.fetch.x", "from ..run.stats import y", "loader/fetch imports loader/run"),
        ("loader.other", "from .fetch import x", "other or fetch is no room of loader"),
        ("loader.order", "import torch.utils.data", "only torch imports torch"),
        ("loader.order", "if TYPE_CHECKING:\n    import jax", "only jax imports jax"),
        ("saver.saver", "import h5py", "only hdf5 imports h5py"),
        ("config", "from minio.error import S3Error", "only store imports minio"),
        ("cli", "from storage_loader import Dataset", "imports storage_loader.Dataset"),
        ("cli", "import storage_loader", "imports storage_loader, which is in no layer"),
        ("database", "", "`database` has no layer"),
    ],
)
def test_a_wrong_import_is_found(module: str, source: str, complaint: str) -> None:
    found = violations(source, f"{PACKAGE}.{module}")
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        ("store.s3", "import minio\nfrom . import base\nfrom .base import Store", False),
        ("store", "from . import s3\nfrom .s3 import S3Store", True),
        ("store.s3", "from storage_loader.errors import StoreError\nfrom .. import config", False),
        ("torch.loader", "import torch\nfrom storage_loader.loader import DataLoader", False),
        ("hdf5.write", "import h5py, numpy", False),
        ("cli", "from storage_loader import catalog, errors", False),
    ],
)
def test_a_right_import_passes(module: str, source: str, is_package: bool) -> None:
    assert violations(source, f"{PACKAGE}.{module}", is_package) == []


def test_importing_the_package_is_light_and_silent() -> None:
    program = f"""
import json, logging, sys
root = logging.getLogger()
before = (root.level, list(root.handlers), logging.root.manager.disable)
import {PACKAGE}
import {PACKAGE}.cli

after = (root.level, list(root.handlers), logging.root.manager.disable)
own = logging.getLogger({PACKAGE!r})
print(json.dumps({{
    "heavy": [name for name in {FRAMEWORKS + CLIENTS!r} if name in sys.modules],
    "logging changed": before != after,
    "level": own.level,
    "handlers": [type(h).__name__ for h in own.handlers if type(h) is not logging.NullHandler],
}}))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "heavy": [],
        "logging changed": False,
        "level": 0,
        "handlers": [],
    }
