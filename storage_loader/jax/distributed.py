"""The version that JAX's processes agree on."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..errors import LoaderError


def common_version(config: DataConfig) -> Version:
    """The newest version as process 0 sees it. Every process must call this.

    Raises process 0's error in every process, so that none waits for the others.
    """
    message: Any = None
    if jax.process_index() == 0:
        try:
            message = Catalog(config).snapshot().version.commits
        except Exception as error:
            _broadcast(f"{type(error).__name__}: {error}")
            raise
    message = _broadcast(message)
    if isinstance(message, str):
        raise LoaderError(f"process 0 could not open the dataset: {message}")
    return Version(tuple(message))


def _broadcast(value: Any) -> Any:
    """Process 0's value, which JSON knows, in every process."""
    octets = np.frombuffer(json.dumps(value).encode(), np.uint8)
    is_source = jax.process_index() == 0
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(octets)), is_source))
    if not is_source:
        octets = np.empty(size, np.uint8)
    return json.loads(multihost_utils.broadcast_one_to_all(octets, is_source).tobytes())
