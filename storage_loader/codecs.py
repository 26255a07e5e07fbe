"""How blocks of values are compressed: as standard filters of HDF5 do, but without HDF5.

A coded block is what HDF5 calls a chunk, so that any HDF5 library that has the filters reads it. A
block that coding does not make smaller is stored as it is; so a block that has as many bytes as
its values is one of those, and decoding takes no more memory than what it is given.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import cramjam
import numpy as np

from .errors import ConfigError, FormatError
from .keywords import flag, nearest, reject_unknown, shown

_TOGETHER = 2**19  # bytes of blocks that are unshuffled at once: they stay in the processor's cache
MAX_CODED_NBYTES = 2**30  # of a block's values: what the filters' headers hold

_SHUFFLE = 2  # the number of HDF5's filter
_KEYS = ("complib", "complevel", "shuffle")

Filters = tuple[tuple[int, tuple[int, ...]], ...]
"""HDF5's filters in the order of writing: the number of each, and its values."""


class Library(Protocol):
    """What compresses bytes."""

    least: ClassVar[int]  # level
    most: ClassVar[int]
    usual: ClassVar[int]
    shuffles: ClassVar[bool] = False  # it does so itself

    def filter(self, codec: Codec, itemsize: int, nbytes: int) -> tuple[int, tuple[int, ...]]:
        """HDF5's filter for blocks of so many bytes."""

    def encode(self, data: memoryview, codec: Codec, itemsize: int) -> bytes:
        """The bytes coded."""

    def decode(self, data: memoryview, out: memoryview) -> int:
        """Decode into `out`, never beyond; how many bytes came. Raises any error."""

    def end(self, data: memoryview, nbytes: int) -> int:
        """Where in `data`, which decodes to `nbytes` bytes, ends what `decode` takes."""
        return data.nbytes  # `decode` raises where anything follows


class _Zlib(Library):
    least, most, usual = 1, 9, 4

    def filter(self, codec: Codec, itemsize: int, nbytes: int) -> tuple[int, tuple[int, ...]]:
        return 1, (codec.complevel,)

    def encode(self, data: memoryview, codec: Codec, itemsize: int) -> bytes:
        return bytes(cramjam.zlib.compress(data, codec.complevel))

    def decode(self, data: memoryview, out: memoryview) -> int:
        return int(cramjam.zlib.decompress_into(data, out))

    def end(self, data: memoryview, nbytes: int) -> int:
        stream = zlib.decompressobj()
        stream.decompress(data, nbytes + 1)
        if not stream.eof:
            raise zlib.error("it ends too early")
        return data.nbytes - len(stream.unused_data)


class _Zstd(Library):
    least, most, usual = 1, 22, 3

    def filter(self, codec: Codec, itemsize: int, nbytes: int) -> tuple[int, tuple[int, ...]]:
        return 32015, (codec.complevel,)

    def encode(self, data: memoryview, codec: Codec, itemsize: int) -> bytes:
        return bytes(cramjam.zstd.compress(data, codec.complevel))

    def decode(self, data: memoryview, out: memoryview) -> int:
        # For a frame that does not say its size, few bytes make the decoder reserve 128 MiB.
        if self._content_nbytes(data) != out.nbytes:
            raise ValueError("its head says another size, or none")
        return int(cramjam.zstd.decompress_into(data, out))

    def end(self, data: memoryview, nbytes: int) -> int:
        # Frames that hold nothing may follow: empty ones, and others that decoders skip.
        place, size = self._size_field(data)
        place, is_last = place + size, 0
        while not is_last and place < data.nbytes:
            head = int.from_bytes(data[place : place + 3], "little")
            is_last, is_run = head & 1, head >> 1 & 3 == 1
            place += 3 + (1 if is_run else head >> 3)
        return place + (4 if data[4] & 4 else 0)  # a checksum

    @classmethod
    def _content_nbytes(cls, frame: memoryview) -> int | None:
        """What the head of a frame says (RFC 8878, 3.1.1.1)."""
        if bytes(frame[:4]) != b"\x28\xb5\x2f\xfd" or frame.nbytes == 4:
            return None
        place, size = cls._size_field(frame)
        if not size or frame.nbytes < place + size:
            return None
        return int.from_bytes(frame[place : place + size], "little") + (256 if size == 2 else 0)

    @staticmethod
    def _size_field(frame: memoryview) -> tuple[int, int]:
        """Where it says that, and in how many bytes."""
        flags = frame[4]
        is_single = flags >> 5 & 1
        return 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3], (is_single, 2, 4, 8)[flags >> 6]


