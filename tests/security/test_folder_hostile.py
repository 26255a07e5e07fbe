"""A folder in which someone has put what no saver puts there: links, FIFOs, odd names, deep trees.

Nothing outside the storage, and nothing of another dataset in it, is ever read or deleted.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_loader import (
    Attribute,
    DataConfig,
    DataLoader,
    DataSaver,
    Dataset,
    collect_garbage,
    commit_log,
    delete,
    drop_commit,
    list_datasets,
    save,
    verify_dataset,
)
from storage_loader.catalog import Catalog, Commit, CommitId
from storage_loader.errors import (
    ConfigError,
    FormatError,
    NotAnObjectError,
    ObjectExistsError,
    ObjectTooLargeError,
    SaverError,
    SchemaError,
    StorageLoaderError,
    StoreError,
)
from storage_loader.store import FolderStore
from storage_loader.store.folder import _info
from tests.support.command import failing, run
from tests.support.own_process import in_processes
from tests.support.rows import ROW, config, make, numbers_in, stored

WIDE = (Attribute("pixels", "uint8", (9000,)), Attribute(ROW, "int64"))  # 7 rows in 64 KiB
ZERO = timedelta(0)
ROWS = list(range(30))
OTHER_ROWS = list(range(100, 107))


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    """What waits for ever is a failure."""

    def stop(*_: object) -> None:
        raise TimeoutError("this has hung")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Place:
    """A storage with two datasets, and a folder beside it that is nobody's business."""

    def __init__(self, path: Path, template: Path) -> None:
        self.root = path / "storage"
        self.outside = path / "outside"
        shutil.copytree(template, self.root)
        self.config = config({"storage": str(self.root)})
        self.other = config({"storage": str(self.root)}, "other")
        self.dataset = self.root / self.config.dataset_prefix
        self.other_dataset = self.root / self.other.dataset_prefix
        (self.outside / "sub").mkdir(parents=True)
        (self.outside / "precious.txt").write_text("precious")
        (self.outside / "sub" / "000000000009-w-000000.json").write_text("more")
        for folder in ("objects/w", "metadata"):  # an old file at each level
            (self.outside / folder).mkdir(parents=True)
            (self.outside / folder / "0123abcd-000000.h5").write_bytes(b"not yours")
        for path in self.outside.rglob("*"):
            os.utime(path, (0, 0))
        self.before = files_in(self.outside)
        self.other_before = files_in(self.other_dataset)

    def assert_untouched(self) -> None:
        """Everything else is as it was, byte by byte."""
        assert files_in(self.outside) == self.before
        assert files_in(self.other_dataset) == self.other_before
        assert stored(self.other) == OTHER_ROWS

    @property
    def commit(self) -> Path:
        return min((self.dataset / "metadata").iterdir())

    @property
    def object(self) -> Path:
        return min((self.dataset / "objects" / "w").glob("*.h5"))


def append(to: DataConfig) -> None:
    """Five rows more, by the writer of the others."""
    with DataSaver(to, writer="w") as saver:
        saver(make(range(30, 35)))


def files_in(folder: Path) -> dict[str, bytes | str]:
    """What lies below: the bytes of files, where links point, "folder" for folders."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of 15 rows in one dataset, one of 7 in another."""
    root = tmp_path_factory.mktemp("template")
    for name, rows in (("rows", ROWS), ("other", OTHER_ROWS)):
        with DataSaver(config({"storage": str(root)}, name), writer="w") as saver:
            for start in range(0, len(rows), 15):
                saver(make(rows[start : start + 15]))
                saver.commit()
    return root


@pytest.fixture
def place(tmp_path: Path, template: Path) -> Place:
    return Place(tmp_path, template)


# Links that stand beside what is the dataset's: reported, unlinked with it, never followed

