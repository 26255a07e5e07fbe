"""Loaders of other libraries, timed: run by a Python that has them, imports nothing of ours.

`python peer_loaders.py` answers each line of standard input, a JSON job, by one JSON line.

- {"do": "write", "peer", "arrays", "out", "rows", "shard"}: store the first `rows` rows of the
  folder `arrays` (x.npy and number.npy, and ends.npy where rows differ in length) in the peer's
  format, in the folder `out`, in shards of `shard` bytes, and give {"version", "seconds"}: those
  of writing, before which rows that differ are brought into memory.
- {"do": "prepare", "peer"}: import what the peer's loader needs, which is not to be timed.
- {"do": "epoch", "spec"}: the first epoch of a loader that `spec` (see Spec) asks for, timed with
  its construction; or, where `spec` is null, the next epoch of that loader. It gives
  {"seconds", "fault"}; the fault is empty where every row came once, with its own values.

An error is {"error": text}. The S3 server's settings are in the environment, under the names that
boto3 and object_store know.

The peers that decode row by row (streaming, litdata, webdataset) get each row as one blob, its
number before its values: they decode that fastest. Batches are copied together here, which is
faster than their own collating. streaming's own DataLoader only counts samples for checkpoints,
and needs transformers; torch's takes its place.

Rows that differ in length are int32 tokens, or text (uint8: the bytes of ASCII). x.npy then holds
them one after another.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import math
import operator
import os
import sys
import tarfile
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Values (rows, *shape), or what `Spec.form` says; and the rows' numbers (rows,): arrays or tensors.
Batch = tuple[Any, Any]
Epoch = Callable[[int], Iterable[Batch]]

MARK = 251  # the first value of a row is its number modulo this,
TEXT_MARK = 95  # of text, a character: that of 32 and its number modulo this
SMALL = 4096  # bytes of a row from which copying rows one by one is faster than joining them
READ_AHEAD = 256 * 2**20  # bytes


@dataclass(frozen=True)
class Spec:
    """A loader: what it reads, and how."""

    peer: str
    source: str  # a folder, or an s3:// URL; for torch the folder of the arrays
    rows: int
    dtype: str  # of one row's values
    shape: tuple[int, ...]
    batch: int
    cache: str = ""  # an empty folder, for peers that keep what they fetched
    shard: int = 64 * 2**20  # bytes that a shard has at most, as it was written
    workers: int = 0  # processes; for Lance, threads that take ahead
    way: str = ""  # one of the peer's own; what it means stands at its loader
    lengths: tuple[int, int] = (0, 0)  # of rows that differ: least and most; `shape` is their mean
    # Of rows that differ: "ragged" is (values, offsets), "nested" a jagged tensor of torch,
    # "padded" (rows up to the longest one, lengths), "text" a list of str.
    form: str = ""
    limit: int = 0  # batches of an epoch; 0: all

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row's values."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def shard_rows(self) -> int:
        """Rows of a shard."""
        return max(1, self.shard // self.row_nbytes)

    @property
    def rows_of_epoch(self) -> int:
        """Rows that an epoch gives."""
        return min(self.rows, self.limit * self.batch or self.rows)

    @property
    def prefetch(self) -> int:
        """Rows that are fetched ahead: as many bytes as ours fetch by default."""
        return max(2 * self.batch, READ_AHEAD // self.row_nbytes)


def lengths_of(rows: int, least: int, most: int) -> Array:
    """How long each row is: the same numbers each time."""
    return np.random.default_rng(0).integers(least, most + 1, rows)


def firsts_of(numbers: Array, *, text: bool = False) -> Array:
    """The first value of each row."""
    return 32 + numbers % TEXT_MARK if text else numbers % MARK


def timed(spec: Spec, start: float, batches: Iterable[Batch]) -> tuple[float, str]:
    """Seconds from `start` to the last batch, and what was wrong with the rows."""
    numbers, seen, end = [], [], start
    look = _LOOKS[spec.form]
    for x, number in batches:
        numbers.append(np.asarray(number).copy())
        seen.append(look(x, len(number)))
        end = time.perf_counter()
        if len(numbers) == spec.limit:
            break
    if not numbers:
        return end - start, "no rows"
    columns = [np.concatenate(parts) for parts in zip(*seen, strict=True)]
    return end - start, _fault(spec, np.concatenate(numbers), *columns)


def _fault(spec: Spec, numbers: Array, firsts: Array, lengths: Array | None = None) -> str:
    """What is wrong with these rows; empty where nothing is."""
    if not 0 <= numbers.min() <= numbers.max() < spec.rows:
        return "row numbers that the dataset does not have"
    expected = spec.rows_of_epoch
    counts = np.bincount(numbers, minlength=spec.rows)
    wrong = firsts != firsts_of(numbers, text=spec.form == "text")
    if lengths is not None:
        wrong |= lengths != lengths_of(spec.rows, *spec.lengths)[numbers]
    found = {
        "missing": max(0, expected - int((counts > 0).sum())),
        "doubled": int((counts > 1).sum()),
        "with other values": int(wrong.sum()),
    }
    words = [f"{count:,} {what}" for what, count in found.items() if count]
    return f"of {expected:,} rows {', '.join(words)}" if words else ""


# What a batch is known by: the first value of each row, and how many it has where they differ


def _look_array(x: Any, count: int) -> tuple[Array, ...]:
    return (np.asarray(x).reshape(count, -1)[:, 0].copy(),)


def _look_ragged(x: Any, count: int) -> tuple[Array, ...]:
    values, offsets = np.asarray(x[0]), np.asarray(x[1])
    return values[offsets[:-1]], np.diff(offsets)


def _look_nested(x: Any, count: int) -> tuple[Array, ...]:
    return _look_ragged((x.values(), x.offsets()), count)


def _look_padded(x: Any, count: int) -> tuple[Array, ...]:
    return np.asarray(x[0])[:, 0].copy(), np.asarray(x[1]).copy()


def _look_text(x: list[str], count: int) -> tuple[Array, ...]:
    firsts = np.fromiter(map(ord, map(_FIRST, x)), np.uint8, count)
    return firsts, np.fromiter(map(len, x), np.int64, count)


_FIRST = operator.itemgetter(0)
_LOOKS: dict[str, Callable[[Any, int], tuple[Array, ...]]] = {
    "": _look_array,
    "ragged": _look_ragged,
    "nested": _look_nested,
    "padded": _look_padded,
    "text": _look_text,
}


# Rows that differ in length


class Rows:
    """Rows one after another in memory, and where each ends."""

    def __init__(self, values: Array, ends: Array) -> None:
        self.values = values
        self.offsets = np.append(0, ends)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, some: slice) -> Rows:
        start, stop, _ = some.indices(len(self))
        offsets = self.offsets[start : stop + 1]
        return Rows(self.values[offsets[0] : offsets[-1]], offsets[1:] - offsets[0])

    def __iter__(self) -> Iterator[Array]:
        places = self.offsets.tolist()
        return (self.values[a:b] for a, b in pairwise(places))


def _row_nbytes(x: Array | Rows) -> int:
    """Bytes of a row's values, of the mean one where they differ."""
    if isinstance(x, Rows):
        return len(x.values) // len(x) * x.values.itemsize
    return int(x[0].nbytes)