class _LZ4(Library):
    """In the frame of HDF5's filter: the size of all bytes, that of a block, one block."""

    least = most = usual = 1
    _HEAD = struct.Struct(">QII")

    def filter(self, codec: Codec, itemsize: int, nbytes: int) -> tuple[int, tuple[int, ...]]:
        return 32004, (0,)

    def encode(self, data: memoryview, codec: Codec, itemsize: int) -> bytes:
        coded = bytes(cramjam.lz4.compress_block(data, store_size=False))
        return self._HEAD.pack(data.nbytes, data.nbytes, len(coded)) + coded

    def decode(self, data: memoryview, out: memoryview) -> int:
        start = self._HEAD.size
        if self._HEAD.unpack_from(data) != (out.nbytes, out.nbytes, data.nbytes - start):
            raise ValueError("its head says other sizes")
        return int(cramjam.lz4.decompress_block_into(data[start:], out, out.nbytes))


class _Blosc(Library):
    """Blosc 1, with one of the libraries that it holds."""

    least, most, usual = 1, 9, 5
    shuffles = True
    _SIZES = struct.Struct("<4xI4xI")
    _FORMATS = 2, 2  # of HDF5's filter, and of what it writes

    def __init__(self, inner: str, number: int) -> None:
        self._inner, self._number = inner.encode(), number

    def filter(self, codec: Codec, itemsize: int, nbytes: int) -> tuple[int, tuple[int, ...]]:
        sizes = min(itemsize, 255), nbytes
        return 32001, (*self._FORMATS, *sizes, codec.complevel, int(codec.shuffle), self._number)

    def encode(self, data: memoryview, codec: Codec, itemsize: int) -> bytes:
        items = np.frombuffer(data, f"V{itemsize}")
        level, shuffle = codec.complevel, int(codec.shuffle)
        return bytes(_blosc().compress(items, self._inner, level, shuffle, 0))

    def decode(self, data: memoryview, out: memoryview) -> int:
        if self._SIZES.unpack_from(data) != (out.nbytes, data.nbytes):
            raise ValueError("its head says other sizes")
        return int(_blosc().decompress(data, out).nbytes)


def _blosc() -> Any:
    try:
        from numcodecs import blosc  # noqa: PLC0415  optional
    except ImportError as error:
        raise ConfigError(
            "compressor blosc: numcodecs is missing; pip install 'storage_loader[blosc]'"
        ) from error
    return blosc


_LIBRARIES: dict[str, Library] = {
    "zlib": _Zlib(),
    "zstd": _Zstd(),
    "lz4": _LZ4(),
    **{
        f"blosc:{inner}": _Blosc(inner, number)
        for number, inner in enumerate(("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"))
        if inner != "snappy"  # which few builds have
    },
}
COMPLIBS = tuple(_LIBRARIES)

_MEANT = {  # what other libraries have, and what is nearest to it here
    **dict.fromkeys(("gzip", "deflate", "gz"), "zlib"),
    **dict.fromkeys(("bzip2", "bz2", "xz", "lzma", "brotli", "szip", "zstandard"), "zstd"),
    **dict.fromkeys(("lzo", "lzf", "snappy", "lz4hc"), "lz4"),
    **dict.fromkeys(("blosc2", "blosc2:zstd"), "blosc:zstd"),
}


