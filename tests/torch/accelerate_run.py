"""Loaders under Hugging Face Accelerate, on one process or two; prints the rows each rank saw.

python -m tests.torch.accelerate_run FOLDER SCRATCH
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

warnings.filterwarnings("ignore")

import torch.utils.data  # noqa: E402
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import set_seed  # noqa: E402

from storage_loader import DataConfig  # noqa: E402
from storage_loader.errors import LoaderError  # noqa: E402
from storage_loader.torch import DataLoader, Dataset, IterableDataset  # noqa: E402
from tests.support.rows import numbers_of  # noqa: E402

ORDER: dict[str, Any] = {"shuffle": True, "seed": 3, "block": 4, "window": 30}
RESUMED = 3  # batches into the second epoch

under = torch.utils.data.DataLoader
the_config = DataConfig("rows", storage=sys.argv[1])


def by_number(**how: Any) -> Any:
    return under(Dataset(the_config), batch_size=8, shuffle=True, **how)


def whole(**how: Any) -> IterableDataset:
    """Every row on every rank, which Accelerate shares out."""
    version = Dataset(the_config).version
    return IterableDataset(the_config, rank=0, world_size=1, version=version, **ORDER, **how)


def in_batches(**how: Any) -> Any:
    return under(whole(batch_size=8), batch_size=None, **how)


def in_rows() -> Any:
    return under(whole(), batch_size=8)


def first(batches: list[Any]) -> Any:
    return batches[0]


PREPARED: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "Dataset": (by_number, {}),
    "Dataset, workers": (lambda: by_number(num_workers=2), {}),
    "Dataset, split": (by_number, {"split_batches": True}),
    "Dataset, dispatched": (by_number, {"dispatch_batches": True}),
    "batches": (in_batches, {}),
    "batches, workers": (lambda: in_batches(num_workers=2), {}),
    "batches, sharded": (
        lambda: under(whole(batch_size=8), batch_size=1, collate_fn=first),
        {"dispatch_batches": False},
    ),
    "rows": (in_rows, {}),
    "rows, split": (in_rows, {"split_batches": True}),
    "rows, sharded": (in_rows, {"dispatch_batches": False}),
}


def accelerator(**how: Any) -> Accelerator:
    AcceleratorState._reset_state()
    GradientState._reset_state()
    set_seed(5)
    config = DataLoaderConfiguration(use_seedable_sampler=True, **how)
    return Accelerator(cpu=True, dataloader_config=config)


def rows_of(loader: Any) -> Iterator[list[int]]:
    for batch in loader:
        yield numbers_of({name: tensor.numpy() for name, tensor in batch.items()})


def prepared(make: Callable[[], Any], how: dict[str, Any]) -> dict[str, Any]:
    loader = accelerator(**how).prepare(make())
    found: dict[str, Any] = {"len": len(loader), "epochs": [list(rows_of(loader)) for _ in "123"]}
    again = accelerator(**how).prepare(make())
    again.set_epoch(1)
    found["resumed"] = [list(rows_of(skip_first_batches(again, RESUMED)))]
    again.set_epoch(2)
    found["resumed"].append(list(rows_of(again)))
    return found


def not_prepared(make: Callable[[], Any], scratch: str) -> dict[str, Any]:
    loader = make()
    found: dict[str, Any] = {"len": len(loader), "epochs": [list(rows_of(loader)) for _ in "123"]}

    def started() -> tuple[Accelerator, Any]:
        that, loader = accelerator(), make()
        that.register_for_checkpointing(loader)
        return that, loader

    that, loader = started()
    list(loader)
    for number, _ in enumerate(loader, 1):
        if number == RESUMED:
            that.save_state(scratch)
            that.wait_for_everyone()  # one process writes what all load
            break
    that, loader = started()
    that.load_state(scratch)
    found["resumed"] = [list(rows_of(loader)) for _ in "12"]
    return found


def refused(how: dict[str, Any], **batched: Any) -> str:
    """What is said of an IterableDataset that gives each rank its own rows."""
    loader = accelerator(**how).prepare(under(IterableDataset(the_config, **ORDER), **batched))
    try:
        list(loader)
    except LoaderError as error:
        return str(error)
    return ""


def beside_a_prepared_one() -> list[list[int]]:
    """Its own rows on each rank, within the iteration of another loader that is prepared."""
    own = IterableDataset(the_config, batch_size=8, **ORDER)
    found: list[list[int]] = []
    for number, _ in enumerate(accelerator().prepare(by_number())):
        if not number:
            own.set_epoch(0)
            found = list(rows_of(under(own, batch_size=None)))
    return found


def main(scratch: str) -> dict[str, Any]:
    found: dict[str, Any] = {name: prepared(*how) for name, how in PREPARED.items()}
    found["DataLoader"] = not_prepared(
        lambda: DataLoader(the_config, batch_size=8, **ORDER), scratch
    )
    found["beside"] = beside_a_prepared_one()
    found["refused"] = [
        refused({}, batch_size=8),
        refused({"dispatch_batches": False}, batch_size=8),
        refused({}, batch_size=8, num_workers=2),
    ]
    return found


if __name__ == "__main__":
    answer = main(os.path.join(sys.argv[2], "state"))
    if torch.distributed.is_initialized():  # its threads, left alone, may abort the exit
        torch.distributed.destroy_process_group()
    print(json.dumps(answer))
