"""Whether HDF5 sees in an object what its commit says. Reads headers, never a value."""

from __future__ import annotations

import io
from collections.abc import Sequence

import h5py

from ..layout import ObjectLayout
from ..schema import Schema
from .template import CHECKSUMS, file_type

_VERSION = h5py.version.hdf5_version
_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # what HDF5's become in h5py


def header_problems(
    schema: Schema, layout: ObjectLayout, parts: Sequence[tuple[int, bytes]]
) -> list[tuple[str, str]]:
    """What HDF5 does not see as recorded: (attribute, what is wrong), "" for the file itself.

    `parts` are the object's bytes outside its rows and checksums, by offset. No link is followed
    and nothing but these bytes is looked at.
    """
    expected = [
        (
            a.name,
            file_type(a),
            (column.rows, a.num_values),
            column.offset if column.nbytes else None,
        )
        for a in schema
        for column in [layout.columns[a.name]]
    ]
    count = layout.num_checksums
    table = layout.checksums_offset if count else None
    expected.append((CHECKSUMS, h5py.h5t.STD_U64LE, (count, 1), table))
    try:
        with h5py.File(_Sparse(layout.nbytes, parts), "r") as h5:
            extra = {name.decode(errors="replace") for name in h5.id} - {e[0] for e in expected}
            wrong = [(name, _difference(h5, name, *recorded)) for name, *recorded in expected]
    except _ERRORS as error:
        return [("", f"HDF5 {_VERSION} cannot read its header: {error}")]
    wrong += [("", f"HDF5 shows {name!r}, which is no attribute") for name in sorted(extra)]
    return [
        ("", f"{name} {what}") if name == CHECKSUMS else (name, what)
        for name, what in wrong
        if what
    ]


def _difference(
    h5: h5py.File, name: str, kind: h5py.h5t.TypeID, shape: tuple[int, int], offset: int | None
) -> str:
    """How a dataset differs from what is recorded; "" where it does not."""
    key = name.encode()
    if key not in h5.id:
        return "is not in the HDF5 file"
    if h5.id.links.get_info(key).type != h5py.h5l.TYPE_HARD:
        return "is a link that leads elsewhere"
    try:
        dataset = h5py.h5o.open(h5.id, key)
    except _ERRORS as error:
        return f"HDF5 {_VERSION} cannot open it: {error}"
    if not isinstance(dataset, h5py.h5d.DatasetID):
        return "is no HDF5 dataset"
    properties = dataset.get_create_plist()
    if properties.get_layout() != h5py.h5d.CONTIGUOUS or properties.get_external_count():
        return "is not contiguous in the file"
    found = dataset.get_space().get_simple_extent_dims()
    if found != shape:
        return f"has shape {found} in the HDF5 file, recorded are {shape}"
    if not dataset.get_type().equal(kind):
        return "has another type in the HDF5 file"
    if dataset.get_offset() != offset:
        return f"begins at byte {dataset.get_offset()} in the HDF5 file, recorded is {offset}"
    return ""


class _Sparse(io.RawIOBase):
    """A file of `nbytes` bytes that is zero but for its parts."""

    def __init__(self, nbytes: int, parts: Sequence[tuple[int, bytes]]) -> None:
        self._nbytes = nbytes
        self._parts = parts
        self._place = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._nbytes}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: object) -> int:
        out = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        start, end = self._place, min(self._place + out.nbytes, self._nbytes)
        count = max(0, end - start)
        out[:count] = bytes(count)
        for offset, part in self._parts:
            first, last = max(start, offset), min(end, offset + len(part))
            if first < last:
                out[first - start : last - start] = part[first - offset : last - offset]
        self._place += count
        return count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
