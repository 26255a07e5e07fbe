"""Training datasets as HDF5 objects on MinIO, any S3 or a folder."""

from .catalog import (
    Collected,
    DatasetInfo,
    LoggedCommit,
    Problem,
    UnreadableDataset,
    Verified,
    Version,
    collect_garbage,
    commit_log,
    delete,
    drop_commit,
    list_datasets,
    verify_dataset,
)
from .checks import Check, Checked, check
from .config import DataConfig
from .credentials import Credentials
from .errors import StorageLoaderError
from .loader import (
    CachedDataset,
    ClearedCache,
    DataLoader,
    Dataset,
    Stats,
    clear_cache,
    list_cache,
    split,
)
from .ragged import Pad, Ragged
from .saver import DataSaver, save
from .schema import Attribute

__version__ = "0.1.0"

__all__ = [
    "Attribute",
    "CachedDataset",
    "Check",
    "Checked",
    "ClearedCache",
    "Collected",
    "Credentials",
    "DataConfig",
    "DataLoader",
    "DataSaver",
    "Dataset",
    "DatasetInfo",
    "LoggedCommit",
    "Pad",
    "Problem",
    "Ragged",
    "Stats",
    "StorageLoaderError",
    "UnreadableDataset",
    "Verified",
    "Version",
    "check",
    "clear_cache",
    "collect_garbage",
    "commit_log",
    "delete",
    "drop_commit",
    "list_cache",
    "list_datasets",
    "save",
    "split",
    "verify_dataset",
]
