"""Save handwritten digits as HDF5 objects, then train a small network from them.

    python examples/digits.py
    python examples/digits.py --storage s3://bucket/prefix --endpoint http://127.0.0.1:9000

S3 keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from storage_loader import DataConfig, DataSaver, list_datasets
from storage_loader.torch import DataLoader

TEST_ROWS = 360
EPOCHS = 15


def config(split: str, arguments: argparse.Namespace) -> DataConfig:
    return DataConfig(
        "digits",
        attributes=[("image", "uint8", (8, 8)), ("target", "int64")],
        additional={"split": split},
        storage=arguments.storage,
        endpoint=arguments.endpoint,
    )


def preprocess(arguments: argparse.Namespace) -> None:
    """Store both splits; `refresh` replaces what an earlier run stored."""
    digits = load_digits()
    images, targets = digits.images.astype(np.uint8), digits.target
    shuffled = np.random.default_rng(0).permutation(len(targets))
    rows = {"train": shuffled[:-TEST_ROWS], "test": shuffled[-TEST_ROWS:]}
    for split, chosen in rows.items():
        start = time.perf_counter()
        with DataSaver(config(split, arguments), refresh=True) as saver:
            for image, target in zip(
                np.array_split(images[chosen], 8), np.array_split(targets[chosen], 8), strict=True
            ):
                saver({"image": image, "target": target})
        rate = saver.rows_committed / (time.perf_counter() - start)
        print(f"saved {saver.rows_committed} rows of {split}, {rate:,.0f} rows/s")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10),
    )  # fmt: skip


def pixels(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["image"].unsqueeze(1).float() / 16


def train(arguments: argparse.Namespace) -> nn.Module:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(config("train", arguments), batch_size=64, shuffle=True, seed=0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, EPOCHS * len(loader))
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(pixels(batch)), batch["target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    seconds = time.perf_counter() - start
    print(f"trained on {EPOCHS * loader.num_rows / seconds:,.0f} rows/s")
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, arguments: argparse.Namespace) -> float:
    right = rows = 0
    for batch in DataLoader(config("test", arguments), batch_size=128):
        right += int((model(pixels(batch)).argmax(1) == batch["target"]).sum())
        rows += len(batch["target"])
    return right / rows


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--storage", help="default: a folder in your data directory")
    options.add_argument("--endpoint", help="S3 server, e.g. http://127.0.0.1:9000")
    return options


def main() -> None:
    arguments = parser().parse_args()
    torch.manual_seed(0)
    preprocess(arguments)
    for info in list_datasets(arguments.storage, endpoint=arguments.endpoint):
        if info.config.dataset_name == "digits":
            print(
                f"{info.config.storage}/{info.config.dataset_prefix}: {info.num_rows} rows, "
                f"{info.num_objects} objects, {info.nbytes:,} bytes"
            )
    model = train(arguments)
    print(f"test accuracy: {100 * accuracy(model, arguments):.1f}%")


if __name__ == "__main__":
    main()
