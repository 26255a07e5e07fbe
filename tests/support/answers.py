"""A tiny S3 that answers what it is told, and writes down what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO


@dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    port: int  # of the client: another one is another connection


@dataclass(frozen=True)
class Answer:
    """One answer; `promised` is the Content-Length where that is a lie."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    promised: int | None = None


def error(status: int, code: str, text: str = "") -> Answer:
    """What S3 answers on a failure; `text` is more XML in it."""
    body = (
        f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>a message"
        f"</Message><RequestId>1</RequestId><HostId>2</HostId>{text}</Error>"
    )
    return Answer(status, body.encode(), {"Content-Type": "application/xml"})


OBJECT = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": '"tag"'}


class Answers:
    """`answer` decides; `requests` holds all that came."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda request: Answer(500)

    def always(self, answer: Answer) -> None:
        """Every request gets this answer."""
        self.answer = lambda request: answer

    def in_turn(self, *answers: Answer) -> None:
        """One after the other; the last one for ever."""
        queue = list(answers)
        self.answer = lambda request: queue.pop(0) if len(queue) > 1 else queue[0]


def head_of(stream: BinaryIO) -> list[bytes]:
    """The lines of a request's head; [] where the client has gone before its end."""
    lines = []
    while line := stream.readline():
        if line == b"\r\n":
            return lines
        lines.append(line)
    return []


@contextmanager
def answering() -> Iterator[Answers]:
    """A server on this machine, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body, self.client_address[1])
            answers.requests.append(request)
            answer = answers.answer(request)
            content = b"" if self.command == "HEAD" else answer.body
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = len(content) if answer.promised is None else answer.promised
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = answer.promised is not None

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256  # clients connect at once, and wait a second where it is full

    server = Server(("127.0.0.1", 0), Handler)
    answers = Answers(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
