"""The command `storage-loader`: look at stored datasets, measure, check and tidy them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import click
import numpy as np
from tqdm import tqdm

from .bench import Measured, measure, plot, require_plot
from .catalog import (
    Collected,
    LoggedCommit,
    collect_garbage,
    commit_log,
    dataset_info,
    delete,
    drop_commit,
    find_datasets,
    list_datasets,
    verify_dataset,
)
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
    """CONFIG, or STORAGE and NAME: which dataset `_chosen` gives."""
    command = _storage_options(_where_option(command))
    command = click.argument("name", required=False)(command)
    return click.argument("storage", metavar="CONFIG|STORAGE")(command)


_version_option = click.option(
    "--version", metavar="VERSION", help="A hash or a commit's id that `log` lists, not the newest."
)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: write 90s, 30m, 24h or 7d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})


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

    A dataset is given as STORAGE and NAME, or as CONFIG, a file that DataConfig.save wrote.
    STORAGE is s3://bucket/prefix, file:///folder or a folder's path. S3 keys are taken from
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, never from the command line.

    \b
    storage-loader ls ./data
    storage-loader info ./data digits --where split=train
    storage-loader head s3://bucket/prefix digits --endpoint http://127.0.0.1:9000
    storage-loader bench digits.json --batch-size 64 --shuffle true
    storage-loader log digits.json
    storage-loader verify digits.json
    storage-loader gc digits.json --dry-run
    """


@cli.command("ls")
@click.argument("storage", required=False)
@_where_option
@_storage_options
def ls_command(storage: str | None, where: Sequence[str], **settings: Any) -> None:
    """List the datasets of STORAGE (default: where datasets go by default)."""
    infos = [i for i in list_datasets(storage, **settings) if _agrees(i.config, where)]
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
@_version_option
def info_command(version: str | None, **which: Any) -> None:
    """Describe a dataset."""
    info = dataset_info(_chosen(**which), version)
    click.echo(f"{info.config.dataset_name} in {info.config.storage}")
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
@_version_option
@click.option("--rows", "-n", default=5, show_default=True, type=click.IntRange(1, 1000))
def head_command(version: str | None, rows: int, **which: Any) -> None:
    """Show the first rows of a dataset."""
    dataset = Dataset(_chosen(**which), version=version)
    batch = dataset[:rows]
    cells = [
        (str(row), *(_cell(array[row]) for array in batch.values()))
        for row in range(min(rows, len(dataset)))
    ]
    _table(("ROW", *batch), cells, right=(0,))


@cli.command("log")
@_dataset_arguments
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
def log_command(as_json: bool, **which: Any) -> None:
    """List the commits of a dataset in the order of their rows.

    Times are the storage's. VERSION is the dataset after that commit; --version and version=
    take it, or the commit's id. "-" where commits of it are gone.
    """
    log = commit_log(_chosen(**which))
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
        click.echo(json.dumps(entries, indent=2))
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
    _table(head, rows, right=(3, 4))


