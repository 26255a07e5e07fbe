"""Points of a folder alone: what its file system and mount promise."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .trial import Point, Trial
from .value import Found, holds, short, untried

_ROOM = 2**30  # bytes
_FILES = 1000
_RENAMES = 200
_MOUNTS = Path("/proc/self/mountinfo")
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

_NFS = (
    "other hosts see new files up to a minute late unless `actimeo` or `noac` says otherwise, and "
    "a map of a file that another host removes ends in SIGBUS"
)
_KINDS = {  # by the beginning of the file system's name: what does not hold there
    "nfs": _NFS,
    "cifs": "hard links and file names of two cases depend on the server",
    "smb": "hard links and file names of two cases depend on the server",
    "fuse": "renames, links, locks and maps are what the program behind it makes of them",
    "9p": "locks and maps may be this host's own",
    "overlay": "what is written goes with the container, unless a volume is mounted here",
    "tmpfs": "what is written lies in memory, and goes when the machine restarts",
    "ramfs": "what is written lies in memory, and goes when the machine restarts",
    "vfat": "no hard links, no names of two cases, no file of 4 GiB",
    "exfat": "no hard links, no names of two cases",
}
_LOCAL_LOCKS = {"nolock", "local_lock=all", "local_lock=flock"}


@dataclass(frozen=True)
class Mount:
    """Where a folder's file system is mounted, and how."""

    point: str
    kind: str
    options: frozenset[str]

    @property
    def note(self) -> str:
        """What does not hold on such file systems; "" for one of a local disk."""
        return next((text for kind, text in _KINDS.items() if self.kind.startswith(kind)), "")


