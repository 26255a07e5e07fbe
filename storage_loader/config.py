"""`DataConfig`: which dataset, where it is stored, and what its rows hold."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import platformdirs

from .codecs import Codec
from .credentials import Provider
from .errors import ConfigError, StorageLoaderError
from .keywords import checked_keywords, redacted, reject_unknown, shown, shown_as, whole_repr
from .layout import MAX_OBJECT_NBYTES
from .schema import Attribute, Schema

DEFAULT_BUCKET = "storage-loader"
DEFAULT_OBJECT_SIZE = 64 * 2**20
MIN_OBJECT_SIZE = 64 * 2**10
MAX_OBJECT_SIZE = MAX_OBJECT_NBYTES
DEFAULT_TIMEOUT = 20.0  # seconds
DEFAULT_DEADLINE = 120.0  # seconds: a server that restarts takes half a minute
MAX_FILE_SIZE = 16 * 2**20  # of a config as JSON
STORAGE_VARIABLE = "STORAGE_LOADER_STORAGE"

JSONScalar = str | int | float | bool | None

_SCHEMES = ("s3", "file", "memory")
_NAME_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_DATASET_NAME = re.compile(rf"(?=.{{1,128}}\Z){_NAME_PART}(/{_NAME_PART}){{0,7}}")
_DATASET_ID = re.compile("[0-9a-f]{16}")
_OWN_FOLDERS = ("metadata", "objects", "files")  # of every dataset, below its id
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(r"[!-~]+")


def _storage(storage: str | os.PathLike[str] | None, endpoint: str | None) -> str:
    """The canonical storage URL; relative and `~` paths become absolute at once."""
    if storage is None:
        storage = os.environ.get(STORAGE_VARIABLE) or None
    if storage is None:
        if endpoint is not None:
            return f"s3://{DEFAULT_BUCKET}"
        return f"file://{_absolute(platformdirs.user_data_dir('storage_loader'))}"
    text = os.fspath(storage) if isinstance(storage, os.PathLike) else storage
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"storage {shown(storage)}: a URL or a folder's path")
    scheme, separator, rest = text.partition("://")
    almost, slashes, after = text.partition("//")  # what lacks a colon
    is_almost = not separator and bool(slashes) and almost in _SCHEMES
    if (separator and _holds_keys(scheme, rest)) or (is_almost and _holds_keys(almost, after)):
        raise ConfigError("storage: no keys in the URL; use access_key= and secret_key=")
    if is_almost:
        raise ConfigError(
            f"storage {shown(text)}: did you mean {shown(f'{almost}://{after}')}? A folder is "
            f"{shown(f'./{almost}/{after}')}"
        )
    if not separator:
        scheme, colon, rest = text.partition(":")
        if colon and scheme in _SCHEMES:  # what pathlib makes of a URL
            raise ConfigError(
                f"storage {shown(text)}: a URL is a string with '://', "
                f"{redacted(f'{scheme}://' + rest.lstrip('/'))}"
            )
        return f"file://{_absolute(text)}"
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigError(
                f"storage {shown(text)}: file:// takes an absolute path, file:///data/..."
            )
        return f"file://{_absolute(rest)}"
    if scheme == "memory":
        name = rest.rstrip("/")
        if not name:
            raise ConfigError(f"storage {shown(text)}: give it a name, memory://name")
        return f"memory://{name}"
    if scheme == "s3":
        return _s3_url(text, rest)
    raise ConfigError(
        f"storage {shown(text)}: unknown scheme {shown(scheme)}; use s3://bucket/prefix, "
        "file:///folder, a folder's path or memory://name"
    )


def _holds_keys(scheme: str, rest: str) -> bool:
    """Whether what follows a URL's `://` names a user or a key, as some tools have it."""
    host, query = rest.partition("/")[0], rest.partition("?")[2]
    if scheme in ("file", "memory") or _BUCKET_NAME.fullmatch(host):
        return redacted(query) != query or (scheme == "file" and "@" in host)
    url = f"{scheme}://{rest}"
    return redacted(url) != url


def _absolute(path: str) -> str:
    if "\0" in path:
        raise ConfigError(f"storage {shown(path)}: a path holds no NUL byte")
    return os.path.abspath(os.path.expanduser(path))


def _s3_url(text: str, rest: str) -> str:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(
            f"storage {shown(text)}: {shown(bucket)} is no bucket name "
            "(3 to 63 of a-z, 0-9, '.', '-')"
        )
    prefix = prefix.rstrip("/")
    segments = prefix.split("/") if prefix else []
    if any(s in ("", ".", "..") or any(ord(c) < 32 or ord(c) == 127 for c in s) for s in segments):
        raise ConfigError(
            f"storage {shown(text)}: a prefix has no empty, '.' or '..' part and no "
            "control character"
        )
    return "/".join([f"s3://{bucket}", *segments])