LINKS: dict[str, tuple[str, Callable[[Place], Path | str]]] = {
    "to a folder": ("notes", lambda p: p.outside),
    "to a file": ("notes", lambda p: p.outside / "precious.txt"),
    "to another dataset's writer": ("objects/evil", lambda p: p.other_dataset / "objects" / "w"),
    "to another dataset": ("objects/evil", lambda p: p.other_dataset),
    "to the root": ("metadata/root", lambda p: p.root),
    "in metadata": ("metadata/deep", lambda p: p.outside / "sub"),
    "deep": ("a/b/c", lambda p: p.outside),
    "to itself": ("notes", lambda p: "notes"),
    "to its own folder": ("notes", lambda p: "."),
    "to nothing": ("metadata/gone", lambda p: "/nowhere/at/all"),
    "named as an object": (
        "objects/w/0123abcd-000000.h5",
        lambda p: p.outside / "objects" / "w" / "0123abcd-000000.h5",
    ),
    "named as a lease": ("objects/w/0123abcd.lease", lambda p: p.outside / "precious.txt"),
    "named as a probe": ("gc-0123456789abcdef.probe", lambda p: p.outside / "precious.txt"),
}


@pytest.fixture(params=LINKS)
def linked(request: pytest.FixtureRequest, place: Place) -> tuple[Place, Path]:
    name, target = LINKS[request.param]
    link = place.dataset / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target(place))
    os.utime(link, (0, 0), follow_symlinks=False)
    return place, link


def test_a_link_goes_with_its_dataset_and_its_target_stays(linked: tuple[Place, Path]) -> None:
    place, _ = linked
    delete(place.config)
    place.assert_untouched()
    assert not place.dataset.exists()


def test_rm_unlinks_a_link(linked: tuple[Place, Path]) -> None:
    place, _ = linked
    result = run("rm", str(place.root), "rows", "-y")
    assert (result.exit_code, result.stderr) == (0, "")
    place.assert_untouched()
    assert not place.dataset.exists()


@pytest.mark.parametrize("command", ["gc", "verify"])
def test_gc_reports_a_link_and_leaves_it_alone(linked: tuple[Place, Path], command: str) -> None:
    place, link = linked
    before = files_in(place.dataset)
    if command == "gc":
        result = run("gc", str(place.root), "rows", "--grace", "0s", "--keep", "0s")
    else:
        result = run("verify", str(place.root), "rows", "--repair")
    assert result.exit_code == 0
    key = str(link.relative_to(place.root))
    assert result.stderr.splitlines()[-1] == f"left alone, not of this format: {key}"
    assert result.stdout.splitlines()[-1] == "removed nothing"
    place.assert_untouched()
    assert files_in(place.dataset) == before
    assert stored(place.config) == ROWS


def test_garbage_behind_a_link_is_not_the_datasets(linked: tuple[Place, Path]) -> None:
    place, link = linked
    collected = collect_garbage(place.config, grace=ZERO, keep=ZERO)
    assert collected.garbage == ()
    assert collected.foreign == (str(link.relative_to(place.root)),)
    place.assert_untouched()


def test_a_reader_does_not_mind_a_link(linked: tuple[Place, Path]) -> None:
    place, _ = linked
    assert stored(place.config) == ROWS
    assert [info.config.dataset_name for info in list_datasets(str(place.root))] == [
        "other",
        "rows",
    ]
    assert verify_dataset(place.config).problems == ()
    save(place.config, make(range(30, 35)))
    assert stored(place.config) == list(range(35))
    place.assert_untouched()


def test_an_unfinished_file_that_is_a_link_is_unlinked(place: Place) -> None:
    link = place.dataset / "objects" / ".tmp-0123456789abcdef"
    link.symlink_to(place.outside / "precious.txt")
    os.utime(link, (0, 0), follow_symlinks=False)
    collected = collect_garbage(place.config)
    assert [(one.kind, one.key) for one in collected.garbage] == [
        ("unfinished", str(link.relative_to(place.root)))
    ]
    assert not link.is_symlink()
    place.assert_untouched()


def test_a_dropped_commit_leaves_what_is_linked(linked: tuple[Place, Path]) -> None:
    place, _ = linked
    drop_commit(place.config, place.commit.stem)
    collect_garbage(place.config, grace=ZERO, keep=ZERO)
    assert stored(place.config) == ROWS[15:]
    place.assert_untouched()


