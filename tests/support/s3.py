"""S3 servers of the tests, and buckets on them."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from minio import Minio
from minio.deleteobjects import DeleteObject


@dataclass(frozen=True)
class S3Server:
    """An S3 server that answers, and keys that may do everything on it."""

    endpoint: str  # with its scheme: "http://127.0.0.1:9300"
    access_key: str
    secret_key: str
    region: str
    real: bool  # False: moto, which accepts any keys and knows no permissions

    def client(self) -> Minio:
        url = urlsplit(self.endpoint)
        return Minio(
            url.netloc,
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
            secure=url.scheme == "https",
        )


def moto_server() -> Iterator[S3Server]:
    from moto import backends
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    # moto looks whether a key is there and then stores it: of creators at once several would win.
    put_object, one_step = S3Response.put_object, threading.Lock()

    def put(self: S3Response) -> Any:
        with one_step:
            return put_object(self)

    services = list(backends.list_of_moto_modules())
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    with (
        mock.patch.object(S3Response, "put_object", put),
        # It reads the folder of its services for each request.
        mock.patch.object(backends, "list_of_moto_modules", services.copy),
        # Connections stay open, as those to other servers.
        mock.patch.object(WSGIRequestHandler, "protocol_version", "HTTP/1.1"),
    ):
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        keys = ("testaccesskey", "testsecretkey")
        yield S3Server(f"http://{host}:{port}", *keys, region="us-east-1", real=False)
        server.stop()


@contextmanager
def new_bucket(server: S3Server) -> Iterator[str]:
    """The name of a new, empty bucket, which is there while the block runs."""
    client = server.client()
    bucket = f"storage-loader-test-{uuid.uuid4().hex[:16]}"
    client.make_bucket(bucket)
    try:
        yield bucket
    finally:
        remove_bucket(client, bucket)


def remove_bucket(client: Minio, bucket: str) -> None:
    """Delete a bucket and all objects in it. Does nothing where there is none."""
    if not client.bucket_exists(bucket):
        return
    found = client.list_objects(bucket, recursive=True)
    failed = list(client.remove_objects(bucket, (DeleteObject(o.object_name) for o in found)))
    assert not failed, f"{len(failed)} objects of {bucket} were not deleted, first: {failed[0]}"
    client.remove_bucket(bucket)
