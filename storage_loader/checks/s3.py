"""Points of S3 alone: the server, its certificate, and what the bucket is set to."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from ..errors import BucketNotFoundError, KeysRefusedError, PermissionDeniedError, StoreError
from ..store.certificates import (
    Fault,
    NoCertificatesError,
    Refusal,
    context,
    fault,
    named_file,
)
from ..store.guarded_http import proxy_of
from ..store.s3_bucket import S3Bucket
from ..store.s3_place import S3Place
from ..text import printable
from .clock import judged_clock
from .own import FOLDER
from .trial import Point, Trial
from .value import Found, holds, short, untried

_CUT_NBYTES = 2**20
_CUT_SECONDS = 1.0  # that a server may need to see that nothing more comes
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """The server's first answer, to a request without keys."""

    date: datetime | None
    began: datetime
    ended: datetime


class S3Points:
    """The points of one bucket; `made` says whether it was made for them."""

    is_s3 = True

    def __init__(self, place: S3Place, bucket: S3Bucket | None = None) -> None:
        self._place = place
        self._bucket = bucket or S3Bucket.of(place)
        self._answer: Answer | None = None
        self.made = False

    def before(self, *, read_only: bool) -> tuple[Point, ...]:
        """Those without which no other one means anything."""
        return (
            Point("reached", self._reached, writes=False),
            Point("clock", self._clock, needs=("reached",), writes=False),
            Point("keys", self._keys, needs=("reached",), writes=False),
            Point("bucket", self._look if read_only else self._make, needs=("keys",), writes=False),
        )

    def after(self) -> tuple[Point, ...]:
        """Those of the bucket itself."""
        return (
            Point("no half objects", self._cut, needs=("get", "delete")),
            Point("versioning", _set(self._versioning), needs=("bucket",), writes=False),
            Point("lock", _set(self._lock), needs=("bucket",), writes=False),
            Point("expiry", _set(self._expiry), needs=("bucket",), writes=False),
        )

    def close(self) -> None:
        """Remove the bucket if it was made here and nobody has put anything into it."""
        if self.made:
            self._bucket.remove()

    def _reached(self, trial: Trial) -> Found:
        place = self._place
        proxy = proxy_of(place.server_url)
        if proxy is not None:
            return holds(f"{place.server} through the proxy {proxy.hostname}:{proxy.port}")
        parts = urlsplit(place.server_url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        began = time.perf_counter()
        try:
            with socket.create_connection((host, port), place.connect_timeout) as sock:
                seconds = time.perf_counter() - began
                address = sock.getpeername()[0]
                sock.settimeout(_ANSWER_SECONDS)
                if parts.scheme == "https":
                    trusted = context(named_file())
                    with trusted.wrap_socket(sock, server_hostname=host) as secured:
                        how = f", {secured.version()}"
                        server = self._asked(host, port, secured)
                else:
                    how = ", without TLS"
                    server = self._asked(host, port, sock)
        except (ssl.SSLCertVerificationError, NoCertificatesError) as error:
            refusal = Refusal.by_python(error)
            assert refusal is not None
            return _not_trusted(place, fault(place.server_url, place.connect_timeout, refusal))
        except ssl.SSLError as error:
            return _not_reached(
                f"{place.server} does not speak TLS: {error.reason or error}",
                "give endpoint='http://...' or secure=False where the server has no TLS",
            )
        except socket.gaierror:
            return _not_reached(
                f"the name {host} has no address",
                "check the endpoint's spelling, and that this machine can look it up",
            )
        except (OSError, http.client.HTTPException) as error:
            return _not_reached(
                f"{place.server}: {error or type(error).__name__}",
                "see that the server runs, that its address and port are right, and that no "
                "firewall is in the way; a server that wants TLS needs endpoint='https://...'",
            )
        known = f", {printable(server)[:60]}" if server else ""
        return holds(f"{place.server} ({address}, {seconds * 1000:.1f} ms{how}{known})")

    def _asked(self, host: str, port: int, sock: socket.socket) -> str:
        """Ask for anything, without keys; what the server calls itself."""
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
        connection.sock = sock
        began = datetime.now(timezone.utc)
        connection.request("GET", "/", headers={"Connection": "close"})
        response = connection.getresponse()
        ended = datetime.now(timezone.utc)
        self._answer = Answer(_date(response.getheader("Date")), began, ended)
        return response.getheader("Server") or ""

    def _clock(self, trial: Trial) -> Found:
        answer = self._answer
        if answer is None or answer.date is None:
            return untried("the server's answers say no time")
        return judged_clock(answer.date, answer.began, answer.ended)

    def _keys(self, trial: Trial) -> Found:
        try:
            trial.store.list_folders()
        except KeysRefusedError as error:
            return short(
                str(error),
                cost="nothing can be loaded or saved",
                remedy="check access_key and secret_key, or the AWS_* variables, and region",
            )
        except BucketNotFoundError:
            return holds()
        except PermissionDeniedError as error:
            if "RequestTimeTooSkewed" in str(error):
                return untried(str(error), "set both clocks by NTP")
        return holds()

    def _look(self, trial: Trial) -> Found:
        try:
            trial.store.list_folders()
        except BucketNotFoundError as error:
            return _no_bucket(error)
        except PermissionDeniedError:
            return holds("there is one, or these keys may not know")
        return holds("there is one")

    def _make(self, trial: Trial) -> Found:
        """Where there is none it is made, as a saver does: only so is it known that it can be."""
        try:
            trial.store.list_folders()
        except BucketNotFoundError:
            pass
        except PermissionDeniedError:
            return holds("there is one, or these keys may not know")
        else:
            return holds("there is one")
        try:
            trial.store.prepare()
        except StoreError as error:
            return _no_bucket(error)
        self.made = True
        return holds("there was none, and these keys may make it")

    def _cut(self, trial: Trial) -> Found:
        key = trial.store.key("cut")
        with trial.store.writing([key]):
            self._bucket.put_cut(key, _CUT_NBYTES)
        end = trial.until(_CUT_SECONDS)
        while True:
            if key in [info.key for info in trial.store.list(trial.store.folder)]:
                return short(
                    "a put whose connection ended half way left an object",
                    cost="a saver that loses its connection leaves objects that are not whole; "
                    "commits that are cut so cannot be read",
                    remedy="see whether a proxy or gateway passes on requests that broke off",
                )
            if time.monotonic() >= end:
                return holds()
            time.sleep(0.1)

    def _versioning(self) -> Found:
        state = self._bucket.versioning()
        if not state:
            return holds("off")
        return short(
            f"versioning is {state.lower()}",
            cost="rm, gc and this check free no room: what they delete stays as an old version",
            remedy="turn versioning off, or let a lifecycle rule remove versions that are not "
            "current after some days",
        )

    def _lock(self) -> Found:
        seconds = self._bucket.lock()
        if seconds is None:
            return holds("off")
        if not seconds:
            return holds("on, and no new object is locked by itself")
        return short(
            f"each new object is locked for {seconds}",
            cost="rm and gc free no room for so long, and a saver's leases pile up as versions",
            remedy="store datasets in a bucket without a default retention",
        )

    def _expiry(self) -> Found:
        prefix = f"{self._place.prefix}/" if self._place.prefix else ""
        met = [
            rule
            for rule in self._bucket.expiring()
            if (rule.prefix.startswith(prefix) or prefix.startswith(rule.prefix))
            and not rule.prefix.startswith(f"{prefix}{FOLDER}")
        ]
        if not met:
            return holds("no rule removes objects here")
        rule = met[0]
        return short(
            f"a lifecycle rule removes objects below {rule.prefix!r} after {rule.after}",
            cost="datasets lose commits and objects then, and cannot be read",
            remedy="take datasets out of the rule, and let gc remove what nobody needs",
        )


def _set(find: Callable[[], Found]) -> Callable[[Trial], Found]:
    """A point that reads a setting; few may, and some servers know none."""

    def asked(trial: Trial) -> Found:
        try:
            return find()
        except PermissionDeniedError as error:
            return untried(str(error), "ask whoever owns the bucket, or check with their keys")
        except StoreError as error:
            return untried(f"the server does not tell: {error}")

    return asked


def _not_reached(detail: str, remedy: str) -> Found:
    return short(detail, cost="nothing can be loaded or saved", remedy=remedy)


def _not_trusted(place: S3Place, found: Fault) -> Found:
    return _not_reached(
        f"{place.server}: the server's certificate is not trusted: {found.reason}", found.remedy
    )


def _no_bucket(error: StoreError) -> Found:
    return short(
        str(error),
        cost="nothing can be loaded or saved",
        remedy="create the bucket, or use keys that may (s3:CreateBucket)",
    )


def _date(text: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
