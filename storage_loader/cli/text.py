"""What is printed: lines, tables, values in a line of text, and bars. Nothing else prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from ..config import JSONScalar
from ..errors import StorageLoaderError
from ..text import printable


def echo(text: str, *, err: bool = False) -> None:
    """Print one line, which may hold text from a storage or a server."""
    click.echo(printable(text), err=err)


def echo_beside_bar(text: str) -> None:
    """The same while a `progress_bar` is shown."""
    tqdm.write(printable(text))


def echo_error(error: StorageLoaderError) -> None:
    """Print an error of ours."""
    for line in f"error: {error}".split("\n"):
        echo(line, err=True)


def ask(question: str) -> None:
    """Go on only if the answer is yes."""
    click.confirm(printable(question), abort=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> None:
    """Print rows of cells below their head; `right`: which columns are aligned there."""
    lines = [[printable(text) for text in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        cells = [
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        echo("  ".join(cells).rstrip())


def cell(value: Any) -> str:
    """An array or scalar of a row in a line of at most 60 characters."""
    with np.printoptions(threshold=6, edgeitems=2, linewidth=10_000, precision=4):
        text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(value: JSONScalar) -> str:
    """A value of `additional` as a user types it."""
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def progress_bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a terminal, and what to tell it: how much is done, of how much."""
    with tqdm(unit=unit, unit_scale=True, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
