"""The command `storage-loader`: look at stored datasets, measure and remove them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import numpy as np
from tqdm import tqdm

from .bench import Measured, measure, plot, require_plot
from .catalog import DatasetInfo, dataset_info, delete, list_datasets
from .config import DataConfig, JSONScalar
from .errors import ConfigError, StorageLoaderError
from .loader import DataLoader, Dataset, Stats
from .loader.stats import size_text

F = TypeVar("F", bound=Callable[..., Any])


def _storage_options(command: F) -> F:
    for option in (
        click.option("--endpoint", metavar="URL", help="S3 server, e.g. http://127.0.0.1:9000."),
        click.option("--region", metavar="NAME", help="S3 region."),
        click.option("--secure/--insecure", default=None, help="Use TLS or not; the URL decides."),
    ):
        command = option(command)
    return command


def _dataset_arguments(command: F) -> F:
    command = _where_option(command)
    return click.argument("storage")(click.argument("name")(command))


def _where_option(command: F) -> F:
    return click.option(
        "--where",
        "-w",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only datasets whose `additional` has this value; may be repeated.",
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="storage-loader")
def cli() -> None:
    """Look at datasets on S3, MinIO or in a folder.

    STORAGE is s3://bucket/prefix, file:///folder or a folder's path. S3 keys are taken from
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, never from the command line.

    \b
    storage-loader ls ./data
    storage-loader info ./data digits --where split=train
    storage-loader head s3://bucket/prefix digits --endpoint http://127.0.0.1:9000
    storage-loader bench digits.json --batch-size 64 --shuffle true
    """


@cli.command("ls")
@click.argument("storage", required=False)
@_where_option
@_storage_options
def ls_command(storage: str | None, where: Sequence[str], **settings: Any) -> None:
    """List the datasets of STORAGE (default: where datasets go by default)."""
    infos = [i for i in list_datasets(storage, **settings) if _agrees(i, where)]
    rows = [
        (
            info.config.dataset_name,
            " ".join(f"{k}={_shown(v)}" for k, v in info.config.additional.items()) or "-",
            f"{info.num_rows:,}",
            str(info.num_objects),
            size_text(info.nbytes),
        )
        for info in infos
    ]
    if not rows:
        click.echo(
            f"no dataset in {DataConfig('any', storage=storage, **settings).storage}", err=True
        )
        return
    _table(("NAME", "ADDITIONAL", "ROWS", "OBJECTS", "SIZE"), rows, right=(2, 3, 4))


@cli.command("info")
@_dataset_arguments
@_storage_options
def info_command(storage: str, name: str, where: Sequence[str], **settings: Any) -> None:
    """Describe the dataset NAME of STORAGE."""
    info = _one(storage, name, where, settings)
    click.echo(f"{name} in {info.config.storage}")
    for key, value in info.config.additional.items():
        click.echo(f"  {key} = {_shown(value)}")
    click.echo(
        f"{info.num_rows:,} rows in {info.num_objects} objects, {size_text(info.nbytes)}, "
        f"version {info.version} of {len(info.version.commits)} commits"
    )
    rows = [
        (a.name, a.dtype, str(a.shape), size_text(a.row_nbytes))
        for a in info.config.attributes or ()
    ]
    _table(("ATTRIBUTE", "DTYPE", "ROW SHAPE", "ROW SIZE"), rows, right=(3,))


@cli.command("head")
@_dataset_arguments
@click.option("--rows", "-n", default=5, show_default=True, type=click.IntRange(1, 1000))
@_storage_options
def head_command(storage: str, name: str, where: Sequence[str], rows: int, **settings: Any) -> None:
    """Show the first rows of the dataset NAME of STORAGE."""
    dataset = Dataset(_one(storage, name, where, settings).config)
    batch = dataset[:rows]
    cells = [
        (str(row), *(_cell(array[row]) for array in batch.values()))
        for row in range(min(rows, len(dataset)))
    ]
    _table(("ROW", *batch), cells, right=(0,))


@cli.command("rm")
@_dataset_arguments
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_storage_options
def rm_command(storage: str, name: str, where: Sequence[str], yes: bool, **settings: Any) -> None:
    """Remove the dataset NAME of STORAGE, with all its versions."""
    info = _one(storage, name, where, settings)
    if not yes:
        click.confirm(
            f"remove {name} {dict(info.config.additional)}, {info.num_rows:,} rows "
            f"({size_text(info.nbytes)}), from {info.config.storage}?",
            abort=True,
        )
    delete(info.config)
    click.echo(f"removed {info.num_rows:,} rows of {name} from {info.config.storage}")


@cli.command("bench")
@click.argument("config", type=click.Path(dir_okay=False))
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
@click.option("--num-workers", default=0, show_default=True, type=click.IntRange(0))
@click.option("--cache-dir", type=click.Path(file_okay=False), help="Default: the user's.")
@click.option("--cache-size", type=click.IntRange(0), metavar="BYTES", help="0 keeps nothing.")
@click.option("--index", is_flag=True, help="Read only each batch's rows, never fill the cache.")
@click.option(
    "--plot",
    "png",
    type=click.Path(dir_okay=False),
    metavar="FILE.png",
    help="Draw rows/s and waiting over time (needs matplotlib).",
)
def bench_command(
    config: str, shuffle: str, epochs: int, seconds: float | None, png: str | None, **settings: Any
) -> None:
    """Measure how fast the dataset of CONFIG loads here.

    CONFIG is a file that DataConfig.save wrote. Ctrl-C prints what was measured so far.
    """
    if png is not None:
        require_plot()
    loaded = _config(config)
    order: Any = {"false": False, "true": True}.get(shuffle, shuffle)
    loader = DataLoader(loaded, shuffle=order, **settings)
    click.echo(f"{loaded.dataset_name} in {loaded.storage}: {loader.num_rows:,} rows")
    measured = Measured()
    try:
        with tqdm(total=loader.num_rows * epochs, unit=" rows", leave=False, disable=None) as bar:
            measure(loader, measured, epochs=epochs, seconds=seconds, progress=bar.update)
    finally:
        _show(measured.epochs)
        if png is not None and measured.samples:
            plot(measured.samples, f"{loaded.dataset_name}, {loaded.storage}", png)


def main() -> None:
    """Run the command; errors of ours are one line and exit code 1."""
    try:
        cli()
    except StorageLoaderError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def _config(path: str) -> DataConfig:
    try:
        return DataConfig.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


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
    _table(head, rows, right=range(len(head)))


def _one(storage: str, name: str, where: Sequence[str], settings: dict[str, Any]) -> DatasetInfo:
    """The dataset meant; an error names the choices where it is not exactly one."""
    named = list_datasets(storage, name=name, **settings)
    found = [i for i in named if _agrees(i, where)]
    if len(found) == 1:
        return found[0]
    if not named:
        return dataset_info(DataConfig(name, storage=storage, **settings))
    choices = "".join(
        "\n  " + " ".join(f"--where {k}={_shown(v)}" for k, v in i.config.additional.items())
        for i in found or named
    )
    problem = "none of them matches" if not found else "say which one"
    raise ConfigError(f"{name!r} exists {len(named)} times, {problem}:{choices}")


def _agrees(info: DatasetInfo, where: Sequence[str]) -> bool:
    for condition in where:
        key, separator, text = condition.partition("=")
        if not separator or not key:
            raise ConfigError(f"--where {condition!r}: write KEY=VALUE")
        if key not in info.config.additional or not _equals(info.config.additional[key], text):
            return False
    return True


def _equals(value: JSONScalar, text: str) -> bool:
    """Whether a stored value is what the user typed: as text, or as JSON."""
    return text in (_shown(value), json.dumps(value))


def _shown(value: JSONScalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cell(value: Any) -> str:
    with np.printoptions(threshold=6, edgeitems=2, linewidth=10_000, precision=4):
        text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())
