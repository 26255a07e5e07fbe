"""GETs of one server, many at once: one thread sends them and receives the answers.

Where each of 32 threads receives its own, Python's lock changes hands for every answer, and rows by
index come at a sixth of the rate. asyncio receives into the memory in which a body stays.

Only plain answers are taken: HTTP/1.1, a small head, and a body whose length stands in it. All else
is `Fate.STRANGE`: who asked may ask again by a client that knows the whole of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np

from ..ranges import Range
from .certificates import named_file, shared_context
from .guarded_http import REFUSAL, SLOWEST
from .interruptible import interruptible

AT_ONCE = 10  # GETs of one call that are under way; 16 are no faster
_MOST = 320  # connections of one process to a server, beside those of streams
_HEAD = 2**11  # bytes of a head that are taken; those of Ceph, MinIO and AWS have 400 to 900
_SMALL = 2**16  # bytes of a body that may come with the head, where its length is not known
_AHEAD = 2  # pieces of a stream that nobody took yet
_LOOKS = 8  # looks for what is late, in each timeout
_ADDRESSES_KEPT = 30.0  # seconds, as a name server's answers of S3 are
_PLACES = 8  # servers whose connections are kept

_EMPTY = memoryview(b"")
_RANGE = re.compile(rb"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:[0-9]{1,18}|[*])")
_NUMBER = re.compile(rb"[0-9]{1,18}")


class Fate(Enum):
    """What became of a GET."""

    UNASKED = "unasked"  # so far, or since another one of the call failed
    ANSWERED = "answered"  # plainly, be it by a refusal
    TOO_LARGE = "too large"  # `nbytes` are more than the limit
    LATE = "late"
    CUT = "cut"  # the connection ended in the answer
    STRANGE = "strange"  # the server cannot be reached, or its answer is none that is taken here


@dataclass(eq=False)
class Get:
    """A GET, and what came of it."""

    head: bytes  # of the request, with its end
    limit: int  # bytes that the answer's body may have
    range: Range | None = None  # that `head` asks for; None: all
    fate: Fate = Fate.UNASKED
    status: int = 0
    nbytes: int = 0  # of the body, as the answer's head says
    body: memoryview = _EMPTY  # read-only
    error: BaseException | None = None  # of ours, while it was received

    @property
    def is_granted(self) -> bool:
        return self.fate is Fate.ANSWERED and self.status < 300


@dataclass(frozen=True)
class Head:
    """The head of a plain answer."""

    status: int
    nbytes: int
    range: Range | None
    is_kept: bool  # the connection, for another request

    @classmethod
    def parse(cls, text: bytes) -> Head | None:
        """None where it is none of a plain answer."""
        first, *lines = text.split(b"\r\n")
        words = first.split(b" ", 2)
        if len(words) < 2 or words[0] != b"HTTP/1.1" or not re.fullmatch(b"[2-5][0-9]{2}", words[1]):
            return None
        fields: dict[bytes, bytes] = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not name or name != name.strip() or name in _ONCE and name in fields:
                return None
            fields[name] = value.strip()
        length = fields.get(b"content-length", b"")
        if not _NUMBER.fullmatch(length) or fields.keys() & _UNUSUAL:
            return None
        part = _RANGE.fullmatch(fields.get(b"content-range", b""))
        return cls(
            int(words[1]),
            int(length),
            (int(part[1]), int(part[2]) + 1) if part else None,
            fields.get(b"connection", b"keep-alive").lower() == b"keep-alive",
        )


_ONCE = {b"content-length", b"content-range", b"connection"}
_UNUSUAL = {b"transfer-encoding", b"content-encoding", b"upgrade"}


def gets(server_url: str, *, timeout: float, connect_timeout: float) -> Gets:
    """One for all who ask a server in this process: keys are in requests, not in connections."""
    return _gets(server_url, timeout, connect_timeout, named_file(), os.getpid())


@lru_cache(maxsize=_PLACES)
def _gets(
    server_url: str, timeout: float, connect_timeout: float, trusted: str | None, process: int
) -> Gets:
    """`process`: a fork's connections are its own."""
    is_tls = server_url.startswith("https://")
    parts = urlsplit(server_url)
    return Gets(
        parts.hostname or "",
        parts.port or (443 if is_tls else 80),
        shared_context(trusted) if is_tls else None,
        timeout=timeout,
        connect_timeout=connect_timeout,
    )


