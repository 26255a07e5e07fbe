"""Rows that differ in length beside other libraries: tokens and text, loaded and saved.

As in peers.py, which says how the peers come in: ours in this process, a peer in one of its own, in
turn, each epoch checked to have given every row once with its first value and its length. All read
folders whose files are in memory, shuffled. Tokens: int32, 16 to 2,048 a row, batches of 64. Text:
512 to 1,536 characters, batches of 256. Each peer is asked by the number of its processes that a
trial found fastest: 0, 1 or 2. There are four forms of a batch of tokens:

- ragged: values and offsets, as arrays (ours) or tensors (peers).
- padded: up to the longest row, and lengths, as arrays (ours) or tensors (peers).
- torch, nested; torch, padded: tensors of both.

streaming, litdata and webdataset get a row as one blob of bytes, its number first, which they read
faster than columns or arrays of their own; a batch is joined from the blobs at once, which is
faster than what torch's users do: "usual litdata" does that, by `torch.cat`, `pad_sequence` or a
nested tensor of a list. Lance has a list column; its offsets and values are taken as they are. It
is asked twice: rows in random order, by `take`, and "scan", fragments in random order, whose rows
come as they are stored. torch is its DataLoader over numpy memory maps. streaming shuffles over all
rows, litdata chunks and 256 rows within, webdataset shards and a buffer of 1,000 rows; ours within
its default windows.

Saving: rows in memory to a folder, by one process. Ours is on disk when it is done; peers leave
that to the kernel.

`--only` measures some of them, e.g. `--only "tokens, padded, beside litdata"`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import storage_loader.torch
from storage_loader import Attribute, DataConfig, DataLoader

from .data import OBJECT_NBYTES
from .peer_loaders import PEERS, Batch, timed
from .peer_race import Found, race, table_rows
from .peer_stored import Data, Group, Stored, Way, make, save, stored_in_all_formats
from .runner import Row
from .setting import Benchmark, Setting

NUMBER = Attribute("number", "int64")
TOKENS = (Attribute("tokens", "int32", (None,)), NUMBER)
TEXT = (Attribute("text", "str"), NUMBER)
BATCH, TEXT_BATCH = 64, 256
TRIAL_ROWS = 32_000  # of an epoch in a trial

# What is asked of each peer; the first word is its name.
BY_ROW = ("streaming", "litdata", "webdataset")
PEER_WAYS = {
    **{peer: [Way(peer, n) for n in (0, 1, 2)] for peer in BY_ROW},
    "usual litdata": [Way("litdata", n, "usual") for n in (0, 1, 2)],
    "lance": [Way("lance", threads) for threads in (0, 2, 4)],
    "lance scan": [Way("lance", 0, "scan")],
    "torch": [Way("torch", n) for n in (0, 1, 2)],
}
WRITERS = ("streaming", "litdata", "webdataset", "lance")


class Form:
    """How a batch holds rows that differ, and our loader that gives it."""

    def __init__(
        self, words: str, form: str, loader: Callable[..., Any], at_least: float, **settings: Any
    ) -> None:
        self.words, self.form, self.at_least = words, form, at_least
        self._loader, self._settings = loader, settings

    def epoch(self, stored: Stored) -> Callable[[], float]:
        """Seconds of our epochs, checked."""
        data = stored.data
        name = data.attributes[0].name
        loader = self._loader(stored.config, data.batch, shuffle=True, **self._settings)
        spec = replace(stored.spec, form=self.form)

        def batches() -> Iterator[Batch]:
            for batch in loader:
                x = batch[name]
                if self.form == "ragged":
                    x = x.values, x.offsets
                elif self.form == "padded":
                    x = x, batch[f"{name}_length"]
                yield x, batch["number"]

        def load() -> float:
            seconds, fault = timed(spec, time.perf_counter(), batches())
            if fault:
                raise AssertionError(fault)
            return seconds

        return load


TORCH = storage_loader.torch.DataLoader
PAD = {"tokens": 0}
TOKEN_FORMS = (
    Form("ragged", "ragged", DataLoader, 5),
    Form("padded", "padded", DataLoader, 4, pad=PAD),
    Form("torch, nested", "nested", TORCH, 5),
    Form("torch, padded", "padded", TORCH, 4, pad=PAD),
)
TEXT_FORMS = (Form("list of str", "text", DataLoader, 3),)


def run(setting: Setting) -> Iterator[Row]:
    rows = setting.pick(250_000, 2000)
    tokens = Data("tokens", "tokens", TOKENS, rows, BATCH, (16, 2048))
    text = Data("text", "text of 1 KB", TEXT, rows, TEXT_BATCH, (512, 1536))
    for data, forms in ((tokens, TOKEN_FORMS), (text, TEXT_FORMS)):
        yield from _loaded(setting, data, forms)
        yield from _saved(setting, data)


def _loaded(setting: Setting, data: Data, forms: Sequence[Form]) -> Iterator[Row]:
    wanted = [
        (form, ways, measure)
        for form in forms
        for peer, ways in PEER_WAYS.items()
        if (ways[0].peer == "torch" or setting.peers)
        and (form.form != "text" or ways[0].way != "usual")  # nothing to collate
        and setting.wants(measure := f"warm epoch, {data.words}, {form.words}, beside {peer}")
    ]
    if not wanted:
        return
    names = dict.fromkeys(ways[0].peer for _, ways, _ in wanted)
    trial = -(-TRIAL_ROWS // data.batch) if data.rows > TRIAL_ROWS else 0
    group = Group(setting, tuple(names), on_s3=False)
    with stored_in_all_formats(group, data, on_s3=False) as stored:
        for form, ways, measure in wanted:
            asked = replace(stored, spec=replace(stored.spec, form=form.form))
            tried = ways[: setting.pick(len(ways), 1)]
            found = race(asked, tried, form.epoch(stored), cold=False, trial=trial)
            [row] = table_rows("", found)
            yield _judged(replace(row, measure=measure), ways[0].peer, form.at_least)


def _saved(setting: Setting, data: Data) -> Iterator[Row]:
    """Our saver beside each peer's writer, in turn."""
    measures = {peer: f"save {data.words} to a folder, beside {peer}" for peer in WRITERS}
    wanted = [peer for peer, measure in measures.items() if setting.wants(measure)]
    if not wanted or not setting.peers:
        return
    arrays = setting.folder()
    make(data, arrays)
    for peer in wanted:
        yield _judged(_raced_saving(setting, data, arrays, peer, measures[peer]), peer, 5)
    shutil.rmtree(arrays)


