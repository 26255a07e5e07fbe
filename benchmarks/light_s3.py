"""A light S3 server on loopback, that ends with its starter: it serves a folder for little CPU.

A real server on the loaders' own cores takes more of them than the loaders do, so that a benchmark
measures the server. Here nginx sends the objects (sendfile), and a small server of our own behind
it does what else the benchmarks' clients ask for: PUT in one piece (also create-only), DELETE,
deletion of many, ListObjectsV2, making and removing buckets. Both ignore signatures. What they do
not know, uploads in parts among it, is answered by 501. nginx is Debian's and Ubuntu's package
`nginx-light`: a range of 48 KiB takes about 20 us of its CPU, and 50 us of our own server's; whole
objects cost both the same, 0.13 s/GB.

`python -m benchmarks.light_s3 FOLDER [SECONDS]` prints its port and runs until its standard input
ends. With SECONDS there is no nginx: our own server gives all answers, each so much later, as if it
were far away. Buckets are FOLDER's folders, objects the files in them; several such servers may
serve one folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

ACCESS_KEY, SECRET_KEY, REGION = "lightaccesskey", "lightsecretkey", "us-east-1"
MISSING = "--server light needs nginx: apt-get install nginx-light, or any other nginx in the PATH"

_PIECE = 2**20
_UNFINISHED = ".unfinished"  # folder of what is not yet stored; no bucket is named so
_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))$")

# An entity tag is made as nginx makes it: clients compare those of a list with those of a GET.
_NGINX = """
daemon off;
pid {state}/nginx.pid;
error_log stderr crit;
worker_processes auto;
{user}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
    client_max_body_size 0;
    client_body_temp_path {state}/body;
    proxy_temp_path {state}/proxy;
    fastcgi_temp_path {state}/fastcgi;
    uwsgi_temp_path {state}/uwsgi;
    scgi_temp_path {state}/scgi;
    proxy_http_version 1.1;
    proxy_request_buffering off;
    map "$request_method $args" $of_an_object {{ "GET " 1; "HEAD " 1; default 0; }}
    server {{
        listen 127.0.0.1:{port};
        root "{folder}";
        location / {{ proxy_pass http://127.0.0.1:{behind}; }}
        location @behind {{ proxy_pass http://127.0.0.1:{behind}; }}
        location ~ ^/[^/]+/. {{
            error_page 301 403 404 421 = @behind;  # who knows what S3 says to that
            if ($of_an_object = 0) {{ return 421; }}
        }}
    }}
}}
"""


@contextlib.contextmanager
def serving(folder: Path, seconds: float = 0.0) -> Iterator[str]:
    """The endpoint of a server of `folder`, whose answers come `seconds` late."""
    if not seconds and shutil.which("nginx", path=search_path()) is None:
        raise SystemExit(MISSING)
    words = [sys.executable, "-m", __spec__.name, str(folder), str(seconds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.communicate()  # ends its input


def search_path() -> str:
    """Where programs are looked for: Debian has nginx where only root's PATH leads."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))


@dataclass(frozen=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: BinaryIO  # of `length` bytes, and then the next request

    @property
    def length(self) -> int:
        return int(self.headers.get("content-length", "0"))


@dataclass(frozen=True)
class _Answer:
    """`body`, or of `file` as much as Content-Length says, from `start` on."""

    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, object] = field(default_factory=dict)
    body: bytes = b""
    file: BinaryIO | None = None
    start: int = 0

    @classmethod
    def xml(cls, text: str, status: HTTPStatus = HTTPStatus.OK) -> _Answer:
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        return cls(status, {"Content-Type": "application/xml", "Content-Length": len(body)}, body)

    @classmethod
    def error(cls, status: HTTPStatus, code: str) -> _Answer:
        """`code` is S3's name for it."""
        return cls.xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


class _Folder:
    """A folder of buckets, that answers requests; each is a function of its files alone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        (root / _UNFINISHED).mkdir(exist_ok=True)

    def answer(self, request: _Request) -> _Answer:
        """What S3 would say."""
        work = self._work(request)
        if work is None or request.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
            return _Answer.error(HTTPStatus.NOT_IMPLEMENTED, "NotImplemented")
        if not self._path(request.bucket).resolve().is_relative_to(self._root.resolve()):
            return _Answer.error(HTTPStatus.BAD_REQUEST, "InvalidBucketName")
        if request.method != "PUT" and not self._path(request.bucket).is_dir():
            return _Answer.error(HTTPStatus.NOT_FOUND, "NoSuchBucket")
        return work(request)

    def _work(self, request: _Request) -> Callable[[_Request], _Answer] | None:
        """Who does it; None where nobody can."""
        names = {name for name in ("delete", "list-type") if name in request.query}
        of_object: dict[str, Callable[[_Request], _Answer]] = {
            "GET": self._get,
            "HEAD": self._get,
            "PUT": self._put,
            "DELETE": self._remove,
        }
        of_bucket: dict[str, Callable[[_Request], _Answer]] = {
            "GET list-type": self._list,
            "POST delete": self._remove_many,
            "HEAD": lambda request: _Answer(),
            "PUT": self._make_bucket,
            "DELETE": self._remove_bucket,
        }
        if request.key:
            # A query asks for a part of an upload, or for what else an object has.
            return None if request.query else of_object.get(request.method)
        return of_bucket.get(" ".join((request.method, *names)))

    def _path(self, *words: str) -> Path:
        return self._root.joinpath(*words)

    def _get(self, request: _Request) -> _Answer:
        try:
            file = self._path(request.bucket, request.key).open("rb", buffering=0)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return _Answer.error(HTTPStatus.NOT_FOUND, "NoSuchKey")
        facts = os.fstat(file.fileno())
        size = end = facts.st_size
        start, status = 0, HTTPStatus.OK
        headers: dict[str, object] = {
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "ETag": _tag(facts),
            "Last-Modified": formatdate(facts.st_mtime, usegmt=True),
        }
        if found := _RANGE.match(request.headers.get("range", "")):
            first, last, suffix = found.groups()
            start = max(0, size - int(suffix)) if suffix else int(first)
            end = min(size, int(last) + 1) if last else size
            if start >= end:
                file.close()
                return _Answer.error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        headers["Content-Length"] = end - start
        return _Answer(status, headers, file=file, start=start)

    def _put(self, request: _Request) -> _Answer:
        """Store an object: a reader sees all of it or nothing."""
        path, made = self._path(request.bucket, request.key), self._path(_UNFINISHED, _unique())
        with made.open("wb") as file:
            left = request.length
            while left:
                data = request.body.read(min(left, _PIECE))
                if not data:
                    raise ConnectionResetError("a body ended early")
                file.write(data)
                left -= len(data)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if request.headers.get("if-none-match") == "*":
                os.link(made, path)  # of many at once, one wins
            else:
                os.replace(made, path)
            return _Answer(headers={"ETag": _tag(path.stat())})
        except FileExistsError:
            return _Answer.error(HTTPStatus.PRECONDITION_FAILED, "PreconditionFailed")
        finally:
            made.unlink(missing_ok=True)

    def _remove(self, request: _Request) -> _Answer:
        self._unlink(request.bucket, request.key)
        return _Answer(HTTPStatus.NO_CONTENT)

    def _remove_many(self, request: _Request) -> _Answer:
        tree = ElementTree.fromstring(request.body.read(request.length))
        keys = [found.text or "" for found in tree.iter() if found.tag.endswith("Key")]
        for key in keys:
            self._unlink(request.bucket, key)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return _Answer.xml(f"<DeleteResult>{done}</DeleteResult>")

    def _unlink(self, bucket: str, key: str) -> None:
        """Remove an object, where there is one: a folder is none."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._path(bucket, key).unlink()

    def _make_bucket(self, request: _Request) -> _Answer:
        request.body.read(request.length)
        self._path(request.bucket).mkdir(exist_ok=True)
        return _Answer()

    def _remove_bucket(self, request: _Request) -> _Answer:
        shutil.rmtree(self._path(request.bucket))
        return _Answer(HTTPStatus.NO_CONTENT)

    def _list(self, request: _Request) -> _Answer:
        """ListObjectsV2; a continuation token is the last name of the page before."""
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        names: dict[str, str | None] = {}  # key, or prefix that stands for keys, by name
        for key in self._keys(request.bucket, prefix):
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            names[key if end < 0 else key[: end + len(delimiter)]] = key if end < 0 else None
        count = min(1000, int(query.get("max-keys", "1000")))
        found = sorted((name for name in names if _order(name) > _order(after)), key=_order)
        write = quote if query.get("encoding-type") == "url" else escape
        entries = []
        for name in found[:count]:
            if names[name] is None:
                text = f"<Prefix>{write(name)}</Prefix>"
                entries.append(f"<CommonPrefixes>{text}</CommonPrefixes>")
                continue
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                facts = self._path(request.bucket, name).stat()
                when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(facts.st_mtime))
                entries.append(
                    f"<Contents><Key>{write(name)}</Key><LastModified>{when}</LastModified>"
                    f"<ETag>{escape(_tag(facts))}</ETag><Size>{facts.st_size}</Size>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        more = len(found) > count
        token = ""
        if more:
            token = f"<NextContinuationToken>{escape(found[count - 1])}</NextContinuationToken>"
        coded = "<EncodingType>url</EncodingType>" if write is quote else ""
        return _Answer.xml(
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{request.bucket}</Name><Prefix>{write(prefix)}</Prefix>{coded}"
            f"<KeyCount>{len(entries)}</KeyCount><MaxKeys>{count}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(entries)}</ListBucketResult>"
        )

    def _keys(self, bucket: str, prefix: str) -> Iterator[str]:
        """Keys that begin so, in no order."""
        top = self._path(bucket)
        for folder, _, names in os.walk(top / prefix.rpartition("/")[0]):
            inner = Path(folder).relative_to(top)
            for name in names:
                key = (inner / name).as_posix()
                if key.startswith(prefix):
                    yield key


def _tag(facts: os.stat_result) -> str:
    return f'"{int(facts.st_mtime):x}-{facts.st_size:x}"'


def _order(name: str) -> bytes:
    return name.encode()


def _unique() -> str:
    return uuid.uuid4().hex


def _requests(stream: BinaryIO) -> Iterator[_Request]:
    """What a client asks for, until it closes the connection."""
    while line := stream.readline():
        method, target, _ = line.decode("latin-1").split()
        headers: dict[str, str] = {}
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        path, _, query = target.partition("?")
        bucket, _, key = path.lstrip("/").partition("/")
        found = dict(parse_qsl(query, keep_blank_values=True))
        yield _Request(method, unquote(bucket), unquote(key), found, headers, stream)


def _serve(client: socket.socket, folder: _Folder, seconds: float) -> None:
    """Answer a connection's requests, one after another."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with (
        client,
        client.makefile("rb", buffering=2**16) as stream,
        contextlib.suppress(ConnectionError),
    ):
        for request in _requests(stream):
            if seconds:
                time.sleep(seconds)
            _send(client, request, folder.answer(request))


def _send(client: socket.socket, request: _Request, answer: _Answer) -> None:
    headers = {"Content-Length": 0, **answer.headers}
    if answer.status is HTTPStatus.NO_CONTENT:
        del headers["Content-Length"]
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n{''.join(lines)}\r\n"
    with answer.file or contextlib.nullcontext():
        if request.method == "HEAD":
            client.sendall(head.encode())
        elif answer.file is None:
            client.sendall(head.encode() + answer.body)
        else:
            client.sendall(head.encode(), socket.MSG_MORE)  # in a packet with what follows
            start, end = answer.start, answer.start + int(str(headers["Content-Length"]))
            while start < end:
                start += os.sendfile(client.fileno(), answer.file.fileno(), start, end - start)


def _accept(listener: socket.socket, folder: _Folder, seconds: float) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, folder, seconds), daemon=True).start()


@contextlib.contextmanager
def _nginx(folder: Path, behind: int) -> Iterator[int]:
    """The port of an nginx that sends `folder`'s files, and asks port `behind` for all else."""
    with (
        tempfile.TemporaryDirectory(prefix="storage-loader-bench-nginx-") as state,
        _listening() as listener,
    ):
        listener.setblocking(False)  # as nginx wants it: a worker that waits here serves nobody
        port = listener.getsockname()[1]
        user = "user root;" if os.getuid() == 0 else ""  # else it cannot read what is root's
        config = Path(state, "nginx.conf")
        config.write_text(
            _NGINX.format(state=state, user=user, port=port, folder=folder, behind=behind)
        )
        program = shutil.which("nginx", path=search_path())
        assert program is not None, MISSING
        # It takes over a socket that listens already, as from an older nginx that it replaces.
        environment = {**os.environ, "NGINX": f"{listener.fileno()};"}
        # What it says of its start is in no one's way there; errors in it come to stderr anyway.
        words = [program, "-e", str(Path(state, "start.log")), "-c", str(config)]
        with subprocess.Popen(
            words, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL
        ) as process:
            try:
                yield port
            finally:
                process.terminate()


def _listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=256)


def main() -> None:
    folder, seconds = Path(sys.argv[1]).resolve(), float((*sys.argv, "0")[2])
    with _listening() as listener, contextlib.ExitStack() as held:
        words = (listener, _Folder(folder), seconds)
        threading.Thread(target=_accept, args=words, daemon=True).start()
        own = listener.getsockname()[1]
        print(own if seconds else held.enter_context(_nginx(folder, own)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
