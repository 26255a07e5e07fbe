"""Run benchmarks by name, or all of them: `python -m benchmarks [names] [--quick] [--out DIR]`."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import machine, report
from .runner import Effort
from .setting import PEERS_VARIABLE, Benchmark, Setting

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*.py") if "\nBENCHMARK = " in p.read_text("utf-8"))
RESULTS = HERE / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure storage_loader against the machine's own limits.",
        epilog="benchmarks: " + ", ".join(NAMES),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default: all")
    parser.add_argument("--quick", action="store_true", help="small data, few rounds: does it run?")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison")
    parser.add_argument("--out", type=Path, help=f"for the results; default: {RESULTS.name}/ here")
    parser.add_argument("--scratch", type=Path, help="disk to measure; default: the temporary one")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python that has other libraries")
    parser.add_argument(
        "--server", choices=("real", "light"), default="real", help="S3 server; see light_s3.py"
    )
    parser.add_argument(
        "--delay", type=_seconds, default=0.0, metavar="20ms", help="added to each S3 request"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="rows of some benchmarks to measure; the file keeps others of the same commit",
    )
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="another checkout, for `change`"
    )
    options = parser.parse_args(arguments)
    if options.peers:
        os.environ[PEERS_VARIABLE] = options.peers
    wrong = [name for name in options.names if name not in NAMES]
    if wrong:
        parser.error(f"no benchmark {wrong[0]!r}; there are {', '.join(NAMES)}")
    effort = Effort(rounds=3, trials=1, quick=True) if options.quick else Effort()
    if options.rounds:
        effort = Effort(options.rounds, effort.trials, effort.quick)
    # Figures of a quick run are not kept unless asked for: they say nothing about speed.
    out = options.out or (None if options.quick else RESULTS)
    failed = False
    light = options.server == "light"
    made = Setting(
        effort,
        options.scratch,
        light=light,
        delay=options.delay,
        only=options.only,
        before=options.before,
    )
    with made as setting:
        marks = setting.server_words
        for name in options.names or NAMES:
            benchmark: Benchmark = importlib.import_module(f"{__package__}.{name}").BENCHMARK
            print(f"== {name}: {benchmark.what}", flush=True)
            rows = []
            for measured in benchmark.run(setting):
                row = replace(measured, measure=", ".join((measured.measure, *marks)))
                print(report.line(row), flush=True)
                rows.append(row)
            if not rows:  # the benchmark said why
                continue
            failed |= any(row.holds is False for row in rows) and not effort.quick
            if out is not None:
                file = "_".join((name, *(mark.replace(" ", "_") for mark in marks)))
                what = ", ".join((benchmark.what, *marks))
                described = machine.describe(setting.scratch)
                report.write(out, file, what, rows, described, part=bool(options.only))
                if benchmark.draw is not None:
                    benchmark.draw(out / f"{file}.json")
    return int(failed)


def _seconds(words: str) -> float:
    """Of "20ms"."""
    number, unit, rest = words.partition("ms")
    if not unit or rest:
        raise argparse.ArgumentTypeError(f"{words!r}: milliseconds, as in 20ms")
    return float(number) / 1e3


if __name__ == "__main__":
    # Whoever ends a long run, as `timeout` does, leaves no server and no data behind.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
