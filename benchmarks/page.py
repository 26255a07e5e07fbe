"""`results/README.md`: the figures as a visitor reads them, made from the JSON files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .text import number, target

HEAD = """# Results

Medians. Both sides of a ratio run in turn, and it is taken within each round. The JSON files hold
the quartiles, all rows and notes, the machine and the versions; each benchmark's module says what
it does. `make bench` measures your machine, `python -m benchmarks NAME` one question.

With a light server objects come from nginx (`--server light`, `apt-get install nginx-light`), which
leaves the cores to the loaders. A real S3 server on the same cores takes more of them than any
loader does.
"""


@dataclass(frozen=True)
class Headline:
    """One figure on top of the page."""

    what: str
    file: str
    words: str  # separated by commas: the first row whose measure holds all of them


@dataclass(frozen=True)
class Question:
    """A table for each of `files`, with the rows in whose measure, or note, `shown` is found."""

    title: str
    files: Sequence[str]
    shown: str = ""
    beside: str = ""  # other files that answer it
    columns: bool = False  # one for each of those that were measured beside it


HEADLINES = (
    Headline(
        "First epoch from S3, 48 KiB rows, beside MosaicML Streaming",
        "peers_light_server",
        "first epoch, 48 KiB, beside streaming",
    ),
    Headline(
        "the same beside litdata", "peers_light_server", "first epoch, 48 KiB, beside litdata"
    ),
    Headline(
        "the same beside webdataset", "peers_light_server", "first epoch, 48 KiB, beside webdataset"
    ),
    Headline("the same beside Lance", "peers_light_server", "first epoch, 48 KiB, beside lance"),
    Headline("Random rows from S3, beside Lance", "peers_light_server", "by index, beside lance"),
    Headline(
        "Later epochs, beside litdata, the fastest of these",
        "peers",
        "second epoch, 48 KiB, beside litdata",
    ),
    Headline(
        "First epoch of a new loader, rows in memory, beside a plain memory map",
        "load_again_light_server",
        "first epoch, shuffle=True",
    ),
    Headline("`Dataset[i]`, a row in memory", "load_again_light_server", "Dataset[i]"),
    Headline("Saving to S3, beside plain PUTs", "save_s3", "save 150 KB"),
    Headline(
        "Tokens, 16 to 2,048 a row, in later epochs, beside litdata",
        "peers_ragged",
        "tokens, ragged, beside litdata",
    ),
    Headline(
        "the same beside Lance's scan, which shuffles no rows",
        "peers_ragged",
        "tokens, ragged, beside lance scan",
    ),
    Headline(
        "Opening a million objects from S3", "open_dataset", "opening 1,000,000 objects in, from S3"
    ),
    Headline(
        "the same, their rows of variable length",
        "open_dataset",
        "opening 1,000,000, variable, from S3",
    ),
)

QUESTIONS = (
    Question("How fast is it beside other libraries?", ("peers_light_server", "peers")),
    Question(
        "And over the size of a row?",
        ("peer_sweep_light_server",),
        columns=True,
        beside="[cold](peer_sweep_cold.png) and [warm](peer_sweep_warm.png) with a real server",
    ),
    Question("How near is a first epoch to plain GETs?", ("load_s3", "load_far")),
    Question("How fast is what lies on this machine?", ("load_again_light_server", "load_folder")),
    Question("How fast are rows that differ in length?", ("peers_ragged", "ragged")),
    Question("What does compression cost?", ("compressed",)),
    Question("What do the frameworks cost?", ("frameworks",), r"DataLoader of (torch|tens|jax)"),
    Question("How fast is saving?", ("save_folder", "save_s3", "save_small_rows")),
    Question("How long does opening take?", ("open_dataset",), "^(opening|peak)"),
    Question(
        "How much memory does it take, and does it grow?",
        ("load_memory", "save_memory", "soak"),
        "^(own memory of|peak memory of saving|soak)",
        "[soak.png](soak.png), half an hour of savers, loaders and gc",
    ),
    Question(
        "What is fetched beyond the rows asked for?",
        ("index_bytes", "rank_bytes"),
        "^bytes asked|(1|2|8) ranks, shuffle=True, (49|3)",
    ),
    Question("What does the order cost?", ("order_cost",), "part of loading"),
    Question(
        "How well are rows mixed?",
        ("shuffle_quality",),
        "^100,000 rows of 49.*(uniform|global|the default|default|py1s)",
        "[shuffle_quality.md](shuffle_quality.md)",
    ),
    Question(
        "What does verifying cost, and who notices damage?",
        ("verification", "peer_damage"),
        "^cost|, 0 processes",
        "[peer_damage.md](peer_damage.md); [chaos.md](chaos.md), a thousand faults between library "
        "and server, which a test makes: `STORAGE_LOADER_TEST_SCALE=17.5 "
        "STORAGE_LOADER_TEST_RESULTS=benchmarks/results make test "
        'PYTEST_ARGS="-k every_row_under_faults"`',
    ),
    Question(
        "What do other values than the defaults change?",
        ("load_defaults_light_server",),
        r"\((slower|faster)\)$",
    ),
    Question("What did the last change cost?", ("change_light_server", "change")),
    Question("How fast is the way to a GPU?", ("gpu",)),
)


def page(out: Path) -> str:
    """The whole page, of the results that are in the folder."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    lines = [HEAD, *_headlines(found), *_plots(out)]
    for question in QUESTIONS:
        lines += _answered(question, found)
    return "\n".join(lines)


