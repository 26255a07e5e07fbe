"""The benchmarks beside other libraries run, and notice rows that are wrong.

Without those libraries torch's own DataLoader takes part, in a process like theirs; a Python that
has them is named by STORAGE_LOADER_BENCH_PEERS.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peer_loaders import Spec, firsts_of, lengths_of, timed
from benchmarks.runner import Effort
from benchmarks.setting import PEERS_VARIABLE, Setting

pytest.importorskip("torch")

from benchmarks import peers_ragged

LENGTHS = (1, 9)
ROWS = 40
QUICK = Effort(rounds=1, trials=1, quick=True)


@pytest.mark.usefixtures("torch_once")
@pytest.mark.parametrize("form", ["tokens, torch, nested", "text of 1 KB, list of str"])
def test_rows_that_differ_in_length_are_raced(tmp_path: Path, form: str) -> None:
    measure = f"warm epoch, {form}, beside torch"
    with Setting(QUICK, tmp_path, only=measure) as setting:
        [row] = peers_ragged.run(setting)
    assert row.measure == measure
    assert row.plain is not None, row.note  # what failed says why
    assert row.plain.median > 0
    assert row.holds is None


@pytest.mark.skipif(not os.environ.get(PEERS_VARIABLE), reason=f"needs {PEERS_VARIABLE}")
@pytest.mark.parametrize(
    "only", ["tokens, padded", "text of 1 KB, list", "save tokens"], ids=lambda words: words
)
def test_every_peer_gives_all_rows(tmp_path: Path, only: str) -> None:
    with Setting(QUICK, tmp_path, only=only) as setting:
        rows = list(peers_ragged.run(setting))
    assert {row.plain_name for row in rows} >= {"streaming", "litdata", "webdataset", "lance"}


@pytest.mark.parametrize("form", ["ragged", "padded", "text"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("", ""),
        ("lost", "of 40 rows 1 missing"),
        ("twice", "of 40 rows 1 doubled"),
        ("longer", "of 40 rows 1 with other values"),
        ("first", "of 40 rows 1 with other values"),
    ],
)
def test_an_epoch_is_checked_row_by_row(form: str, fault: str, words: str) -> None:
    dtype = "uint8" if form == "text" else "int32"
    spec = Spec("torch", "", ROWS, dtype, (5,), ROWS, lengths=LENGTHS, form=form)
    numbers = np.arange(ROWS)
    lengths = lengths_of(ROWS, *LENGTHS)
    firsts = firsts_of(numbers, text=form == "text")
    lengths[7] += fault == "longer"
    firsts[7] += fault == "first"
    if fault == "lost":
        numbers, lengths, firsts = numbers[1:], lengths[1:], firsts[1:]
    if fault == "twice":
        numbers, lengths, firsts = (np.append(x, x[:1]) for x in (numbers, lengths, firsts))
    rows = [np.full(n, first, dtype) for n, first in zip(lengths, firsts, strict=True)]
    _, found = timed(spec, 0.0, [(batch_of(form, rows), numbers)])
    assert found == words


def batch_of(form: str, rows: list[np.ndarray]) -> object:
    lengths = np.array([len(row) for row in rows])
    if form == "text":
        return [row.tobytes().decode() for row in rows]
    if form == "ragged":
        return np.concatenate(rows), np.append(0, np.cumsum(lengths))
    padded = np.zeros((len(rows), lengths.max()), np.int32)
    for to, row in zip(padded, rows, strict=True):
        to[: len(row)] = row
    return padded, lengths
