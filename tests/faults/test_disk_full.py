"""A disk that is full, while saving into a folder, while filling a cache, and while making room.

Once a small tmpfs, which the system must let us mount, and always a limit on the size of files.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_loader import (
    Attribute,
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    commit_log,
    delete,
    drop_commit,
    save,
)
from storage_loader.catalog import Catalog
from storage_loader.errors import DatasetNotFoundError, ObjectNotFoundError, SaverError
from storage_loader.store import open_store
from tests.support import ROOT
from tests.support.command import run
from tests.support.faulty import Call, Injected, WatchedStore
from tests.support.rows import ROW, config, make, numbers_in, numbers_of, stored

WIDE = (Attribute("pixels", "uint8", (9000,)), Attribute(ROW, "int64"))
MOUNTED = 'mount -t tmpfs -o size=4m,nr_inodes=500 tmpfs "$0" && exec "$@"'
REASON = {"tmpfs": "No space left on device", "file size": "File too large"}


def run_on(kind: str, folder: Path, call: str, *arguments: Path) -> None:
    """Call a function of this module with a folder on a full disk, in a process of its own."""
    folder.mkdir()
    code = f"import sys; import {__name__} as t; t.{call}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, kind, str(folder), *map(str, arguments)]
    if kind == "tmpfs":
        mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, str(folder)]
        tried = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no tmpfs here, only the limit of file sizes is tested: {tried.stderr}")
        command = [*mount, *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "done\n"


def limit_files(kind: str, nbytes: int) -> None:
    if kind == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def files_below(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


def keys_of(the_config: DataConfig) -> list[str]:
    """The keys of its objects, in the order of their rows."""
    snapshot = Dataset(the_config).open()
    return [snapshot.key(index) for index in range(len(snapshot.objects))]


def saving(kind: str, folder: str) -> None:
    limit_files(kind, 2**19)
    the_config = config({"storage": f"{folder}/store"}, attributes=WIDE, max_object_size=2**20)
    save(the_config, make(range(50), WIDE))  # 450 KB
    before = files_below(folder)
    with pytest.raises(SaverError) as caught, DataSaver(the_config) as saver:
        for start in range(50, 2000, 50):
            saver(make(range(start, start + 50), WIDE))
    text = str(caught.value)
    assert REASON[kind] in text, text
    assert f"put file://{folder}/store/" in text, text
    assert "rows were not committed (0 were before), save them with another" in text, text
    assert isinstance(caught.value.__cause__, OSError)
    assert files_below(folder) == before  # not even part of an object
    assert stored(the_config, WIDE) == list(range(50))
    save(the_config, make(range(50, 90), WIDE))  # there is room for this
    assert stored(the_config, WIDE) == list(range(90))
    print("done")


def fill(folder: str, what: str) -> None:
    """Leave no byte, or no room for another file, in a file system."""
    Path(folder, "filler").mkdir(exist_ok=True)
    with pytest.raises(OSError, match=REASON["tmpfs"]):
        for number in itertools.count(len(os.listdir(f"{folder}/filler"))):
            with open(f"{folder}/filler/{number}", "xb", buffering=0) as file:
                while what == "bytes":
                    file.write(bytes(4096))
    if what == "bytes":
        return
    with pytest.raises(OSError, match=REASON["tmpfs"]):
        Path(folder, "one more").touch()


def stale(path: Path) -> Path:
    """A file of a dead saver or put."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(10_000))
    os.utime(path, (0, 0))
    return path


