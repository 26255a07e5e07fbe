"""A function in a process of its own, with an environment of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock


def in_processes(
    work: Callable[..., None], *arguments: tuple[Any, ...], seconds: float = 300, **environ: str
) -> None:
    """Call `work` with each of `arguments`, at the same time; all must end well."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=each) for each in arguments]
    try:
        with mock.patch.dict(os.environ, environ):
            for process in processes:
                process.start()
        for process in processes:
            process.join(seconds)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def import_without(library: str, module: str) -> str:
    """What the import of `module` says where the library is not installed; ours is imported."""
    script = f"""
import importlib, sys
sys.modules[{library!r}] = None
import storage_loader
try:
    importlib.import_module({module!r})
except ImportError as error:
    print(error)
assert sys.modules[{library!r}] is None
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