class Gets:
    """Thread-safe. Ctrl-C ends a wait in the main thread, and what was waited for."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        *,
        timeout: float,
        connect_timeout: float,
    ) -> None:
        """`context`: of TLS. `timeout`: seconds within which something comes of each answer, and
        all of it, but for one second more for each `SLOWEST` bytes of it.
        """
        self._server = host, port
        self._addresses: tuple[float, Sequence[Any]] = (0.0, ())
        self._process = os.getpid()
        self._arrivals = _Arrivals(host, context, timeout, connect_timeout)
        weakref.finalize(self, self._arrivals.end)

    def ask(self, asked: Sequence[Get]) -> None:
        """Make GETs, at most `AT_ONCE` at a time; after one that fails no more are begun."""
        call = _Call(deque(asked))
        try:
            self._begin(call)
            call.over.acquire()
        except BaseException:
            self._arrivals.do(partial(self._arrivals.abandon, call))
            raise
        for get in asked:
            if get.error is not None:
                raise get.error

    def stream(self, get: Get, nbytes: int) -> Iterator[memoryview]:
        """Make a GET; the body in pieces of so many bytes, once the answer is plain and granted."""
        stream = _Stream(nbytes)
        call = _Call(deque([get]), stream)
        try:
            self._begin(call)
            while (piece := stream.pieces.get()) is not None:
                self._arrivals.do(stream.taken)
                yield piece
                if os.getpid() != self._process:  # a child: what comes is its parent's
                    get.fate = Fate.CUT
                    return
        finally:
            if get.fate is Fate.UNASKED:
                self._arrivals.do(partial(self._arrivals.abandon, call))
        if get.error is not None:
            raise get.error

    def _begin(self, call: _Call) -> None:
        made, addresses = self._addresses
        now = time.monotonic()
        if not addresses or now - made > _ADDRESSES_KEPT:
            find = partial(socket.getaddrinfo, *self._server, type=socket.SOCK_STREAM)
            try:
                addresses = interruptible(find)  # a signal does not end it
            except (OSError, UnicodeError):
                addresses = ()
            self._addresses = now, addresses
        call.addresses = addresses
        self._arrivals.do(partial(self._arrivals.take_on, call))


class _Call:
    """GETs that one caller waits for."""

    def __init__(self, waiting: deque[Get], stream: _Stream | None = None) -> None:
        self.waiting = waiting
        self.stream = stream
        self.addresses: Sequence[Any] = ()
        self.under_way = 0
        self.over = threading.Lock()
        self.over.acquire()

    @property
    def wants_more(self) -> bool:
        """Another connection."""
        return bool(self.waiting) and self.under_way < AT_ONCE

    def end(self) -> None:
        """Tell the caller, where nothing is left to do."""
        if not self.waiting and not self.under_way:
            if self.stream is not None:
                self.stream.pieces.put(None)
            self.over.release()


class _Stream:
    """Pieces of one body, between the thread that receives it and the one that takes them."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes  # of a piece
        self.pieces: SimpleQueue[memoryview | None] = SimpleQueue()
        self.connection: _Connection | None = None
        self._ahead = 0

    def give(self, piece: memoryview) -> None:
        self.pieces.put(piece)
        self._ahead += 1

    @property
    def is_ahead(self) -> bool:
        """Whether enough waits to be taken."""
        return self._ahead >= _AHEAD

    def taken(self) -> None:
        self._ahead -= 1
        if self.connection is not None and not self.is_ahead:
            self.connection.resume()


