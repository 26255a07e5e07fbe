"""A dataset stored in the formats of all libraries, for `peers`."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import obstore

from storage_loader import Attribute, DataConfig, DataSaver

from .data import OBJECT_NBYTES, Array, make_rows
from .peer_loaders import PEERS, Rows, Spec, firsts_of, lengths_of
from .peer_process import PeerError, Peers
from .setting import Bucket, Setting

SLOW_ROWS = 100_000  # rows of small ones for peers that decode row by row
STEP = 1000  # rows of a batch that is saved, where they differ in length
SLOW = ("streaming", "litdata", "webdataset")


@dataclass(frozen=True)
class Way:
    """A peer and how it is set up; see its loader for what `way` means."""

    peer: str
    workers: int = 0
    way: str = ""

    @property
    def words(self) -> str:
        """The settings, for the table."""
        kind = "threads ahead" if self.peer == "lance" else "processes"
        workers = "" if self.way == "scan" else f"{self.workers} {kind}"
        return ", ".join(word for word in (workers, self.way) if word)


@dataclass(frozen=True)
class Data:
    """Rows to load: values of one attribute, and their numbers."""

    name: str
    words: str
    attributes: tuple[Attribute, ...]
    rows: int
    batch: int
    lengths: tuple[int, int] = (0, 0)  # of rows that differ: least and most values


@dataclass(frozen=True)
class Stored:
    """A dataset, stored in all formats."""

    group: Group
    data: Data
    config: DataConfig
    spec: Spec  # what all loaders of it have in common
    source: dict[str, str]  # on S3, by peer
    local: dict[str, str]  # in a folder, for peers that do not read later epochs from a cache
    versions: dict[str, str]
    failed: dict[str, str]  # peers that could not store it, and why

    def of(self, way: Way, *, local: bool) -> Spec:
        """What that peer's loader is to read, and how."""
        found = self.local if local and way.peer in self.local else self.source
        if way.peer in self.failed:
            raise PeerError(self.failed[way.peer])
        return replace(
            self.spec,
            peer=way.peer,
            source=found[way.peer],
            rows=rows_of(way.peer, self.data),
            workers=way.workers,
            way=way.way,
        )


class Group:
    """The peers that take part."""

    def __init__(
        self, setting: Setting, names: Sequence[str] = tuple(PEERS), *, on_s3: bool = True
    ) -> None:
        self.setting = setting
        self.names = tuple(names) if setting.peers else ("torch",)
        self.peers = Peers(setting, setting.peers or sys.executable, on_s3=on_s3)
        if not setting.peers:
            left_out = ", ".join(name for name in PEERS if name not in self.names)
            print(f"without --peers PYTHON these are left out: {left_out}", flush=True)


@contextlib.contextmanager
def stored_in_all_formats(group: Group, data: Data, *, on_s3: bool) -> Iterator[Stored]:
    """The dataset in all formats, on S3 or in folders; it is removed afterwards."""
    setting = group.setting
    folder = setting.folder()
    folder.mkdir()
    with contextlib.ExitStack() as held:
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        bucket = held.enter_context(setting.bucket()) if on_s3 else None
        yield _store(group, data, folder, bucket)


def _store(group: Group, data: Data, folder: Path, bucket: Bucket | None) -> Stored:
    shard = group.setting.pick(OBJECT_NBYTES, 2**22)
    arrays = folder / "arrays"
    make(data, arrays)
    place = bucket.settings if bucket else {"storage": folder / "ours"}
    config = DataConfig(data.name, data.attributes, max_object_size=shard, **place)
    save(config, data, arrays)
    spec = _spec(data, shard)
    stored = Stored(group, data, config, spec, {}, {"torch": str(arrays)}, {}, {})
    for name in group.names:
        out = folder / name
        try:
            rows = rows_of(name, data)
            stored.versions[name], _ = group.peers.write(name, arrays, out, rows, shard)
        except PeerError as error:
            stored.failed[name] = f"cannot store these rows, {error}"
            continue
        if PEERS[name].write is None:
            continue
        if bucket is not None:
            _upload(bucket, out, name)
            stored.source[name] = f"s3://{bucket.name}/{name}"
        if bucket is None or name == "lance":  # which keeps no cache
            stored.local[name] = str(out)
        else:
            shutil.rmtree(out)
    return stored


def make(data: Data, arrays: Path) -> None:
    """x.npy and number.npy; the first value of a row tells its number, for the check."""
    arrays.mkdir()
    if data.lengths:
        x, number = _differing(data, arrays)
    else:
        made = make_rows(data.attributes, data.rows)
        x, number = made[data.attributes[0].name], made["number"]
        x.reshape(data.rows, -1)[:, 0] = firsts_of(number)
    np.save(arrays / "x.npy", x)
    np.save(arrays / "number.npy", number)


def _differing(data: Data, arrays: Path) -> tuple[Array, Array]:
    """Tokens below 50,000, or letters; ends.npy says where each row ends."""
    number = np.arange(data.rows)
    ends = np.cumsum(lengths_of(data.rows, *data.lengths))
    text = data.attributes[0].dtype == "str"
    least, most, kind = (97, 123, np.uint8) if text else (0, 50_000, np.int32)
    x = np.random.default_rng(0).integers(least, most, ends[-1], kind)
    x[np.append(0, ends[:-1])] = firsts_of(number, text=text)
    np.save(arrays / "ends.npy", ends)
    return x, number


def _spec(data: Data, shard: int) -> Spec:
    value = data.attributes[0]
    dtype, shape = value.dtype, value.shape
    if data.lengths:
        dtype = "uint8" if dtype == "str" else dtype
        shape = (int(lengths_of(data.rows, *data.lengths).mean()),)
    return Spec("", "", data.rows, dtype, shape, data.batch, shard=shard, lengths=data.lengths)


def save(config: DataConfig, data: Data, arrays: Path) -> float:
    """What `make` made, by our saver: seconds, rows that differ being in memory."""
    batches = _differing_batches(data, arrays) if data.lengths else _batches(data, arrays)
    start = time.perf_counter()
    with DataSaver(config) as saver:
        for batch in batches:
            saver(batch)
    return time.perf_counter() - start


def _batches(data: Data, arrays: Path) -> Iterator[dict[str, Any]]:
    x = np.load(arrays / "x.npy", mmap_mode="r")
    number = np.load(arrays / "number.npy", mmap_mode="r")
    step = max(1, 2**25 // x[0].nbytes)
    for start in range(0, data.rows, step):
        part = slice(start, start + step)
        yield {data.attributes[0].name: x[part], "number": number[part]}


def _differing_batches(data: Data, arrays: Path) -> list[dict[str, Any]]:
    value = data.attributes[0]
    rows = Rows(np.load(arrays / "x.npy"), np.load(arrays / "ends.npy"))
    number = np.load(arrays / "number.npy")
    found = []
    for start in range(0, data.rows, STEP):
        part = rows[start : start + STEP]
        numbers = number[start : start + STEP]
        x: Any = (part.values, np.diff(part.offsets))
        if value.dtype == "str":
            x = [row.tobytes().decode() for row in part]
        found.append({value.name: x, "number": numbers})
    return found


def _upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]

    def put(path: Path) -> None:
        key = f"{prefix}/{path.relative_to(folder).as_posix()}"
        obstore.put(
            bucket.client, key, path, use_multipart=False
        )  # the light server knows no parts

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, files))


def rows_of(name: str, data: Data) -> int:
    is_slow = name in SLOW and not data.lengths
    return min(data.rows, SLOW_ROWS) if is_slow else data.rows
