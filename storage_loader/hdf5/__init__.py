"""HDF5 object bytes; the only package that imports h5py, and it knows no store."""

from .template import CHECKSUMS, Template, capacity, template

__all__ = ["CHECKSUMS", "Template", "capacity", "template"]
