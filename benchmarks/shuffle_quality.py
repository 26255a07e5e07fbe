"""How well orders of rows are mixed, and what must be fetched for it.

Ours: shuffle="global", and shuffle=True at several sizes of block (MiB) and window (blocks).
Beside them a uniform permutation, and the orders of mosaicml-streaming and litdata at their
defaults over shards of 64 MiB, in one process of one rank. Only row numbers are moved. Of an
epoch in batches of 64:

- classes: different ones in a batch where the dataset was saved sorted by 100 classes; mean,
  and the fewest. This is what decides whether training on sorted data works.
- correlation: Spearman's, between position and row.
- moved: mean distance between position and row, divided by the number of rows; uniform: 1/3.
- neighbours: of rows i, i + 1, how many in a million are in one batch.
- mates: of pairs of rows in one batch, how many in a million are in one batch again in the next
  epoch.
- early: the part of the dataset that is fetched once 1% of the batches were: shards of 64 MiB for
  the others, windows for shuffle=True, blocks of 64 KiB for "global".

The others' figures need a Python that has them (see peer_orders.py), named by the variable
STORAGE_LOADER_BENCH_PEERS; without it they are left out. `python -m benchmarks.shuffle_quality
--peers PYTHON` sets it, and writes the results as a table too, results/shuffle_quality.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage_loader.layout import block_items
from storage_loader.loader.order import Order, Shuffle, make_order

from .runner import Row, Spread
from .setting import PEERS_VARIABLE, Benchmark, Setting

Rows = npt.NDArray[np.int64]

PEERS = Path(__file__).with_name("peer_orders.py")
BATCH = 64
CLASSES = 100
SHARD = 64 * 2**20
EARLY = 0.01  # of the batches
SIZES = ((100_000, 3_008), (100_000, 49_160), (3_000_000, 3_008))  # rows, bytes of each
LARGE = 1_000_000  # rows, from which only the default block is tried
BLOCKS = (1, 4, 16, 64)  # MiB
WINDOWS = (8, 16, 48, 96, 192)  # blocks


@dataclass(frozen=True)
class Quality:
    """What this module's docstring lists."""

    classes: float
    fewest: float
    correlation: float
    moved: float
    neighbours: float
    mates: float
    early: float


@dataclass(frozen=True)
class Found:
    """An order's name, its first two epochs, and rows of what is fetched at once."""

    name: str
    epochs: tuple[Rows, Rows]
    unit: int  # rows; negative: a window of the order


def run(setting: Setting) -> Sequence[Row]:
    python = setting.peers
    sizes = SIZES[: setting.pick(len(SIZES), 1)]
    with tempfile.TemporaryDirectory() as folder:
        about = _peer_orders(python, sizes, Path(folder)) if python else {}
        return [
            row
            for i, (num_rows, row_nbytes) in enumerate(sizes)
            for row in _rows(i, num_rows, row_nbytes, about, Path(folder))
        ]


def _rows(
    number: int, num_rows: int, row_nbytes: int, about: dict[str, Any], folder: Path
) -> Iterator[Row]:
    uniform = None
    data = f"{num_rows:,} rows of {row_nbytes:,} B"
    for found in _found(number, num_rows, row_nbytes, about, folder):
        quality = measure(found)
        uniform = uniform or quality  # the first
        others = {f.name: Spread.of([getattr(quality, f.name)]) for f in fields(quality)}
        yield Row(
            f"{data}, {found.name}",
            "classes in a batch of 64",
            Spread.of([quality.classes]),
            Spread.of([uniform.classes]),
            "uniform",
            Spread.of([quality.classes / uniform.classes]),
            note=f"fewest {quality.fewest:.0f}, correlation {quality.correlation:+.3f}, moved "
            f"{quality.moved:.3f}, neighbours {quality.neighbours:.0f}, mates "
            f"{quality.mates:.0f}, early {quality.early:.1%}",
            others=others,
        )


