"""Folders and files of this user alone, opened one below the other by their descriptors.

Whoever may rename what lies above a folder that is open leads nobody elsewhere: nothing below it
is reached by a path. What somebody else made, a link to it, or a device, is never filled.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is opened at once, too
_FOREIGN = "a link, or another user's; somebody else made it"


@contextmanager
def open_private(path: Path) -> Iterator[int]:
    """The descriptor of a folder of this user alone; made where it is missing."""
    try:
        descriptor = _entered(path, None)
    except FileNotFoundError:
        _make_parents(path.parent)
        descriptor = _entered(path, None)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_found(name: str | Path, folder: int | None = None) -> Iterator[int]:
    """The descriptor of a folder of this user, itself in an open one; nothing is made.

    Raises `FileNotFoundError`, `NotADirectoryError`, or `PermissionError` for a link or what is
    another user's.
    """
    descriptor = _of_this_user(_opened(name, folder), name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_below(folder: int, names: Sequence[str]) -> Iterator[int]:
    """The descriptor of a folder below an open one; what is missing on the way is made."""
    descriptor = -1
    try:
        for name in names:
            above, descriptor = descriptor, _entered(name, folder)
            if above >= 0:
                os.close(above)
            folder = descriptor
        yield folder
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def open_file(name: str, folder: int, flags: int = 0) -> int:
    """A file of this user in an open folder. Raises `PermissionError` for what is none.

    `flags`: whether it is made where it is missing, or only there.
    """
    try:
        descriptor = os.open(name, _FILE | flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise _foreign(name) from error
        raise
    found = os.fstat(descriptor)
    if is_own_file(found):
        return descriptor
    os.close(descriptor)
    raise _foreign(name)


def is_own_file(found: os.stat_result) -> bool:
    """Whether it is a file that this user made, and that has no name elsewhere."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink <= 1


def _make_parents(folder: Path) -> None:
    """For this user alone: `Path.mkdir` lets others into parents."""
    if not folder.is_dir():
        _make_parents(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _entered(name: str | Path, folder: int | None) -> int:
    try:
        descriptor = _opened(name, folder)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        descriptor = _opened(name, folder)
    return _of_this_user(descriptor, name)


def _of_this_user(descriptor: int, name: str | Path) -> int:
    """The folder, closed to others; else `PermissionError`."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        os.close(descriptor)
        raise _foreign(name)
    if found.st_mode & 0o077:
        os.fchmod(descriptor, 0o700)
    return descriptor


def _opened(name: str | Path, folder: int | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError as error:
        with suppress(NotADirectoryError):
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise _foreign(name) from error
        raise


def _foreign(name: str | Path) -> PermissionError:
    return PermissionError(errno.EPERM, _FOREIGN, str(name))