@dataclass(frozen=True)
class Endpoint:
    """Where an S3 server answers: `url` is scheme://host:port."""

    host: str
    secure: bool

    @property
    def url(self) -> str:
        """The endpoint as a URL."""
        return f"{'https' if self.secure else 'http'}://{self.host}"


def parse_endpoint(endpoint: str, secure: bool | None) -> Endpoint:
    """The endpoint with its scheme decided; `ConfigError` where it is none."""
    scheme, separator, _ = endpoint.partition("://")
    if "@" in endpoint:
        raise ConfigError("endpoint: no keys in the endpoint; use access_key= and secret_key=")
    if separator and scheme not in ("http", "https"):
        raise ConfigError(f"endpoint {shown(endpoint)}: the scheme is http or https")
    try:
        parts = urlsplit(endpoint if separator else f"//{endpoint}")
        valid = bool(parts.hostname) and parts.path in ("", "/") and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or not _ENDPOINT.fullmatch(endpoint):
        raise ConfigError(f"endpoint {shown(endpoint)}: give host:port or http(s)://host:port")
    if separator and secure is not None and secure != (scheme == "https"):
        raise ConfigError(
            f"endpoint {shown(endpoint)} contradicts secure={secure}; leave secure out, "
            "the endpoint's scheme decides"
        )
    if secure is None:
        secure = scheme == "https" if separator else True
    return Endpoint(parts.netloc, secure)


def _additional(value: Mapping[str, Any] | None) -> Mapping[str, JSONScalar]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise ConfigError(f"additional: a dict of JSON scalars, not {type(value).__name__}")
    result: dict[str, JSONScalar] = {}
    for key, scalar in value.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"additional: keys are non-empty strings, not {_kind(key)}")
        scalar = scalar.item() if isinstance(scalar, np.generic) else scalar  # noqa: PLW2901
        if not isinstance(scalar, (str, int, float, bool, type(None))) or (
            isinstance(scalar, float) and not math.isfinite(scalar)
        ):
            raise ConfigError(
                f"additional[{shown(key)}] = {shown_as(key, scalar)}: a JSON scalar is needed "
                "(str, int, finite float, bool or None)"
            )
        result[key] = scalar
    try:
        canonical_json(result)
    except UnicodeEncodeError as error:
        raise ConfigError(f"additional: text that is not valid Unicode: {error}") from error
    return MappingProxyType(dict(sorted(result.items())))


def _kind(key: object) -> str:
    return "''" if key == "" else type(key).__name__


def _attribute_json(attribute: Attribute) -> dict[str, Any]:
    """As in a dataset, and what only a config has."""
    own = attribute.compressor
    if own is None:
        return attribute.to_json()
    return {**attribute.to_json(), "compressor": own.to_json() if own else False}


