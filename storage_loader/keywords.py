"""Unknown names are errors that suggest the nearest valid one."""

from __future__ import annotations

import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from .errors import ConfigError, UnknownNameError

P = ParamSpec("P")
R = TypeVar("R")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 200
_short.maxlevel = 3
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
    "overwrite": "refresh",
    "collate_fn": "transform",
    "prefetch_factor": "prefetch",
    "device": "sharding",
    "sharding": "device",
}
_ELSEWHERE = {
    ("DataLoader keyword", "device"): "storage_loader.torch.DataLoader",
    ("DataLoader keyword", "sharding"): "storage_loader.jax.DataLoader",
}


def shown(value: object) -> str:
    """The `repr` of a value that may come from storage: it may be huge, or nested deeply."""
    return _short.repr(value)


def reject_unknown(given: Iterable[str], valid: Iterable[str], *, what: str) -> None:
    """Raise `UnknownNameError` for the first name in `given` that is not in `valid`.

    `what` says what the names are, e.g. "DataConfig keyword".
    """
    valid = list(valid)
    for name in given:
        if name not in valid:
            hint = _hint(name, valid, what) or nearest(name, valid)
            raise UnknownNameError(f"unknown {what} {shown(name)}{hint}")


def _hint(name: str, valid: list[str], what: str) -> str:
    """The end of an error message for what is called otherwise here, or lies elsewhere."""
    meant = _MEANT.get(name, "")
    if meant.partition("=")[0] in valid:
        return f"; did you mean {meant if '=' in meant else repr(meant)}?"
    elsewhere = _ELSEWHERE.get((what, name))
    return f"; {elsewhere} takes it" if elsewhere else ""


def flag(name: str, value: object) -> bool:
    """The value of a keyword that is True or False; a string such as "false" is neither."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} {value!r}: True or False")
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

    Python's own TypeError names the keyword, but not the one that was meant.
    """
    return checked_settings()(function)


def checked_settings(
    *takers: Callable[..., object],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same for a function that hands its `**` keywords on to `takers`: theirs are valid too."""

    def checked(function: Callable[P, R]) -> Callable[P, R]:
        parameters = [
            p for each in (function, *takers) for p in inspect.signature(each).parameters.values()
        ]
        valid = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - {"self"}
        what = f"{function.__qualname__.removesuffix('.__init__')} keyword"

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            reject_unknown(kwargs, valid, what=what)
            return function(*args, **kwargs)

        return call

    return checked
