"""Commits: one small JSON object each, written last, that makes rows visible. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import canonical_json
from ..errors import FormatError
from ..layout import ObjectLayout
from ..schema import Schema

FORMAT = 1

_ID = re.compile(r"(\d{12})-([A-Za-z0-9][A-Za-z0-9._-]*)-(\d{6})", re.ASCII)
_KEY = re.compile(r"objects/[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\.h5")
_HEX = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, order=True)
class CommitId:
    """`<seq>-<writer>-<number>`; commits are ordered by it."""

    seq: int  # one more than the highest that was listed before it was published
    writer: str
    number: int  # of this writer's commits

    def __post_init__(self) -> None:
        if not (0 <= self.seq < 10**12 and 0 <= self.number < 10**6):
            raise FormatError(
                f"commit id {self}: 12 digits, writer, 6 digits; after a million commits "
                "make another saver"
            )

    @classmethod
    def parse(cls, text: object) -> CommitId | None:
        """The id, or None for text that is none."""
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        return cls(int(match[1]), match[2], int(match[3])) if match else None

    def __str__(self) -> str:
        return f"{self.seq:012d}-{self.writer}-{self.number:06d}"


@dataclass(frozen=True)
class StoredObject:
    """One object of a commit."""

    key: str  # relative to the dataset
    checksum: int  # xxh3 of all its bytes
    blocks_checksum: int  # xxh3 of its checksum table, which ranges of it are verified by
    layout: ObjectLayout

    @property
    def rows(self) -> int:
        """Rows in the object."""
        return self.layout.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return self.layout.nbytes


@dataclass(frozen=True)
class Commit:
    """Objects published together, and the commits whose place they take."""

    schema_hash: str
    objects: tuple[StoredObject, ...] = ()
    replaces: tuple[CommitId, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)  # for people; readers ignore it

    @property
    def num_rows(self) -> int:
        """Rows of all objects."""
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
                    "blocks_checksum": [f"{o.blocks_checksum:016x}" for o in self.objects],
                    "layout": indices,
                },
                "info": dict(self.info),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, schema: Schema, *, place: str) -> Commit:
        """Raises `FormatError`, naming `place`, for bytes that are no commit of `schema`."""
        value = read_json(data, ("schema", "replaces", "layouts", "objects"), place=place)
        if value["schema"] != schema.hash:
            raise FormatError(f"{place}: written for another schema ({value['schema']!r})")
        replaces = [CommitId.parse(text) for text in _list(value["replaces"], "replaces", place)]
        if None in replaces:
            raise FormatError(f"{place}: 'replaces' holds what is no commit id")
        return cls(
            schema.hash,
            tuple(_objects(value, schema, place)),
            tuple(i for i in replaces if i is not None),
            value.get("info") if isinstance(value.get("info"), dict) else {},  # type: ignore[arg-type]
        )


def read_json(data: bytes, required: Sequence[str], *, place: str) -> dict[str, Any]:
    """A JSON object of this format with exactly the `required` keys, `format` and `info`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{place}: a JSON object is needed")
    if value.get("format") != FORMAT or isinstance(value.get("format"), bool):
        raise FormatError(
            f"{place}: format {value.get('format')!r}; this version of storage_loader reads "
            f"format {FORMAT}: upgrade it"
        )
    missing = [key for key in required if key not in value]
    unknown = sorted(set(value) - {*required, "format", "info"})
    if missing or unknown:
        raise FormatError(f"{place}: missing keys {missing}, unknown keys {unknown}")
    return value


def live_commits(commits: Mapping[CommitId, Commit]) -> list[CommitId]:
    """The commits whose rows are the dataset, in their order.

    A commit is not live where another replaces it. Of two that replace a common commit the
    later takes effect and the earlier is as if it had never been published.
    """
    replaced: set[CommitId] = set()
    void: set[CommitId] = set()
    for commit_id in sorted(commits, reverse=True):
        replaces = commits[commit_id].replaces
        if replaced.isdisjoint(replaces):
            replaced.update(replaces)
        else:
            void.add(commit_id)
    return [i for i in sorted(commits) if i not in replaced and i not in void]


def _layout_json(layout: ObjectLayout) -> bytes:
    return canonical_json(
        {
            "offsets": {name: c.offset for name, c in layout.columns.items()},
            "block_rows": {name: c.block_rows for name, c in layout.columns.items()},
            "checksums": layout.checksums_offset,
        }
    )


def _list(value: object, name: str, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"{place}: {name!r} is not a list")
    return value


def _count(value: object, name: str, place: str, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise FormatError(f"{place}: {name} is {value!r}, not a whole number from {least} up")
    return value


def _counts(value: object, schema: Schema, name: str, place: str, *, least: int) -> dict[str, int]:
    if not isinstance(value, dict) or set(value) != set(schema.names):
        raise FormatError(f"{place}: a layout's {name!r} does not name the schema's attributes")
    return {n: _count(value[n], f"{name} of {n!r}", place, least=least) for n in schema.names}


def _objects(value: dict[str, Any], schema: Schema, place: str) -> list[StoredObject]:
    columns = value["objects"]
    names = ("key", "rows", "nbytes", "checksum", "blocks_checksum", "layout")
    if not isinstance(columns, dict) or set(columns) != set(names):
        raise FormatError(f"{place}: 'objects' does not hold the columns {', '.join(names)}")
    lengths = {len(_list(columns[name], name, place)) for name in names}
    if len(lengths) > 1:
        raise FormatError(f"{place}: the columns of 'objects' differ in length")
    layouts = []
    for item in _list(value["layouts"], "layouts", place):
        if not isinstance(item, dict) or set(item) != {"offsets", "block_rows", "checksums"}:
            raise FormatError(f"{place}: a layout holds offsets, block_rows and checksums")
        layouts.append(
            (
                _counts(item["offsets"], schema, "offsets", place, least=0),
                _counts(item["block_rows"], schema, "block_rows", place, least=1),
                _count(item["checksums"], "checksums", place),
            )
        )
    known: dict[tuple[int, int, int], ObjectLayout] = {}

    def layout(index: int, rows: int, nbytes: int) -> ObjectLayout:
        if (index, rows, nbytes) not in known:
            if index >= len(layouts):
                raise FormatError(f"{place}: there is no layout {index}")
            offsets, blocks, checksums_offset = layouts[index]
            try:
                known[index, rows, nbytes] = ObjectLayout.of(
                    schema,
                    rows=rows,
                    nbytes=nbytes,
                    offsets=offsets,
                    blocks=blocks,
                    checksums_offset=checksums_offset,
                )
            except FormatError as error:
                raise FormatError(f"{place}: {error}") from error
        return known[index, rows, nbytes]

    objects = []
    for row in zip(*(columns[name] for name in names), strict=True):
        key, rows, nbytes, checksum, blocks_checksum, index = row
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise FormatError(f"{place}: {key!r} is no key of an object")
        for text in (checksum, blocks_checksum):
            if not isinstance(text, str) or not _HEX.fullmatch(text):
                raise FormatError(f"{place}: checksum {text!r} of {key} is not 16 hex digits")
        objects.append(
            StoredObject(
                key,
                int(checksum, 16),
                int(blocks_checksum, 16),
                layout(
                    _count(index, f"layout of {key}", place),
                    _count(rows, f"rows of {key}", place, least=1),
                    _count(nbytes, f"nbytes of {key}", place, least=1),
                ),
            )
        )
    return objects
