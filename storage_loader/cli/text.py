"""What is printed: lines, tables, values in a line of text, and bars. Nothing else prints."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from ..config import JSONScalar
from ..errors import StorageLoaderError
from ..text import printable

_FEW = 8  # numbers of a row that are shown one by one


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


def ask(question: str, *, err: bool = False) -> None:
    """Go on only if the answer is yes."""
    click.confirm(printable(question), abort=True, err=err)


json_option = click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")


def echo_json(value: Any) -> None:
    """Print a value as JSON; what is not finite is null."""
    for line in json.dumps(_plain(value), indent=2, allow_nan=False).split("\n"):
        echo(line)


def echo_json_rows(rows: Sequence[Any]) -> None:
    """The same of a list, a line for each: an image's numbers would be a line each."""
    lines = [json.dumps(_plain(row), allow_nan=False) for row in rows]
    echo(f"[{'' if lines else ']'}")
    for number, line in enumerate(lines, 1):
        echo(f"  {line}{',' if number < len(lines) else ''}")
    if lines:
        echo("]")


def _plain(value: Any) -> Any:
    """The value in what JSON has: nested lists, a pair for a complex number, base64 for bytes."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "c":
            value = np.stack([value.real, value.imag], axis=-1)
        elif value.dtype.kind not in "biuf":  # bfloat16
            value = value.astype(np.float64)
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def counted(number: int, noun: str) -> str:
    """`1 object`, `1,200 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
    """A row of one attribute in a line of at most 60 characters.

    Of many numbers, as an image has, their shape, range and mean; of bytes how many there are.
    """
    if isinstance(value, np.ndarray) and value.ndim and value.size > _FEW:
        axes = " x ".join(map(str, value.shape))
        if value.dtype.kind == "c":
            return f"{axes}, mean {value.mean():.4g}"
        numbers = value.astype(np.float64) if value.dtype.kind != "b" else value
        low, high = (f"{one:.4g}" for one in (numbers.min(), numbers.max()))
        return f"{axes}, {low} to {high}, mean {numbers.mean():.4g}"
    if isinstance(value, bytes):
        begins = f": {value[:12].hex(' ')}{' ...' if len(value) > 12 else ''}" if value else ""
        return f"{counted(len(value), 'byte')}{begins}"
    if isinstance(value, str):
        text = " ".join(value[:1000].split())
    elif isinstance(value, (np.ndarray, np.generic)):
        with np.printoptions(threshold=6, edgeitems=2, linewidth=10_000, precision=4):
            text = " ".join(str(value).split())
    else:
        text = json.dumps(value, ensure_ascii=False)
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
