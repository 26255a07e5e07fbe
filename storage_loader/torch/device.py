"""A CUDA device as batches are brought to it: pinned memory, a stream of copies, events."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import ConfigError
from ..keywords import shown

Event = torch.cuda.Event


def cuda_device(device: str | int | torch.device | None) -> torch.device | None:
    """The CUDA device that is meant; None: batches stay in the host's memory.

    Raises `ConfigError` for another kind of device, and for one that is not here.
    """
    if device is None:
        return None
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {shown(device)}: {str(error).splitlines()[0]}") from error
    if chosen.type == "cpu":
        return None
    if chosen.type != "cuda":
        raise ConfigError(f"device {shown(device)}: 'cpu' or a CUDA device, for example 'cuda:0'")
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device {shown(device)}: PyTorch {torch.__version__} finds no CUDA device here; leave "
            "device out, or install a build of PyTorch for CUDA and its driver"
        )
    if chosen.index is not None and chosen.index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ConfigError(f"device {shown(device)}: there are {count}, cuda:0 to cuda:{count - 1}")
    return chosen


class Cuda:
    """Copies from pinned memory by a stream of its own; any thread may call it."""

    def __init__(self, device: torch.device) -> None:
        """`device` without an index is the current one of the thread that calls."""
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory, uint8 of shape (nbytes,), that the device can read by itself.

        Torch keeps it for reuse once it is dropped, and sees to it that it outlives its copies.
        """
        with torch.cuda.device(self.device):
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Event]:
        """Begin to copy pinned tensors to new memory of the device; the event is the end of it.

        Neither side may be touched before: see `hand_over` and `Event.synchronize`.
        """
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self.device, non_blocking=True, copy=True) for tensor in tensors]
            return copies, _event_of(self._stream)

    def hand_over(self, copies: Sequence[torch.Tensor], copied: Event) -> Event:
        """Let the caller's current stream use the copies, once they are there; nobody waits here.

        Their memory is not used for something else before that stream has come to where they
        are dropped. The event is where the stream stands now.
        """
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(copied)
        for tensor in copies:
            tensor.record_stream(stream)
        return _event_of(stream)


def _event_of(stream: torch.cuda.Stream) -> Event:
    """Where the stream stands. Who waits for it does not spin."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
