"""What commands take: options of several, and the arguments that say which dataset is meant."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click

from ..catalog import Catalog, UnreadableDataset, find_datasets
from ..config import STORAGE_VARIABLE, DataConfig, JSONScalar, is_dataset_name
from ..errors import ConfigError, DatasetNotFoundError, StorageLoaderError
from .text import shown

F = TypeVar("F", bound=Callable[..., Any])

WHICH = ("storage", "name", "where", "endpoint", "region", "secure")  # of `dataset_arguments`

version_option = click.option(
    "--version", metavar="VERSION", help="A hash or a commit's id that `log` lists, not the newest."
)

dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be removed.")


def duration(text: str) -> timedelta:
    """The type of an option: 90s, 30m, 24h or 7d."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: write 90s, 30m, 24h or 7d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})


def dataset_arguments(command: F) -> F:
    """CONFIG, or NAME, or STORAGE and NAME, or NAME/ID: which dataset `chosen` gives."""
    command = storage_options(where_option(command))
    command = click.argument("name", required=False)(command)
    return click.argument("storage", metavar="CONFIG|NAME|STORAGE")(command)


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
    if name is not None:
        return _named(storage, name, where, **settings)
    if is_name(storage) and not is_file(storage):
        return _named(None, storage, where, **settings)
    if where or any(value is not None for value in settings.values()):
        raise ConfigError(
            "options that say where a dataset is go with NAME, or STORAGE and NAME, not with a "
            "config's file"
        )
    return config_at(storage)


def _named(
    storage: str | None, name: str, where: Sequence[str], **settings: Any
) -> DataConfig | UnreadableDataset:
    """The dataset of this name, or NAME/ID, in a storage; None is the default one."""
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
        config = DataConfig(plain, storage=storage, **settings)
        if storage is None:
            _require_in_default_storage(config, name)
        return config  # whoever opens it gets the error
    times = "once" if len(named) == 1 else f"{len(named)} times"
    problem = "none of them matches" if len(named) > 1 else "which does not match"
    problem = "say which one" if found else problem
    raise ConfigError(f"{plain!r} exists {times}, {problem}:", *map(_choice, found or named))


def _require_in_default_storage(config: DataConfig, word: str) -> None:
    """Raise `DatasetNotFoundError` that also says what else the word could have meant."""
    try:
        Catalog(config).require_schema()
    except DatasetNotFoundError as error:
        is_set = os.environ.get(STORAGE_VARIABLE)
        place = f"${STORAGE_VARIABLE}" if is_set else f"{STORAGE_VARIABLE} is not set"
        hint = (
            f"for a dataset in the folder {word!r} give STORAGE and NAME: {word} NAME"
            if os.path.isdir(word)
            else f"there is no file {word!r} either; for another storage give STORAGE and NAME"
        )
        raise DatasetNotFoundError(
            *error.args, f"{word!r} was looked for in the default storage ({place}); {hint}"
        ) from error


def is_name(word: str) -> bool:
    """Whether a dataset may have this NAME, or NAME/ID."""
    match = _PREFIX.fullmatch(word)
    return is_dataset_name(match[1] if match else word)


def is_file(word: str) -> bool:
    """Whether it is the path of something that is no folder."""
    return os.path.lexists(word) and not os.path.isdir(word)


_PREFIX = re.compile(r"(.+)/[0-9a-f]{16}")


def _prefix(one: DataConfig | UnreadableDataset) -> str:
    return one.prefix if isinstance(one, UnreadableDataset) else one.dataset_prefix


def _choice(one: DataConfig | UnreadableDataset) -> str:
    """What a user types for this one of several."""
    if isinstance(one, UnreadableDataset):
        return f"  {one.prefix}, which cannot be read: {one.error}"
    conditions = " ".join(f"--where {k}={shown(v)}" for k, v in one.additional.items())
    return f"  {conditions or one.dataset_prefix}"


def config_at(path: str, name_forms: str = "NAME, or STORAGE and NAME") -> DataConfig:
    """The config in a file; a `ConfigError` where it cannot be read.

    `name_forms`: what can be given instead. The last one is never taken for a file.
    """
    try:
        return DataConfig.load(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; give a config's file, {name_forms}"
        ) from error
    except StorageLoaderError as error:
        if not is_name(path):
            raise
        raise ConfigError(
            *error.args,
            f"{path!r} is taken for a config's file, since this file exists; if a dataset of this "
            f"name is meant, give {name_forms.rpartition(', or ')[2]}",
        ) from error


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
