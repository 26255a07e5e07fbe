"""HDF5 object bytes; the only package that imports h5py, and it knows no store."""

from .check import header_problems
from .template import (
    DIRECTORY,
    CodedRegion,
    Template,
    capacity,
    coded_overhead,
    coded_template,
    most_overhead,
    template,
)

__all__ = [
    "DIRECTORY",
    "CodedRegion",
    "Template",
    "capacity",
    "coded_overhead",
    "coded_template",
    "header_problems",
    "most_overhead",
    "template",
]
