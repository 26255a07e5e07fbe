"""Whether Hugging Face Accelerate shares out a dataset's rows by itself.

A loader that `accelerator.prepare` gave, as the HF Trainer's is, gives each process its part of
what an iterable dataset yields; one that yields a rank's part already would lose the others'.
"""

from __future__ import annotations

import sys
from typing import Any


def is_resharded(dataset: Any) -> bool:
    """Whether the prepared loader whose iteration is under way is over this dataset."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None:
        return False
    loader = accelerate.GradientState().active_dataloader
    over = getattr(loader, "dataset", None)  # the dataset, or Accelerate's shard of it
    return over is dataset or getattr(over, "dataset", None) is dataset