class _Connection(asyncio.BufferedProtocol):
    """A connection, the GET on it, and its answer as far as it came."""

    def __init__(self, arrivals: _Arrivals) -> None:
        self.arrivals = arrivals
        self.get: Get | None = None  # None: it is idle
        self.call: _Call | None = None
        self._head: Head | None = None  # once it is here
        self._buffer = _EMPTY
        self._start = self._end = 0  # in the buffer: of what came of the body and nobody has
        self._left = 0  # bytes of the body from there on
        self._begun = self._seen = 0.0  # when; `_seen`: when the last look saw something come
        self._came = self._came_then = 0  # bytes; `_came_then`: at that look
        self._paused_since: float | None = None
        self._is_new = True  # nothing was asked of it yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, call: _Call) -> None:
        """Send the next GET of a call, which waits for one."""
        get = self.get = call.waiting.popleft()
        self.call = call
        call.under_way += 1
        if call.stream is not None:
            call.stream.connection = self
            room = call.stream.nbytes
        else:
            room = get.limit if get.range else min(get.limit, _SMALL)
        self._start = self._end = self._left = self._came = self._came_then = 0
        self._head = None
        self._begun = self._seen = time.monotonic()
        with self._failures_told():
            self._buffer = _memory(_HEAD + room)
            self._transport.write(get.head)

    def get_buffer(self, sizehint: int) -> memoryview:
        # What nobody asked for has a byte of room.
        return self._buffer[self._end :] if self.get is not None else _memory(1)

    def buffer_updated(self, nbytes: int) -> None:
        if self.get is None:
            self._transport.abort()
            return
        self._end += nbytes
        self._came += nbytes
        with self._failures_told():
            if self._head is not None or self._find_head(self.get):
                self._take(self.get)

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        get = self.get
        try:
            yield
        except BaseException as error:  # the caller's
            if get is not None:
                get.error = error
            if self.get is not None:
                self.give_up(Fate.CUT)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.get is not None:
            # The server may end a connection that it kept just when it is used again.
            is_stale = not self._came and not self._is_new
            self._end_get(Fate.STRANGE if is_stale else Fate.CUT)
        self.arrivals.lost(self)

    def close(self) -> None:
        self._transport.abort()

    def give_up(self, fate: Fate) -> None:
        """The rest of the answer is not waited for."""
        self._transport.abort()
        self._paused_since = None
        self._end_get(fate)

    def look(self, now: float, timeout: float) -> None:
        """Give up what is late."""
        if self.get is None or self._paused_since is not None:
            return
        if self._came > self._came_then:
            self._came_then, self._seen = self._came, now
        if now > min(self._seen, self._begun + self._came / SLOWEST) + timeout:
            self.give_up(Fate.LATE)

    def _pause(self) -> None:
        """Receive no more for a while."""
        self._paused_since = time.monotonic()
        self._transport.pause_reading()

    def resume(self) -> None:
        """The contrary."""
        if self._paused_since is not None:
            now = time.monotonic()
            self._begun += now - self._paused_since
            self._seen, self._paused_since = now, None
            self._transport.resume_reading()

    def _find_head(self, get: Get) -> bool:
        """Whether the head is here, and to be followed by its body."""
        text = bytes(self._buffer[: min(self._end, _HEAD)])
        end = text.find(b"\r\n\r\n")
        if end < 0 and self._end < _HEAD:
            return False
        head = Head.parse(text[:end]) if end >= 0 else None
        if head is None or (head.status >= 300 and head.nbytes > REFUSAL):
            self.give_up(Fate.STRANGE)
            return False
        get.status, get.nbytes = head.status, head.nbytes
        if head.status < 300:
            if not _is_asked_for(head, get):
                self.give_up(Fate.STRANGE)
                return False
            if head.nbytes > get.limit:
                self.give_up(Fate.TOO_LARGE)
                return False
        self._head = head
        self._start = end + 4
        self._left = head.nbytes
        if self.call is None or self.call.stream is None or head.status >= 300:
            self._make_room(self._start + head.nbytes)
        return True

    def _make_room(self, nbytes: int) -> None:
        if nbytes > len(self._buffer):
            larger = _memory(nbytes)
            larger[: self._end] = self._buffer[: self._end]
            self._buffer = larger

    def _take(self, get: Get) -> None:
        """Go on with what came of the body."""
        here = self._end - self._start
        stream = self.call.stream if self.call is not None and get.status < 300 else None
        if stream is None:
            if here >= self._left:
                body = self._buffer[self._start : self._start + self._left].toreadonly()
                get.body = body if self._left > _SMALL or get.range else memoryview(bytes(body))
                self._answered(here - self._left)
            return
        if here >= self._left or self._end == len(self._buffer):
            piece = self._buffer[self._start : self._start + min(here, self._left)].toreadonly()
            self._left -= len(piece)
            if piece:
                stream.give(piece)
            if not self._left:
                self._answered(here - len(piece))
                return
            self._buffer = _memory(min(stream.nbytes, self._left))
            self._start = self._end = 0
            if stream.is_ahead:
                self._pause()

    def _answered(self, nbytes_after: int) -> None:
        assert self._head is not None
        is_good = self._head.is_kept and not nbytes_after
        self._is_new = False
        self._end_get(Fate.ANSWERED)
        if is_good:
            self.arrivals.freed(self)
        else:
            self._transport.abort()

    def _end_get(self, fate: Fate) -> None:
        get, call = self.get, self.call
        assert get is not None
        assert call is not None
        get.fate = fate
        if not get.is_granted:
            call.waiting.clear()
        if call.stream is not None:
            if self._head is not None and self._head.status < 300 and self._left:
                call.stream.give(self._buffer[self._start : self._end].toreadonly())
            call.stream.connection = None
        self.get = self.call = None
        self._buffer = _EMPTY
        call.under_way -= 1
        call.end()


