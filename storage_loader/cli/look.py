"""`ls`, `info`, `head` and `log`: what is stored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import click

from ..catalog import (
    DatasetInfo,
    LoggedCommit,
    UnreadableDataset,
    commit_log,
    dataset_info,
    find_storages,
    list_datasets,
)
from ..codecs import Codec
from ..config import DataConfig
from ..loader import Dataset
from ..loader.run.stats import size_text
from ..schema import Attribute
from .text import (
    cell,
    counted,
    echo,
    echo_error,
    echo_json,
    echo_json_rows,
    json_option,
    shape_text,
    shown,
    table,
)
from .which import agrees, chosen, dataset_arguments, storage_options, version_option, where_option


@click.command("ls")
@click.argument("storage", required=False)
@where_option
@storage_options
@json_option
def ls_command(storage: str | None, where: Sequence[str], as_json: bool, **settings: Any) -> None:
    """List the datasets of STORAGE (default: where datasets go by default).

    Where it has none itself, the prefixes below it that have some are named. For a dataset that
    cannot be read its row says so, the reason follows, and the exit code is 1.
    """
    unreadable: list[UnreadableDataset] = []
    infos = list_datasets(storage, unreadable=unreadable.append, **settings)
    infos = [info for info in infos if agrees(info.config, where)]
    rows = [
        (
            info.config.dataset_name,
            _additional(info.config),
            f"{info.num_rows:,}",
            str(info.num_objects),
            _row_size(info),
            size_text(info.nbytes),
        )
        for info in infos
    ]
    # One whose dataset.json cannot be read may be meant, whatever the conditions are.
    unreadable = [one for one in unreadable if one.config is None or agrees(one.config, where)]
    for one in unreadable:
        additional = f"({one.id})" if one.config is None else _additional(one.config)
        rows.append((one.name, additional, "-", "-", "-", "cannot be read"))
    rows.sort(key=itemgetter(0))
    below = find_storages(storage, **settings) if not rows and not where else []
    if as_json:
        bad = [
            {"prefix": one.prefix, "storage": one.place.storage, "error": str(one.error)}
            for one in unreadable
        ]
        datasets = [_described(info) for info in infos]
        echo_json({"datasets": datasets, "unreadable": bad, "storages_below": below})
    elif rows:
        head = ("NAME", "ADDITIONAL", "ROWS", "OBJECTS", "ROW SIZE", "SIZE")
        table(head, rows, right=(2, 3, 4, 5))
    if not rows:
        echo(f"no dataset in {DataConfig('any', storage=storage, **settings).storage}", err=True)
        for found in below:
            echo(f"  there are some in {found}", err=True)
        return
    for one in unreadable:
        echo_error(one.error)
    if unreadable:
        sys.exit(1)


def _described(info: DatasetInfo) -> dict[str, Any]:
    """A dataset for programs."""
    return {
        "name": info.config.dataset_name,
        "storage": info.config.storage,
        "prefix": info.config.dataset_prefix,
        "additional": dict(info.config.additional),
        "rows": info.num_rows,
        "objects": info.num_objects,
        "nbytes": info.nbytes,
        "row_nbytes": info.row_nbytes,
        "decoded_nbytes": info.decoded_nbytes,
        "version": info.version.hash,
        "commits": info.version.commits,
        "attributes": [
            {
                "name": a.name,
                "dtype": a.dtype,
                "shape": a.shape,
                "row_nbytes": None if a.is_variable else a.row_nbytes,
                **a.notes,
                "compressors": [codec.to_json() for codec in info.codecs.get(a.name, ())],
            }
            for a in info.config.attributes or ()
        ],
    }


def _row_size(info: DatasetInfo) -> str:
    """Of all attributes together."""
    if info.row_nbytes is None:
        return "-"
    is_mean = any(a.is_variable for a in info.config.attributes or ())
    return f"{'about ' if is_mean else ''}{size_text(info.row_nbytes)}"


def _attribute_size(attribute: Attribute, info: DatasetInfo) -> str:
    """Bytes of an attribute in a row, as far as the commits tell."""
    if not attribute.is_variable:
        return size_text(attribute.row_nbytes)
    others = [a for a in info.config.attributes or () if a.name != attribute.name]
    if info.row_nbytes is None or any(a.is_variable for a in others):
        return "varies"
    return f"about {size_text(info.row_nbytes - sum(a.row_nbytes for a in others))}"


def _additional(config: DataConfig) -> str:
    return " ".join(f"{k}={shown(v)}" for k, v in config.additional.items()) or "-"


@click.command("info")
@dataset_arguments
@version_option
@json_option
def info_command(version: str | None, as_json: bool, **which: Any) -> None:
    """Describe a dataset."""
    info = dataset_info(chosen(**which), version)
    if as_json:
        echo_json(_described(info))
        return
    echo(f"{info.config.dataset_name} in {info.config.storage}")
    for key, value in info.config.additional.items():
        echo(f"  {key} = {shown(value)}")
    attributes = info.config.attributes or ()
    is_mean = info.row_nbytes is not None and any(a.is_variable for a in attributes)
    echo(
        f"{counted(info.num_rows, 'row')} in {counted(info.num_objects, 'object')}, "
        f"{_stored_size(info)}, {f'{_row_size(info)} a row, ' if is_mean else ''}"
        f"version {info.version} of {counted(len(info.version.commits), 'commit')}"
    )
    notes = [one for one in ("unit", "description") if any(one in a.notes for a in attributes)]
    rows = [
        (
            *(a.name, a.dtype, shape_text(a), _attribute_size(a, info)),
            *([_compressors(info.codecs.get(a.name, ()))] if info.codecs else ()),
            *(a.notes.get(one, "-") for one in notes),
        )
        for a in attributes
    ]
    coded = ["COMPRESSED BY"] if info.codecs else []
    head = ("ATTRIBUTE", "DTYPE", "ROW SHAPE", "ROW SIZE", *coded, *map(str.upper, notes))
    table(head, rows, right=(3,))


def _stored_size(info: DatasetInfo) -> str:
    """How large the objects are, and how large the rows would be if nothing were compressed."""
    size = size_text(info.nbytes)
    if not info.codecs or not info.nbytes:
        return size
    ratio = info.decoded_nbytes / info.nbytes
    return f"{size} for {size_text(info.decoded_nbytes)} of rows ({ratio:.1f} times as much)"


def _compressors(codecs: Sequence[Codec]) -> str:
    """Libraries with their levels; "-" for none."""
    return ", ".join(f"{codec.complib} {codec.complevel}" for codec in codecs) or "-"


@click.command("head")
@dataset_arguments
@version_option
@click.option("--rows", "-n", default=5, show_default=True, type=click.IntRange(1, 1000))
@json_option
def head_command(version: str | None, rows: int, as_json: bool, **which: Any) -> None:
    """Show the first rows of a dataset.

    Of an image, or any row of more than eight numbers, it shows shape, range and mean. Of rows
    that differ in length, and of bytes, it shows how long they are and how they begin. Text is
    cut to a line. With --json all of each row is printed, bytes as base64.
    """
    dataset = Dataset(chosen(**which), version=version)
    batch = dataset[:rows]
    if as_json:
        count = min(rows, len(dataset))
        echo_json_rows(
            [{name: field[row] for name, field in batch.items()} for row in range(count)]
        )
        return
    cells = [
        (str(row), *(cell(batch[a.name][row], a) for a in dataset.schema))
        for row in range(min(rows, len(dataset)))
    ]
    table(("ROW", *batch), cells, right=(0,))


@click.command("log")
@dataset_arguments
@json_option
def log_command(as_json: bool, **which: Any) -> None:
    """List the commits of a dataset in the order of their ids.

    That is the order of their rows, unless the dataset was made with order="writer".

    Times are the storage's. VERSION is the dataset after that commit; --version and version=
    take it, or the commit's id. "-" where commits of it are gone.
    """
    log = commit_log(chosen(**which))
    if as_json:
        entries = [
            {
                "id": c.id,
                "writer": c.writer,
                "time": c.time.isoformat(),
                "rows": c.num_rows,
                "objects": c.num_objects,
                "nbytes": c.nbytes,
                "replaces": c.replaces,
                "live": c.is_live,
                "version": c.version and c.version.hash,
            }
            for c in log
        ]
        echo_json(entries)
        return
    rows = [
        (
            c.id,
            c.writer,
            f"{c.time:%Y-%m-%d %H:%M:%S}Z",
            f"{c.num_rows:,}",
            size_text(c.nbytes),
            "live" if c.is_live else "-",
            _replaced(c),
            str(c.version or "-"),
        )
        for c in log
    ]
    head = ("COMMIT", "WRITER", "TIME", "ROWS", "SIZE", "STATE", "REPLACES", "VERSION")
    table(head, rows, right=(3, 4))


def _replaced(logged: LoggedCommit) -> str:
    """The commit that one took the place of, or how many; a barrier's own."""
    others = [i for i in logged.replaces if i != logged.id] or logged.replaces
    return others[0] if len(others) == 1 else f"{len(others) or '-'}"
