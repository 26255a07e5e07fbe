"""Claims: each number of a named writer's commits is published once, by whichever attempt. Pure.

A job that is started again cannot know whether the attempt before it is dead or only slow. So a
saver with a given name puts a claim before a commit, create-only: `<number>.claim`, which holds
the commit's id. Of two attempts one gets the number, and the other learns it. An attempt that
finds the last claim without its commit bars it: it puts a commit that nobody sees under the
claimed id, create-only too. Either the barrier gets that key, and the slow attempt's put fails,
or the commit was there first, and its rows count. What was published is never taken back.

A claim says nothing of whether its commit was ever published. So before `gc` deletes a commit of a
named writer it puts the writer's mark beside the claims, `committed.claim`: a refresh under this
name was done, and is not to be done again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..config import canonical_json
from ..errors import FormatError
from ..keywords import shown
from ..schema import Schema
from .commits import FORMAT, Commit, CommitId, read_json

CLAIM_LIMIT = 2**16  # bytes of a claim
MARK = canonical_json({"format": FORMAT})  # body of a writer's mark

_AHEAD = 10**6  # of what is listed: later commits may have been collected since

_NAME = re.compile(r"(\d{6})\.claim", re.ASCII)


@dataclass(frozen=True)
class Resumed:
    """What there is under a writer's name."""

    number: int  # of its next commit
    rows: int  # committed, and seen by readers
    refreshed: bool  # a commit of it was published: a refresh is not to be done again


def claim_key(commit_id: CommitId) -> str:
    """Where the claim of a writer's number lies, relative to the dataset."""
    return f"objects/{commit_id.writer}/{commit_id.number:06d}.claim"


def mark_key(writer: str) -> str:
    """What says that a writer has committed once its commits are gone, relative to the dataset."""
    return f"objects/{writer}/committed.claim"


def claim_body(commit_id: CommitId, attempt: str) -> bytes:
    """The attempt stands there so that two attempts never take one claim for their own."""
    return canonical_json({"format": FORMAT, "commit": str(commit_id), "attempt": attempt})


def last_claim(keys: Iterable[str]) -> str | None:
    """Of the keys below a writer's folder that of its highest claim."""
    claims = [key for key in keys if _NAME.fullmatch(key.rsplit("/", 1)[-1])]
    return max(claims, default=None)


def claimed_id(data: bytes, key: str, *, place: str) -> CommitId:
    """The commit that a claim is for; `FormatError`, naming `place`, where it is none."""
    value = read_json(data, ("commit", "attempt"), place=place)
    commit_id = CommitId.parse(value["commit"])
    if commit_id is None or not key.endswith(f"/{claim_key(commit_id)}"):
        raise FormatError(f"{place}: {shown(value['commit'])} is no commit that this claims")
    return commit_id


def check_claim(claimed: CommitId, listed: Iterable[CommitId], *, place: str) -> None:
    """Raise `FormatError` where no saver can have made this claim beside these commits.

    A barrier under its id would take back what is published under another id of that number, or
    leave no number to the commits that follow.
    """
    others = [i for i in listed if (i.writer, i.number) == (claimed.writer, claimed.number)]
    if others and claimed not in others:
        raise FormatError(f"{place}: it claims {claimed}, and {others[0]} is published")
    if claimed.seq > _AHEAD + max((i.seq for i in listed), default=0):
        raise FormatError(f"{place}: it claims {claimed}, far beyond all commits; remove the claim")


def barrier(schema: Schema, commit_id: CommitId) -> Commit:
    """A commit that nobody sees, under an id that nobody may use any more: it replaces itself."""
    return Commit(schema.hash, replaces=(commit_id,))
