"""Train with batches that are brought to the GPU while it computes, and say who waited.

    python examples/gpu.py
    python examples/gpu.py --device cuda:1 --rows 20000

Without a GPU it trains on the CPU, where batches are used where they were gathered.
"""

import argparse
import tempfile

import numpy as np
import torch
from torch import nn

from storage_loader import DataConfig, DataSaver
from storage_loader.torch import DataLoader

SIDE = 64
CLASSES = 4


def fill(config: DataConfig, num_rows: int) -> None:
    """Images of noise with a bright stripe; the class is where it lies."""
    rng = np.random.default_rng(0)
    with DataSaver(config) as saver:
        for start in range(0, num_rows, 500):
            count = min(500, num_rows - start)
            target = rng.integers(0, CLASSES, count)
            image = rng.integers(0, 128, (count, 3, SIDE, SIDE), np.uint8)
            for i, part in enumerate(target):
                image[i, :, part * SIDE // CLASSES : (part + 1) * SIDE // CLASSES] += 100
            saver({"image": image, "target": target})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", help="default: cuda where there is one, else cpu")
    options.add_argument("--rows", type=int, default=4000)
    options.add_argument("--epochs", type=int, default=2)
    arguments = options.parse_args()
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 15, CLASSES)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with tempfile.TemporaryDirectory() as folder:
        config = DataConfig(
            "stripes",
            attributes=[("image", "uint8", (3, SIDE, SIDE)), ("target", "int64")],
            storage=folder,
        )
        fill(config, arguments.rows)
        loader = DataLoader(config, batch_size=64, shuffle=True, seed=0, device=device)
        for epoch in range(arguments.epochs):
            right = torch.zeros((), dtype=torch.int64, device=device)
            for batch in loader:  # tensors on the device, copied while the last step ran
                scores = model(batch["image"].float() / 255)
                loss = nn.functional.cross_entropy(scores, batch["target"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += (scores.argmax(1) == batch["target"]).sum()
            print(f"epoch {epoch}: {loader.stats}")
            print(f"training accuracy: {100 * right.item() / loader.num_rows:.1f}%")


if __name__ == "__main__":
    main()
