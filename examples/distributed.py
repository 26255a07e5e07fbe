"""Train on two processes; stop in the middle of an epoch, and go on from the checkpoint.

    python examples/distributed.py

Each process is what `torchrun --nproc-per-node=2` would start. All read one version of the
dataset, each its own rows, and every one gets the same number of batches.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as distributed
import torch.multiprocessing
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from storage_loader import DataConfig, save
from storage_loader.torch import DataLoader

WORLD_SIZE = 2
EPOCHS = 8
STOP_AT = 100  # steps until the first run is stopped


def train(rank: int, config: DataConfig, folder: str, stop_at: int | None) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting-{stop_at}", rank=rank, world_size=WORLD_SIZE
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(config, batch_size=32, shuffle=True, seed=0, extras=["valid"])
    checkpoint = Path(folder, "checkpoint.pt")
    steps = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        steps = state["steps"]
        if rank == 0:
            print(f"goes on at epoch {state['loader']['epoch']}, row {state['loader']['rows']}")
    while loader.state_dict()["epoch"] < EPOCHS:
        for batch in loader:
            # Of the last batch, a rank may have a row that another one has, too.
            images, targets = batch["image"][batch["valid"]], batch["target"][batch["valid"]]
            loss = nn.functional.cross_entropy(model(images.flatten(1).float() / 16), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == stop_at:
                break
        if steps == stop_at:
            break
    if rank == 0:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),  # the same on every rank
                "steps": steps,
            },
            checkpoint,
        )
        rows = len(loader) * WORLD_SIZE * 32
        print(f"stopped after {steps} steps, {steps * WORLD_SIZE * 32 / rows:.1f} epochs")
    # The group must outlive the model: as the last to hold it, the model waits with Python's lock
    # for a thread of gloo's, which may wait for that lock.
    del model
    distributed.destroy_process_group()


def accuracy(config: DataConfig, folder: str) -> float:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    state = torch.load(Path(folder, "checkpoint.pt"))["model"]
    model.load_state_dict({name.removeprefix("module."): t for name, t in state.items()})
    [batch] = DataLoader(config, batch_size=10_000)
    with torch.no_grad():
        found = model(batch["image"].flatten(1).float() / 16).argmax(1)
    return (found == batch["target"]).double().mean().item()


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = DataConfig(
            "digits",
            attributes=[("image", "uint8", (8, 8)), ("target", "int64")],
            storage=f"{folder}/store",
        )
        digits = load_digits()
        save(config, {"image": digits.images.astype("uint8"), "target": digits.target})
        for stop_at in (STOP_AT, None):
            torch.multiprocessing.spawn(
                train, args=(config, folder, stop_at), nprocs=WORLD_SIZE, join=True
            )
        print(f"accuracy on these rows: {100 * accuracy(config, folder):.1f}%")


if __name__ == "__main__":
    main()
