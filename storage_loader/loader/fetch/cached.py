"""What a cache folder holds, by dataset, and how it is cleared.

Nothing here is reached by a path or through a link: each folder is opened from the one above it.
Loaders, evictors and others that clear may be at work meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TypeVar

from ...config import DataConfig, is_dataset_id, is_dataset_name
from ...errors import ConfigError, LoaderError
from ...keywords import checked_keywords, flag, shown
from ...store import open_store
from .cache import SUFFIX, cache_folder, count_anew, own_folder
from .cache_file import delete_unused, is_unused
from .origin import ORIGIN, noted_origin, origin_id
from .private import is_own_file, open_found

T = TypeVar("T")

_LAST_SECOND = 253_402_300_799  # of the year 9999


@dataclass(frozen=True)
class CachedDataset:
    """What a cache folder holds of a dataset, or that part of it which a call was about."""

    origin: str  # server and storage; a hash of them where the cache does not say
    prefix: str  # its place in the storage, <name>/<id>
    num_files: int  # one for an object
    nbytes: int  # of the disk
    num_in_use: int  # files that a process has open now
    last_used: datetime  # when a loader last opened or filled one of them; UTC

    @property
    def name(self) -> str:
        """Its `dataset_name`."""
        return self.prefix.rpartition("/")[0]


@dataclass(frozen=True)
class ClearedCache:
    """What was removed from a cache, and what should have been but a process uses it now."""

    removed: tuple[CachedDataset, ...]
    in_use: tuple[CachedDataset, ...]


@checked_keywords
def list_cache(cache_dir: str | os.PathLike[str] | None = None) -> list[CachedDataset]:
    """What the cache of this user in `cache_dir` holds, sorted by dataset.

    Raises `LoaderError` where it cannot be read. A folder that is not there holds nothing.
    """

    def look(own: int) -> list[CachedDataset]:
        found = _Sums()
        for file in _files(own):
            with suppress(FileNotFoundError):
                found.add(file, in_use=not is_unused(file.name, file.folder))
        return found.datasets()

    return _within(own_folder(cache_folder(cache_dir)), look) or []


@checked_keywords
def clear_cache(
    dataset: DataConfig | str | None = None,
    *,
    older_than: timedelta | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
) -> ClearedCache:
    """Remove cache files of this user that no process has open; returns which went and stayed.

    `dataset`: only the one of this config, or those of this name or `<name>/<id>`, of whatever
    storage. `older_than`: only what no loader has opened or filled for so long. `dry_run` removes
    nothing. May run at any time, beside loaders and itself. Raises `LoaderError` where the cache
    cannot be read or changed.
    """
    flag("dry_run", dry_run)
    is_meant = _selector(dataset, older_than)
    path = own_folder(cache_folder(cache_dir))

    def clear(own: int) -> ClearedCache:
        removed, in_use = _Sums(), _Sums()
        for file in _files(own):
            if not is_meant(file):
                continue
            with suppress(FileNotFoundError):
                go = is_unused if dry_run else delete_unused
                if go(file.name, file.folder):
                    removed.add(file, in_use=False)
                else:
                    in_use.add(file, in_use=True)
        cleared = ClearedCache(tuple(removed.datasets()), tuple(in_use.datasets()))
        if cleared.removed and not dry_run:
            _remove_empty(own)
            count_anew(own, path)
        return cleared

    return _within(path, clear) or ClearedCache((), ())


@dataclass(frozen=True)
class _File:
    """A cache file as it was found."""

    origin: str
    place: tuple[str, ...]  # folders to it from the user's own
    name: str
    folder: int  # the descriptor of the one that it is in, until the next one is looked at
    nbytes: int
    last_used: float  # s since 1970

    @property
    def prefix(self) -> str:
        return "/".join(self.place[1 : _num_prefix_parts(self.place)])


class _Sums:
    """Files summed up by dataset."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], CachedDataset] = {}

    def add(self, file: _File, *, in_use: bool) -> None:
        key = file.prefix, file.origin
        last = datetime.fromtimestamp(min(max(file.last_used, 0), _LAST_SECOND), timezone.utc)
        so_far = self._found.get(key) or CachedDataset(file.origin, file.prefix, 0, 0, 0, last)
        self._found[key] = CachedDataset(
            file.origin,
            file.prefix,
            so_far.num_files + 1,
            so_far.nbytes + file.nbytes,
            so_far.num_in_use + in_use,
            max(so_far.last_used, last),
        )

    def datasets(self) -> list[CachedDataset]:
        return [self._found[key] for key in sorted(self._found)]


