"""Feeds `verify` with changed HDF5 headers, each in a right commit; it ends at the first fault.

    python -m tests.security.fuzz_headers [-max_total_time=3600] [-rss_limit_mb=2048] [FOLDER]
    python -m tests.security.fuzz_headers --random SECONDS [SEED]

The first needs `atheris` beside what the tests need: coverage of our modules guides it; FOLDER
keeps inputs that reached something new, the faulty input goes into a file `crash-...`. The second
changes headers at random, in child processes, and says how many after each of them; a child that
dies or fails ends it with status 1 and its seed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

from tests.support import ROOT

CHILD = (
    "import sys, tests.support.hostile_headers as h; h.try_many(sys.argv[1], 500, int(sys.argv[2]))"
)


def by_atheris() -> None:
    import atheris

    with atheris.instrument_imports(include=["storage_loader"]):
        from tests.support import hostile_headers
    bases = hostile_headers.bases()
    names = sorted(bases)

    def one_input(data: bytes) -> None:
        choices = atheris.FuzzedDataProvider(data)
        name = names[choices.ConsumeIntInRange(0, len(names) - 1)]
        bodies = []
        while choices.remaining_bytes() and len(bodies) < 32:
            bodies.append(
                hostile_headers.mutated(bases[name], lambda n: choices.ConsumeIntInRange(0, n - 1))
            )
        hostile_headers.try_objects(name, bodies)

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


def at_random(seconds: float, seed: int) -> None:
    from tests.support import hostile_headers

    names = sorted(hostile_headers.bases())
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end:
        for name in names:
            child = [sys.executable, "-c", CHILD, name, str(seed)]
            if subprocess.run(child, cwd=ROOT, check=False, timeout=600).returncode:
                sys.exit(f"{name!r} with seed {seed}: after {done} headers this one ended it")
            done += 500
        seed += 1
        print(f"{done} headers, none a fault; next seed {seed}", flush=True)


if __name__ == "__main__":
    if "--random" in sys.argv:
        given = sys.argv[sys.argv.index("--random") + 1 :]
        at_random(float(given[0]), int(given[1]) if given[1:] else random.randrange(2**31))
    else:
        by_atheris()