def _raced_saving(setting: Setting, data: Data, arrays: Path, peer: str, measure: str) -> Row:
    peers = Group(setting, on_s3=False).peers
    words = ""

    def ours() -> float:
        folder = setting.folder()
        seconds = save(DataConfig(data.name, data.attributes, storage=folder), data, arrays)
        shutil.rmtree(folder)
        return seconds

    def theirs() -> float:
        nonlocal words
        folder = setting.folder()
        version, seconds = peers.write(peer, arrays, folder, data.rows, OBJECT_NBYTES)
        words = f"{PEERS[peer].package} {version}"
        shutil.rmtree(folder)
        return seconds

    sides = (ours, theirs)
    rates: tuple[list[float], list[float]] = ([], [])
    ours()  # imports
    for index in range(setting.effort.rounds):
        for side in (0, 1) if index % 2 else (1, 0):
            os.sync()
            rates[side].append(data.rows / sides[side]())
    found = [Found("ours", rates=rates[0]), Found(peer, words, rates=rates[1])]
    [row] = table_rows("", found)
    return replace(row, measure=measure)


def _judged(row: Row, peer: str, at_least: float) -> Row:
    """With the target, where it was measured; torch's own DataLoader has none."""
    return replace(row, at_least=at_least) if row.ratio and peer != "torch" else row


BENCHMARK = Benchmark("Rows that differ in length, beside other libraries", run)
