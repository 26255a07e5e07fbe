"""Exchanges with one server, many at once: one thread sends requests and receives their answers.

Where each of 32 threads receives its own, Python's lock changes hands for every answer, and rows by
index come at a sixth of the rate. asyncio receives into the memory in which a body stays.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np

from ..errors import StoreError, ThreadError
from ..interruptible import interruptible
from ..threads import start
from .certificates import named_file, shared_context
from .exchange import EMPTY, Exchange, Fate, Head, status_of
from .guarded_http import SLOWEST
from .quick_ack import quick_ack

_MOST = 320  # connections of one process to a server ...
_FILES_SHARE = 3  # ... or so small a part of the files that it may open: others need some, too
_HEAD = 2**11  # bytes of a head that are taken; those of Ceph, MinIO and AWS have 400 to 900
_SMALL = 2**16  # bytes of a body that may come with the head, where its length is not known
_LOOK = 0.1  # seconds between looks for what is late
_ADDRESSES_KEPT = 30.0  # seconds, as a name server's answers of S3 are
_PLACES = 8  # servers whose connections are kept


def exchanges(server_url: str, *, timeout: float, connect_timeout: float) -> Exchanges:
    """One for all who ask a server in this process: keys are in requests, not in connections."""
    return _exchanges(server_url, timeout, connect_timeout, named_file(), os.getpid())


@lru_cache(maxsize=_PLACES)
def _exchanges(
    server_url: str, timeout: float, connect_timeout: float, trusted: str | None, process: int
) -> Exchanges:
    """`process`: a fork's connections are its own."""
    is_tls = server_url.startswith("https://")
    parts = urlsplit(server_url)
    return Exchanges(
        parts.hostname or "",
        parts.port or (443 if is_tls else 80),
        shared_context(trusted) if is_tls else None,
        timeout=timeout,
        connect_timeout=connect_timeout,
    )


class Exchanges:
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
        weakref.finalize(self, self._arrivals.end).atexit = False

    def make(self, wanted: Sequence[Exchange], at_once: int) -> None:
        """Make them, so many at once; after one that fails no more are begun.

        That there is no such object is no failure here.
        """
        if not wanted:
            return
        call = _Call(deque(wanted), at_once)
        try:
            self._begin(call)
            call.over.acquire()
        except BaseException:
            self._arrivals.do(partial(self._arrivals.abandon, call))
            raise
        for exchange in wanted:
            if exchange.error is not None:
                raise exchange.error

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
    """Exchanges that one caller waits for."""

    def __init__(self, waiting: deque[Exchange], at_once: int) -> None:
        self.waiting = waiting
        self.at_once = at_once
        self.addresses: Sequence[Any] = ()
        self.under_way = 0
        self.being_made = 0  # connections, for this one
        self.is_refused = False  # one that could not be made: the others have to do
        self.over = threading.Lock()
        self.over.acquire()

    @property
    def num_missing(self) -> int:
        """Connections that are to be made."""
        missing = min(self.at_once - self.under_way, len(self.waiting)) - self.being_made
        if self.is_refused:
            return min(missing, 0 if self.under_way or self.being_made else 1)
        return missing

    def end(self) -> None:
        """Tell the caller, where nothing is left to do."""
        if not self.waiting and not self.under_way and self.over.locked():
            self.over.release()


