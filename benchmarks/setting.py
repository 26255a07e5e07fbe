"""What a benchmark gets: a scratch folder, an S3 server, and how long to measure."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from minio import Minio
from minio.deleteobjects import DeleteObject
from obstore.store import S3Store as Client

from storage_loader import DataConfig

from . import light_s3
from .latency import delayed
from .runner import Effort, Row

LAUNCHER = Path(__file__).parents[1] / "tests" / "support" / "s3_server.py"
NAMES = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "REGION")
VARIABLE = "STORAGE_LOADER_TEST_S3_"
PEERS_VARIABLE = "STORAGE_LOADER_BENCH_PEERS"


@dataclass(frozen=True)
class Benchmark:
    """A question and the function that answers it; its name is its module's."""

    what: str
    run: Callable[[Setting], Iterable[Row]]
    draw: Callable[[Path], None] | None = None  # adds what it makes of the results' file


class Setting:
    """Scratch space and server of one run of benchmarks; leave the `with` to remove both."""

    def __init__(
        self,
        effort: Effort,
        scratch: Path | None = None,
        *,
        light: bool = False,  # the S3 server is the light one
        delay: float = 0.0,  # seconds that each request to it takes longer
        only: str = "",
        before: Path | None = None,  # another checkout
    ) -> None:
        self.effort = effort
        self._scratch = scratch
        self._light, self._delay, self._only = light, delay, only
        self.before = before
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Setting:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held.close()

    @cached_property
    def scratch(self) -> Path:
        """An empty folder."""
        made = tempfile.TemporaryDirectory(prefix="storage-loader-bench-", dir=self._scratch)
        return Path(self._held.enter_context(made))

    def folder(self) -> Path:
        """A name in the scratch folder that nothing has yet."""
        return self.scratch / uuid.uuid4().hex

    @cached_property
    def s3(self) -> Server:
        """The server to measure with."""
        server = self._lightest() if self._light else self._real()
        return self._held.enter_context(server.far(self._delay)) if self._delay else server

    @property
    def server_words(self) -> tuple[str, ...]:
        """How the server differs from a real one on this machine."""
        light = ("light server",) if self._light else ()
        return (*light, f"{self._delay * 1e3:g} ms a request") if self._delay else light

    def wants(self, measure: str) -> bool:
        """Whether that row is asked for, of a benchmark that can leave out some."""
        return self._only in measure

    def _lightest(self) -> Server:
        folder = self.folder()
        folder.mkdir()
        endpoint = self._held.enter_context(light_s3.serving(folder))
        keys = light_s3.ACCESS_KEY, light_s3.SECRET_KEY, light_s3.REGION
        return Server(endpoint, *keys, folder, light=True)

    def _real(self) -> Server:
        """The server that STORAGE_LOADER_TEST_S3_* names, else one started here."""
        values = {name: os.environ.get(VARIABLE + name, "") for name in NAMES}
        if all(values.values()):
            return Server.of(values)
        return self._held.enter_context(_started())

    @property
    def peers(self) -> str | None:
        """A Python that has the libraries that some benchmarks compare with."""
        return os.environ.get(PEERS_VARIABLE) or None

    @contextlib.contextmanager
    def bucket(self) -> Iterator[Bucket]:
        """A new bucket; it goes with all that is in it."""
        bucket = Bucket(self.s3, f"storage-loader-bench-{uuid.uuid4().hex[:12]}")
        bucket.minio.make_bucket(bucket.name)
        try:
            yield bucket
        finally:
            bucket.clear()
            bucket.minio.remove_bucket(bucket.name)

    def pick(self, full: int, quick: int) -> int:
        """`full`, or `quick` in a quick run."""
        return quick if self.effort.quick else full


@dataclass(frozen=True)
class Server:
    """An S3 server, and the keys to it."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str
    folder: Path | None = None  # of a server that was started here
    light: bool = False  # as in light_s3.py: the folder holds the objects

    @classmethod
    def of(cls, values: Mapping[str, str], folder: Path | None = None) -> Server:
        """From the variables' values."""
        endpoint, access_key, secret_key, region = (values[name] for name in NAMES)
        return cls(endpoint, access_key, secret_key, region, folder)

    def collect_garbage(self) -> None:
        """Free the memory of deleted objects, where the server is ours."""
        if self.folder is not None and not self.light:
            _launcher("gc", "--dir", str(self.folder))

    def at(self, endpoint: str) -> Server:
        """The same server behind a proxy."""
        return replace(self, endpoint=endpoint)

    @contextlib.contextmanager
    def far(self, seconds: float) -> Iterator[Server]:
        """The same objects from a server whose answers come `seconds` late."""
        if self.light:
            assert self.folder is not None
            late = light_s3.serving(self.folder, seconds)
        else:
            late = delayed(self.endpoint, seconds)
        with late as endpoint:
            yield self.at(endpoint)


@dataclass(frozen=True)
class Bucket:
    """A bucket, its settings for a `DataConfig`, and the client that the library uses too."""

    server: Server
    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments that put a `DataConfig` here."""
        s = self.server
        return {
            "storage": f"s3://{self.name}",
            "endpoint": s.endpoint,
            "access_key": s.access_key,
            "secret_key": s.secret_key,
            "region": s.region,
        }

    def config(self, name: str) -> DataConfig:
        """Of a dataset that was saved here."""
        return DataConfig(name, **self.settings)

    @cached_property
    def client(self) -> Client:
        """obstore, to compare with: signed payloads, as ours are, its own defaults else."""
        s = self.server
        return Client(
            self.name,
            endpoint=s.endpoint,
            access_key_id=s.access_key,
            secret_access_key=s.secret_key,
            region=s.region,
            client_options={"allow_http": s.endpoint.startswith("http://"), "timeout": "1h"},
        )

    @cached_property
    def minio(self) -> Minio:
        """A client that can make buckets."""
        s = self.server
        url = urlsplit(s.endpoint)
        return Minio(
            url.netloc,
            access_key=s.access_key,
            secret_key=s.secret_key,
            region=s.region,
            secure=url.scheme == "https",
        )

    def clear(self, prefix: str = "") -> None:
        """Delete all objects whose keys begin so, and free their memory."""
        found = self.minio.list_objects(self.name, prefix=prefix, recursive=True)
        names = [DeleteObject(o.object_name) for o in found if o.object_name]
        for error in self.minio.remove_objects(self.name, names):
            raise RuntimeError(f"not deleted: {error}")
        self.server.collect_garbage()


@contextlib.contextmanager
def _started() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="storage-loader-bench-s3-"))
    try:
        lines = _launcher("up", "--dir", str(folder), "--port", "0").splitlines()
        found = dict(line.removeprefix(f"export {VARIABLE}").split("=", 1) for line in lines)
        yield Server.of(found, folder)
    finally:
        _launcher("down", "--dir", str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _launcher(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(LAUNCHER), *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
