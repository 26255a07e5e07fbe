"""`check`: whether a storage holds what savers and loaders rely on."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click

from ..checks import Checked, check
from .text import counted, echo, echo_json, json_option, table
from .which import storage_options


@click.command("check")
@click.argument("storage", required=False)
@click.option("--read-only", is_flag=True, help="Try only what needs no writing.")
@click.option(
    "--seconds", default=30.0, show_default=True, type=click.FloatRange(10), help="End within."
)
@storage_options
@json_option
def check_command(storage: str | None, as_json: bool, **settings: Any) -> None:
    """Try whether STORAGE is good enough (default: where datasets go by default).

    It works in a folder .storage-loader-check below STORAGE and removes it. A bucket that is
    missing is made and removed. The exit code is 0 where all points hold, 1 where one falls short,
    2 where none does and one could not be tried.
    """
    checked = check(storage, **settings)
    if as_json:
        echo_json(
            {
                "storage": checked.storage,
                "seconds": round(checked.seconds, 3),
                "points": [asdict(point) for point in checked.points],
                "left": checked.left,
                "swept": checked.swept,
            }
        )
    else:
        _show(checked)
    sys.exit(1 if checked.falls_short else 2 if checked.not_tried else 0)


def _show(checked: Checked) -> None:
    rows = [(point.name, point.state, point.detail) for point in checked.points]
    table(("POINT", "RESULT", checked.storage), rows, right=())
    for point in checked.falls_short:
        echo(f"{point.name}: {point.cost}")
        echo(f"{point.name}: what to do: {point.remedy}")
    remedies = dict.fromkeys(point.remedy for point in checked.not_tried if point.remedy)
    for remedy in remedies:
        names = ", ".join(point.name for point in checked.not_tried if point.remedy == remedy)
        echo(f"{names}: what to do: {remedy}")
    if checked.left:
        echo(f"left behind below the storage: {checked.left}")
    if checked.swept:
        echo(f"removed what {counted(checked.swept, 'killed check')} had left")
    short, untried = len(checked.falls_short), len(checked.not_tried)
    echo(
        f"{counted(len(checked.points), 'point')} in {checked.seconds:.1f} s: "
        f"{short or 'none'} falls short, {untried or 'none'} could not be tried"
    )
