"""Commits: one small JSON object each, written last, that makes rows visible. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from ..codecs import Codec
from ..config import canonical_json
from ..errors import FormatError, StorageLoaderError
from ..keywords import shown
from ..layout import ObjectLayout, Outline
from ..schema import Schema
from ..store import xxh3
from .bounds import Extreme
from .objects import StoredObject, StoredObjects
from .parse import parse_list, parse_objects

COMMIT_LIMIT = 2**28  # bytes of a commit; a million objects take 111 MB
FORMAT = 1
LAST_SEQ = 10**11 - 1  # a thousand commits a second for three years; what is above is foreign

RowOrder = Literal["commit", "writer"]
ROW_ORDERS: tuple[RowOrder, ...] = ("commit", "writer")

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a character, as JSON escapes it
_ID = re.compile(r"(0\d{11})-([A-Za-z0-9][A-Za-z0-9._-]*)-(\d{6})", re.ASCII)


@dataclass(frozen=True, order=True)
class CommitId:
    """`<seq>-<writer>-<number>`; commits are ordered by it."""

    seq: int  # one more than the highest that was listed before it was published
    writer: str
    number: int  # of this writer's commits

    def __post_init__(self) -> None:
        if not (0 <= self.seq <= LAST_SEQ and 0 <= self.number < 10**6):
            raise FormatError(
                f"commit id {self}: 0 and 11 digits, writer, 6 digits; after a million commits "
                "make another saver, under another name"
            )

    @classmethod
    def parse(cls, text: object) -> CommitId | None:
        """The id, or None for text that is none."""
        return _parsed_id(text) if isinstance(text, str) else None

    def __str__(self) -> str:
        return f"{self.seq:012d}-{self.writer}-{self.number:06d}"


@lru_cache(maxsize=2**12)  # a refresh names all commits there are: 1,000 of them, 500,000 names
def _parsed_id(text: str) -> CommitId | None:
    match = _ID.fullmatch(text)
    return CommitId(int(match[1]), match[2], int(match[3])) if match else None


@dataclass(frozen=True)
class Commit:
    """Objects published together, and the commits whose place they take."""

    schema_hash: str
    objects: Sequence[StoredObject] = ()
    replaces: tuple[CommitId, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)  # for people; readers ignore it
    # Units and descriptions that its objects show in HDF5, by attribute; None: those of
    # dataset.json, which another saver may have made after these objects.
    notes: Mapping[str, Mapping[str, str]] | None = None
    digest: int = field(default=0, compare=False)  # xxh3 of its bytes, where it was read
    # JSON of `least` and `most`, whatever stands there, where it was read for these.
    extremes: bytes = field(default=b"[null,null]", compare=False)

    @property
    def num_rows(self) -> int:
        """Rows of all objects."""
        if isinstance(self.objects, StoredObjects):
            return sum(self.objects.rows.tolist())
        return sum(o.rows for o in self.objects)

    def to_bytes(self) -> bytes:
        """The commit as docs/format.md describes it: objects in columns, each layout once."""
        layouts: dict[bytes, int] = {}
        texts = [_layout_json(o.layout) for o in self.objects]
        indices = [layouts.setdefault(text, len(layouts)) for text in texts]
        return canonical_json(
            {
                "format": FORMAT,
                "schema": self.schema_hash,
                "replaces": [str(i) for i in self.replaces],
                "layouts": [json.loads(text) for text in layouts],
                "objects": {
                    "key": [o.key for o in self.objects],
                    "rows": [o.rows for o in self.objects],
                    "nbytes": [o.nbytes for o in self.objects],
                    "checksum": [f"{o.checksum:016x}" for o in self.objects],
                    "directory_checksum": [f"{o.directory_checksum:016x}" for o in self.objects],
                    "layout": indices,
                    **_directories(self.objects),
                    **_extremes(self.objects),
                },
                "info": dict(self.info),
                **({} if self.notes is None else {"notes": self.notes}),
            }
        )

    @classmethod
    def from_bytes(
        cls, data: bytes, schema: Schema, *, place: str, extremes: bool = False
    ) -> Commit:
        """Raises `FormatError`, naming `place`, for bytes that are no commit of `schema`."""
        value = read_json(data, ("schema", "replaces", "layouts", "objects"), place=place)
        if value["schema"] != schema.hash:
            raise FormatError(
                f"{place}: written for another schema ({shown(value['schema'])}); two savers made "
                "the dataset at once with different attributes, which the storage should have kept "
                "one of them from (storage-loader check tells whether it does), or somebody wrote "
                "here by hand; storage-loader rm removes the dataset, so that it can be saved again"
            )
        replaces = [
            CommitId.parse(text) for text in parse_list(value["replaces"], "replaces", place)
        ]
        if None in replaces:
            raise FormatError(f"{place}: 'replaces' holds what is no commit id")
        return cls(
            schema.hash,
            parse_objects(value["objects"], value["layouts"], schema, place),
            tuple(i for i in replaces if i is not None),
            value.get("info") if isinstance(value.get("info"), dict) else {},  # type: ignore[arg-type]
            _notes(value.get("notes"), schema, place),
            xxh3(data),
            _stated_extremes(value["objects"]) if extremes else cls.extremes,
        )


def _stated_extremes(columns: Mapping[str, Any]) -> bytes:
    """As text, which takes a third of the memory."""
    with suppress(RecursionError):  # it is nothing that belongs there
        return json.dumps([columns.get("least"), columns.get("most")]).encode()
    return Commit.extremes


def _notes(value: object, schema: Schema, place: str) -> dict[str, dict[str, str]] | None:
    if value is None:
        return None
    try:
        return schema.noted(value).notes
    except StorageLoaderError as error:
        raise FormatError(f"{place}: {error}") from error


def read_json(data: bytes, required: Sequence[str], *, place: str) -> dict[str, Any]:
    """A JSON object of this format with the `required` keys, and perhaps others.

    What stands under keys that are not known means nothing to a reader, unless `requires` names
    something: without knowing that, a reader would take the rest for what it is not. Raises
    `FormatError`.
    """
    try:
        # As text: json would take bytes for UTF-16 or UTF-32, too.
        value = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
        )
        if _HALF.search(data):  # unless the other half follows
            _check_text(value)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{place}: a JSON object is needed")
    if value.get("format") != FORMAT or isinstance(value.get("format"), bool):
        raise FormatError(
            f"{place}: format {shown(value.get('format'))}; this version of storage_loader reads "
            f"format {FORMAT}: upgrade it"
        )
    requires = value.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        raise FormatError(f"{place}: 'requires' is not a list of names")
    if requires:
        raise FormatError(
            f"{place}: it requires {shown(requires)}, which this version of storage_loader does "
            "not know: upgrade it"
        )
    missing = [key for key in required if key not in value]
    if missing:
        raise FormatError(f"{place}: missing keys {missing}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; other readers may take the first of two values under one key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _check_text(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"a text holds half a character, {half!a}") from error


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is larger than any number that can be read")
    return number


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def live_commits(commits: Mapping[CommitId, Commit]) -> list[CommitId]:
    """The commits whose rows are the dataset, in their order.

    A commit is not live where another replaces it, or it itself. Of two that replace a common
    commit the later takes effect and the earlier is as if it had never been published; so is of
    two with one writer and number the later.
    """
    replaced: set[CommitId] = set()
    first: dict[tuple[str, int], CommitId] = {}
    for commit_id in sorted(commits):
        first.setdefault((commit_id.writer, commit_id.number), commit_id)
    void = set(commits) - set(first.values())
    for commit_id in sorted(first.values(), reverse=True):
        replaces = commits[commit_id].replaces
        if replaced.isdisjoint(replaces):
            replaced.update(replaces)
        else:
            void.add(commit_id)
    return [i for i in sorted(commits) if i not in replaced and i not in void]


def in_row_order(ids: Sequence[CommitId], order: RowOrder) -> list[CommitId]:
    """Live commits as their rows lie; `ids` ascend.

    "writer": what each writer saved, one after another, whenever it was committed. Of a writer's
    commits the number counts, as an attempt that was taken for dead may have had a lower seq.
    """
    return sorted(ids, key=lambda i: (i.writer, i.number)) if order == "writer" else [*ids]


def _layout_json(layout: ObjectLayout | Outline) -> bytes:
    """What the commit says of it; nothing that differs from object to object."""
    if isinstance(layout, Outline):
        return _own_json(layout.blocks, layout.codecs)
    columns = layout.columns.items()
    blocks = {name: c.block_items for name, c in columns}
    if layout.has_places:
        return _own_json(blocks, {name: c.codec for name, c in columns if c.codec is not None})
    offsets = {name: c.offset for name, c in columns}
    return canonical_json(
        {"blocks": blocks, "offsets": offsets, "directory": layout.directory_offset}
    )


def _own_json(blocks: Mapping[str, int], codecs: Mapping[str, Codec]) -> bytes:
    """Of objects whose directories say how they lie."""
    coded = {name: codec.to_json() for name, codec in codecs.items()}
    return canonical_json({"blocks": dict(blocks), **({"codecs": coded} if coded else {})})


def _directories(objects: Sequence[StoredObject]) -> dict[str, list[int]]:
    """Columns of what differs from object to object."""
    own = [o for o in objects if isinstance(o.layout, Outline) or o.layout.has_places]
    if not own:
        return {}
    ranges = [o.layout.directory_range for o in own]
    return {
        "directory": [start for start, _ in ranges],
        "directory_nbytes": [end - start for start, end in ranges],
        "decoded": [o.decoded for o in own],
    }


def _extremes(objects: Sequence[StoredObject]) -> dict[str, dict[str, list[Extreme]]]:
    """By attribute, columns of the smallest and the largest values."""
    names = objects[0].extremes if objects else ()
    if not names:
        return {}
    return {
        what: {name: [o.extremes[name][place] for o in objects] for name in names}
        for place, what in enumerate(("least", "most"))
    }
