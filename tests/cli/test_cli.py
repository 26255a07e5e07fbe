"""The command `storage-loader`: what it prints, what it reads, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storage_loader
from storage_loader import Attribute, DataConfig, UnreadableDataset, list_datasets, save
from storage_loader.cli import cli
from storage_loader.errors import DatasetNotFoundError, FormatError, StoreConnectionError
from tests.support.command import failing, run
from tests.support.faulty import watch
from tests.support.rows import config, make, stored


@pytest.fixture
def filled(folder: dict[str, str]) -> str:
    """A folder with two splits of 'rows' and a dataset 'other'."""
    for split, rows in (("train", 1200), ("test", 3)):
        save(config(folder, additional={"split": split, "version": 1}), make(range(rows)))
    save(config(folder, "other"), make(range(2)))
    return folder["storage"]


def test_ls(filled: str) -> None:
    result = run("ls", filled)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[:4] for line in lines] == [
        ["NAME", "ADDITIONAL", "ROWS", "OBJECTS"],
        ["other", "-", "2", "1"],
        ["rows", "split=test", "version=1", "3"],
        ["rows", "split=train", "version=1", "1,200"],
    ]
    infos = list_datasets(filled)
    assert lines[3][-2:] == [f"{infos[2].nbytes / 1024:.1f}", "KiB"]
    widths = {len(line) for line in result.stdout.splitlines()}
    assert len(widths) == 1  # the last column is aligned to the right


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (["split=train"], ["split=train"]),
        (["version=1"], ["split=test", "split=train"]),
        (["version=1", "split=test"], ["split=test"]),
        (["version=2"], []),
        (["nothing=1"], []),
    ],
)
def test_ls_where(filled: str, where: list[str], found: list[str]) -> None:
    options = [word for condition in where for word in ("--where", condition)]
    result = run("ls", filled, *options)
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == found
    assert result.stderr == ("" if found else f"no dataset in file://{filled}\n")
    assert result.exit_code == 0


def test_where_compares_what_was_typed(folder: dict[str, str]) -> None:
    values: dict[str, Any] = {"flag": True, "none": None, "share": 0.5, "n": 7, "text": "a=b c"}
    save(config(folder, additional=values), make([1]))
    for condition in ("flag=true", "none=null", "share=0.5", "n=7", "text=a=b c", 'text="a=b c"'):
        assert "rows" in run("ls", folder["storage"], "-w", condition).stdout, condition
    for condition in ("flag=True", "flag=1", "none=", "n=7.0", "text=a"):
        assert run("ls", folder["storage"], "-w", condition).stdout == "", condition


def test_ls_without_storage_lists_the_default_one(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("ls").stderr.startswith("no dataset in file:///")
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", filled)
    assert run("ls").stdout == run("ls", filled).stdout != ""
    assert run("ls", f"file://{filled}").stdout == run("ls", filled).stdout


@pytest.mark.parametrize("words", [["ls"], ["info", "rows"], ["log", "rows"], ["gc", "rows"]])
def test_a_mistyped_folder(
    filled: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    [command, *name], typo = words, f"{filled}-typo"
    said = failing(monkeypatch, capsys, command, typo, *name)
    assert said == (
        f"error: list file://{typo}: there is no folder {typo}; check the path (a saver makes it)\n"
    )


def test_info(filled: str) -> None:
    [info] = list_datasets(filled, where={"split": "train"})
    assert run("info", filled, "rows", "--where", "split=train").stdout == (
        f"rows in file://{filled}\n"
        "  split = train\n"
        "  version = 1\n"
        f"1,200 rows in 1 object, {info.nbytes / 1024:.1f} KiB, version {info.version} of "
        "1 commit\n"
        "ATTRIBUTE  DTYPE    ROW SHAPE  ROW SIZE\n"
        "image      uint8    (3, 5)         15 B\n"
        "row        int64    ()              8 B\n"
        "weight     float32  (2,)            8 B\n"
    )


def test_head(folder: dict[str, str]) -> None:
    attributes = [
        Attribute("id", "int64"),
        Attribute("pair", "float32", (2,)),
        Attribute("image", "uint8", (30, 30)),
        Attribute("volume", "bool", (9,)),
        Attribute("wave", "complex64", (3, 3)),
        Attribute("thin", "bfloat16"),
        Attribute("none", "int8", (0,)),
    ]
    batch = {
        "id": np.arange(7) * 11,
        "pair": np.linspace(0, 1, 14).reshape(7, 2),
        "image": np.zeros((7, 30, 30), np.uint8),
        "volume": np.arange(7 * 9).reshape(7, 9) == 9,
        "wave": np.ones((7, 3, 3)) * (1 + 2j),
        "thin": np.ones(7, np.float32) / 4,
        "none": np.zeros((7, 0), np.int8),
    }
    batch["image"][1, 3, 3] = 7
    save(DataConfig("head", attributes, **folder), batch)
    lines = run("head", folder["storage"], "head").stdout.splitlines()
    assert lines[0].split() == ["ROW", "id", "pair", "image", "volume", "wave", "thin", "none"]
    assert len(lines) == 1 + 5
    assert lines[2].split()[:2] == ["1", "11"]
    assert "[0.1538 0.2308]" in lines[2]
    assert "30 x 30, 0 to 7, mean 0.007778" in lines[2]
    assert "0.25" in lines[2]
    assert "9, False to True, mean 0.1111" in lines[2] or "9, 0 to 1, mean 0.1111" in lines[2]
    assert "3 x 3, mean 1+2j" in lines[2]
    assert "[]" in lines[2]
    assert all(len(line) < 200 for line in lines)
    for rows, shown in (("1", 1), ("7", 7), ("8", 7), ("1000", 7)):
        result = run("head", folder["storage"], "head", "-n", rows)
        assert len(result.stdout.splitlines()) == 1 + shown
    result = run("head", folder["storage"], "head", "-n", "0")
    assert result.exit_code == 2
    assert "0 is not in the range 1<=x<=1000" in result.stderr


def test_head_of_no_rows(folder: dict[str, str]) -> None:
    storage_loader.catalog.Catalog(config(folder)).create(config(folder).schema)
    assert run("head", folder["storage"], "rows").stdout == "ROW  image  row  weight\n"
    assert "0 rows in 0 objects, 0 B" in run("info", folder["storage"], "rows").stdout


@pytest.mark.parametrize("flag", ["--yes", "-y", None])
def test_rm(filled: str, flag: str | None) -> None:
    words = ["rm", filled, "rows", "--where", "split=train"]
    result = run(*words, flag) if flag else run(*words, input="y\n")
    [info] = list_datasets(filled, where={"split": "test"})
    assert f"removed 1,200 rows of rows from file://{filled}\n" in result.stdout
    if not flag:
        assert "remove rows {'split': 'train', 'version': 1}, 1,200 rows (" in result.stdout
    assert [i.config.dataset_name for i in list_datasets(filled)] == ["other", "rows"]
    assert stored(info.config) == [0, 1, 2]


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_rm_asks(filled: str, answer: str) -> None:
    result = run("rm", filled, "other", input=answer)
    assert result.exit_code == 1
    assert "Aborted!" in result.stderr
    assert len(list_datasets(filled)) == 3


def test_which_one_is_said(
    filled: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = "\n  --where split=test --where version=1\n  --where split=train --where version=1\n"
    for command in (["info"], ["head"], ["rm", "--yes"]):
        said = failing(monkeypatch, capsys, *command, filled, "rows")
        assert said == f"error: 'rows' exists 2 times, say which one:{choices}"
        said = failing(monkeypatch, capsys, *command, filled, "rows", "-w", "split=val")
        assert said == f"error: 'rows' exists 2 times, none of them matches:{choices}"
    said = failing(monkeypatch, capsys, "info", filled, "other", "-w", "split=val")
    assert said.startswith("error: 'other' exists once, which does not match:")
    assert len(list_datasets(filled)) == 3


def test_errors_are_one_line(
    filled: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        return failing(monkeypatch, capsys, *words)

    for command in (["info"], ["head"], ["rm", "--yes"]):
        assert said(*command, filled, "absent") == (
            f"error: no dataset 'absent' in file://{filled}; the storage holds: 'other', 'rows'\n"
        )
        assert said(*command, filled, "a//b").startswith("error: dataset_name 'a//b': 1 to 128")
    assert said("ls", filled, "--where", "split") == "error: --where 'split': write KEY=VALUE\n"
    assert said("ls", filled, "--where", "=x") == "error: --where '=x': write KEY=VALUE\n"
    assert said("ls", "ftp://x").startswith("error: storage 'ftp://x': unknown scheme 'ftp'")
    assert said("ls", filled, "--endpoint", "http://x") == (
        f"error: endpoint is for s3:// storage, not for 'file://{filled}'\n"
    )
    module = [sys.executable, "-m", "storage_loader", "info", filled, "absent"]
    done = subprocess.run(module, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "rows in 1 object" in run("info", filled, "rows", "-w", "split=test").stdout


# A name alone


@pytest.fixture
def by_default(filled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The same folder as the default storage, and an empty one to be in."""
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", filled)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return filled


