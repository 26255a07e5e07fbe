"""A disk that is full, while saving into a folder and while filling a cache.

Once a small tmpfs, which the system must let us mount, and always a limit on the size of files.
"""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rows import ROW, config, make, numbers_in, stored

from storage_loader import Attribute, DataConfig, DataLoader, DataSaver, Dataset, save
from storage_loader.errors import SaverError

WIDE = (Attribute("pixels", "uint8", (9000,)), Attribute(ROW, "int64"))
MOUNTED = 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'
REASON = {"tmpfs": "No space left on device", "file size": "File too large"}


def run_on(kind: str, folder: Path, call: str, *arguments: Path) -> None:
    """Call a function of this module with a folder on a full disk, in a process of its own."""
    folder.mkdir()
    tests = Path(__file__).parent
    code = f"import sys; import test_disk_full as t; t.{call}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, kind, str(folder), *map(str, arguments)]
    if kind == "tmpfs":
        mount = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, str(folder)]
        tried = subprocess.run([*mount, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"no tmpfs here, only the limit of file sizes is tested: {tried.stderr}")
        command = [*mount, *command]
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{tests.parent}"}
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


def caching(kind: str, folder: str, storage: str, cache_size: str) -> None:
    import faulty

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


@pytest.mark.parametrize("kind", ["tmpfs", "file size"])
def test_saving_to_a_full_disk_says_so_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    run_on(kind, tmp_path / "disk", "saving")


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
