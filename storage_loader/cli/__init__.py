"""The command `storage-loader`: look at stored datasets, measure, check and tidy them."""

from __future__ import annotations

import sys

import click

from ..errors import FormatError, StorageLoaderError, StoreError
from .bench import bench_command
from .cache import cache_commands
from .check import check_command
from .look import head_command, info_command, log_command, ls_command
from .text import echo, echo_error
from .upkeep import gc_command, rm_command, verify_command


@click.group(
    commands=[
        ls_command,
        info_command,
        head_command,
        log_command,
        rm_command,
        gc_command,
        verify_command,
        bench_command,
        check_command,
        cache_commands,
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="storage-loader")
def cli() -> None:
    """Look at datasets on S3, MinIO or in a folder.

    A dataset is given as NAME in the default storage ($STORAGE_LOADER_STORAGE, else where
    DataConfig puts it), as STORAGE and NAME, or as CONFIG, a file that DataConfig.save wrote. A
    word alone is CONFIG if such a file exists, else NAME. STORAGE is s3://bucket/prefix,
    file:///folder or a folder's path. NAME/ID names one dataset of several of a name. S3 keys are
    taken from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, never from the command line.

    \b
    storage-loader check s3://bucket/prefix --endpoint http://127.0.0.1:9000
    storage-loader ls ./data
    storage-loader info digits
    storage-loader info ./data digits --where split=train
    storage-loader head s3://bucket/prefix digits --endpoint http://127.0.0.1:9000
    storage-loader bench digits.json --batch-size 64 --shuffle true
    storage-loader log digits.json
    storage-loader verify digits.json
    storage-loader gc digits.json --dry-run
    storage-loader cache ls
    storage-loader cache clear --older-than 7d
    """


def main() -> None:
    """Run the command; errors of ours are printed without a traceback, with exit code 1."""
    try:
        cli()
    except StorageLoaderError as error:
        echo_error(error)
        if _is_of_the_storage(error):
            echo("what this storage does and does not: storage-loader check STORAGE", err=True)
        sys.exit(1)


def _is_of_the_storage(error: StorageLoaderError) -> bool:
    """Whether the storage itself failed, not what somebody looks for in it."""
    is_of_what_lies_there = isinstance(error, (FormatError, FileNotFoundError))
    return isinstance(error, StoreError) and not is_of_what_lies_there


__all__ = ["cli", "main"]
