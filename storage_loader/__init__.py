"""Training datasets as HDF5 objects on MinIO, any S3 or a folder."""

from .catalog import DatasetInfo, Version, delete, list_datasets
from .config import DataConfig
from .errors import StorageLoaderError
from .loader import DataLoader, Dataset, Stats, split
from .saver import DataSaver, save
from .schema import Attribute

__version__ = "0.1.0"

__all__ = [
    "Attribute",
    "DataConfig",
    "DataLoader",
    "DataSaver",
    "Dataset",
    "DatasetInfo",
    "Stats",
    "StorageLoaderError",
    "Version",
    "delete",
    "list_datasets",
    "save",
    "split",
]
