"""Which rows a dataset has: dataset.json, commits, versions, and what a storage holds."""

from .bounds import Bounds, Extreme, has_bounds
from .catalog import Catalog
from .commits import ROW_ORDERS, Commit, CommitId, RowOrder, live_commits
from .gc import Collected, Garbage, collect_garbage
from .history import LoggedCommit, commit_log, drop_commit
from .listing import (
    DatasetInfo,
    UnreadableDataset,
    dataset_info,
    delete,
    find_datasets,
    find_storages,
    list_datasets,
)
from .objects import StoredObject, StoredObjects
from .publication import Publication
from .snapshot import Snapshot, Version, rows_text
from .verify import Problem, Verified, verify_dataset

__all__ = [
    "ROW_ORDERS",
    "Bounds",
    "Catalog",
    "Collected",
    "Commit",
    "CommitId",
    "DatasetInfo",
    "Extreme",
    "Garbage",
    "LoggedCommit",
    "Problem",
    "Publication",
    "RowOrder",
    "Snapshot",
    "StoredObject",
    "StoredObjects",
    "UnreadableDataset",
    "Verified",
    "Version",
    "collect_garbage",
    "commit_log",
    "dataset_info",
    "delete",
    "drop_commit",
    "find_datasets",
    "find_storages",
    "has_bounds",
    "list_datasets",
    "live_commits",
    "rows_text",
    "verify_dataset",
]
