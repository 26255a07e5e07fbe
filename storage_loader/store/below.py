"""Folders below a root, reached without following a link.

The root is what the user named, and may be a link or lie behind one. From there on each folder is
opened from the one above it, so that nobody can put a link into the way between a check and its
use: what a descriptor refers to stays the same whatever happens to its name.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from .files import OddFileError

# On Linux a folder that is only passed through need not be readable.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP, errno.EMLINK}


def open_folder(root: Path, parts: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of the folder root/parts, to be used as `dir_fd`.

    With `make` folders that are missing are made, durably. Raises `OddFileError` for a link.
    """
    here = _open_root(root, make=make)
    for place, part in enumerate(parts):
        try:
            below = _open_below(here, part, make=make)
        except OSError as error:
            if error.errno in _NO_FOLDER and _is_link(here, part):
                link = "/".join(parts[: place + 1])
                raise OddFileError(f"{link!r} is a symbolic link") from error
            raise
        finally:
            os.close(here)
        here = below
    return here


def _open_root(root: Path, *, make: bool) -> int:
    try:
        return os.open(root, _PASS)
    except FileNotFoundError:
        if not make:
            raise
    folders = [root, *root.parents]
    new = list(itertools.takewhile(lambda folder: not folder.is_dir(), folders))
    root.mkdir(parents=True, exist_ok=True)
    for folder in new:
        above = os.open(folder.parent, _PASS)
        try:
            sync_folder(above)
        finally:
            os.close(above)
    return os.open(root, _PASS)


def _open_below(here: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _PASS | os.O_NOFOLLOW, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=here)
        sync_folder(here)
    return os.open(part, _PASS | os.O_NOFOLLOW, dir_fd=here)


def _is_link(here: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)


def sync_folder(here: int) -> None:
    """Make the names in a folder durable."""
    with contextlib.suppress(FileNotFoundError):  # a `delete` beside us took it away again
        readable = os.open(".", _READ, dir_fd=here)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)


def remove_empty(root: Path, parts: Sequence[str]) -> None:
    """Remove the folder root/parts and those above it, as far as they are empty. Never the root.

    Each is reached from the root: by ".." one that was moved meanwhile would lead elsewhere.
    """
    with contextlib.suppress(OSError):  # not empty, already gone, or someone put an object in it
        for depth in reversed(range(len(parts))):
            above = open_folder(root, parts[:depth])
            try:
                os.rmdir(parts[depth], dir_fd=above)
            finally:
                os.close(above)


def folders_in(root: Path, parts: Sequence[str]) -> list[str]:
    """Names of the folders in a folder; none where it is not there."""
    try:
        here = _readable(root, parts)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        return [e.name for e in _entries(here) if e.is_dir(follow_symlinks=False)]
    finally:
        os.close(here)


Guard = Callable[[str], AbstractContextManager[None]]


def tree(
    root: Path, parts: Sequence[str], is_entered: Callable[[str], bool], guard: Guard
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Key and entry of all that lies below a folder and is no folder, in no order.

    An entry, which may be a link, can be asked for its `stat` until the next one is taken.
    `is_entered` says by its name whether a folder is looked into; an `OSError` is raised in
    `guard(key)` of the folder. Folders may lie deeper than a path is long or a process may open
    files.
    """
    try:
        position = _Position(root, parts)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        with guard("/".join(parts)):
            raise
    with contextlib.closing(position):
        left: list[list[str]] = []  # of each folder on the way: those in it to be looked into
        while True:
            try:
                found = position.entries()
                folders = [e.name for e in found if e.is_dir(follow_symlinks=False)]
                if len(folders) < len(found):
                    start = f"{position.key}/" if position.key else ""
                    for entry in found:
                        if not entry.is_dir(follow_symlinks=False):
                            yield start + entry.name, entry
                left.append([name for name in folders if is_entered(name)])
                while not left[-1] or not position.down(left[-1].pop()):
                    if not left[-1]:
                        left.pop()
                        if not left:
                            return
                        position.up()
            except OSError:  # noqa: PERF203  of one folder, which `guard` names
                with guard(position.key):
                    raise


class _Position:
    """A folder that is open for reading; `down` and `up` go on to another."""

    def __init__(self, root: Path, parts: Sequence[str]) -> None:
        self._root = root
        self._parts = list(parts)
        self._above: list[tuple[int, int]] = []
        self._here = _readable(root, parts)

    @property
    def key(self) -> str:
        """Where this is."""
        return "/".join(self._parts)

    def entries(self) -> list[os.DirEntry[str]]:
        """What lies here."""
        return _entries(self._here)

    def down(self, name: str) -> bool:
        """Go into a folder; False where there is none any more."""
        try:
            below = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=self._here)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in _NO_FOLDER:
                return False
            raise
        self._above.append(_identity(self._here))
        self._parts.append(name)
        self._move(below)
        return True

    def up(self) -> None:
        """Back to where `down` came from, also where this folder was moved or removed meanwhile."""
        self._parts.pop()
        came_from = self._above.pop()
        with contextlib.suppress(FileNotFoundError):
            self._move(os.open("..", _READ, dir_fd=self._here))
        if _identity(self._here) != came_from:
            self._move(_readable(self._root, self._parts))

    def _move(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor

    def close(self) -> None:
        os.close(self._here)


def _entries(here: int) -> list[os.DirEntry[str]]:
    # All in one step of the interpreter: a Ctrl-C between `scandir` and a `with` would leave the
    # iterator open, which warns.
    return list(itertools.chain.from_iterable(map(os.scandir, [here])))


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _readable(root: Path, parts: Sequence[str]) -> int:
    here = open_folder(root, parts)
    try:
        return os.open(".", _READ, dir_fd=here)
    finally:
        os.close(here)
