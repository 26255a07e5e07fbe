"""Where a loader stands in its order: a few integers and strings, and how they are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from ...catalog import Version
from ...errors import LoaderError
from ...keywords import reject_unknown, shown
from . import ARITHMETIC

_INTEGERS = ("order", "seed", "first_epoch", "epoch", "stop_epoch", "rows", "block", "window")


class Start(Protocol):
    """What the iteration begins with that begins next."""

    @property
    def seed(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def set(self, *, epoch: int, seed: int | None = None) -> Start:
        """Those that are given, at once; gives what holds them."""


@dataclass(frozen=True)
class StartHere:
    """The same for a loader that shares it with no other process."""

    seed: int
    epoch: int = 0

    def set(self, *, epoch: int, seed: int | None = None) -> StartHere:
        """See `Start`."""
        return StartHere(self.seed if seed is None else seed, epoch)


@dataclass(frozen=True)
class State:
    """Everything that names the next row. Fits any world_size and batch_size."""

    order: int  # number of the arithmetic, see `ARITHMETIC`
    dataset: str  # its prefix in the storage
    version: str  # its hash and the commit ids, separated by spaces
    subset: str
    shuffle: str
    block: int  # rows; 0 where the order has none
    window: int
    seed: int
    first_epoch: int  # of the iteration
    epoch: int
    stop_epoch: int  # first epoch that the iteration does not run through
    rows: int  # of the epoch, received in the global order

    @property
    def has_begun(self) -> bool:
        """Whether something of the iteration was received."""
        return self.rows > 0 or self.epoch > self.first_epoch

    def to_dict(self) -> dict[str, Any]:
        """Plain integers and strings."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> State:
        """Raises `LoaderError` or `UnknownNameError` for what `to_dict` cannot have made."""
        if not isinstance(value, Mapping):
            raise LoaderError(f"a loader's state is a dict, not {type(value).__name__}")
        order = value.get("order")
        if type(order) is int and order > ARITHMETIC:
            raise LoaderError(
                f"the state has order {order}, this storage_loader knows {ARITHMETIC}: a later one "
                "made it, whose rows come in another order; install that one to resume"
            )
        names = [field.name for field in fields(cls)]
        reject_unknown(value, names, what="key of a loader's state")
        for name in names:
            if name not in value:
                raise LoaderError(f"a loader's state lacks {name!r}")
            kind = int if name in _INTEGERS else str
            if type(value[name]) is not kind or (kind is int and value[name] < 0):
                raise LoaderError(f"a loader's state has {name!r}: {shown(value[name])}")
        if order != ARITHMETIC:
            raise LoaderError(
                f"a loader's state has 'order': {shown(order)}, which no loader wrote"
            )
        if Version.parse(value["version"]) is None:
            raise LoaderError(
                f"a loader's state has 'version': {shown(value['version'])}, which no loader wrote"
            )
        return cls(**value)

    @property
    def pinned(self) -> Version:
        """The version that its rows are of."""
        version = Version.parse(self.version)
        assert version is not None  # see `from_dict`
        return version

    def check_dataset(self, dataset: str) -> None:
        """Raise `LoaderError` where this is not the dataset's."""
        if self.dataset != dataset:
            raise LoaderError(f"the state is of dataset {self.dataset}, not of {dataset}")

    def check_order(self, settings: Mapping[str, int | str]) -> None:
        """Raise `LoaderError` where a loader with these settings has another order."""
        for name, theirs in settings.items():
            mine = getattr(self, name)
            if mine != theirs:
                raise LoaderError(
                    f"the state was made with {name} {mine}, this loader has {theirs}; "
                    "its rows come in another order"
                )
