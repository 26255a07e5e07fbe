"""Feeds readers of storage with what atheris thinks of: coverage of our modules guides it.

    python -m tests.security.fuzz [-max_total_time=600] [-rss_limit_mb=2048] [FOLDER]

FOLDER keeps inputs that reached something new. It ends at the first error that is not one of the
library's, or a wrong row, and writes the input to a file `crash-...`; give that file instead of
the folder to run it again. It needs `atheris` beside what the tests need.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["storage_loader"]):
    from tests.support import hostile

TARGETS = (hostile.try_commit, hostile.try_dataset)


def one_input(data: bytes) -> None:
    """Bytes are a file's text as they are, or choices between changes of good files."""
    if not data:
        return
    if data[0] < 16:
        TARGETS[data[0] % 2](data[1:])
        return
    choices = atheris.FuzzedDataProvider(data[1:])
    hostile.try_mutations(lambda n: choices.ConsumeIntInRange(0, n - 1))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
