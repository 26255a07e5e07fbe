"""Dataset names of several parts: what lies where, and what touches what."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import storage_loader
from storage_loader import (
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    UnreadableDataset,
    clear_cache,
    collect_garbage,
    list_cache,
    list_datasets,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, find_storages, stored
from storage_loader.errors import ConfigError, DatasetNotFoundError
from storage_loader.store import open_store
from tests.support.command import failing, run
from tests.support.faulty import watch
from tests.support.rows import ROW, config, make, numbers_of

NAMES = ["a", "a/b", "a/b/c", "a-b", "b/a", "x" * 60 + "/" + "y" * 67, "1/2/3/4/5/6/7/8"]


def filled(storage: dict[str, Any], names: list[str] = NAMES) -> dict[str, DataConfig]:
    """A dataset of each name; its only row is the name's place."""
    configs = {name: config(storage, name) for name in names}
    for number, the_config in enumerate(configs.values()):
        save(the_config, make([number]))
    return configs


def rows(the_config: DataConfig) -> list[int]:
    return numbers_of(Dataset(the_config)[:])


def test_each_is_a_dataset_of_its_own(storage: dict[str, str]) -> None:
    configs = filled(storage)
    for number, the_config in enumerate(configs.values()):
        assert rows(the_config) == [number]
        assert [batch[ROW].tolist() for batch in DataLoader(the_config, 4)] == [[number]]
        assert verify_dataset(the_config).problems == ()
        place = the_config.dataset_prefix.split("/")
        assert "/".join(place[:-1]) == the_config.dataset_name
    assert [i.config.dataset_name for i in list_datasets(**storage)] == sorted(NAMES)
    assert [i.config.dataset_name for i in list_datasets(**storage, name="a/b")] == ["a/b"]
    for info in list_datasets(**storage):
        assert rows(info.config) == [NAMES.index(info.config.dataset_name)]
        assert DataConfig.from_json(info.config.to_json()).dataset_prefix == (
            info.config.dataset_prefix
        )


@pytest.mark.parametrize("gone", ["a", "a/b", "a/b/c"])
def test_deleting_one_leaves_the_others(storage: dict[str, str], gone: str) -> None:
    configs = filled(storage)
    others = {name: c for name, c in configs.items() if name != gone}
    store = open_store(configs["a"])
    before = {i.key for i in store.list() if not i.key.startswith(configs[gone].dataset_prefix)}
    for _ in range(2):
        storage_loader.delete(configs[gone])
        assert {info.key for info in store.list()} == before
        assert [i.config.dataset_name for i in list_datasets(**storage)] == sorted(others)
        for name, the_config in others.items():
            assert rows(the_config) == [NAMES.index(name)]
        with pytest.raises(DatasetNotFoundError):
            Dataset(configs[gone]).open()
        save(configs[gone], make([0]))


