"""Which blocks of files this process has verified: known to all loaders, also after the first.

By what names a file's bytes, so that one which was written meanwhile is verified again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...store import Identity

Blocks = npt.NDArray[np.bool_]
"""By place in an object's checksum table."""

_MOST = 2**16  # files of 1,000 blocks each take 64 MiB

# No lock, which a forked child might wait for: each step is one call of a dict.
_known: dict[Identity, Blocks] = {}


def verified_blocks(identity: Identity | None, num_blocks: int) -> Blocks:
    """The blocks of a file that are verified; set them in place as more are."""
    none = np.zeros(num_blocks, bool)
    if identity is None:
        return none
    _make_room()
    return _known.setdefault(identity, none)


def note_verified(identity: Identity | None, blocks: Blocks) -> None:
    """What a file is known by has changed: these of its blocks are verified."""
    if identity is not None and blocks.any():
        _make_room()
        _known[identity] = blocks


def _make_room() -> None:
    if len(_known) >= _MOST:
        _known.clear()


def is_any_known() -> bool:
    """Whether anything was verified in this process."""
    return bool(_known)
