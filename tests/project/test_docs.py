"""What the documents show runs, each block of code and each command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, documents
from tests.support.documents import BUCKET, ENDPOINT, Block, blocks, commands, run
from tests.support.spawned import LIBRARY, TORCH, imported_once

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def needed(path: Path) -> list[str]:
    """The frameworks that a file's blocks need."""
    text = path.read_text()
    found = [name for name in ("torch", "tensorflow", "jax") if f"storage_loader.{name} im" in text]
    return found + ["accelerate"] * ("from accelerate im" in text)


def missing(path: Path) -> list[str]:
    """Those that are not installed here."""
    return [name for name in needed(path) if find_spec(name) is None]


RUNNABLE = [
    pytest.param(
        path,
        id=path.relative_to(ROOT).as_posix(),
        marks=pytest.mark.skipif(bool(missing(path)), reason=f"needs {', '.join(missing(path))}"),
    )
    for path in FILES
]


def run_document(path: Path, folder: Path, *options: str, **environment: str) -> int:
    """Run a file's blocks in a process of its own, in an empty folder; their number."""
    folder.mkdir()
    with imported_once(*(TORCH if "torch" in needed(path) else LIBRARY), starts=True):
        done = subprocess.run(
            [sys.executable, "-m", documents.__name__, *options, path],
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "STORAGE_LOADER_STORAGE": str(folder / "store"),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.split()[-2])


def counted(path: Path, *, s3: bool) -> int:
    found = blocks(path.read_text())
    return len([b for b in found if b.language and b.needs_s3 == s3])


@pytest.mark.parametrize("path", RUNNABLE)
def test_every_block_runs(path: Path, tmp_path: Path) -> None:
    assert run_document(path, tmp_path / "empty") == counted(path, s3=False)


@pytest.mark.parametrize(
    "path", [path for path in FILES if counted(path, s3=True)], ids=lambda path: path.name
)
def test_every_block_for_s3_runs(
    path: Path, tmp_path: Path, s3_server: Any, s3_bucket: str
) -> None:
    number = run_document(
        path,
        tmp_path / "empty",
        "--s3",
        DOCUMENT_ENDPOINT=s3_server.endpoint,
        DOCUMENT_BUCKET=f"s3://{s3_bucket}",
        AWS_ACCESS_KEY_ID=s3_server.access_key,
        AWS_SECRET_ACCESS_KEY=s3_server.secret_key,
        AWS_REGION=s3_server.region,
    )
    assert number == counted(path, s3=True)


def test_blocks_for_s3_name_the_server_that_is_replaced() -> None:
    found = [b for path in FILES for b in blocks(path.read_text()) if b.needs_s3]
    assert found
    assert all(ENDPOINT in b.text and BUCKET in b.text for b in found)


def test_a_block_is_never_passed_over(tmp_path: Path) -> None:
    document = tmp_path / "x.md"
    for text, message in [
        ("```python\n1\n", "the block that begins at line 1 has no end"),
        ("```yaml\na: 1\n```\n", "a block of language 'yaml'"),
        ("```bash\nrm -rf data\n```\n", "unknown command 'rm -rf data'"),
        ("```bash\nmake nothing\n```\n", "'make nothing': Makefile has no 'nothing'"),
        ("```bash\npip install '.[moon]'\n```\n", "pyproject.toml has no 'moon'"),
    ]:
        document.write_text(text)
        with pytest.raises(ValueError, match=re.escape(message)):
            run(document, s3=False)
    document.write_text("```python\nassert 1 == 2\n```\n")
    with pytest.raises(AssertionError):
        run(document, s3=False)
    document.write_text("```bash\nstorage-loader ls ftp://x\n```\n")
    with pytest.raises(subprocess.CalledProcessError):
        run(document, s3=False)


def test_the_runner_reads_blocks_as_they_stand() -> None:
    text = "a\n```python\n# s3\nx = 1\n```\n\n```\npicture\n```\n```bash\nmake test  # all\n```\n"
    assert blocks(text) == [
        Block("python", 3, "# s3\nx = 1\n"),
        Block("", 8, "picture\n"),
        Block("bash", 11, "make test  # all\n"),
    ]
    assert [b.needs_s3 for b in blocks(text)] == [True, False, False]
    assert commands(blocks(text)[2]) == ""
    assert commands(Block("bash", 1, "$ storage-loader ls x\n")) == "storage-loader ls x"


@pytest.mark.parametrize("path", [*FILES, ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target