def _found(
    number: int, num_rows: int, row_nbytes: int, about: dict[str, Any], folder: Path
) -> Iterator[Found]:
    rng = np.random.default_rng(0)
    yield Found("uniform", (rng.permutation(num_rows), rng.permutation(num_rows)), 1)

    def ours(name: str, shuffle: Shuffle, **settings: int) -> Found:
        order = make_order(shuffle, num_rows=num_rows, row_nbytes=row_nbytes, seed=0, **settings)
        unit = -(order.window_end(0) or 0) or block_items(row_nbytes)
        return Found(name, (_epoch(order, 0), _epoch(order, 1)), unit)

    yield ours('shuffle="global"', "global")
    yield ours("shuffle=True, the default", True)
    for mib in BLOCKS if num_rows < LARGE else (4,):
        block = mib * 2**20 // row_nbytes
        for window in WINDOWS:
            if block * window < num_rows or (mib, window) == (4, 48):
                name = f"shuffle=True, windows of {window} blocks of {mib} MiB"
                yield ours(name, True, block=block, window=block * window)
    for name, peer in about.items():
        epochs = [np.load(folder / f"{number}-{name}-{epoch}.npy") for epoch in (0, 1)]
        full = f"{peer['package']} {peer['version']}, {name}, {peer['settings']}"
        yield Found(full, (epochs[0], epochs[1]), SHARD // row_nbytes)


def _epoch(order: Order, epoch: int) -> Rows:
    return order.rows(epoch, np.arange(order.num_rows))


def _peer_orders(python: str, sizes: Sequence[tuple[int, int]], folder: Path) -> dict[str, Any]:
    datasets = [
        {"num_rows": rows, "shard_rows": SHARD // nbytes, "epochs": 2, "batch": BATCH}
        for rows, nbytes in sizes
    ]
    done = subprocess.run(
        [python, str(PEERS), str(folder)],
        input=json.dumps(datasets),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    about: dict[str, Any] = json.loads(done.stdout)
    return about


def measure(found: Found) -> Quality:
    """The quality of an order."""
    rows, after = found.epochs
    count = len(rows)
    assert (np.bincount(rows, minlength=count) == 1).all()
    places = np.arange(count)
    batch_of = np.empty(count, np.int64)  # of each row
    batch_of[rows] = places // BATCH
    batch_after = np.empty(count, np.int64)
    batch_after[after] = places // BATCH
    batches = rows[: count // BATCH * BATCH].reshape(-1, BATCH)
    classes = np.sort(batches * CLASSES // count, axis=1)
    distinct = 1 + (np.diff(classes, axis=1) != 0).sum(axis=1)
    later = np.sort(batch_after[batches], axis=1)
    early = rows[: max(BATCH, int(count * EARLY))]
    if found.unit < 0:  # windows that they come from; the rest of each is fetched too
        fetched = -(-len(early) // -found.unit) * -found.unit / count
    else:
        units = np.unique(early // found.unit)
        fetched = len(units) * found.unit / count
    return Quality(
        classes=float(distinct.mean()),
        fewest=float(distinct.min()),
        correlation=float(np.corrcoef(places, rows)[0, 1]),  # both are ranks already
        moved=float(np.abs(rows - places).mean() / count),
        neighbours=float((batch_of[1:] == batch_of[:-1]).mean() * 1e6),
        mates=float(_pairs(later) / (len(batches) * BATCH * (BATCH - 1) / 2) * 1e6),
        early=min(1.0, float(fetched)),
    )


def _pairs(sorted_batches: Rows) -> int:
    """Pairs of equal numbers in each row, summed; the rows are sorted."""
    pairs, distance = 0, 1
    while distance < BATCH:
        same = int((sorted_batches[:, distance:] == sorted_batches[:, :-distance]).sum())
        if not same:
            break
        pairs, distance = pairs + same, distance + 1
    return pairs


BENCHMARK = Benchmark("How well orders of rows are mixed", run)

_HEADS = {
    "classes": "classes in a batch",
    "fewest": "fewest",
    "correlation": "rank correlation",
    "moved": "distance moved",
    "neighbours": "neighbours in a batch, of a million",
    "mates": "mates again, of a million",
    "early": "fetched after 1% of the batches",
}


def table(result: dict[str, Any]) -> str:
    """The results as markdown, a table for each dataset."""
    lines = [
        f"# {BENCHMARK.what}",
        "",
        "What the columns mean stands in the benchmark's module.",
        "",
    ]
    data = ""
    for row in result["rows"]:
        of, name = row["measure"].split(" B, ", 1)
        if of != data:
            data = of
            lines += ["", f"{of} B:", "", f"| order | {' | '.join(_HEADS.values())} |"]
            lines.append("|---" * (len(_HEADS) + 1) + "|")
        found = {key: row["others"][key]["median"] for key in _HEADS}
        cells = [
            f"{found['classes']:.1f}",
            f"{found['fewest']:.0f}",
            f"{found['correlation']:+.3f}",
            f"{found['moved']:.3f}",
            f"{found['neighbours']:,.0f}",
            f"{found['mates']:,.0f}",
            f"{found['early']:.1%}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _main() -> int:
    from .__main__ import RESULTS, main

    parser = argparse.ArgumentParser(prog="python -m benchmarks.shuffle_quality")
    parser.add_argument("--peers", help="a Python that has mosaicml-streaming and litdata")
    peers = parser.parse_args().peers
    if peers:
        os.environ[PEERS_VARIABLE] = peers
    failed = main(["shuffle_quality"])
    result = json.loads((RESULTS / "shuffle_quality.json").read_text())
    (RESULTS / "shuffle_quality.md").write_text(table(result))
    return failed


if __name__ == "__main__":
    raise SystemExit(_main())
