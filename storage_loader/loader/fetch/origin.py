"""Where the objects of a cache come from: a folder's name is a hash of it, a file in it the text.

Only `storage-loader cache` needs the text, and it believes what has this hash.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from .private import is_own_file, open_file

ORIGIN = ".origin"  # the file's name, which is no dataset's

_LONGEST = 2**16  # bytes


def origin_id(origin: str) -> str:
    """The name of the folder for objects of this `Store.origin`: places never mix."""
    return hashlib.sha256(origin.encode()).hexdigest()[:16]


def note_origin(origin: str, folder: int) -> None:
    """Have the text in the open folder of its objects. A failure, as of a full disk, is no error.

    Processes may write it at once, since all of them write the same.
    """
    text = origin.encode()
    with suppress(OSError):
        with suppress(FileNotFoundError):
            found = os.stat(ORIGIN, dir_fd=folder, follow_symlinks=False)
            if not is_own_file(found):
                os.unlink(ORIGIN, dir_fd=folder)
            elif found.st_size == len(text):
                return
        descriptor = open_file(ORIGIN, folder, os.O_CREAT)
        try:
            if os.pwrite(descriptor, text, 0) == len(text):
                os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)


def noted_origin(name: str, folder: int) -> str:
    """The text in the open folder of this name; the name where there is none, or a wrong one."""
    with suppress(OSError, UnicodeDecodeError):
        if is_own_file(os.stat(ORIGIN, dir_fd=folder, follow_symlinks=False)):
            descriptor = open_file(ORIGIN, folder)
            try:
                text = os.pread(descriptor, _LONGEST, 0).decode()
            finally:
                os.close(descriptor)
            if origin_id(text) == name:
                return text
    return name
