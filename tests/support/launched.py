"""Modules of the tests run as one process and as ranks of several, each printing JSON.

    python -m tests.support.launched LIBRARY MODULE RUNS

RUNS is JSON: for each process to run, the words of its command line and its environment. The
library, which takes longer to import than its test to run, is imported once: they are forked.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support import ROOT

WORLD_SIZE = 2


def launch(library: str, module: str, storage: str, scratch: Path) -> tuple[Any, list[Any]]:
    """What is said by a process that is told of no ranks, and by each of two ranks."""
    with socket.socket() as held:
        # Bound and not listening, it leaves the port to rank 0 and to nobody else.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        ranks = [
            {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(held.getsockname()[1]),
                "NODE_RANK": "0",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
            }
            for rank in range(WORLD_SIZE)
        ]
        runs = [([storage, str(scratch / "alone")], {})]
        runs += [([storage, str(scratch / "ranks")], rank) for rank in ranks]
        launcher = subprocess.Popen(
            [sys.executable, "-m", __name__, library, module, json.dumps(runs)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(scratch / "home"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, errors = launcher.communicate(timeout=450)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
    assert launcher.returncode == 0, errors
    alone, *of_ranks = json.loads(said)
    return alone, of_ranks


def main(library: str, module: str, runs: list[tuple[list[str], dict[str, str]]]) -> None:
    """Run all at the same time and print the last line of each; the first that fails ends this."""
    importlib.import_module(library)
    gc.collect()
    gc.freeze()  # else each process looks at all that was imported, and so copies it
    outputs = []
    for words, environment in runs:
        outputs.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115  # until this process ends
        if not os.fork():
            os.environ.update(environment)
            os.dup2(outputs[-1].fileno(), sys.stdout.fileno())
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
    for _ in runs:
        status = os.waitstatus_to_exitcode(os.wait()[1])
        if status:
            sys.exit(f"one ended with {status}")
    said = []
    for output in outputs:
        output.seek(0)
        said.append(json.loads(output.read().splitlines()[-1]))
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:3], json.loads(sys.argv[3]))
