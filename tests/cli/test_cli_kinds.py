"""What the commands show of rows that have no fixed size."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage_loader import Attribute, DataConfig, Dataset, save
from storage_loader.catalog import Catalog
from storage_loader.errors import FormatError
from tests.support.command import failing, run
from tests.support.ragged import KINDS, rows_of


def filled(folder: dict[str, str], rows: int = 50) -> DataConfig:
    config = DataConfig("kinds", KINDS, **folder)
    save(config, rows_of(range(rows)))
    return config


def test_head_shows_lengths_and_how_rows_begin(folder: dict[str, str]) -> None:
    attributes = KINDS[1:]
    batch: dict[str, Any] = {
        "tokens": [[5, 7, 7], [], np.arange(1000)],
        "boxes": [np.zeros((1, 4)), np.ones((2, 4)), np.zeros((0, 4))],
        "raw": [b"\xff\xd8", b"", bytes(range(100)) * 1000],
        "caption": ["a cat", "", "два кота 🐈 " * 100],
        "meta": [{"id": 1, "tags": ["x", None]}, None, ["é" * 100]],
    }
    save(DataConfig("head", attributes, **folder), batch)
    lines = run("head", folder["storage"], "head").stdout.splitlines()
    cells = [re.split(r"  +", line.strip()) for line in lines]
    assert cells[0] == ["ROW", "tokens", "boxes", "raw", "caption", "meta"]
    assert cells[1] == [
        "0", "3 items: 5 7 7", "1 item: [0. 0. 0. 0.]", "2 B: ff d8", "a cat",
        '{"id": 1, "tags": ["x", null]}',
    ]  # fmt: skip
    assert cells[2] == ["1", "0 items", "2 items: [1. 1. 1. 1.] [1. 1. 1. 1.]", "0 B", "null"]
    assert cells[3] == [
        "2", "1,000 items: 0 1 2 3 4 5 6 7 ...", "0 items",
        "100,000 B: 00 01 02 03 04 05 06 07 ...",
        ("два кота 🐈 " * 100)[:57] + "...", '["' + "é" * 55 + "...",
    ]  # fmt: skip


def test_text_of_a_dataset_moves_no_cursor(folder: dict[str, str]) -> None:
    hostile = ["\x1b[2J", "a\nb\r", "\u202e", "\x1b" * 100]
    batch = {"caption": hostile, "meta": [{text: text} for text in hostile]}
    save(DataConfig("hostile", [("caption", "str"), ("meta", "json")], **folder), batch)
    for options in ([], ["--json"]):
        shown = run("head", folder["storage"], "hostile", *options).stdout
        assert all(line.isprintable() for line in shown.split("\n"))
    lines = run("head", folder["storage"], "hostile").stdout.splitlines()
    assert len(lines) == 1 + len(hostile)
    assert [line.split()[1] for line in lines[1:4]] == [r"\x1b[2J", r"a\nb\r", r"\u202e"]
    assert len(lines[4].split()[1]) == 60
    rows = json.loads(run("head", folder["storage"], "hostile", "--json").stdout)
    assert [row["caption"] for row in rows] == hostile
    assert [row["meta"] for row in rows] == batch["meta"]


def test_head_as_json_holds_all_of_each_row(folder: dict[str, str]) -> None:
    config = filled(folder)
    rows = json.loads(run("head", folder["storage"], "kinds", "-n", "50", "--json").stdout)
    expected = rows_of(range(50))
    assert len(rows) == 50
    for number, row in enumerate(rows):
        assert list(row) == list(config.schema.names)
        assert row["row"] == number
        assert row["tokens"] == expected["tokens"][number].tolist()
        assert row["boxes"] == expected["boxes"][number].tolist()
        assert base64.b64decode(row["raw"]) == expected["raw"][number]
        assert row["caption"] == expected["caption"][number]
        assert row["meta"] == expected["meta"][number]


def test_json_that_is_nested_deeply(
    folder: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    save(DataConfig("deep", [("meta", "json")], **folder), {"meta": [deep]})
    assert "[[[[[" in run("head", folder["storage"], "deep").stdout
    said = failing(monkeypatch, capsys, "head", folder["storage"], "deep", "--json")
    assert said == "error: a JSON value is nested too deeply to be printed\n"


def test_info_and_ls_show_shapes_and_mean_sizes(folder: dict[str, str]) -> None:
    config = filled(folder)
    batch = rows_of(range(50))
    lengths = [len(row) for row in batch["tokens"]]
    nbytes = 8 * 50 + 4 * sum(lengths) + sum(row.nbytes for row in batch["boxes"])
    texts = [*batch["raw"], *(row.encode() for row in batch["caption"])]
    dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    nbytes += sum(map(len, texts)) + sum(len(dump(one).encode()) for one in batch["meta"])
    mean = round(nbytes / 50)
    lines = run("info", folder["storage"], "kinds").stdout.splitlines()
    assert lines[1].startswith("50 rows in 1 object, ")
    assert f", about {mean} B a row, version " in lines[1]
    assert [re.split(r"  +", line) for line in lines[2:]] == [
        ["ATTRIBUTE", "DTYPE", "ROW SHAPE", "ROW SIZE"],
        ["row", "int64", "()", "8 B"],
        ["tokens", "int32", "(any,)", "varies"],
        ["boxes", "float32", "(any, 4)", "varies"],
        ["raw", "bytes", "any length", "varies"],
        ["caption", "str", "any length", "varies"],
        ["meta", "json", "any length", "varies"],
    ]
    [found] = json.loads(run("ls", folder["storage"], "--json").stdout)["datasets"]
    assert found["row_nbytes"] == mean
    assert [a["shape"] for a in found["attributes"]] == [list(a.shape) for a in config.schema]
    assert f"  about {mean} B  " in run("ls", folder["storage"]).stdout


def test_the_mean_size_of_the_one_attribute_that_varies(folder: dict[str, str]) -> None:
    config = DataConfig("one", [("tokens", "int32", (None,)), ("y", "float64", (3,))], **folder)
    tokens = [np.zeros(n, np.int32) for n in (1000, 1050, 1100)]
    save(config, {"tokens": tokens, "y": np.zeros((3, 3))})
    printed = run("info", folder["storage"], "one").stdout
    assert ", about 4.1 KiB a row, version " in printed
    assert re.search(
        r"\ntokens +int32 +\(any,\) +about 4.1 KiB\ny +float64 +\(3,\) +24 B\n", printed
    )
    assert re.search(r"\none +- +3 +1 +about 4.1 KiB  ", run("ls", folder["storage"]).stdout)


def test_commands_on_no_rows(folder: dict[str, str]) -> None:
    config = DataConfig("none", [Attribute("tokens", "int32", (None,))], **folder)
    Catalog(config).create(config.schema)
    printed = run("info", folder["storage"], "none").stdout
    assert "\n0 rows in 0 objects, 0 B, version " in printed
    assert printed.endswith("tokens     int32  (any,)       varies\n")
    assert run("ls", folder["storage"]).stdout.splitlines()[1].split() == [
        "none", "-", "0", "0", "-", "0", "B",
    ]  # fmt: skip
    assert run("head", folder["storage"], "none").stdout == "ROW  tokens\n"
    assert json.loads(run("head", folder["storage"], "none", "--json").stdout) == []


@pytest.mark.parametrize("options", [[], ["--shuffle", "global"], ["--index"]])
def test_bench(folder: dict[str, str], options: list[str]) -> None:
    filled(folder)
    words = ("bench", folder["storage"], "kinds", "--batch-size", "7", "--json", *options)
    found = json.loads(run(*words).stdout)
    assert [epoch["rows"] for epoch in found["epochs"]] == [50, 50]
    assert all(epoch["nbytes"] > 0 for epoch in found["epochs"])


def test_info_shows_units_and_descriptions(folder: dict[str, str]) -> None:
    """Those that the dataset was made with, whatever is appended with."""
    attributes = [
        Attribute("depth", "float32", (2,), unit="m", description="along\n\x1b[2J the axis"),
        Attribute("label", "int64"),
    ]
    made = DataConfig("noted", attributes, **folder)
    batch = {"depth": np.ones((1, 2)), "label": [1]}
    save(made, batch)
    others = [Attribute("depth", "float32", (2,), unit="km"), Attribute("label", "int64", unit="x")]
    save(DataConfig("noted", others, **folder), batch)
    assert {name: a.notes for name, a in Dataset(made).spec.items()} == {
        "depth": attributes[0].notes,
        "label": {},
    }
    assert len(Dataset(DataConfig("noted", others, **folder))) == 2
    lines = run("info", folder["storage"], "noted").stdout.splitlines()
    cells = [re.split(r"  +", line) for line in lines[-3:]]
    assert cells == [
        ["ATTRIBUTE", "DTYPE", "ROW SHAPE", "ROW SIZE", "UNIT", "DESCRIPTION"],
        ["depth", "float32", "(2,)", "8 B", "m", r"along\n\x1b[2J the axis"],
        ["label", "int64", "()", "8 B", "-", "-"],
    ]
    shown = json.loads(run("info", folder["storage"], "noted", "--json").stdout)["attributes"]
    assert [(a.get("unit"), a.get("description")) for a in shown] == [
        ("m", attributes[0].description),
        (None, None),
    ]


@pytest.mark.parametrize("value", [5, None, "", "x" * 65, ["m"]])
def test_a_stored_unit_that_is_none(folder: dict[str, str], value: Any) -> None:
    config = filled(folder, 3)
    [path] = Path(folder["storage"]).rglob("dataset.json")
    described = json.loads(path.read_bytes())
    described["attributes"][0]["unit"] = value
    path.write_bytes(json.dumps(described).encode())
    with pytest.raises(FormatError, match=r"dataset\.json: "):
        Dataset(config).open()
