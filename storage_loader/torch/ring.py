"""A ring of pinned slots through which batches go to a device.

A batch is gathered into a slot, or put there when it comes from elsewhere; the device copies it
from there by itself, into new memory; the slot is used again once it has.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as tree

from ..loader.fill.parts import Array
from ..process import PerProcess
from .device import Cuda, Event
from .jagged import Parts

SLOTS = 4  # one being filled, the others on their way
LAG = 4  # batches that were handed over and the device has not come to

_ALIGNMENT = 64  # bytes


class Slot:
    """Pinned memory of one batch at a time: a `Memory` of the gather, from `begin` to `event`."""

    def __init__(self, pinned: Callable[[int], torch.Tensor]) -> None:
        self.event: Event | None = None  # of the copy of what is in it
        self._pinned = pinned
        self._rooms: list[torch.Tensor] = []  # one, but for a batch larger than was thought
        self._used = 0  # bytes of the last one
        self.nbytes = 0  # of the batch, over all rooms

    def begin(self, nbytes: int) -> None:
        """For a new batch of about this size, once the last one has been copied."""
        if self.event is not None:
            self.event.synchronize()
        if nbytes and (len(self._rooms) != 1 or self._rooms[0].numel() < nbytes):
            self._rooms = []  # goes before the new one comes
            self._rooms = [self._pinned(nbytes)]
        self._used = self.nbytes = 0

    @property
    def is_free(self) -> bool:
        """Whether `begin` would not wait."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def empty(self, nbytes: int) -> Array:
        """See `Memory`."""
        room: Array = self._empty(nbytes).numpy()
        return room

    def wants(self, nbytes: int) -> bool:
        """See `Memory`."""
        return True

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in this slot: where it is, if it is there already, else copied."""
        tensor = tensor.detach()
        nbytes = tensor.numel() * tensor.element_size()
        if tensor.is_contiguous():
            for room in self._rooms:
                start = tensor.data_ptr() - room.data_ptr()
                if nbytes and 0 <= start <= room.numel() - nbytes:
                    return room[start : start + nbytes].view(tensor.dtype).view(tensor.shape)
        strides = torch.empty_like(tensor, device="meta").stride()  # channels_last stays that
        staged = self._empty(nbytes).view(tensor.dtype).as_strided(tensor.shape, strides)
        return staged.copy_(tensor)

    def _empty(self, nbytes: int) -> torch.Tensor:
        if not self._rooms or self._used + nbytes > self._rooms[-1].numel():
            self._rooms.append(self._pinned(nbytes))
            self._used = 0
        start = self._used
        taken = room_for([nbytes])
        self._used += taken
        self.nbytes += taken
        return self._rooms[-1][start : start + nbytes]


def room_for(sizes: Iterable[int]) -> int:
    """Bytes of a slot for arrays of so many bytes."""
    return sum(-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes)


@dataclass
class Sent:
    """A batch on its way."""

    leaves: list[Any]  # tensors on the device and whatever else there was
    structure: tree.TreeSpec
    copies: Sequence[torch.Tensor]
    copied: Event


class Ring:
    """Slots of a loader, and how far the device may fall behind. Any thread may call it.

    Whoever calls `take` waits for the device; `receive` never does.
    """

    def __init__(self, device: Cuda) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._copying: deque[Slot] = deque()  # oldest first
        self._reached: deque[Event] = deque()  # of what was handed over: the device got there
        self._nbytes = 0  # of the largest batch so far

    def take(self, sizes: Iterable[int]) -> Slot:
        """A slot for a batch whose arrays have so many bytes.

        Waits for the oldest copy where `SLOTS` are in use.

        Waits for the device, too, where it has more than `LAG` received batches ahead of it:
        the memory of a dropped batch is free once it has come there.
        """
        slot = reached = None
        nbytes = room_for(sizes)
        with self._lock:
            if self._copying and (len(self._copying) >= SLOTS - 1 or self._copying[0].is_free):
                slot = self._copying.popleft()
            if len(self._reached) > LAG:
                reached = self._reached.popleft()
            nbytes = self._nbytes = max(nbytes, self._nbytes)
        if reached is not None:
            reached.synchronize()
        slot = slot or Slot(self._device.pinned)
        slot.begin(nbytes)
        return slot

    def send(self, batch: Any, slot: Slot | None) -> Sent:
        """Begin to copy a batch's tensors; `slot`: what it was gathered into.

        A batch is a tensor, or dicts, lists and tuples of them, jagged ones included; whatever
        else is in it, tensors that are elsewhere too, stays as it is.
        """
        leaves, structure = tree.tree_flatten(batch)
        moved = [(i, Parts.of(leaf)) for i, leaf in enumerate(leaves) if _is_moved(leaf)]
        tensors = [tensor for _, parts in moved for tensor in parts.tensors]
        if slot is None:
            slot = self.take(t.numel() * t.element_size() for t in tensors)
        copies, copied = self._device.copy([slot.staged(tensor) for tensor in tensors])
        following = iter(copies)
        for i, parts in moved:
            leaves[i] = parts.joined(tuple(itertools.islice(following, len(parts.tensors))))
        slot.event = copied
        with self._lock:
            self._copying.append(slot)
            # What rows of no fixed size take is known only now.
            self._nbytes = max(self._nbytes, slot.nbytes)
        return Sent(leaves, structure, copies, copied)

    def receive(self, sent: Sent) -> Any:
        """The batch, for the current stream of the thread that calls."""
        reached = self._device.hand_over(sent.copies, sent.copied)
        with self._lock:
            self._reached.append(reached)
        return tree.tree_unflatten(sent.leaves, sent.structure)

    def clear(self) -> None:
        """Keep no memory, until the next batch."""
        with self._lock:
            self._copying.clear()
            self._reached.clear()


class Rings:
    """A loader's ring, in each process its own. Picklable."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ring: PerProcess[Ring] = PerProcess()

    def __call__(self) -> Ring:
        return self._ring.get(lambda: Ring(Cuda(self._device)))


def _is_moved(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.device.type == "cpu"
        and (leaf.layout is torch.jagged or (leaf.layout is torch.strided and not leaf.is_nested))
    )
