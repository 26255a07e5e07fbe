"""Arrays as tensors on the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ..loader.fill.parts import Array


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor of the array's dtype on its own memory; bfloat16 included."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_tensors(arrays: Mapping[str, Array]) -> dict[str, Any]:
    """A batch or row of tensors; a scalar attribute of one row is a 0-d tensor."""
    return {name: as_tensor(array) for name, array in arrays.items()}


def reduce_tensor(value: Any) -> Any:
    """A pickler's `reducer_override`: plain tensors go as arrays, whose memory is not copied."""
    if type(value) is not torch.Tensor or value.layout != torch.strided:
        return NotImplemented
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return _bfloat16, (plain.view(torch.int16).numpy(),)
    return torch.from_numpy, (plain.numpy(),)


def _bfloat16(array: Array) -> torch.Tensor:
    return torch.from_numpy(array).view(torch.bfloat16)
