"""What the soak calls right and wrong: each of its checks fails where it should."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak import Ledger, _check_generations
from benchmarks.soak_actors import (
    CLOCKS,
    Journal,
    Pace,
    _spared_until,
    read_epoch,
    read_journal,
    to_drop,
)
from benchmarks.soak_curves import KILLED, POINTS, flat
from benchmarks.soak_rows import (
    ATTRIBUTES,
    Drawn,
    Job,
    check_values,
    generation_of,
    held,
    make,
    rows_of_commits,
    writer_of,
)
from storage_loader import DataConfig, DataLoader, DataSaver, LoggedCommit, save
from storage_loader.catalog import Version

APPEND = next(drawn for i in range(1, 99) if not (drawn := Drawn("append", i)).fails)
FAILED = next(drawn for i in range(1, 99) if (drawn := Drawn("append", i)).fails)
JOB = Job(1, 7)
COMMITS = [
    f"{1:012d}-{JOB.writer}-000000",
    f"{2:012d}-0a1b-000000",
    f"{3:012d}-{JOB.writer}-000001",
]
COUNTS = [3, len(APPEND.numbers), 2]
NUMBERS = np.array(
    [*range(JOB.first, JOB.first + 3), *APPEND.numbers, JOB.first + 3, JOB.first + 4]
)


def test_a_row_has_the_values_of_its_number() -> None:
    rows = make([0, 5, 10**10 + 1])
    assert [a.name for a in ATTRIBUTES] == list(rows)
    assert len(np.unique(rows["values"])) == rows["values"].size
    check_values(rows)
    for name in ("values", "mark"):
        wrong = {**rows, name: rows[name].copy()}
        wrong[name][1, -1] += 1
        with pytest.raises(AssertionError, match=r"wrong values in rows \[5\]"):
            check_values(wrong)


def test_what_a_version_holds_of_each_writer() -> None:
    assert (writer_of(COMMITS[0]), Job.of(JOB.writer), Job.of("0a1b")) == (JOB.writer, JOB, None)
    assert held(COMMITS, COUNTS, NUMBERS) == {JOB.writer: 5, APPEND.name: len(APPEND.numbers)}
    dropping = [*COMMITS[:2], f"{3:012d}-0c-000000"]
    assert held(dropping, [*COUNTS[:2], 0], NUMBERS[:-2])[JOB.writer] == 3


def _changed(change: Callable[[np.ndarray], object]) -> np.ndarray:
    numbers = NUMBERS.copy()
    change(numbers)
    return numbers


@pytest.mark.parametrize(
    ("commits", "counts", "numbers"),
    [
        (COMMITS, COUNTS, NUMBERS[:-1]),  # a row is missing
        (COMMITS, [*COUNTS[:2], 1], NUMBERS[:-1] + 1),  # the job's first one is
        (COMMITS, COUNTS, _changed(lambda n: n.__setitem__(1, n[0]))),  # one is there twice
        (COMMITS[1:], COUNTS[1:], NUMBERS[3:]),  # of a job the first commit is gone
        (COMMITS, [3, COUNTS[1] - 1, 2], np.delete(NUMBERS, 4)),  # half an append
        (COMMITS[1:2] * 2, COUNTS[1:2] * 2, np.tile(np.array(APPEND.numbers), 2)),  # one twice
        (COMMITS[1:2], [len(FAILED.numbers)], np.array(FAILED.numbers)),  # it has no commit
        (COMMITS, COUNTS, NUMBERS[::-1]),
    ],
)
def test_a_version_with_wrong_rows(
    commits: Sequence[str], counts: Sequence[int], numbers: np.ndarray
) -> None:
    with pytest.raises(AssertionError):
        held(commits, counts, numbers)


def test_one_generation_and_nothing_else() -> None:
    good = next(g for i in range(1, 99) if not (g := Drawn("generation", i)).fails)
    bad = next(g for i in range(1, 99) if (g := Drawn("generation", i)).fails)
    assert generation_of(np.array(good.numbers)) == good.number
    first = np.array(Drawn("generation", 0).numbers)
    for numbers in (
        np.array(good.numbers)[:-1],
        np.array(bad.numbers),
        np.concatenate([good.numbers, first]),
        np.empty(0, np.int64),
    ):
        with pytest.raises(AssertionError, match="are not one generation"):
            generation_of(numbers)


def test_an_epoch_of_what_savers_stored(tmp_path: Path) -> None:
    config = DataConfig("rows", ATTRIBUTES, storage=tmp_path)
    save(config, make(APPEND.numbers))
    with DataSaver(config, writer=JOB.writer) as saver:
        saver(make(range(JOB.first, JOB.first + 3)))
        saver.commit()
        saver(make(range(JOB.first + 3, JOB.first + 5)))
    loader = DataLoader(config, batch_size=100, shuffle=True, extras=("row",))
    found = held(loader.version.commits, rows_of_commits(loader), read_epoch(loader))
    assert found == {APPEND.name: len(APPEND.numbers), JOB.writer: 5}
    for wrong, said in (([0, 1, 1], "come twice"), ([0, 1], "did not come")):
        with pytest.raises(AssertionError, match=said):
            read_epoch(_Given(wrong))


class _Given:
    """Stands in for a loader of three rows that gives some of them in one batch."""

    num_rows = 3

    def __init__(self, rows: list[int]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        yield {**make(self._rows), "row": np.array(self._rows)}


def test_a_version_has_what_was_told_before() -> None:
    def notes(*values: tuple[float, str, int]) -> list[dict[str, object]]:
        return [{"at": at, "name": n, "writer": f"w-{n}", "rows": rows} for at, n, rows in values]

    told = notes((1, "a", 5), (2, "b", 3), (4, "a", 9))
    dropping, dropped = [{"at": 5, "writer": "w-b"}], [{"at": 6, "writer": "w-b"}]
    ledger = Ledger.of(told, dropping, dropped)
    ledger.check({"a": 5, "b": 3}, 3, 3.5)
    ledger.check({"a": 9, "b": 3}, 3, 4.5)  # more than was told yet
    ledger.check({"a": 9, "b": 1}, 4.5, 5.5)  # being dropped
    ledger.check({"a": 9}, 7, 8)
    for held_, begun, opened, said in (
        ({"a": 4, "b": 3}, 3, 3.5, "a has 4 rows, 5 are committed"),
        ({"a": 5, "b": 3}, 4.5, 4.6, "a has 5 rows, 9 are committed"),
        ({"a": 9}, 3, 4, "b has 0 rows, 3 are committed"),
        ({"a": 9, "b": 1}, 7, 8, "b was dropped, and 1 rows of it are there"),
    ):
        with pytest.raises(AssertionError, match=said):
            ledger.check(held_, begun, opened)
    assert ledger.expected() == {"a": 9}


def test_generations_are_seen_in_order() -> None:
    told = [{"at": 1.0, "number": 1}, {"at": 5.0, "number": 2}]
    _check_generations(told, [{"at": 2.0, "begun": 1.5, "number": 1}])
    _check_generations(told, [{"at": 6.0, "begun": 4.0, "number": 1}])
    with pytest.raises(AssertionError, match="generation-1 after 2"):
        _check_generations(told, [{"at": 6.0, "begun": 5.5, "number": 1}])
    early = {"at": 3.0, "begun": 2.0, "number": 2}  # before its saver was told
    with pytest.raises(AssertionError, match="generation-1 after 2"):
        _check_generations(told, [early, {"at": 4.0, "begun": 3.5, "number": 1}])


def test_what_is_flat() -> None:
    level = [(float(at), 100.0) for at in range(100)]
    assert flat("memory, x", "MB", level, 100, 0.1, 8).holds
    grows = [(at, value + at) for at, value in level]  # 137 in the second, 187 in the last quarter
    row = flat("memory, x", "MB", grows, 100, 0.1, 8)
    assert not row.holds
    assert row.at_most == pytest.approx(131 * 1.1 + 8)
    bursts = [(at, value + 200 * (at > 75 and at % 2)) for at, value in level]
    assert flat("memory, x", "MB", bursts, 100, 0.1, 8).holds
    assert len(row.curve) == POINTS
    assert flat(f"memory, {KILLED}", "MB", grows, 100, 0.1, 8).holds is None
    with pytest.raises(ValueError, match="no samples of the second or the last quarter"):
        flat("memory, x", "MB", grows[:70], 100, 0.1, 8)


def _logged(
    seq: int, writer: str, rows: int, replaces: tuple[str, ...] = (), is_live: bool = True
) -> LoggedCommit:
    time = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seq)
    name = f"{seq:012d}-{writer}-000000"
    return LoggedCommit(name, writer, time, rows, 1, 1, replaces, is_live, Version((name,)))


def test_the_oldest_writers_are_dropped_but_no_job_that_may_go_on() -> None:
    pace = replace(Pace(), max_rows=99)
    log = [
        _logged(1, "0a", 30),
        _logged(2, Job(0, 0).writer, 30),
        _logged(3, Job(1, 0).writer, 10),
        _logged(4, "0b", 10, is_live=False),
        _logged(5, Job(0, 0).writer, 10),
        _logged(6, Job(0, 1).writer, 20),
    ]
    assert to_drop(log, pace) == ["0a"]
    assert to_drop(log, replace(pace, max_rows=100)) == []
    assert to_drop(log, replace(pace, max_rows=1)) == ["0a", Job(0, 0).writer]


def test_commits_are_spared_since_they_were_replaced() -> None:
    log = [_logged(1, "0a", 1), _logged(2, "0b", 1), _logged(9, "0c", 0, (f"{1:012d}-0a-000000",))]
    now, spare = log[0].time + timedelta(seconds=20), timedelta(seconds=Pace().keep - CLOCKS)
    assert _spared_until([log[1].id], log, now, Pace()) == now + spare
    assert _spared_until([log[0].id, log[1].id], log, now, Pace()) == log[2].time + spare


def test_a_journal_of_a_killed_process_is_read_up_to_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert read_journal(path) == []
    Journal(path).note("told", rows=3)
    with path.open("a") as file:
        file.write('{"what": "to')
    [note] = read_journal(path)
    assert (note["what"], note["rows"]) == ("told", 3)
