"""Arrays as tensors on the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ..loader.decode import Mask, as_array, stacked
from ..loader.fill.parts import Array
from ..ragged import Ragged
from .jagged import jagged


def as_tensor(array: Array | Ragged) -> torch.Tensor:
    """A tensor of the array's dtype on its own memory; bfloat16 included.

    Rows that differ in length become a nested tensor of the jagged layout.
    """
    if isinstance(array, Ragged):
        return jagged(as_tensor(array.values), torch.from_numpy(array.offsets))
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_tensors(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A batch or row of tensors; a scalar attribute of one row is a 0-d tensor. Texts stay."""
    return {
        name: as_tensor(field) if isinstance(field, (np.ndarray, Ragged)) else field
        for name, field in fields.items()
    }


def stack(made: Sequence[Any], is_stored: Mask) -> Any:
    """As `stacked`, of arrays or tensors: a tensor, or a list of these."""
    if not are_alike(made):
        given = stacked(made, is_stored)
        return as_tensor(given) if isinstance(given, np.ndarray) else [*map(_tensor_of, given)]
    every = torch.stack([tensor.detach() for tensor in made])
    if is_stored.all():
        return every
    field = every.new_zeros((len(is_stored), *every.shape[1:]))
    field[torch.from_numpy(is_stored)] = every[: int(is_stored.sum())]
    return field


def are_alike(values: Sequence[Any]) -> bool:
    """Whether all are plain tensors of one shape and dtype, at one place; at least one."""
    if not all(isinstance(v, torch.Tensor) and v.layout is torch.strided for v in values):
        return False
    kinds = {(v.is_nested or v.shape, v.dtype, v.device) for v in values}
    return len(kinds) == 1 and not values[0].is_nested


def _tensor_of(value: Any) -> Any:
    """A tensor of an array, on memory of its own if others must not write there."""
    if not isinstance(value, np.ndarray):
        return value
    array = as_array(value)
    return value if array is None else as_tensor(np.require(array, requirements=["C", "W"]))


def reduce_tensor(value: Any) -> Any:
    """A pickler's `reducer_override`: plain tensors go as arrays, whose memory is not copied.

    Nested ones pickle as the plain tensors that they are made of.
    """
    if type(value) is not torch.Tensor or value.layout != torch.strided:
        return NotImplemented
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return _bfloat16, (plain.view(torch.int16).numpy(),)
    return torch.from_numpy, (plain.numpy(),)


def _bfloat16(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).view(torch.bfloat16)
