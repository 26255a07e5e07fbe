"""A training by PyTorch Lightning, on one or two processes; prints the rows that each saw.

python -m tests.torch.lightning_run FOLDER CHECKPOINTS
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

warnings.filterwarnings("ignore")  # Lightning's advice about workers, and torch's about both

import pytorch_lightning as lightning  # noqa: E402
import torch  # noqa: E402
from pytorch_lightning.callbacks import ModelCheckpoint  # noqa: E402

from storage_loader import DataConfig  # noqa: E402
from storage_loader.torch import DataLoader, Dataset, IterableDataset  # noqa: E402
from tests.support.rows import numbers_of  # noqa: E402

EPOCHS = 2


class Model(lightning.LightningModule):
    """Notes the rows of each batch, which its loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(15, 1)
        self.epochs: list[list[list[int]]] = []
        self.last = -1

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        if self.trainer.current_epoch != self.last:
            self.last = self.trainer.current_epoch
            self.epochs.append([])

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        self.epochs[-1].append(numbers_of({name: t.numpy() for name, t in batch.items()}))
        return self.layer(batch["image"].flatten(1).float() / 255).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


class Reloading(Model):
    """Makes a new loader whenever Lightning asks for one."""

    def __init__(self, the_config: DataConfig, how: dict[str, Any]) -> None:
        super().__init__()
        self.of_loader = the_config, how

    def train_dataloader(self) -> DataLoader:
        the_config, how = self.of_loader
        return DataLoader(the_config, **how)


def fit(loader: Any, model: Model | None = None, **how: Any) -> Model:
    model = model or Model()
    path = how.pop("ckpt_path", None)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp" if "LOCAL_RANK" in os.environ else "auto",
        devices=2 if "LOCAL_RANK" in os.environ else 1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": EPOCHS, "enable_checkpointing": False, **how},
    )
    trainer.fit(model, train_dataloaders=loader, ckpt_path=path, weights_only=False)
    return model


def main(the_config: DataConfig, folder: str) -> dict[str, Any]:
    how: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "block": 4, "window": 30}
    under = torch.utils.data.DataLoader
    loaders = {
        "DataLoader": DataLoader(the_config, **how),
        "IterableDataset": under(IterableDataset(the_config, **how), batch_size=None),
        "Dataset": under(Dataset(the_config), batch_size=8, shuffle=True),
    }
    is_alone = "LOCAL_RANK" not in os.environ
    if is_alone:
        loaders["workers"] = under(
            IterableDataset(the_config, **how), batch_size=None, num_workers=2
        )
    seen: dict[str, Any] = {name: fit(loader).epochs for name, loader in loaders.items()}
    if is_alone:
        for name, part in (("overfit, subset", slice(0, 16)), ("overfit", None)):
            loader = DataLoader(the_config, subset=part, **how)
            seen[name] = fit(loader, overfit_batches=2).epochs
        keep = ModelCheckpoint(folder, "{step}", every_n_train_steps=5, save_top_k=-1)
        fit(DataLoader(the_config, **how), enable_checkpointing=True, callbacks=[keep])
        path = os.path.join(folder, "step=5.ckpt")
        seen["resumed"] = fit(DataLoader(the_config, **how), ckpt_path=path).epochs
        every: dict[str, Any] = {"reload_dataloaders_every_n_epochs": 1}
        for name, epochs, how_long in (("reloaded", 1, EPOCHS), ("reloaded, epochs=2", 2, 2)):
            model = Reloading(the_config, {**how, "epochs": epochs})
            seen[name] = fit(None, model, **every, max_epochs=how_long).epochs
        for steps in (5, 13):  # in the middle of an epoch, and at its end
            kept = os.path.join(folder, f"reloaded, {steps}")
            keep = ModelCheckpoint(kept, "{step}", every_n_train_steps=steps, save_top_k=-1)
            model = Reloading(the_config, how)
            fit(None, model, **every, enable_checkpointing=True, callbacks=[keep])
            model, path = Reloading(the_config, how), os.path.join(kept, f"step={steps}.ckpt")
            seen[f"reloaded, resumed at {steps}"] = fit(
                None, model, **every, ckpt_path=path, max_epochs=3
            ).epochs
    return seen


if __name__ == "__main__":
    found = main(DataConfig("rows", storage=sys.argv[1]), sys.argv[2])
    if torch.distributed.is_initialized():  # its threads, left alone, may abort the exit
        torch.distributed.destroy_process_group()
    print(json.dumps(found))
