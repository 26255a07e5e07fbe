"""Which rows a dataset has: dataset.json, commits, versions, and what a storage holds."""

from .catalog import Catalog
from .commits import Commit, CommitId, live_commits
from .listing import DatasetInfo, dataset_info, delete, list_datasets
from .objects import StoredObject, StoredObjects
from .snapshot import Snapshot, Version

__all__ = [
    "Catalog",
    "Commit",
    "CommitId",
    "DatasetInfo",
    "Snapshot",
    "StoredObject",
    "StoredObjects",
    "Version",
    "dataset_info",
    "delete",
    "list_datasets",
    "live_commits",
]