@pytest.mark.parametrize("num", [1, 58])
def test_links_in_metadata_do_not_hold_up_a_listing(place: Place, num: int) -> None:
    """Followed, they make 2 to the power of 58 folders, or a path that has too many links."""
    for i in range(num):
        (place.dataset / "metadata" / f"link{i}").symlink_to(".")
        (place.dataset / "metadata" / f"loop{i}").symlink_to(f"loop{i}")
    assert stored(place.config) == ROWS
    save(place.config, make(range(30, 35)))
    assert [logged.num_rows for logged in commit_log(place.config)] == [15, 15, 5]
    assert len(collect_garbage(place.config).foreign) == 2 * num
    delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


# Links in the place of what is the dataset's: an error that names them


def _moved(path: Path, to: Path) -> None:
    """Put a link in the place of a file or folder, which lies elsewhere from now on."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, to)
    path.symlink_to(to)


PARTS: dict[str, Callable[[Place], Path]] = {
    "dataset.json": lambda p: p.dataset / "dataset.json",
    "a commit": lambda p: p.commit,
    "all commits": lambda p: p.dataset / "metadata",
    "an object": lambda p: p.object,
    "a writer's objects": lambda p: p.object.parent,
    "all objects": lambda p: p.dataset / "objects",
    "the dataset": lambda p: p.dataset,
    "the name": lambda p: p.dataset.parent,
}


@pytest.fixture(params=PARTS)
def moved(request: pytest.FixtureRequest, place: Place) -> tuple[Place, Path]:
    path = PARTS[request.param](place)
    _moved(path, place.outside / "moved" / path.name)
    place.before = files_in(place.outside)
    return place, path


def test_nothing_is_read_through_a_link(moved: tuple[Place, Path]) -> None:
    place, link = moved
    key = str(link.relative_to(place.root))
    with pytest.raises(NotAnObjectError) as error:
        stored(place.config)
    text = str(error.value)
    assert (
        f"{link} is a symbolic link" in text
        or f"{key!r} is a symbolic link" in text
        or (f"{link}: that is a symbolic link" in text)
    ), text
    assert "put the file itself there" in text
    with pytest.raises(NotAnObjectError):
        list(DataLoader(place.config, batch_size=4))
    place.assert_untouched()


def test_nothing_is_collected_through_a_link(moved: tuple[Place, Path]) -> None:
    place, _ = moved
    before = files_in(place.root)
    try:
        collected = collect_garbage(place.config, grace=ZERO, keep=ZERO)
    except NotAnObjectError:
        pass
    else:
        assert collected.garbage == ()
        assert len(collected.foreign) == 1
    assert files_in(place.root) == before
    place.assert_untouched()


def test_nothing_is_verified_through_a_link(moved: tuple[Place, Path]) -> None:
    place, _ = moved
    try:
        problems = verify_dataset(place.config).problems
    except NotAnObjectError:
        problems = ()
    else:
        assert problems
    place.assert_untouched()


def test_nothing_is_deleted_through_a_link(moved: tuple[Place, Path]) -> None:
    place, link = moved
    if place.dataset.is_relative_to(link):  # there is no dataset in this storage
        with pytest.raises(NotAnObjectError, match="is a symbolic link"):
            delete(place.config)
        assert link.is_symlink()
    else:
        delete(place.config)
        assert not place.dataset.exists()
    place.assert_untouched()


def test_nothing_is_saved_through_a_link(moved: tuple[Place, Path]) -> None:
    place, link = moved
    if link.suffix == ".h5":  # a saver has nothing to do with the objects of others
        append(place.config)
    else:
        with pytest.raises((StoreError, SaverError), match="symbolic link"):
            append(place.config)
    place.assert_untouched()


# The verbs


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """It holds a/key; a/link is a link to a folder beside it that holds x, a/file one to that."""
    made = FolderStore(tmp_path / "store")
    made.put("a/key", b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"outside")
    (made.root / "a" / "link").symlink_to(tmp_path / "outside")
    (made.root / "a" / "file").symlink_to(tmp_path / "outside" / "x")
    return made


READS: dict[str, Callable[[FolderStore, str], object]] = {
    "get": lambda store, key: store.get(key),
    "find": lambda store, key: store.find(key),
    "get_ranges": lambda store, key: store.get_ranges(key, [(0, 1)]),
    "stream": lambda store, key: list(store.stream(key, 0, 1)),
    "head": lambda store, key: store.head(key),
}


@pytest.mark.parametrize("read", READS)
def test_no_verb_reads_a_link(store: FolderStore, read: str) -> None:
    verb = "head" if read == "head" else "get"
    for key, link in (("a/file", "that"), ("a/link", "that"), ("a/link/x", "'a/link'")):
        with pytest.raises(NotAnObjectError) as error:
            READS[read](store, key)
        assert str(error.value) == (
            f"{verb} {store.url}/{key}: {link} is a symbolic link; links below {store.root} are "
            "not followed, and nothing but regular files is read: put the file itself there, or "
            "remove this"
        )


def test_links_are_listed_as_what_they_are(store: FolderStore) -> None:
    listed = {info.key: info.odd for info in store.list()}
    assert listed == {"a/key": "", "a/file": "a symbolic link", "a/link": "a symbolic link"}
    assert store.list_folders() == ["a"]
    assert store.list_folders("a") == []
    for lists in (lambda: list(store.list("a/link")), lambda: store.list_folders("a/link")):
        with pytest.raises(NotAnObjectError, match="'a/link' is a symbolic link"):
            lists()


@pytest.mark.parametrize("create", [False, True])
def test_nothing_is_put_through_a_link(store: FolderStore, create: bool) -> None:
    outside = store.root.parent / "outside"
    for key in ("a/link/x", "a/link/new", "a/link/b/new"):
        with pytest.raises(NotAnObjectError, match="'a/link' is a symbolic link"):
            store.put(key, b"changed", create=create)
    if create:
        with pytest.raises(ObjectExistsError):
            store.put("a/file", b"changed", create=True)
    else:
        store.put("a/file", b"changed")  # the link is replaced
        assert store.get("a/file") == b"changed"
        assert not (store.root / "a" / "file").is_symlink()
    assert files_in(outside) == {"x": b"outside"}


def test_a_link_is_deleted_and_nothing_through_it(store: FolderStore) -> None:
    with pytest.raises(NotAnObjectError, match="'a/link' is a symbolic link"):
        store.delete(["a/link/x"])
    store.delete(["a/link", "a/file"])
    assert [info.key for info in store.list()] == ["a/key"]
    assert files_in(store.root.parent / "outside") == {"x": b"outside"}


@pytest.mark.parametrize(
    ("verb", "number"), [("unlink", 0), ("open", 0), ("open", 1), ("open", 2), ("rmdir", 0)]
)
def test_a_folder_that_becomes_a_link_during_a_deletion(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    """Just before any call of the deletion: what is deleted lies in the folder that was there."""
    outside = store.root.parent / "outside"
    (outside / "key").write_bytes(b"outside too")
    before = files_in(outside)
    store.delete(["a/link", "a/file"])
    real, folder = getattr(os, verb), store.root / "a"
    calls = []

    def swapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == number + 1:
            folder.rename(store.root / "moved")
            folder.symlink_to(outside)
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, verb, swapped)
        with contextlib.suppress(NotAnObjectError):  # it became one before it was opened
            store.delete(["a/key"])
    assert len(calls) > number
    assert folder.is_symlink()
    assert files_in(outside) == before


def test_a_folder_that_becomes_a_link_during_a_listing(store: FolderStore) -> None:
    for name in ("b/c/1", "b/c/2", "b/d/3", "e/4"):
        store.put(name, b"x")
    seen = []
    for number, info in enumerate(store.list("b")):
        seen.append(info.key)
        if not number:
            (store.root / "b").rename(store.root / "moved")
            (store.root / "b").symlink_to(store.root.parent / "outside")
    assert set(seen) <= {"b/c/1", "b/c/2", "b/d/3"}
    assert len(seen) == len(set(seen)) > 0


def test_the_root_may_be_a_link_and_lie_behind_one(tmp_path: Path) -> None:
    (tmp_path / "real" / "there").mkdir(parents=True)
    (tmp_path / "behind").symlink_to(tmp_path / "real")
    (tmp_path / "root").symlink_to(tmp_path / "behind" / "there")
    for root in (tmp_path / "root", tmp_path / "behind" / "there"):
        made = config({"storage": str(root)}, "here")
        save(made, make(range(9)))
        assert stored(made) == list(range(9))
        assert [info.num_rows for info in list_datasets(str(root))] == [9]
        assert collect_garbage(made) == collect_garbage(made)
        assert verify_dataset(made).problems == ()
        delete(made)
        assert list(root.iterdir()) == []


# Neither files nor folders

KINDS = {"a FIFO": stat.S_IFIFO, "a socket": stat.S_IFSOCK, "a device": stat.S_IFCHR}


def made(path: Path, kind: str) -> None:
    """A device is one whose zeros never end."""
    try:
        os.mknod(path, KINDS[kind] | 0o600, os.makedev(1, 5) if kind == "a device" else 0)
    except PermissionError:
        pytest.skip("only root makes devices")


FILES = {name: PARTS[name] for name in ("dataset.json", "a commit", "an object")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", FILES)
def test_what_is_no_regular_file_is_not_waited_for(place: Place, part: str, kind: str) -> None:
    path = FILES[part](place)
    path.unlink()
    made(path, kind)
    with pytest.raises(NotAnObjectError, match=rf"/{path.name}: that is {kind}; ") as error:
        stored(place.config)
    assert str(path) in str(error.value)
    assert verify_dataset(place.config).problems
    if part == "an object":
        assert collect_garbage(place.config).foreign == (str(path.relative_to(place.root)),)
    else:
        with pytest.raises(NotAnObjectError, match=kind):
            collect_garbage(place.config)
        with pytest.raises(NotAnObjectError, match=kind):
            append(place.config)
    delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_that_is_no_regular_file(place: Place, kind: str) -> None:
    [claim] = (place.dataset / "objects" / "w").glob("000001.claim")
    claim.unlink()
    made(claim, kind)
    with pytest.raises(NotAnObjectError, match=f"000001.claim: that is {kind}; "):
        append(place.config)
    assert stored(place.config) == ROWS


@pytest.mark.parametrize("kind", KINDS)
def test_no_verb_opens_what_is_no_regular_file(store: FolderStore, kind: str) -> None:
    os.mknod(store.root / "a" / "odd", KINDS[kind] | 0o600)
    for read in READS.values():
        with pytest.raises(NotAnObjectError, match=f"a/odd: that is {kind}; "):
            read(store, "a/odd")
    assert {info.key: info.odd for info in store.list()}["a/odd"] == kind
    with pytest.raises(ObjectExistsError):
        store.put("a/odd", b"x", create=True)
    store.delete(["a/odd"])
    assert not (store.root / "a" / "odd").exists()


def test_a_config_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="/dev/zero: more than 16777216 bytes, which is no"):
        DataConfig.load("/dev/zero")
    assert "which is no config's file" in failing(monkeypatch, capsys, "info", "/dev/zero")
    config({"storage": str(tmp_path)}).save(tmp_path / "real.json")
    pipe = tmp_path / "pipe"  # as a shell's <(...) is one
    os.mkfifo(pipe)
    writer = threading.Thread(
        target=lambda: pipe.write_bytes((tmp_path / "real.json").read_bytes())
    )
    writer.start()
    assert DataConfig.load(pipe).dataset_name == "rows"
    writer.join()


def test_a_folder_that_is_moved_away_leads_to_nobodys_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder of the writer's name, where the writer's folder is moved to: it stays."""
    writer = place.dataset / "objects" / "w"
    (place.outside / "w").mkdir()
    unlink = os.unlink

    def last(name: str, **options: Any) -> None:
        unlink(name, **options)
        if writer.exists() and not any(writer.iterdir()):
            writer.rename(place.outside / "moved")

    monkeypatch.setattr(os, "unlink", last)
    delete(place.config)
    (place.outside / "moved").rmdir()
    (place.outside / "w").rmdir()
    place.assert_untouched()


