"""`DataSaver`: rows in, committed HDF5 objects out."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Literal

from tqdm import tqdm

from ..catalog import ROW_ORDERS, Catalog, Publication, RowOrder
from ..config import DataConfig, require_config
from ..errors import (
    BucketNotFoundError,
    ConfigError,
    ObjectExistsError,
    SaverError,
    SchemaError,
    StorageLoaderError,
    StoreError,
)
from ..hdf5 import capacity
from ..keywords import checked_keywords, flag, shown, whole_repr
from ..schema import Schema
from ..text import printable
from ..threads import LEFT, Threads
from .batch import Rows, as_arrays
from .buffer import Buffer, ObjectBuffer
from .gathered import GatheredBuffers
from .upload import Uploads

_log = logging.getLogger(__name__)

_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Rows:
    """Row counts, outside the saver so that its finalizer can read them."""

    def __init__(self) -> None:
        self.saved = 0  # accepted from the caller
        self.committed = 0
        self.publication: Publication | None = None  # of those pending, until its end is known
        self.pid = os.getpid()

    @property
    def pending(self) -> int:
        return self.saved - self.committed


class DataSaver:
    """Saves batches of rows into a dataset.

    `saver(batch)` copies the rows and returns; threads upload full objects. Leaving `with`
    normally, or `close()`, commits: all rows become visible at once. Leaving by an exception,
    or `abort()`, makes nothing visible. A slow store makes `saver(batch)` wait: memory stays
    under (num_worker_threads + 2) * max_object_size, and with a compressor 5 MB more for each core.

    `refresh=True` replaces what the dataset held in the first commit; later commits of the
    same saver append to it. `progress=True` shows a bar. Any number of savers, in any
    processes, may save into one dataset at once; one saver belongs to one thread at a time.

    `writer` names the saver, for a job that may be killed and started again: a saver of the same
    name goes on after the commits there are, and `rows_committed` counts them from `open` on. One
    job goes by a name at a time. If an attempt that was taken for dead lives on, each commit is
    one attempt's and the other's fails. Without a name it is random.

    `order="writer"`, decided when the dataset is made, sorts its rows by the savers' names and then
    as each saved them, not by the time of their commits: so the same parallel preprocessing gives
    the same rows the same numbers. Every saver of such a dataset needs a `writer`.

    `commit_every` bounds what a crash can cost: rows, or a `timedelta` from the first row that is
    not committed. `saver(batch)` commits when that is reached, always after a whole batch, and no
    thread does while no batch comes.
    """

    @checked_keywords
    def __init__(
        self,
        config: DataConfig,
        *,
        refresh: bool = False,
        writer: str | None = None,
        order: RowOrder | None = None,
        commit_every: int | timedelta | None = None,
        num_worker_threads: int = 4,
        progress: bool = False,
    ) -> None:
        require_config(config, "DataSaver")
        if type(num_worker_threads) is not int or num_worker_threads < 1:
            raise ConfigError(f"num_worker_threads {shown(num_worker_threads)}: at least 1")
        self.config = config
        self._refresh = flag("refresh", refresh)
        self._num_threads = num_worker_threads
        self._progress = flag("progress", progress)
        self._is_named = writer is not None
        self._writer = secrets.token_hex(8) if writer is None else _writer(writer)
        # Attempts meet under a given name only, so there the attempt is what tells keys apart.
        self._attempt = secrets.token_hex(8 if self._is_named else 4)
        self._order = _order(order, self._is_named)
        self._commit_every = _commit_every(commit_every)
        self._number = 0
        self._oldest = 0.0  # when the first row that is not committed came
        self._rows = _Rows()
        self._state: Literal["new", "open", "failed", "aborted", "closed"] = "new"
        self._buffer: Buffer | None = None
        self._gathered: GatheredBuffers | None = None  # where places are known only at the end
        self._schema: Schema | None = None
        self._bar: tqdm[Any] | None = None
        self._finalizer = weakref.finalize(self, _warn_forgotten, self._rows, config.dataset_name)

    @property
    def rows_committed(self) -> int:
        """Rows of this saver that readers can see.

        With a `writer` those of all attempts under this name that readers saw at `open`, and
        what this one committed since. After a commit that was cut short, by Ctrl-C or because no
        answer came, the store is asked what became of it, and it is that for good. `SaverError`
        where the store does not say: then ask again.
        """
        if self._is_named and self._schema is None:
            raise SaverError(
                f"what the writer {self._writer!r} has committed is known once its saver is open: "
                "use `with`, or call open()"
            )
        self._settle()
        return self._rows.committed

    @property
    def rows_pending(self) -> int:
        """Rows accepted that no commit has published yet; as sure as `rows_committed`."""
        self._settle()
        return self._rows.pending

    def open(self) -> DataSaver:
        """Connect and, with a `writer`, learn what its attempts have committed; the saver itself.

        What a dead attempt was about to publish is barred: it can't appear any more.
        """
        self._open()
        return self

    def __enter__(self) -> DataSaver:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, Exception):
            self.abort()
        else:
            self._abort_soon()

    def __call__(self, batch: object) -> None:
        """Save a batch: a dict by attribute, or a DataFrame.

        Numbers of a fixed shape come as an array or tensor with a leading row axis. Rows that
        differ in length come as a list of arrays, `(values, lengths)`, a nested or ragged tensor or
        a column of pyarrow or pandas; bytes, text and JSON as a list, strings of an array or
        tensor, or such a column.
        The rows are copied; a batch is taken whole or, on an error, not at all. Raises
        `SchemaError`, `CastError`, or `SaverError` where an earlier upload failed, or where the
        batch was taken but a commit that was due (`commit_every`) failed.
        """
        arrays, rows = as_arrays(batch, self._open())
        if self._gathered is not None:
            self._gathered.sizes.check(arrays, rows)
        try:
            self._append(arrays, rows)
        except BaseException as error:  # an interrupt too: part of a batch is never committed
            self._state = "failed"
            self._fail(error)
            raise
        if self._bar is not None:
            self._bar.update(rows)
            self._bar.set_postfix(objects=self._uploads.num_stored, refresh=False)
        if self._is_due():
            self.commit()

    def _is_due(self) -> bool:
        every = self._commit_every
        if every is None or not self._rows.pending:
            return False
        if isinstance(every, timedelta):
            return monotonic() - self._oldest >= every.total_seconds()
        return self._rows.pending >= every

    def _append(self, arrays: Mapping[str, Rows], rows: int) -> None:
        start = 0
        if not self._rows.pending:
            self._oldest = monotonic()
        while start < rows:
            if self._buffer is None:
                self._buffer = self._uploads.take()
                self._check_usable()
            stop = self._buffer.fits(arrays, start, rows)
            self._buffer.append(arrays, start, stop)
            self._rows.saved += stop - start
            if stop == start or self._buffer.is_full:
                self._hand_over()
            start = stop

    def commit(self) -> str | None:
        """Publish the rows saved so far and go on; the commit's id, None where there is none.

        Raises `SaverError` where an upload failed, where stored objects are gone, or where
        another attempt goes by the same `writer`: then nothing is published. After Ctrl-C, too,
        this saver commits nothing more, and `rows_committed` says what is published.
        """
        schema = self._open()
        if not self._rows.pending and not self._refresh:
            return None
        try:
            self._hand_over()
            objects = self._uploads.finish()
            stored, order = self._catalog.create(schema, self._order or "commit")
            self._check_order(order)
            publication = self._catalog.publication(
                schema,
                objects,
                writer=self._writer,
                number=self._number,
                refresh=self._refresh,
                notes=None if schema.notes == stored.notes else schema.notes,
            )
            # From here on the objects stay, whatever happens: a publish that failed may have
            # arrived all the same.
            self._uploads.forget()
            self._rows.publication = publication
            self._publish(publication)
            self._number += 1
            self._refresh = False
            self._rows.committed = self._rows.saved
            self._rows.publication = None
        except BaseException as error:
            self._state = "failed"  # here: a second Ctrl-C comes where a function is called
            self._fail(error)
            if isinstance(error, StorageLoaderError):
                raise self._failed() from error
            raise
        return str(publication.id)

    def _publish(self, publication: Publication) -> None:
        try:
            if self._is_named:
                self._catalog.claim(publication.id, self._attempt)
            publication.publish()
        except ObjectExistsError as error:
            if not self._is_named:
                raise
            raise SaverError(
                f"another attempt saves under the writer name {self._writer!r}: commit "
                f"{self._number} is not this saver's; see that one job goes by a name, and make "
                "another saver, which goes on after the rows that are committed"
            ) from error

    def close(self) -> None:
        """Commit and end. After a failed upload it commits nothing and raises `SaverError`.

        A second call does nothing.
        """
        if self._state in ("closed", "aborted"):
            return
        self._check_process()
        if self._state == "new" and not self._refresh:
            self._end("closed")
            return
        try:
            self.commit()
        except Exception:
            self.abort()
            raise
        except BaseException:
            self._abort_soon()
            raise
        self._end("closed")

    def abort(self) -> None:
        """End without a commit and remove what was stored since the last one.

        In a process forked from the saver's own it does nothing: the objects are the parent's.
        """
        self._abort()

    def _abort_soon(self) -> None:
        """The same for Ctrl-C: it waits for no server, which removes what it can meanwhile."""
        aborting = Threads(1, "storage_loader-abort").submit(lambda: self._abort(seconds=LEFT))
        is_done = aborting.wait(1.5 * LEFT)
        self._state = "aborted"
        self._finalizer.detach()
        if is_done:
            aborting.result()

    def _abort(self, *, seconds: float | None = None) -> None:
        if self._state in ("closed", "aborted") or self._rows.pid != os.getpid():
            return
        if self._state != "new":
            stored = self._uploads.stop(seconds=seconds)
            try:
                self._catalog.store.once().delete(stored)
            except StorageLoaderError as error:
                _log.warning("%d objects of an aborted save remain: %s", len(stored), error)
        self._end("aborted", seconds=seconds)
        try:
            self._settle(once=True)  # a commit that was cut short does not appear later
        except SaverError as error:
            _log.warning("%s", error)

    def _open(self) -> Schema:
        """The schema to save by; connects and starts the threads at first use."""
        self._check_usable()
        if self._schema is not None:
            return self._schema
        self._catalog = Catalog(self.config)
        try:
            described = self._catalog.read_dataset()
        except BucketNotFoundError:
            self._catalog.store.prepare()
            described = None
        stored = None
        if described is not None:
            stored, order = described
            self._check_order(order)
        schema = stored or self.config.schema
        if schema is None:
            raise SchemaError(
                f"dataset {self.config.dataset_name!r} does not exist yet in "
                f"{self._catalog.store.url}: its config needs attributes"
            )
        new_buffer = self._new_buffer(schema)
        if stored is None:
            self._catalog.check_place()
        if self._is_named and stored is not None:
            resumed = self._catalog.resume(stored, self._writer)
            self._number = resumed.number
            self._refresh = self._refresh and not resumed.refreshed
            self._rows.saved = self._rows.committed = resumed.rows
        self._uploads = Uploads(
            self._catalog.store,
            self._catalog.prefix,
            f"objects/{self._writer}/{self._attempt}",
            new_buffer,
            self._num_threads,
        )
        weakref.finalize(self, self._uploads.lease.abandon)
        self._schema = schema
        if self._progress:
            self._bar = tqdm(
                desc=f"save {self.config.dataset_name}", unit=" rows", initial=self._rows.committed
            )
        self._state = "open"
        return schema

    def _new_buffer(self, schema: Schema) -> Callable[[], Buffer]:
        """What makes a buffer; raises `SchemaError` where no row fits an object."""
        most = self.config.max_object_size
        codecs = self.config.codecs(schema)
        if schema.is_variable or codecs:
            self._gathered = GatheredBuffers(schema, most, codecs)
            return self._gathered.buffer
        return partial(ObjectBuffer, schema, capacity(schema, most))

    def _check_order(self, stored: RowOrder) -> None:
        """Raise `ConfigError` where rows of this saver have no place in a dataset of this order."""
        name = self.config.dataset_name
        if self._order is not None and self._order != stored:
            raise ConfigError(
                f"order={self._order!r}: dataset {name!r} was made with order={stored!r}, which "
                "stays; leave order out, or save to another dataset_name or additional"
            )
        if stored == "writer" and not self._is_named:
            raise ConfigError(
                f"dataset {name!r} was made with order='writer': each saver needs a name, "
                "DataSaver(config, writer='part-0007')"
            )

    def _check_process(self) -> None:
        if self._rows.pid != os.getpid():
            raise SaverError("this saver was made in another process; make one in each process")

    def _check_usable(self) -> None:
        self._check_process()
        if self._state in ("closed", "aborted"):
            raise SaverError(f"this saver is {self._state}; make another one")
        if self._state == "new":
            return
        if self._state == "failed" or self._uploads.failure is not None:
            self._state = "failed"
            raise self._failed() from self._uploads.failure

    def _fail(self, error: BaseException) -> None:
        """Nothing is committed from now on; the first error is the one that is told."""
        self._state = "failed"
        self._uploads.failure = self._uploads.failure or error

    def _failed(self) -> SaverError:
        try:
            self._settle(once=True)
        except SaverError as error:
            return error
        return SaverError(
            message=f"saving to dataset {self.config.dataset_name!r} failed, "
            f"{self._rows.pending} rows were not committed ({self._rows.committed} were before), "
            f"save them with another DataSaver: {self._reason}"
        )

    @property
    def _reason(self) -> str:
        failure = self._uploads.failure or KeyboardInterrupt()  # a second one kept the first away
        text = str(failure) if isinstance(failure, StorageLoaderError) else printable(str(failure))
        return text or type(failure).__name__

    def _settle(self, *, once: bool = False) -> None:
        """Learn what became of a commit that was cut short; `SaverError` where nobody knows.

        Not while it is under way: another thread or a signal's handler may look at the counts.
        """
        publication = self._rows.publication
        if publication is None or self._state in ("new", "open"):
            return
        self._check_process()
        try:
            is_published = publication.settle(once=once)
        except StoreError as error:
            raise SaverError(
                message=f"saving to dataset {self.config.dataset_name!r} failed, and whether its "
                f"last commit, {publication.id}, was published is not known: "
                f"{self._rows.committed} rows were committed before, {self._rows.pending} rows may "
                "be; read rows_committed once the store answers, or see whether `storage-loader "
                f"log` lists the commit, before you save them again: {self._reason}; {error}"
            ) from error
        if is_published:
            self._rows.committed = self._rows.saved
        self._rows.publication = None

    def _hand_over(self) -> None:
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._uploads.give(buffer)

    def _end(self, state: Literal["closed", "aborted"], *, seconds: float | None = None) -> None:
        if self._state != "new":
            self._uploads.stop(seconds=seconds)
        if self._gathered is not None:
            self._gathered.coders.end(seconds=seconds)
        self._buffer = None
        self._state = state
        self._finalizer.detach()
        if self._bar is not None:
            self._bar.close()

    @whole_repr
    def __repr__(self) -> str:
        stored = ""
        if self._schema is not None:
            stored = (
                f", {self._uploads.num_stored} objects, "
                f"{self._uploads.nbytes_stored / 2**20:.1f} MiB stored"
            )
        pending = "pending"
        if self._rows.publication is not None:
            pending = f"in commit {self._rows.publication.id}, which may be published"
        return (
            f"DataSaver({self.config.dataset_name!r} in {self.config.storage}, {self._state}, "
            f"{self._rows.committed} rows committed, {self._rows.pending} {pending}{stored})"
        )


@checked_keywords
def save(
    config: DataConfig,
    batch: object,
    *,
    refresh: bool = False,
    num_worker_threads: int = 4,
    progress: bool = False,
) -> None:
    """Save and commit one batch; see `DataSaver`."""
    with DataSaver(
        config, refresh=refresh, num_worker_threads=num_worker_threads, progress=progress
    ) as saver:
        saver(batch)


def _writer(name: object) -> str:
    if not isinstance(name, str) or not _WRITER.fullmatch(name):
        raise ConfigError(
            f"writer {shown(name)}: 1 to 64 ASCII letters, digits, '.', '_' and '-', the first a "
            "letter or digit"
        )
    return name


def _order(order: object, is_named: bool) -> RowOrder | None:
    for known in ROW_ORDERS:
        if order == known:
            if known == "writer" and not is_named:
                raise ConfigError(
                    "order='writer' sorts rows by the savers' names: give this one a name, "
                    "writer='part-0007'"
                )
            return known
    if order is not None:
        raise ConfigError(f"order {shown(order)}: 'commit' or 'writer'")
    return None


def _commit_every(value: object) -> int | timedelta | None:
    if value is None or (type(value) is int and value > 0):
        return value
    if isinstance(value, timedelta) and value > timedelta(0):
        return value
    raise ConfigError(
        f"commit_every {shown(value)}: a number of rows, at least 1, or a positive "
        "datetime.timedelta"
    )


def _warn_forgotten(rows: _Rows, dataset_name: str) -> None:
    if rows.pending and rows.pid == os.getpid():
        were = "were never committed" if rows.publication is None else "may not be committed"
        text = (
            f"a DataSaver of dataset {dataset_name!r} was forgotten with {rows.pending} rows that "
            f"{were}; use `with`, or call close()"
        )
        warnings.warn(text, ResourceWarning, stacklevel=2)  # for tools: Python hides it
        _log.warning("%s", text)
        if not _logs_to(sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                sys.stderr.write(f"storage_loader: {printable(text)}\n")


def _logs_to(stream: object) -> bool:
    """Whether a warning that is logged is seen there."""
    if not _log.isEnabledFor(logging.WARNING):
        return False
    if not _log.hasHandlers():
        return logging.lastResort is not None
    logger: logging.Logger | None = _log
    while logger is not None:
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                return handler.level <= logging.WARNING
        logger = logger.parent if logger.propagate else None
    return False
