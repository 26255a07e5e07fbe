"""What others might put into a cache folder, or exchange it for."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest


def own(cache_dir: Path) -> Path:
    return cache_dir / f"user-{os.getuid()}"


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


class Exchanged:
    """Puts a link to `theirs` in a folder's place just before the `nth` call that names a file."""

    CALLS = ("open", "mkdir", "stat", "lstat", "chmod", "unlink", "scandir")

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, theirs: Path, nth: int) -> None:
        self._folder = folder
        self._theirs = theirs
        self._left = nth
        self.is_done = False
        self._real = {name: getattr(os, name) for name in self.CALLS}
        for name in self.CALLS:
            patch.setattr(os, name, partial(self._call, name))

    def _call(self, verb: str, *args: object, **how: object) -> object:
        if how.get("dir_fd") is not None or (
            args and isinstance(args[0], (str, Path)) and "cache" in Path(args[0]).parts
        ):
            self._left -= 1
            if self._left < 0 and not self.is_done:
                self._exchange()
        return self._real[verb](*args, **how)

    def _exchange(self) -> None:
        """As soon as the folder is there."""
        # Another thread may make it again before the link is there: then at the next call.
        with suppress(FileNotFoundError, FileExistsError):
            os.rename(self._folder, self._folder.parent / f"aside-{secrets.token_hex(4)}")
            os.symlink(self._theirs, self._folder)
            self.is_done = True


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def make_other_name(path: Path) -> None:
    (path.parent / "mine").write_bytes(b"")
    os.link(path.parent / "mine", path)
