"""Results as files: one JSON for each benchmark, and a page made of all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .page import page
from .runner import Row
from .text import spread, target

TABLE = "README.md"


def write(
    out: Path,
    name: str,
    what: str,
    rows: Sequence[Row],
    machine: dict[str, object],
    *,
    part: bool = False,  # rows of the same commit that were not measured now are kept
) -> None:
    """Write one benchmark's JSON and the page anew."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.json"
    made = [{**asdict(row), "holds": row.holds} for row in rows]
    if part and file.exists():
        made = _joined(json.loads(file.read_text()), made, machine["commit"])
    value = {"benchmark": name, "what": what, "machine": machine, "rows": made}
    file.write_text(json.dumps(_rounded(value), indent=1) + "\n")
    (out / TABLE).write_text(page(out))


def line(row: Row) -> str:
    """A row for the terminal."""
    words = [f"{row.measure}: {spread(row.value)} {row.unit}"]
    if row.plain is not None:
        words.append(f"plain {spread(row.plain)} ({row.plain_name})")
    if row.ratio is not None:
        words.append(f"ratio {spread(row.ratio)}")
    words.append(target(row.at_least, row.at_most, row.holds))
    return ", ".join(word for word in words if word)


def _joined(
    earlier: dict[str, Any], made: list[dict[str, Any]], commit: object
) -> list[dict[str, Any]]:
    """Rows of an earlier run, those that were made now in their places or at the end."""
    if earlier["machine"]["commit"] != commit:
        return made
    rows = {row["measure"]: row for row in (*earlier["rows"], *made)}
    return list(rows.values())


def _rounded(value: Any) -> Any:
    """Four digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
