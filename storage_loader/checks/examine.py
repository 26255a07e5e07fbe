"""`check`: the points of a storage, one after another, in a time of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NotDoneError
from pathlib import Path
from typing import Protocol

from ..config import DataConfig
from ..credentials import Provider
from ..errors import ConfigError, StorageLoaderError
from ..keywords import checked_keywords, flag, shown
from ..process import late_import
from ..store import Store, open_store
from .clock import CLOCK
from .folder import FolderPoints
from .own import OwnFolder
from .promises import PAGES, PROMISES
from .speed import SPEED
from .trial import Effort, Point, Trial
from .value import Check, Checked, Found, State, untried
from .verbs import LIST, READ, VERBS

SECONDS = 30.0
_CLEANING = 6.0  # of these at most, or a quarter, to remove what was made
_UNDER_WAY = 1 / 3  # of that, for requests that have begun
_TIMEOUT = 5.0  # for a request without progress
_MORE = "give it more time (--seconds), or see what makes the storage so slow"


@checked_keywords
def check(
    storage: str | os.PathLike[str] | None = None,
    *,
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    credentials: Provider | None = None,
    secure: bool | None = None,
    region: str | None = None,
    read_only: bool = False,
    seconds: float = SECONDS,
) -> Checked:
    """Whether a storage holds what savers and loaders rely on: an entry for each point.

    Works in a folder `.storage-loader-check/<random>` below the storage and removes it, also
    after Ctrl-C, with what killed checks left there an hour ago or longer. A bucket that is
    missing is made, as a saver would, and removed. Nothing else is written. `read_only` writes
    nothing, and tries only what needs no writing. Ends within `seconds`; points for which there
    was no time are "not tried". Takes the storage settings of `DataConfig`.
    """
    flag("read_only", read_only)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds < 10:
        raise ConfigError(f"seconds {shown(seconds)}: a number from 10 up")
    config = DataConfig(
        "any",
        storage=storage,
        endpoint=endpoint,
        access_key=access_key,
        secret_key=secret_key,
        credentials=credentials,
        secure=secure,
        region=region,
        timeout=_TIMEOUT,
        deadline=_TIMEOUT,
    )
    return examine(open_store(config), points_of(config), read_only=read_only, seconds=seconds)


class OwnPoints(Protocol):
    """The points of one kind of storage."""

    @property
    def is_s3(self) -> bool: ...

    def before(self, *, read_only: bool) -> tuple[Point, ...]: ...

    def after(self) -> tuple[Point, ...]: ...

    def close(self) -> None:
        """Remove what they made beside the check's folder."""


def points_of(config: DataConfig) -> OwnPoints | None:
    """Those of the kind of storage that a config names; memory has none."""
    scheme, _, rest = config.storage.partition("://")
    if scheme == "s3":
        with late_import():
            from ..store.s3_place import S3Place  # noqa: PLC0415
            from .s3 import S3Points  # noqa: PLC0415

        return S3Points(S3Place.of(config))
    return FolderPoints(Path(rest)) if scheme == "file" else None


def examine(
    store: Store,
    own: OwnPoints | None = None,
    *,
    read_only: bool = False,
    seconds: float = SECONDS,
    effort: Effort | None = None,
) -> Checked:
    """The same of an open store, and the points of its kind."""
    began = time.monotonic()
    folder = OwnFolder(store)
    is_s3 = own is not None and own.is_s3
    cleaning = min(_CLEANING, seconds / 4)
    trial = Trial(folder, is_s3, began + seconds - cleaning, effort or Effort())
    points = _points(own, read_only=read_only)
    checks: list[Check] = []
    left, swept = "", 0
    try:
        for point in points:
            found = _tried(point, trial, checks)
            checks.append(Check(point.name, found.state, found.detail, found.cost, found.remedy))
    finally:
        folder.end(cleaning * _UNDER_WAY)
        if not read_only:
            left, swept = _cleaned(folder, own, trial, _states(checks), began + seconds)
    return Checked(store.url, tuple(checks), time.monotonic() - began, left, swept)


def _points(own: OwnPoints | None, *, read_only: bool) -> list[Point]:
    before = own.before(read_only=read_only) if own else ()
    after = own.after() if own else ()
    has_clock = any(point.name == "clock" for point in before)
    every = [
        *before,
        LIST,
        *([READ] if read_only else VERBS),
        *(() if has_clock else (CLOCK,)),
        *after,
        *PROMISES,
        SPEED,
        PAGES,
    ]
    if read_only:
        return [point for point in every if not point.writes]
    return every


def _states(checks: Sequence[Check]) -> dict[str, State]:
    return {one.name: one.state for one in checks}


def _tried(point: Point, trial: Trial, before: Sequence[Check]) -> Found:
    states = _states(before)
    lacking = [name for name in point.needs if states.get(name, "holds") != "holds"]
    if lacking:
        return untried(f"it needs {' and '.join(lacking)}")
    forbidding = [name for name in point.unless if states.get(name) == "falls short"]
    if forbidding:
        return untried(f"it would leave much here, as {forbidding[0]} says")
    left = trial.end - time.monotonic()
    if left <= 0:
        return untried("no time was left", _MORE)
    finding = trial.threads.submit(point.find, trial)
    if not finding.wait(left):
        return untried("it took longer than there was time", _MORE)
    error = finding.exception()
    if isinstance(error, (StorageLoaderError, OSError)):
        return untried(str(error))
    return finding.result()


def _cleaned(
    folder: OwnFolder, own: OwnPoints | None, trial: Trial, states: dict[str, State], end: float
) -> tuple[str, int]:
    """Remove all that was made; what is left, and how many killed checks were removed, too."""

    def remove() -> None:
        folder.remove()
        if own is not None:
            own.close()

    def sweep() -> int:
        return folder.sweep() if states.get("delete") == "holds" else 0

    try:
        trial.threads.submit(remove).result(end - time.monotonic())
    except (NotDoneError, StorageLoaderError, OSError):
        return folder.folder, 0
    if states.get("delete") == "falls short":
        return folder.folder, 0
    try:
        return "", trial.threads.submit(sweep).result(end - time.monotonic())
    except (NotDoneError, StorageLoaderError, OSError):
        return "", 0
