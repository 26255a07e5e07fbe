"""A long preprocessing job that may be killed at any moment and started again.

    python examples/resume.py --part 7
    python examples/resume.py --part 7 --storage s3://bucket/prefix --endpoint http://127.0.0.1:9000

Each part of the work goes by a writer name of its own. A job that starts again under its name
learns how many rows are committed, and goes on from there. S3 keys come from AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY.
"""

import argparse
import time
from collections.abc import Iterator
from datetime import timedelta

import numpy as np

from storage_loader import DataConfig, DataSaver

ROWS = 2_000  # of a part
BATCH = 50


def features(start: int, stop: int) -> dict[str, np.ndarray]:
    """The rows `start` to `stop`: each a function of its number, whatever it is batched with."""
    time.sleep(0.01)  # the work
    numbers = np.arange(start, stop)
    angles = numbers[:, None] * np.linspace(0.1, 1, 32)
    return {"number": numbers, "wave": np.sin(angles).astype(np.float32)}


def batches(start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
    for first in range(start, stop, BATCH):
        yield features(first, min(first + BATCH, stop))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--part", type=int, default=0, help="which part of the work this job does")
    options.add_argument("--storage", help="default: a folder in your data directory")
    options.add_argument("--endpoint", help="S3 server, e.g. http://127.0.0.1:9000")
    arguments = options.parse_args()
    config = DataConfig(
        "waves",
        attributes=[("number", "int64"), ("wave", "float32", (32,))],
        storage=arguments.storage,
        endpoint=arguments.endpoint,
    )
    first, stop = arguments.part * ROWS, (arguments.part + 1) * ROWS
    with DataSaver(
        config,
        writer=f"part-{arguments.part:04d}",
        commit_every=timedelta(seconds=0.1),  # of a real job minutes: what a crash may cost
    ) as saver:
        print(f"{saver.rows_committed} rows are committed, going on", flush=True)
        for batch in batches(first + saver.rows_committed, stop):
            saver(batch)
    print(f"part {arguments.part} is done: {saver.rows_committed} rows", flush=True)


if __name__ == "__main__":
    main()