def freeing(kind: str, folder: str, what: str) -> None:
    """Each in turn on a disk that is full to the last byte: gc, two rm --commit, and rm."""
    the_config: DataConfig = config(
        {"storage": f"{folder}/store"}, attributes=WIDE, max_object_size=2**18
    )
    for start in range(0, 200, 50):
        save(the_config, make(range(start, start + 50), WIDE))
    dataset = Path(folder, "store", the_config.dataset_prefix)
    first, second, *_ = (logged.id for logged in commit_log(the_config))
    object_of = [Path(folder, "store", key) for key in keys_of(the_config)]
    storage = str(dataset.parents[1])

    stray = stale(dataset / "objects" / "dead" / "0123abcd-000000.h5")
    fill(folder, what)
    with pytest.raises(SaverError, match=REASON[kind]), DataSaver(the_config) as saver:
        saver(make(range(1000, 1050), WIDE))
    assert run("gc", storage, "rows", "--dry-run").stdout.splitlines()[-1].startswith("would")
    assert stray.exists()
    assert run("gc", storage, "rows").stdout == "removed 1 object; 9.8 KiB\n"
    assert not stray.exists()
    assert stored(the_config, WIDE) == list(range(200))

    shutil.rmtree(f"{folder}/filler")
    # Of files tmpfs needs two for a moment: it counts a link as one.
    left = [stale(dataset / "metadata" / f".tmp-{n}") for n in range(2)]
    fill(folder, what)
    drop_commit(the_config, first)  # what gc removes is enough for it
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in object_of)
    assert stored(the_config, WIDE) == list(range(50, 200))
    assert numbers_of(Dataset(the_config, version=second)[:], WIDE) == list(range(100))

    fill(folder, what)
    run("rm", storage, "rows", "--commit", second, "-y")  # an object of it has to make room
    assert stored(the_config, WIDE) == list(range(100, 200))
    gone = [path for path in object_of if not path.exists()]
    assert gone == (object_of[2:3] if what == "bytes" else object_of[2:4])
    with pytest.raises(ObjectNotFoundError, match="it holds attributes"):
        Dataset(the_config, version=second)[:]

    fill(folder, what)
    result = run("rm", storage, "rows", "-y")
    assert result.stdout.startswith("removed 100 rows"), result.output
    assert files_below(f"{folder}/store") == []
    save(the_config, make(range(7), WIDE))  # there is room again
    assert stored(the_config, WIDE) == list(range(7))
    print("done")


def stopping(kind: str, folder: str, what: str) -> None:
    """`delete` stopped at each of its steps: none of the rows can be read, or all of them."""
    for step in itertools.count():
        the_config: DataConfig = config(
            {"storage": f"{folder}/store"}, f"rows{step}", attributes=WIDE, max_object_size=2**18
        )
        for start in range(0, 60, 20):
            save(the_config, make(range(start, start + 20), WIDE), refresh=start == 20)
        fill(folder, what)
        deletions = itertools.count()

        def stop(call: Call, deletions: Iterator[int] = deletions, step: int = step) -> None:
            if call.verb == "delete" and next(deletions) == step:
                raise Injected("stopped")

        store = WatchedStore(open_store(the_config), before=stop)
        try:
            Catalog(the_config, store).delete()
        except Injected:
            pass
        else:
            break
        with contextlib.suppress(ObjectNotFoundError, DatasetNotFoundError):
            assert stored(the_config, WIDE) in ([], list(range(20, 60)))
        fill(folder, what)
        with contextlib.suppress(DatasetNotFoundError):
            delete(the_config)
        assert files_below(f"{folder}/store") == []
        shutil.rmtree(f"{folder}/filler")
    assert step > 6
    assert files_below(f"{folder}/store") == []
    print("done")


def caching(kind: str, folder: str, storage: str, cache_size: str) -> None:
    from tests.support import faulty

    limit_files(kind, 2**20)
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("storage_loader").addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        faulty.watch(patch, local=False)
        the_config = config({"storage": storage}, attributes=WIDE)
        how: dict[str, Any] = {
            "batch_size": 16,
            "shuffle": "global",
            "cache_dir": f"{folder}/cache",
            "cache_size": int(cache_size) or None,
        }
        loader = DataLoader(the_config, **how)
        for _ in range(2):
            assert sorted(numbers_in(loader, WIDE)) == list(range(1000))
        assert len(warnings) == 1, warnings
        assert "takes no more" in warnings[0]
        assert "passes through memory" in warnings[0]
        again = DataLoader(the_config, **how)  # what was kept is whole
        assert sorted(numbers_in(again, WIDE)) == list(range(1000))
    print("done")


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("kind", ["tmpfs", "file size"])
def test_saving_to_a_full_disk_says_so_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    run_on(kind, tmp_path / "disk", "saving")


@pytest.mark.parametrize("what", ["bytes", "files"])
@pytest.mark.parametrize("work", ["freeing", "stopping"])
def test_room_can_be_made_on_a_full_disk(work: str, what: str, tmp_path: Path) -> None:
    run_on("tmpfs", tmp_path / "disk", work, Path(what))


@pytest.mark.usefixtures("library_once")
@pytest.mark.parametrize("cache_size", [0, 2**30], ids=["disk", "larger"])
@pytest.mark.parametrize("kind", ["tmpfs", "file size"])
def test_a_cache_on_a_full_disk_warns_once_and_the_rows_stream(
    kind: str, cache_size: int, tmp_path: Path
) -> None:
    the_config: DataConfig = config(
        {"storage": str(tmp_path / "store")}, attributes=WIDE, max_object_size=2 * 2**20
    )
    save(the_config, make(range(1000), WIDE))
    assert len(Dataset(the_config).open().objects) == 5
    run_on(kind, tmp_path / "disk", "caching", tmp_path / "store", Path(str(cache_size)))
