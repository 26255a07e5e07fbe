"""What is sent to S3 is protected on the way: by TLS, else by its own signature."""

from __future__ import annotations

from typing import Any

import pytest

from storage_loader import DataConfig
from storage_loader.store import obstore_s3
from storage_loader.store.s3_place import S3Place


@pytest.mark.parametrize(
    ("endpoint", "secure", "unsigned"),
    [
        ("http://127.0.0.1:9000", None, False),
        ("127.0.0.1:9000", False, False),
        ("https://127.0.0.1:9000", None, True),
        ("127.0.0.1:9000", None, True),
        (None, None, True),  # AWS
    ],
)
def test_payloads_are_signed_where_nothing_else_protects_them(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, secure: bool | None, unsigned: bool
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    made: list[dict[str, Any]] = []

    class Client:
        def __init__(self, bucket: str, **options: Any) -> None:
            made.append(options)

    monkeypatch.setattr(obstore_s3, "ObstoreClient", Client)
    monkeypatch.setattr(obstore_s3, "_first_use_pid", obstore_s3._first_use_pid)
    config = DataConfig(
        "x",
        [("a", "int64")],
        storage="s3://bucket",
        endpoint=endpoint,
        secure=secure,
        access_key="key",
        secret_key="secret",
        region="us-east-1",
    )
    _ = obstore_s3.ObstoreS3(S3Place.of(config))._client
    [options] = made
    assert options["unsigned_payload"] is unsigned
    assert options["client_options"]["allow_http"] is not unsigned
