"""Results as files: one JSON for each benchmark, and a table of all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .runner import Row, Spread

TABLE = "README.md"

_HEAD = """# Results

Made by `make bench`; each JSON file beside this one holds the figures of one benchmark, with the
machine and the versions. Ours and plain run in turn, a round of each; the ratio is taken within
each round. Figures are medians, in brackets the quartiles. What each benchmark does stands in
its module.

A real S3 server on the loaders' own cores takes more of them than the loaders do. With
`python -m benchmarks peers --server light` objects come from nginx instead (`apt-get install
nginx-light`; benchmarks/light_s3.py), for little CPU. `--delay 20ms` adds that to each request,
with either server. Such results have a file of their own, as peers_light_server.json, and the
measures say so. `--only WORDS` measures just the rows of `peers` whose first words hold WORDS.

[chaos.md](chaos.md), a thousand faults between library and S3 server, is made by a test:
`STORAGE_LOADER_TEST_SCALE=17.5 STORAGE_LOADER_TEST_RESULTS=benchmarks/results make test
PYTEST_ARGS="-k every_row_under_faults"`, with a real server where `make s3` has started one.

[soak.png](soak.png): memory and descriptors while savers, loaders and gc work beside each other,
made by `soak`: half an hour unless STORAGE_LOADER_BENCH_SOAK_SECONDS says otherwise, 20 s with
`--quick`.

`change` compares this checkout with another one (`--before FOLDER`). There, "plain" is the other
one, and the brackets of the ratio hold the 95% interval of its median.
"""


def write(out: Path, name: str, what: str, rows: Sequence[Row], machine: dict[str, object]) -> None:
    """Write one benchmark's JSON and the table anew."""
    out.mkdir(parents=True, exist_ok=True)
    value = {
        "benchmark": name,
        "what": what,
        "machine": machine,
        "rows": [{**asdict(row), "holds": row.holds} for row in rows],
    }
    (out / f"{name}.json").write_text(json.dumps(_rounded(value), indent=1) + "\n")
    (out / TABLE).write_text(_table(out))


def line(row: Row) -> str:
    """A row for the terminal."""
    words = [f"{row.measure}: {_spread(row.value)} {row.unit}"]
    if row.plain is not None:
        words.append(f"plain {_spread(row.plain)} ({row.plain_name})")
    if row.ratio is not None:
        words.append(f"ratio {_spread(row.ratio)}")
    words.append(_target(row.at_least, row.at_most, row.holds))
    return ", ".join(word for word in words if word)


def _rounded(value: Any) -> Any:
    """Four digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def _table(out: Path) -> str:
    lines = [_HEAD]
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    for machine, results in _by_machine(found):
        lines.append(machine)
        lines.append("| measure | ours | plain | ratio | target | rounds |")
        lines.append("|---|---|---|---|---|---|")
        for result in results:
            lines += [_line_of(row) for row in result["rows"]]
        lines.append("")
    return "\n".join(lines)


def _by_machine(found: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in found:
        m = result["machine"]
        versions = ", ".join(f"{name} {v}" for name, v in m["versions"].items())
        text = (
            f"{m['cpu']}, {m['cores']} cores, {m['memory_gib']} GiB, {m['kernel']}, "
            f"{m['file_system']}; Python {m['python']}, {versions}. Commit {m['commit']}.\n"
        )
        groups.setdefault(text, []).append(result)
    return list(groups.items())


def _line_of(row: dict[str, Any]) -> str:
    plain, ratio = (Spread(**row[k]) if row[k] else None for k in ("plain", "ratio"))
    cells = [
        row["measure"] + (f" ({row['note']})" if row["note"] else ""),
        f"{_spread(Spread(**row['value']))} {row['unit']}",
        f"{_spread(plain)}: {row['plain_name']}" if plain else "",
        _spread(ratio) if ratio else "",
        _target(row["at_least"], row["at_most"], row["holds"]),
        str(row["rounds"]),
    ]
    return f"| {' | '.join(cells)} |"


def _spread(spread: Spread) -> str:
    if spread.low == spread.high:
        return _number(spread.median)
    return f"{_number(spread.median)} [{_number(spread.low)} to {_number(spread.high)}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _target(at_least: float | None, at_most: float | None, holds: bool | None) -> str:
    if holds is None:
        return ""
    words = f"at least {at_least:.4g}" if at_least is not None else f"at most {at_most:.4g}"
    return f"{words}: {'yes' if holds else 'NO'}"