def _formed(spec: Spec, values: Array, offsets: Array) -> Any:
    """Rows that lie one after another, as `spec.form` says."""
    import torch

    if spec.form == "text":
        text, places = memoryview(values), offsets.tolist()  # type: ignore[arg-type]
        return [str(text[a:b], "utf-8") for a, b in pairwise(places)]
    if spec.form != "padded":
        return torch.from_numpy(values), torch.from_numpy(offsets)
    lengths = np.diff(offsets)
    padded = np.zeros((len(lengths), lengths.max()), spec.dtype)
    # Faster than torch's pad_sequence and than an array of indices.
    for row, (a, b) in zip(padded, pairwise(offsets.tolist()), strict=True):
        row[: b - a] = values[a:b]
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def _nested(spec: Spec, batches: Iterable[Batch]) -> Iterable[Batch]:
    """Where a jagged tensor is asked for: one around values and offsets, which costs no copy."""
    if spec.form != "nested":
        return batches
    import torch

    def wrapped(x: Any) -> Any:
        return torch.nested.nested_tensor_from_jagged(*x) if isinstance(x, tuple) else x

    return ((wrapped(x), number) for x, number in batches)


# Rows as blobs


def _blobs(x: Array | Rows, number: Array) -> Iterator[bytes]:
    for value, key in zip(x, number, strict=True):
        yield key.tobytes() + value.tobytes()


