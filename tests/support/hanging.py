"""What Ctrl-C is tried on: work on an S3 server that hangs.

`python hanging.py WHAT PORT FOLDER` says `ready`, and goes on when it gets a line;
`python hanging.py serve PORT` is the server; port 0 is any.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import numpy as np

from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    collect_garbage,
    list_datasets,
    save,
    verify_dataset,
)

ROWS = 2000


def batch(rows: int) -> dict[str, Any]:
    return {"x": np.zeros((rows, 1000), "float32"), "y": np.arange(rows)}


def ready() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main(what: str, port: str, cache_dir: str) -> None:
    place: dict[str, Any] = {
        "storage": "s3://hanging/prefix",
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key": "any",
        "secret_key": "any",
        "region": "us-east-1",
    }
    config = DataConfig(
        "rows", [("x", "float32", (1000,)), ("y", "int64")], max_object_size=2**20, **place
    )
    if what == "prepare":
        save(config, batch(ROWS))
        return
    list_datasets(**place)  # the server has answered once
    if what == "open":
        ready()
        Dataset(config).open()
    elif what == "list":
        ready()
        list_datasets(**place)
    elif what == "gc":
        ready()
        collect_garbage(config)
    elif what == "verify":
        ready()
        verify_dataset(config)
    elif what == "save":
        with DataSaver(config) as saver:
            saver(batch(10))
            ready()
            while True:
                saver(batch(400))
    elif what == "commit":
        with DataSaver(config) as saver:
            saver(batch(1000))
            ready()
            saver.commit()
    elif what == "rows":
        dataset = Dataset(config, cache_size=0)
        dataset.open()
        ready()
        _ = dataset[np.arange(0, ROWS, 20)]
    else:
        index = what == "load by index"
        loader = DataLoader(
            config, 16, shuffle="global", index=index, cache_dir=cache_dir, prefetch=2**18
        )
        batches = iter(loader)
        next(batches)
        ready()
        for _ in batches:
            pass


def serve(port: int) -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        main(*sys.argv[1:])
