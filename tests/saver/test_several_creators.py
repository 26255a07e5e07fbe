"""Servers that let several creators of one key win: one schema gets through."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from storage_loader import DataConfig, DataSaver, Dataset, delete, save
from storage_loader.catalog import Catalog
from storage_loader.errors import (
    FormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    SaverError,
    SchemaError,
)
from storage_loader.store import open_store
from storage_loader.store.forwarding import ForwardingStore
from tests.support.scale import scaled


def config_of(storage: str, width: int) -> DataConfig:
    return DataConfig("raced", [("x", "float32", (width,))], storage=storage)


def rows(width: int) -> dict[str, Any]:
    return {"x": np.zeros((2, width), np.float32)}


class Racing(ForwardingStore):
    """Whether a key exists is asked first, and answers take a moment each way.

    Longer than from the question to the put: a get waits for creators that have asked, so that
    none is late, however busy the machine is.
    """

    chance = random.Random(0)
    changed = threading.Condition()
    creators = 0

    def _travel(self) -> None:
        time.sleep(self.chance.uniform(0.001, 0.004))

    def get(self, key: str, **options: Any) -> memoryview:
        self._travel()
        with self.changed:
            assert self.changed.wait_for(lambda: not Racing.creators, timeout=60)
        return super().get(key, **options)

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        self._travel()
        with self._creating():
            if create:
                try:
                    self.head(key)
                except ObjectNotFoundError:
                    time.sleep(self.chance.uniform(0, 0.002))
                else:
                    raise ObjectExistsError(key)
            super().put(key, data)
        self._travel()

    @contextlib.contextmanager
    def _creating(self) -> Iterator[None]:
        with self.changed:
            Racing.creators += 1
        try:
            yield
        finally:
            with self.changed:
                Racing.creators -= 1
                self.changed.notify_all()


def test_of_savers_with_several_schemas_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "storage_loader.catalog.catalog.open_store", lambda config: Racing(open_store(config))
    )
    for _ in range(scaled(30)):
        storage = f"memory://{uuid.uuid4().hex}"
        succeeded: list[int] = []
        start = threading.Barrier(4)

        def work(
            width: int,
            storage: str = storage,
            start: threading.Barrier = start,
            succeeded: list[int] = succeeded,
        ) -> None:
            start.wait()
            try:
                save(config_of(storage, width), rows(width))
            except (SaverError, SchemaError) as error:
                assert "has other attributes" in str(error)  # noqa: PT017  in a thread
                return
            succeeded.append(width)

        threads = [threading.Thread(target=work, args=(width,)) for width in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(succeeded) == 1
        [width] = succeeded
        assert Dataset(DataConfig("raced", storage=storage))[:]["x"].shape == (2, width)


class Overtaken(ForwardingStore):
    """Right after dataset.json was put, another's, of two columns, takes its place."""

    def put(self, key: str, data: Any, *, create: bool = False) -> None:
        super().put(key, data, create=create)
        if key.endswith("/dataset.json"):
            other = config_of(self.url, 2)
            assert other.schema is not None
            self._inner.delete([key])
            Catalog(other, self._inner).create(other.schema)


def test_a_creator_whose_dataset_is_anothers_commits_nothing(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "storage_loader.catalog.catalog.open_store", lambda config: Overtaken(open_store(config))
    )
    saver = DataSaver(config_of(memory["storage"], 1))
    with pytest.raises(SaverError, match="has other attributes"), saver:
        saver(rows(1))
    assert saver.rows_committed == 0
    assert len(Dataset(config_of(memory["storage"], 2))) == 0


def test_a_dataset_of_two_schemas_says_what_frees_it(memory: dict[str, str]) -> None:
    config = config_of(memory["storage"], 1)
    save(config, rows(1))
    store = open_store(config)
    other = config_of(memory["storage"], 2)
    assert other.schema is not None
    store.delete([Catalog(config, store).schema_key])
    Catalog(other, store).create(other.schema)
    with pytest.raises(
        FormatError, match=re.escape("two savers made the dataset at once")
    ) as error:
        len(Dataset(DataConfig("raced", **memory)))
    assert "storage-loader rm removes the dataset" in str(error.value)
    delete(other)
    save(config, rows(1))
    assert len(Dataset(config)) == 2
