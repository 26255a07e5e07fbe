"""Save handwritten digits as HDF5 objects, then train a small Keras model from them.

    python examples/digits_keras.py
    python examples/digits_keras.py --storage s3://bucket/prefix --endpoint http://127.0.0.1:9000

S3 keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

from storage_loader import DataConfig, save
from storage_loader.tensorflow import DataLoader

TEST_ROWS = 360
EPOCHS = 12


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


def network() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([
        keras.Input((8, 8)), layers.Rescaling(1 / 16), layers.Reshape((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dropout(0.3),
        layers.Dense(10),
    ])  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--storage", help="default: a folder in your data directory")
    options.add_argument("--endpoint", help="S3 server, e.g. http://127.0.0.1:9000")
    arguments = options.parse_args()
    keras.utils.set_random_seed(0)
    preprocess(arguments)
    train = DataLoader(
        config("train", arguments), batch_size=64, shuffle=True, seed=0, as_tuple=True
    )
    test = DataLoader(config("test", arguments), batch_size=128, as_tuple=True)
    model = network()
    model.compile(
        keras.optimizers.AdamW(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    start = time.perf_counter()
    # Each epoch is an iterator of its own over the dataset: the loader's next order of the rows.
    # shuffle=False: Keras would warn that it leaves a tf.data.Dataset's order to us.
    history = model.fit(train.as_dataset(), epochs=EPOCHS, shuffle=False, verbose=0)
    seconds = time.perf_counter() - start
    print(f"epoch {EPOCHS}: loss {history.history['loss'][-1]:.4f}")
    print(f"trained on {EPOCHS * train.num_rows / seconds:,.0f} rows/s")
    _, accuracy = model.evaluate(test.as_dataset(), verbose=0)
    print(f"test accuracy: {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
