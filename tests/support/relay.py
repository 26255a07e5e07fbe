"""A server between the tests and an S3 server, which spoils what passes through."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.answers import Answer, Request


@dataclass
class Relay:
    """`ask` may answer in the server's place, or change the request; `answered` the answer."""

    endpoint: str = ""
    ask: Callable[[Request], Answer | Request] = lambda request: request
    answered: Callable[[Request, Answer], Answer] = lambda request, answer: answer
    completes: bool = False  # a put that broke off is filled up and passed on


_OWN = {"content-length", "connection", "transfer-encoding", "date", "server"}


@contextmanager
def relaying(endpoint: str) -> Iterator[Relay]:
    """A relay to a server, while the block runs."""
    upstream = urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            self.close_connection = len(body) < length
            if self.close_connection and not relay.completes:
                return
            body = body.ljust(length, b"\0")
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body, self.client_address[1])
            found = relay.ask(request)
            answer = found if isinstance(found, Answer) else self.forwarded(found)
            self.reply(relay.answered(request, answer))

        def forwarded(self, request: Request) -> Answer:
            connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port)
            passed = {k: v for k, v in request.headers.items() if k not in ("content-length",)}
            if request.body or self.command in ("PUT", "POST"):
                passed["content-length"] = str(len(request.body))
            connection.putrequest(
                request.method, request.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in passed.items():
                connection.putheader(name, value)
            connection.endheaders(request.body)
            response = connection.getresponse()
            body = response.read()
            headers = dict(response.getheaders())
            connection.close()
            promised = int(headers["Content-Length"]) if self.command == "HEAD" else None
            return Answer(response.status, body, headers, promised)

        def reply(self, answer: Answer) -> None:
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _OWN - {"date"}:
                    self.send_header(name, value)
            length = len(answer.body) if answer.promised is None else answer.promised
            if answer.status not in (204, 304):
                self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *args: object) -> None:
            """A client that ends its connection is none of a relay's."""

    server = Server(("127.0.0.1", 0), Handler)
    relay = Relay(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield relay
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