def _collate_lengths(spec: Spec, blobs: Sequence[Any]) -> Batch:
    """Blobs of rows that differ in length."""
    import torch

    number = np.frombuffer(b"".join([blob[:8] for blob in blobs]), np.int64).copy()
    if spec.form == "text":
        return [str(blob[8:], "utf-8") for blob in blobs], torch.from_numpy(number)
    if spec.way == "usual":
        return _usual(spec, blobs), torch.from_numpy(number)
    joined = bytearray().join([memoryview(blob)[8:] for blob in blobs])
    offsets = np.zeros(len(blobs) + 1, np.int64)
    np.cumsum([len(blob) - 8 for blob in blobs], out=offsets[1:])
    values = np.frombuffer(joined, spec.dtype)
    return _formed(spec, values, offsets // values.itemsize), torch.from_numpy(number)


def _usual(spec: Spec, blobs: Sequence[Any]) -> Any:
    """A batch as torch's users make it, of a list of tensors."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    dtype = getattr(torch, spec.dtype)
    rows = [torch.frombuffer(blob, dtype=dtype, offset=8) for blob in blobs]
    if spec.form == "nested":
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    lengths = torch.tensor([len(row) for row in rows])
    if spec.form == "padded":
        return pad_sequence(rows, batch_first=True), lengths
    return torch.cat(rows), torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _collate(spec: Spec, key: str | None, rows: Sequence[Any]) -> Batch:
    """Blobs, or dicts that hold one under `key`, as a batch of tensors."""
    import torch

    blobs = [row[key] for row in rows] if key else rows
    if spec.form:
        return _collate_lengths(spec, blobs)
    if spec.row_nbytes < SMALL:
        packed = np.dtype([("number", "<i8"), ("x", spec.dtype, spec.shape)])
        joined = np.frombuffer(b"".join(blobs), packed)
        x, number = np.ascontiguousarray(joined["x"]), np.ascontiguousarray(joined["number"])
    else:
        x = np.empty((len(blobs), *spec.shape), spec.dtype)
        number = np.empty(len(blobs), np.int64)
        into = x.reshape(len(blobs), -1).view(np.uint8)
        for i, blob in enumerate(blobs):
            number[i] = int.from_bytes(blob[:8], "little", signed=True)
            into[i] = np.frombuffer(blob, np.uint8, offset=8)
    return torch.from_numpy(x), torch.from_numpy(number)


def _first(batch: Any) -> Any:
    return batch


def _torch_loader(spec: Spec, dataset: Any, loader: Any = None, **settings: Any) -> Any:
    import torch.utils.data

    if spec.workers:
        # An epoch that is not the loader's only one would start its processes again.
        settings |= {"num_workers": spec.workers, "persistent_workers": True, "prefetch_factor": 4}
    return (loader or torch.utils.data.DataLoader)(dataset, **settings)


# mosaicml-streaming


def _bare_package(*names: str) -> None:
    """Packages that find their modules without running their own `__init__`."""
    for name in names:
        if name not in sys.modules:
            top, *rest = name.split(".")
            spec = importlib.util.find_spec(top) if not rest else None
            places = spec.submodule_search_locations if spec else sys.modules[top].__path__
            module = types.ModuleType(name)
            module.__path__ = [str(Path(place, *rest)) for place in places or ()]
            sys.modules[name] = module


def _streaming(module: str) -> Any:
    _bare_package("streaming", "streaming.base")
    return importlib.import_module(f"streaming.base.{module}")


def _write_streaming(x: Array | Rows, number: Array, out: Path, shard: int) -> None:
    writer = _streaming("format.mds").MDSWriter
    with writer(out=str(out), columns={"row": "bytes"}, size_limit=shard) as file:
        for blob in _blobs(x, number):
            file.write({"row": blob})


def _open_streaming(spec: Spec) -> Epoch:
    """`way` "blocks": mixes within 3 shards, so that the first batches need few of them."""
    shuffle = {}
    if spec.way == "blocks":
        shuffle = {"shuffle_algo": "py1br", "shuffle_block_size": 3 * spec.shard_rows}
    remote = spec.source if spec.cache else None
    dataset = _streaming("dataset").StreamingDataset(
        remote=remote,
        local=spec.cache or spec.source,
        shuffle=True,
        batch_size=spec.batch,
        num_canonical_nodes=1,
        predownload=spec.prefetch,
        **shuffle,
    )
    if spec.workers:
        # Its client fetched the index; forked processes would share the open connection, mix up
        # each other's shards or wait 60 s for an answer.
        for stream in dataset.streams:
            stream._downloader.clean_up()
    loader = _torch_loader(
        spec, dataset, batch_size=spec.batch, collate_fn=partial(_collate, spec, "row")
    )
    return lambda epoch: loader


# litdata


def _write_litdata(x: Array | Rows, number: Array, out: Path, shard: int) -> None:
    from litdata.streaming import Cache

    cache = Cache(str(out), chunk_bytes=shard)
    for i, blob in enumerate(_blobs(x, number)):
        cache[i] = blob
    cache.done()
    cache.merge()


def _open_litdata(spec: Spec) -> Epoch:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # Its faster client refuses a server without TLS, and offers no setting for that.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    dataset = StreamingDataset(
        spec.source, cache_dir=spec.cache or None, shuffle=True, max_pre_download=4
    )
    loader = _torch_loader(
        spec,
        dataset,
        StreamingDataLoader,
        batch_size=spec.batch,
        collate_fn=partial(_collate, spec, None),
    )
    return lambda epoch: loader


# webdataset


def _tar_rows(row_nbytes: int, shard: int) -> int:
    """Rows of a shard: each has a header of 512 bytes, and is filled up to a multiple of 512."""
    return max(1, shard // (512 + (row_nbytes + 8 + 511) // 512 * 512))


def _write_webdataset(x: Array | Rows, number: Array, out: Path, shard: int) -> None:
    rows = _tar_rows(_row_nbytes(x), shard)
    for i, start in enumerate(range(0, len(x), rows)):
        part = slice(start, start + rows)
        with tarfile.open(out / f"{i:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as file:
            for key, blob in zip(number[part], _blobs(x[part], number[part]), strict=True):
                member = tarfile.TarInfo(f"{int(key):08d}.row")
                member.size = len(blob)
                file.addfile(member, io.BytesIO(blob))


_stores: dict[tuple[int, str], Any] = {}  # by process, as the client does not survive a fork


def _s3_stream(url: str, mode: str = "rb", bufsize: int = -1, **_: object) -> io.BytesIO:
    """An S3 object for webdataset, which itself would call a command line client."""
    import obstore
    from obstore.store import S3Store

    bucket, key = url.removeprefix("s3://").split("/", 1)
    found = _stores.get((os.getpid(), bucket))
    if found is None:
        found = _stores[os.getpid(), bucket] = S3Store(
            bucket, client_options={"timeout": "1h", "allow_http": True}
        )
    return io.BytesIO(obstore.get(found, key).bytes())


def _open_webdataset(spec: Spec) -> Epoch:
    import webdataset

    importlib.import_module("webdataset.gopen").gopen_schemes["s3"] = _s3_stream
    shards = -(-spec.rows // _tar_rows(spec.row_nbytes, spec.shard))
    urls = [f"{spec.source}/{i:06d}.tar" for i in range(shards)]  # nothing lists them
    dataset = webdataset.WebDataset(
        urls,
        shardshuffle=len(urls),
        cache_dir=spec.cache or None,
        empty_check=False,  # a worker may get no shard
    )
    buffered = max(spec.batch, min(1000, 2**26 // spec.row_nbytes))
    dataset = dataset.shuffle(buffered).batched(
        spec.batch, collation_fn=partial(_collate, spec, "row")
    )
    loader = _torch_loader(spec, dataset, batch_size=None)
    return lambda epoch: loader


# Lance


def _write_lance(x: Array | Rows, number: Array, out: Path, shard: int) -> None:
    import lance
    import pyarrow as pa

    if isinstance(x, Rows):
        text = x.values.dtype == np.uint8
        kind = pa.string() if text else pa.list_(pa.from_numpy_dtype(x.values.dtype))
    else:
        values = int(np.prod(x.shape[1:]))
        kind = pa.list_(pa.from_numpy_dtype(x.dtype), values)
    schema = pa.schema([("x", kind), ("number", pa.int64())])
    step = max(1, 2**23 // _row_nbytes(x))

    def column_of(part: Any) -> Any:
        if not isinstance(part, Rows):
            flat = np.ascontiguousarray(part).reshape(-1)
            return pa.FixedSizeListArray.from_arrays(pa.array(flat), values)
        offsets = part.offsets.astype(np.int32)
        if text:
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(part.values)]
            return pa.Array.from_buffers(kind, len(part), buffers)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(part.values))

    def batches() -> Iterator[Any]:
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            column = column_of(x[part])
            numbers = pa.array(np.asarray(number[part]))
            yield pa.RecordBatch.from_arrays([column, numbers], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    lance.write_dataset(reader, str(out), max_bytes_per_file=shard)


def _open_lance(spec: Spec) -> Epoch:
    """`way` "scan": fragments in random order, the rows of each as stored; else global takes."""
    import lance
    import pyarrow as pa

    dataset = lance.dataset(spec.source)
    rng = np.random.default_rng(0)

    def arrays(found: Any) -> Batch:
        x, number = found.column("x"), found.column("number")
        if isinstance(x, pa.ChunkedArray):
            x, number = x.combine_chunks(), number.combine_chunks()
        return shaped(x), number.to_numpy()

    def shaped(x: Any) -> Any:
        if spec.form == "text":
            return x.to_pylist()
        if not spec.form:
            return x.flatten().to_numpy().reshape(-1, *spec.shape)
        offsets = x.offsets.to_numpy()
        return _formed(spec, x.flatten().to_numpy(), offsets - offsets[0])

    def scan(epoch: int) -> Iterator[Batch]:
        fragments = dataset.get_fragments()
        rng.shuffle(fragments)
        found = dataset.to_batches(
            columns=["x", "number"],
            batch_size=spec.batch,
            fragments=fragments,
            batch_readahead=max(4, spec.prefetch // spec.batch),
            scan_in_order=False,
        )
        return map(arrays, found)

    def take(epoch: int) -> Iterator[Batch]:
        order = rng.permutation(spec.rows)
        # Of a batch the order does not matter; sorted rows are read in fewer pieces.
        chosen = (np.sort(order[i : i + spec.batch]) for i in range(0, spec.rows, spec.batch))

        def one(rows: Array) -> Batch:
            return arrays(dataset.take(pa.array(rows), columns=["x", "number"]))

        if not spec.workers:
            yield from map(one, chosen)
            return
        ahead: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(spec.workers) as pool:
            for rows in chosen:
                ahead.append(pool.submit(one, rows))
                if len(ahead) > 2 * spec.workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    return scan if spec.way == "scan" else take


# torch's own DataLoader


class _Mapped:
    """Memory maps of x.npy and number.npy, that give a batch for an array of row numbers."""

    def __init__(self, spec: Spec) -> None:
        folder = Path(spec.source)
        self._spec = spec
        self._x = np.load(folder / "x.npy", mmap_mode="r")
        self._number = np.load(folder / "number.npy", mmap_mode="r")
        if spec.form:
            self._offsets = np.append(0, np.load(folder / "ends.npy"))
            self._memory = memoryview(self._x)  # type: ignore[arg-type]

    def __getitem__(self, rows: Array) -> Batch:
        import torch

        number = torch.from_numpy(np.asarray(np.take(self._number, rows)))
        if self._spec.form:
            return self._differing(rows), number
        return torch.from_numpy(np.asarray(np.take(self._x, rows, axis=0))), number

    def _differing(self, rows: Array) -> Any:
        starts, stops = self._offsets[rows], self._offsets[rows + 1]
        places = zip(starts.tolist(), stops.tolist(), strict=True)
        joined = bytearray().join([self._memory[a:b] for a, b in places])
        offsets = np.append(0, np.cumsum(stops - starts))
        return _formed(self._spec, np.frombuffer(joined, self._spec.dtype), offsets)


class _Permutation:
    """Sampler of batches of row numbers: arrays, since torch's own make a list of ints."""

    def __init__(self, rows: int, batch: int) -> None:
        self._rows, self._batch = rows, batch
        self._rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Array]:
        order = self._rng.permutation(self._rows)
        return (order[i : i + self._batch] for i in range(0, self._rows, self._batch))

    def __len__(self) -> int:
        return math.ceil(self._rows / self._batch)


