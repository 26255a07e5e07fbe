"""Points of what a store promises beyond its verbs: who wins, and what is listed."""

from __future__ import annotations

import threading
import time

from ..errors import ObjectExistsError, PermissionDeniedError, StoreError
from .trial import Point, Trial
from .value import Found, holds, short, untried
from .verbs import KEPT, WRITING, other_bytes

_TOGETHER = 10.0  # seconds until all creators have a thread
_PUTTING = 32  # puts at once


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
    return holds() if bytes(trial.store.get(key)) == b"second" else other_bytes("a key made anew")


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
        late += key not in listed_keys(trial, folder)
    for key in keys:
        trial.store.delete([key])
        deleted += key in listed_keys(trial, folder)
    if not late and not deleted:
        return holds()
    return short(
        f"of {len(keys)} objects {late} were not listed right after they were put, {deleted} were "
        "listed after they were deleted",
        cost="a reader may not see the newest commits, and a saver may number its commit before "
        "one that exists",
        remedy="see whether a gateway or cache answers listings, and turn that off",
    )


def listed_keys(trial: Trial, folder: str) -> list[str]:
    """The keys below a folder, as the store lists them."""
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

    done = trial.all(put, keys, at_once=_PUTTING)
    there = [key for key, is_there in zip(keys, done, strict=True) if is_there]
    listed = listed_keys(trial, folder)
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


PROMISES = (
    Point("one creator wins", _race, needs=("create-only", "delete")),
    Point("created again", _again, needs=("create-only", "delete")),
    Point("fresh listings", _fresh, needs=("list", *WRITING)),
    Point("literal keys", _literal, needs=("get", "fresh listings")),
)
# The last one: it takes what time is left.
PAGES = Point("whole listings", _pages, needs=("fresh listings",), unless=KEPT)
