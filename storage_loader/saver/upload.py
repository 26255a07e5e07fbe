"""Threads that turn full buffers into stored objects."""

from __future__ import annotations

import queue
import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from ..catalog import StoredObject
from ..schema import Schema
from ..store import Store, xxh3
from .buffer import ObjectBuffer


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
        writer: str,
        schema: Schema,
        capacity: int,
        num_threads: int,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._names = f"objects/{writer}/{secrets.token_hex(4)}"
        self._schema = schema
        self._capacity = capacity
        self._unmade = num_threads + 1
        self._threads = ThreadPoolExecutor(self._unmade, thread_name_prefix="storage_loader-save")
        self._puts = threading.Semaphore(num_threads)
        self._free: queue.SimpleQueue[ObjectBuffer] = queue.SimpleQueue()
        self._pending: list[Future[StoredObject | None]] = []
        self._num_named = 0
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        self.num_stored = 0
        self.nbytes_stored = 0

    def take(self) -> ObjectBuffer:
        """An empty buffer; waits while all are being uploaded."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._unmade:
                self._unmade -= 1
                return ObjectBuffer(self._schema, self._capacity)
        return self._free.get()

    def give(self, buffer: ObjectBuffer) -> None:
        """Upload a buffer's rows and make it free again."""
        key = f"{self._names}-{self._num_named:06d}.h5"
        self._num_named += 1
        self._pending.append(self._threads.submit(self._upload, key, buffer))

    def _upload(self, key: str, buffer: ObjectBuffer) -> StoredObject | None:
        try:
            data, layout, blocks_checksum = buffer.seal()
            stored = StoredObject(key, xxh3(data), blocks_checksum, layout)
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
            buffer.rows = 0
            self._free.put(buffer)

    def finish(self) -> list[StoredObject]:
        """Wait for all uploads; the stored objects in order. Raises the first failure."""
        for future in self._pending:
            future.exception()
        if self.failure is not None:
            raise self.failure
        stored = [future.result() for future in self._pending]
        return [o for o in stored if o is not None]

    def forget(self) -> None:
        """The finished objects belong to a commit: `stop` will not name them."""
        self._pending.clear()

    def stop(self) -> list[str]:
        """End the threads, dropping what they had not begun; keys stored in vain."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        keys = []
        for future in self._pending:
            if not future.cancelled() and future.exception() is None:
                stored = future.result()
                keys += [f"{self._prefix}/{stored.key}"] if stored else []
        self._pending.clear()
        return keys
