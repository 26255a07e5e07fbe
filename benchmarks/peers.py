"""Loading speed beside other libraries: mosaicml-streaming, litdata, webdataset, Lance, torch.

All read the same rows, in shards of at most 64 MiB (ours: objects). Ours runs in this process, a
peer's loader in one of its own that it keeps (peer_loaders.py). Each peer's ways (processes, and
settings of its own) run in a trial first; the fastest that gives all rows then runs in turn with
ours and the other peers, each round in another order. Every epoch is checked: each row once, with
its own values. Ways that lose or double rows, or fail, stand in the note.

- first epoch: from S3, shuffled as each can, with an empty cache on local disk, timed from the
  loader's construction to its last batch. Lance keeps no cache, and its scan is not shuffled
  within fragments.
- second epoch: with the cache that the first one filled, by the same loader, timed alone. Shuffled
  globally by ours, streaming (one canonical node, blocks of 4 million rows), Lance (takes of
  random rows from a local copy) and torch; litdata shuffles chunks, and windows of 256 rows within
  them; webdataset shards, and a buffer of 1,000 rows or 64 MiB.
- random batches by index from S3, nothing kept: `shuffle="global", index=True` beside Lance's take.
- small rows: from local folders. Those that decode row by row get 1 million of 10 million rows.
- sweep: first and second epochs over the size of a row, with batches of about 4 MiB. Besides the
  figures it gives two plots, peers_cold.png and peers_warm.png, for which matplotlib is needed.

torch is its DataLoader over numpy memory maps: it gets a sampler of batches, and gathers a batch
by `np.take`. How the other peers are helped stands in peer_loaders.py.

The peers need a Python of their own, since streaming wants an older numpy than others. In a new
virtual environment, torch first and alone, since any other order fetches CUDA:

    python3.11 -m venv PEERS
    PEERS/bin/pip install -r requirements/torch.txt
    PEERS/bin/pip install --no-deps -r requirements/peers.txt
    python -m benchmarks peers --peers PEERS/bin/python

Instead of `--peers` the variable STORAGE_LOADER_BENCH_PEERS may name it. Without it only torch is
measured, in this Python.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import obstore

from storage_loader import Attribute, DataConfig, DataSaver
from storage_loader.torch import DataLoader

from .data import OBJECT_NBYTES, TILES, VECTORS, make_rows
from .peer_loaders import MARK, PEERS, Spec, timed
from .peer_process import Contender, PeerError, Peers
from .runner import Row, Spread
from .setting import Benchmark, Bucket, Setting

LARGE_BATCH, SMALL_BATCH = 64, 4096
NUMBER = Attribute("number", "int64")
IMAGES = (Attribute("image", "uint8", (3, 224, 224)), NUMBER)  # 150,536 bytes a row
SLOW_ROWS = 1_000_000  # rows of small ones for peers that decode row by row
SLOW = ("streaming", "litdata", "webdataset")
SWEEP = (64, 1024, 16 * 1024, 128 * 1024, 2**20)  # bytes of a row
SWEEP_ROWS = 200_000  # at most, which keeps the time of the slow ones bearable
PLOTS = {"cold": "first epoch from S3, empty cache", "warm": "second epoch, cached on disk"}


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


def _ways(*peers: str) -> tuple[Way, ...]:
    return tuple(Way(peer, workers) for peer in peers for workers in (0, 2))


COLD = (
    *_ways("streaming", "litdata", "webdataset"),
    Way("streaming", 0, "blocks"),
    Way("streaming", 2, "blocks"),
    Way("lance", 0, "scan"),
)
WARM = (
    *_ways("streaming", "litdata", "webdataset", "torch"),
    Way("lance", 0),
    Way("lance", 4),
)
TAKE = (Way("lance", 0), Way("lance", 4), Way("lance", 16))


@dataclass(frozen=True)
class Data:
    """Rows to load: values of one attribute, and their numbers."""

    name: str
    words: str
    attributes: tuple[Attribute, ...]
    rows: int
    batch: int


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
            rows=_rows_of(way.peer, self.data),
            workers=way.workers,
            way=way.way,
        )


@dataclass
class Found:
    """What was measured of one loader."""

    name: str  # e.g. "litdata"
    words: str = ""  # its settings
    rates: list[float] = field(default_factory=list)  # rows/s, a round each
    faults: list[str] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        """Of the rates; there must be some."""
        return Spread.of(self.rates)


Part = Callable[[Stored], list[Found]]  # measures a dataset


class Group:
    """The peers that take part."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.names = tuple(PEERS) if setting.peers else ("torch",)
        self.peers = Peers(setting, setting.peers or sys.executable)
        if not setting.peers:
            left_out = ", ".join(name for name in PEERS if name not in self.names)
            print(f"without --peers PYTHON these are left out: {left_out}", flush=True)


