"""`Ragged` as a node of JAX's trees: `jax.jit`, `jax.tree.map` and the like take it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..ragged import Ragged


def register() -> None:
    """Tell JAX of it, once in a process."""
    keys = [jax.tree_util.GetAttrKey(name) for name in ("values", "offsets")]
    jax.tree_util.register_pytree_with_keys(
        Ragged,
        lambda rows: ([*zip(keys, (rows.values, rows.offsets), strict=True)], None),
        lambda _, parts: Ragged(*parts),
    )


def is_leaf(node: Any) -> bool:
    """Whether a part of a batch is placed as a whole, or stays as it is: it has no arrays."""
    if isinstance(node, Ragged) or _is_texts(node):
        return True
    if not isinstance(node, (list, dict)):
        return False
    leaves = jax.tree.leaves(node, is_leaf=_is_texts)
    return not any(isinstance(leaf, (np.ndarray, np.generic)) for leaf in leaves)


def _is_texts(node: Any) -> bool:
    return type(node) is list and _TEXTS.issuperset(map(type, node))


_TEXTS = {str, bytes}
