"""The fenced blocks of a Markdown file, and a program that runs them in order.

    python -m tests.support.documents [--s3] FILE

Python blocks share one namespace; commands of bash blocks run between them. With --s3 only the
blocks whose first line is `# s3` are run, else only the others. A block is never passed over: one
of another language, or with a command that is not known here, is an error.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from tests.support import ROOT

ENDPOINT = "http://127.0.0.1:9000"  # in the documents; a test puts its own server's there
BUCKET = "s3://storage-loader"

# Commands that other tests cover, or that are for the reader's machine: what each must agree with.
_KNOWN = {
    r"make (\w+)": ("Makefile", r"^{0}:"),
    r"pip install '\.\[(\w+)\]'": ("pyproject.toml", r"^{0} = \["),
    r"python (examples/\w+\.py)( --\w+ \S+)*": ("Makefile", r"{0}"),
    r"docker compose -f docker/compose\.yaml --profile (\w+) up.*": (
        "docker/compose.yaml",
        r'profiles: \["?{0}"?',
    ),
}


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` is that of its first line, from 1."""

    language: str  # "" for a picture
    line: int
    text: str

    @property
    def needs_s3(self) -> bool:
        """Whether it is marked `# s3`."""
        return self.text.startswith("# s3\n")


def blocks(text: str) -> list[Block]:
    """All fenced blocks; `ValueError` for a fence that is not closed."""
    found, start, language = [], 0, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.lstrip().startswith("```"):
            continue
        if not start:
            start, language = number, line.strip().strip("`").strip()
        else:
            body = "\n".join(lines[start : number - 1]) + "\n"
            found.append(Block(language, start + 1, body))
            start = 0
    if start:
        raise ValueError(f"the block that begins at line {start} has no end")
    return found


def commands(block: Block) -> str:
    """The part of a bash block to run; `ValueError` for a command that is not known."""
    script = []
    for line in block.text.splitlines():
        command = line.split(" #")[0].strip().removeprefix("$ ")
        if not command or command.startswith("#"):
            continue
        if command.startswith(("storage-loader ", "export ")):
            script.append(command)
            continue
        for pattern, (file, wanted) in _KNOWN.items():
            known = re.fullmatch(pattern, command)
            if known:
                expected = wanted.format(re.escape(known[1]))
                if not re.search(expected, (ROOT / file).read_text(), re.MULTILINE):
                    raise ValueError(f"{command!r}: {file} has no {known[1]!r}")
                break
        else:
            raise ValueError(f"unknown command {command!r}: run it, or say here what it must fit")
    return "\n".join(script)


def run(path: Path, *, s3: bool) -> int:
    """Run the blocks of a file; their number."""
    namespace: dict[str, Any] = {"__name__": "document"}
    count = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if not block.language:
            continue
        if block.needs_s3 != s3:
            continue
        count += 1
        if block.language == "python":
            source = "\n" * (block.line - 1) + _placed(block.text)
            exec(compile(source, str(path), "exec"), namespace)
        elif block.language in ("bash", "console"):
            _run_script(_placed(commands(block)))
        else:
            raise ValueError(f"{path}:{block.line}: a block of language {block.language!r}")
    return count


# Nothing of it means anything to a shell but quotes and variables.
_PLAIN = re.compile(r"storage-loader [^|&;<>()`*?\[\]{}~\\'!#]+")


def _run_script(script: str) -> None:
    """Run commands as bash does; plain ones without it, so that tests/support/spawned.py forks."""
    lines = script.splitlines()
    if not all(_PLAIN.fullmatch(line) for line in lines):
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True)
        return
    for line in lines:
        words = [Template(word).substitute(os.environ) for word in shlex.split(line)]
        subprocess.run([sys.executable, "-m", "storage_loader", *words[1:]], check=True)


def _placed(text: str) -> str:
    """With the server and bucket that the environment names, where it names any."""
    endpoint, bucket = os.environ.get("DOCUMENT_ENDPOINT"), os.environ.get("DOCUMENT_BUCKET")
    if endpoint and bucket:
        return text.replace(ENDPOINT, endpoint).replace(BUCKET, bucket)
    return text


if __name__ == "__main__":
    *options, file = sys.argv[1:]
    print(run(Path(file), s3=options == ["--s3"]), "blocks")