@pytest.mark.parametrize("kind", [*KINDS, "a file"])
def test_what_stands_in_the_place_of_all_commits_is_an_error(place: Place, kind: str) -> None:
    metadata = place.dataset / "metadata"
    metadata.rename(place.root / "saved")
    if kind == "a file":
        metadata.write_bytes(b"")
    else:
        os.mknod(metadata, KINDS[kind] | 0o600)
    for read in (stored, commit_log, append, lambda c: collect_garbage(c, grace=ZERO, keep=ZERO)):
        with pytest.raises(StorageLoaderError, match="/metadata"):
            read(place.config)
    assert verify_dataset(place.config).problems
    metadata.unlink()
    (place.root / "saved").rename(metadata)
    assert stored(place.config) == ROWS
    metadata.rename(place.root / "saved")
    os.mkfifo(metadata)
    delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


@pytest.mark.parametrize("seq", [1, 3, 10**9, 10**11 - 1])
def test_a_claim_that_was_edited_takes_nothing_back(place: Place, seq: int) -> None:
    """Commit 1 of the writer is the second of all; its claim says otherwise."""
    [claim] = (place.dataset / "objects" / "w").glob("000001.claim")
    claim.write_bytes(claim.read_bytes().replace(b"000000000002-w", b"%012d-w" % seq))
    with pytest.raises(FormatError, match=r"000001\.claim: it claims "):
        append(place.config)
    assert stored(place.config) == ROWS
    assert len(list((place.dataset / "metadata").iterdir())) == 2
    with DataSaver(place.config) as saver:
        saver(make(range(30, 32)))
    assert stored(place.config) == [*ROWS, 30, 31]


