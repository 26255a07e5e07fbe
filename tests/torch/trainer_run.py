"""Trainings by the HF Trainer, on one process or two; prints the rows that each rank saw.

python -m tests.torch.trainer_run FOLDER SCRATCH
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from storage_loader import DataConfig  # noqa: E402
from storage_loader.errors import ConfigError, LoaderError  # noqa: E402
from storage_loader.torch import Dataset, IterableDataset  # noqa: E402
from tests.support.rows import numbers_of  # noqa: E402

ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}
EPOCHS = 2

the_config = DataConfig("rows", storage=sys.argv[1])
scratch = sys.argv[2]


class Model(torch.nn.Module):
    """Notes the rows of each batch, which its loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(15, 1)
        self.batches: list[list[int]] = []

    def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.batches.append(numbers_of({name: t.numpy() for name, t in batch.items()}))
        return {"loss": self.layer(batch["image"].flatten(1).float() / 255).square().mean()}


def first(batches: list[Any]) -> Any:
    return batches[0]


def whole() -> IterableDataset:
    """Batches of every row on every rank, which the Trainer shares out."""
    version = Dataset(the_config).version
    return IterableDataset(the_config, batch_size=8, rank=0, world_size=1, version=version, **ORDER)


def train(
    name: str, dataset: Any, *, checkpoint: int | None = None, collate: Any = None, **how: Any
) -> list[list[int]]:
    """The batches of a training, from the checkpoint at that step where one is given."""
    model = Model()
    folder = os.path.join(scratch, name)
    arguments = TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=10,
        seed=5,
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        report_to=[],
        **{
            "remove_unused_columns": False,
            "per_device_train_batch_size": 8 if collate is None else 1,
            **how,
        },
    )
    trainer = Trainer(model, arguments, train_dataset=dataset, data_collator=collate)
    path = None if checkpoint is None else os.path.join(folder, f"checkpoint-{checkpoint}")
    trainer.train(resume_from_checkpoint=path)
    return model.batches


WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "Dataset": (lambda: Dataset(the_config), {}),
    "batches, workers": (whole, {"collate": first, "dataloader_num_workers": 2}),
    "batches, sharded": (
        whole,
        {"collate": first, "accelerator_config": {"dispatch_batches": False}},
    ),
}


def refused() -> str:
    """What is said of an IterableDataset that gives each rank its own rows."""
    try:
        train("refused", IterableDataset(the_config, **ORDER))
    except LoaderError as error:
        return str(error)
    return ""


def stacked(**how: Any) -> str:
    """What is said of whole batches that the Trainer would make batches of."""
    try:
        train("stacked", whole(), **how)
    except ConfigError as error:
        return str(error)
    return ""


def main(checkpoint: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (make, how) in WAYS.items():
        found[name] = {
            "batches": train(name, make(), **how),
            "resumed": train(name, make(), checkpoint=checkpoint, **how),
        }
    found["anew"] = train(
        "batches, workers",
        whole(),
        checkpoint=checkpoint,
        collate=first,
        ignore_data_skip=True,
    )
    found["refused"] = refused()
    if "WORLD_SIZE" not in os.environ:  # of several ranks only one would be told
        ways: list[dict[str, Any]] = [
            {}, {"dataloader_num_workers": 1}, {"remove_unused_columns": True}
        ]  # fmt: skip
        found["stacked"] = [stacked(**how) for how in ways]
    return found


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        answer = main(checkpoint=10 if "WORLD_SIZE" in os.environ else 20)
    if torch.distributed.is_initialized():  # its threads, left alone, may abort the exit
        torch.distributed.destroy_process_group()
    print(json.dumps(answer))