def _open_torch(spec: Spec) -> Epoch:
    loader = _torch_loader(
        spec,
        _Mapped(spec),
        batch_size=None,
        sampler=_Permutation(spec.rows, spec.batch),
        collate_fn=_first,
    )
    return lambda epoch: loader


@dataclass(frozen=True)
class Peer:
    """A library: its package, what it imports at once or later, and two functions."""

    package: str
    modules: tuple[str, ...]
    open: Callable[[Spec], Epoch]
    write: Callable[[Any, Array, Path, int], None] | None = None  # (x, number, folder, bytes)


PEERS = {
    "streaming": Peer(
        "mosaicml-streaming", ("torch.utils.data", "boto3"), _open_streaming, _write_streaming
    ),
    "litdata": Peer(
        "litdata",
        ("litdata.streaming.downloader", "boto3", "obstore.store"),
        _open_litdata,
        _write_litdata,
    ),
    "webdataset": Peer(
        "webdataset",
        ("webdataset", "torch.utils.data", "obstore.store"),
        _open_webdataset,
        _write_webdataset,
    ),
    "lance": Peer("pylance", ("lance", "pyarrow"), _open_lance, _write_lance),
    "torch": Peer("torch", ("torch.utils.data",), _open_torch),
}


def _stored(arrays: Path, rows: int) -> Array | Rows:
    """What is to be written; rows that differ in length are brought into memory."""
    ends = arrays / "ends.npy"
    if ends.exists():
        return Rows(np.load(arrays / "x.npy"), np.load(ends))[:rows]
    return np.load(arrays / "x.npy", mmap_mode="r")[:rows]


