"""Points of every store, tried through its verbs."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from ..errors import (
    BucketNotFoundError,
    FolderNotFoundError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreConnectionError,
    StoreError,
)
from .trial import Point, Trial
from .value import Found, holds, short, untried

SKEW = timedelta(minutes=1)
_SAVING = 4  # puts at once, as a saver's
_LOADING = 32  # reads at once, as a loader's
_TOGETHER = 10.0  # seconds until all creators have a thread
_SMALL = 40  # requests whose median time is told
_BODY = bytes(range(256)) * 4


def allowed(act: Callable[[Trial], Found], permission: str, cost: str) -> Callable[[Trial], Found]:
    """A point that also tells what the lack of a permission costs."""

    def find(trial: Trial) -> Found:
        try:
            return act(trial)
        except PermissionDeniedError as error:
            return short(str(error), cost=cost, remedy=permission)

    return find


def _list(trial: Trial) -> Found:
    try:
        trial.store.list_folders()
        next(iter(trial.store.list(trial.store.folder)), None)
    except (BucketNotFoundError, FolderNotFoundError) as error:
        return untried(str(error))
    return holds()


def _put(trial: Trial) -> Found:
    trial.store.put(trial.store.key("put"), _BODY)
    return holds()


def _delete(trial: Trial) -> Found:
    key = trial.store.key("delete")
    trial.store.put(key, _BODY)
    trial.store.delete([key])
    try:
        trial.store.head(key)
    except ObjectNotFoundError:
        return holds()
    except PermissionDeniedError:
        return holds("what is missing is answered as forbidden")
    return short(
        "an object is still there after its deletion was confirmed",
        cost="rm and gc free no room, and what was removed can be read",
        remedy="see whether the bucket keeps or locks its objects",
    )


def _get(trial: Trial) -> Found:
    if bytes(trial.store.get(trial.store.key("put"))) != _BODY:
        return _other_bytes("an object")
    return _missing(trial)


def _missing(trial: Trial) -> Found:
    """What is not there is told to be so."""
    try:
        trial.store.get(trial.store.key("missing"))
    except ObjectNotFoundError:
        return holds()
    except PermissionDeniedError as error:
        return short(
            f"what is missing is answered as forbidden: {error}",
            cost="a dataset that does not exist yet cannot be told from one without permission, "
            "and saving it fails",
            remedy="allow s3:ListBucket without the condition s3:prefix, or with one of "
            "StringLikeIfExists: see docs/servers.md",
        )
    return _other_bytes("an object that was never put")


def _other_bytes(what: str) -> Found:
    return short(
        f"other bytes came for {what} than were put",
        cost="nothing that is loaded can be relied on: checksums will refuse it",
        remedy="see what stands between this machine and the storage: a proxy, a gateway, a cache",
    )


def _range(trial: Trial) -> Found:
    key = trial.store.key("put")
    wanted = [(0, 1), (100, 356), (len(_BODY) - 1, len(_BODY))]
    return _ranged(trial, key, wanted, [_BODY[start:end] for start, end in wanted])


def _ranged(trial: Trial, key: str, wanted: list[tuple[int, int]], right: list[bytes]) -> Found:
    """Whether these ranges of an object hold these bytes."""
    try:
        found = trial.store.get_ranges(key, wanted)
        if [bytes(one) for one in found] == right:
            return holds()
        reason = "other bytes came than those of the range"
    except PermissionDeniedError:
        raise
    except StoreConnectionError as error:
        trial.store.get(key)  # this one arrives: so it is the answer to a range that does not
        reason = str(error)
    except StoreError as error:
        if error.is_transient:
            raise
        reason = str(error)
    return short(
        reason,
        cost="rows cannot be read alone: Dataset, shuffled loading and index=True fail",
        remedy="see whether a proxy or gateway drops the header Range",
    )


def read_something(trial: Trial) -> Found:
    """Get and range without writing: of an object that is there."""
    for info in itertools.islice(trial.store.list(), 200):
        if 0 < info.nbytes <= 2**20 and not info.odd:
            whole = bytes(trial.store.get(info.key))
            if len(whole) != info.nbytes:
                return _other_bytes(info.key)
            last = (info.nbytes - 1, info.nbytes)
            for found in (_ranged(trial, info.key, [last], [whole[-1:]]), _missing(trial)):
                if found.state != "holds":
                    return found
            return holds(f"tried with {info.key}")
    return untried("nothing lies here to be read", "save a dataset first, or check by writing")


def _create(trial: Trial) -> Found:
    key = trial.store.key("create")
    trial.store.put(key, b"first", create=True)
    try:
        trial.store.put(key, b"second", create=True)
    except ObjectExistsError:
        if bytes(trial.store.get(key)) == b"first":
            return holds()
    return short(
        "a create-only put wrote over an object that exists",
        cost="savers at work at once can overwrite each other's commits: rows get lost",
        remedy="let one saver at a time write here, or use a server that knows If-None-Match: *",
    )


def _race(trial: Trial) -> Found:
    effort = trial.effort
    end = trial.until(effort.race_seconds)
    rounds = 0
    for number in range(effort.rounds):
        if time.monotonic() > end:
            break
        winners = _creators(trial, trial.store.key(f"race-{number}"))
        if winners != 1:
            return short(
                f"of {effort.creators} creators of one key at once {winners} succeeded "
                f"(round {number + 1})",
                cost="savers that begin a dataset or commit at once can both believe that they "
                "did: rows get lost, or the dataset cannot be read",
                remedy="let one saver at a time write here, or use a server on which one wins",
            )
        rounds += 1
    if not rounds:
        return untried("no time was left")
    return holds(f"{rounds} times of {effort.creators} at once")


def _creators(trial: Trial, key: str) -> int:
    """How many of those who create a key at once are told that they did."""
    number = trial.effort.creators
    start = threading.Barrier(number)

    def create(creator: int) -> bool:
        start.wait(_TOGETHER)
        try:
            trial.store.put(key, b"creator %d" % creator, create=True)
        except ObjectExistsError:
            return False
        return True

    return sum(trial.all(create, range(number), at_once=number))


def _again(trial: Trial) -> Found:
    key = trial.store.key("again")
    trial.store.put(key, b"first", create=True)
    trial.store.delete([key])
    try:
        trial.store.put(key, b"second", create=True)
    except ObjectExistsError:
        return short(
            "a key that was deleted cannot be created again",
            cost="a dataset that was removed can never be saved again under its name",
            remedy="turn versioning of the bucket off, or save under another name",
        )
    return holds() if bytes(trial.store.get(key)) == b"second" else _other_bytes("a key made anew")


# What the library makes names of: letters of both cases, digits, '.', '_', '-', and of what length.
_NAMES = (
    "Rows.With-all_4",
    "rows.with-all_4",
    "a..b",
    "ends.",
    "con",
    "1e5-0.000-__",
    "n" * 128,
)
_LONGEST = f"{'n' * 128}/{'0' * 16}/objects/{'w' * 64}/{'a' * 16}-000000.h5"


def _literal(trial: Trial) -> Found:
    folder = trial.store.key("literal")
    keys = [f"{folder}/{name}/object.json" for name in _NAMES] + [f"{folder}/{_LONGEST}"]
    refused = [reason for key in keys if (reason := _refusal(trial, key))]
    wrong = [key for key in keys if not _is_own(trial, key)]
    listed = {info.key for info in trial.store.list(folder)}
    strange = sorted(listed - {*keys})
    if not wrong and not strange and listed == {*keys}:
        return holds()
    bad = (strange or wrong or sorted({*keys} - listed))[0].removeprefix(f"{folder}/")
    said = refused[0] if refused else f"{_shortened(bad)} is not the key that was put"
    return short(
        said,
        cost="datasets whose names differ in case or in such characters are taken for one, or "
        "cannot be saved",
        remedy="use short names of lower case letters, digits and '-', or another storage",
    )


def _refusal(trial: Trial, key: str) -> str:
    """Why a key cannot be put; "" where it can."""
    try:
        trial.store.put(key, key.encode())
    except PermissionDeniedError:
        raise
    except StoreError as error:
        if error.is_transient:
            raise
        return str(error)
    return ""


def _is_own(trial: Trial, key: str) -> bool:
    try:
        return bytes(trial.store.get(key)) == key.encode()
    except StoreError as error:
        if error.is_transient:
            raise
        return False


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"


def _fresh(trial: Trial) -> Found:
    folder = trial.store.key("fresh")
    keys = [f"{folder}/{number}" for number in range(trial.effort.fresh)]
    late, deleted = 0, 0
    for key in keys:
        trial.store.put(key, b"")
        late += key not in _listed(trial, folder)
    for key in keys:
        trial.store.delete([key])
        deleted += key in _listed(trial, folder)
    if not late and not deleted:
        return holds()
    return short(
        f"of {len(keys)} objects {late} were not listed right after they were put, {deleted} were "
        "listed after they were deleted",
        cost="a reader may not see the newest commits, and a saver may number its commit before "
        "one that exists",
        remedy="see whether a gateway or cache answers listings, and turn that off",
    )


def _listed(trial: Trial, folder: str) -> list[str]:
    return [info.key for info in trial.store.list(folder)]


def _pages(trial: Trial) -> Found:
    effort = trial.effort
    folder = trial.store.key("pages")
    keys = [f"{folder}/{number:06}" for number in range(effort.listed)]
    end = trial.end - (trial.end - time.monotonic()) / 4  # the rest is for listing them

    def put(key: str) -> bool:
        if time.monotonic() > end:
            return False
        trial.store.put(key, b"")
        return True

    done = trial.all(put, keys, at_once=_LOADING)
    there = [key for key, is_there in zip(keys, done, strict=True) if is_there]
    listed = _listed(trial, folder)
    missing, twice = len({*there} - {*listed}), len(listed) - len({*listed})
    if missing or twice:
        return short(
            f"of {len(there)} objects a listing lacks {missing}, and names {twice} twice",
            cost="readers miss commits, and gc takes what they name for garbage: do not run it",
            remedy="use another server or gateway, or report this to its makers",
        )
    if trial.is_s3 and listed != sorted(listed, key=str.encode):
        return short(
            "listings are not in the order of the keys",
            cost="of a long listing, which takes several calls, what is put meanwhile can hide "
            "other keys: readers may miss commits",
            remedy="use another server or gateway, or report this to its makers",
        )
    if len(there) < len(keys):
        return untried(
            f"{len(there)} objects are listed rightly, and no more could be put in the time",
            f"a listing has several pages from {effort.listed} on: give it more time (--seconds)",
        )
    return holds(f"{len(keys)} objects")


def _speed(trial: Trial) -> Found:
    puts, gets, lists = _small(trial)
    up, down = _moved(trial)
    return holds(
        f"median of a small PUT {_ms(puts)}, GET {_ms(gets)}, LIST {_ms(lists)}; {up:.0f} MB/s up "
        f"({_SAVING} at once), {down:.0f} MB/s down ({_LOADING} at once)"
    )


def _small(trial: Trial) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each of some small puts, gets and listings, one after another."""
    folder = trial.store.key("small")
    end = trial.until(trial.effort.speed_seconds)
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    for number in range(_SMALL):
        key = f"{folder}/{number}"
        found[0].append(_seconds(lambda key=key: trial.store.put(key, _BODY)))  # type: ignore[misc]
        found[1].append(_seconds(lambda key=key: trial.store.get(key)))  # type: ignore[misc]
        found[2].append(_seconds(lambda: _listed(trial, folder)))
        if time.monotonic() > end:
            break
    return found


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _moved(trial: Trial) -> tuple[float, float]:
    """MB/s of puts by as many threads as a saver has, and of reads by as many as a loader has."""
    seconds, nbytes = trial.effort.speed_seconds, trial.effort.object_nbytes
    body = _BODY * (nbytes // len(_BODY))
    keys = [trial.store.key(f"large-{number}") for number in range(_LOADING)]
    written: list[str] = []

    def up(key: str) -> int:
        if written and time.monotonic() > end:
            return 0
        trial.store.put(key, body)
        written.append(key)
        return len(body)

    def down(key: str) -> int:
        moved = 0
        while not moved or time.monotonic() < end:
            for piece in trial.store.stream(key, 0, len(body)):
                moved += memoryview(piece).nbytes
                if time.monotonic() > end:
                    break
        return moved

    end = trial.until(seconds)
    up_rate = _rate(trial, up, keys, _SAVING)
    end = trial.until(seconds)
    reads = [key for key, _ in zip(itertools.cycle(written), keys, strict=False)]
    return up_rate, _rate(trial, down, reads, _LOADING)


def _rate(trial: Trial, move: Callable[[str], int], keys: Sequence[str], at_once: int) -> float:
    began = time.perf_counter()
    moved = sum(trial.all(move, keys, at_once=at_once))
    return moved / (time.perf_counter() - began) / 1e6


def _ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms"


def _clock(trial: Trial) -> Found:
    before = datetime.now(timezone.utc)
    there = trial.store.now(trial.store.key("clock"))
    return judged_clock(there, before, datetime.now(timezone.utc))


def judged_clock(there: datetime, before: datetime, after: datetime) -> Found:
    """Whether the store's clock, looked at between two moments of ours, is as ours."""
    ahead = there - after if there > after else min(timedelta(0), there - before)
    if abs(ahead) <= SKEW:
        return holds(f"{max(0.0, abs(ahead.total_seconds()) - 1):.0f} s apart")
    word = "ahead of" if ahead > timedelta(0) else "behind"
    return short(
        f"the storage's clock is {abs(ahead.total_seconds()):.0f} s {word} this machine's",
        cost="from 15 minutes on S3 servers refuse every request; times in `log` are wrong",
        remedy="set both clocks by NTP",
    )


_PLACE = ("reached", "bucket")
_WRITING = ("put", "delete")  # what needs only the first leaves little where nothing can be deleted
_KEPT = ("versioning", "lock")  # what is deleted stays then: little is tried

LIST = Point(
    "list",
    allowed(
        _list,
        "allow s3:ListBucket on the bucket (a folder: reading it)",
        "no dataset can be found, loaded or saved",
    ),
    needs=_PLACE,
    writes=False,
)
READ = Point(
    "read",
    allowed(
        read_something, "allow s3:GetObject below the storage's prefix", "nothing can be loaded"
    ),
    needs=("list",),
    writes=False,
)
CLOCK = Point("clock", _clock, needs=_WRITING)
VERBS = (
    Point(
        "put",
        allowed(
            _put,
            "allow s3:PutObject below the storage's prefix (a folder: writing to it)",
            "nothing can be saved",
        ),
        needs=_PLACE,
    ),
    Point(
        "delete",
        allowed(
            _delete,
            "allow s3:DeleteObject below the storage's prefix; what this check has put stays there",
            "rm and gc fail, and what savers that died have stored stays",
        ),
        needs=("put",),
    ),
    Point(
        "get",
        allowed(
            _get, "allow s3:GetObject below the storage's prefix", "nothing can be loaded or saved"
        ),
        needs=("put",),
    ),
    Point("range", _range, needs=("get",)),
    Point(
        "create-only",
        allowed(
            _create,
            "allow a put with If-None-Match: * (some policies refuse it)",
            "no commit can be published: nothing can be saved",
        ),
        needs=("get",),
    ),
)
PROMISES = (
    Point("one creator wins", _race, needs=("create-only", "delete")),
    Point("created again", _again, needs=("create-only", "delete")),
    Point("fresh listings", _fresh, needs=("list", *_WRITING)),
    Point("literal keys", _literal, needs=("get", "fresh listings")),
)
# The last one: it takes what time is left.
PAGES = Point("whole listings", _pages, needs=("fresh listings",), unless=_KEPT)
SPEED = Point("speed", _speed, needs=("list", "range", "delete"), unless=_KEPT)