def run(setting: Setting) -> Iterator[Row]:
    group = Group(setting)
    tiles = Data("tiles", "48 KiB float32 rows", TILES, setting.pick(8192, 1024), LARGE_BATCH)
    images = Data("images", "150 KB uint8 rows", IMAGES, setting.pick(7168, 256), LARGE_BATCH)
    vectors = Data("vectors", "72 B rows", VECTORS, setting.pick(10_000_000, 50_000), SMALL_BATCH)
    on_s3: dict[str, Part] = {
        "first epoch from S3, cold, shuffled, {words}": _first_epoch,
        "second epoch, warm, shuffled, {words}": _second_epoch,
    }
    by_index: dict[str, Part] = {"random batches of {batch} by index from S3, {words}": _by_index}
    local: dict[str, Part] = {"warm epoch of a folder, {words}, batches of {batch:,}": _small_rows}
    yield from _parts(group, tiles, on_s3 | by_index, on_s3=True)
    if not setting.effort.quick:
        yield from _parts(group, images, on_s3, on_s3=True)
    yield from _parts(group, vectors, local, on_s3=False)
    if setting.wants("sweep"):
        for row_nbytes in SWEEP[:: setting.pick(1, len(SWEEP))]:
            yield from _sweep(group, row_nbytes)


def _parts(group: Group, data: Data, parts: Mapping[str, Part], *, on_s3: bool) -> Iterator[Row]:
    """Rows of those `parts`, by title, that are asked for; the data are stored for these."""
    titles = {title.format(**vars(data)): part for title, part in parts.items()}
    wanted = {title: part for title, part in titles.items() if group.setting.wants(title)}
    if wanted:
        with _stored(group, data, on_s3=on_s3) as stored:
            for title, part in wanted.items():
                yield from _rows(title, part(stored))


def _first_epoch(stored: Stored) -> list[Found]:
    return _race(stored, COLD, _cold(stored), cold=True)


def _second_epoch(stored: Stored) -> list[Found]:
    with _warm(stored) as ours:
        return _race(stored, WARM, ours, cold=False)


def _by_index(stored: Stored) -> list[Found]:
    data = stored.data
    limit = stored.group.setting.pick(32, 4)
    part = replace(stored, spec=replace(stored.spec, limit=limit), local={})
    loader = DataLoader(stored.config, batch_size=data.batch, shuffle="global", index=True)

    def ours() -> float:
        return _checked(part.spec, time.perf_counter(), loader)

    return _race(part, TAKE, ours, cold=False)


def _small_rows(stored: Stored) -> list[Found]:
    data = stored.data
    with _warm(stored) as ours:
        found = _race(stored, WARM, ours, cold=False)
    for entry in found:
        count = _rows_of(entry.name, data)
        if count < data.rows:
            entry.words += f", {count:,} of {data.rows:,} rows"
    return found


