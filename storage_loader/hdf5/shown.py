"""What HDF5 users see of an attribute beside its rows: its type here, and its notes.

HDF5's own strings of variable length would take 4 KiB of each object, so texts have a fixed length;
h5py shows these as bytes.
"""

from __future__ import annotations

import h5py
import numpy as np

from ..schema import Attribute


def show(attribute: Attribute, holder: h5py.h5d.DatasetID | h5py.h5g.GroupID) -> None:
    """Write `unit` and `description`, where there are, `dtype` and `shape` as HDF5 attributes.

    The longest first: what is left of the room in the header has the others.
    """
    for name, text in sorted(attribute.notes.items()):
        _write_text(holder, name, text)
    _write_text(holder, "dtype", attribute.dtype)
    axes = np.array([-1 if axis is None else axis for axis in attribute.shape], "<i8")
    space = h5py.h5s.create_simple(axes.shape)
    written = h5py.h5a.create(holder, b"shape", h5py.h5t.STD_I64LE, space)
    if len(axes):
        written.write(axes)


def _write_text(holder: h5py.h5d.DatasetID | h5py.h5g.GroupID, name: str, text: str) -> None:
    octets = text.encode()
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(octets))
    kind.set_strpad(h5py.h5t.STR_NULLPAD)
    kind.set_cset(h5py.h5t.CSET_UTF8)
    space = h5py.h5s.create(h5py.h5s.SCALAR)
    h5py.h5a.create(holder, name.encode(), kind, space).write(np.array(octets), kind)
