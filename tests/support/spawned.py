"""Processes whose libraries are imported once, by a process that forks them.

A process that starts anew imports the library for a second of a core, torch for three, TensorFlow
for eight, before its first row. Here one process imports them and runs nothing of them; what a test
starts is forked there, is handed over as a child of the test's own process, and begins as Python
would have it begin: with its words, environment, folder and files.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support import ROOT

LIBRARY = ("pytest", "tests.support.caches", "storage_loader.store.s3", "storage_loader.cli")
TORCH = (*LIBRARY, "torchdata.stateful_dataloader", "tests.support.kinds", "storage_loader.torch")
TENSORFLOW = (*LIBRARY, "tests.support.kinds", "storage_loader.tensorflow")
SKLEARN = (*TORCH, "sklearn.datasets", "torch._dynamo")  # an optimizer imports the latter
JAX = (*LIBRARY, "tests.support.kinds", "storage_loader.jax")

_SUBREAPER = 36  # of prctl: orphans below this process become its children
_servers: dict[tuple[str, ...], socket.socket] = {}


@contextlib.contextmanager
def imported_once(*modules: str, starts: bool = False) -> Iterator[None]:
    """Meanwhile what `subprocess` runs of Python, and multiprocessing spawns, has imported these.

    As far as it is `python -c`, `python -m` or a script, without options; what the import reads of
    the environment is as for the first of them. Elsewhere than on Linux each process imports what
    it needs. `starts`: what such a process starts itself has imported them, too.
    """
    if sys.platform != "linux" or not hasattr(subprocess, "_fork_exec"):  # 3.11 and later have it
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_SUBREAPER, 1) == 0
    fork_exec, spawn = subprocess._fork_exec, util.spawnv_passfds  # type: ignore[attr-defined]

    def forked(args: Sequence[Any], executables: Any, close_fds: Any, fds: Any, *more: Any) -> int:
        cwd, env, stdin, _, _, stdout, _, stderr, _, _, _, in_session = more[:12]
        words = _words_of_python(args)
        if words is None:
            return int(fork_exec(args, executables, close_fds, fds, *more))
        files = {0: stdin, 1: stdout, 2: stderr, **{file: file for file in fds}}
        files = {place: file if file >= 0 else place for place, file in files.items()}
        files.pop(more[9], None)  # where a child says that it could not begin
        environment = (
            os.environ if env is None else dict(os.fsdecode(one).split("=", 1) for one in env)
        )
        return _begin(modules, words, files, environment, cwd, in_session, starts)

    def spawned(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = _words_of_python(args)
        if words is None or "spawn_main" not in words[1]:  # multiprocessing's own servers
            return int(spawn(path, args, passfds))
        files = {file: file for file in (0, 1, 2, *passfds)}
        return _begin(modules, words, files, os.environ, None, False, starts)

    try:
        with (
            mock.patch.object(subprocess, "_fork_exec", forked),
            mock.patch.object(util, "spawnv_passfds", spawned),
        ):
            yield
    finally:
        prctl(_SUBREAPER, 0)


def _words_of_python(args: Sequence[Any]) -> list[str] | None:
    """The words after `python`; None where it is another program, or has options."""
    program, *words = [os.fsdecode(word) for word in args]
    if words[:1] == ["-B"]:  # what multiprocessing passes on
        words = words[1:]
    if program != sys.executable or not words:
        return None
    return words if words[0] in ("-c", "-m") or not words[0].startswith("-") else None


def _begin(
    modules: tuple[str, ...],
    words: Sequence[str],
    files: Mapping[int, int],
    environment: Mapping[str, str],
    folder: Any,
    in_session: bool,
    starts: bool,
) -> int:
    """The number of a new child of ours; `files`: which open file is each of its own."""
    if modules not in _servers:
        _start(modules, environment)
    server = _servers[modules]
    request = {
        "words": words,
        "places": [*files],
        "environment": dict(environment),
        "folder": os.path.abspath(os.fsdecode(folder or "")),
        "in_session": bool(in_session),
        "starts": starts,
    }
    body = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files.values()))
    server.sendmsg([len(body).to_bytes(4, "big")], [rights])
    server.sendall(body)
    return int.from_bytes(_exactly(server, 4), "big")


def _start(modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
    ours, theirs = socket.socketpair()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
        {**environment, "PYTHONPATH": str(ROOT)},
        file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), theirs.fileno())],
        setsigmask=[],
    )
    theirs.close()
    _keep(modules, ours, pid)


def _keep(modules: tuple[str, ...], connection: socket.socket, pid: int) -> None:
    _servers[modules] = connection

    def end() -> None:
        connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    atexit.register(end)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError("the other process has ended")
        data += piece
    return data


# In the process that has imported


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """What is asked for, in the process that is to do it; None at the end of all requests."""
    while True:
        size, files, _, _ = socket.recv_fds(connection, 4, 64)
        if not size:
            return None
        request: dict[str, Any] = json.loads(_exactly(connection, int.from_bytes(size, "big")))
        here, there = os.pipe()
        before, begins = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(there, child.to_bytes(4, "big"))
                os._exit(0)  # an orphan becomes a child of who asked
            os.close(begins)
            os.read(before, 1)  # it has its parent then
            connection.close()
            for file in (here, there, before):
                os.close(file)
            _take(files, request["places"])
            return request
        os.waitpid(between, 0)
        connection.sendall(os.read(here, 4))
        for file in (here, there, before, begins, *files):
            os.close(file)


def _fork_server(modules: tuple[str, ...]) -> dict[str, Any] | None:
    """A server for what this process is to start, as nothing has run here yet; None here.

    What is asked for, in a process that the other one forks.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        _keep(modules, ours, pid)
        return None
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in range(3):
        os.dup2(nothing, place)
    os.closerange(3, theirs.fileno())  # whoever reads a pipe to its end waits for all who have it
    os.closerange(theirs.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    request = _serve(theirs)
    if request is None:
        os._exit(0)
    return request


def _take(files: Sequence[int], places: Sequence[int]) -> None:
    """Put open files at the numbers that they are to have."""
    above = max(*files, *places) + 1
    for number, file in enumerate(files):
        os.dup2(file, above + number)
        os.close(file)
    for number, place in enumerate(places):
        os.dup2(above + number, place)
        os.close(above + number)


def _run(words: list[str]) -> None:
    """As `python WORDS`, in what is the main module from now on."""
    kind = words[0]
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = words[1:] if kind == "-m" else words
    sys.path[0] = str(Path(kind).resolve().parent) if kind not in ("-c", "-m") else ""
    if kind == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], vars(sys.modules["__main__"]))
    elif kind == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")


def main(file: int, *modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else each child looks at all that was imported, and so copies it
    asked = _serve(socket.socket(fileno=file))
    if asked is not None:
        inner = _fork_server(modules) if asked["starts"] else asked
        asked = inner or asked
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        if asked["in_session"]:
            os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with contextlib.nullcontext() if inner else imported_once(*modules):
            _run(asked["words"])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
