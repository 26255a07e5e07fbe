"""What one row of a dataset holds: named, typed values, and the arrays that store them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .codecs import Codec
from .errors import SchemaError
from .keywords import checked_init, nearest, reject_unknown, shown, whole_repr
from .process import cached_property

DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            "bool",
            *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
            *("float16", "float32", "float64", "complex64", "complex128"),
        )
    },
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Storable numbers by name; all little-endian on storage and native in memory."""

TEXTS = ("bytes", "str", "json")
"""Dtypes whose rows are any number of bytes: as they are, UTF-8, or JSON in UTF-8."""

END = np.dtype(np.int64)  # of a row of no fixed size: how many items there are up to its end

ATTRIBUTE_KEYS = ("name", "dtype", "shape", "unit", "description")  # in JSON
CONFIG_KEYS = ("compressor",)  # in a config's; a dataset has none
_LONGEST = {"unit": 64, "description": 4096}  # characters
_NO_NOTE = re.compile("[\0\ud800-\udfff]")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,126}[A-Za-z0-9_.\-]|[A-Za-z0-9_]")
_MAX_ROW_NBYTES = 2**40  # keeps every product of the layout far below 2**63


def dtype_name(dtype: object, *, attribute: str = "") -> str:
    """The storable dtype's name, e.g. `np.float32`, `">f4"` and `float` give a name of `DTYPES`.

    Raises `SchemaError` for a dtype that cannot be stored.
    """
    where = f"attribute {attribute!r}: " if attribute else ""
    if dtype is None:  # numpy takes it for float64
        raise SchemaError(f"{where}dtype None; storable: {', '.join([*DTYPES, *TEXTS])}")
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if isinstance(dtype, str) and dtype.startswith("torch."):
        return dtype_name(dtype.removeprefix("torch."), attribute=attribute)
    if type(dtype).__module__ == "torch":
        return dtype_name(str(dtype), attribute=attribute)
    if dtype is str or dtype is bytes:
        return dtype.__name__
    if isinstance(dtype, str) and dtype.lower() in _TEXT_NAMES:
        return _TEXT_NAMES[dtype.lower()]
    try:
        resolved = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):  # numpy's, which show it
        text = str(dtype)
        known = [*DTYPES, *TEXTS]
        raise SchemaError(f"{where}unknown dtype {shown(text)}{nearest(text, known)}") from None
    if resolved.kind in "SUT" and resolved.subdtype is None:
        return "bytes" if resolved.kind == "S" else "str"
    if resolved.name not in DTYPES or resolved.subdtype is not None:
        raise SchemaError(
            f"{where}dtype {resolved.name!r} cannot be stored; storable: "
            f"{', '.join([*DTYPES, *TEXTS])}"
        )
    return str(resolved.name)


_TEXT_NAMES = {**{name: name for name in TEXTS}, "string": "str", "text": "str", "utf8": "str"}


Role = Literal["rows", "ends", "values"]


@dataclass(frozen=True)
class Region:
    """One array of an object, contiguous in it: an attribute is stored as one or two of them.

    "rows": one item for each row. Of rows that have no fixed size the items of all are "values",
    one after another, and "ends" says for each row how many values there are up to its end.
    """

    name: str  # also of the HDF5 dataset
    attribute: str
    role: Role
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # of one item

    @property
    def item_nbytes(self) -> int:
        """Bytes of one item."""
        return math.prod(self.shape) * self.dtype.itemsize