@pytest.mark.parametrize("part", ["dataset.json", "a commit"])
def test_a_sparse_file_takes_no_memory(place: Place, part: str) -> None:
    os.truncate(FILES[part](place), 2**40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for read in (stored, commit_log, collect_garbage, append):
        with pytest.raises(ObjectTooLargeError, match="1099511627776 bytes, where at most"):
            read(place.config)
    assert verify_dataset(place.config).problems
    unreadable: list[Any] = []
    infos = list_datasets(place.root, unreadable=unreadable.append)
    assert [info.config.dataset_name for info in infos] == ["other"]
    assert [one.name for one in unreadable] == ["rows"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB
    delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


def test_a_claim_that_is_sparse_takes_no_memory(place: Place) -> None:
    [claim] = (place.dataset / "objects" / "w").glob("000001.claim")
    os.truncate(claim, 2**40)
    with pytest.raises(ObjectTooLargeError, match=r"/000001\.claim: "):
        append(place.config)
    assert stored(place.config) == ROWS


def test_no_commit_is_published_that_no_reader_would_take(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = DataSaver(place.config)
    saver(make(range(30, 35)))
    with monkeypatch.context() as patch:
        patch.setattr("storage_loader.catalog.catalog.COMMIT_LIMIT", 100)
        with pytest.raises(SaverError, match="of JSON, and 100 are allowed; commit more often"):
            saver.close()
    assert stored(place.config) == ROWS


def test_no_dataset_is_made_that_no_reader_would_take(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_loader.catalog.catalog.DATASET_LIMIT", 100)
    another = config({"storage": str(place.root)}, "another")
    with pytest.raises((SaverError, SchemaError), match="of JSON, and 100 are allowed"):
        save(another, make(range(3)))
    assert not (place.root / another.dataset_prefix / "dataset.json").exists()


# Names, times and depth

NAMES = [b"line\nbreak", b"\x1b[31mred", b"\x7f", b"\xff\xfe", b"\xc3\x28", b" ", b"\xe2\x80\xae"]


@pytest.mark.parametrize("seconds", [2**33, -(2**30)])
@pytest.mark.parametrize("part", FILES)
def test_a_file_may_have_any_time(place: Place, part: str, seconds: int) -> None:
    os.utime(FILES[part](place), (0, seconds))
    assert stored(place.config) == ROWS
    assert len(commit_log(place.config)) == 2
    assert not verify_dataset(place.config).problems
    collect_garbage(place.config)
    append(place.config)
    assert stored(place.config) == [*ROWS, *range(30, 35)]
    delete(place.config)
    place.assert_untouched()


@pytest.mark.parametrize("seconds", [2**40, -(2**40), 2**62])  # some file systems have them
def test_a_time_that_no_calendar_has_is_the_nearest(seconds: int) -> None:
    status = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, 5, 0, seconds, 0))
    assert _info("key", status).modified.year in (1970, 9999)


@pytest.mark.parametrize("name", [f"abc-{chr(0x660) * 6}.h5", f"{chr(0xFF10) * 6}.claim"])
def test_digits_of_another_script_are_none(place: Place, name: str) -> None:
    odd = place.dataset / "objects" / "w" / name
    odd.write_bytes(b"mine")
    os.utime(odd, (0, 0))
    collected = collect_garbage(place.config, keep=timedelta.max, grace=ZERO)
    assert collected.foreign == (str(odd.relative_to(place.root)),)
    assert odd.read_bytes() == b"mine"
    assert stored(place.config) == ROWS


@pytest.mark.parametrize("name", NAMES, ids=repr)
@pytest.mark.parametrize("folder", ["", "metadata", "objects/w", "new"])
def test_any_name_can_be_collected_around_and_deleted(
    place: Place, folder: str, name: bytes
) -> None:
    below = os.fsencode(place.dataset / folder)
    os.makedirs(below + b"/" + name + b"-folder", exist_ok=True)
    for path in (below + b"/" + name, below + b"/" + name + b"-folder/" + name):
        with open(path, "wb") as file:
            file.write(b"odd")
    unfinished = below + b"/.tmp-" + name
    with open(unfinished, "wb") as file:
        file.write(b"old")
    os.utime(unfinished, (0, 0))
    collected = collect_garbage(place.config)
    start = "/".join(part for part in (place.config.dataset_prefix, folder) if part)
    text = os.fsdecode(name)
    assert collected.foreign == tuple(sorted([f"{start}/{text}", f"{start}/{text}-folder/{text}"]))
    assert [one.key for one in collected.garbage] == [f"{start}/.tmp-{text}"]
    assert not os.path.exists(unfinished)
    assert stored(place.config) == ROWS
    delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


def test_a_deep_tree_is_collected_around_and_deleted(place: Place) -> None:
    """Deeper than a path may be long (4 KiB), a process may open files (1024) and a stack grow."""
    name, num = "deep-folder", 1100
    here = os.open(place.dataset / "metadata", os.O_RDONLY)
    for _ in range(num):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
    key = f"{place.config.dataset_prefix}/metadata/{f'{name}/' * num}bottom"
    try:
        assert stored(place.config) == ROWS
        assert collect_garbage(place.config).foreign == (key,)
    finally:
        delete(place.config)
    assert not place.dataset.exists()
    place.assert_untouched()


# Open files


def _many(storage: str, kind: str) -> None:
    """More commits or objects than this process may have files open."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    made = config({"storage": storage}, attributes=WIDE, max_object_size=2**16)
    if kind == "objects":
        with DataSaver(made) as saver:
            for start in range(0, 1100 * 7, 700):
                saver(make(range(start, start + 700), WIDE))
        rows = list(range(1100 * 7))
        assert len(Dataset(made).open().objects) == 1100
    else:
        save(made, make(range(7), WIDE))
        catalog = Catalog(made)
        empty = Commit(catalog.require_schema().hash).to_bytes()
        for i in range(2, 1100):  # saved one by one, with all their syncs, they take a minute
            (Path(storage) / catalog.commit_key(CommitId(i, "w", i))).write_bytes(empty)
        save(made, make(range(7, 14), WIDE))
        rows = list(range(14))
        assert len(commit_log(made)) == 1100
    assert stored(made, WIDE) == rows
    for index in (False, True):
        loader = DataLoader(made, batch_size=64, shuffle="global", index=index)
        assert sorted(numbers_in(loader, WIDE)) == rows
    assert collect_garbage(made).garbage == ()
    assert verify_dataset(made).problems == ()
    drop_commit(made, commit_log(made)[0].id)
    assert stored(made, WIDE) == ([] if kind == "objects" else rows[7:])
    delete(made)
    assert list(Path(storage).iterdir()) == []


@pytest.mark.parametrize("kind", ["commits", "objects"])
def test_more_than_a_process_may_open(tmp_path: Path, kind: str) -> None:
    in_processes(_many, (str(tmp_path / "store"), kind))