class _Connection(asyncio.BufferedProtocol):
    """A connection, the exchange on it, and its answer as far as it came."""

    def __init__(self, arrivals: _Arrivals) -> None:
        self.arrivals = arrivals
        self.exchange: Exchange | None = None  # None: it is idle
        self.call: _Call | None = None
        self._head: Head | None = None  # once it is here
        self._buffer = EMPTY
        self._start = self._end = 0  # in the buffer: of what came of the body and nobody has
        self._begun = self._seen = 0.0  # when; `_seen`: when the last look saw something come
        self._came_then = 0  # bytes; `_end` at that look
        self._is_new = True  # nothing was asked of it yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self.arrivals.made(self)

    def ask(self, call: _Call) -> None:
        """Send the next request of a call, which waits for one."""
        exchange = self.exchange = call.waiting.popleft()
        self.call = call
        call.under_way += 1
        room = exchange.limit if exchange.range else min(exchange.limit, _SMALL)
        self._start = self._end = self._came_then = 0
        self._head = None
        self._begun = self._seen = time.monotonic()
        exchange.since = exchange.since or self._begun
        try:
            self._buffer = _memory(_HEAD + room)
            self._transport.write(exchange.request)
        except BaseException as error:  # the caller's
            self._fail(exchange, error)

    def get_buffer(self, sizehint: int) -> memoryview:
        # What nobody asked for has a byte of room.
        return self._buffer[self._end :] if self.exchange is not None else _memory(1)

    def buffer_updated(self, nbytes: int) -> None:
        if self.exchange is None:
            self._transport.abort()
            return
        self._end += nbytes
        exchange = self.exchange
        try:
            if self._head is None:
                self._head = self._find_head(exchange)
            if self._head is not None and self._missing <= 0:
                self._answered(exchange, self._head)
            elif self.exchange is exchange and self._missing <= _SMALL:
                quick_ack(self._socket)
        except BaseException as error:  # the caller's
            self._fail(exchange, error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.exchange is not None:
            is_stale = not self._end and not self._is_new and not self.exchange.is_put
            if is_stale and self.call is not None and self.arrivals.has_time(self.exchange):
                # The server ended a connection that it had kept, just when it was used again.
                self.arrivals.put_back(self.call, self.exchange)
            else:
                self._end_exchange(Fate.CUT)
        self.arrivals.lost(self)

    def close(self) -> None:
        self._transport.abort()

    def give_up(self, fate: Fate) -> None:
        """The rest of the answer is not waited for."""
        self._transport.abort()
        self._end_exchange(fate)

    def look(self, now: float, timeout: float) -> None:
        """Give up what is late."""
        if self.exchange is None:
            return
        if self._end > self._came_then:
            self._came_then, self._seen = self._end, now
        timeout += len(self.exchange.request) / SLOWEST
        if now > min(self._seen, self._begun + self._end / SLOWEST) + timeout:
            self.give_up(Fate.LATE)

    @property
    def _missing(self) -> int:
        """Bytes of the answer that have not come, as far as is known."""
        return 0 if self._head is None else self._head.nbytes - (self._end - self._start)

    def _fail(self, exchange: Exchange, error: BaseException) -> None:
        exchange.error = error
        if exchange is self.exchange:
            self.give_up(Fate.CUT)

    def _find_head(self, exchange: Exchange) -> Head | None:
        """The head, if all of it is here, and its body wanted."""
        text = bytes(self._buffer[: min(self._end, _HEAD)])
        end = text.find(b"\r\n\r\n")
        if end < 0 and self._end < _HEAD:
            return None
        head = Head.parse(text[:end]) if end >= 0 else None
        if head is None or not exchange.takes(head):
            exchange.status = status_of(text)
            self.give_up(Fate.STRANGE)
            return None
        exchange.status, exchange.nbytes = head.status, head.nbytes
        if exchange.is_head:
            exchange.modified = head.modified.decode("latin-1")
            head = head._replace(nbytes=0)
        if head.status < 300 and head.nbytes > exchange.limit:
            self.give_up(Fate.TOO_LARGE)
            return None
        self._start = end + 4
        if len(self._buffer) < self._start + head.nbytes:
            larger = _memory(self._start + head.nbytes + 1)  # for what nobody asked for
            larger[: self._end] = self._buffer[: self._end]
            self._buffer = larger
        return head

    def _answered(self, exchange: Exchange, head: Head) -> None:
        """All of the answer is here."""
        if exchange.is_put and self._transport.get_write_buffer_size():
            self.give_up(Fate.CUT)  # to a request that is not: the server has not seen the body
            return
        end = self._start + head.nbytes
        body = self._buffer[self._start : end].toreadonly()
        exchange.body = body if exchange.range or head.nbytes > _SMALL else memoryview(bytes(body))
        is_good = head.is_kept and self._end == end  # nothing came that nobody asked for
        self._is_new = False
        self._end_exchange(Fate.ANSWERED)
        if is_good:
            self.arrivals.freed(self)
        else:
            self._transport.abort()

    def _end_exchange(self, fate: Fate) -> None:
        exchange, call = self.exchange, self.call
        assert exchange is not None
        assert call is not None
        exchange.fate = fate
        if not exchange.is_granted and exchange.status != 404:
            call.waiting.clear()
        self.exchange = self.call = None
        self._buffer = EMPTY
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
        self._being_made: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # that make them
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
                loop = asyncio.SelectorEventLoop()
                try:
                    name = "storage_loader-s3-exchanges"
                    start(threading.Thread(target=_run, args=(loop,), name=name, daemon=True))
                except ThreadError as error:
                    loop.close()
                    raise StoreError(f"to talk to the S3 server {error}") from error
                except BaseException:  # Ctrl-C: where the thread starts all the same, it ends
                    loop.call_soon_threadsafe(loop.stop)
                    raise
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
        """Begin with the exchanges of a call."""
        self._calls.append(call)
        self._serve()
        if not self._is_looking:
            self._is_looking = True
            self._look()

    def _serve(self) -> None:
        """Give calls that wait the connections that are idle, and make those that they lack."""
        while self._idle and (call := self._oldest()) is not None:
            self._idle.pop().ask(call)
        for call in self._calls:
            for _ in range(call.num_missing):
                if len(self._all) + len(self._being_made) < _most():
                    self._open(call)

    def _open(self, call: _Call) -> None:
        """Make another connection, for this call or an older one."""
        connection = _Connection(self)
        self._being_made.add(connection)
        call.being_made += 1
        task = asyncio.get_running_loop().create_task(self._connect(connection, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _oldest(self) -> _Call | None:
        """The call that gets the next connection."""
        while self._calls and not self._calls[0].waiting:
            self._calls.popleft()
        for call in self._calls:
            if call.waiting and call.under_way < call.at_once:
                return call
        return None

    def made(self, connection: _Connection) -> None:
        """It was opened."""
        self._being_made.discard(connection)
        self._all.add(connection)
        self.freed(connection)

    def freed(self, connection: _Connection) -> None:
        """It takes another request."""
        call = self._oldest()
        if call is None:
            self._idle.append(connection)
        else:
            connection.ask(call)

    def lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._serve()

    def has_time(self, exchange: Exchange) -> bool:
        """Whether it may begin again."""
        return time.monotonic() < exchange.since + self._timeout

    def put_back(self, call: _Call, exchange: Exchange) -> None:
        """It was not made, and is the next one of its call again."""
        call.under_way -= 1
        call.waiting.appendleft(exchange)
        if call not in self._calls:
            self._calls.appendleft(call)

    def abandon(self, call: _Call, fate: Fate = Fate.UNASKED) -> None:
        """Nothing more is done for it; `fate` is that of what was not begun."""
        is_waiting = bool(call.waiting)
        while call.waiting:
            call.waiting.popleft().fate = fate
        for connection in [each for each in self._all if each.call is call]:
            connection.give_up(Fate.CUT)
        if is_waiting:
            call.end()

    async def _connect(self, connection: _Connection, call: _Call) -> None:
        connected = self._connected(connection, call.addresses)
        try:
            await asyncio.wait_for(connected, self._connect_timeout)
            call.being_made -= 1
        except Exception as error:  # urllib3 will tell it
            self._being_made.discard(connection)
            call.being_made -= 1
            call.is_refused = True
            if not call.being_made and not call.under_way:
                is_late = isinstance(error, asyncio.TimeoutError)
                self.abandon(call, Fate.UNREACHED if is_late else Fate.UNASKED)
        self._serve()

    async def _connected(self, connection: _Connection, addresses: Sequence[Any]) -> None:
        loop = asyncio.get_running_loop()
        for place, (family, kind, protocol, _, address) in enumerate(addresses, 1):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
            except OSError:
                sock.close()
                if place == len(addresses):
                    raise
                continue
            except BaseException:
                sock.close()
                raise
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._context,
                server_hostname=self._host if self._context else None,
            )
            return
        raise OSError("no address")

    def _look(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._all if each.exchange is not None]:
            connection.look(now, self._timeout)
        is_over = len(self._idle) == len(self._all) and not self._being_made
        self._is_looking = not is_over or self._oldest() is not None
        if self._is_looking:
            asyncio.get_running_loop().call_later(_LOOK, self._look)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    if tasks := asyncio.all_tasks(loop):
        loop.run_until_complete(asyncio.wait(tasks))
    loop.close()


def _most() -> int:
    """Connections that there may be."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if files < 0 else max(1, min(_MOST, files // _FILES_SHARE))


def _memory(nbytes: int) -> memoryview:
    """As it comes: a bytearray's would be cleared first."""
    return np.empty(nbytes, np.uint8).data
