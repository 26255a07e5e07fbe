"""`DataLoader`: the batches of an epoch, one after another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..catalog import Version
from ..config import DataConfig
from ..errors import ConfigError
from ..keywords import checked_keywords
from .order import Order, Shuffle, make_order
from .reader import Arrays, read_blocks, read_whole_objects
from .view import Transform, View, one_row

_SINGLE_ROWS_NBYTES = 2**20  # gathered at once where batch_size is None


class DataLoader(View):
    """Iterates over batches: dicts of arrays of shape (batch_size, *shape).

    Each `iter(loader)` runs the loader's next epoch, also after an early exit; `set_epoch`
    chooses it. The order is the same for the same seed and epoch, whatever is cached. A batch
    is the caller's own. One iteration belongs to one thread; a loader may run several.
    """

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        *,
        batch_size: int | None = 1,
        shuffle: Shuffle = False,
        seed: int = 0,
        drop_last: bool = False,
        attributes: Sequence[str] | None = None,
        transform: Transform | None = None,
        as_tuple: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        epochs: int = 1,
        index: bool = False,
        version: Version | str | Sequence[str] | None = None,
    ) -> None:
        """`batch_size`: rows; None gives one row at a time, without the batch axis.
        `shuffle`: True mixes rows within windows of blocks, "global" over the whole dataset.
        `drop_last`: leave out a last batch of fewer rows. `attributes`: read only these.
        `transform` gets the batch. `as_tuple`: a tuple in attribute order instead of a dict.
        `cache_dir`: where objects of a network store are kept, default the user's cache
        directory. `epochs`: how many one iteration runs through. `index`: read only the blocks
        of each batch's rows and never fill the cache. `version`: a `Version`, its hash or a
        list of commit ids instead of the newest.
        """
        super().__init__(
            config,
            attributes=attributes,
            version=version,
            transform=transform,
            as_tuple=as_tuple,
            cache_dir=cache_dir,
        )
        self._batch_size = None if batch_size is None else _whole("batch_size", batch_size, 1)
        if not (isinstance(shuffle, bool) or shuffle == "global"):
            raise ConfigError(f"shuffle {shuffle!r}: False, True or 'global'")
        self._shuffle: Shuffle = shuffle
        self._seed = _whole("seed", seed, 0)
        self._drop_last = bool(drop_last)
        self._epochs = _whole("epochs", epochs, 1)
        self._index = bool(index)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next `iter` begins with."""
        self._epoch = _whole("epoch", epoch, 0)

    def __len__(self) -> int:
        """Batches of one `iter(loader)`."""
        size = self._batch_size or 1
        full, rest = divmod(self.num_rows, size)
        return (full + bool(rest and not self._drop_last)) * self._epochs

    def __iter__(self) -> Iterator[Any]:
        snapshot = self.open()
        order = make_order(
            self._shuffle,
            num_rows=snapshot.num_rows,
            row_nbytes=snapshot.schema.row_nbytes,
            seed=self._seed,
        )
        first = self._epoch
        self._epoch += self._epochs
        return self._iterate(order, range(first, first + self._epochs))

    def _iterate(self, order: Order, epochs: range) -> Iterator[Any]:
        for epoch in epochs:
            arrays = self._read(order, epoch)
            try:
                for batch in arrays:
                    if self._batch_size is None:
                        rows = len(next(iter(batch.values())))
                        for row in range(rows):
                            yield self._finish(one_row(batch, row))
                    else:
                        yield self._finish(batch)
            finally:
                arrays.close()  # type: ignore[attr-defined]  # a generator: ends its threads

    def _read(self, order: Order, epoch: int) -> Iterator[Arrays]:
        snapshot = self.open()
        size = self._batch_size or max(
            1, min(1024, _SINGLE_ROWS_NBYTES // max(1, self.schema.row_nbytes))
        )
        stop = snapshot.num_rows
        if self._drop_last and self._batch_size is not None:
            stop -= stop % size
        batches = ((start, min(start + size, stop)) for start in range(0, stop, size))
        if self._index:
            return read_blocks(self._source, order, epoch, batches)
        return read_whole_objects(self._source, snapshot, self.schema, order, epoch, batches)

    def __repr__(self) -> str:
        at = "" if self._snapshot is None else f", {self.num_rows} rows, {self.version}"
        return (
            f"DataLoader({self.config.dataset_name!r} in {self.config.storage}, "
            f"batch_size={self._batch_size}, shuffle={self._shuffle!r}, epoch {self._epoch}{at})"
        )


def _whole(name: str, value: object, least: int) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} {value!r}: a whole number from {least} up")
    return int(value)
