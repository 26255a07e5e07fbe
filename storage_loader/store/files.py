"""Files that someone else may have put there: only regular ones are opened, and no open waits."""

from __future__ import annotations

import errno
import os
import stat

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
# A link that is not followed (EMLINK: FreeBSD); sockets, and devices without a driver.
_ODD = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class OddFileError(OSError):
    """What lies there is no regular file; `str` says what it is."""


def kind_of(mode: int) -> str:
    """What a file of this mode is, for messages; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def open_regular(path: str | os.PathLike[str], *, dir_fd: int | None = None) -> int:
    """A descriptor to read a regular file; `OddFileError` for everything but that and a folder.

    Never waits: opening a FIFO otherwise takes until someone writes into it.
    """
    try:
        descriptor = os.open(path, _READ, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _ODD:
            raise
        mode = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
        raise OddFileError(f"that is {kind_of(mode)}") from error
    try:
        check_regular(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(mode: int) -> None:
    """Raise `IsADirectoryError` or `OddFileError` unless the mode is a regular file's."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OddFileError(f"that is {kind_of(mode)}")
