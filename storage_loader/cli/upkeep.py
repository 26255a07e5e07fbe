"""`rm`, `gc` and `verify`: what is removed, and whether the rest is whole."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import click

from ..catalog import (
    Collected,
    UnreadableDataset,
    collect_garbage,
    commit_log,
    dataset_info,
    delete,
    drop_commit,
    verify_dataset,
)
from ..errors import FormatError
from ..loader.run.stats import size_text
from .text import (
    ask,
    counted,
    echo,
    echo_beside_bar,
    echo_json,
    json_option,
    progress_bar,
    table,
)
from .which import (
    chosen,
    chosen_or_unreadable,
    dataset_arguments,
    dry_run_option,
    duration,
    version_option,
)


@click.command("rm")
@dataset_arguments
@click.option("--commit", metavar="ID", help="Only the rows of this commit.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
def rm_command(commit: str | None, yes: bool, as_json: bool, **which: Any) -> None:
    """Remove a dataset with all its versions, or the rows of one commit.

    With --commit earlier versions can still be read until gc removes what they need, and what
    the commit itself replaced stays replaced. What cannot be read can be removed.
    """
    config = chosen_or_unreadable(**which)
    if isinstance(config, UnreadableDataset):
        if commit is not None:
            raise config.error
        _remove_unreadable(config, yes, as_json)
        return
    name = f"{config.dataset_name} {dict(config.additional)}"
    if commit is not None:
        log = commit_log(config)
        rows = next((counted(c.num_rows, "row") for c in log if c.id == commit), "")
        if rows and not yes:
            ask(
                f"drop commit {commit}, {rows}, from {name} in {config.storage}? What it replaced "
                "stays replaced; earlier versions can be read until gc removes them.",
                err=as_json,
            )
        dropping = drop_commit(config, commit)
        if as_json:
            echo_json({"dropped": commit, "by": dropping})
        else:
            echo(f"dropped {rows} of {config.dataset_name} by commit {dropping}")
        return
    try:
        info = dataset_info(config)
    except FormatError as error:  # of a commit
        if not yes:
            question = f"remove {name}, which cannot be read ({error}), from {config.storage}?"
            ask(question, err=as_json)
        delete(config)
        _show_removed(config.dataset_prefix, config.storage, config.dataset_name, as_json)
        return
    rows = counted(info.num_rows, "row")
    if not yes:
        question = f"remove {name}, {rows} ({size_text(info.nbytes)}), from {config.storage}?"
        ask(question, err=as_json)
    delete(info.config)
    what = f"{rows} of {config.dataset_name}"
    _show_removed(config.dataset_prefix, config.storage, what, as_json)


def _show_removed(prefix: str, storage: str, what: str, as_json: bool) -> None:
    if as_json:
        echo_json({"removed": prefix, "storage": storage})
    else:
        echo(f"removed {what} from {storage}")


def _remove_unreadable(one: UnreadableDataset, yes: bool, as_json: bool) -> None:
    storage = one.place.storage
    if not yes:
        question = f"remove {one.prefix}, which cannot be read ({one.error}), from {storage}?"
        ask(question, err=as_json)
    one.delete()
    _show_removed(one.prefix, storage, one.prefix, as_json)


@click.command("gc")
@dataset_arguments
@click.option(
    "--grace",
    type=duration,
    metavar="TIME",
    default="24h",
    show_default=True,
    help="How long a saver may be silent before what it did not commit is garbage.",
)
@click.option(
    "--keep",
    type=duration,
    metavar="TIME",
    default="7d",
    show_default=True,
    help="How long commits that were replaced can still be read.",
)
@dry_run_option
@json_option
def gc_command(
    grace: timedelta, keep: timedelta, dry_run: bool, as_json: bool, **which: Any
) -> None:
    """Remove what no reader of a dataset can need any more.

    That is what killed savers left, and replaced commits with their objects. Savers and readers
    may be at work meanwhile.
    """
    with progress_bar("") as progress:
        collected = collect_garbage(
            chosen(**which), grace=grace, keep=keep, dry_run=dry_run, progress=progress
        )
    if as_json:
        echo_json({"dry_run": dry_run, **_collected(collected)})
        return
    if dry_run:
        rows = [(one.kind, size_text(one.nbytes), one.key) for one in collected.garbage]
        if rows:
            table(("KIND", "SIZE", "KEY"), rows, right=(1,))
    _show_collected(collected, "would remove" if dry_run else "removed")


@click.command("verify")
@dataset_arguments
@version_option
@click.option(
    "--repair", is_flag=True, help="Then remove what is garbage, as gc does, and nothing else."
)
@json_option
def verify_command(version: str | None, repair: bool, as_json: bool, **which: Any) -> None:
    """Read everything of a dataset and check it against its checksums.

    Each problem is a line that names commit, object, attribute and rows; the exit code is then 1.
    """
    config = chosen(**which)
    with progress_bar("B") as progress:
        verified = verify_dataset(
            config,
            version=version,
            found=lambda problem: None if as_json else echo_beside_bar(str(problem)),
            progress=progress,
        )
    problems = len(verified.problems)
    if as_json:
        described = {
            "rows": verified.num_rows,
            "objects": verified.num_objects,
            "nbytes": verified.nbytes,
            "version": verified.version.hash,
            "problems": [asdict(problem) for problem in verified.problems],
        }
        removed = {"repaired": _collected(collect_garbage(config))} if repair else {}
        echo_json({**described, **removed})
    else:
        echo(
            f"{counted(verified.num_rows, 'row')} in {counted(verified.num_objects, 'object')}, "
            f"{size_text(verified.nbytes)}, version {verified.version}: {problems or 'no'} "
            f"problem{'' if problems == 1 else 's'}"
        )
        if repair:
            _show_collected(collect_garbage(config), "removed")
    if problems:
        sys.exit(1)


def _collected(collected: Collected) -> dict[str, Any]:
    """What was removed, or would be, for programs."""
    return {
        "garbage": [asdict(one) for one in collected.garbage],
        "foreign": collected.foreign,
    }


def _show_collected(collected: Collected, verb: str) -> None:
    for key in collected.foreign:
        echo(f"left alone, not of this format: {key}", err=True)
    counts = Counter(_WORDS.get(one.kind, one.kind) for one in collected.garbage)
    kinds = ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for word, n in counts.items())
    size = size_text(sum(one.nbytes for one in collected.garbage))
    echo(f"{verb} {kinds}; {size}" if counts else f"{verb} nothing")


_WORDS = {"unfinished": "unfinished file"}
