"""Threads that turn full buffers into stored objects."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from ..catalog import StoredObject
from ..errors import ObjectNotFoundError, SaverError
from ..store import Store, xxh3
from ..sync import Event, Future, wait
from ..text import printable
from ..threads import Threads
from .buffer import Buffer
from .lease import Lease

_FEW = 10  # objects that are looked for one by one; more by a list of all that the writer has

_log = logging.getLogger(__name__)

_LONG = 10.0  # seconds of waiting after which the log says for what


class Uploads:
    """Seals and puts buffers in threads, in the order they were handed over.

    At most `num_threads` puts run at once; one buffer more is sealed meanwhile, so that a put
    follows a put (1.04 of the rate to a folder). There are `num_threads` + 1 buffers: a store
    slower than the producer makes `take` wait, and memory stays bounded. After the first
    failure every later upload is dropped.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        names: str,
        buffer: Callable[[], Buffer],
        num_threads: int,
    ) -> None:
        self._ended = Event()
        self._store = store.until(self._ended)
        self._prefix = prefix
        self._names = names  # of its objects begin so: "objects/<writer>/<attempt>"
        self._buffer = buffer
        self._unmade = num_threads + 1
        self._threads = Threads(self._unmade, "storage_loader-save")
        self._puts = threading.Semaphore(num_threads)  # of these threads alone
        self._free: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._pending: list[Future[StoredObject | None]] = []
        self._num_named = 0
        self._lock = threading.Lock()
        self.lease = Lease(self._store, f"{prefix}/{names}.lease")
        self.failure: BaseException | None = None
        self.num_stored = 0
        self.nbytes_stored = 0

    def take(self) -> Buffer:
        """An empty buffer; waits while all are being uploaded."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._unmade:
                self._unmade -= 1
                return self._buffer()
        try:
            return self._free.get(timeout=_LONG)
        except queue.Empty:
            self._log_wait("a buffer")
        return self._free.get()

    def _log_wait(self, what: str) -> None:
        running = sum(not future.done() for future in self._pending)
        _log.info(
            "saving has waited %.0f s for %s: %d objects are being stored in %s/%s",
            _LONG,
            what,
            running,
            printable(self._store.url),
            self._prefix,
        )

    def give(self, buffer: Buffer) -> None:
        """Upload a buffer's rows and make it free again."""
        self.lease.hold()
        key = f"{self._names}-{self._num_named:06d}.h5"
        self._num_named += 1
        self._pending.append(self._threads.submit(self._upload, key, buffer))

    def _upload(self, key: str, buffer: Buffer) -> StoredObject | None:
        try:
            extremes = buffer.extremes()
            data, layout, directory_checksum = buffer.seal()
            decoded = sum(column.nbytes for column in layout.columns.values())
            stored = StoredObject(key, xxh3(data), directory_checksum, layout, decoded, extremes)
            with self._puts:
                if self.failure is not None:
                    return None
                self._store.put(f"{self._prefix}/{key}", data)
            with self._lock:
                self.num_stored += 1
                self.nbytes_stored += stored.nbytes
            return stored
        except BaseException as error:
            with self._lock:
                self.failure = self.failure or error
            raise
        finally:
            buffer.clear()
            self._free.put(buffer)

    def finish(self) -> list[StoredObject]:
        """Wait for all uploads; the stored objects in order. Raises the first failure.

        Looks whether they are all there: a commit must not name what someone has deleted.
        """
        if not wait(self._pending, _LONG):
            self._log_wait("its uploads")
        for future in self._pending:
            future.exception()
        if self.failure is not None:
            raise self.failure
        stored = [o for future in self._pending if (o := future.result()) is not None]
        wanted = {f"{self._prefix}/{o.key}": o.nbytes for o in stored}
        sizes = self._sizes(list(wanted))
        wrong = [key for key, nbytes in wanted.items() if sizes.get(key) != nbytes]
        if wrong:
            raise SaverError(
                f"{len(wrong)} of {len(stored)} objects that were stored are gone or have another "
                f"size, the first is {self._store.url}/{wrong[0]}; something else removed them, "
                "such as a gc with too short a grace: save these rows again"
            )
        return stored

    def _sizes(self, keys: Sequence[str]) -> Mapping[str, int | None]:
        """Bytes of those of these objects that are there, by key."""
        if len(keys) > _FEW:
            folder = f"{self._prefix}/{self._names.rpartition('/')[0]}"
            return {info.key: info.nbytes for info in self._store.list(folder)}
        return dict(zip(keys, self._threads.map(self._size, keys), strict=True))

    def _size(self, key: str) -> int | None:
        try:
            return self._store.head(key).nbytes
        except ObjectNotFoundError:
            return None

    def forget(self) -> None:
        """The finished objects belong to a commit: `stop` will not name them."""
        self._pending.clear()
        self.lease.release()

    def stop(self, *, seconds: float | None = None) -> list[str]:
        """End the threads, dropping what they had not begun; keys stored in vain.

        A put that waits to be tried again is given up, and after so many seconds any put.
        """
        self._ended.set()
        self._threads.end(seconds=seconds)
        self.lease.end(seconds=seconds)
        keys = []
        for future in self._pending:
            if future.done() and future.exception() is None:
                stored = future.result()
                keys += [f"{self._prefix}/{stored.key}"] if stored else []
        self._pending.clear()
        return keys
