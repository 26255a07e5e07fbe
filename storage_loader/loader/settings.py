"""The settings of a `DataLoader`: how they are checked, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..catalog import Snapshot
from ..errors import ConfigError
from ..keywords import shown
from ..ragged import Pad
from ..schema import Schema
from .order import Order, Shuffle, make_order
from .order.partition import LAST_BATCH, LastBatch, Partition
from .order.subset import Subset, make_subset

EXTRAS = ("row", "valid")


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked, in the words of the loader's constructor."""

    batch_size: int | None  # rows on each rank; None: rows, one at a time
    shuffle: Shuffle
    last_batch: LastBatch
    subset: Any
    ranks: tuple[int, int] | None  # rank and world_size; None: the framework's
    extras: tuple[str, ...]
    epochs: int  # of one iteration
    prefetch: int  # bytes
    threads: int
    block: int | None  # rows
    window: int | None
    num_workers: int

    @property
    def num_rows(self) -> int:
        """Rows of a batch."""
        return self.batch_size or 1

    def order(self, snapshot: Snapshot, seed: int) -> tuple[Order, Subset]:
        """The order of a version's rows, and which rows they are."""
        subset = make_subset(self.subset, snapshot.num_rows)
        order = make_order(
            self.shuffle,
            num_rows=subset.num_rows,
            row_nbytes=snapshot.row_nbytes,
            seed=seed,
            block=self.block,
            window=self.window,
        )
        return order, subset

    def partition(
        self, order: Order, world_size: int, start: int, share: tuple[int, int]
    ) -> Partition:
        """The batches of an epoch from row `start` on; see `Partition`."""
        return Partition(
            order.num_rows,
            self.num_rows,
            world_size,
            self.last_batch,
            order.contiguous,
            start,
            share,
        )


def whole(name: str, value: object, least: int) -> int:
    """A whole number from `least` up; else raises `ConfigError`, as all here do."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} {shown(value)}: a whole number from {least} up")
    return int(value)


def whole_or_none(name: str, value: object, least: int) -> int | None:
    """The same, or None."""
    return None if value is None else whole(name, value, least)


def cache_size_of(cache_size: int | None, index: bool) -> int | None:
    """Bytes; None: what the disk has."""
    cache_size = whole_or_none("cache_size", cache_size, 0)
    return 0 if index else cache_size


def shuffle_of(shuffle: Shuffle) -> Shuffle:
    """False, True or "global"."""
    if not (isinstance(shuffle, bool) or shuffle == "global"):
        raise ConfigError(f"shuffle {shown(shuffle)}: False, True or 'global'")
    return shuffle


def last_batch_of(last_batch: str, drop_last: bool) -> LastBatch:
    """What becomes of the last batch, said in either way."""
    for known in LAST_BATCH:
        if last_batch == known:
            if drop_last and known not in ("partial", "drop"):
                raise ConfigError(f"drop_last=True contradicts last_batch={known!r}")
            return "drop" if drop_last else known
    raise ConfigError(f"last_batch {shown(last_batch)}: one of {', '.join(map(repr, LAST_BATCH))}")


def ranks_of(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    """Both, or None where neither is given."""
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ConfigError("rank and world_size go together; give both or neither")
    world_size = whole("world_size", world_size, 1)
    rank = whole("rank", rank, 0)
    if rank >= world_size:
        raise ConfigError(f"rank {rank}: from 0 to {world_size - 1} of world_size {world_size}")
    return rank, world_size


def extras_of(extras: Sequence[str]) -> tuple[str, ...]:
    """Some of `EXTRAS`."""
    if isinstance(extras, str) and extras in EXTRAS:
        raise ConfigError(f"extras {extras!r}: a list, extras=[{extras!r}]")
    if isinstance(extras, str) or any(name not in EXTRAS for name in extras):
        raise ConfigError(
            f"extras {shown(extras)}: a list of some of {', '.join(map(repr, EXTRAS))}"
        )
    return tuple(extras)


def pad_of(pad: Mapping[str, Any] | None) -> dict[str, Pad]:
    """By attribute, how its rows are padded."""
    if pad is None:
        return {}
    if not isinstance(pad, Mapping):
        raise ConfigError(f"pad {shown(pad)}: a dict of attribute to value or Pad(...)")
    return {name: how if isinstance(how, Pad) else Pad(how) for name, how in pad.items()}


def check_pad(pad: Mapping[str, Pad], schema: Schema) -> None:
    """Raise `ConfigError` where rows are no numbers that differ in length, or the value is none
    of theirs."""
    for name, how in pad.items():
        attribute = schema[name]
        if not attribute.is_variable or attribute.is_text:
            raise ConfigError(
                f"pad: rows of attribute {name!r} are {attribute.dtype} {attribute.shape}, not "
                "numbers that differ in length"
            )
        if not _holds(attribute.numpy_dtype, how.value):
            raise ConfigError(
                f"pad: value {shown(how.value)} for attribute {name!r} is no {attribute.dtype}"
            )


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether a number is one of this dtype; a float may become a narrower one."""
    if not isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
        return False
    is_whole = dtype.kind in "iub"
    if value != value or value in (float("inf"), -float("inf")):
        return not is_whole
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            held = np.asarray(value).astype(dtype)
            return bool(held == value) if is_whole else bool(np.isfinite(held))
    except (TypeError, ValueError, OverflowError):
        return False