@pytest.mark.parametrize("command", ["info", "head", "log", "verify", "gc"])
def test_a_name_alone_means_the_default_storage(by_default: str, command: str) -> None:
    for name, *where in (["other"], ["rows", "--where", "split=test"]):
        given = run(command, by_default, name, *where)
        assert run(command, name, *where).output == given.output
        assert given.exit_code == 0
        assert given.stdout


def test_a_name_alone_to_bench_and_rm(by_default: str) -> None:
    words = ("rows", "-w", "split=train", "--epochs", "1", "--batch-size", "100")
    printed = run("bench", *words).stdout
    assert printed.startswith(f"rows in file://{by_default}: 1,200 rows\n")
    [epoch] = epochs(printed)
    assert epoch["ROWS"] == "1,200"
    assert run("bench", by_default, *words).stdout.startswith("rows in file://")
    assert f"from file://{by_default}?" in run("rm", "other", input="n\n").stdout
    assert run("rm", "other", "-y").stdout == f"removed 2 rows of other from file://{by_default}\n"
    assert [i.config.dataset_name for i in list_datasets()] == ["rows", "rows"]


def test_name_and_id_alone(
    by_default: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = list_datasets(where={"split": "train"})[0].config.dataset_prefix
    assert "\n1,200 rows in 1 object" in run("info", prefix).stdout
    Path(prefix).mkdir(parents=True)  # as in the storage's folder itself
    assert "\n1,200 rows in 1 object" in run("info", prefix).stdout
    said = failing(monkeypatch, capsys, "info", f"rows/{'0' * 16}")
    assert said.startswith("error: 'rows' exists 2 times, none of them matches:\n")
    said = failing(monkeypatch, capsys, "info", f"absent/{'0' * 16}")
    assert said.startswith(f"error: no dataset 'absent' in file://{by_default}; ")


def test_a_folder_of_the_name_is_not_looked_at(
    by_default: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("other", "mine"):
        save(config({"storage": name}, "mine"), make(range(7)))
    assert run("info", "other").stdout == run("info", by_default, "other").stdout
    said = failing(monkeypatch, capsys, "rm", "mine", "-y")
    assert said == (
        f"error: no dataset 'mine' in file://{by_default}; the storage holds: 'other', 'rows'\n"
        "'mine' was looked for in the default storage ($STORAGE_LOADER_STORAGE); for a dataset in "
        "the folder 'mine' give STORAGE and NAME: mine NAME\n"
    )
    assert "\n7 rows in 1 object" in run("info", "mine", "mine").stdout
    assert "\n7 rows in 1 object" in run("info", "other", "mine").stdout
    said = failing(monkeypatch, capsys, "info", "./mine")  # a path is no name
    assert said == (
        "error: ./mine: Is a directory; give a config's file, NAME, or STORAGE and NAME\n"
    )


def test_a_file_goes_before_a_name(
    by_default: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config({"storage": "elsewhere"}, "mine").save("other")
    save(DataConfig.load("other"), make(range(7)))
    assert "\n7 rows in 1 object" in run("info", "other").stdout
    assert "\n2 rows in 1 object" in run("info", by_default, "other").stdout
    said = failing(monkeypatch, capsys, "info", "other", "--where", "a=b")
    assert said == (
        "error: options that say where a dataset is go with NAME, or STORAGE and NAME, not with a "
        "config's file\n"
    )
    for text in ("no config", "{}", '{"dataset_name": "a", "storag": "x"}'):
        Path("other").write_text(text)
        said = failing(monkeypatch, capsys, "rm", "other", "-y")
        assert said.startswith("error: ")
        assert said.endswith(
            "\n'other' is taken for a config's file, since this file exists; if a dataset of this "
            "name is meant, give STORAGE and NAME\n"
        )
    Path("other").unlink()
    Path("other").symlink_to("nothing")
    assert failing(monkeypatch, capsys, "rm", "other", "-y").startswith("error: other: No such")
    assert len(list_datasets()) == 3


def test_a_name_that_the_default_storage_does_not_hold(
    by_default: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("info", "head", "log", "rm", "gc", "verify", "bench"):
        assert failing(monkeypatch, capsys, command, "absent.json") == (
            f"error: no dataset 'absent.json' in file://{by_default}; the storage holds: 'other', "
            "'rows'\n'absent.json' was looked for in the default storage "
            "($STORAGE_LOADER_STORAGE); there is no file 'absent.json' either; for another storage "
            "give STORAGE and NAME\n"
        )
    monkeypatch.delenv("STORAGE_LOADER_STORAGE")
    said = failing(monkeypatch, capsys, "info", "absent")
    place = DataConfig("absent").storage
    assert said.startswith(f"error: no dataset 'absent' in {place}; there is no folder ")
    assert "(STORAGE_LOADER_STORAGE is not set)" in said
    save(config({}, "absent"), make(range(5)))
    assert run("info", "absent").stdout.startswith(f"absent in {place}\n5 rows in 1 object")
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", f"{by_default}-typo")
    said = failing(monkeypatch, capsys, "info", "rows")
    assert said.startswith(f"error: list file://{by_default}-typo: there is no folder ")


def test_options_of_a_storage_go_with_a_name_alone(
    s3_storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(config(s3_storage), make(range(9)))
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", s3_storage["storage"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_storage["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_storage["secret_key"])
    reach = ("--endpoint", s3_storage["endpoint"], "--region", s3_storage["region"])
    assert "\n9 rows in 1 object" in run("info", "rows", *reach).stdout


# What cannot be read


def broken(the_config: DataConfig, what: str) -> Path:
    """A file of the dataset, which from now on is no JSON."""
    place = Path(the_config.storage.removeprefix("file://")) / the_config.dataset_prefix
    path = next(place.glob(what))
    path.write_text("{}")
    return path


def trees(storage: str) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path(storage).rglob("*")) if p.is_file()}


@pytest.mark.parametrize("what", ["dataset.json", "metadata/*.json"])
def test_ls_goes_on_after_what_cannot_be_read(filled: str, what: str) -> None:
    bad = config({"storage": filled}, additional={"split": "test", "version": 1})
    path = broken(bad, what)
    result = run("ls", filled)
    assert result.exit_code == 1
    known = what != "dataset.json"
    lines = [line.split() for line in result.stdout.splitlines()[1:]]
    assert sorted(lines) == sorted(
        [
            ["other", "-", "2", "1", *lines[0][4:]],
            ["rows", "split=train", "version=1", "1,200", "1", *lines[1][5:]],
            ["rows", *(["split=test", "version=1"] if known else [f"({path.parts[-2]})"])]
            + ["-", "-", "-", "cannot", "be", "read"],
        ]
    )
    assert result.stderr.startswith(f"error: file://{path}: format None;")
    assert result.stderr.count("\n") == 1
    # Conditions that it does not meet leave it out, where it is known whether it does.
    result = run("ls", filled, "--where", "split=train")
    assert "1,200" in result.stdout
    assert result.exit_code == (0 if known else 1)
    assert ("cannot be read" in result.stdout) is not known


@pytest.mark.parametrize("what", ["dataset.json", "metadata/*.json"])
def test_others_of_a_name_are_found_beside_one_that_cannot_be_read(
    filled: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
) -> None:
    bad = config({"storage": filled}, additional={"split": "test", "version": 1})
    good = config({"storage": filled}, additional={"split": "train", "version": 1})
    path = broken(bad, what)
    which = [filled, "rows", "--where", "split=train"]
    assert run("info", *which).stdout.splitlines()[3].startswith("1,200 rows in 1 object")
    assert run("info", filled, good.dataset_prefix).stdout == run("info", *which).stdout
    assert run("log", *which).exit_code == run("verify", *which).exit_code == 0
    # Without a condition it is not guessed which one is meant.
    before = trees(filled)
    said = failing(monkeypatch, capsys, "rm", filled, "rows", "-y")
    assert said.startswith("error: 'rows' exists 2 times, say which one:\n")
    assert "\n  --where split=train --where version=1\n" in said
    if what == "dataset.json":
        assert f"\n  {bad.dataset_prefix}, which cannot be read: file://{path}: format None" in said
        assert failing(monkeypatch, capsys, "info", filled, bad.dataset_prefix).startswith(
            f"error: file://{path}: format None;"
        )
    with pytest.raises(DatasetNotFoundError, match="'rows' exists with additional: "):
        storage_loader.Dataset(config({"storage": filled}, additional={"no": "such"})).open()
    assert trees(filled) == before
    assert "removed 1,200 rows of rows" in run("rm", *which, "-y").stdout
    assert trees(filled) == {p: b for p, b in before.items() if good.dataset_prefix not in p}


@pytest.mark.parametrize("what", ["dataset.json", "metadata/*.json"])
def test_what_cannot_be_read_is_removed(filled: str, what: str) -> None:
    bad = config({"storage": filled}, additional={"split": "test", "version": 1})
    broken(bad, what)
    before = trees(filled)
    for name, where in (
        (bad.dataset_prefix, []),
        *([] if what == "dataset.json" else [("rows", ["-w", "split=test"])]),
    ):
        result = run("rm", filled, name, *where, input="n\n")
        assert result.exit_code == 1
        assert "which cannot be read (file://" in result.output
        assert trees(filled) == before
    assert run("rm", filled, bad.dataset_prefix, "-y").stdout.startswith("removed rows")
    assert trees(filled) == {p: b for p, b in before.items() if bad.dataset_prefix not in p}
    only = config({"storage": filled}, "other")
    broken(only, what)
    assert run("rm", filled, "other", "-y").stdout.startswith("removed other")
    assert [i.config.dataset_name for i in list_datasets(filled)] == ["rows"]


def test_a_listing_warns_of_what_it_leaves_out(filled: str) -> None:
    for the_config, what in (
        (config({"storage": filled}, "other"), "dataset.json"),
        (config({"storage": filled}, additional={"split": "test", "version": 1}), "metadata/*"),
    ):
        path = broken(the_config, what)
        with pytest.warns(RuntimeWarning, match="cannot be read: ") as warned:
            infos = list_datasets(filled)
        assert the_config.dataset_prefix not in [i.config.dataset_prefix for i in infos]
        assert f"{the_config.dataset_prefix} is left out" in str(warned[-1].message)
        assert str(path) in "".join(str(w.message) for w in warned)
        assert all(w.filename == __file__ for w in warned)
    found: list[UnreadableDataset] = []
    [info] = list_datasets(filled, unreadable=found.append)
    assert info.config.additional["split"] == "train"
    assert [(one.name, one.config is None) for one in found] == [("other", True), ("rows", False)]
    assert all(isinstance(one.error, FormatError) for one in found)
    found[0].delete()
    assert [one.name for one in found] == ["other", "rows"]
    assert not list(Path(filled).glob("other/*/dataset.json"))


def test_a_storage_that_fails_is_an_error_and_no_dataset_of_it(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dataset would take its time to fail."""
    stores = watch(monkeypatch)

    def fails(self: Any, key: str, **how: Any) -> Any:
        raise StoreConnectionError(f"get {key}: no connection")

    run("ls", filled)
    monkeypatch.setattr(type(stores[0]), "get", fails)
    with pytest.raises(StoreConnectionError):
        run("ls", filled)


def test_wrong_words_are_explained() -> None:
    for words, message in [
        (["lss"], "No such command 'lss'"),
        (["ls", "x", "--were", "a=b"], "No such option"),
        (["info"], "Missing argument 'CONFIG|NAME|STORAGE'"),
        (["gc", "x", "--keep", "7"], "'7': write 90s, 30m, 24h or 7d"),
        (["gc", "x", "--grace", "-1h"], "'-1h': write 90s, 30m, 24h or 7d"),
        (["head", "x", "y", "-n", "many"], "'many' is not a valid integer range"),
    ]:
        result = run(*words)
        assert result.exit_code == 2
        assert message.lower().replace("'", "") in result.stderr.lower().replace("'", ""), words


def test_help_tells_a_new_user_what_there_is() -> None:
    text = run("--help").stdout
    words = (
        "ls",
        "info",
        "head",
        "log",
        "rm",
        "gc",
        "verify",
        "bench",
        "cache",
        "CONFIG",
        "s3://bucket/prefix",
    )
    for word in (*words, "AWS_ACCESS_KEY_ID"):
        assert word in text
    assert "storage-loader info ./data digits --where split=train" in text
    assert run("-h").stdout == text
    for command in ("ls", "info", "head", "log", "rm", "gc", "verify", "bench"):
        text = run(command, "--help").stdout
        assert "STORAGE" in text
        assert "--where" in text
        assert "--endpoint" in text
    assert "clear" in run("cache", "--help").stdout
    for command in ("ls", "clear"):
        assert "--cache-dir" in run("cache", command, "-h").stdout
    assert run("--version").stdout.strip().endswith(storage_loader.__version__)


def test_no_option_takes_a_secret() -> None:
    """A command line is seen by every user of the machine, and kept in histories."""
    for command in cli.commands.values():
        names = [name for parameter in command.params for name in parameter.opts]
        assert not [name for name in names if "key" in name or "secret" in name]


def test_ls_and_info_read_no_data_object(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = watch(monkeypatch)
    run("ls", filled)
    run("ls", filled, "--where", "split=train")
    run("info", filled, "rows", "--where", "split=train")
    kinds = {kind for store in stores for kind in store.kinds()}
    assert kinds == {"list_folders", "get dataset", "list metadata", "get commit"}


def test_info_looks_only_at_datasets_of_the_name(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = watch(monkeypatch)
    run("info", filled, "other")
    keys = [call.key for store in stores for call in store.calls if call.key]
    assert keys
    assert all(key.split("/")[0] == "other" for key in keys)


def test_on_s3(s3_storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    save(config(s3_storage, additional={"split": "train"}), make(range(5)))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_storage["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_storage["secret_key"])
    there = ["--endpoint", s3_storage["endpoint"], "--region", s3_storage["region"]]
    url = s3_storage["storage"]
    assert "split=train" in run("ls", url, *there).stdout
    assert "5 rows in 1 object" in run("info", url, "rows", *there).stdout
    assert len(run("head", url, "rows", *there).stdout.splitlines()) == 6
    assert "removed 5 rows" in run("rm", url, "rows", "--yes", *there).stdout
    with pytest.raises(DatasetNotFoundError):
        run("info", url, "rows", *there)


def test_the_installed_command_runs(filled: str) -> None:
    command = Path(sys.executable).with_name("storage-loader")

    def installed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *words], capture_output=True, text=True, timeout=500, check=False
        )

    done = installed("ls", filled)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("ls", filled).stdout
    done = installed("info", filled, "absent")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no dataset 'absent'")
    assert "Traceback" not in done.stderr


def test_python_says_the_same(filled: str) -> None:
    infos = list_datasets(filled)
    assert [i.config.dataset_name for i in infos] == ["other", "rows", "rows"]
    storage_loader.delete(infos[0].config)
    assert "other" not in run("ls", filled).stdout


# bench


@pytest.fixture
def saved_config(folder: dict[str, str], tmp_path: Path) -> str:
    """A file of the config of 1,000 rows."""
    the_config = config(folder)
    save(the_config, make(range(1000)))
    the_config.save(tmp_path / "rows.json")
    return str(tmp_path / "rows.json")


def epochs(printed: str) -> list[dict[str, str]]:
    """The lines of the table, by its head."""
    title, head, *lines, source = printed.splitlines()
    assert source.startswith("epoch 0 came from file://")
    assert title.startswith("rows in file://")
    return [
        dict(zip(head.split(), line.replace(" B", "B").split(), strict=False)) for line in lines
    ]


@pytest.mark.parametrize("shuffle", ["false", "true", "global"])
def test_bench(saved_config: str, shuffle: str) -> None:
    result = run("bench", saved_config, "--batch-size", "100", "--shuffle", shuffle)
    assert (result.exit_code, result.stderr) == (0, "")  # a bar is for a terminal
    assert result.stdout.splitlines()[0].endswith(": 1,000 rows")
    assert [(e["EPOCH"], e["ROWS"]) for e in epochs(result.stdout)] == [
        ("0", "1,000"),
        ("1", "1,000"),
    ]
    assert len({len(line) for line in result.stdout.splitlines()[1:-1]}) == 1
    result = run("bench", saved_config, "--epochs", "3", "--index", "--cache-size", "0")
    assert len(epochs(result.stdout)) == 3


def test_bench_ends_an_epoch_after_so_many_seconds(saved_config: str) -> None:
    result = run("bench", saved_config, "--batch-size", "7", "--seconds", "1e-9")
    assert [e["ROWS"] for e in epochs(result.stdout)] == ["7", "7"]


def test_bench_plots(saved_config: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png = tmp_path / "bench.png"
    assert run("bench", saved_config, "--plot", str(png)).exit_code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_bench_refuses_a_plot_that_cannot_be_made_before_it_measures(
    saved_config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    absent = tmp_path / "absent"
    said = failing(monkeypatch, capsys, "bench", saved_config, "--plot", str(absent / "x.png"))
    assert said == f"error: --plot {absent}/x.png: no file can be made in {absent}\n"
    said = failing(monkeypatch, capsys, "bench", saved_config, "--plot", str(tmp_path / "x.svg"))
    assert said == f"error: --plot {tmp_path}/x.svg: it will be a PNG image; name it .png\n"


def test_bench_says_what_is_missing(
    saved_config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    absent = str(tmp_path / "absent.json")
    said = failing(monkeypatch, capsys, "bench", absent)
    assert said == (
        f"error: {absent}: No such file or directory; give a config's file, NAME, or STORAGE and "
        "NAME\n"
    )
    (tmp_path / "other.json").write_text("[]")
    assert failing(monkeypatch, capsys, "bench", str(tmp_path / "other.json")).startswith("error: ")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = failing(monkeypatch, capsys, "bench", saved_config, "--plot", "x.png")
    assert said == "error: --plot needs matplotlib: pip install 'storage-loader[plot]'\n"
    storage_loader.delete(DataConfig.load(saved_config))
    assert failing(monkeypatch, capsys, "bench", saved_config).startswith(
        "error: no dataset 'rows'"
    )


def test_bench_interrupted_prints_what_was_measured(
    saved_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Interrupted(storage_loader.DataLoader):
        @property
        def stats(self) -> storage_loader.Stats:
            asked.append(1)
            if len(asked) == 4:
                raise KeyboardInterrupt
            return super().stats

    monkeypatch.setattr("storage_loader.cli.bench.DataLoader", Interrupted)
    monkeypatch.setattr("storage_loader.bench._SAMPLE_SECONDS", 0)
    result = run("bench", saved_config, "--batch-size", "10")
    assert result.exit_code == 1
    assert "Aborted!" in result.stderr
    [epoch] = epochs(result.stdout)
    assert epoch["ROWS"] == "40"


def test_bench_on_s3(
    s3_storage: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    the_config = config(s3_storage)
    save(the_config, make(range(100)))
    the_config.save(tmp_path / "rows.json")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_storage["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_storage["secret_key"])
    cache = str(tmp_path / "cache")
    result = run("bench", str(tmp_path / "rows.json"), "--cache-dir", cache, "--epochs", "2")
    *table, source = result.stdout.splitlines()
    lines = [line.split() for line in table[2:]]
    assert [int(line[-2]) > 0 for line in lines] == [True, False]  # requests, cold and warm
    assert f"the storage itself: storage-loader check '{s3_storage['storage']}'" in result.stderr
    assert source.startswith(f"epoch 0 came from {s3_storage['storage']}, ")
    assert source.endswith(" fetched")
    words = ["bench", str(tmp_path / "rows.json"), "--cache-dir", cache]
    assert run(*words).stdout.splitlines()[-1] == (
        "epoch 0 came from the cache on this machine; --cold begins without it"
    )
    [first, second] = json.loads(run(*words, "--cold", "--json").stdout)["epochs"]
    assert first["bytes_fetched"] > 0 == second["bytes_fetched"]
    assert [p.name for p in Path(cache).iterdir()] == [f"user-{os.getuid()}"]
    assert s3_storage["secret_key"] not in result.stdout


def test_bench_cold_of_a_folder(saved_config: str, folder: dict[str, str]) -> None:
    source = run("bench", saved_config, "--cold").stdout.splitlines()[-1]
    assert source == (
        f"epoch 0 came from file://{folder['storage']}, as far as the system let go its pages"
    )


# Storages below a bucket or folder


@pytest.mark.parametrize("kind", ["folder", pytest.param("s3", marks=pytest.mark.s3)])
def test_ls_of_what_lies_above_storages(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = dict(request.getfixturevalue("s3_storage" if kind == "s3" else "folder"))
    for name, variable in (
        ("access_key", "AWS_ACCESS_KEY_ID"), ("secret_key", "AWS_SECRET_ACCESS_KEY"),
    ):  # fmt: skip
        if name in place:
            monkeypatch.setenv(variable, place.pop(name))
    options = [word for name in ("endpoint", "region") if name in place
               for word in (f"--{name}", place[name])]  # fmt: skip
    above = place.pop("storage")
    for below in ("team/a", "team/b", "deep/er/still"):
        save(config({"storage": f"{above}/{below}", **place}), make(range(2)))
    url = above if kind == "s3" else f"file://{above}"
    result = run("ls", above, *options)
    assert (result.exit_code, result.stdout) == (0, "")
    first, *found = result.stderr.splitlines()
    assert first == f"no dataset in {url}"
    assert sorted(found) == [
        f"  there are some in {url}/{below}" for below in ("deep/er/still", "team/a", "team/b")
    ]
    assert "rows" in run("ls", f"{above}/team/a", *options).stdout
    found_json = json.loads(run("ls", above, "--json", *options).stdout)
    assert sorted(found_json.pop("storages_below")) == [
        f"{url}/{below}" for below in ("deep/er/still", "team/a", "team/b")
    ]
    assert found_json == {"datasets": [], "unreadable": []}
    empty = run("ls", f"{above}/team/a", "--where", "x=1", *options)
    assert empty.stderr == f"no dataset in {url}/team/a\n"  # it has some, which do not agree


def test_a_storage_taken_for_a_dataset(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    above = folder["storage"]
    for name in ("low", "high"):
        save(config({"storage": f"{above}/{name}"}), make(range(2)))
    said = failing(monkeypatch, capsys, "info", above, "low")
    assert said == (
        f"error: no dataset 'low' in file://{above}; there are some in file://{above}/low\n"
    )
    said = failing(monkeypatch, capsys, "info", above, "rows")
    assert said == (
        f"error: no dataset 'rows' in file://{above}; there are some in file://{above}/high and "
        f"file://{above}/low\n"
    )
    Path(above, "empty").mkdir()
    said = failing(monkeypatch, capsys, "info", above, "empty")
    assert "was committed yet" not in said


def test_a_cache_folder_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "cahce"
    for command in ("ls", "clear"):
        said = failing(monkeypatch, capsys, "cache", command, "--cache-dir", str(place))
        assert said == f"error: --cache-dir {place}: there is no such folder\n"
    place.mkdir()
    assert run("cache", "clear", "--cache-dir", str(place)).stdout == "removed nothing\n"


# JSON


def test_every_command_gives_json(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*words: str) -> Any:
        result = run(*words, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        return json.loads(result.stdout)

    train = [filled, "rows", "--where", "split=train"]
    listed = asked("ls", filled)
    assert [one["rows"] for one in listed["datasets"]] == [2, 3, 1200]
    assert (listed["unreadable"], listed["storages_below"]) == ([], [])
    info = asked("info", *train)
    assert info == listed["datasets"][2]
    assert (info["name"], info["additional"]) == ("rows", {"split": "train", "version": 1})
    assert info["attributes"][0] == {
        "name": "image", "dtype": "uint8", "shape": [3, 5], "row_nbytes": 15, "compressors": []
    }  # fmt: skip
    rows = asked("head", *train, "-n", "2")
    expected = make(range(2))
    assert [row["image"] for row in rows] == expected["image"].tolist()
    assert [row["row"] for row in rows] == [0, 1]
    for count in (0, 1, 3):
        save(config({"storage": filled}, "few"), make(range(count)), refresh=True)
        text = run("head", filled, "few", "--json").stdout
        assert [row["row"] for row in json.loads(text)] == list(range(count))
        assert len(text.splitlines()) == (count + 2 if count else 1)  # a row is one line
    [logged] = asked("log", *train)
    assert info["commits"] == [logged["id"]]
    verified = asked("verify", *train)
    assert (verified["rows"], verified["problems"]) == (1200, [])
    assert asked("gc", *train) == {"dry_run": False, "garbage": [], "foreign": []}
    measured = asked("bench", *train, "--epochs", "1")
    assert [epoch["rows"] for epoch in measured["epochs"]] == [1200]
    assert measured["source"].startswith("epoch 0 came from file://")
    cache = str(tmp_path)
    assert asked("cache", "ls", "--cache-dir", cache) == {"cache_dir": cache, "datasets": []}
    assert asked("cache", "clear", "--cache-dir", cache) == {
        "dry_run": False, "removed": [], "in_use": []
    }  # fmt: skip
    assert asked("rm", *train, "--yes", "--commit", logged["id"])["dropped"] == logged["id"]
    assert asked("rm", *train, "--yes") == {"removed": info["prefix"], "storage": info["storage"]}
    commands = {name for name, one in cli.commands.items() if name != "cache"}
    commands |= {f"cache {name}" for name in cli.commands["cache"].commands}  # type: ignore[attr-defined]
    for name in commands:
        assert "--json" in run(*name.split(), "--help").stdout, name


def test_json_of_what_json_has_no_numbers_for(folder: dict[str, str]) -> None:
    attributes = [
        Attribute("x", "float32", (2,)),
        Attribute("z", "complex64"),
        Attribute("b", "bfloat16"),
    ]
    values = {"x": [[np.nan, 1], [np.inf, 2]], "z": [1 + 2j, 3j], "b": [0.5, 2]}
    save(DataConfig("odd", attributes, **folder), {n: np.asarray(v) for n, v in values.items()})
    assert json.loads(run("head", folder["storage"], "odd", "--json").stdout) == [
        {"x": [None, 1.0], "z": [1.0, 2.0], "b": 0.5},
        {"x": [None, 2.0], "z": [0.0, 3.0], "b": 2.0},
    ]


def test_json_of_what_cannot_be_read_and_what_is_damaged(filled: str) -> None:
    found = sorted(Path(filled).glob("rows/*/dataset.json"))
    found[0].write_bytes(b"{}")
    result = run("ls", filled, "--json")
    listed = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [one["prefix"] for one in listed["unreadable"]] == [f"rows/{found[0].parent.name}"]
    assert "error: " in result.stderr
    [damaged] = Path(filled).glob("other/*/objects/*/*.h5")
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    result = run("verify", filled, "other", "--json")
    assert result.exit_code == 1
    [problem] = json.loads(result.stdout)["problems"]
    assert problem["key"] == str(damaged.relative_to(damaged.parents[2]))