@checked_init
@dataclass(frozen=True)
class Attribute:
    """A named array: `dtype` and the `shape` of ONE row, () for a scalar.

    An axis may be 0; (1,) stays (1,). Where the first axis is None, rows differ in length: (None,)
    for sequences of numbers, (None, 4) for some boxes each. The dtypes "bytes", "str" and "json",
    any JSON value, have no shape. `unit` and `description` are for people, `compressor` is for what
    is saved: a dict as in `DataConfig`, or False where the config's is not for this attribute.
    Attributes that differ in nothing else are equal, and a dataset keeps the unit and description
    that it was made with. Raises `SchemaError` for a name, dtype or shape that cannot be stored,
    and `ConfigError` for a compressor that there is not.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    compressor: Codec | Literal[False] | None = field(default=None, compare=False)
    unit: str | None = field(default=None, compare=False)  # "m", at most 64 characters
    description: str | None = field(default=None, compare=False)  # at most 4,096

    def __init__(
        self,
        name: str,
        dtype: npt.DTypeLike | object,
        shape: int | Iterable[int | None] = (),
        *,
        compressor: Codec | Mapping[str, Any] | Literal[False] | None = None,
        unit: str | None = None,
        description: str | None = None,
    ):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SchemaError(
                f"attribute name {shown(name)}: 1 to 128 letters, digits and '_', '.', '-', ' ', "
                "beginning with a letter, a digit or '_' and not ending with ' '"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", dtype_name(dtype, attribute=name))
        object.__setattr__(self, "shape", _row_shape(shape, name))
        if compressor is not None and compressor is not False:
            compressor = Codec.of(compressor, what=f"attribute {name!r}: compressor")
        object.__setattr__(self, "compressor", compressor)
        for what, text in (("unit", unit), ("description", description)):
            object.__setattr__(self, what, _note(what, text, name))
        if self.dtype in TEXTS and self.shape:
            raise SchemaError(
                f"attribute {name!r}: shape {shown(self.shape)}: a row of {self.dtype} is one "
                "value, of any length; leave the shape out"
            )
        nbytes = math.prod(max(1, axis) for axis in self.item_shape) * self.numpy_dtype.itemsize
        if nbytes > _MAX_ROW_NBYTES:  # beside an axis of 0 too: numpy makes no such array
            raise SchemaError(
                f"attribute {name!r}: rows of shape {shown(self.shape)} are too large"
            )
        if self.is_variable and not self.item_nbytes:
            raise SchemaError(
                f"attribute {name!r}: shape {shown(self.shape)}: where the first axis is None, "
                "the others are from 1 up"
            )

    @whole_repr
    def __repr__(self) -> str:
        own = {"compressor": self.compressor, "unit": self.unit, "description": self.description}
        given = "".join(f", {k}={value!r}" for k, value in own.items() if value is not None)
        return f"Attribute(name={self.name!r}, dtype={self.dtype!r}, shape={self.shape!r}{given})"

    @property
    def notes(self) -> dict[str, str]:
        """Unit and description, if there are."""
        notes = {"unit": self.unit, "description": self.description}
        return {what: text for what, text in notes.items() if text is not None}

    @property
    def is_text(self) -> bool:
        """Whether its rows are bytes, str or JSON."""
        return self.dtype in TEXTS

    @cached_property
    def is_variable(self) -> bool:
        """Whether its rows have no fixed size."""
        return self.is_text or None in self.shape

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of its values in memory; of text that of its bytes."""
        return DTYPES[self.dtype] if self.dtype in DTYPES else np.dtype(np.uint8)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of one row, or of one of the items that a row of no fixed size holds."""
        return tuple(axis for axis in self.shape if axis is not None)

    @property
    def item_nbytes(self) -> int:
        """Bytes of that."""
        return math.prod(self.item_shape) * self.numpy_dtype.itemsize

    @property
    def row_nbytes(self) -> int:
        """Bytes that every row has: all of them, or 8 where rows have no fixed size."""
        return END.itemsize if self.is_variable else self.item_nbytes

    @property
    def regions(self) -> tuple[Region, ...]:
        """What it is stored as."""
        dtype, shape = self.numpy_dtype, self.item_shape
        if not self.is_variable:
            return (Region(self.name, self.name, "rows", dtype, shape),)
        return (
            Region(f"{self.name}/ends", self.name, "ends", END, ()),
            Region(f"{self.name}/values", self.name, "values", dtype, shape),
        )

    def to_json(self) -> dict[str, Any]:
        """`{"name": ..., "dtype": ..., "shape": [...]}`, and unit and description if there are."""
        return {**self.identity, **self.notes}

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it another than others, as JSON values."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


def _note(what: str, text: object, name: str) -> str | None:
    """A unit or a description."""
    if text is None:
        return None
    if isinstance(text, str) and 0 < len(text) <= _LONGEST[what] and not _NO_NOTE.search(text):
        return text
    raise SchemaError(
        f"attribute {name!r}: {what} {shown(text)}: text of 1 to {_LONGEST[what]:,} characters, "
        "without NUL, where text ends in HDF5, and halves of surrogate pairs"
    )


def _row_shape(shape: object, name: str) -> tuple[int | None, ...]:
    if shape is None or isinstance(shape, (str, bytes)):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(shape)}: the shape of one row is a tuple, () for a "
            "scalar, (None,) for rows that differ in length"
        )
    try:
        axes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)  # type: ignore[arg-type]
    except TypeError:
        raise SchemaError(
            f"attribute {name!r}: shape {shown(shape)}: a tuple of whole numbers, () for a scalar"
        ) from None
    first, *rest = axes or (1,)
    if any(axis is None or _is_whole(axis, -1) for axis in rest) or _is_whole(first, -1):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(axes)}: the first axis is None where rows differ in "
            "length; every other one is a whole number from 0 up"
        )
    if not all(axis is None or _is_whole(axis) for axis in axes):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(axes)}: axes are whole numbers from 0 up"
        )
    if len(axes) > 31:
        raise SchemaError(f"attribute {name!r}: {len(axes)} axes, the most is 31")
    return tuple(None if axis is None else int(axis) for axis in axes)


def _is_whole(axis: object, value: int | None = None) -> bool:
    """Whether it is a whole number from 0 up, or this value."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        return False
    return bool(axis >= 0 if value is None else axis == value)


