"""Arrays as tensors on the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

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
