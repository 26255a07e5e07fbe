"""`bench`: how fast a dataset loads here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from shlex import quote
from typing import Any

import click
from tqdm import tqdm

from ..bench import Measured, cold_cache, forget_pages, measure, plot, require_plot
from ..loader import DataLoader, Stats
from ..loader.run.stats import size_text
from .text import counted, echo, echo_json, json_option, table
from .which import WHICH, chosen, dataset_arguments, version_option


@click.command("bench")
@dataset_arguments
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1))
@click.option(
    "--shuffle", default="true", type=click.Choice(["false", "true", "global"]), show_default=True
)
@click.option(
    "--epochs",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="The first as things are, the next with a warm cache.",
)
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), help="End each epoch after so long."
)
@version_option
@click.option("--num-workers", default=0, show_default=True, type=click.IntRange(0))
@click.option("--cache-dir", type=click.Path(file_okay=False), help="Default: the user's.")
@click.option("--cache-size", type=click.IntRange(0), metavar="BYTES", help="0 keeps nothing.")
@click.option("--index", is_flag=True, help="Read only each batch's rows, never fill the cache.")
@click.option(
    "--cold",
    is_flag=True,
    help="Begin with an empty cache of its own, which goes afterwards. A dataset in a folder: "
    "without its pages in memory.",
)
@json_option
@click.option(
    "--plot",
    "png",
    type=click.Path(dir_okay=False),
    metavar="FILE.png",
    help="Draw rows/s and waiting over time (needs matplotlib).",
)
def bench_command(
    shuffle: str,
    epochs: int,
    seconds: float | None,
    png: str | None,
    cold: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure how fast a dataset loads here.

    The last line says where the first epoch's rows came from. Ctrl-C prints what was measured so
    far.
    """
    if png is not None:
        require_plot(png)
    loaded = chosen(**{name: settings.pop(name) for name in WHICH})
    order: Any = {"false": False, "true": True}.get(shuffle, shuffle)
    with cold_cache(settings["cache_dir"]) if cold else nullcontext(settings["cache_dir"]) as place:
        loader = DataLoader(loaded, shuffle=order, **{**settings, "cache_dir": place})
        if cold:
            forget_pages(loaded, loader.open())
        if not as_json:
            rows = counted(loader.num_rows, "row")
            echo(f"{loaded.dataset_name} in {loaded.storage}: {rows}")
        measured = Measured()
        total = loader.num_rows * epochs
        try:
            with tqdm(total=total, unit=" rows", leave=False, disable=None) as bar:
                measure(loader, measured, epochs=epochs, seconds=seconds, progress=bar.update)
        finally:
            source = _source(loaded.storage, measured.epochs, cold=cold)
            if as_json:
                found = [
                    {**asdict(s), "rows_per_second": s.rows_per_second} for s in measured.epochs
                ]
                described = {"name": loaded.dataset_name, "storage": loaded.storage}
                echo_json({**described, "rows": loader.num_rows, "source": source, "epochs": found})
            else:
                _show(measured.epochs)
                if loaded.storage.startswith("s3://"):
                    echo(
                        f"the storage itself: storage-loader check {quote(loaded.storage)}",
                        err=True,
                    )
                echo(source)
            if png is not None and measured.samples:
                plot(measured.samples, f"{loaded.dataset_name}, {loaded.storage}", png)


def _source(storage: str, epochs: Sequence[Stats], *, cold: bool) -> str:
    """Where the rows of the first epoch came from: else its rate means nothing."""
    if not epochs or not epochs[0].rows:
        return "no row was loaded"
    first = epochs[0]
    if not storage.startswith("s3://"):
        pages = "" if storage.startswith("memory://") else ", as far as the system let go its pages"
        return f"epoch 0 came from {storage}" + (pages if cold else "")
    if not first.bytes_fetched:
        return "epoch 0 came from the cache on this machine; --cold begins without it"
    rest = f", {first.hit_share:.0%} from the cache" if first.bytes_found else ""
    return f"epoch 0 came from {storage}, {size_text(first.bytes_fetched)} fetched{rest}"


def _show(epochs: Sequence[Stats]) -> None:
    head = ("EPOCH", "SECONDS", "ROWS", "ROWS/S", "BYTES/S", "WAITED", "FETCH", "GATHER",
            "TRANSFORM", "FOUND", "FETCHED", "REQUESTS", "RETRIES")  # fmt: skip
    rows = [
        (
            str(number),
            f"{s.seconds:.2f}",
            f"{s.rows:,}",
            f"{s.rows_per_second:,.0f}",
            size_text(s.bytes_per_second),
            f"{s.wait_share:.0%}",
            *(
                f"{wait / s.seconds if s.seconds else 0:.0%}"
                for wait in (s.wait_fetch, s.wait_gather, s.wait_transform)
            ),
            f"{s.hit_share:.0%}",
            size_text(s.bytes_fetched),
            f"{s.requests:,}",
            f"{s.retries:,}",
        )
        for number, s in enumerate(epochs)
    ]
    table(head, rows, right=range(len(head)))
