"""What loaders do with damaged storage: ours and others', the same three cases.

Of a dataset in several shards in a folder, the one in the middle has one flipped bit in the values
of a row, or is cut in half, or is missing. Then one epoch is read, with every setting at its
default, in one process (0) and with two worker processes (2). Either an error rises, or the epoch
ends as if all were well; which rows it gave is checked by their numbers and values. A loader that
gives nothing for 40 s is ended. `noticed` is 1 where an error rose.

The others need a Python that has them (see peer_loaders.py): `python -m benchmarks peer_damage
--peers PYTHON`. The table is written to results/peer_damage.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage_loader import DataConfig, DataLoader, DataSaver
from storage_loader.errors import StorageLoaderError

from .peer_loaders import MARK, Spec
from .peer_process import PeerError, PeerProcess
from .runner import Row, Spread
from .setting import Benchmark, Setting

PEERS = ("streaming", "litdata", "webdataset")
WORKERS = (0, 2)
ROWS = 2000
SHAPE = (3000,)  # uint8
SHARD = 2**20
PATIENCE = 40.0  # seconds without a row
UNUSED = "not-used-by-this-benchmark"  # no server is asked here

Damage = Callable[[Path, bytes], None]


def _flip(path: Path, row: bytes) -> None:
    body = bytearray(path.read_bytes())
    body[body.index(row)] ^= 1
    path.write_bytes(body)


def _cut(path: Path, row: bytes) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _remove(path: Path, row: bytes) -> None:
    path.unlink()


CASES: dict[str, Damage] = {
    "one flipped bit": _flip,
    "a shard cut in half": _cut,
    "a missing shard": _remove,
}


def run(setting: Setting) -> Sequence[Row]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (ROWS, *SHAPE), np.uint8)
    number = np.arange(ROWS, dtype=np.int64)
    x[:, 0] = number % MARK
    arrays = setting.folder()
    arrays.mkdir(exist_ok=True)
    np.save(arrays / "x.npy", x)
    np.save(arrays / "number.npy", number)
    rows = [*_ours(setting, x, number)]
    for peer in PEERS if setting.peers else ():
        print(peer, flush=True)
        rows += _theirs(setting, str(setting.peers), peer, arrays, x)
    return rows


def _row(case: str, name: str, workers: int, outcome: str, *, noticed: bool) -> Row:
    value = Spread.of([float(noticed)])
    # The folders and objects of this run are no one else's.
    words = re.sub(r"\S*scratch\S*/|file://folder/\S*/|(?<=[ '])/tmp\S*/", "", outcome)
    note = textwrap.shorten(words.replace("|", "/"), 300, placeholder=" ...")
    return Row(f"{case}, {name}, {workers} processes", "noticed", value, note=note)


def _damaged(folder: Path, copy: Path, damage: Damage, row: bytes) -> None:
    """A copy of a dataset in which the file that holds this row is damaged."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    [path] = [p for p in copy.rglob("*") if p.is_file() and row in p.read_bytes()]
    damage(path, row)


def _ours(
    setting: Setting, x: npt.NDArray[np.uint8], number: npt.NDArray[np.int64]
) -> Iterator[Row]:
    folder, copy = setting.folder(), setting.folder()
    attributes = [("x", "uint8", SHAPE), ("number", "int64")]
    with DataSaver(DataConfig("rows", attributes, storage=folder, max_object_size=SHARD)) as saver:
        saver({"x": x, "number": number})
    for case, damage in CASES.items():
        for workers in WORKERS:
            _damaged(folder, copy, damage, x[ROWS // 2].tobytes())
            config = DataConfig("rows", storage=copy)
            loader = DataLoader(config, batch_size=32, shuffle=True, num_workers=workers)
            wrong = given = 0
            try:
                for batch in loader:
                    given += len(batch["number"])
                    wrong += int((batch["x"] != x[batch["number"]]).any(axis=1).sum())
                outcome, noticed = f"{given - wrong} of {ROWS} rows right", False
            except StorageLoaderError as error:
                text = str(error).replace(str(copy), "folder")
                outcome, noticed = f"{type(error).__name__}: {text}", True
            name = f"storage_loader {version('storage_loader')}"
            yield _row(case, name, workers, outcome, noticed=noticed)


def _theirs(
    setting: Setting, python: str, peer: str, arrays: Path, x: npt.NDArray[np.uint8]
) -> Iterator[Row]:
    folder, copy = setting.folder(), setting.folder()
    shutil.rmtree(folder, ignore_errors=True)
    job = {"do": "write", "peer": peer, "arrays": str(arrays), "out": str(folder)}
    with _process(setting, python) as process:
        release = process.ask({**job, "rows": ROWS, "shard": SHARD})["version"]
    spec = Spec(peer, str(copy), ROWS, "uint8", SHAPE, 32, shard=SHARD)
    for case, damage in CASES.items():
        for workers in WORKERS:
            _damaged(folder, copy, damage, x[ROWS // 2].tobytes())
            with _process(setting, python) as process:
                process.ask({"do": "prepare", "peer": peer})
                asked = {"do": "epoch", "spec": {**asdict(spec), "workers": workers}}
                try:
                    fault = process.ask(asked, patience=PATIENCE)["fault"]
                    outcome, noticed = fault or f"all {ROWS} rows right", False
                except PeerError as error:
                    outcome, noticed = str(error), True
            if outcome.startswith("ended with code"):
                outcome, noticed = f"no row and no error for {PATIENCE:.0f} s", False
            yield _row(case, f"{peer} {release}", workers, outcome, noticed=noticed)


def _process(setting: Setting, python: str) -> PeerProcess:
    environment = dict(os.environ)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT"):
        environment[name] = UNUSED
    return PeerProcess(python, environment, setting.scratch / "peer_damage.log")


def draw(results: Path) -> None:
    """The results as a table: a line for each library, a column for each case."""
    result = json.loads(results.read_text("utf-8"))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in result["rows"]:
        case, name, workers = row["measure"].split(", ")[:3]  # without the server's marks
        noticed = "**error**" if row["value"]["median"] else "no error"
        cells.setdefault((name, workers), {})[case] = f"{noticed}: {row['note']}"
    lines = [
        f"# {BENCHMARK.what}",
        "",
        "What was done, and how, stands in the benchmark's module.",
        "",
        f"| loader | {' | '.join(CASES)} |",
        "|---" * (len(CASES) + 1) + "|",
    ]
    lines += [
        f"| {name}, {workers} | {' | '.join(found.get(case, '') for case in CASES)} |"
        for (name, workers), found in cells.items()
    ]
    results.with_suffix(".md").write_text("\n".join(lines) + "\n")


BENCHMARK = Benchmark("Damaged storage, beside other libraries", run, draw)