@cli.command("rm")
@_dataset_arguments
@click.option("--commit", metavar="ID", help="Only the rows of this commit.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def rm_command(commit: str | None, yes: bool, **which: Any) -> None:
    """Remove a dataset with all its versions, or the rows of one commit.

    With --commit earlier versions can still be read until gc removes what they need, and what
    the commit itself replaced stays replaced.
    """
    config = _chosen(**which)
    name = f"{config.dataset_name} {dict(config.additional)}"
    if commit is not None:
        rows = next((f"{c.num_rows:,} rows" for c in commit_log(config) if c.id == commit), "")
        if rows and not yes:
            click.confirm(
                f"drop commit {commit}, {rows}, from {name} in {config.storage}? What it replaced "
                "stays replaced; earlier versions can be read until gc removes them.",
                abort=True,
            )
        dropping = drop_commit(config, commit)
        click.echo(f"dropped {rows} of {config.dataset_name} by commit {dropping}")
        return
    info = dataset_info(config)
    if not yes:
        click.confirm(
            f"remove {name}, {info.num_rows:,} rows ({size_text(info.nbytes)}), from "
            f"{config.storage}?",
            abort=True,
        )
    delete(info.config)
    click.echo(f"removed {info.num_rows:,} rows of {config.dataset_name} from {config.storage}")


@cli.command("gc")
@_dataset_arguments
@click.option(
    "--grace",
    type=_duration,
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How long a saver may be silent before what it did not commit is garbage.",
)
@click.option(
    "--keep",
    type=_duration,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="How long commits that were replaced can still be read.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def gc_command(grace: timedelta, keep: timedelta, dry_run: bool, **which: Any) -> None:
    """Remove what no reader of a dataset can need any more.

    That is what killed savers left, and replaced commits with their objects. Savers and readers
    may be at work meanwhile.
    """
    with _bar("") as progress:
        collected = collect_garbage(
            _chosen(**which), grace=grace, keep=keep, dry_run=dry_run, progress=progress
        )
    if dry_run:
        rows = [(one.kind, size_text(one.nbytes), one.key) for one in collected.garbage]
        if rows:
            _table(("KIND", "SIZE", "KEY"), rows, right=(1,))
    _show_collected(collected, "would remove" if dry_run else "removed")


@cli.command("verify")
@_dataset_arguments
@_version_option
@click.option(
    "--repair", is_flag=True, help="Then remove what is garbage, as gc does, and nothing else."
)
def verify_command(version: str | None, repair: bool, **which: Any) -> None:
    """Read everything of a dataset and check it against its checksums.

    Each problem is a line that names commit, object, attribute and rows; the exit code is then 1.
    """
    config = _chosen(**which)
    with _bar("B") as progress:
        verified = verify_dataset(
            config,
            version=version,
            found=lambda problem: tqdm.write(str(problem)),
            progress=progress,
        )
    problems = len(verified.problems)
    click.echo(
        f"{verified.num_rows:,} rows in {verified.num_objects} objects, "
        f"{size_text(verified.nbytes)}, version {verified.version}: {problems or 'no'} "
        f"problem{'' if problems == 1 else 's'}"
    )
    if repair:
        _show_collected(collect_garbage(config), "removed")
    if problems:
        sys.exit(1)


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
@_version_option
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


def _replaced(logged: LoggedCommit) -> str:
    """The commit that one took the place of, or how many; a barrier's own."""
    others = [i for i in logged.replaces if i != logged.id] or logged.replaces
    return others[0] if len(others) == 1 else f"{len(others) or '-'}"


def _config(path: str, hint: str = "") -> DataConfig:
    try:
        return DataConfig.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}{hint}") from error


@contextmanager
def _bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for a terminal, and what to tell it: how much is done, of how much."""
    with tqdm(unit=unit, unit_scale=True, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress


def _show_collected(collected: Collected, verb: str) -> None:
    for key in collected.foreign:
        click.echo(f"left alone, not of this format: {key}", err=True)
    counts = Counter(_WORDS.get(one.kind, one.kind) for one in collected.garbage)
    kinds = ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items())
    size = size_text(sum(one.nbytes for one in collected.garbage))
    click.echo(f"{verb} {kinds}; {size}" if counts else f"{verb} nothing")


_WORDS = {"unfinished": "unfinished file"}


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


def _chosen(storage: str, name: str | None, where: Sequence[str], **settings: Any) -> DataConfig:
    """The dataset meant; an error names the choices where it is not exactly one."""
    if name is None:
        if where or any(value is not None for value in settings.values()):
            raise ConfigError("options that say where a dataset is go with STORAGE and NAME")
        return _config(storage, "; give a config's file, or STORAGE and NAME")
    named = find_datasets(storage, name=name, **settings)
    found = [c for c in named if _agrees(c, where)]
    if len(found) == 1:
        return found[0]
    if not named:
        return DataConfig(name, storage=storage, **settings)  # whoever opens it gets the error
    choices = "".join(
        "\n  " + " ".join(f"--where {k}={_shown(v)}" for k, v in c.additional.items())
        for c in found or named
    )
    problem = "none of them matches" if not found else "say which one"
    raise ConfigError(f"{name!r} exists {len(named)} times, {problem}:{choices}")


def _agrees(config: DataConfig, where: Sequence[str]) -> bool:
    for condition in where:
        key, separator, text = condition.partition("=")
        if not separator or not key:
            raise ConfigError(f"--where {condition!r}: write KEY=VALUE")
        if key not in config.additional or not _equals(config.additional[key], text):
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
