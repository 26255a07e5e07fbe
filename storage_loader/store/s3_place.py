"""Which bucket on which server, and what its failures mean: shared by both S3 clients."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import NoReturn
from urllib.parse import quote

from ..config import DEFAULT_TIMEOUT, DataConfig, parse_endpoint
from ..credentials import Provider
from ..errors import (
    BucketNotFoundError,
    KeysRefusedError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectShortError,
    PermissionDeniedError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from ..text import printable
from .base import check_key
from .certificates import Refusal, fault
from .guarded_http import proxy_of

CONNECT_TIMEOUT = 5.0  # seconds at most
THREADS = 32  # requests in flight when reading ranges; 32 to 64 measured best


@dataclass(frozen=True)
class S3Place:
    """A bucket and prefix on an endpoint, and the keys to it."""

    bucket: str
    prefix: str  # without a trailing slash; "" is the bucket itself
    endpoint: str | None  # scheme://host:port; None is AWS
    region: str
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    credentials: Provider | None = field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT  # seconds that a request may stay without progress

    @classmethod
    def of(cls, config: DataConfig) -> S3Place:
        """The place a config names; environment variables fill what it leaves out."""
        bucket, _, prefix = config.storage.removeprefix("s3://").partition("/")
        environment = os.environ.get
        endpoint = (
            config.endpoint or environment("AWS_ENDPOINT_URL_S3") or environment("AWS_ENDPOINT_URL")
        )
        return cls(
            bucket,
            prefix,
            parse_endpoint(endpoint, config.secure).url if endpoint else None,
            config.region
            or environment("AWS_REGION")
            or environment("AWS_DEFAULT_REGION")
            or "us-east-1",
            config.access_key,
            config.secret_key,
            credentials=config.credentials,
            timeout=config.timeout,
        )

    @property
    def connect_timeout(self) -> float:
        """Seconds until a connection must stand."""
        return min(CONNECT_TIMEOUT, self.timeout)

    @property
    def secrets(self) -> list[str]:
        """What must not be shown."""
        return [key for key in (self.access_key, self.secret_key, self.session_token) if key]

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def server_url(self) -> str:
        """Where requests go."""
        return self.endpoint or f"https://s3.{self.region}.amazonaws.com"

    @property
    def server(self) -> str:
        """Where the server answers, for messages."""
        return self.endpoint or f"AWS ({self.region})"

    def full_key(self, key: str) -> str:
        """The key in the bucket."""
        check_key(key)
        return f"{self.prefix}/{key}" if self.prefix else key

    def full_prefix(self, prefix: str) -> str:
        """The folder in the bucket that holds the keys below `prefix`; "" is the bucket."""
        return self.full_key(prefix) if prefix else self.prefix

    def own_key(self, full_key: str) -> str:
        """The inverse of `full_key`."""
        return full_key[len(self.prefix) + 1 :] if self.prefix else full_key


class ConflictError(StoreError):
    """Two create-only puts met, and the server let neither pass: put again."""

    is_transient = True


@dataclass(frozen=True)
class Failure:
    """Why a request failed, as far as the client told."""

    verb: str
    key: str
    code: str = ""  # the S3 error code, e.g. NoSuchBucket
    status: int = 0  # the HTTP status, 0 where none arrived
    timed_out: bool = False
    unreachable: bool = False  # no connection could be made
    no_files: bool = False  # since this process may open no more
    unresolved: bool = False  # since the server's name has no address
    broken: bool = False  # the connection ended before the answer did
    refusal: Refusal | None = None  # of the server's certificate
    detail: str = ""


_PASSING = {408, 429, 500, 502, 503, 504}
_PASSING_CODES = {
    "BadDigest",  # what was sent came damaged, as in the next
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "TooManyRequests",
}
_PERMISSIONS = {
    "list": "s3:ListBucket",
    "get": "s3:GetObject, and s3:ListBucket to be told what does not exist",
    "head": "s3:GetObject, and s3:ListBucket to be told what does not exist",
    "put": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
_OTHER_REGION = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"}
_WRONG_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}


def code_of(body: bytes) -> str:
    """The code of a refusal; "" where its body has none."""
    _, _, rest = body.partition(b"<Code>")
    return rest.partition(b"</Code>")[0].decode(errors="replace")


def raise_refused(place: S3Place, request: Failure, status: int, answer: bytes) -> NoReturn:
    """Raise what a refusal means; `request`: its verb and key."""
    failure = replace(request, code=code_of(answer), status=status)
    told = _without_keys(place, answer[: 4 * _SHOWN].decode(errors="replace"))[:_SHOWN]
    raise_mapped(place, failure, RuntimeError(f"HTTP status {status}: {told}"))


def raise_mapped(place: S3Place, failure: Failure, cause: Exception) -> NoReturn:
    """Raise our error for a client's; it names verb, object, endpoint, cause and remedy."""
    what = (
        f"{failure.verb} {place.url}/{failure.key}"
        if failure.key
        else f"{failure.verb} {place.url}"
    )
    where = f"{what} at {place.server}"
    error: StoreError
    if failure.code == "NoSuchBucket":
        error = BucketNotFoundError(
            f"{where}: there is no bucket {place.bucket!r}; create it, or check its name "
            "(DataSaver creates it where the keys allow)"
        )
    elif failure.code in _WRONG_KEYS:
        error = KeysRefusedError(
            f"{where}: the server refused the keys ({failure.code}); check access_key and "
            "secret_key, or the AWS_* variables"
        )
    elif failure.status in (401, 403) and failure.verb == "create bucket":
        error = PermissionDeniedError(
            f"{where}: there is no bucket {place.bucket!r}, and these keys may not create it; "
            "create it, or use keys that may"
        )
    elif failure.status in (401, 403):
        reason = failure.code or f"HTTP {failure.status}"
        lacking = _PERMISSIONS.get(failure.verb)
        error = PermissionDeniedError(
            f"{where}: no permission ({reason}); check the keys and what they allow on "
            f"bucket {place.bucket!r}{f': this needs {lacking}' if lacking else ''}"
        )
    elif failure.status == 404 and failure.verb in ("get", "head"):
        error = ObjectNotFoundError(f"{where}: there is no such object")
    elif failure.code == "ConditionalRequestConflict":
        error = ConflictError(f"{where}: another upload to the same key is under way")
    elif failure.verb == "put" and (
        failure.status == 412 or (failure.status == 409 and not failure.code)
    ):
        error = ObjectExistsError(f"{where}: the object exists")
    elif failure.status == 416:
        error = ObjectShortError(f"{where}: a range begins beyond the end of the object")
    elif failure.status in (301, 307) or failure.code in _OTHER_REGION:
        error = StoreError(
            f"{where}: the bucket lies in another region than {place.region!r}; set region="
        )
    elif failure.timed_out:
        error = StoreTimeoutError(f"{where}: the server took too long to answer")
    elif failure.refusal is not None:
        is_direct = proxy_of(place.server_url) is None
        seconds = place.connect_timeout
        error = StoreError(
            f"{where}: {fault(place.server_url, seconds, failure.refusal, is_direct=is_direct)}"
        )
    elif failure.unresolved:
        error = StoreConnectionError(
            f"{where}: the server's name was not found; check the endpoint's spelling, and that "
            "this machine can look it up"
        )
    elif failure.no_files:
        error = StoreConnectionError(
            f"{where}: no connection, since this process may open no more files; raise the limit "
            "(ulimit -n), or use fewer loaders and savers at once"
        )
    elif failure.unreachable:
        hint = "" if not (place.endpoint or "").startswith("https://") else (
            "; a server without TLS needs an endpoint that begins with http://"
        )  # fmt: skip
        error = StoreConnectionError(
            f"{where}: no connection; is the server running, and is the endpoint right?{hint}"
        )
    elif failure.broken:
        error = StoreConnectionError(f"{where}: the connection broke off")
    else:
        status = f"HTTP {failure.status}" if failure.status else ""
        answer = f"{status} {failure.code}".strip()
        reason = f"the server answered {answer}" if answer else failure.detail
        passing = failure.status in _PASSING or failure.code in _PASSING_CODES
        kind = StoreUnavailableError if passing else StoreError
        error = kind(f"{where}: {_without_keys(place, reason)}")
    try:
        raise error from _cause(place, cause)
    finally:
        error.__context__ = None  # else the client's own error, which may hold the keys


def _without_keys(place: S3Place, text: str) -> str:
    """The text without the keys that a server's answer may repeat."""
    text = re.sub(r"(?s)<(AWSAccessKeyId|SignatureProvided|StringToSign)>.*?</\1>", "", text)
    for secret in [*place.secrets, *map(os.environ.get, _VARIABLES)]:
        if secret and len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return printable(text)


_SHOWN = 1000  # characters of a refusal
_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_SHORTEST_SECRET = 6  # a shorter one would be found in words that are none


def _cause(place: S3Place, cause: Exception) -> Exception:
    """What the client's error and those behind it say: in one line, without their frames and keys.

    urllib3 raises three errors of 60 lines for one.
    """
    told = ""
    one: BaseException | None = cause
    while one is not None:
        text = " ".join(str(one).split())
        if text not in told:
            told += f"{', by ' if told else ''}{type(one).__name__}: {text}"
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return RuntimeError(_without_keys(place, told))
