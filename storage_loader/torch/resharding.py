"""What those do with an iterable dataset's items who iterate over it.

A loader that Hugging Face's `accelerator.prepare` gave, as the HF Trainer's is, gives each process
its part of what the dataset yields; one that yields a rank's part already would lose the others'.
Torch's DataLoader makes batches of them, unless it is told not to.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch.utils.data import default_collate


def is_resharded(dataset: Any) -> bool:
    """Whether the prepared loader whose iteration is under way is over this dataset."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None:
        return False
    loader = accelerate.GradientState().active_dataloader
    over = getattr(loader, "dataset", None)  # the dataset, or Accelerate's shard of it
    return over is dataset or getattr(over, "dataset", None) is dataset


def is_collated(dataset: Any, caller: FrameType) -> bool:
    """Whether `caller`, which asks for an iterator of the dataset, stacks what that gives.

    Torch tells the dataset nothing. Where an iteration begins, here or in a worker, its fetcher
    asks. One with a `collate_fn` of the user's may well take batches.
    """
    fetcher = caller.f_locals.get("self")
    return (
        getattr(fetcher, "dataset", None) is dataset
        and getattr(fetcher, "auto_collation", False) is True
        and getattr(fetcher, "collate_fn", None) is default_collate
    )
