"""The header of a compressed object does not depend on what filters the process has."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support import ROOT

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