def _sweep(group: Group, row_nbytes: int) -> list[Row]:
    pick = group.setting.pick
    count = min(pick(200 * 10**6, 10**7) // row_nbytes, pick(SWEEP_ROWS, 20_000))
    batch = max(16, min(SMALL_BATCH, 2**22 // row_nbytes))
    attributes = (Attribute("value", "uint8", (row_nbytes,)), NUMBER)
    data = Data("sweep", "", attributes, max(batch, count), batch)
    with _stored(group, data, on_s3=True) as stored:
        cold = _race(stored, COLD, _cold(stored), cold=True)
        with _warm(stored) as ours:
            warm = _race(stored, WARM, ours, cold=False)
    what = f"{row_nbytes:,} B rows, {data.rows:,} of them, batches of {batch:,}"
    return [_joined(f"sweep, cold, {what}", cold), _joined(f"sweep, warm, {what}", warm)]


@contextlib.contextmanager
def _stored(group: Group, data: Data, *, on_s3: bool) -> Iterator[Stored]:
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
    _make(data, arrays)
    place = bucket.settings if bucket else {"storage": folder / "ours"}
    config = DataConfig(data.name, data.attributes, max_object_size=shard, **place)
    _save(config, data, arrays)
    value = data.attributes[0]
    spec = Spec("", "", data.rows, value.dtype, tuple(value.shape), data.batch, shard=shard)
    stored = Stored(group, data, config, spec, {}, {"torch": str(arrays)}, {}, {})
    for name in group.names:
        out = folder / name
        try:
            rows = _rows_of(name, data)
            stored.versions[name] = group.peers.write(name, arrays, out, rows, shard)
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


def _make(data: Data, arrays: Path) -> None:
    """x.npy and number.npy; the first value of a row tells its number, for the check."""
    made = make_rows(data.attributes, data.rows)
    x, number = made[data.attributes[0].name], made["number"]
    x.reshape(data.rows, -1)[:, 0] = number % MARK
    arrays.mkdir()
    np.save(arrays / "x.npy", x)
    np.save(arrays / "number.npy", number)


def _save(config: DataConfig, data: Data, arrays: Path) -> None:
    x = np.load(arrays / "x.npy", mmap_mode="r")
    number = np.load(arrays / "number.npy", mmap_mode="r")
    step = max(1, 2**25 // x[0].nbytes)
    with DataSaver(config) as saver:
        for start in range(0, data.rows, step):
            part = slice(start, start + step)
            saver({data.attributes[0].name: x[part], "number": number[part]})


def _upload(bucket: Bucket, folder: Path, prefix: str) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]

    def put(path: Path) -> None:
        key = f"{prefix}/{path.relative_to(folder).as_posix()}"
        obstore.put(
            bucket.client, key, path, use_multipart=False
        )  # the light server knows no parts

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, files))


def _rows_of(name: str, data: Data) -> int:
    return min(data.rows, SLOW_ROWS) if name in SLOW else data.rows


def _cold(stored: Stored) -> Callable[[], float]:
    """Our first epoch: its seconds."""
    cache = stored.group.setting.folder()

    def load() -> float:
        start = time.perf_counter()
        loader = DataLoader(
            stored.config,
            batch_size=stored.data.batch,
            shuffle=True,
            cache_dir=cache,
            extras=("row",),
        )
        try:
            return _checked(stored.spec, start, loader)
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    return load


@contextlib.contextmanager
def _warm(stored: Stored) -> Iterator[Callable[[], float]]:
    """Our epochs: their seconds. The first fills the cache."""
    cache = stored.group.setting.folder()
    loader = DataLoader(
        stored.config, batch_size=stored.data.batch, shuffle="global", cache_dir=cache
    )
    try:
        yield lambda: _checked(stored.spec, time.perf_counter(), loader)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _checked(spec: Spec, start: float, loader: DataLoader) -> float:
    """Seconds of our epoch; its rows must be right."""
    value = next(name for name in loader.spec if name != "number")
    batches = ((batch[value], batch["number"]) for batch in loader)
    seconds, fault = timed(spec, start, batches)
    if fault:
        raise AssertionError(fault)
    return seconds


def _race(
    stored: Stored, ways: Sequence[Way], ours: Callable[[], float], *, cold: bool
) -> list[Found]:
    """Our rates, then those of each peer by its fastest way."""
    group = stored.group
    effort = group.setting.effort
    ours()  # imports, connections, and the first of warm epochs
    first = Found("ours")
    found = [first]
    racing: list[tuple[Found, Contender]] = []
    try:
        for name in dict.fromkeys(way.peer for way in ways if way.peer in group.names):
            found.append(Found(name))
            try:
                tried = [way for way in ways if way.peer == name]
                contender, wrong = _fastest(stored, tried, effort.trials, cold=cold)
                found[-1].faults += wrong
            except PeerError as error:
                found[-1].faults.append(f"no way works: {error}")
            else:
                racing.append((found[-1], contender))
        for index in range(effort.rounds):
            turns: list[tuple[Found, Contender | None]] = [(first, None), *racing]
            shift = index % len(turns)
            for entry, other in turns[shift:] + turns[:shift]:
                gc.collect()
                try:
                    seconds = other.seconds() if other else ours()
                except PeerError as error:
                    entry.faults.append(f"fails: {error}")
                    racing = [pair for pair in racing if pair[0] is not entry]
                    if other is not None:
                        other.close()
                    continue
                spec = other.spec if other else stored.spec
                entry.rates.append(spec.rows_of_epoch / seconds)
        for entry, contender in racing:
            entry.words = contender.name
            if contender.faults:
                count = len(contender.faults)
                entry.faults.append(f"{count} epochs gave wrong rows: {contender.faults[0]}")
    finally:
        for _, contender in racing:
            contender.close()
    return found


def _fastest(
    stored: Stored, ways: Sequence[Way], trials: int, *, cold: bool
) -> tuple[Contender, list[str]]:
    """A contender of the fastest way that gives all rows, and what was wrong with other ways.

    PeerError where none works.
    """
    best: dict[Way, float] = {}
    wrong: list[str] = []
    for way in ways:
        contender = _contender(stored, way, cold=cold)
        try:
            seconds = statistics.median(contender.seconds() for _ in range(trials))
        except PeerError as error:
            wrong.append(f"{way.words} fails: {error}")
        else:
            wrong += [f"{way.words} gives wrong rows: {fault}" for fault in contender.faults[:1]]
            if not contender.faults:
                best[way] = seconds
        finally:
            contender.close()
    if not best:
        raise PeerError("; ".join(wrong))
    return _contender(stored, min(best, key=best.__getitem__), cold=cold), wrong


def _contender(stored: Stored, way: Way, *, cold: bool) -> Contender:
    spec = stored.of(way, local=not cold)
    words = f"{PEERS[way.peer].package} {stored.versions[way.peer]}, {way.words}"
    cached = spec.source.startswith("s3://") and way.peer != "lance"
    return stored.group.peers.contender(words, spec, cold=cold, cached=cached)


def _rows(title: str, found: Sequence[Found]) -> list[Row]:
    """A row for each peer."""
    ours, *peers = found
    return [_row(f"{title}, beside {peer.name}", ours, peer) for peer in peers]


def _row(measure: str, ours: Found, peer: Found) -> Row:
    note = "; ".join(word for word in (peer.words, *peer.faults) if word)
    if len(peer.rates) < len(ours.rates):  # it failed
        return Row(measure, "rows/s", ours.spread, rounds=len(ours.rates), note=note)
    ratios = [a / b for a, b in zip(ours.rates, peer.rates, strict=True)]
    return Row(
        measure,
        "rows/s",
        ours.spread,
        peer.spread,
        peer.name,
        Spread.of(ratios),
        len(ours.rates),
        note=note,
    )


def _joined(measure: str, found: Sequence[Found]) -> Row:
    """One row for all peers: the fastest beside ours, the others in `others`."""
    ours, *peers = found
    ran = [peer for peer in peers if len(peer.rates) == len(ours.rates)]
    faults = "; ".join(f"{peer.name}, {fault}" for peer in peers for fault in peer.faults)
    if not ran:
        return Row(measure, "rows/s", ours.spread, rounds=len(ours.rates), note=faults)
    best = max(ran, key=lambda peer: peer.spread.median)
    row = _row(measure, ours, best)
    words = "; ".join(peer.words for peer in ran)
    return replace(
        row,
        note="; ".join(word for word in (words, faults) if word),
        others={peer.name: peer.spread for peer in ran if peer is not best},
    )


def draw(out: Path) -> None:
    """Plots of the sweep, from the results in `out`: rows/s over the size of a row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = json.loads((out / "peers.json").read_text("utf-8"))["rows"]
    for kind, words in PLOTS.items():
        curves: dict[str, list[tuple[int, float]]] = {"ours": []}
        for row in rows:
            size = re.match(rf"sweep, {kind}, ([\d,]+) B rows", row["measure"])
            if size is not None:
                named = {"ours": row["value"], **row["others"]}
                named |= {row["plain_name"]: row["plain"]} if row["plain"] else {}
                for name, spread in named.items():
                    point = int(size[1].replace(",", "")), spread["median"]
                    curves.setdefault(name, []).append(point)
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        for name in ("ours", *PEERS):  # the same colour in both plots
            points = sorted(curves.get(name, []))
            style = {"linewidth": 2.5} if name == "ours" else {"linewidth": 1.2}
            axes.plot(*zip(*points, strict=True) if points else ((), ()), "o-", label=name, **style)
        axes.set(xscale="log", yscale="log", xlabel="bytes of a row", ylabel="rows/s", title=words)
        axes.grid(alpha=0.3)
        axes.legend(handles=[line for line in axes.lines if len(line.get_xdata())])
        figure.savefig(out / f"peers_{kind}.png", dpi=150)
        pyplot.close(figure)


BENCHMARK = Benchmark("Loading beside other libraries", run, draw)
