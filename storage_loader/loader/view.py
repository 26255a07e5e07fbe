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
from ..keywords import brief, flag, nearest, shown
from ..process import PerProcess
from ..schema import Attribute, Schema
from ..store import CountedStore, Counter
from .decode import Decode, Decoder, Each, check_decode, decode_of
from .feed import Feed
from .fetch.cache import Cache, cache_folder
from .fetch.engine import Engine
from .fetch.objects import Objects
from .fill.gather import Fillers, fillers
from .fill.ragged import length_name
from .order import Rows
from .settings import check_pad, pad_of
from .tuning import TUNING

Transform = Callable[[Any], Any] | Callable[[Any, np.random.Generator], Any]
_STREAM = 6  # apart from the streams of the orders
V = TypeVar("V", bound="View")


class View:
    """A dataset at one version, fixed at first use or by `open`. Picklable, safe after a fork."""

    _feed = Feed()  # an adapter for a framework has another
    _tuning = TUNING

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
        pad: Mapping[str, Any] | None = None,
        decode: Mapping[str, Decode] | None = None,
    ) -> None:
        """`cache_size`: bytes of a network store's objects that `cache_dir` may hold."""
        require_config(config, type(self).__name__)
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform: a function of the batch, not {shown(transform)}")
        cache_folder(cache_dir)  # raises where it is none
        self._pad = pad_of(pad)
        self._decode = decode_of(decode)
        self._config = config
        self._attributes = attributes
        if config.schema is not None:
            self._check_names(config.schema)
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
        self._check_names(snapshot.schema)
        return snapshot

    def _check_names(self, stored: Schema) -> None:
        """Raise where what was asked for does not fit the attributes that are stored."""
        read = stored.select(self._attributes)
        check_decode(self._decode, read, stored)
        check_pad(self._pad, read)
        clash = {length_name(name) for name in self._pad} & set(read.names)
        if clash:
            raise ConfigError(f"pad adds {sorted(clash)}: attributes of the same name are read")

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
        *,
        is_row: bool = False,
        each: Each = map,
    ) -> Any:
        """A batch or row as the user gets it; `rows` are its numbers, -1 for padding.

        `place`: what its transform draws follows from it. `each` does what is to be decoded.
        """
        batch: Any = self._converted(arrays, rows, is_row, each)
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
                    f"{self.config.dataset_name!r}: {brief(error)}"
                ) from error
        if self._as_tuple:
            if not isinstance(batch, Mapping):
                raise LoaderError(
                    f"as_tuple needs a dict from transform, not {type(batch).__name__}; "
                    "return the tuple from transform and leave as_tuple out"
                )
            batch = tuple(batch.values())
        return batch

    @property
    def _runs_user_code(self) -> bool:
        """Whether making a batch calls functions of the user's, which may take long."""
        return self._transform is not None or bool(self._decode)

    def _converted(
        self, arrays: Mapping[str, Any], rows: Sequence[int] | Rows, is_row: bool, each: Each
    ) -> dict[str, Any]:
        """The framework's own of what was gathered, in the same order."""
        if not self._decode:
            return self._feed.convert(arrays)
        others = {name: field for name, field in arrays.items() if name not in self._decode}
        fields = self._feed.convert(others)
        return {
            name: fields[name] if name in fields else self._decoded(name, field, rows, is_row, each)
            for name, field in arrays.items()
        }

    def _decoded(
        self, name: str, values: Any, rows: Sequence[int] | Rows, is_row: bool, each: Each
    ) -> Any:
        decoder = Decoder(self._decode[name], name, self.config.dataset_name)
        numbers = np.asarray(rows)
        made = decoder.all([values] if is_row else values, numbers, each)
        if not made and len(numbers):  # nothing but padding: a stored row says of what shape it is
            made = [decoder.one(self._engine.row(0)[name], 0)]
        field = self._feed.stack(made, numbers >= 0)
        if not is_row:
            return field
        return field[0] if isinstance(field, list) else field[0, ...]

    def __getstate__(self) -> dict[str, Any]:
        self.open()  # a pickled one carries its version
        return self.__dict__


def _takes_rng(transform: Callable[..., Any]) -> bool:
    """Whether it needs a second argument, or calls one `rng`."""
    try:
        parameters = [*inspect.signature(transform).parameters.values()]
    except (ValueError, TypeError):  # of a function that is not Python's
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [one for one in parameters if one.kind in places][1:2]
    return any(one.default is one.empty or one.name == "rng" for one in second)
