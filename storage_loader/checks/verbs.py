"""Points of each verb of a store, and of the permission for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

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

BODY = bytes(range(256)) * 4  # of what is put


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
    trial.store.put(trial.store.key("put"), BODY)
    return holds()


def _delete(trial: Trial) -> Found:
    key = trial.store.key("delete")
    trial.store.put(key, BODY)
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
    if bytes(trial.store.get(trial.store.key("put"))) != BODY:
        return other_bytes("an object")
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
    return other_bytes("an object that was never put")


def other_bytes(what: str) -> Found:
    """What was read is not what was put."""
    return short(
        f"other bytes came for {what} than were put",
        cost="nothing that is loaded can be relied on: checksums will refuse it",
        remedy="see what stands between this machine and the storage: a proxy, a gateway, a cache",
    )


def _range(trial: Trial) -> Found:
    key = trial.store.key("put")
    wanted = [(0, 1), (100, 356), (len(BODY) - 1, len(BODY))]
    return _ranged(trial, key, wanted, [BODY[start:end] for start, end in wanted])


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
                return other_bytes(info.key)
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


_PLACE = ("reached", "bucket")
WRITING = ("put", "delete")  # what needs only the first leaves little where nothing can be deleted
KEPT = ("versioning", "lock")  # what is deleted stays then: little is tried

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
