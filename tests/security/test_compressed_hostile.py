"""Compressed rows from a hostile writer: every checksum is right, what they cover is not.

Whatever a block claims, nothing is written beyond the values it stands for, memory stays that of
one block, and what is wrong is a `FormatError`.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_loader import DataConfig, DataLoader, Dataset, verify_dataset
from storage_loader.codecs import COMPLIBS, Codec
from storage_loader.errors import FormatError
from storage_loader.layout import BLOCK_NBYTES, MAX_OBJECT_NBYTES
from storage_loader.store import xxh3
from tests.security import fuzz_codecs
from tests.support.crafted import Change, Swap, publish, republish
from tests.support.own_process import in_processes

ROWS = 9000  # several blocks of every region, which are too large to be read whole
REGIONS = ["x/ends", "x/values", "image"]
Way = tuple[dict[str, str], dict[str, Any]]  # see conftest.py

READS: dict[str, Callable[[DataConfig, dict[str, Any]], object]] = {
    "row": lambda c, kw: [Dataset(c, **kw)[i] for i in (0, ROWS // 2, ROWS - 1)],
    "rows": lambda c, kw: Dataset(c, **kw)[[3, ROWS - 2, 7, 4500, 0, ROWS - 1]],
    "every row": lambda c, kw: Dataset(c, **kw)[:],
    "shuffled": lambda c, kw: list(DataLoader(c, 3000, shuffle="global", pad={"x": 0}, **kw)),
    "index": lambda c, kw: list(DataLoader(c, 1000, **{**kw, "index": True})),
}


def the_config(storage: dict[str, str]) -> DataConfig:
    attributes = [("x", "int32", (None,)), ("image", "uint8", (20,)), ("row", "int64")]
    return DataConfig("hostile", attributes, **storage)


def columns(ends: np.ndarray | None = None) -> dict[str, np.ndarray]:
    numbers = np.arange(ROWS)
    return {
        "x/ends": (numbers + 1) * 3 if ends is None else ends,
        "x/values": np.arange(3 * ROWS) % 100,
        "image": np.broadcast_to(numbers[:, None] % 7, (ROWS, 20)),
        "row": numbers,
    }


def codecs(complib: str = "zstd", *, shuffle: bool = True) -> dict[str, Codec]:
    codec = Codec.of({"complib": complib, "shuffle": shuffle})
    return dict.fromkeys(REGIONS, codec)


def refused(way: Way, text: str, *, verify: bool = True) -> None:
    """Every way of reading says so."""
    storage, settings = way
    config = the_config(storage)
    for read in READS.values():
        with pytest.raises(FormatError, match=text):
            read(config, settings)
    if verify:
        assert verify_dataset(config).problems


@pytest.mark.parametrize("complib", COMPLIBS)
def test_right_blocks_are_read(way: Way, complib: str) -> None:
    """What the other tests craft is what a saver makes, but for what they change."""
    storage, settings = way
    config = the_config(storage)
    publish(config, columns(), codecs=codecs(complib))
    for read in READS.values():
        read(config, settings)
    batch = Dataset(config, **settings)[:]
    assert (batch["row"] == np.arange(ROWS)).all()
    np.testing.assert_array_equal(batch["x"].values, np.arange(3 * ROWS) % 100)
    assert (batch["image"] == np.arange(ROWS)[:, None] % 7).all()
    assert not verify_dataset(config).problems


# Blocks: of the number of bytes that they should decode to, and the codec.


def _zstd_frame(content: int | None, window: int, *blocks: tuple[int, int]) -> bytes:
    """A frame of runs: (bytes of each, how many there are)."""
    head = bytes([0xC0 if content is not None else 0, (window - 10) << 3])
    size = b"" if content is None else struct.pack("<Q", content)
    runs = [run for nbytes, count in blocks for run in [nbytes] * count]
    body = b"".join(
        struct.pack("<I", (i == len(runs) - 1) | 1 << 1 | nbytes << 3)[:3] + b"a"
        for i, nbytes in enumerate(runs)
    )
    return b"\x28\xb5\x2f\xfd" + head + size + body


def _headed(complib: str, data: bytes, nbytes: int, says: int) -> bytes:
    """Coded `data`, whose head says `says` bytes where it says any."""
    if complib == "lz4":
        block = bytes(cramjam.lz4.compress_block(data, store_size=False))
        return struct.pack(">QII", says, says % 2**32, len(block)) + block
    if complib == "zlib":
        return zlib.compress(data)
    if complib == "zstd":
        frame = zstandard.ZstdCompressor(write_content_size=False).compress(data)
        assert frame[4] == 0
        return frame[:4] + b"\xc0" + frame[5:6] + struct.pack("<Q", says) + frame[6:]
    from numcodecs import blosc

    inner = complib.partition(":")[2].encode()
    coded = bytearray(blosc.compress(data, inner, 5, 0, 0))
    coded[4:8] = struct.pack("<I", says % 2**32)
    return bytes(coded)


def _mebibytes(complib: str, nbytes: int) -> bytes:
    size = 2**20 if complib.endswith("lz4") else 2**24  # lz4's are 1/255 of it at best
    return _headed(complib, bytes(size), nbytes, nbytes)


EMPTY_FRAME = b"\x28\xb5\x2f\xfd\x20\0" + b"\x01\0\0"
TAILS = {
    "a byte": b"x",
    "zeros": bytes(9),
    "a zlib stream": zlib.compress(b""),
    "an empty zstd frame": EMPTY_FRAME,
    "a zstd frame that is skipped": b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"ab\0cd",
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("complib", COMPLIBS)
def test_what_follows_a_coded_block_is_refused_or_ignored(
    way: Way, complib: str, tail: str
) -> None:
    """Where the library that decodes does not say, rows are right, and `verify` finds it."""
    storage, settings = way
    config = the_config(storage)

    def longer(region: str, number: int, values: bytes, coded: bytes) -> bytes:
        return bytes(coded) + TAILS[tail] if (region, number) == ("image", 1) else coded

    publish(config, columns(), codecs=codecs(complib), swap=longer)
    if complib == "zlib" or (complib, "zstd" in tail) == ("zstd", True):
        batch = Dataset(config, **settings)[:]
        assert (batch["image"] == np.arange(ROWS)[:, None] % 7).all()
        text = f"{len(TAILS[tail])} bytes follow what {complib} has coded"
    else:
        refused(way, f"{complib} has coded: ")
        text = "no block that "
    [problem] = verify_dataset(config).problems
    assert problem.attribute == "image"
    assert text in problem.what


@pytest.mark.parametrize("complib", COMPLIBS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_follows_what_was_coded(complib: str, data: st.DataObject) -> None:
    """Of no level, no content, no size."""
    level = data.draw(st.integers(1, {"lz4": 1, "zstd": 22}.get(complib, 9)))
    codec = Codec.of({"complib": complib, "complevel": level, "shuffle": False})
    values = data.draw(st.binary(max_size=20)) * data.draw(st.integers(1, 20_000)) + b"\0"
    values += data.draw(st.binary(max_size=1000))
    coded = memoryview(codec.encode(memoryview(values), 1))
    codec.check_end(coded, len(values))
    if len(coded) + 3 < len(values) and complib in ("zlib", "zstd"):
        with pytest.raises(FormatError, match="3 bytes follow"):
            codec.check_end(memoryview(bytes(coded) + b"abc"), len(values))


Wrong = Callable[[str, int, bytes], bytes]
WRONG_BLOCKS: dict[str, Wrong] = {
    "bomb": lambda lib, n, coded: _mebibytes(lib, n),
    "bomb that says so": lambda lib, n, coded: _headed(lib, bytes(2**20), n, 2**20),
    "terabytes, or a byte less": lambda lib, n, coded: _headed(lib, bytes(n - 1), n, 2**42 + 5),
    "a byte more": lambda lib, n, coded: _headed(lib, bytes(n + 1), n, n),
    "a byte less": lambda lib, n, coded: _headed(lib, bytes(n - 1), n, n),
    "one byte": lambda lib, n, coded: _headed(lib, b"1", n, n),
    "garbage": lambda lib, n, coded: np.random.default_rng(1).bytes(500),
    "a good head, garbage": lambda lib, n, coded: coded[:20] + np.random.default_rng(1).bytes(500),
    "half": lambda lib, n, coded: coded[: len(coded) // 2],
    "cut": lambda lib, n, coded: coded[:-1],
    "of another library": lambda lib, n, coded: (
        zlib.compress(bytes(n)) if lib != "zlib" else zstandard.compress(bytes(n))
    ),
    "a byte of it": lambda lib, n, coded: coded[:1],
    "zeros": lambda lib, n, coded: bytes(100),
}
ZSTD_FRAMES = {
    "window of 2 GiB": lambda n: _zstd_frame(None, 31, (n, 1)),
    "window of 128 MiB": lambda n: _zstd_frame(None, 27, (n, 1)),
    "window of 128 MiB, terabytes": lambda n: _zstd_frame(2**42, 27, (n, 1)),
    "window of 128 MiB, filled": lambda n: _zstd_frame(None, 27, (2**17, 1200)),
    "window of 128 MiB, filled beyond its size": lambda n: _zstd_frame(n, 27, (2**17, 1200)),
    "no size": lambda n: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(n)),
    "two frames": lambda n: zstandard.compress(bytes(n // 2)) * 2,
    "a frame to skip": lambda n: struct.pack("<II", 0x184D2A50, 4) + b"skip",
    "a dictionary": lambda n: b"\x28\xb5\x2f\xfd\xe3" + struct.pack("<IQ", 7, n) + b"\0\0\0",
    "its head cut": lambda n: zstandard.compress(bytes(n))[:5],
}


def swapped(region: str, wrong: Callable[[int, bytes], bytes], number: int = 1) -> Swap:
    def swap(name: str, block: int, values: bytes, coded: bytes) -> bytes:
        return wrong(len(values), coded) if (name, block) == (region, number) else coded

    return swap


@pytest.mark.parametrize("complib", ["zlib", "zstd", "lz4", "blosc:lz4"])
@pytest.mark.parametrize("wrong", WRONG_BLOCKS)
def test_blocks_that_are_none(way: Way, wrong: str, complib: str) -> None:
    region = REGIONS[len(wrong) % len(REGIONS)]
    swap = swapped(region, lambda n, coded: WRONG_BLOCKS[wrong](complib, n, coded))
    publish(the_config(way[0]), columns(), codecs=codecs(complib), swap=swap)
    refused(way, f"attribute '{region.partition('/')[0]}', block 1: ")


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_blocks_of_every_region(way: Way, region: str, shuffle: bool) -> None:
    swap = swapped(region, lambda n, coded: coded[:-4])
    publish(the_config(way[0]), columns(), codecs=codecs(shuffle=shuffle), swap=swap)
    refused(way, f"attribute '{region.partition('/')[0]}', block 1: no block that zstd has coded")


@pytest.mark.parametrize("frame", ZSTD_FRAMES)
def test_frames_of_zstd(way: Way, frame: str) -> None:
    swap = swapped("image", lambda n, coded: ZSTD_FRAMES[frame](n))
    publish(the_config(way[0]), columns(), codecs=codecs(), swap=swap)
    refused(way, "attribute 'image', block 1: no block that zstd has coded")


# Directories: requires; of four regions offset, items, bytes; then of all blocks checksums, starts
# and sizes. The blocks: two of x/ends, two of x/values, three of image, two of row.
PLACES = 13
BLOCKS = 9
START, SIZE = PLACES + BLOCKS, PLACES + 2 * BLOCKS
IMAGE = 4  # its first block


def _word(place: int, value: int | Callable[[list[int]], int]) -> Change:
    def change(words: list[int]) -> None:
        assert len(words) == PLACES + 3 * BLOCKS
        words[place] = value(words) if callable(value) else value

    return change


def _both(*changes: Change) -> Change:
    def change(words: list[int]) -> None:
        for one in changes:
            one(words)

    return change


LARGER = 2 * BLOCK_NBYTES
WRONG_DIRECTORIES: dict[str, tuple[Change, str]] = {
    "requires": (_word(0, 2), "needs what this version of storage_loader does not know"),
    "on another block": (_word(START + 5, lambda w: w[START + 4]), "overlaps another part"),
    "on another region": (_word(START + 5, lambda w: w[START + 7]), "overlaps another part"),
    "on the directory": (_word(START + 5, lambda w: 2048), "overlaps another part"),
    "in the header": (_word(START + 5, 0), "overlaps another part"),
    "unaligned": (_word(START + 5, lambda w: w[START + 5] + 1), "64-byte boundary"),
    "outside": (_word(START + 5, 2**30), "lies outside"),
    "far outside": (_word(START + 5, 2**63), "outside of any object"),
    "at the largest": (_word(START + 5, 2**64 - 64), "outside of any object"),
    "no bytes": (
        _both(_word(9, lambda w: w[9] - w[SIZE + 5]), _word(SIZE + 5, 0)), "lies outside|overlaps",
    ),
    "larger than its items": (_word(SIZE + 5, LARGER), "is larger than its items"),
    "much larger": (_word(SIZE + 5, 2**63), "outside of any object"),
    "one byte more than the region": (_word(SIZE + 5, lambda w: w[SIZE + 5] + 1), "items in"),
    "the region's bytes": (_word(9, lambda w: w[9] + 1), "items in"),
    "the region's beginning": (_word(7, lambda w: w[START + 5]), "begins at byte"),
    "an uncoded block's beginning": (
        _word(START + 8, lambda w: w[START + 7]), "is not what it says of all",
    ),
    "an uncoded block's bytes": (_word(SIZE + 8, 7), "is not what it says of all"),
    "values of more blocks": (_word(5, 2**20), "too few|entries"),
    "values of all memory": (_word(5, 2**40), "larger than any object|more than"),
    "decoded values beyond the limit": (_word(5, MAX_OBJECT_NBYTES // 4 + 1), "decoded they are"),
    "values of fewer blocks": (_word(5, 1), "entries|larger than its items|items in"),
    "no values": (_both(_word(5, 0), _word(6, 0), _word(4, 0)), "begins at|entries"),
    "rows": (_word(8, ROWS - 1), "in an object of"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_DIRECTORIES)
def test_a_directory_that_lies(way: Way, wrong: str) -> None:
    change, text = WRONG_DIRECTORIES[wrong]
    publish(the_config(way[0]), columns(), change, codecs=codecs())
    refused(way, text)


@pytest.mark.parametrize("words", [1, 2, 3, BLOCKS, 3 * BLOCKS])
def test_a_directory_that_is_too_short(way: Way, words: int) -> None:
    def shorter(commit: dict[str, Any], data: bytes) -> None:
        objects = commit["objects"]
        start, nbytes = objects["directory"][0], objects["directory_nbytes"][0] - 8 * words
        objects["directory_nbytes"] = [nbytes]
        objects["directory_checksum"] = [f"{xxh3(data[start : start + nbytes]):016x}"]

    config = the_config(way[0])
    publish(config, columns(), codecs=codecs())
    republish(config, shorter)
    refused(way, "object directory: ")


# Commits


def _codec(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(layout: dict[str, Any]) -> None:
        codec = layout["codecs"]["image"]
        codec.update(changes)
        for name in [name for name, value in changes.items() if value is None]:
            del codec[name]

    return change


def _codecs(value: object) -> Callable[[dict[str, Any]], None]:
    return lambda layout: layout.update(codecs=value)


GOOD = {"complib": "zstd", "complevel": 3, "shuffle": True}
WRONG_LAYOUTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown": (_codec(complib="brotli"), "'brotli', which this version .* does not know"),
    "another case": (_codec(complib="ZSTD"), "'ZSTD', which this version .* does not know"),
    "no name": (_codec(complib=7), "7, which this version .* does not know"),
    "a list": (_codec(complib=["zstd"]), "does not know"),
    "level 0": (_codec(complevel=0), "a codec has complib, complevel, shuffle"),
    "level 23": (_codec(complevel=23), "a codec has complib, complevel, shuffle"),
    "level -1": (_codec(complevel=-1), "a codec has complib, complevel, shuffle"),
    "level 2**70": (_codec(complevel=2**70), "a codec has complib, complevel, shuffle"),
    "level true": (_codec(complevel=True), "a codec has complib, complevel, shuffle"),
    "level 3.0": (_codec(complevel=3.0), "a codec has complib, complevel, shuffle"),
    "shuffle 1": (_codec(shuffle=1), "a codec has complib, complevel, shuffle"),
    "no shuffle": (_codec(shuffle=None), "a codec has complib, complevel, shuffle"),
    "no codecs": (_codecs([]), "'codecs' are an object"),
    "nothing": (_codecs(None), "'codecs' are an object"),
    "text": (_codecs({"image": "zstd"}), "a codec has complib, complevel, shuffle"),
    "of no region": (_codecs({"image/values": GOOD}), "'codecs' name 'image/values'"),
    "of an attribute": (_codecs({"x": GOOD}), "'codecs' name 'x'"),
    "of none": (_codecs({}), "do not fit an object|object directory: "),
    "of fewer": (_codecs({"image": GOOD}), "object directory: |overlaps|outside"),
    "of more": (lambda la: la["codecs"].update(row=GOOD), "attribute 'row', block"),
    "another": (_codec(complib="zlib"), "attribute 'image', block 0: no block that zlib has coded"),
    "blocks of one item": (lambda la: la["blocks"].update(image=1), "too few|at most 128"),
    "blocks of gigabytes": (lambda la: la["blocks"].update(image=2**62), "object directory: "),
    "a block larger than 64 KiB": (
        lambda la: la["blocks"].update(image=BLOCK_NBYTES // 20 + 1), "coded blocks of 65540",
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_LAYOUTS)
def test_layouts_of_commits(way: Way, wrong: str) -> None:
    change, text = WRONG_LAYOUTS[wrong]
    config = the_config(way[0])
    publish(config, columns(), codecs=codecs())
    republish(config, lambda commit, data: change(commit["layouts"][0]))
    refused(way, text)


def test_decoded_bytes_of_an_object_have_a_limit(way: Way) -> None:
    config = the_config(way[0])
    publish(config, columns(), codecs=codecs())
    republish(config, lambda c, data: c["objects"].update(decoded=[MAX_OBJECT_NBYTES + 1]))
    refused(way, "do not fit an object of")


def test_fixed_rows_need_offsets_or_a_directory_that_has_them(memory: dict[str, str]) -> None:
    config = DataConfig("hostile", [("image", "uint8", (20,))], **memory)
    image = {"image": columns()["image"]}
    publish(config, image, codecs={"image": codecs()["image"]})
    good = Dataset(config)[:]["image"]
    assert (good == image["image"]).all()
    places = {"offsets": {"image": 4096}, "directory": 2048}

    def mixed(commit: dict[str, Any], data: bytes) -> None:
        commit["layouts"].append({**commit["layouts"][0], **places})

    republish(config, mixed)
    with pytest.raises(FormatError, match="a layout holds blocks, directory, offsets"):
        Dataset(config)[:]
    republish(config, lambda commit, data: commit["layouts"].pop())
    assert (Dataset(config)[:]["image"] == good).all()
    republish(config, lambda commit, data: commit["objects"].update(decoded=[1000]))
    for change in (lambda la: la.update(codecs={}), lambda la: la.pop("codecs")):
        republish(config, lambda commit, data, change=change: change(commit["layouts"][0]))
        with pytest.raises(FormatError, match="object directory: "):
            Dataset(config)[:]


def test_a_coded_block_is_no_larger_than_64_KiB(way: Way) -> None:
    """Else a few bytes of an object, of small rows, would take gigabytes in each thread."""
    with mock.patch("storage_loader.layout.BLOCK_NBYTES", 2**27):
        publish(the_config(way[0]), columns(), codecs=codecs())
    refused(way, "'x/ends' has coded blocks of 72000 bytes, the most are 65536")


def test_a_large_item_is_a_block_of_its_own(memory: dict[str, str]) -> None:
    config = DataConfig("large", [("x", "uint8", (BLOCK_NBYTES + 1,))], **memory)
    zeros = np.zeros((3, BLOCK_NBYTES + 1), np.uint8)
    publish(config, {"x": zeros}, codecs={"x": codecs()["image"]})
    assert not Dataset(config)[:]["x"].any()
    with mock.patch("storage_loader.layout.BLOCK_NBYTES", 2**27):
        config = DataConfig("larger", config.attributes, **memory)
        publish(config, {"x": zeros}, codecs={"x": codecs()["image"]})
    with pytest.raises(FormatError, match="'x' has coded blocks of 196611 bytes, the most are 655"):
        Dataset(config)[:]


# Ends

WRONG_ENDS = {
    "beyond": (-1, 3 * ROWS + 1),
    "far beyond": (8500, 2**62),
    "negative": (0, -1),
    "most negative": (4500, -(2**63)),
    "descending": (8999, 0),
    "largest": (3, 2**63 - 1),
}


@pytest.mark.parametrize("complib", ["zstd", "lz4"])
@pytest.mark.parametrize("wrong", WRONG_ENDS)
def test_ends_that_lead_elsewhere(way: Way, wrong: str, complib: str) -> None:
    row, end = WRONG_ENDS[wrong]
    ends = (np.arange(ROWS) + 1) * 3
    ends[row] = end
    publish(the_config(way[0]), columns(ends), codecs=codecs(complib))
    storage, settings = way
    config = the_config(storage)
    for name, read in READS.items():
        if name not in ("row", "rows"):  # which may not ask for that row
            with pytest.raises(FormatError, match="attribute 'x': a row is said to hold items"):
                read(config, settings)
    with pytest.raises(FormatError, match="attribute 'x': a row is said to hold items"):
        Dataset(config, **settings)[row % ROWS]
    assert verify_dataset(config).problems


# Memory


def _peak() -> int:
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def _read_bombs(wrong: list[str], most: int) -> None:
    """Every bomb through every way of reading, in a process of its own."""
    bombs: list[tuple[str, Callable[[int, bytes], bytes]]] = []
    for name in wrong:
        if name in ZSTD_FRAMES:
            bombs.append(("zstd", lambda n, coded, name=name: ZSTD_FRAMES[name](n)))  # type: ignore[misc]
            continue
        for lib in ("zlib", "zstd", "lz4", "blosc:zstd"):
            block = WRONG_BLOCKS[name](lib, BLOCK_NBYTES // 20 * 20, b"")
            bombs.append((lib, lambda n, coded, block=block: block))  # type: ignore[misc]
    configs = []
    for lib, bomb in [("zstd", lambda n, coded: coded), *bombs]:
        config = the_config({"storage": f"memory://{uuid.uuid4().hex}"})
        publish(config, columns(), codecs=codecs(lib), swap=swapped("image", bomb))
        configs.append(config)
    for read in READS.values():
        read(configs[0], {})
    before = _peak()
    for config in configs[1:]:
        for read in READS.values():
            with pytest.raises(FormatError):
                read(config, {})
    assert _peak() - before < most, _peak() - before


def test_bombs_take_no_memory() -> None:
    bombs = ["bomb", "bomb that says so", "terabytes, or a byte less", *ZSTD_FRAMES]
    in_processes(_read_bombs, (bombs, 16 * 2**20))


def test_blocks_that_were_changed_at_random() -> None:
    """A second each; tests/security/fuzz_codecs.py goes on for longer."""
    for complib in COMPLIBS:
        in_processes(fuzz_codecs.fuzz, (complib, 1.0))
