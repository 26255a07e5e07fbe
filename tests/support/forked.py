"""Work in a forked child, with its result or its error back, and a hang as a failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")
SECONDS = 100.0  # a child that takes longer hangs
OTHER_PROCESS = "SaverError: this saver was made in another process; make one in each process"


class Forked:
    """A child that runs `work`, started at once; `result` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._receive, send = FORK.Pipe(duplex=False)
        self._child = FORK.Process(target=_run, args=(work, send))
        self._child.start()
        send.close()

    def result(self) -> Any:
        """What `work` returned; an AssertionError where it raised, died or hangs."""
        try:
            assert self._receive.poll(SECONDS), "the forked child hangs"
            try:
                fine, value = self._receive.recv()
            except EOFError:
                fine, value = False, "the forked child died"
            assert fine, value
            return value
        finally:
            self._child.join(20)
            if self._child.is_alive():
                self._child.kill()
            self._child.join()
            self._receive.close()


def forked(work: Callable[[], Any]) -> Any:
    """The result of `work` in one child."""
    return Forked(work).result()


def _run(work: Callable[[], Any], send: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(SECONDS) + 2)  # ends even a child whose result nobody waits for
    try:
        value = (True, work())
    except BaseException:
        value = (False, traceback.format_exc())
    send.send(value)


def in_fork(work: Any) -> str:
    """What `work` returns, or the error it raises, in a forked child that then vanishes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text = "no answer"
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text
