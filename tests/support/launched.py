"""Modules of the tests run as one process or as ranks of several, each printing JSON."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from storage_loader import DataConfig, DataSaver
from tests.support import ROOT
from tests.support.rows import config, in_batches, make


def launch(module: str, *arguments: str, world_size: int = 1) -> list[Any]:
    """What each rank's last line of output says. One process alone is told of no ranks."""
    ranks: list[dict[str, str]] = [{}]
    with ExitStack() as stack:
        if world_size > 1:
            held = stack.enter_context(socket.socket())
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
                    "WORLD_SIZE": str(world_size),
                }
                for rank in range(world_size)
            ]
        started = [stack.enter_context(_start(module, *arguments, **rank)) for rank in ranks]
        try:
            said = [process.communicate(timeout=450) for process in started]
        finally:
            for process in started:
                process.kill()
    errors = [e for p, (_, e) in zip(started, said, strict=True) if p.returncode]
    assert not errors, "\n\n".join(errors)  # of each rank: the first to fail may be any
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def saved_in_commits(storage: dict[str, str], count: int) -> DataConfig:
    """A dataset for such scripts: rows 0 to `count` - 1, a commit of every 40."""
    the_config = config(storage)
    with DataSaver(the_config) as saver:
        for numbers in in_batches(0, count, 40):
            saver(make(numbers))
            saver.commit()
    return the_config


def _start(module: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
