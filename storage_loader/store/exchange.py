"""A request and its plain answer.

Only plain answers are taken: HTTP/1, a small head, and a body whose length stands in it. All else
is `Fate.STRANGE`: who asked may ask again by a client that knows the whole of HTTP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..ranges import Range
from .guarded_http import REFUSAL

EMPTY = memoryview(b"")

_FIRST_LINE = re.compile(rb"HTTP/1\.([01]) ([2-5][0-9]{2})(?=[ \r]|$)")
_RANGE = re.compile(rb"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:[0-9]{1,18}|[*])")
_UNUSUAL = {b"transfer-encoding", b"content-encoding", b"upgrade"}
_COUNTING = {b"content-length", b"content-range", b"last-modified", b"connection", *_UNUSUAL}
_NUMBER = re.compile(rb"[0-9]{1,18}")


class Fate(Enum):
    """What became of an exchange."""

    UNASKED = "unasked"  # nothing was sent: no connection could be made, or another one failed
    UNREACHED = "unreached"  # the same, since no connection stood in time
    ANSWERED = "answered"  # plainly, be it by a refusal
    TOO_LARGE = "too large"  # `nbytes` are more than the limit
    LATE = "late"
    CUT = "cut"  # the connection ended in the answer
    STRANGE = "strange"  # no plain answer came


class Head(NamedTuple):
    """The head of a plain answer."""

    status: int
    nbytes: int
    range: Range | None
    modified: bytes
    is_kept: bool  # the connection, for another request

    @classmethod
    def parse(cls, text: bytes) -> Head | None:
        """None where it is none of a plain answer."""
        first = _FIRST_LINE.match(text)
        fields: dict[bytes, bytes] = {}
        for line in text.split(b"\r\n"):
            name, _, value = line.partition(b":")
            name = name.lower()
            if name in _COUNTING:
                if name in fields or name in _UNUSUAL:
                    return None
                fields[name] = value.strip()
        length = fields.get(b"content-length", b"")
        if not first or not _NUMBER.fullmatch(length):
            return None
        minor, status = first.groups()
        usual = b"keep-alive" if minor == b"1" else b"close"
        part = _RANGE.fullmatch(fields.get(b"content-range", b""))
        return cls(
            int(status),
            int(length),
            (int(part[1]), int(part[2]) + 1) if part else None,
            fields.get(b"last-modified", b""),
            fields.get(b"connection", usual).lower() == b"keep-alive",
        )


def status_of(text: bytes) -> int:
    """That of HTTP in any answer; 0 where it has none."""
    first = _FIRST_LINE.match(text)
    return int(first[2]) if first else 0


@dataclass(eq=False, slots=True)
class Exchange:
    """A request, and what came of it."""

    request: bytes  # all of it, and not much
    limit: int  # bytes that the answer's body may have
    range: Range | None = None  # that is asked for; None: all
    fate: Fate = Fate.UNASKED
    status: int = 0  # of HTTP; 0: none came
    nbytes: int = 0  # of the answer's body, as its head says
    modified: str = ""  # when, as the head says
    body: memoryview = EMPTY  # read-only
    error: BaseException | None = None  # of ours, while it was received
    since: float = 0.0  # when it was begun first; 0: not yet

    @property
    def is_granted(self) -> bool:
        return self.fate is Fate.ANSWERED and self.status < 300

    @property
    def is_put(self) -> bool:
        return self.request.startswith(b"PUT ")

    @property
    def is_head(self) -> bool:
        """Whether its answer has no body, only the length of one."""
        return self.request.startswith(b"HEAD ")

    def takes(self, head: Head) -> bool:
        """Whether an answer has what was asked for, as far as there is any, or refuses it in a few
        words.
        """
        if head.status >= 300:
            return head.nbytes <= REFUSAL
        if self.range is None:
            return head.status == 200 or self.is_put
        start, end = self.range
        if head.status != 206 or head.range is None:
            return False
        return head.range[0] == start and head.nbytes == head.range[1] - start <= end - start
