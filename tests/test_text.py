"""Text from elsewhere reaches no terminal and no log as it is: it could forge lines and hide."""

from __future__ import annotations

import ast
import inspect
import logging
import pickle
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import storage_loader
from storage_loader import DataConfig, DataLoader, errors, list_datasets, save
from storage_loader.cli import cli
from storage_loader.errors import (
    FormatError,
    SchemaError,
    StorageLoaderError,
    StoreError,
    TransformError,
)
from storage_loader.loader.fetch.cache import Cache
from storage_loader.store.memory import MemoryStore
from storage_loader.store.s3_place import Failure, S3Place, raise_mapped
from storage_loader.text import printable
from tests.support.rows import config, make

ROOT = Path(storage_loader.__file__).parent

# Escapes that colour, that set the title, an 8-bit one; forged lines; direction; what is not seen.
HOSTILE = {
    "\x1b[31mred": r"\x1b[31mred",
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",
    "a\nerror: b\r\tc": r"a\nerror: b\r\tc",
    "\x0b\x0c\x1c\x85": r"\x0b\x0c\x1c\x85",
    "\u2028\u2029": r"\u2028\u2029",
    "\u202agpj\u202e.exe\u2066x\u2069\u200e\u200f\u061c": (
        r"\u202agpj\u202e.exe\u2066x\u2069\u200e\u200f\u061c"
    ),
    "zero\u200bwidth\ufeff\u00ad": r"zero\u200bwidth\ufeff\xad",
    "\ud800 \udc1b": r"\ud800 \udc1b",
    "\ue000\U000e0041\U0010ffff": r"\ue000\U000e0041\U0010ffff",
    "\x00\x7f": r"\x00\x7f",
}
ALL = "".join(HOSTILE)


def is_safe(text: str) -> bool:
    """Whether a terminal shows every character of it, and it is one line."""
    return text.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_seen_is_an_escape(text: str) -> None:
    assert printable(text) == HOSTILE[text]


@pytest.mark.parametrize(
    "text", ["", "plain text: 'x'", "Grüße, 日本語, العربية, עברית, हिन्दी, 🙂", r"a\b C:\new", "é"]
)
def test_letters_of_all_languages_and_backslashes_stay(text: str) -> None:
    assert printable(text) == text


@given(st.text(st.characters()))
def test_twice_is_once(text: str) -> None:
    once = printable(text)
    assert is_safe(once)
    assert printable(once) == once
    once.encode()


# Errors


def kinds() -> Iterator[type[StorageLoaderError]]:
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, StorageLoaderError):
            yield kind


@pytest.mark.parametrize("kind", [*kinds()])
def test_an_error_says_nothing_raw(kind: type[StorageLoaderError]) -> None:
    error = kind(f"place: {ALL}")
    expected = f"place: {''.join(HOSTILE.values())}"
    assert str(error) == f"{error}" == expected
    assert str(kind(str(error))) == expected  # told on by another
    assert "".join(traceback.format_exception_only(error)).endswith(f": {expected}\n")
    assert is_safe(repr(error))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.args, str(again)) == (error.args, expected)
    assert str(kind()) == ""


def test_lines_are_those_that_an_error_was_given() -> None:
    lines = SchemaError("differs:", "  a\nforged", "remedy")
    assert str(lines) == "differs:\n  a\\nforged\nremedy"
    assert str(pickle.loads(pickle.dumps(lines))) == str(lines)


def test_what_a_server_says_is_one_line() -> None:
    place = S3Place("bucket", "", "http://127.0.0.1:9000", "us-east-1")
    for failure in (
        Failure("get", "a", code=ALL, status=500),
        Failure("get", "a", detail=ALL),
        Failure("put", "a", code=ALL, status=403),
    ):
        with pytest.raises(StoreError) as caught:
            raise_mapped(place, failure, ValueError(ALL))
        assert is_safe(str(caught.value))
        assert is_safe(str(caught.value.__cause__))


def fails(batch: Any) -> Any:
    raise ValueError(ALL)


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_a_transform_says(folder: dict[str, str], num_workers: int) -> None:
    the_config = config(folder)
    save(the_config, make(range(3)))
    loader = DataLoader(the_config, batch_size=3, transform=fails, num_workers=num_workers)
    with pytest.raises(TransformError, match="transform failed on rows 0, 1, 2") as caught:
        next(iter(loader))
    lines = str(caught.value).split("\n")
    assert all(map(is_safe, lines))
    if num_workers:  # whose frames are nowhere else
        assert any(line.startswith("Traceback") for line in lines)
        assert any("in fails" in line for line in lines)
    else:
        assert len(lines) == 1


