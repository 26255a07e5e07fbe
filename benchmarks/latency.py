"""A relay before an S3 server that adds a delay to every request, in a process of its own.

`python -m benchmarks.latency HOST PORT SECONDS` prints the port it listens on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_PIECE = 2**20


@contextlib.contextmanager
def delayed(endpoint: str, seconds: float) -> Iterator[str]:
    """The endpoint of a relay before `endpoint`."""
    url = urlsplit(endpoint)
    words = [url.hostname or "", str(url.port), str(seconds)]
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def _relay(client: socket.socket, host: str, port: int, seconds: float) -> None:
    server = socket.create_connection((host, port))
    for one in (client, server):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_answers, args=(server, client), daemon=True).start()
    with contextlib.suppress(OSError):
        while data := client.recv(_PIECE):  # a request without a body comes as one piece
            time.sleep(seconds)
            server.sendall(data)
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_WR)


def _answers(server: socket.socket, client: socket.socket) -> None:
    """Pass on what the server sends, without copying it to this process."""
    out, into = os.pipe()
    with contextlib.suppress(OSError), open(out, "rb"), open(into, "wb"):
        while count := os.splice(server.fileno(), into, _PIECE):
            while count:
                count -= os.splice(out, client.fileno(), count)
    for one in (server, client):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def main() -> None:
    host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            words = (client, host, port, seconds)
            threading.Thread(target=_relay, args=words, daemon=True).start()


if __name__ == "__main__":
    main()
