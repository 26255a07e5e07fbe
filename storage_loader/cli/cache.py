"""`cache ls` and `cache clear`: what loaders keep on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from ..config import DataConfig
from ..errors import ConfigError
from ..loader import CachedDataset, clear_cache, list_cache
from ..loader.fetch.cache import cache_folder
from ..loader.run.stats import size_text
from .text import counted, echo, echo_json, json_option, table
from .which import config_at, dry_run_option, duration, is_file, is_name

_cache_dir_option = click.option(
    "--cache-dir", type=click.Path(), metavar="FOLDER", help="Default: the user's."
)


@click.group("cache")
def cache_commands() -> None:
    """Look at the cache on this machine, or clear it.

    Loaders keep objects of S3 and MinIO there. No storage is asked, and no key is needed.
    """


@cache_commands.command("ls")
@_cache_dir_option
@json_option
def cache_ls_command(cache_dir: str | None, as_json: bool) -> None:
    """List the datasets of which the cache holds something.

    SIZE is what the files take of the disk, IN USE how many of them a process has open now, LAST
    USED when a loader last opened or filled one.
    """
    _require(cache_dir)
    found = list_cache(cache_dir)
    if as_json:
        echo_json({"cache_dir": str(cache_folder(cache_dir)), "datasets": _for_programs(found)})
        return
    if not found:
        echo(f"nothing is cached in {cache_folder(cache_dir)}", err=True)
        return
    _show(found)
    echo(f"{_described(found)} in {cache_folder(cache_dir)}")


@cache_commands.command("clear")
@click.argument("dataset", required=False, metavar="[CONFIG|NAME|NAME/ID]")
@click.option(
    "--older-than",
    type=duration,
    metavar="TIME",
    help="Only files that no loader has opened or filled for so long, e.g. 7d.",
)
@dry_run_option
@_cache_dir_option
@json_option
def cache_clear_command(
    dataset: str | None,
    older_than: timedelta | None,
    dry_run: bool,
    cache_dir: str | None,
    as_json: bool,
) -> None:
    """Remove files from the cache: all, or those of one dataset.

    NAME is a dataset's in any storage, as `cache ls` lists it, CONFIG a file that
    DataConfig.save wrote. Files that a process has open now stay. Loaders may be at work
    meanwhile: they fetch again what they need.
    """
    _require(cache_dir)
    meant = _meant(dataset)
    cleared = clear_cache(meant, older_than=older_than, cache_dir=cache_dir, dry_run=dry_run)
    if as_json:
        removed, in_use = _for_programs(cleared.removed), _for_programs(cleared.in_use)
        echo_json({"dry_run": dry_run, "removed": removed, "in_use": in_use})
        return
    if dry_run and cleared.removed:
        _show(cleared.removed)
    verb = "would remove" if dry_run else "removed"
    echo(f"{verb} {_described(cleared.removed) if cleared.removed else 'nothing'}")
    if cleared.in_use:
        echo(f"left {_described(cleared.in_use)}: in use now")
    if meant is not None and not cleared.removed and not cleared.in_use:
        _hint(meant, cache_dir)


def _require(cache_dir: str | None) -> None:
    """Raise `ConfigError` where this folder was named and is not there: it may be mistyped."""
    if cache_dir is not None and not os.path.isdir(cache_dir):
        raise ConfigError(f"--cache-dir {cache_dir}: there is no such folder")


def _hint(meant: DataConfig | str, cache_dir: str | None) -> None:
    """Say what the cache holds where nothing of it was meant: a name may be mistyped."""
    wanted = meant if isinstance(meant, str) else meant.dataset_prefix
    found = list_cache(cache_dir)
    if not any(wanted in (one.name, one.prefix) for one in found):
        names = sorted({one.name for one in found})
        holds = f"files of: {', '.join(map(repr, names))}" if names else "nothing"
        echo(f"the cache {cache_folder(cache_dir)} holds {holds}", err=True)


def _meant(word: str | None) -> DataConfig | str | None:
    """A file goes before a name, as for every command."""
    if word is None:
        return None
    if is_name(word) and not is_file(word):
        return word
    return config_at(word, "NAME, or NAME/ID")


def _show(found: Sequence[CachedDataset]) -> None:
    rows = [
        (
            one.prefix,
            f"{one.num_files:,}",
            size_text(one.nbytes),
            f"{one.num_in_use:,}",
            f"{one.last_used:%Y-%m-%d %H:%M:%S}Z",
            one.origin,
        )
        for one in found
    ]
    table(("NAME/ID", "FILES", "SIZE", "IN USE", "LAST USED", "STORAGE"), rows, right=(1, 2, 3))


def _for_programs(found: Sequence[CachedDataset]) -> list[dict[str, Any]]:
    return [{**asdict(one), "last_used": one.last_used.isoformat()} for one in found]


def _described(found: Sequence[CachedDataset]) -> str:
    files = sum(one.num_files for one in found)
    size = size_text(sum(one.nbytes for one in found))
    return f"{counted(files, 'file')} of {counted(len(found), 'dataset')}, {size}"
