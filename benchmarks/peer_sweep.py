"""First and second epochs over the size of a row, beside other libraries; see peers.py.

Batches of about 4 MiB, 200 MB of rows, at most 50,000. Besides the figures it gives two plots, for
which matplotlib is needed. Say by `--peers` where the other libraries are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from storage_loader import Attribute

from .peer_loaders import PEERS
from .peer_race import COLD, WARM, joined_row, race
from .peer_stored import Data, Group, stored_in_all_formats
from .peers import NUMBER, SMALL_BATCH, cold_epoch, warm_epoch
from .runner import Row
from .setting import Benchmark, Setting

SIZES = (64, 1024, 16 * 1024, 128 * 1024, 2**20)  # bytes of a row
ROWS = 50_000  # at most, which keeps the time of the slow ones bearable
PLOTS = {"cold": "first epoch from S3, empty cache", "warm": "second epoch, cached on disk"}


def run(setting: Setting) -> Iterator[Row]:
    group = Group(setting)
    for row_nbytes in SIZES[:: setting.pick(1, len(SIZES))]:
        yield from _epochs(group, row_nbytes)


def _epochs(group: Group, row_nbytes: int) -> Iterator[Row]:
    pick = group.setting.pick
    count = min(pick(200 * 10**6, 10**7) // row_nbytes, pick(ROWS, 20_000))
    batch = max(16, min(SMALL_BATCH, 2**22 // row_nbytes))
    attributes = (Attribute("value", "uint8", (row_nbytes,)), NUMBER)
    data = Data("sweep", "", attributes, max(batch, count), batch)
    with stored_in_all_formats(group, data, on_s3=True) as stored:
        cold = race(stored, COLD, cold_epoch(stored), cold=True)
        with warm_epoch(stored) as ours:
            warm = race(stored, WARM, ours, cold=False)
    what = f"{row_nbytes:,} B rows, {data.rows:,} of them, batches of {batch:,}"
    yield joined_row(f"cold, {what}", cold)
    yield joined_row(f"warm, {what}", warm)


def draw(results: Path) -> None:
    """Plots beside the results: rows/s over the size of a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = json.loads(results.read_text("utf-8"))
    marks = result["what"].removeprefix(BENCHMARK.what)  # of the server
    for kind, words in PLOTS.items():
        curves: dict[str, list[tuple[int, float]]] = {"ours": []}
        for row in result["rows"]:
            size = re.match(rf"{kind}, ([\d,]+) B rows", row["measure"])
            if size is not None:
                named = {"ours": row["value"], **row["others"]}
                named |= {row["plain_name"]: row["plain"]} if row["plain"] else {}
                for name, spread in named.items():
                    point = int(size[1].replace(",", "")), spread["median"]
                    curves.setdefault(name, []).append(point)
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for name in ("ours", *PEERS):  # the same colour in both plots
            points = sorted(curves.get(name, []))
            style = {"linewidth": 2.5} if name == "ours" else {"linewidth": 1.2}
            axes.plot(*zip(*points, strict=True) if points else ((), ()), "o-", label=name, **style)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="bytes of a row",
            ylabel="rows/s",
            title=f"{words}{marks}",
        )
        axes.grid(alpha=0.3)
        axes.legend(handles=[line for line in axes.lines if len(line.get_xdata())])
        figure.savefig(results.with_name(f"{results.stem}_{kind}.png"), dpi=150)
        pyplot.close(figure)


BENCHMARK = Benchmark("Loading beside other libraries, over the size of a row", run, draw)