# Logs


def test_a_log_says_nothing_raw(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG, "storage_loader")
    log = logging.getLogger("storage_loader.test")
    log.warning("an error: %s", FormatError(ALL))
    Cache(tmp_path / "a\nforged \x1b[31m", MemoryStore("memory://log"), 0).warn_full()
    assert len(caplog.messages) == 2
    assert all(map(is_safe, caplog.messages))


# The command


def run(*words: str, input: str | None = None) -> tuple[str, str, int]:
    """What the command prints, and how it ends, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "storage_loader", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        input=input,
    )
    return done.stdout, done.stderr, done.returncode


ADDITIONAL = {"k\x1b[31m\n": "v\u202e\x9b\r", "plain": "日本語"}


@pytest.fixture
def hostile(tmp_path: Path) -> DataConfig:
    """A dataset with a name, in a folder, among files that somebody else chose."""
    the_config = config({"storage": str(tmp_path / "s\x1b]0;x\x07\nforged")}, additional=ADDITIONAL)
    save(the_config, make(range(3)))
    place = Path(the_config.storage.removeprefix("file://")) / the_config.dataset_prefix
    (place / "objects" / "foreign").mkdir()
    return the_config


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls", []),
        ("info", ["rows"]),
        ("info", ["rows", "--where", "plain=no"]),
        ("info", ["absent"]),
        ("head", ["rows"]),
        ("log", ["rows"]),
        ("log", ["rows", "--json"]),
        ("gc", ["rows", "--dry-run", "--grace", "0s"]),
        ("gc", ["rows"]),
        ("verify", ["rows"]),
        ("rm", ["rows", "--commit", "000000000001-\x1b\n-000000", "-y"]),
        ("rm", ["rows", "-y"]),
    ],
)
def test_what_the_command_prints(hostile: DataConfig, command: str, words: list[str]) -> None:
    storage = hostile.storage.removeprefix("file://")
    out, err, code = run(command, storage, *words)
    assert out + err
    for line in (out + err).split("\n"):
        assert is_safe(line), line
        assert not line.startswith("forged")
    assert "Traceback" not in err
    assert code == (1 if "absent" in words or "plain=no" in words or "--commit" in words else 0)
    if command == "ls":
        assert r"k\x1b[31m\n=v\u202e\x9b\r plain=日本語" in out
        assert len({line.index("OBJECTS") for line in out.splitlines()[:1]}) == 1
    if command == "info" and words == ["rows"]:
        assert "\n  k\\x1b[31m\\n = v\\u202e\\x9b\\r\n  plain = 日本語\n" in out


def test_the_command_asks_in_one_line(hostile: DataConfig) -> None:
    storage = hostile.storage.removeprefix("file://")
    [logged] = storage_loader.commit_log(hostile)
    for words in (["rm", storage, "rows"], ["rm", storage, "rows", "--commit", logged.id]):
        result = CliRunner().invoke(cli, words, input="n\n")
        assert result.exit_code == 1
        assert all(map(is_safe, result.output.split("\n")))
        assert r"s\x1b]0;x\x07\nforged" in result.output
    assert [i.num_rows for i in list_datasets(storage)] == [3]


@pytest.mark.usefixtures("library_once")
def test_a_table_is_aligned_by_what_is_seen(hostile: DataConfig) -> None:
    out, _, _ = run("ls", hostile.storage.removeprefix("file://"))
    head, line = out.splitlines()
    assert line[head.index("ROWS") :].split()[0] == "3"


def test_all_that_is_printed_goes_through_one_door() -> None:
    """`echo` and `ask` in cli/text.py; nothing else prints, here or anywhere in the library.

    But a forgotten saver, whose line on standard error nobody could be asked for.
    """
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("print", "tqdm.write", "click.confirm") or name.endswith(
                    (".echo", ".secho", "stdout.write", "stderr.write", "click.prompt")
                ):
                    found.append((path.relative_to(ROOT).as_posix(), name))
    assert {path for path, _ in found} == {"cli/text.py", "saver/saver.py"}
    assert [name for path, name in found if path != "cli/text.py"] == ["sys.stderr.write"]
