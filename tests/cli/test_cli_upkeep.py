"""The commands that look after a dataset: log, rm --commit, gc, verify, and --version."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from storage_loader import DataConfig, Dataset, commit_log, save
from storage_loader.catalog import Catalog
from storage_loader.store import open_store
from tests.support.aged import age
from tests.support.command import failing, run
from tests.support.rows import config, make, stored


@pytest.fixture
def the_config(folder: dict[str, str]) -> DataConfig:
    """Three commits of 100 rows, then a refresh of 50 and an append of 7."""
    made = config(folder)
    for start in range(0, 300, 100):
        save(made, make(range(start, start + 100)))
    save(made, make(range(500, 550)), refresh=True)
    save(made, make(range(600, 607)))
    return made


@pytest.fixture
def file(the_config: DataConfig, tmp_path: Path) -> str:
    path = tmp_path / "rows.json"
    the_config.save(path)
    return str(path)


def test_log(the_config: DataConfig, file: str) -> None:
    result = run("log", file)
    assert result.exit_code == 0
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["COMMIT", "WRITER", "TIME", "ROWS", "SIZE", "STATE", "REPLACES", "VERSION"]
    log = commit_log(the_config)
    for words, c in zip(lines, log, strict=True):
        assert words[:2] == [c.id, c.writer]
        time = datetime.fromisoformat(f"{words[2]} {words[3].rstrip('Z')}+00:00")
        assert time == c.time.replace(microsecond=0)
        assert words[4] == str(c.num_rows)
        assert words[-3] == ("live" if c.is_live else "-")
        assert words[-2:] == ["3" if c.replaces else "-", str(c.version)]
    assert [c.num_rows for c in log] == [100, 100, 100, 50, 7]
    assert run("log", the_config.storage, "rows").stdout == result.stdout


def test_log_json(the_config: DataConfig, file: str) -> None:
    entries = json.loads(run("log", file, "--json").stdout)
    log = commit_log(the_config)
    assert [(e["id"], e["writer"], e["rows"]) for e in entries] == [
        (c.id, c.writer, c.num_rows) for c in log
    ]
    assert [e["version"] for e in entries] == [str(c.version) for c in log]
    assert [e["replaces"] for e in entries] == [list(c.replaces) for c in log]
    assert [e["live"] for e in entries] == [False, False, False, True, True]
    assert [datetime.fromisoformat(e["time"]) for e in entries] == [c.time for c in log]
    assert set(entries[0]) == {
        "id", "writer", "time", "rows", "objects", "nbytes", "replaces", "live", "version"
    }  # fmt: skip


def test_a_version_that_log_lists(the_config: DataConfig, file: str) -> None:
    second = json.loads(run("log", file, "--json").stdout)[1]
    for version in (second["id"], second["version"]):
        assert "\n200 rows in 2 objects" in run("info", file, "--version", version).stdout
        lines = run("head", file, "--version", version, "-n", "1000").stdout.splitlines()
        assert len(lines) == 1 + 200
        assert run("verify", file, "--version", version).stdout.startswith("200 rows in 2 objects")
        assert ": 200 rows\n" in run("bench", file, "--version", version, "--epochs", "1").stdout


def test_a_version_that_is_not_there(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("info", "head", "verify"):
        said = failing(monkeypatch, capsys, command, file, "--version", "0123")
        assert said.startswith("error: no version '0123': of 5 commits no state has this hash ")


def test_rm_commit(the_config: DataConfig, file: str) -> None:
    [*_, refreshed, appended] = commit_log(the_config)
    result = run("rm", file, "--commit", appended.id, input="y\n")
    assert (
        f"drop commit {appended.id}, 7 rows, from rows {{}} in {the_config.storage}? What it "
        "replaced stays replaced; earlier versions can be read until gc removes them. [y/N]"
    ) in result.stdout
    dropping = commit_log(the_config)[-1].id
    assert f"dropped 7 rows of rows by commit {dropping}\n" in result.stdout
    assert run("log", file).stdout.splitlines()[-1].split()[-3:-1] == ["-", appended.id]
    assert stored(the_config) == list(range(500, 550))
    run("rm", the_config.storage, "rows", "--commit", refreshed.id, "-y")
    assert stored(the_config) == []
    assert Dataset(the_config, version=appended.id).num_rows == 57


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_rm_commit_asks(the_config: DataConfig, file: str, answer: str) -> None:
    before = commit_log(the_config)
    result = run("rm", file, "--commit", before[-1].id, input=answer)
    assert result.exit_code == 1
    assert commit_log(the_config) == before


def test_rm_of_a_commit_that_is_not_there(
    the_config: DataConfig,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = commit_log(the_config)[0].id
    said = failing(monkeypatch, capsys, "rm", file, "--commit", first, "-y")
    assert said == (
        f"error: commit {first!r} is replaced already: it is not in the newest version\n"
    )
    said = failing(monkeypatch, capsys, "rm", file, "--commit", "x", "-y")
    assert said == "error: commit 'x' is gone or never was: it is not in the newest version\n"
    assert len(commit_log(the_config)) == 5


def test_rm_by_config(the_config: DataConfig, file: str) -> None:
    result = run("rm", file, "--yes")
    assert result.stdout == f"removed 57 rows of rows from {the_config.storage}\n"
    assert list(open_store(the_config).list()) == []


def test_gc(the_config: DataConfig, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, prefix = open_store(the_config), the_config.dataset_prefix
    assert run("gc", file).stdout == "removed nothing\n"
    stray = f"{prefix}/objects/w/0123abcd-000000.h5"
    store.put(stray, bytes(2048))
    store.put(f"{prefix}/notes.txt", b"mine")
    ages = {info.key: timedelta(days=2) for info in store.list()}
    age(monkeypatch, ages)
    said = run("gc", file, "--dry-run")
    assert said.stdout.splitlines() == [
        "KIND       SIZE  KEY",
        f"object  2.0 KiB  {stray}",
        "would remove 1 object; 2.0 KiB",
    ]
    assert said.stderr == f"left alone, not of this format: {prefix}/notes.txt\n"
    assert run("gc", file, "--grace", "49h").stdout == "removed nothing\n"
    assert run("gc", file, "--keep", "47h").stdout.startswith("removed 3 commits, 4 objects; ")
    assert stored(the_config) == [*range(500, 550), *range(600, 607)]
    assert bytes(store.get(f"{prefix}/notes.txt")) == b"mine"
    assert len(commit_log(the_config)) == 2


def test_verify(the_config: DataConfig, file: str) -> None:
    result = run("verify", file)
    snapshot = Dataset(the_config).open()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        f"57 rows in 2 objects, {snapshot.nbytes / 1024:.1f} KiB, version {snapshot.version}: "
        "no problems\n"
    )
    assert run("verify", the_config.storage, "rows").stdout == result.stdout


def test_verify_says_what_is_wrong(the_config: DataConfig, file: str) -> None:
    store, snapshot = open_store(the_config), Dataset(the_config).open()
    commits = commit_log(the_config)
    for index, name in ((0, "image"), (1, "row")):
        body = bytearray(store.get(snapshot.key(index)))
        body[snapshot.objects[index].layout.columns[name].offset] ^= 1
        store.put(snapshot.key(index), bytes(body))
    result = run("verify", file)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"dataset 'rows', commit {commits[3].id}, object {snapshot.objects.key(0)}, attribute "
        "'image', rows 0 to 49: differ from their checksum",
        f"dataset 'rows', commit {commits[4].id}, object {snapshot.objects.key(1)}, attribute "
        "'row', rows 50 to 56: differ from their checksum",
        f"57 rows in 2 objects, {snapshot.nbytes / 1024:.1f} KiB, version {snapshot.version}: "
        "2 problems",
    ]


def test_verify_repair_removes_garbage_and_nothing_else(
    the_config: DataConfig, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged object is the only copy of its rows: it stays."""
    store, snapshot = open_store(the_config), Dataset(the_config).open()
    body = bytearray(store.get(snapshot.key(0)))
    body[snapshot.objects[0].layout.columns["image"].offset] ^= 1
    store.put(snapshot.key(0), bytes(body))
    prefix = the_config.dataset_prefix
    strays = {f"{prefix}/objects/w/0123abcd-00000{n}.h5" for n in (0, 1)}
    for key in strays:
        store.put(key, b"x")
    store.put(f"{prefix}/objects/w/fresh.txt", b"x")
    before = {info.key for info in store.list()}
    age(monkeypatch, dict.fromkeys(strays, timedelta(days=2)))
    assert run("verify", file).exit_code == 1
    assert {info.key for info in store.list()} == before
    result = run("verify", file, "--repair")
    assert result.exit_code == 1  # what is damaged is so still
    assert result.stdout.splitlines()[-1] == "removed 2 objects; 2 B"
    assert {info.key for info in store.list()} == before - strays