@dataclass(frozen=True)
class Schema:
    """The attributes of a dataset, in their order. Iterates over `Attribute`s.

    Raises `SchemaError` where there is none or a name stands twice.
    """

    attributes: tuple[Attribute, ...]

    def __post_init__(self) -> None:
        if not self.attributes:
            raise SchemaError("a dataset needs at least one attribute")
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise SchemaError(f"attribute {name!r} stands twice")
            seen.add(name)

    @classmethod
    def of(cls, attributes: Iterable[Attribute | Sequence[Any]]) -> Schema:
        """From `Attribute`s or (name, dtype[, shape]) tuples."""
        if isinstance(attributes, (str, Mapping)):
            raise SchemaError(
                "attributes: a list of Attribute or (name, dtype, shape), "
                f"not {type(attributes).__name__}"
            )
        return cls(tuple(_attribute(item) for item in attributes))

    @classmethod
    def from_json(cls, value: object) -> Schema:
        """From `to_json`'s list; raises `SchemaError` for anything else."""
        if not isinstance(value, list):
            raise SchemaError(f"attributes: a list, not {type(value).__name__}")
        attributes = []
        for item in value:
            if not isinstance(item, dict):
                raise SchemaError(f"an attribute is an object, not {shown(item)}")
            reject_unknown(item, (*ATTRIBUTE_KEYS, *CONFIG_KEYS), what="attribute key")
            missing = {"name", "dtype"} - set(item)
            if missing:
                raise SchemaError(f"an attribute lacks {sorted(missing)}: {shown(item)}")
            shape = item.get("shape", [])
            if not isinstance(shape, list):
                raise SchemaError(f"an attribute's shape is a list, not {shown(shape)}")
            dtype = item["dtype"]
            known = [*DTYPES, *TEXTS]  # numpy knows too many more
            if not isinstance(dtype, str) or dtype not in known:
                text = dtype if isinstance(dtype, str) else ""
                raise SchemaError(
                    f"attribute {shown(item['name'])}: unknown dtype {shown(dtype)}"
                    f"{nearest(text, known)}"
                )
            own = {key: item.get(key) for key in (*CONFIG_KEYS, *_LONGEST)}
            attributes.append(Attribute(item["name"], dtype, shape, **own))
        return cls(tuple(attributes))

    def to_json(self) -> list[dict[str, Any]]:
        """The attributes as JSON values, in order."""
        return [attribute.to_json() for attribute in self.attributes]

    @property
    def names(self) -> tuple[str, ...]:
        """Attribute names in order."""
        return tuple(attribute.name for attribute in self.attributes)

    @cached_property
    def row_nbytes(self) -> int:
        """Bytes that every row has, over all attributes."""
        return sum(attribute.row_nbytes for attribute in self.attributes)

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """What the attributes are stored as, in their order."""
        return tuple(region for attribute in self.attributes for region in attribute.regions)

    @cached_property
    def is_variable(self) -> bool:
        """Whether rows have no fixed size."""
        return any(attribute.is_variable for attribute in self.attributes)

    @property
    def notes(self) -> dict[str, dict[str, str]]:
        """Units and descriptions of the attributes that have any: equal schemas may differ here."""
        return {a.name: a.notes for a in self.attributes if a.notes}

    def noted(self, notes: object) -> Schema:
        """The same attributes with these units and descriptions: a mapping by attribute's name.

        Raises `SchemaError` for anything else.
        """
        if not isinstance(notes, Mapping) or not notes.keys() <= set(self.names):
            raise SchemaError(f"notes: an object by attribute, not {shown(notes)}")
        noted = []
        for attribute in self.attributes:
            own = notes.get(attribute.name, {})
            if not isinstance(own, Mapping):
                raise SchemaError(f"attribute {attribute.name!r}: notes {shown(own)}: an object")
            unit, description = own.get("unit"), own.get("description")
            noted.append(replace(attribute, unit=unit, description=description))
        return Schema(tuple(noted))

    @cached_property
    def hash(self) -> str:
        """16 hex digits that change with any name, dtype, shape or their order."""
        attributes = [attribute.identity for attribute in self.attributes]
        text = json.dumps(attributes, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __iter__(self) -> Iterator[Attribute]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def __getitem__(self, name: str) -> Attribute:
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        raise SchemaError(f"no attribute {name!r}{nearest(name, self.names)}")

    def select(self, names: Sequence[str] | None) -> Schema:
        """The schema of these attributes only, in the order asked for; None is all."""
        if names is None:
            return self
        if isinstance(names, str):
            raise SchemaError(f"attributes: a list of names, e.g. [{names!r}], not a string")
        if not names:
            raise SchemaError("attributes: name at least one, or leave it out for all")
        return Schema(tuple(self[name] for name in names))

    def differences(self, stored: Schema) -> list[str]:
        """How this schema differs from the stored one, a line each; empty where equal."""
        mine = {a.name: a for a in self}
        theirs = {a.name: a for a in stored}
        lines = [
            f"attribute {name!r}: {_kind(mine[name])}, the dataset stores {_kind(theirs[name])}"
            for name in mine
            if name in theirs and mine[name] != theirs[name]
        ]
        lines += [
            f"attribute {name!r} is not in the dataset" for name in mine if name not in theirs
        ]
        lines += [
            f"attribute {name!r} of the dataset is missing" for name in theirs if name not in mine
        ]
        if not lines and self.names != stored.names:
            lines = [f"the order is {self.names}, the dataset stores {stored.names}"]
        return lines


def _kind(attribute: Attribute) -> str:
    return f"{attribute.dtype} {attribute.shape}"


def _attribute(item: Attribute | Sequence[Any]) -> Attribute:
    if isinstance(item, Attribute):
        return item
    if isinstance(item, str) or not isinstance(item, Sequence) or not 2 <= len(item) <= 3:
        raise SchemaError(
            f"an attribute is Attribute(...) or (name, dtype[, shape]), not {shown(item)}"
        )
    return Attribute(*item)
