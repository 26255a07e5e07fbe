"""Training datasets as HDF5 objects on MinIO, any S3 or a folder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .checks import Check, Checked, check

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


def __getattr__(name: str) -> Any:
    """What few processes ask for is imported when they do: `check` takes 5% of all imports."""
    if name not in ("Check", "Checked", "check"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(".checks", __name__), name)
    return found
