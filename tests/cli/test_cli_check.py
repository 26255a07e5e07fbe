"""`storage-loader check`: what it prints, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_loader import Check, Checked
from storage_loader.cli import cli
from tests.support.command import failing, run, runner

GOOD = Check("list", "holds")
SHORT = Check("put", "falls short", "no permission", "nothing can be saved", "allow s3:PutObject")
UNTRIED = Check("get", "not tried", "it needs put")


def given(monkeypatch: pytest.MonkeyPatch, *points: Check, **more: Any) -> list[Any]:
    """`check` returns this; the list fills with what it was asked."""
    asked: list[Any] = []

    def check(storage: str, **settings: Any) -> Checked:
        asked.append((storage, settings))
        return Checked("s3://bucket", points, 1.25, **more)

    monkeypatch.setattr("storage_loader.cli.check.check", check)
    return asked


@pytest.mark.parametrize(
    ("points", "code"),
    [
        ([GOOD], 0),
        ([GOOD, SHORT], 1),
        ([GOOD, SHORT, UNTRIED], 1),
        ([GOOD, UNTRIED], 2),
    ],
)
def test_the_exit_code_tells_the_worst_point(
    monkeypatch: pytest.MonkeyPatch, points: list[Check], code: int
) -> None:
    given(monkeypatch, *points)
    assert runner().invoke(cli, ["check", "s3://bucket"]).exit_code == code
    assert runner().invoke(cli, ["check", "s3://bucket", "--json"]).exit_code == code


def test_what_helps_several_points_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [replace(UNTRIED, name=name, remedy="ask the owner") for name in ("lock", "expiry")]
    given(monkeypatch, GOOD, *points)
    lines = run("check", "s3://bucket").output.splitlines()
    assert lines[4] == "lock, expiry: what to do: ask the owner"
    assert "ask the owner" not in "".join(lines[5:])


def test_the_table_says_what_a_point_costs_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, GOOD, SHORT, UNTRIED, left=".storage-loader-check/1", swept=2)
    assert run("check", "s3://bucket").output.splitlines() == [
        "POINT  RESULT       s3://bucket",
        "list   holds",
        "put    falls short  no permission",
        "get    not tried    it needs put",
        "put: nothing can be saved",
        "put: what to do: allow s3:PutObject",
        "left behind below the storage: .storage-loader-check/1",
        "removed what 2 killed checks had left",
        "3 points in 1.2 s: 1 falls short, 1 could not be tried",
    ]


def test_json_holds_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = given(monkeypatch, SHORT)
    words = ("--read-only", "--endpoint", "http://127.0.0.1:1", "--region", "r", "--seconds", "12")
    assert json.loads(run("check", "s3://bucket", *words, "--json").output) == {
        "storage": "s3://bucket",
        "seconds": 1.25,
        "points": [
            {
                "name": "put",
                "state": "falls short",
                "detail": "no permission",
                "cost": "nothing can be saved",
                "remedy": "allow s3:PutObject",
            }
        ],
        "left": "",
        "swept": 0,
    }
    settings = {
        "endpoint": "http://127.0.0.1:1",
        "region": "r",
        "secure": None,
        "read_only": True,
        "seconds": 12.0,
    }
    assert asked == [("s3://bucket", settings)]


@pytest.mark.usefixtures("speed_of_a_moment")
def test_without_a_storage_the_default_one_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", str(tmp_path / "store"))
    assert f"file://{tmp_path / 'store'}" in run("check").output


def test_less_time_than_it_takes_is_refused() -> None:
    result = runner().invoke(cli, ["check", "x", "--seconds", "3"])
    assert result.exit_code == 2
    assert "--seconds" in result.stderr


def test_errors_of_a_store_name_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b" * 8)
    said = failing(
        monkeypatch, capsys, "info", "s3://bucket/p q", "digits", "--endpoint", "http://127.0.0.1:1"
    )
    assert said.splitlines()[-1] == (
        "what this storage does and does not: storage-loader check STORAGE"
    )


def test_what_is_missing_is_no_fault_of_the_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = failing(monkeypatch, capsys, "info", str(tmp_path), "digits")
    assert "storage-loader check" not in said
