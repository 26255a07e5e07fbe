"""What the soak's processes hold over time: samples, whether they are flat, and their plot."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .runner import Row, Spread

POINTS = 120  # of a curve
KILLED = "saver, killed"  # its processes come and go: drawn, not judged


@dataclass(frozen=True)
class Sample:
    """What a process held at a moment."""

    at: float  # seconds since the start
    memory: int  # bytes
    descriptors: int  # but those of cache files
    cache_files: int


def sample_of(now: float, pid: int | None) -> Sample | None:
    """What a process holds now; None where it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
        links = list(map(_link, Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    if found is None:
        return None
    cached = sum(link.removesuffix(" (deleted)").endswith(".cached") for link in links)
    return Sample(now, int(found[1]) * 1024, len(links) - cached, cached)


def _link(descriptor: Path) -> str:
    """What a descriptor refers to; "" for one that was closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def cached_nbytes(folder: Path, size: int) -> int:
    """What the cache files below a folder take of the disk.

    Looked at again where it is more than `size`: files that go and come during a look are counted
    both.
    """
    for _ in range(5):
        total = 0
        for path in folder.rglob("*.cached"):
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                total += path.lstat().st_blocks * 512
        if total <= size:
            break
    return total


def processor_seconds() -> float:
    """Of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def flat(
    what: str,
    unit: str,
    samples: Sequence[tuple[float, float]],
    seconds: float,
    share: float,
    more: float,
) -> Row:
    """A curve of a process, judged if it is one all the time: see soak.py."""
    quarters: list[list[float]] = [[], [], [], []]
    for at, value in samples:
        quarters[min(3, int(4 * at / seconds))].append(value)
    second, last = quarters[1], quarters[3]
    if not second or not last:
        raise ValueError(f"{what}: no samples of the second or the last quarter")
    before, now = (float(np.quantile(quarter, 0.25)) for quarter in (second, last))
    is_judged = KILLED not in what
    most = max(value for _, value in samples)
    return Row(
        what,
        unit,
        Spread.of([now]),
        at_most=before * (1 + share) + more if is_judged else None,
        note=f"what stays, last quarter; second quarter {before:.3g}; once at most {most:.3g}",
        curve=curve(samples, seconds),
    )


def curve(samples: Sequence[tuple[float, float]], seconds: float) -> tuple[float | None, ...]:
    """Medians of `POINTS` equal parts of the time."""
    parts: list[list[float]] = [[] for _ in range(POINTS)]
    for at, value in samples:
        parts[min(POINTS - 1, int(POINTS * at / seconds))].append(value)
    return tuple(statistics.median(part) if part else None for part in parts)


def draw(results: Path) -> None:
    """Memory and descriptors over time, beside the results."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = json.loads(results.read_text("utf-8"))["rows"]
    minutes = float(re.findall(r"soak of ([\d.]+) minutes", rows[0]["measure"])[0])
    times = [minutes * (i + 0.5) / POINTS for i in range(POINTS)]
    figure, panels = pyplot.subplots(
        3, 1, figsize=(9, 9), sharex=True, height_ratios=(3, 2, 2), layout="constrained"
    )
    kinds = {
        "own memory": "own memory, MB",
        "descriptors": "other descriptors",
        "cache files open": "cache files open",
    }
    colours = dict(zip(_names(rows), pyplot.get_cmap("tab20").colors, strict=False))
    for axes, (kind, words) in zip(panels, kinds.items(), strict=True):
        curves = [row for row in rows if row["measure"].startswith(f"{kind}, ")]
        for row in curves:
            name = row["measure"].removeprefix(f"{kind}, ")
            is_killed = name.startswith(KILLED)  # a server's marks may follow
            style = {"color": "0.7", "zorder": 1} if is_killed else {"color": colours[name]}
            points = [(at, v) for at, v in zip(times, row["curve"], strict=True) if v is not None]
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.2, **style)
        axes.set(ylabel=words, ylim=(0, None), xlim=(0, minutes))
        axes.grid(alpha=0.3)
    panels[0].set(title="Savers, loaders, refresher and gc beside each other on S3")
    panels[-1].set(xlabel="minutes")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(results.with_suffix(".png"), dpi=150)
    pyplot.close(figure)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The processes."""
    measures = [str(row["measure"]) for row in rows]
    start = "own memory, "
    return [m.removeprefix(start) for m in measures if m.startswith(start)]
