"""What JAX's processes must agree on: one version."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..loader.peers import Peers


def peers() -> Peers | None:
    """The processes, which open what this one opens; None where it is alone."""
    if jax.process_count() == 1:
        return None
    return Peers("process 0", jax.process_index() == 0, _broadcast)


def _broadcast(value: Any) -> Any:
    """Process 0's value, which JSON knows, in every process."""
    octets = np.frombuffer(json.dumps(value).encode(), np.uint8)
    is_source = jax.process_index() == 0
    with jax.transfer_guard("allow"):  # a user's guard is against transfers of theirs
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(octets)), is_source))
        if not is_source:
            octets = np.empty(size, np.uint8)
        return json.loads(multihost_utils.broadcast_one_to_all(octets, is_source).tobytes())
