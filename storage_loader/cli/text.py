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
from ..errors import LoaderError, StorageLoaderError
from ..schema import Attribute
from ..text import printable

_FEW = 8  # numbers of a row, or bytes, that are shown one by one
_WIDE = 60  # characters of a cell


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
    """Print a value as JSON; what is not finite is null, and bytes are base64."""
    for line in _json_text(value, indent=2).split("\n"):
        echo(line)


def echo_json_rows(rows: Sequence[Any]) -> None:
    """The same of a list, a line for each: an image's numbers would be a line each."""
    lines = [_json_text(row) for row in rows]
    echo(f"[{'' if lines else ']'}")
    for number, line in enumerate(lines, 1):
        echo(f"  {line}{',' if number < len(lines) else ''}")
    if lines:
        echo("]")


def _json_text(value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(_plain(value), indent=indent, allow_nan=False)
    except RecursionError:
        raise LoaderError("a JSON value is nested too deeply to be printed") from None


def _plain(value: Any) -> Any:
    """The value in what JSON has: nested lists, a pair for a complex number, base64 for bytes."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        value = np.asarray(value)
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


def cell(value: Any, attribute: Attribute) -> str:
    """An attribute of a row in a line of at most 60 characters.

    Of many numbers, as an image has, their shape, range and mean; of rows that differ in length
    how long they are, and the first values; of bytes as much.
    """
    if attribute.dtype == "bytes":
        return _bytes(value)
    if attribute.dtype == "str":
        return _cut(value)
    if attribute.dtype == "json":
        return _json(value)
    if attribute.is_variable:
        return _items(value)
    if value.ndim and value.size > _FEW:
        axes = " x ".join(map(str, value.shape))
        if value.dtype.kind == "c":
            return f"{axes}, mean {value.mean():.4g}"
        numbers = value.astype(np.float64) if value.dtype.kind != "b" else value
        low, high = (f"{one:.4g}" for one in (numbers.min(), numbers.max()))
        return f"{axes}, {low} to {high}, mean {numbers.mean():.4g}"
    return _cut(_numbers(value))


def _bytes(value: bytes) -> str:
    size = f"{len(value):,} B"
    if not value:
        return size
    return f"{size}: {value[:_FEW].hex(' ')}{' ...' if len(value) > _FEW else ''}"


def _json(value: Any) -> str:
    try:
        return _cut(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return "nested deeply"


def _items(value: Any) -> str:
    """`3 items: 5 7 7`."""
    count = counted(len(value), "item")
    if not len(value):
        return count
    first = _numbers(value[:_FEW])[1:-1]  # without the outer brackets
    return _cut(f"{count}: {first}{' ...' if len(value) > _FEW else ''}")


def _numbers(value: Any) -> str:
    with np.printoptions(threshold=2 * _FEW, edgeitems=2, linewidth=10_000, precision=4):
        return " ".join(str(value).split())


def _cut(text: str) -> str:
    """The text as it may be shown, up to the width of a cell."""
    text = printable(text[: _WIDE + 1])
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."


def shape_text(attribute: Attribute) -> str:
    """The shape of a row: `(3, 5)`, `(any, 4)`; of text and bytes `any length`."""
    if attribute.is_text:
        return "any length"
    return str(attribute.shape).replace("None", "any")


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