def test_gc_of_one_looks_at_no_other(folder: dict[str, str]) -> None:
    configs = filled(folder, ["a", "a/b"])
    store = open_store(configs["a"])
    left = f"{configs['a/b'].dataset_prefix}/objects/0123456789abcdef/00000000-000000.h5"
    store.put(left, b"of a saver that was killed")
    at_once: dict[str, Any] = {"grace": timedelta(0), "keep": timedelta(0)}
    found = collect_garbage(configs["a"], **at_once)
    assert (found.garbage, found.foreign) == ((), ())
    assert left in [info.key for info in store.list()]
    found = collect_garbage(configs["a/b"], **at_once)
    assert [one.key for one in found.garbage] == [left]
    assert (rows(configs["a"]), rows(configs["a/b"])) == ([0], [1])


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "a/", "/a", "a//b", "..", "a/..", "../a", "a/../b", "./a", "a/./b", "a/.b", "~/a",
        "a\\b", "a/b\\..", "C:/a", "C:\\a", "a/b:c", "a/\x00", "a/b\n", "a/\x1b[2J", "a/ b", "a /b",
        "a/b ", "a/ü", "a/\u202e", "a/-b", "%2e%2e/a", "a/%2f", "a?b/c", "a/*", "a/b#c", "a" * 129,
        "a/" * 64 + "a", "/".join("123456789"), "s3://a/b", "file:///a",
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^dataset_name .*: 1 to 128 letters") as error:
        DataConfig(name)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("0123456789abcdef", "'0123456789abcdef' is what a dataset's id is called"),
        ("a/0123456789abcdef", "a dataset's id"),
        ("a/0123456789abcdef/b", "a dataset's id"),
        ("0123456789abcdef/b", "a dataset's id"),
        ("objects", "'objects' is what a folder of every dataset is called; choose another"),
        ("a/metadata", "a folder of every dataset"),
        ("metadata/a", "a folder of every dataset"),
        ("a/files/b", "a folder of every dataset"),
    ],
)
def test_a_part_that_looks_like_ours_is_refused(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        DataConfig(name)


@pytest.mark.parametrize("name", ["0123456789abcde", "0123456789ABCDEF", "object", "a.b/c_d-e"])
def test_names_that_are_nearly_so(memory: dict[str, str], name: str) -> None:
    the_config = config(memory, name)
    save(the_config, make([3]))
    assert rows(the_config) == [3]
    assert [i.config.dataset_name for i in list_datasets(**memory)] == [name]


@pytest.mark.parametrize("name", ["a/..", "a/0123456789abcdef", "a//b", "objects/a"])
def test_a_stored_name_that_is_none_is_unreadable(memory: dict[str, str], name: str) -> None:
    """Whatever a hostile dataset.json says, nothing is looked for elsewhere."""
    the_config = config(memory, "a/b")
    save(the_config, make([3]))
    store = open_store(the_config)
    key = Catalog(the_config).schema_key
    described = {**json.loads(bytes(store.get(key))), "name": name}
    store.put(key, json.dumps(described).encode())
    found: list[UnreadableDataset] = []
    assert list_datasets(**memory, unreadable=found.append) == []
    [one] = found
    assert (one.prefix, one.name) == (the_config.dataset_prefix, "a/b")
    assert one.id == the_config.dataset_prefix[-16:]
    one.delete()
    assert list(store.list()) == []


# Datasets of other storages in the same folders


def test_datasets_of_a_storage_below_are_not_ours(folder: dict[str, str]) -> None:
    below = {"storage": f"{folder['storage']}/a"}
    inner = config(below, "b")
    save(inner, make([5]))
    [storage] = find_storages(**folder)
    assert storage == f"file://{below['storage']}"
    assert list_datasets(**folder) == []
    with pytest.raises(DatasetNotFoundError, match=r"there are some in .*/store/a$"):
        Dataset(config(folder, "other")).open()
    outer = config(folder, "a/b")
    with pytest.raises(DatasetNotFoundError, match=r"no dataset 'a/b' .*; there are some in"):
        Dataset(outer).open()
    save(outer, make([6]))
    assert (rows(inner), rows(outer)) == ([5], [6])
    assert [i.config.dataset_name for i in list_datasets(**folder)] == ["a/b"]
    assert [i.config.dataset_name for i in list_datasets(**below)] == ["b"]
    with pytest.raises(DatasetNotFoundError, match=r"the storage holds: 'a/b'$"):
        Dataset(config(folder, "other")).open()
    storage_loader.delete(outer)
    assert rows(inner) == [5]


def test_no_dataset_is_made_in_anothers_folder(folder: dict[str, str]) -> None:
    outer = config(folder, "a")
    save(outer, make([1]))
    within = f"{folder['storage']}/{outer.dataset_prefix}"
    for storage in (within, f"{within}/objects", f"{within}/objects/deeper"):
        inner = config({"storage": storage}, "b")
        with pytest.raises(ConfigError, match="is the folder of another dataset, and this one wou"):
            save(inner, make([2]))
    assert rows(outer) == [1]
    assert [i.config.dataset_name for i in list_datasets(**folder)] == ["a"]
    beside = config({"storage": f"{folder['storage']}/a/0123456789abcdef"}, "b")
    save(beside, make([2]))  # a folder that only looks so
    assert rows(beside) == [2]


@pytest.mark.parametrize("way", ["", "/objects"])
def test_no_dataset_is_made_around_another(folder: dict[str, str], way: str) -> None:
    outer = config(folder, "a")
    inner = config({"storage": f"{folder['storage']}/{outer.dataset_prefix}{way}"}, "b")
    save(inner, make([2]))
    with pytest.raises(ConfigError, match=r"another dataset lies in this folder, a/.*/b/"):
        save(outer, make([1]))
    assert rows(inner) == [2]
    with pytest.raises(DatasetNotFoundError):
        Dataset(outer).open()


def test_a_second_save_is_not_asked_again(memory: dict[str, str], monkeypatch: Any) -> None:
    the_config = config(memory, "a/b")
    save(the_config, make([1]))

    def fail(self: Catalog) -> None:
        raise AssertionError

    monkeypatch.setattr(Catalog, "check_place", fail)
    with DataSaver(the_config) as saver:
        saver(make([2]))
    assert rows(the_config) == [1, 2]


# Listings and commands


def test_a_listing_ends(
    memory: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders of somebody else's may be many; those of the first level are always looked into."""
    filled(memory, ["a", "b/c", "d"])
    store = open_store(config(memory))
    for number in range(20):
        store.put(f"z/{number}/deep/note.txt", b"x")
    monkeypatch.setattr(stored, "_MOST", 5)
    with caplog.at_level(logging.WARNING):
        assert [i.config.dataset_name for i in list_datasets(**memory)] == ["a", "b/c", "d"]
    [record] = caplog.records
    assert "more than 5 folders that may be groups" in record.getMessage()


def test_the_commands(
    folder: dict[str, str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    configs = filled(folder, ["a", "a/b", "c/d"])
    storage = folder["storage"]
    lines = run("ls", storage).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "a", "a/b", "c/d"]
    assert run("info", storage, "a/b").stdout.startswith("a/b in file://")
    assert run("info", storage, configs["a/b"].dataset_prefix).stdout.startswith("a/b in ")
    assert run("head", storage, "a/b").stdout.splitlines()[1].split()[0] == "0"
    assert run("verify", storage, "a/b").exit_code == 0
    monkeypatch.setenv("STORAGE_LOADER_STORAGE", storage)
    assert run("info", "c/d").stdout.startswith("c/d in ")
    path = tmp_path / "config.json"
    configs["a"].save(path)
    monkeypatch.chdir(tmp_path)
    Path("c").mkdir()
    configs["a"].save("c/d")
    assert run("info", "c/d").stdout.startswith("a in ")  # a file goes before a name
    assert "the storage holds: 'a', 'a/b', 'c/d'" in failing(
        monkeypatch, capsys, "info", storage, "e/f"
    )
    run("rm", storage, "a", "--yes")
    assert [i.config.dataset_name for i in list_datasets(**folder)] == ["a/b", "c/d"]
    assert rows(configs["a/b"]) == [1]
    run("gc", storage, "a/b")
    assert rows(configs["a/b"]) == [1]


# The cache


def test_clearing_the_cache_of_one_leaves_the_others(
    folder: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch(monkeypatch, local=False)
    names = ["a", "a/b", "a/b/c"]
    configs = filled(folder, names)
    cache_dir = tmp_path / "cache"

    def cached() -> list[str]:
        return [one.name for one in list_cache(cache_dir)]

    def read() -> None:
        for number, the_config in enumerate(configs.values()):
            [batch] = DataLoader(the_config, 4, cache_dir=cache_dir)
            assert batch[ROW].tolist() == [number]
        assert cached() == names

    ways: list[tuple[Any, list[str]]] = [
        ("a/b", ["a", "a/b/c"]),
        ("a", ["a/b", "a/b/c"]),
        (configs["a/b/c"].dataset_prefix, ["a", "a/b"]),
        (configs["a"], ["a/b", "a/b/c"]),
        ("b", names),
        ("a/b/c/d", names),
        (None, []),
    ]
    for meant, left in ways:
        read()
        cleared = clear_cache(meant, cache_dir=cache_dir)
        assert sorted(one.name for one in cleared.removed) == sorted({*names} - {*left})
        assert cached() == left
    read()
    said = run("cache", "clear", "a/b", "--cache-dir", str(cache_dir)).stdout
    assert said.startswith("removed 1 file of 1 dataset")
    assert cached() == ["a", "a/b/c"]