def test_verify_of_a_damaged_commit(
    the_config: DataConfig,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog = Catalog(the_config)
    key = catalog.commit_key(catalog.commit_ids()[-1])
    catalog.store.put(key, b"{")
    result = run("verify", file)
    assert result.exit_code == 1
    assert f"{key}: not JSON" in result.stdout.splitlines()[0]
    before = {info.key for info in catalog.store.list()}
    for command in ("gc", "log"):  # what it names is not known: nothing is deleted
        said = failing(monkeypatch, capsys, command, file)
        assert f"{key}: not JSON" in said
    assert {info.key for info in catalog.store.list()} == before
    # By name, too: looking for the dataset reads no commit.
    assert run("verify", the_config.storage, "rows").stdout == result.stdout


def test_where_a_dataset_is_is_said_once(
    the_config: DataConfig,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    storage = the_config.storage
    for more in (["--where", "a=b"], ["--region", "x"], ["--insecure"]):
        said = failing(monkeypatch, capsys, "log", file, *more)
        assert said == (
            "error: options that say where a dataset is go with NAME, or STORAGE and NAME, not "
            "with a config's file\n"
        )
    folder = storage.removeprefix("file://")
    said = failing(monkeypatch, capsys, "rm", folder)  # the name was forgotten
    assert said == (
        f"error: {folder}: Is a directory; give a config's file, NAME, or STORAGE and NAME\n"
    )
    assert len(stored(the_config)) == 57
    for command in ("log", "gc", "verify", "rm"):
        said = failing(monkeypatch, capsys, command, storage, "absent")
        assert said == f"error: no dataset 'absent' in {storage}; the storage holds: 'rows'\n"


def test_times_are_the_storages(the_config: DataConfig, file: str) -> None:
    for entry in json.loads(run("log", file, "--json").stdout):
        age_of_it = datetime.now(timezone.utc) - datetime.fromisoformat(entry["time"])
        assert timedelta(minutes=-1) < age_of_it < timedelta(minutes=5)
