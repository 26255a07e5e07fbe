"""What `Dataset` and `DataLoader` share: a config, a pinned version, and the rows read of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..catalog import Catalog, Snapshot, Version
from ..config import DataConfig, require_config
from ..errors import ConfigError, LoaderAttributeError, LoaderError, TransformError
from ..keywords import flag, nearest, shown
from ..process import PerProcess
from ..ragged import Pad
from ..schema import Attribute, Schema
from ..store import CountedStore, Counter
from .feed import Feed
from .fetch.cache import Cache, cache_folder
from .fetch.engine import Engine
from .fetch.objects import Objects
from .fill.gather import Fillers, fillers
from .order import Rows
from .tuning import TUNING

Transform = Callable[[Any], Any] | Callable[[Any, np.random.Generator], Any]
_STREAM = 6  # apart from the streams of the orders
V = TypeVar("V", bound="View")


class View:
    """A dataset at one version, fixed at first use or by `open`. Picklable, safe after a fork."""

    _feed = Feed()  # an adapter for a framework has another
    _tuning = TUNING
    _pad: Mapping[str, Pad] = {}

    def __init__(
        self,
        config: DataConfig,
        *,
        attributes: Sequence[str] | None,
        version: Version | str | Sequence[str] | None,
        transform: Transform | None,
        as_tuple: bool,
        verify: bool,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = 0,
    ) -> None:
        """`cache_size`: bytes of a network store's objects that `cache_dir` may hold."""
        require_config(config, type(self).__name__)
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform: a function of the batch, not {shown(transform)}")
        cache_folder(cache_dir)  # raises where it is none
        if config.schema is not None:
            config.schema.select(attributes)  # raises where one is none of them
        self._config = config
        self._attributes = attributes
        self._wanted_version = version
        self._transform = transform
        self._draws = transform is not None and _takes_rng(transform)
        self._as_tuple = flag("as_tuple", as_tuple)
        self._verify = flag("verify", verify)
        self._cache_dir = cache_dir
        self._cache_size = cache_size
        self._snapshot: Snapshot | None = None  # which a forked child has, too
        self._pinned: PerProcess[Snapshot] = PerProcess()
        self._process_engine: PerProcess[Engine] = PerProcess()
        self._process_catalog: PerProcess[Catalog] = PerProcess()
        self._process_counter: PerProcess[Counter] = PerProcess()  # of what is fetched

    def __setattr__(self, name: str, value: Any) -> None:
        # Nobody would read it. A user's subclass may keep what is its own.
        is_ours = type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
        if is_ours and not name.startswith("_"):
            kind = type(self).__name__
            raise LoaderAttributeError(
                f"{name}: a {kind} stays as it was made; make another {kind} with what you want"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not found: raises the error that a property has, or a hint."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = [one for one in dir(type(self)) if not one.startswith("_")]
        if name in known:
            return object.__getattribute__(self, name)
        raise LoaderAttributeError(
            f"a {type(self).__name__} has no attribute {shown(name)}{nearest(name, known)}"
        )

    @property
    def config(self) -> DataConfig:
        """The dataset that is read."""
        return self._config

    def open(self) -> Snapshot:
        """Fix the version now, where it is not yet; later calls change nothing.

        Raises `DatasetNotFoundError`, `VersionNotFoundError`, `SchemaError` or `StoreError`.
        """
        if self._snapshot is None:
            self._snapshot = self._pinned.get(self._pin)
        return self._snapshot

    def _pin(self) -> Snapshot:
        """In one thread: who comes meanwhile waits, and reads the same."""
        peers = self._feed.peers() if self._wanted_version is None else None
        if peers is not None:
            self._wanted_version = peers.newest_version(self.config)
        return self._checked(self._catalog.snapshot(self._wanted_version))

    def _unpin(self) -> None:
        """Fix the version anew at next use."""
        self._snapshot = None
        self._pinned, self._process_engine = PerProcess(), PerProcess()

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, if it has what is to be read; else raises."""
        snapshot.schema.select(self._attributes)
        return snapshot

    @property
    def version(self) -> Version:
        """The version that is read."""
        return self.open().version

    @property
    def num_rows(self) -> int:
        """Rows of the dataset at this version."""
        return self.open().num_rows

    @property
    def schema(self) -> Schema:
        """The attributes that are read, in order."""
        return self.open().schema.select(self._attributes)

    @property
    def _row_nbytes(self) -> int:
        """Bytes of what is read of a row, in the mean."""
        return self.open().read_nbytes(self.schema)

    @property
    def spec(self) -> dict[str, Attribute]:
        """By attribute, the dtype and the shape of one row as they are read."""
        return {attribute.name: attribute for attribute in self.schema}

    @property
    def _catalog(self) -> Catalog:
        return self._process_catalog.get(lambda: Catalog(self.config))

    @property
    def _engine(self) -> Engine:
        return self._process_engine.get(self._make_engine)

    @property
    def _counter(self) -> Counter:
        return self._process_counter.get(Counter)

    def _make_engine(self) -> Engine:
        store = self._catalog.store
        if not store.is_local:
            store = CountedStore(store, self._counter)
        snapshot, cache = self.open(), None
        if self._cache_size != 0:
            folder = cache_folder(self._cache_dir)
            cache = Cache(folder, store, self._cache_size, keys=snapshot.keys)
        objects = Objects(store, snapshot, self.schema, verify=self._verify, tuning=self._tuning)
        return Engine(objects, cache)

    def _fillers(self) -> Fillers:
        """What makes the fields of batches."""
        return fillers(self.schema, self._feed.copy_rows, self._pad)

    def _at(self, version: Version) -> Snapshot:
        """The dataset at this version, checked; changes nothing."""
        if self._snapshot is not None and self._snapshot.version == version:
            return self._snapshot
        return self._checked(self._catalog.snapshot(version))

    def _reading(self: V, snapshot: Snapshot) -> V:
        """What reads this snapshot: this view, or one like it that shares all but rows with it."""
        if snapshot is self._snapshot:
            return self
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._snapshot = snapshot
        other._process_engine = PerProcess()
        return other

    def _finish(
        self,
        arrays: Mapping[str, Any],
        rows: Sequence[int] | Rows,
        place: tuple[int, ...] = (),
    ) -> Any:
        """A batch or row as the user gets it; `rows` are its numbers, for errors.

        `place`: what its transform draws follows from it.
        """
        batch: Any = self._feed.convert(arrays)
        if self._transform is not None:
            transform: Callable[..., Any] = self._transform
            try:
                if self._draws:
                    batch = transform(batch, np.random.default_rng((_STREAM, *place)))
                else:
                    batch = transform(batch)
            except Exception as error:
                shown = ", ".join(map(str, [*rows[:8]])) + (", ..." if len(rows) > 8 else "")
                raise TransformError(
                    f"transform failed on rows {shown} of dataset "
                    f"{self.config.dataset_name!r}: {type(error).__name__}: {error}"
                ) from error
        if self._as_tuple:
            if not isinstance(batch, Mapping):
                raise LoaderError(
                    f"as_tuple needs a dict from transform, not {type(batch).__name__}; "
                    "return the tuple from transform and leave as_tuple out"
                )
            batch = tuple(batch.values())
        return batch

    def __getstate__(self) -> dict[str, Any]:
        self._open_for_copies()
        return self.__dict__

    def _open_for_copies(self) -> None:
        """A pickled one carries its version."""
        self.open()


def _takes_rng(transform: Callable[..., Any]) -> bool:
    """Whether it needs a second argument, or calls one `rng`."""
    try:
        parameters = [*inspect.signature(transform).parameters.values()]
    except (ValueError, TypeError):  # of a function that is not Python's
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [one for one in parameters if one.kind in places][1:2]
    return any(one.default is one.empty or one.name == "rng" for one in second)