class _Server:
    """Answers jobs; holds the loader of the epochs."""

    def __init__(self) -> None:
        self._spec: Spec | None = None
        self._epoch: Epoch | None = None
        self._number = 0

    def write(self, peer: str, arrays: str, out: str, rows: int, shard: int) -> dict[str, object]:
        """See the module's docstring."""
        x = _stored(Path(arrays), rows)
        number = np.load(Path(arrays, "number.npy"), mmap_mode="r")[:rows]
        write = PEERS[peer].write
        self.prepare(peer)
        start = time.perf_counter()
        if write is not None:
            Path(out).mkdir(parents=True)
            write(x, number, Path(out), shard)
        seconds = time.perf_counter() - start
        return {"version": version(PEERS[peer].package), "seconds": seconds}

    def prepare(self, peer: str) -> dict[str, object]:
        """See the module's docstring."""
        for name in PEERS[peer].modules:
            module = importlib.import_module(name)
            if name == "boto3":  # which imports most of itself for its first client
                module.session.Session().client("s3")
        if peer == "streaming":
            _streaming("dataset")
        return {}

    def epoch(self, spec: dict[str, Any] | None) -> dict[str, object]:
        """See the module's docstring."""
        start = time.perf_counter()
        if spec is not None:
            self._spec, self._number = replace(Spec(**spec), shape=tuple(spec["shape"])), 0
            self._epoch = PEERS[self._spec.peer].open(self._spec)
        assert self._spec is not None
        assert self._epoch is not None
        batches = _nested(self._spec, self._epoch(self._number))
        seconds, fault = timed(self._spec, start, batches)
        self._number += 1
        return {"seconds": seconds, "fault": fault}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peers print is no answer
    server = _Server()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = getattr(server, job.pop("do"))(**job)
        except Exception as error:
            # Of an error in a worker process, the text holds the traceback.
            text = (str(error).strip().splitlines() or [""])[-1]
            answer = {"error": f"{type(error).__name__}: {text}"[:200]}
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
