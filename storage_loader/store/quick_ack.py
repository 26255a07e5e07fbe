"""TCP that says at once what came, not up to 40 ms later.

Many servers, Ceph's gateway by default, hold back the end of an answer until its beginning is
acknowledged (Nagle's algorithm: RFC 896): a short range takes 44 ms from them, and 0.3 ms so.
"""

from __future__ import annotations

import contextlib
import socket

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux's


def quick_ack(sock: socket.socket) -> None:
    """Acknowledge what has come of an answer, of which more is to come.

    Not before any has: of an answer in one piece that would only be a packet more.
    """
    if _QUICKACK is not None:
        with contextlib.suppress(OSError):  # a connection that ended says so itself
            sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
