"""The command `storage-loader`, called in this process."""

from __future__ import annotations

import inspect
import sys

import pytest
from click.testing import CliRunner, Result

from storage_loader.cli import cli, main


def run(*words: str, input: str | None = None) -> Result:
    """The command in this process; an error of ours is raised."""
    result = runner().invoke(cli, words, input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def runner() -> CliRunner:
    """What calls the command, with stdout and stderr apart, as click 8.2 and later have them."""
    is_older = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(mix_stderr=False) if is_older else CliRunner()


def failing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """What the command says to stderr, with nothing on stdout, when it fails."""
    monkeypatch.setattr(sys, "argv", ["storage-loader", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err
