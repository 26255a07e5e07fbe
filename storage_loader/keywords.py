"""Unknown names are errors that suggest the nearest valid one."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from .errors import ConfigError, UnknownNameError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NAMES = "secret|passw|credential|signature|access[-_]?key|api[-_]?key|token"  # of what is secret
_SECRET = re.compile(f"(?i){_NAMES}")
_ASSIGNED = re.compile(
    rf"""(?i)((?:{_NAMES})[\w.-]{{0,64}}["']?\s*[=:]\s*)(?:"[^"]*"|'[^']*'|[^\s&;,}})\]'"]+)"""
)
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]{0,20}:/"
_QUERY = re.compile(rf"(?s)^({_SCHEME}[^?]*\?).+")
_USER = re.compile("(?s)^([A-Za-z][A-Za-z0-9+.-]*:/*).*@")
_PASSWORD = re.compile(rf"(?s)^({_SCHEME}/)[^/:]+:(?!\d{{1,5}}(?:/|$)).*")
_REDACTED = (
    (_USER, r"\1***@"),
    (_PASSWORD, r"\1***"),
    (_QUERY, r"\1***"),
    (_ASSIGNED, r"\1***"),
)
_LONGEST_SHOWN = 200  # characters
_LONGEST_ERROR = 500


class _Short(reprlib.Repr):
    """Short, and without what a key or a password may be."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _LONGEST_SHOWN
        self.maxlevel = 3

    def repr1(self, x: Any, level: int) -> str:
        return self.repr_dict(x, level) if isinstance(x, Mapping) else super().repr1(x, level)

    def repr_dict(self, x: Mapping[Any, Any], level: int) -> str:
        hidden = {k: _HIDDEN if _is_secret(k) else v for k, v in x.items()}
        return super().repr_dict(hidden, level)

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(redacted(x[: 4 * _LONGEST_SHOWN]), level)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return f"b{self.repr_str(x[: 4 * _LONGEST_SHOWN].decode('latin-1'), level)}"

    def repr_instance(self, x: object, level: int) -> str:
        return redacted(super().repr_instance(x, level))


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET.search(name) is not None


class _Hidden:
    def __repr__(self) -> str:
        return "***"


_HIDDEN = _Hidden()
_short = _Short()
_NEAR = 0.7  # of 0 to 1: "overwrite" is at 0.67 of "writer", and means something else
_LONGEST_NAME = 200  # characters; finding what is near takes the square of them

# What other libraries call it, and no spelling is near; "=" where a value tells more than the name.
_MEANT = {
    **dict.fromkeys(("bucket", "bucket_name", "prefix"), "storage='s3://bucket/prefix'"),
    **dict.fromkeys(("path", "root", "folder", "directory", "url", "uri", "location"), "storage"),
    **dict.fromkeys(("endpoint_url", "host", "server"), "endpoint"),
    **dict.fromkeys(("access_key_id", "aws_access_key_id", "key", "user"), "access_key"),
    **dict.fromkeys(("secret", "secret_access_key", "aws_secret_access_key"), "secret_key"),
    **dict.fromkeys(("ssl", "use_ssl", "tls"), "secure"),
    **dict.fromkeys(("name", "dataset"), "dataset_name"),
    **dict.fromkeys(("columns", "fields", "features", "schema"), "attributes"),
    **dict.fromkeys(("metadata", "tags", "where"), "additional"),
    **dict.fromkeys(("compression", "codec"), "compressor"),
    **dict.fromkeys(("len", "max_len", "max_length", "size", "width"), "length"),
    **dict.fromkeys(("fill", "fill_value", "pad_value", "padding_value"), "value"),
    **dict.fromkeys(("truncation", "cut"), "truncate"),
    "pad_to_multiple_of": "multiple_of",
    "padding_side": "side",
    "overwrite": "refresh",
    "device": "sharding",
    "sharding": "device",
}
_ELSEWHERE = {
    ("DataLoader keyword", "device"): "storage_loader.torch.DataLoader",
    ("DataLoader keyword", "sharding"): "storage_loader.jax.DataLoader",
    **{
        ("Dataset keyword", name): "DataLoader"
        for name in ("batch_size", "shuffle", "seed", "subset", "num_workers", "drop_last")
    },
}
_OWN_ORDER = (
    "rows are ordered by shuffle=, seed= and subset= (row numbers, each once); for an order of "
    "your own, storage_loader.torch.Dataset goes under torch's DataLoader"
)
_WORKERS = "worker processes, of num_workers=, live as long as the loader and get pickled copies"
_TORCHS = {  # keywords of torch's DataLoader, and what there is instead
    "sampler": _OWN_ORDER,
    "batch_sampler": _OWN_ORDER,
    "collate_fn": "rows are gathered as whole arrays already; transform= gets each batch, and what "
    "it returns is what you get",
    "pin_memory": "leave it out: storage_loader.torch.DataLoader(device='cuda') gathers into "
    "pinned memory and copies ahead of use",
    "pin_memory_device": "leave it out, and give storage_loader.torch.DataLoader the device",
    "prefetch_factor": "prefetch= says how many bytes are fetched ahead; finished batches wait in "
    "any case",
    "persistent_workers": f"leave it out: {_WORKERS}",
    "worker_init_fn": f"{_WORKERS} of transform=, which can prepare itself where it is first "
    "called",
    "multiprocessing_context": f"leave it out: {_WORKERS}, always spawned",
    "timeout": "leave it out: DataConfig(timeout=, deadline=) says how long a storage may take",
    "generator": "seed= and the number of the epoch decide the order: set_epoch() chooses one",
    "in_order": "leave it out: batches always come in order",
}


def shown(value: object) -> str:
    """The `repr` of a value for an error: of what comes from storage, or from a user.

    It may be huge, or nested deeply; and it may be somebody's settings, given in the wrong place.
    So it is cut, and what stands under the name of a key or a password is not shown, nor what is
    in a URL beside its host and path.
    """
    return _short.repr(value)


def brief(error: BaseException) -> str:
    """An error of a user's code for our message: its class and the beginning of its text.

    Some show all that they were given.
    """
    text = str(error)
    if len(text) > _LONGEST_ERROR:
        text = f"{text[:_LONGEST_ERROR]}... ({len(text)} characters)"
    return f"{type(error).__name__}: {text}"


def shown_as(name: str, value: object) -> str:
    """`shown` of what stands under a name, which may say that it is a key."""
    return repr(_HIDDEN) if _is_secret(name) else shown(value)


def redacted(text: str) -> str:
    """The text with `***` for what may be a key: under such a name, or in a URL."""
    for pattern, instead in _REDACTED:
        text = pattern.sub(instead, text)
    return text


def whole_repr(function: Callable[[T], str]) -> Callable[[T], str]:
    """Decorate a `__repr__` so that it also tells of an object whose constructor raised.

    Debuggers ask for that, and whatever prints the variables of a traceback's frames.
    """

    @functools.wraps(function)
    def call(self: T) -> str:
        try:
            return function(self)
        except AttributeError:
            return f"<{type(self).__name__} that was not made>"

    return call


def reject_unknown(given: Iterable[str], valid: Iterable[str], *, what: str) -> None:
    """Raise `UnknownNameError` for the first name in `given` that is not in `valid`.

    `what` says what the names are, e.g. "DataConfig keyword".
    """
    valid = list(valid)
    for name in given:
        if name not in valid:
            hint = _hint(name, valid, what)
            hint = nearest(name, valid) if hint is None else hint
            raise UnknownNameError(f"unknown {what} {shown(name)}{hint}")


def _hint(name: str, valid: list[str], what: str) -> str | None:
    """The end of an error message for what is called otherwise here, or lies elsewhere."""
    if what == "DataLoader keyword" and name in _TORCHS:
        return f"; {_TORCHS[name]}"
    meant = _MEANT.get(name, "")
    if meant.partition("=")[0] in valid:
        return f"; did you mean {meant if '=' in meant else repr(meant)}?"
    elsewhere = _ELSEWHERE.get((what, name))
    return f"; {elsewhere} takes it" if elsewhere else None


def flag(name: str, value: object) -> bool:
    """The value of a keyword that is True or False; a string such as "false" is neither."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} {shown(value)}: True or False")
    return value


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message: the nearest valid name, else all of them."""
    valid = sorted(valid)
    lower = {known.lower(): known for known in valid}
    close = difflib.get_close_matches(str(name)[:_LONGEST_NAME].lower(), lower, n=1, cutoff=_NEAR)
    if close:
        return f"; did you mean {lower[close[0]]!r}?"
    return f"; valid: {', '.join(map(repr, valid))}" if valid else ""


def checked_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `function` so that an unknown keyword raises `UnknownNameError`.

    So does an argument without its keyword where one is needed. Python's own TypeError names the
    keyword, but not the one that was meant, and no keyword for an argument.
    """
    parameters = inspect.signature(function).parameters
    valid = set(parameters) - {"self"}
    name = function.__qualname__.removesuffix(".__init__")
    what = f"{name} keyword"
    named = [n for n, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    unnamed = [n for n in parameters if n not in named]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        reject_unknown(kwargs, valid, what=what)
        if named and len(args) > len(unnamed):
            # Where torch's DataLoader has an argument of its own third, that one is meant.
            meant = "shuffle" if "shuffle" in named else named[0]
            first = ", ".join(n for n in unnamed if n != "self")
            value = shown_as(meant, args[len(unnamed)])
            raise UnknownNameError(
                f"{name}({first}, {value}): name what follows {unnamed[-1]}, e.g. {meant}={value}"
            )
        return function(*args, **kwargs)

    return call


def checked_init(cls: type[T]) -> type[T]:
    """Decorate a dataclass so that an unknown keyword raises `UnknownNameError`."""
    checked = checked_keywords(cls.__init__)
    setattr(cls, "__init__", checked)  # noqa: B010  mypy knows no other way
    return cls


def handed_on(given: Mapping[str, Any], taker: type) -> dict[str, Any]:
    """Of a constructor's `locals()`, the keywords that `taker` takes too.

    For a constructor that repeats another one's keywords, so that editors know them.
    """
    return {name: given[name] for name in inspect.signature(taker).parameters if name in given}
