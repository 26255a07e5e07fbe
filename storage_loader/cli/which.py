"""Which dataset a command is about: its arguments and options, and the config that they give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..catalog import UnreadableDataset, find_datasets
from ..config import DataConfig, JSONScalar
from ..errors import ConfigError
from .text import shown

F = TypeVar("F", bound=Callable[..., Any])

version_option = click.option(
    "--version", metavar="VERSION", help="A hash or a commit's id that `log` lists, not the newest."
)


def dataset_arguments(command: F) -> F:
    """CONFIG, or STORAGE and NAME, or NAME/ID: which dataset `chosen` gives."""
    command = storage_options(where_option(command))
    command = click.argument("name", required=False)(command)
    return click.argument("storage", metavar="CONFIG|STORAGE")(command)


def storage_options(command: F) -> F:
    """How STORAGE is reached: keywords of `DataConfig`."""
    for option in (
        click.option("--endpoint", metavar="URL", help="S3 server, e.g. http://127.0.0.1:9000."),
        click.option("--region", metavar="NAME", help="S3 region."),
        click.option("--secure/--insecure", default=None, help="Use TLS or not; the URL decides."),
    ):
        command = option(command)
    return command


def where_option(command: F) -> F:
    """The conditions with which `agrees` compares."""
    return click.option(
        "--where",
        "-w",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only datasets whose `additional` has this value; may be repeated.",
    )(command)


def chosen(**which: Any) -> DataConfig:
    """The dataset meant; an error names the choices where it is not exactly one."""
    found = chosen_or_unreadable(**which)
    if isinstance(found, UnreadableDataset):
        raise found.error
    return found


def chosen_or_unreadable(
    storage: str, name: str | None, where: Sequence[str], **settings: Any
) -> DataConfig | UnreadableDataset:
    """The same, for a command that does not need to read what it is about."""
    if name is None:
        if where or any(value is not None for value in settings.values()):
            raise ConfigError("options that say where a dataset is go with STORAGE and NAME")
        return config_at(storage, "; give a config's file, or STORAGE and NAME")
    match = _PREFIX.fullmatch(name)
    plain = match[1] if match else name
    unreadable: list[UnreadableDataset] = []
    named: list[DataConfig | UnreadableDataset] = [
        *find_datasets(storage, name=plain, unreadable=unreadable.append, **settings),
        *unreadable,
    ]
    if match:
        found = [one for one in named if _prefix(one) == name]
    elif where:  # says what the dataset has that is meant, and nothing of the others' is known
        found = [one for one in named if isinstance(one, DataConfig) and agrees(one, where)]
    else:
        found = named
    if len(found) == 1:
        return found[0]
    if not named:
        return DataConfig(plain, storage=storage, **settings)  # whoever opens it gets the error
    problem = "none of them matches" if not found else "say which one"
    raise ConfigError(
        f"{plain!r} exists {len(named)} times, {problem}:", *map(_choice, found or named)
    )


_PREFIX = re.compile(r"([^/]+)/[0-9a-f]{16}")


def _prefix(one: DataConfig | UnreadableDataset) -> str:
    return one.prefix if isinstance(one, UnreadableDataset) else one.dataset_prefix


def _choice(one: DataConfig | UnreadableDataset) -> str:
    """What a user types for this one of several."""
    if isinstance(one, UnreadableDataset):
        return f"  {one.prefix}, which cannot be read: {one.error}"
    conditions = " ".join(f"--where {k}={shown(v)}" for k, v in one.additional.items())
    return f"  {conditions or one.dataset_prefix}"


def config_at(path: str, hint: str = "") -> DataConfig:
    """The config in a file; a `ConfigError` where it cannot be read."""
    try:
        return DataConfig.load(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}{hint}") from error


def agrees(config: DataConfig, where: Sequence[str]) -> bool:
    """Whether `additional` has each KEY=VALUE of `where`."""
    for condition in where:
        key, separator, text = condition.partition("=")
        if not separator or not key:
            raise ConfigError(f"--where {condition!r}: write KEY=VALUE")
        if key not in config.additional or not _equals(config.additional[key], text):
            return False
    return True


def _equals(value: JSONScalar, text: str) -> bool:
    """Whether a stored value is what the user typed: as text, or as JSON."""
    return text in (shown(value), json.dumps(value))