def canonical_json(value: object) -> bytes:
    """One byte string for each JSON value: sorted keys, no spaces, UTF-8."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


@dataclass(frozen=True, eq=False)
class DataConfig:
    """A dataset: its identity, its attributes, and where it is stored. A frozen value, no I/O.

    `dataset_name` and `additional` (JSON scalars, in any order) are the identity.
    `attributes` are `Attribute`s or (name, dtype, shape of a row): numbers, of a fixed shape or
    with a first axis None that differs by row; "bytes", "str" or "json", without a shape. They
    may be left out where the dataset exists. `storage` is `s3://bucket/prefix`,
    `file:///folder`, a folder's path or `memory://name`; without it `$STORAGE_LOADER_STORAGE`,
    else the bucket `storage-loader` where an `endpoint` is given, else a folder in the user's
    data directory. `endpoint`, keys, `secure` and `region` are for S3 only; without keys the
    usual `AWS_*` variables hold. `credentials`: a function that returns `Credentials`, called
    again before they expire and where the server refuses them. `max_object_size`: bytes (64 KiB
    to 5 GiB, default 64 MiB); no object is larger. `timeout` and `deadline`, for S3 only: seconds
    that one request may stay without progress (default 20), and seconds for which an operation
    that makes no progress is retried (default 120; 0 means one attempt).

    Raises `ConfigError`, `SchemaError` or `UnknownNameError`.
    """

    dataset_name: str
    attributes: tuple[Attribute, ...] | None = None
    additional: Mapping[str, JSONScalar] = field(default_factory=dict)
    storage: str = ""
    endpoint: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    credentials: Provider | None = field(default=None, repr=False)
    secure: bool | None = None
    region: str | None = None
    compressor: Codec | None = None
    max_object_size: int = DEFAULT_OBJECT_SIZE
    timeout: float = DEFAULT_TIMEOUT
    deadline: float = DEFAULT_DEADLINE

    @checked_keywords
    def __init__(
        self,
        dataset_name: str,
        attributes: Iterable[Attribute | Sequence[Any]] | None = None,
        additional: Mapping[str, JSONScalar] | None = None,
        storage: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        credentials: Provider | None = None,
        secure: bool | None = None,
        region: str | None = None,
        compressor: Codec | Mapping[str, Any] | None = None,
        max_object_size: int = DEFAULT_OBJECT_SIZE,
        timeout: float = DEFAULT_TIMEOUT,
        deadline: float = DEFAULT_DEADLINE,
    ) -> None:
        _check_dataset_name(dataset_name)
        _check_object_size(max_object_size)
        url = _storage(storage, endpoint)
        _check_s3_settings(
            url,
            secure,
            endpoint=endpoint,
            access_key=access_key,
            secret_key=secret_key,
            region=region,
        )
        _check_provider(url, credentials, access_key)
        values: dict[str, Any] = {
            "dataset_name": dataset_name,
            "attributes": None if attributes is None else Schema.of(attributes).attributes,
            "additional": _additional(additional),
            "storage": url,
            "endpoint": endpoint,
            "access_key": access_key,
            "secret_key": secret_key,
            "credentials": credentials,
            "secure": secure,
            "region": region,
            "compressor": None if compressor is None else Codec.of(compressor),
            "max_object_size": int(max_object_size),
            "timeout": _seconds("timeout", timeout, least=_LEAST_TIMEOUT),
            "deadline": _seconds("deadline", deadline, least=0),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @whole_repr
    def __repr__(self) -> str:
        values = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"DataConfig({values})"

    @property
    def schema(self) -> Schema | None:
        """The attributes as a `Schema`; None where they were left out."""
        return None if self.attributes is None else Schema(self.attributes)

    def codecs(self, schema: Schema) -> dict[str, Codec]:
        """By attribute of the stored schema that is to be compressed: how."""
        given = {a.name: a.compressor for a in self.attributes or ()}
        asked = {name: given.get(name) for name in schema.names}
        found = {n: self.compressor if own is None else own for n, own in asked.items()}
        return {name: codec for name, codec in found.items() if codec}

    @property
    def identity(self) -> dict[str, Any]:
        """What makes this dataset another than its neighbours, as JSON values."""
        return {"name": self.dataset_name, "additional": dict(self.additional)}

    @property
    def dataset_prefix(self) -> str:
        """The dataset's place in the storage, `<name>/<id>`."""
        return dataset_prefix(self.dataset_name, self.additional)

    def to_json(self) -> str:
        """Everything but the secrets, as JSON text that `from_json` takes."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _UNWRITTEN}
        values["additional"] = dict(self.additional)
        if self.attributes is not None:
            values["attributes"] = [_attribute_json(one) for one in self.attributes]
        values["compressor"] = None if self.compressor is None else self.compressor.to_json()
        return json.dumps(values, indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> DataConfig:
        """The config that `to_json` wrote; keys come from the environment again.

        Raises `ConfigError` for text that is no JSON object, `UnknownNameError` for a key
        that does not exist.
        """
        problem = ""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            problem = f"config: not JSON: {error}"
        if problem:  # here: the error above holds the whole text, and keys may stand in it
            raise ConfigError(problem)
        if not isinstance(values, dict):
            raise ConfigError(f"config: a JSON object is needed, not {type(values).__name__}")
        if any(name in values for name in _UNWRITTEN):
            raise ConfigError(
                "config: keys do not belong in a text; leave them out and set AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, or use dataclasses.replace(config, access_key=...)"
            )
        names = [f.name for f in fields(cls) if f.name not in _UNWRITTEN]
        reject_unknown(values, names, what="config key")
        if "dataset_name" not in values:
            raise ConfigError("config: 'dataset_name' is missing")
        if values.get("attributes") is not None:
            values["attributes"] = Schema.from_json(values["attributes"])
        return cls(**values)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DataConfig:
        """Read what `save` wrote; errors of `from_json` name the file."""
        with open(path, "rb") as file:
            text = file.read(MAX_FILE_SIZE + 1)
        if len(text) > MAX_FILE_SIZE:
            raise ConfigError(
                f"{os.fspath(path)}: more than {MAX_FILE_SIZE} bytes, which is no config's file"
            )
        try:
            return cls.from_json(text)
        except StorageLoaderError as error:
            first, *lines = error.args
            error.args = (f"{os.fspath(path)}: {first}", *lines)
            raise

    def _values(self) -> tuple[object, ...]:
        """What equality compares: of `additional` the JSON, where 1, 1.0 and True differ."""
        return self.dataset_prefix, *(
            getattr(self, f.name) for f in fields(self) if f.name != "additional"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataConfig) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "additional": dict(self.additional)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, additional=MappingProxyType(state["additional"]))


def require_config(value: object, taker: str) -> None:
    """Raise `ConfigError` for what is no `DataConfig`; it may hold keys, and is not shown."""
    if isinstance(value, DataConfig):
        return
    remedy = ""
    if isinstance(getattr(value, "config", None), DataConfig):
        remedy = "; give its .config"
    elif isinstance(value, (str, os.PathLike)):
        remedy = "; give DataConfig(name), or DataConfig.load(path) of a config's file"
    raise ConfigError(f"{taker} takes a DataConfig, not {type(value).__name__}{remedy}")


_SECRET = ("access_key", "secret_key")
_UNWRITTEN = (*_SECRET, "credentials")  # in no text


def _check_provider(url: str, provider: object, access_key: str | None) -> None:
    if provider is None:
        return
    if not callable(provider):
        raise ConfigError(
            f"credentials: a function that returns Credentials, not {type(provider).__name__}"
        )
    if not url.startswith("s3://"):
        raise ConfigError(f"credentials is for s3:// storage, not for {shown(url)}")
    if access_key is not None:
        raise ConfigError("credentials and access_key: give one of them")


def _check_s3_settings(url: str, secure: object, **texts: str | None) -> None:
    """Raise `ConfigError` where the settings of an S3 server are wrong or do not fit `url`."""
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or not text):
            kind = "an empty one" if text == "" else type(text).__name__
            raise ConfigError(f"{name}: a string, not {kind}; or leave it out")
    if secure not in (None, True, False):
        raise ConfigError(f"secure {shown(secure)}: True, False or None")
    given = [name for name in _SECRET if texts[name] is not None]
    if len(given) == 1:
        (missing,) = set(_SECRET) - set(given)
        raise ConfigError(f"{given[0]} is given without {missing}; give both or neither")
    if not url.startswith("s3://"):
        for name, value in {**texts, "secure": secure}.items():
            if value is not None:
                raise ConfigError(f"{name} is for s3:// storage, not for {shown(url)}")
    endpoint = texts["endpoint"]
    if endpoint is not None:
        parse_endpoint(endpoint, None if secure is None else bool(secure))


def _check_object_size(value: object) -> None:
    if (
        not isinstance(value, (int, np.integer))
        or isinstance(value, bool)
        or not MIN_OBJECT_SIZE <= value <= MAX_OBJECT_SIZE
    ):
        raise ConfigError(
            f"max_object_size {shown(value)}: bytes, a whole number from "
            f"{MIN_OBJECT_SIZE} (64 KiB) to {MAX_OBJECT_SIZE} (5 GiB)"
        )


_LEAST_TIMEOUT = 0.01
_MOST_SECONDS = 7 * 24 * 3600


def _seconds(name: str, value: object, *, least: float) -> float:
    if (
        not isinstance(value, (int, float, np.integer, np.floating))
        or isinstance(value, bool)
        or not least <= value <= _MOST_SECONDS
    ):
        raise ConfigError(
            f"{name} {shown(value)}: seconds, from {least} to {_MOST_SECONDS} (a week)"
        )
    return float(value)


def is_dataset_name(name: str) -> bool:
    """Whether a dataset may have this name; other folders are somebody else's."""
    parts = name.split("/")
    return _DATASET_NAME.fullmatch(name) is not None and not any(map(_is_own, parts))


