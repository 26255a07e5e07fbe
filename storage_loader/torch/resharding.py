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


def collated_by(dataset: Any, caller: FrameType) -> str | None:
    """Who makes batches of what the dataset gives, and what to do; None where nobody does.

    `caller` asks for an iterator of the dataset. Torch tells the dataset nothing: where an
    iteration begins, here or in a worker, its fetcher asks. One with a `collate_fn` of the user's
    may well take batches. The HF Trainer always gives one, its own where the user gives none.
    """
    fetcher = caller.f_locals.get("self")
    if (
        getattr(fetcher, "dataset", None) is not dataset
        or getattr(fetcher, "auto_collation", False) is not True
    ):
        return None
    collate = getattr(fetcher, "collate_fn", None)
    if collate is default_collate:
        return "torch's DataLoader makes batches of those: give it batch_size=None"
    trainers = sys.modules.get("transformers.data.data_collator")
    collate = getattr(collate, "data_collator", collate)  # within what drops attributes
    if trainers is not None and collate is trainers.default_data_collator:
        return (
            "the HF Trainer makes batches of those: give it data_collator=lambda batches: "
            "batches[0] and per_device_train_batch_size=1"
        )
    return None
