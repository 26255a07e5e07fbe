"""Rows that differ in length, as torch has them: nested tensors of the jagged layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

try:  # what `nested_tensor_from_jagged` ends in, after twice as much in Python; not public
    from torch.nested._internal.nested_tensor import NestedTensor

    _last_step: Callable[..., torch.Tensor] | None = NestedTensor
except ImportError:
    _last_step = None


def jagged(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A nested tensor on the same memory: row i is `values[offsets[i] : offsets[i + 1]]`.

    Torch's public function takes 85 us, its last step 30 us; a batch of 64 rows of 4 KiB, 95 us.
    """
    if _is_known():
        assert _last_step is not None
        return _last_step(values, offsets)
    return torch.nested.nested_tensor_from_jagged(values, offsets)


_known: bool | None = None


def _is_known() -> bool:
    """Whether this torch has the last step as we know it; tried once."""
    global _known  # noqa: PLW0603
    if _known is None:
        _known = _last_step is not None and _gives_the_same(_last_step)
    return _known


def _gives_the_same(step: Callable[..., torch.Tensor]) -> bool:
    values, offsets = torch.arange(6).view(3, 2), torch.tensor([0, 2, 2, 3])
    try:
        made: Any = step(values, offsets)
        return (
            made.layout is torch.jagged
            and made.is_nested
            and made.values().data_ptr() == values.data_ptr()
            and made.offsets() is offsets
            and [row.tolist() for row in made.unbind()] == [[[0, 1], [2, 3]], [], [[4, 5]]]
        )
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False


@dataclass(frozen=True)
class Parts:
    """The plain tensors of a tensor, and how they make another."""

    tensors: tuple[torch.Tensor, ...]  # values, offsets, and the lengths if rows have gaps
    axis: int  # which one differs by row; 0: none, and there is one tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Parts:
        """The parts of a plain tensor or one of the jagged layout, on its memory."""
        if not tensor.is_nested:
            return cls((tensor,), 0)
        nested: Any = tensor.detach()
        lengths = nested.lengths()
        tensors = (nested.values(), nested.offsets(), *(() if lengths is None else (lengths,)))
        axis = next(i for i, size in enumerate(nested.shape[1:], 1) if not isinstance(size, int))
        return cls(tensors, axis)

    def joined(self, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """A tensor like the one that was taken apart, of copies of its parts."""
        if not self.axis:
            return tensors[0]
        if len(tensors) == 2 and self.axis == 1:
            return jagged(*tensors)
        values, offsets, *lengths = tensors
        return torch.nested.nested_tensor_from_jagged(
            values, offsets, lengths[0] if lengths else None, self.axis
        )
