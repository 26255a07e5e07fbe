"""The folder that a check works in: it writes nowhere else, and removes it in the end.

A check that is killed leaves its folder. All lie below `FOLDER`, so that a later one finds and
removes them; no dataset has this name.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from typing_extensions import Buffer

from ..errors import PermissionDeniedError, StoreError
from ..store import Store
from ..store.forwarding import ForwardingStore

FOLDER = ".storage-loader-check"
AGE = timedelta(hours=1)  # far beyond the time that a check may take
_AT_ONCE = 1000  # keys of one deletion


class EndedError(StoreError):
    """The check is over: nothing more is written."""


class OwnFolder(ForwardingStore):
    """`inner`, for keys in a folder of this check's own; it knows what it wrote."""

    def __init__(self, inner: Store, folder: str | None = None) -> None:
        super().__init__(inner)
        self.folder = folder or f"{FOLDER}/{secrets.token_hex(8)}"
        self._written: set[str] = set()
        self._is_over = False
        self._under_way = 0
        self._changed = threading.Condition()
        self._latest: datetime | None = None

    def key(self, name: str) -> str:
        """A key in the folder."""
        return f"{self.folder}/{name}"

    @contextlib.contextmanager
    def writing(self, keys: Iterable[str]) -> Iterator[None]:
        """While something is written, or deleted, under keys of this folder."""
        keys = list(keys)
        strange = [key for key in keys if not key.startswith(f"{self.folder}/")]
        if strange:
            raise StoreError(f"{strange[0]}: a check writes in {self.folder} only")
        with self._changed:
            if self._is_over:
                raise EndedError("the check is over")
            self._written.update(keys)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def put(self, key: str, data: Buffer, *, create: bool = False) -> None:
        with self.writing([key]):
            try:
                super().put(key, data, create=create)
            except PermissionDeniedError:
                self._written.discard(key)
                raise

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        with self.writing(wanted):
            super().delete(wanted)

    def now(self, probe: str) -> datetime:
        with self.writing([probe]):
            return super().now(probe)

    def end(self, seconds: float) -> None:
        """Let nothing more be written; wait so long for what is under way."""
        with self._changed:
            self._is_over = True
            self._changed.wait_for(lambda: not self._under_way, seconds)

    def remove(self) -> None:
        """Remove all that was written, after `end`. Listings may be wrong: keys are known."""
        if not self._written:
            return
        infos = [*self._inner.list(self.folder)]
        self._latest = max((info.modified for info in infos), default=None)
        keys = self._written | {info.key for info in infos}
        _delete(self._inner, self.folder, sorted(keys))

    def sweep(self) -> int:
        """Remove what killed checks left, after `remove`; of how many."""
        now = self._latest  # of what was written a moment ago, by the store's own clock
        if now is None:
            return 0
        count = 0
        for name in self._inner.list_folders(FOLDER):
            folder = f"{FOLDER}/{name}"
            if folder == self.folder:
                continue
            infos = [*self._inner.list(folder), *self._inner.list_unfinished(folder)]
            if all(now - info.modified > AGE for info in infos):
                _delete(self._inner, folder, [info.key for info in self._inner.list(folder)])
                count += bool(infos)
        return count


def _delete(store: Store, folder: str, keys: list[str]) -> None:
    for start in range(0, len(keys), _AT_ONCE):
        store.delete(keys[start : start + _AT_ONCE])
    store.delete_unfinished([info.key for info in store.list_unfinished(folder)])
    # In a file system the folders are left, where a put was killed before its file was made: with
    # the deletion of any key in it an empty one goes.
    folders = [folder]
    for one in folders:
        folders += [f"{one}/{name}" for name in store.list_folders(one)]
    for one in reversed(folders):
        store.delete([f"{one}/none"])
