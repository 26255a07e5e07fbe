"""A page of a listing, as S3 writes it, read in one pass and without a tree of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.parsers import expat

from typing_extensions import Buffer

_ROOT = "ListBucketResult"
_KEPT_OF_PAGE = {"EncodingType", "IsTruncated", "NextContinuationToken"}
_KEPT_OF_ENTRY = {"Key", "LastModified", "Prefix", "Size"}
_DEEPEST = 8  # an owner's name lies three elements below the root
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?Z", re.ASCII)
_SIZE = re.compile(r"\d{1,19}", re.ASCII)
_UNKNOWN = datetime.fromtimestamp(0, timezone.utc)


class Listed(NamedTuple):
    """An object as a listing names it."""

    name: str  # its key in the bucket
    nbytes: int
    modified: datetime


@dataclass(frozen=True)
class Page:
    """What one answer to `ListObjectsV2` says."""

    objects: list[Listed]
    folders: list[str]  # each stands for the objects in it, and ends in "/"
    following: str | None  # token of the page after this one; None: this is the last

    @classmethod
    def parse(cls, body: Buffer) -> Page:
        """`ValueError` for what is no such page, and for a document that declares its type.

        Entities are declared there; S3 declares none.
        """
        document = _Document()
        try:
            document.read(body)
        except expat.ExpatError as error:
            raise ValueError(f"a listing that is no XML: {error}") from error
        about = document.about
        is_coded = about.get("EncodingType") == "url"
        is_truncated = about.get("IsTruncated", "").lower() == "true"
        return cls(
            [_listed(entry, is_coded) for entry in document.contents],
            [_name(entry, "Prefix", is_coded) for entry in document.prefixes],
            about.get("NextContinuationToken", "") if is_truncated else None,
        )


def _listed(entry: dict[str, str], is_coded: bool) -> Listed:
    size = entry.get("Size", "")
    if not _SIZE.fullmatch(size):
        raise ValueError(f"an object of {size[:40]!r} bytes")
    modified = _time(entry["LastModified"]) if "LastModified" in entry else _UNKNOWN
    return Listed(_name(entry, "Key", is_coded), int(size), modified)


def _name(entry: dict[str, str], element: str, is_coded: bool) -> str:
    text = entry.get(element, "")
    if not text:
        raise ValueError("a listing that leaves out a name")
    return unquote_plus(text) if is_coded else text


def _time(text: str) -> datetime:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"an object of the time {text[:40]!r}")
    seconds, fraction = found.groups()
    return datetime.fromisoformat(f"{seconds}.{fraction or '':0<6}+00:00")


class _Document:
    """The texts that matter of the elements below the root, and of those below each entry."""

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.contents: list[dict[str, str]] = []
        self.prefixes: list[dict[str, str]] = []

    def read(self, body: Buffer) -> None:
        text: list[str] = []  # of the element that began last, in pieces
        entry: dict[str, str] = {}
        depth = 0

        def start(name: str, attributes: object) -> None:
            nonlocal depth
            depth += 1
            text.clear()
            if depth == 1 and name != _ROOT:
                raise ValueError(f"a listing that is {name[:40]!r}")
            if depth > _DEEPEST:
                raise ValueError(f"a listing of elements in more than {_DEEPEST} elements")

        def end(name: str) -> None:
            nonlocal depth, entry
            if depth == 3 and name in _KEPT_OF_ENTRY:
                entry[name] = "".join(text)
            elif depth == 2:
                if name == "Contents":
                    self.contents.append(entry)
                elif name == "CommonPrefixes":
                    self.prefixes.append(entry)
                elif name in _KEPT_OF_PAGE:
                    self.about[name] = "".join(text)
                entry = {}
            depth -= 1

        def refuse(*declared: object) -> None:
            raise ValueError("a listing that declares a document type")

        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = refuse
        parser.StartElementHandler = start
        parser.CharacterDataHandler = text.append
        parser.EndElementHandler = end
        parser.Parse(body, True)