def is_dataset_id(folder: str) -> bool:
    """Whether a folder may be a dataset's, below its name: no part of a name looks so."""
    return _DATASET_ID.fullmatch(folder) is not None


def _is_own(part: str) -> bool:
    """Whether a part of a name is what a dataset's folder, or one in it, may be called."""
    return part in _OWN_FOLDERS or is_dataset_id(part)


def _check_dataset_name(name: object) -> None:
    if not isinstance(name, str) or not _DATASET_NAME.fullmatch(name):
        raise ConfigError(
            f"dataset_name {shown(name)}: 1 to 128 letters, digits, '.', '_' and '-', beginning "
            "with a letter or digit; up to 8 such parts may be joined by '/', as in 'vision/digits'"
        )
    for part in name.split("/"):
        if _is_own(part):
            what = "a folder of every dataset" if part in _OWN_FOLDERS else "a dataset's id"
            raise ConfigError(
                f"dataset_name {shown(name)}: {part!r} is what {what} is called; choose another"
            )


def dataset_prefix(name: str, additional: Mapping[str, JSONScalar]) -> str:
    """`<name>/<id>`; the id is a short hash of name and additional."""
    identity = canonical_json([name, dict(additional)])
    return f"{name}/{hashlib.sha256(identity).hexdigest()[:16]}"