class _Arrivals:
    """The thread that receives: everything here but `do` and `end` is called in it."""

    def __init__(
        self, host: str, context: ssl.SSLContext | None, timeout: float, connect_timeout: float
    ) -> None:
        self._host = host
        self._context = context
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._calls: deque[_Call] = deque()  # that wait for a connection, the oldest first
        self._all: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()  # that connect
        self._is_looking = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._process = os.getpid()

    def do(self, what: Callable[[], None]) -> None:
        """Have it done in the thread, soon."""
        if self._loop is None:
            self._start()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(what)

    def _start(self) -> None:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(loop,), name="storage_loader-s3-gets", daemon=True
                ).start()
                self._loop = loop

    def end(self) -> None:
        """Close all connections."""
        if self._loop is not None and os.getpid() == self._process:
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        for connection in [*self._all]:
            connection.close()
        for task in self._tasks:
            task.cancel()
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)

    def take_on(self, call: _Call) -> None:
        """Begin with the GETs of a call."""
        self._calls.append(call)
        while self._idle and call.wants_more:
            self._idle.pop().ask(call)
        missing = min(AT_ONCE - call.under_way, len(call.waiting))
        if call.stream is None:
            missing = min(missing, _MOST - len(self._all) - len(self._tasks))
        for _ in range(missing):
            self._open(call)
        if not self._is_looking:
            self._is_looking = True
            self._look()

    def _open(self, call: _Call) -> None:
        """Make another connection, for this call or an older one."""
        task = asyncio.get_running_loop().create_task(self._connect(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _oldest(self) -> _Call | None:
        """The call that gets the next connection."""
        while self._calls and not self._calls[0].waiting:
            self._calls.popleft()
        return next((call for call in self._calls if call.wants_more), None)

    def freed(self, connection: _Connection) -> None:
        """It takes another GET."""
        call = self._oldest()
        if call is None:
            self._idle.append(connection)
        else:
            connection.ask(call)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        call = self._oldest()
        if call is not None:  # which may have waited for this one
            self._open(call)

    def abandon(self, call: _Call) -> None:
        """Nothing more is done for it."""
        is_waiting = bool(call.waiting)
        call.waiting.clear()
        for connection in [each for each in self._all if each.call is call]:
            connection.give_up(Fate.CUT)
        if is_waiting:
            call.end()

    async def _connect(self, call: _Call) -> None:
        try:
            connection = await asyncio.wait_for(self._connected(call), self._connect_timeout)
        except (OSError, asyncio.TimeoutError):
            if not call.under_way:
                self.abandon(call)
            other = self._oldest()
            if other is not None and not other.under_way and len(self._tasks) == 1:
                self._open(other)
            return
        self._all.add(connection)
        self.freed(connection)

    async def _connected(self, call: _Call) -> _Connection:
        loop = asyncio.get_running_loop()
        for place, (family, kind, protocol, _, address) in enumerate(call.addresses, 1):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
            except OSError:
                sock.close()
                if place == len(call.addresses):
                    raise
                continue
            except BaseException:
                sock.close()
                raise
            _, connection = await loop.create_connection(
                lambda: _Connection(self),
                sock=sock,
                ssl=self._context,
                server_hostname=self._host if self._context else None,
            )
            return connection
        raise OSError("no address")

    def _look(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._all if each.get is not None]:
            connection.look(now, self._timeout)
        if self._all or self._tasks:
            asyncio.get_running_loop().call_later(self._timeout / _LOOKS, self._look)
        else:
            self._is_looking = False


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _is_asked_for(head: Head, get: Get) -> bool:
    """Whether an answer has the bytes that were asked for, or those of them that there are."""
    if get.range is None:
        return head.status == 200
    start, end = get.range
    if head.status != 206 or head.range is None:
        return False
    return head.range[0] == start and head.nbytes == head.range[1] - start <= end - start


def _memory(nbytes: int) -> memoryview:
    """As it comes: a bytearray's would be cleared first."""
    return np.empty(nbytes, np.uint8).data