def _headlines(found: dict[str, Any]) -> Iterator[str]:
    yield "| | figure | ratio |\n|---|---|---|"
    for headline in HEADLINES:
        rows = found.get(headline.file, {"rows": []})["rows"]
        words = headline.words.split(", ")
        fits = (row for row in rows if all(word in row["measure"] for word in words))
        row = next(fits, None)
        if row is not None:
            yield f"| {headline.what} | {_figure(row)} | {_ratio(row)} |"
    yield ""


def _plots(out: Path) -> Iterator[str]:
    for name, words in (("cold", "First epochs"), ("warm", "Later epochs")):
        file = f"peer_sweep_light_server_{name}.png"
        if (out / file).exists():
            yield f"![{words} over the size of a row, beside other libraries]({file})\n"


def _answered(question: Question, found: dict[str, Any]) -> Iterator[str]:
    results = [(name, found[name]) for name in question.files if name in found]
    if not results:
        return
    yield f"## {question.title}\n"
    if question.beside:
        yield f"See also {question.beside}.\n"
    for name, result in results:
        shown = [r for r in result["rows"] if re.search(question.shown, _measure_and_note(r))]
        machine = result["machine"]
        command = f"python -m benchmarks {name.removesuffix('_light_server')}"
        command += " --server light" if name.endswith("_light_server") else ""
        yield (
            f"`{command}`: [{name}.json]({name}.json), {len(shown)} of {len(result['rows'])} rows; "
            f"commit {machine['commit']}, {machine['cpu']}, {machine['cores']} cores\n"
        )
        yield from _beside_all(shown) if question.columns else _beside_one(shown)
        yield ""


def _beside_one(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| measure | figure | beside | ratio | target |\n|---|---|---|---|---|"
    for row in rows:
        yield f"| {' | '.join(_cells(row))} |"


def _beside_all(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A column for each of those that were measured beside it."""
    names = sorted({name for row in rows for name in (*row["others"], row["plain_name"])})
    yield f"| measure | unit | storage_loader | {' | '.join(names)} |"
    yield "|---" * (3 + len(names)) + "|"
    for row in rows:
        every = {**row["others"], row["plain_name"]: row["plain"], "": row["value"]}
        figures = [number(every[name]["median"]) if name in every else "" for name in ["", *names]]
        yield f"| {_measure(row)} | {row['unit']} | {' | '.join(figures)} |"


def _measure(row: dict[str, Any]) -> str:
    return str(row["measure"]).removesuffix(", light server")


def _measure_and_note(row: dict[str, Any]) -> str:
    return _measure(row) + (f" ({row['note']})" if row["note"] else "")


def _cells(row: dict[str, Any]) -> list[str]:
    plain = row["plain"]
    return [
        _measure_and_note(row),
        _figure(row),
        f"{number(plain['median'])}: {row['plain_name']}" if plain else "",
        _ratio(row),
        target(row["at_least"], row["at_most"], row["holds"]),
    ]


def _figure(row: dict[str, Any]) -> str:
    return f"{number(row['value']['median'])} {row['unit']}"


def _ratio(row: dict[str, Any]) -> str:
    return number(row["ratio"]["median"]) if row["ratio"] else ""
