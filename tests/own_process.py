"""A function in a process of its own, with an environment of its own."""

from __future__ import annotations

import multiprocessing
import os
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