@dataclass(frozen=True)
class Codec:
    """How the blocks of a region are coded: by which library, at which level, shuffled before.

    To shuffle is to put the first bytes of all values together, then the second ones: where values
    are alike, most of these are runs.
    """

    complib: str
    complevel: int
    shuffle: bool

    @classmethod
    def of(cls, value: Mapping[str, Any] | Codec, *, what: str = "compressor") -> Codec:
        """From a user's dict, or itself; raises `ConfigError` or `UnknownNameError`."""
        if isinstance(value, Codec):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{what}: a dict such as {{'complib': 'zstd', 'complevel': 3}}, not {shown(value)}"
            )
        reject_unknown(value, _KEYS, what=f"{what} key")
        name = value.get("complib", "zstd")
        name = "blosc:blosclz" if name == "blosc" else name
        if not isinstance(name, str) or name not in _LIBRARIES:
            meant = _MEANT.get(name.lower()) if isinstance(name, str) else None
            hint = f"; {meant!r} is the nearest there is" if meant else nearest(str(name), COMPLIBS)
            raise ConfigError(
                f"{what}: unknown complib {shown(name)}{hint}; there are {', '.join(COMPLIBS)}"
            )
        library = _LIBRARIES[name]
        level = value.get("complevel", library.usual)
        if type(level) is not int or not library.least <= level <= library.most:
            levels = f"from {library.least} to {library.most}"
            levels = "1, the only one" if library.most == library.least else levels
            raise ConfigError(f"{what}: complevel {shown(level)}: of {name} {levels}")
        if isinstance(library, _Blosc):
            _blosc()  # raises where it is missing
        return cls(name, level, flag("shuffle", value.get("shuffle", True)))

    @classmethod
    def from_json(cls, value: object) -> Codec:
        """From what `to_json` gave; `FormatError` for anything else."""
        if isinstance(value, dict) and set(_KEYS) <= value.keys():
            name, level, shuffle = (value[key] for key in _KEYS)
            library = _LIBRARIES.get(name) if isinstance(name, str) else None
            if library is None:
                raise FormatError(
                    f"compressed by {shown(name)}, which this version of storage_loader does not "
                    "know: upgrade it"
                )
            is_level = type(level) is int and library.least <= level <= library.most
            if is_level and type(shuffle) is bool:
                return cls(name, level, shuffle)
        raise FormatError(f"a codec has {', '.join(_KEYS)}, not {shown(value)}")

    def to_json(self) -> dict[str, Any]:
        """As a user gives it."""
        return asdict(self)

    @property
    def number(self) -> int:
        """One for each codec there is; from 1 up."""
        return 1 + 2 * (32 * COMPLIBS.index(self.complib) + self.complevel) + self.shuffle

    @classmethod
    def numbered(cls, number: int) -> Codec:
        """The codec of this number."""
        rest, shuffle = divmod(number - 1, 2)
        library, level = divmod(rest, 32)
        return cls(COMPLIBS[library], level, bool(shuffle))

    def filters(self, itemsize: int, nbytes: int) -> Filters:
        """HDF5's filters for blocks of so many bytes, with values of `itemsize` each."""
        library = _LIBRARIES[self.complib]
        coding = library.filter(self, itemsize, nbytes)
        return ((_SHUFFLE, (itemsize,)), coding) if self._shuffles(itemsize) else (coding,)

    def shuffled(self, values: memoryview, nbytes: int, itemsize: int) -> memoryview:
        """The values of blocks of so many bytes, as they are compressed."""
        if not self._shuffles(itemsize):
            return values
        blocks = np.frombuffer(values, np.uint8).reshape(-1, nbytes // itemsize, itemsize)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1)).reshape(-1).data

    def encode(
        self, values: memoryview, itemsize: int, shuffled: memoryview | None = None
    ) -> bytes | memoryview:
        """The values of a block, bytes, coded, or themselves: never more bytes than they have.

        `shuffled`: them as `shuffled` gives them.
        """
        if shuffled is None:
            shuffled = self.shuffled(values, values.nbytes, itemsize)
        coded = _LIBRARIES[self.complib].encode(shuffled, self, itemsize)
        return coded if len(coded) < values.nbytes else values

    def decode(self, stored: Sequence[memoryview], out: memoryview, itemsize: int) -> None:
        """The values of blocks of one size, one after another, into `out`, bytes of just theirs.

        Raises `FormatError` for what is no coded block of so many bytes.
        """
        nbytes = out.nbytes // len(stored)
        together = max(1, _TOGETHER // nbytes) if self._shuffles(itemsize) else 1
        for first in range(0, len(stored), together):
            some = stored[first : first + together]
            self._decode(some, out[first * nbytes : (first + len(some)) * nbytes], itemsize)

    def _decode(self, stored: Sequence[memoryview], out: memoryview, itemsize: int) -> None:
        library, shuffles = _LIBRARIES[self.complib], self._shuffles(itemsize)
        nbytes = out.nbytes // len(stored)
        room = _scratch(out.nbytes).data if shuffles else out
        plain = []
        for i, block in enumerate(stored):
            part = room[i * nbytes : (i + 1) * nbytes]
            if block.nbytes == nbytes:
                plain.append(i)
                continue
            try:
                count = library.decode(block, part)
            except (cramjam.DecompressionError, ValueError, RuntimeError, struct.error) as error:
                raise FormatError(f"no block that {self.complib} has coded: {error}") from error
            if count != nbytes:
                raise FormatError(
                    f"a block that {self.complib} has coded has {count} bytes, not {nbytes}"
                )
        if shuffles and len(plain) < len(stored):
            planes = np.frombuffer(room, np.uint8).reshape(len(stored), itemsize, -1)
            values = np.frombuffer(out, np.uint8).reshape(len(stored), -1, itemsize)
            for place in range(itemsize):  # three times as fast as a transposed copy
                values[:, :, place] = planes[:, place]
        for i in plain:
            out[i * nbytes : (i + 1) * nbytes] = stored[i]

    def check_end(self, block: memoryview, nbytes: int) -> None:
        """Raise `FormatError` where something follows a coded block of so many bytes, decoded.

        A block that `decode` takes. It ignores the rest: of zlib only another decoder says.
        """
        if block.nbytes == nbytes:  # not coded
            return
        try:
            excess = block.nbytes - _LIBRARIES[self.complib].end(block, nbytes)
        except zlib.error as error:
            raise FormatError(f"no block that {self.complib} has coded: {error}") from error
        if excess:
            raise FormatError(f"{excess} bytes follow what {self.complib} has coded")

    def _shuffles(self, itemsize: int) -> bool:
        return self.shuffle and itemsize > 1 and not _LIBRARIES[self.complib].shuffles


_kept = threading.local()


def _scratch(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory of this thread alone, until its next call."""
    room = getattr(_kept, "room", None)
    if room is None or len(room) < nbytes:
        room = _kept.room = np.empty(nbytes, np.uint8)
    return room[:nbytes]
