"""`Feed`: what a framework adds to a loader, which has one path of a batch for all of them.

A batch is gathered into `memory`, converted, given to the user's transform, sent to a device by
`ring`, and there received or by `place` placed when it is the consumer's turn; see `iteration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .decode import Mask, stacked
from .fill.fixed import CopyRows
from .fill.memory import Memory
from .fill.parts import Parts
from .order import Rows
from .order.partition import Partition
from .peers import Peers
from .run.workers import plainly

Ranks = tuple[int, int]  # rank and world_size


class Ring(Protocol):
    """Brings batches to a device ahead of use. Any thread may call it."""

    def take(self, sizes: Iterable[int]) -> Memory:
        """Memory for a batch whose arrays have so many bytes; may wait for the device."""

    def send(self, batch: Any, memory: Any) -> Any:
        """Begin to bring a batch there. `memory`: what `take` gave for it, or None."""

    def receive(self, sent: Any) -> Any:
        """The batch that was sent, in the thread that uses it; does not wait."""

    def clear(self) -> None:
        """Keep no memory, until the next batch."""


def nobody() -> None:
    """No peers, no share."""


def _given(ranks: Ranks | None) -> Ranks:
    return ranks or (0, 1)


def _fits(partition: Partition, rank: int) -> None:
    pass


@dataclass(frozen=True)
class Feed:
    """How batches become a framework's, and what its processes agree on. Here: numpy, alone.

    A loader is pickled with its feed: the functions are top-level ones, or picklable objects.
    """

    convert: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    """The framework's own arrays, on the same memory; the transform gets these.

    It gets arrays; of rows that have no fixed size `Ragged`, or a list of texts. Of one row it gets
    an array or one text.
    """
    stack: Callable[[Sequence[Any], Mask], Any] = stacked
    """What `decode` made of rows as the field of a batch, in the framework's own; see `stacked`."""
    reduce: Callable[[Any], Any] = plainly
    """How they are pickled in worker processes: a pickler's `reducer_override`."""
    memory: Callable[[], Memory] | None = None
    """Makes the memory in which a loader gathers its batches; None: numpy's own."""
    copy_rows: CopyRows = Parts.take_into
    """Copies large rows to such memory."""
    ring: Callable[[], Ring] | None = None
    """The loader's way to a device, in this process."""
    place: Callable[[Any, Rows], Any] | None = None
    """The finished batch where it belongs, in the thread that uses it; gets its row numbers."""
    places_ahead: Callable[[], bool] = bool
    """Whether a batch is placed while the one before it is in use."""

    peers: Callable[[], Peers | None] = nobody
    """The processes that open this too; None where there are none."""
    ranks: Callable[[Ranks | None], Ranks] = _given
    """Rank and world_size where the user gave these."""
    share: Callable[[], Ranks | None] = nobody
    """Which of the readers that take turns on a rank this is, and of how many; None: alone."""
    check: Callable[[Partition, int], None] = _fits
    """Raises `ConfigError` where this rank's batches cannot be placed."""
    dataset: Callable[..., Any] | None = None
    """Makes the framework's `Dataset`; None: ours, of numpy arrays."""
    is_lazy: bool = False
    """An iteration begins when its first batch is asked for, not at `iter`."""
