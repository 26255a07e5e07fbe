"""Save handwritten digits as HDF5 objects, then train a small network in plain JAX from them.

    python examples/digits_jax.py
    python examples/digits_jax.py --storage s3://bucket/prefix --endpoint http://127.0.0.1:9000

S3 keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from storage_loader import DataConfig, save
from storage_loader.jax import DataLoader

TEST_ROWS = 360
EPOCHS = 8
RATE = 2e-3

Batch = dict[str, jax.Array]


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
    images = digits.images.astype(np.uint8)
    shuffled = np.random.default_rng(0).permutation(len(images))
    for split, rows in (("train", shuffled[:-TEST_ROWS]), ("test", shuffled[-TEST_ROWS:])):
        batch = {"image": images[rows], "target": digits.target[rows]}
        save(config(split, arguments), batch, refresh=True)


def network(key: jax.Array) -> dict[str, jax.Array]:
    """Two convolutions and two dense layers, by He's initialisation."""
    shapes = {"c1": (3, 3, 1, 32), "c2": (3, 3, 32, 64), "d1": (1024, 128), "d2": (128, 10)}
    weights = {}
    for name, shape in shapes.items():
        key, own = jax.random.split(key)
        weights[name] = jax.random.normal(own, shape) * (2 / np.prod(shape[:-1])) ** 0.5
        weights[f"{name} bias"] = jnp.zeros(shape[-1])
    return weights


def convolved(weights: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    kinds = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, weights[name], (1, 1), "SAME", dimension_numbers=kinds)
    return jax.nn.relu(x + weights[f"{name} bias"])


def logits(weights: dict[str, jax.Array], image: jax.Array) -> jax.Array:
    x = image[..., None].astype(jnp.float32) / 16
    x = convolved(weights, "c2", convolved(weights, "c1", x))
    x = x.reshape(len(x), 4, 2, 4, 2, 64).max((2, 4)).reshape(len(x), -1)
    x = jax.nn.relu(x @ weights["d1"] + weights["d1 bias"])
    return x @ weights["d2"] + weights["d2 bias"]


def loss(weights: dict[str, jax.Array], batch: Batch) -> jax.Array:
    scores = jax.nn.log_softmax(logits(weights, batch["image"]))
    return -jnp.take_along_axis(scores, batch["target"][:, None], 1).mean()


@jax.jit
def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
    """One step of Adam; `state` is the weights, both moments, and the number of steps."""
    weights, mean, square, count = state
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    count += 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)
    rate = RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    weights = jax.tree.map(
        lambda w, m, s: w - rate * m / (jnp.sqrt(s) + 1e-8), weights, mean, square
    )
    return (weights, mean, square, count), value


@jax.jit
def right(weights: dict[str, jax.Array], batch: Batch) -> jax.Array:
    return (logits(weights, batch["image"]).argmax(1) == batch["target"]).sum()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--storage", help="default: a folder in your data directory")
    options.add_argument("--endpoint", help="S3 server, e.g. http://127.0.0.1:9000")
    arguments = options.parse_args()
    preprocess(arguments)
    # Batches of one size: the step is compiled once.
    train = DataLoader(
        config("train", arguments), batch_size=64, shuffle=True, seed=0, drop_last=True
    )
    weights = network(jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = (weights, zeros, zeros, jnp.zeros(()))
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        for batch in train:
            state, value = step(state, batch)
        if epoch % 4 == 3:
            print(f"epoch {epoch + 1}: loss {value:.4f}")
    seconds = time.perf_counter() - start
    print(f"trained on {EPOCHS * len(train) * 64 / seconds:,.0f} rows/s")
    test = DataLoader(config("test", arguments), batch_size=120)
    found = sum(int(right(state[0], batch)) for batch in test)
    print(f"test accuracy: {100 * found / test.num_rows:.1f}%")


if __name__ == "__main__":
    main()
