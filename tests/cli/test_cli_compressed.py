"""What the commands show of compressed datasets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from storage_loader import Attribute, DataConfig, save
from storage_loader.catalog import Catalog
from tests.support.command import run

ATTRIBUTES = [
    Attribute("wave", "float32", (250,)),
    Attribute("label", "int64", compressor=False),
    Attribute("tokens", "int32", (None,), compressor={"complib": "lz4"}),
]
ROWS = 1000
DECODED = ROWS * (1000 + 8 + 8 + 4 * 7)  # with the ends of the tokens


def filled(folder: dict[str, str], level: int = 3) -> DataConfig:
    config = DataConfig("coded", ATTRIBUTES, compressor={"complevel": level}, **folder)
    tokens = np.tile(np.arange(7, dtype=np.int32), (ROWS, 1))
    save(
        config,
        {
            "wave": np.zeros((ROWS, 250), np.float32),
            "label": np.arange(ROWS),
            "tokens": [*tokens],
        },
    )
    return config


def test_info_shows_codecs_and_sizes(folder: dict[str, str]) -> None:
    config = filled(folder)
    nbytes = Catalog(config).snapshot().nbytes
    ratio = f"{DECODED / nbytes:.1f}"
    lines = run("info", folder["storage"], "coded").stdout.splitlines()
    said = rf"1,000 rows in 1 object, \S+ KiB for 1019.5 KiB of rows \({ratio} times as much\), .*"
    assert re.fullmatch(said, lines[1])
    assert [re.split(r"  +", line)[-1] for line in lines[2:]] == [
        "COMPRESSED BY", "zstd 3", "-", "lz4 1",
    ]  # fmt: skip
    filled(folder, level=9)
    assert "  zstd 3, zstd 9\n" in run("info", folder["storage"], "coded").stdout


def test_info_for_programs(folder: dict[str, str]) -> None:
    config = filled(folder)
    found = json.loads(run("info", folder["storage"], "coded", "--json").stdout)
    assert found["decoded_nbytes"] == DECODED
    assert found["nbytes"] == Catalog(config).snapshot().nbytes < DECODED / 5
    wave, label, tokens = (a["compressors"] for a in found["attributes"])
    assert wave == [{"complib": "zstd", "complevel": 3, "shuffle": True}]
    assert (label, [one["complib"] for one in tokens]) == ([], ["lz4"])


def test_info_says_nothing_of_codecs_where_there_are_none(folder: dict[str, str]) -> None:
    save(DataConfig("plain", [("x", "int64")], **folder), {"x": np.arange(10)})
    printed = run("info", folder["storage"], "plain").stdout
    assert "COMPRESSED" not in printed
    assert "times as much" not in printed
    found = json.loads(run("info", folder["storage"], "plain", "--json").stdout)
    assert found["decoded_nbytes"] == 80
    assert found["attributes"][0]["compressors"] == []


def test_head_verify_and_bench(folder: dict[str, str]) -> None:
    filled(folder)
    storage = folder["storage"]
    assert "7 items: 0 1 2 3 4 5 6" in run("head", storage, "coded", "-n", "1").stdout
    assert "no problems" in run("verify", storage, "coded").stdout
    assert "1,000 rows" in run("bench", storage, "coded").stdout


def test_verify_names_the_attribute_of_a_damaged_block(folder: dict[str, str]) -> None:
    config = filled(folder)
    [path] = Path(config.storage.removeprefix("file://")).rglob("*.h5")
    body = bytearray(path.read_bytes())
    snapshot = Catalog(config).snapshot()
    start, end = snapshot.objects[0].layout.directory_range
    layout = snapshot.objects[0].layout.layout(snapshot.schema, memoryview(body)[start:end])
    body[layout.columns["wave"].block_range(1)[0] + 1] ^= 1
    path.write_bytes(body)
    done = run("verify", folder["storage"], "coded")
    assert done.exit_code == 1
    assert "attribute 'wave', rows 65 to 129" in done.stdout + done.stderr