class FolderPoints:
    """The points of one folder."""

    is_s3 = False

    def __init__(self, root: Path, mounts: Path = _MOUNTS) -> None:
        self._root = root
        self._mounts = mounts
        self._new: list[Path] = []  # folders that are made with the first put, deepest first

    def before(self, *, read_only: bool) -> tuple[Point, ...]:
        """Those without which no other one means anything."""
        return (Point("reached", self._look if read_only else self._reached, writes=False),)

    def after(self) -> tuple[Point, ...]:
        """Those of the file system."""
        return (
            Point("mount", self._mount, needs=("reached",), writes=False),
            Point("whole renames", self._renames, needs=("get",)),
            Point("links", self._links, needs=("get",)),
            Point("new files", self._exclusive, needs=("get",)),
            Point("locks", self._locks, needs=("get",)),
            Point("maps", self._maps, needs=("get",)),
            Point("fsync", self._fsync, needs=("get",)),
            Point("room", self._room, needs=("reached",), writes=False),
        )

    def close(self) -> None:
        """Remove the folders that were not there before."""
        for folder in self._new:
            with contextlib.suppress(OSError):  # somebody has put something into it
                folder.rmdir()

    def _there(self) -> Path:
        """The folder, or the nearest above it that is there."""
        return next(one for one in (self._root, *self._root.parents) if one.is_dir())

    def _look(self, trial: Trial) -> Found:
        absence = trial.store.absence()
        if absence:
            return short(absence, cost="nothing can be loaded", remedy="check the path")
        return holds(str(self._root))

    def _reached(self, trial: Trial) -> Found:
        above = next(one for one in (self._root, *self._root.parents) if os.path.lexists(one))
        if not above.is_dir():
            return short(
                f"{above} is no folder",
                cost="nothing can be loaded or saved",
                remedy="check the path",
            )
        folders = [self._root, *self._root.parents]
        self._new = folders[: folders.index(above)]
        return holds(f"{self._root}{', which a saver makes' if self._new else ''}")

    def _mount(self, trial: Trial) -> Found:
        mount = mount_of(self._there(), self._mounts)
        if mount is None:
            return untried("this system does not tell what is mounted here")
        local = sorted(mount.options & _LOCAL_LOCKS)
        if local and mount.kind.startswith("nfs"):
            return short(
                f"{mount.kind} at {mount.point}, mounted with {local[0]}: locks are "
                "this host's own",
                cost="where the file system has no hard links, savers on several hosts can publish "
                "over each other",
                remedy=f"mount it without {local[0]}",
            )
        note = f"; {mount.note}" if mount.note else ""
        return holds(f"{mount.kind} at {mount.point}{note}")

    @contextlib.contextmanager
    def _place(self, trial: Trial, name: str) -> Iterator[Path]:
        """A new folder for files of a point, which goes with them."""
        key = trial.store.key(name)
        place = self._root / key
        with trial.store.writing([f"{key}/none"]):
            place.mkdir(parents=True)
            try:
                yield place
            finally:
                for path in place.iterdir():
                    path.unlink()
                place.rmdir()

    def _renames(self, trial: Trial) -> Found:
        """A reader beside renames sees the old file or the new one."""
        with self._place(trial, "renames") as place:
            bodies = [bytes([number]) * 4096 for number in (1, 2)]
            name = place / "file"
            name.write_bytes(bodies[0])
            over = threading.Event()
            wrong: list[str] = []

            def read() -> None:
                while not over.is_set() and not wrong:
                    body = _read(name)
                    if body not in bodies:
                        wrong.append(
                            "no file" if body is None else f"{len(body)} bytes of another one"
                        )

            reading = trial.threads.submit(read)
            try:
                for number in range(_RENAMES):
                    temporary = place / "temporary"
                    temporary.write_bytes(bodies[number % 2])
                    os.replace(temporary, name)
            finally:
                over.set()
                reading.result()
        if not wrong:
            return holds()
        return short(
            f"a reader beside a rename saw neither file: {wrong[0]}",
            cost="a reader can meet half an object",
            remedy="use another file system, or S3",
        )

    def _links(self, trial: Trial) -> Found:
        """A link to a name that is taken fails: this is how a commit is published."""
        with self._place(trial, "links") as place:
            one, other, name = (place / word for word in ("one", "other", "name"))
            one.write_bytes(b"one")
            other.write_bytes(b"other")
            try:
                os.link(one, name)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                return holds("no hard links here: a lock file stands for them")
            with contextlib.suppress(FileExistsError):
                os.link(other, name)
            if name.read_bytes() == b"one":
                return holds()
        return short(
            "a link replaced a file that exists",
            cost="savers at work at once can overwrite each other's commits: rows get lost",
            remedy="let one saver at a time write here, or use another file system",
        )

    def _exclusive(self, trial: Trial) -> Found:
        """Of those who make a file of one name at once, one does."""
        number = trial.effort.creators
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._place(trial, "exclusive") as place:
            for turn in range(trial.effort.rounds):
                start = threading.Barrier(number)

                def make(
                    _: int, path: Path = place / f"{turn}", go: threading.Barrier = start
                ) -> bool:
                    go.wait(10)
                    try:
                        os.close(os.open(path, flags, 0o600))
                    except FileExistsError:
                        return False
                    return True

                winners = sum(trial.all(make, range(number), at_once=number))
                if winners != 1:
                    return short(
                        f"of {number} who made a file of one name at once {winners} did",
                        cost="two savers can write into one file: objects are damaged",
                        remedy="let one saver at a time write here, or use another file system",
                    )
        return holds()

    def _locks(self, trial: Trial) -> Found:
        with self._place(trial, "locks") as place:
            path = place / "file"
            path.write_bytes(b"")
            with path.open("rb") as one, path.open("rb") as other:
                try:
                    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    return self._no_locks(f"files cannot be locked: {error.strerror}")
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return holds()
        return self._no_locks("two have the lock of one file at once")

    @staticmethod
    def _no_locks(detail: str) -> Found:
        return short(
            detail,
            cost="where the file system has no hard links, two savers can publish over each other; "
            "a cache here cannot be shared",
            remedy="turn locks on where it is mounted; keep cache_dir on a local disk",
        )

    def _maps(self, trial: Trial) -> Found:
        with self._place(trial, "maps") as place:
            path = place / "file"
            body = os.urandom(2 * mmap.PAGESIZE + 1)
            path.write_bytes(body)
            with path.open("rb") as file:
                try:
                    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
                except OSError as error:
                    return self._no_maps(f"a file cannot be mapped: {error.strerror}")
            with mapped:
                path.unlink()  # as `rm` and `gc` do beside a reader
                if mapped[:] == body:
                    return holds()
        return self._no_maps("a map shows other bytes than the file has")

    @staticmethod
    def _no_maps(detail: str) -> Found:
        return short(
            detail,
            cost="nothing can be loaded: rows are read through maps",
            remedy="use another file system, or copy the dataset to a local disk",
        )

    def _fsync(self, trial: Trial) -> Found:
        with self._place(trial, "fsync") as place:
            began = time.perf_counter()
            try:
                for target in (place / "file", place):
                    if target is not place:
                        target.write_bytes(b"x")
                    descriptor = os.open(target, os.O_RDONLY)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
            except OSError as error:
                return short(
                    f"fsync fails: {error.strerror}",
                    cost="no put can be made durable: nothing can be saved",
                    remedy="use another file system",
                )
            return holds(f"a file and its folder in {(time.perf_counter() - began) * 1000:.1f} ms")

    def _room(self, trial: Trial) -> Found:
        found = os.statvfs(self._there())
        room, files = found.f_bavail * found.f_frsize, found.f_favail
        if room < _ROOM or (found.f_files and files < _FILES):
            return short(
                f"{room / 1e6:,.0f} MB and {files:,} files are left",
                cost="savers fail when nothing is left",
                remedy="make room, or store datasets elsewhere",
            )
        return holds(f"{room / 1e9:,.0f} GB are left")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def mount_of(folder: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """How the file system of a folder is mounted; None where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    path = os.path.realpath(folder)
    found: Mount | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        point = _unescaped(fields[4])
        if path == point or path.startswith(point.rstrip("/") + "/"):
            longest = found is None or len(point) >= len(found.point)
            if longest:
                options = frozenset((*fields[5].split(","), *kind[-1].split(",")))
                found = Mount(point, kind[0], options)
    return found


def _unescaped(text: str) -> str:
    """Spaces and the like stand in octal."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
