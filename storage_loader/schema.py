"""What one row of a dataset holds: named, typed arrays of fixed shape."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from .errors import SchemaError
from .keywords import nearest, reject_unknown, shown, whole_repr
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
"""Storable dtypes by name; all little-endian on storage and native in memory."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\- ]{0,126}[A-Za-z0-9_.\-]|[A-Za-z0-9_]")
_MAX_ROW_NBYTES = 2**40  # keeps every product of the layout far below 2**63


def dtype_name(dtype: object, *, attribute: str = "") -> str:
    """The storable dtype's name, e.g. `np.float32`, `">f4"` and `float` give a name of `DTYPES`.

    Raises `SchemaError` for a dtype that cannot be stored.
    """
    where = f"attribute {attribute!r}: " if attribute else ""
    if dtype is None:  # numpy takes it for float64
        raise SchemaError(f"{where}dtype None; storable: {', '.join(DTYPES)}")
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if isinstance(dtype, str) and dtype.startswith("torch."):
        return dtype_name(dtype.removeprefix("torch."), attribute=attribute)
    if type(dtype).__module__ == "torch":
        return dtype_name(str(dtype), attribute=attribute)
    if dtype in (str, bytes, object) or (
        isinstance(dtype, str) and dtype.lower() in ("str", "string", "text", "bytes", "vlen")
    ):
        raise SchemaError(f"{where}{_NOT_YET.format(dtype=getattr(dtype, '__name__', dtype))}")
    try:
        resolved = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):  # numpy's, which show it
        text = str(dtype)
        raise SchemaError(f"{where}unknown dtype {shown(text)}{nearest(text, DTYPES)}") from None
    if resolved.kind in "SUOT" or resolved.subdtype is not None:
        raise SchemaError(f"{where}{_NOT_YET.format(dtype=resolved.name)}")
    if resolved.name not in DTYPES:
        raise SchemaError(
            f"{where}dtype {resolved.name!r} cannot be stored; storable: {', '.join(DTYPES)}"
        )
    return str(resolved.name)


_NOT_YET = (
    "dtype {dtype!r}: text, bytes and variable-length dtypes are not there yet; store numbers "
    "of a fixed shape, e.g. an id into a table of strings"
)


@dataclass(frozen=True)
class Attribute:
    """A named array: `dtype` and the `shape` of ONE row, () for a scalar.

    An axis may be 0; (1,) stays (1,). Raises `SchemaError` for a name, dtype or shape
    that cannot be stored.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    def __init__(self, name: str, dtype: npt.DTypeLike | object, shape: int | Iterable[int] = ()):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SchemaError(
                f"attribute name {shown(name)}: 1 to 128 letters, digits and '_', '.', '-', ' ', "
                "beginning with a letter, a digit or '_' and not ending with ' '"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "dtype", dtype_name(dtype, attribute=name))
        object.__setattr__(self, "shape", _row_shape(shape, name))
        nbytes = math.prod(max(1, axis) for axis in self.shape) * self.numpy_dtype.itemsize
        if nbytes > _MAX_ROW_NBYTES:  # beside an axis of 0 too: numpy makes no such array
            raise SchemaError(
                f"attribute {name!r}: rows of shape {shown(self.shape)} are too large"
            )

    @whole_repr
    def __repr__(self) -> str:
        return f"Attribute(name={self.name!r}, dtype={self.dtype!r}, shape={self.shape!r})"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of its values in memory."""
        return DTYPES[self.dtype]

    @property
    def num_values(self) -> int:
        """Values in one row: the product of `shape`."""
        return math.prod(self.shape)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.num_values * self.numpy_dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """`{"name": ..., "dtype": ..., "shape": [...]}`."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


def _row_shape(shape: object, name: str) -> tuple[int, ...]:
    if shape is None or isinstance(shape, (str, bytes)):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(shape)}: variable-length rows are not there yet; "
            "give the shape of one row as a tuple, () for a scalar"
        )
    try:
        axes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)  # type: ignore[arg-type]
    except TypeError:
        raise SchemaError(
            f"attribute {name!r}: shape {shown(shape)}: a tuple of whole numbers, () for a scalar"
        ) from None
    whole = [isinstance(a, (int, np.integer)) and not isinstance(a, bool) for a in axes]
    if any(a is None or (is_whole and a == -1) for a, is_whole in zip(axes, whole, strict=True)):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(axes)}: variable-length rows are not there yet; "
            "every axis needs a fixed length"
        )
    if not all(is_whole and a >= 0 for a, is_whole in zip(axes, whole, strict=True)):
        raise SchemaError(
            f"attribute {name!r}: shape {shown(axes)}: axes are whole numbers from 0 up"
        )
    if len(axes) > 31:
        raise SchemaError(f"attribute {name!r}: {len(axes)} axes, the most is 31")
    return tuple(int(a) for a in axes)


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
            reject_unknown(item, ("name", "dtype", "shape"), what="attribute key")
            missing = {"name", "dtype"} - set(item)
            if missing:
                raise SchemaError(f"an attribute lacks {sorted(missing)}: {shown(item)}")
            shape = item.get("shape", [])
            if not isinstance(shape, list):
                raise SchemaError(f"an attribute's shape is a list, not {shown(shape)}")
            dtype = item["dtype"]
            if not isinstance(dtype, str) or dtype not in DTYPES:  # numpy knows too many more
                text = dtype if isinstance(dtype, str) else ""
                raise SchemaError(
                    f"attribute {shown(item['name'])}: unknown dtype {shown(dtype)}"
                    f"{nearest(text, DTYPES)}"
                )
            attributes.append(Attribute(item["name"], item["dtype"], shape))
        return cls(tuple(attributes))

    def to_json(self) -> list[dict[str, Any]]:
        """The attributes as JSON values, in order."""
        return [attribute.to_json() for attribute in self.attributes]

    @property
    def names(self) -> tuple[str, ...]:
        """Attribute names in order."""
        return tuple(attribute.name for attribute in self.attributes)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row over all attributes."""
        return sum(attribute.row_nbytes for attribute in self.attributes)

    @cached_property
    def hash(self) -> str:
        """16 hex digits that change with any name, dtype, shape or their order."""
        text = json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)
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
