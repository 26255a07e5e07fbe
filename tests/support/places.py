"""Stores of every kind, each in a place of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage_loader.store import FolderStore, Store
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support.s3 import S3Server

CLIENTS: dict[str, Callable[[S3Place], Store]] = {
    "direct": DirectS3,
    "minio": MinioS3,
    "s3": lambda place: RetriedStore(S3Store(place), deadline=10),
}


def s3_place(server: S3Server, bucket: str, prefix: str = "", **changes: Any) -> S3Place:
    """A place on a server, with keys that may do everything there."""
    values: dict[str, Any] = {
        "bucket": bucket,
        "prefix": prefix,
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
    }
    return S3Place(**{**values, **changes})


def folder_store(path: Path) -> FolderStore:
    """A folder under a name with a space, that does not exist yet."""
    return FolderStore(path / "some folder" / "store")
