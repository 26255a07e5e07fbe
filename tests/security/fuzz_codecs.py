"""Gives `Codec.decode` blocks that were changed at random, in a process for each codec.

    python -m tests.security.fuzz_codecs [SECONDS for each codec, 60]

A block is refused as a `FormatError` or decoded to any bytes: never another error, never a byte
beyond its values, never a crash, never memory.
"""

from __future__ import annotations

import random
import sys
import time

import numpy as np

from storage_loader.codecs import COMPLIBS, Codec
from storage_loader.errors import FormatError
from tests.support.own_process import in_processes

SIZES = 2**12, 2**16
GUARD = b"\xa5" * 64
MOST_MEMORY = 32 * 2**20
ITEMSIZE = 4


def good_blocks(complib: str) -> list[tuple[Codec, bytes, int]]:
    """Codec, coded bytes, and how many they stand for."""
    noise = np.random.default_rng(0)
    sources = [
        bytes(4),
        (np.arange(2**10) % 50).astype("<u4").tobytes(),
        np.repeat(noise.integers(0, 256, 2**9, np.uint8), 8).tobytes(),
        noise.integers(0, 4, 2**12, np.uint8).tobytes(),
    ]
    levels = (1,) if complib == "lz4" else (1, 9)
    found = []
    for level in levels:
        for shuffle in (False, True):
            codec = Codec.of({"complib": complib, "complevel": level, "shuffle": shuffle})
            for source in sources:
                for size in SIZES:
                    coded = codec.encode(memoryview(source * (size // len(source))), ITEMSIZE)
                    if len(coded) < size:
                        found.append((codec, coded, size))
    assert len(found) > len(sources)
    return found


def changed(block: bytes, chance: random.Random) -> bytes:
    """With some bytes flipped, set, removed, added, moved, or other sizes in it."""
    data = bytearray(block)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        head = chance.random() < 0.4
        place = chance.randrange(min(len(data), 40) if head else len(data))
        kind = chance.randrange(7)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place] = chance.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del data[place + 1 : place + chance.randrange(2, 20)]
        elif kind == 3:
            data[place:place] = chance.randbytes(chance.randrange(1, 20))
        elif kind == 4:
            del data[place + 1 :]
        elif kind == 5:
            other = chance.randrange(len(data))
            data[place : place + 8] = data[other : other + 8]
        else:
            size = chance.choice((0, 2**31 - 1, 2**31, 2**32 - 1, *SIZES))
            data[place : place + 4] = size.to_bytes(4, chance.choice(("little", "big")))
    return bytes(data)


def fuzz(complib: str, seconds: float, seed: int = 0) -> None:
    """Go on for so long; `AssertionError` for what should not be."""
    chance, good = random.Random(seed), good_blocks(complib)
    out = bytearray(SIZES[-1] + len(GUARD))
    for codec, coded, size in good:  # so that what they need is there
        codec.decode([memoryview(coded)], memoryview(out)[:size], ITEMSIZE)
    before, end = _peak(), time.monotonic() + seconds
    tried = decoded = 0
    while time.monotonic() < end:
        codec, coded, size = chance.choice(good)
        block = changed(coded, chance)[: size - 1]
        out[size : size + len(GUARD)] = GUARD
        tried += 1
        try:
            codec.decode([memoryview(block)], memoryview(out)[:size], ITEMSIZE)
            decoded += 1
        except FormatError:
            pass
        assert out[size : size + len(GUARD)] == GUARD, (codec, block.hex())
    assert _peak() - before < MOST_MEMORY
    assert 0 < decoded < tried
    print(f"{complib}: {tried} blocks, {decoded} of them decoded; {_peak() - before} bytes more")


def _peak() -> int:
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    duration = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    for name in COMPLIBS:
        in_processes(fuzz, (name, duration), seconds=duration + 60)