def _selector(
    dataset: DataConfig | str | None, older_than: timedelta | None
) -> Callable[[_File], bool]:
    """Whether a file is one of those that are meant."""
    if older_than is not None and (
        not isinstance(older_than, timedelta) or older_than < timedelta(0)
    ):
        raise ConfigError(f"older_than {shown(older_than)}: a timedelta from 0 up")
    latest = None if older_than is None else time.time() - older_than.total_seconds()
    origin, prefixes = _wanted(dataset)

    def is_meant(file: _File) -> bool:
        if latest is not None and file.last_used > latest:
            return False
        name, _, _ = file.prefix.rpartition("/")
        return origin in (None, file.place[0]) and prefixes in (None, file.prefix, name)

    return is_meant


def _wanted(dataset: object) -> tuple[str | None, str | None]:
    """The id of an origin, and the name or prefix of datasets; None: anything."""
    if dataset is None:
        return None, None
    if isinstance(dataset, DataConfig):
        return origin_id(open_store(dataset).origin), dataset.dataset_prefix
    if isinstance(dataset, str):
        name, _, id_ = dataset.rpartition("/")
        if is_dataset_name(name if is_dataset_id(id_) else dataset):
            return None, dataset
    raise ConfigError(f"dataset {shown(dataset)}: a DataConfig, a dataset's name, or <name>/<id>")


def _within(path: Path, work: Callable[[int], T]) -> T | None:
    """What `work` makes of the open folder; None where there is none."""
    try:
        with open_found(path) as own:
            return work(own)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoaderError(f"the cache {path} cannot be read or changed: {error}") from error


def _files(folder: int, place: tuple[str, ...] = (), origin: str = "") -> Iterator[_File]:
    """All cache files of datasets below an open folder, one after another."""
    if len(place) == 1:
        origin = noted_origin(place[0], folder)
    if _num_prefix_parts(place):
        for name in sorted(os.listdir(folder)):
            if name.endswith(SUFFIX):
                with suppress(FileNotFoundError):
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if is_own_file(found):
                        nbytes = found.st_blocks * 512
                        yield _File(origin, place, name, folder, nbytes, found.st_mtime)
    for name, below in _folders(folder, place):
        yield from _files(below, (*place, name), origin)


def _folders(folder: int, place: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The folders in an open one that a cache could have made, each with its descriptor."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in names:
        if _may_be(name, place):
            with ExitStack() as opened:
                try:
                    below = opened.enter_context(open_found(name, folder))
                except (FileNotFoundError, NotADirectoryError, PermissionError):
                    continue  # gone, or a link or another user's by now
                yield name, below


def _num_prefix_parts(place: tuple[str, ...]) -> int:
    """Folders above what belongs to one dataset: <origin's id>/<name>/<id>; 0: not that deep.

    No part of a name looks like an id.
    """
    found = (depth for depth, part in enumerate(place) if depth > 1 and is_dataset_id(part))
    return next(found, -1) + 1


def _may_be(name: str, place: tuple[str, ...]) -> bool:
    """Whether a folder there may be called so."""
    if not place:
        return is_dataset_id(name)  # an origin's looks the same
    if _num_prefix_parts(place):
        return True
    return is_dataset_name("/".join([*place[1:], name])) or (len(place) > 1 and is_dataset_id(name))


def _remove_empty(folder: int, place: tuple[str, ...] = ()) -> None:
    """Remove what folders of datasets are empty below; a loader makes its own again."""
    for name, below in _folders(folder, place):
        _remove_empty(below, (*place, name))
        with suppress(OSError):  # it is not empty
            if not place and os.listdir(below) == [ORIGIN]:
                os.unlink(ORIGIN, dir_fd=below)
            os.rmdir(name, dir_fd=folder)
