"""Work in a process of its own, which has inherited nothing: no thread, lock or open store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

# Its server has imported the library once and run nothing of it: a child is as good as a process
# that starts anew, and half a second sooner there.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["tests.support.caches", "storage_loader.store.s3"])


def in_processes(
    work: Callable[..., None], *arguments: tuple[Any, ...], seconds: float = 300, **environ: str
) -> None:
    """Call `work` with each of `arguments`, at the same time; all must end well."""
    environment = {**os.environ, **environ}
    processes = [
        FRESH.Process(target=_in_environment, args=(environment, pickle.dumps((work, each))))
        for each in arguments
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _in_environment(environment: dict[str, str], pickled: bytes) -> None:
    """The server's own environment is that of the test which began it."""
    os.environ.clear()
    os.environ.update(environment)
    work, arguments = pickle.loads(pickled)  # imports what may read the environment
    work(*arguments)


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
