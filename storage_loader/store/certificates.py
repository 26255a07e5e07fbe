"""Why a server's certificate is refused, and what helps: the same words for each client.

OpenSSL names the first fault that it comes upon, and nothing of the certificate: so the server is
asked for it once more.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

import certifi

from ..text import printable

Kind = Literal["unknown", "expired", "early", "host", "other"]

_VARIABLE = "SSL_CERT_FILE"
_LONGEST = 200  # characters of what a certificate says

_OF_OPENSSL: dict[int, Kind] = {
    9: "early",
    10: "expired",
    2: "unknown",  # its issuer's certificate is missing
    18: "unknown",  # it has signed itself
    19: "unknown",  # a certificate that came with it has
    20: "unknown",
    21: "unknown",
    62: "host",
    64: "host",  # an address
}


class NoCertificatesError(OSError):
    """The file of $SSL_CERT_FILE holds no certificates."""


@dataclass(frozen=True)
class Refusal:
    """Why a client refused a certificate, as far as it told."""

    kind: Kind
    told: str  # in the client's own words

    @classmethod
    def by_python(cls, error: BaseException | None) -> Refusal | None:
        """What lies behind an error of urllib3 or `ssl`; None where it is no certificate."""
        for one in _behind(error, set()):
            if isinstance(one, NoCertificatesError):
                return cls("unknown", str(one))
            if isinstance(one, ssl.SSLCertVerificationError):
                return cls(_OF_OPENSSL.get(one.verify_code, "other"), one.verify_message)
        return None


@dataclass(frozen=True)
class Fault:
    """What is wrong with a certificate, and what helps."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"the server's certificate is not trusted: {self.reason}; {self.remedy}"


def context(trusted: str | None) -> ssl.SSLContext:
    """Which certificates are trusted; `trusted` is the file of $SSL_CERT_FILE.

    The same on each Python: any certificate of the file will do, not only one that signed itself,
    and those are taken that OpenSSL alone calls ill-formed.
    """
    try:
        made = ssl.create_default_context(cafile=trusted)
    except OSError as error:  # an SSLError, too
        raise NoCertificatesError(_unreadable(trusted or "", error)) from error
    if trusted is None:
        made.load_verify_locations(certifi.where())
    return _lenient(made)


# Reading the system's certificates takes 5 ms.
shared_context = lru_cache(maxsize=4)(context)


def named_file() -> str | None:
    """The file of trusted certificates that the environment names."""
    return os.environ.get(_VARIABLE)


def fault(server_url: str, timeout: float, refusal: Refusal, *, is_direct: bool = True) -> Fault:
    """What is wrong with the certificate of a server that a client refused.

    Asks the server for it, if it can be reached without a proxy; nothing is sent to it.
    """
    server = _Server(server_url, timeout)
    certificate = server.certificate() if is_direct else None
    if certificate is None:
        return _fault(refusal, server.host, {})
    says, own = server.read(certificate)
    return _fault(own or server.refusal() or refusal, server.host, says)


def _lenient(made: ssl.SSLContext) -> ssl.SSLContext:
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.hostname_checks_common_name = False
    return made


def _behind(error: object, seen: set[int]) -> Iterator[BaseException]:
    """An error and those that it came from; urllib3 keeps one among its words."""
    if isinstance(error, BaseException) and id(error) not in seen:
        seen.add(id(error))
        yield error
        for one in (error.__cause__, error.__context__, *error.args):
            yield from _behind(one, seen)


class _Server:
    """A server that is asked for its certificate. None, or {}, is what it did not answer."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self._address = (self.host, parts.port or 443)
        self._timeout = timeout

    def certificate(self) -> bytes | None:
        """Its certificate, whoever signed it."""
        made = ssl.create_default_context()
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
        try:
            with self._connected(made) as connection:
                return connection.getpeercert(binary_form=True)
        except OSError:
            return None

    def refusal(self) -> Refusal | None:
        """Why Python refuses it, if it does."""
        try:
            with self._connected(context(named_file())):
                return None
        except OSError as error:
            return Refusal.by_python(error)

    def read(self, certificate: bytes) -> tuple[dict[str, Any], Refusal | None]:
        """What its certificate says, and what is wrong whoever signed it, for whichever host.

        `ssl` takes apart only what it trusts: so the certificate itself is trusted here.
        """
        made = _lenient(ssl.create_default_context(cadata=certificate))
        made.check_hostname = False
        try:
            with self._connected(made) as connection:
                return {**(connection.getpeercert() or {})}, None
        except OSError as error:
            return {}, Refusal.by_python(error)

    def _connected(self, made: ssl.SSLContext) -> ssl.SSLSocket:
        sock = socket.create_connection(self._address, self._timeout)
        try:
            return made.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


def _fault(refusal: Refusal, host: str, says: dict[str, Any]) -> Fault:
    if refusal.kind == "unknown":
        return _unknown(says)
    if refusal.kind == "expired":
        return Fault(
            "it has expired", "renew the server's certificate, or set this machine's clock right"
        )
    if refusal.kind == "early":
        return Fault("it is not valid yet", "set the clocks of both machines right")
    if refusal.kind == "host":
        names = ", ".join(value for _, value in says.get("subjectAltName", ()))
        other = _shown(names) or ("another host" if not says else "no host by its subjectAltName")
        return Fault(
            f"it is for {other}, not for {host}",
            "use a name that it is for in the endpoint, or a certificate whose subjectAltName has "
            "this one",
        )
    return Fault(
        printable(refusal.told)[:_LONGEST],
        "use another certificate for the server: see docs/servers.md",
    )


def _unknown(says: dict[str, Any]) -> Fault:
    issuer = _name(says.get("issuer", ()))
    is_own = bool(says) and says.get("issuer") == says.get("subject")
    signed = "it has signed itself" if is_own else f"it is signed by {issuer or 'a CA'}"
    wanted = "this certificate" if is_own else "that CA's certificate"
    named = named_file()
    if named is None:
        return Fault(
            f"{signed}, and this machine does not trust {'it' if is_own else 'that CA'}",
            f"name a file with {wanted} in {_VARIABLE}",
        )
    try:
        context(named)
    except NoCertificatesError as error:
        return Fault(f"{signed}, and {error}", f"name a file with {wanted} in {_VARIABLE}")
    return Fault(
        f"{signed}, and {_VARIABLE}, {_shown(named)}, does not hold {wanted}",
        f"add {wanted} to that file"
        + ("" if is_own else ", and let the server send those between its own and that one"),
    )


def _unreadable(path: str, error: OSError) -> str:
    is_there = os.path.isfile(path) and os.access(path, os.R_OK)
    why = "which holds no certificates" if is_there else "which cannot be read"
    return f"{_VARIABLE} names {_shown(path)}, {why}" if path else f"no certificates: {error}"


def _name(parts: Any) -> str:
    """What a distinguished name calls its bearer."""
    found = {key: value for part in parts for key, value in part}
    return _shown(found.get("commonName") or found.get("organizationName") or "")


def _shown(text: str) -> str:
    return printable(text)[:_LONGEST]
