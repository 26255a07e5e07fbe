"""Certificates of every kind, and HTTPS servers that have them."""

from __future__ import annotations

import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BODY = b"hi"


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def written(self, path: Path, *beside: Certificate) -> Path:
        """A file of both, with other certificates after them."""
        pem = serialization.Encoding.PEM
        key = self.key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = [one.certificate.public_bytes(pem) for one in (self, *beside)]
        path.write_bytes(b"".join([key, *chain]))
        return path


def made(
    *,
    name: str = "storage",
    host: str | None = "127.0.0.1",
    begins: int = -9,
    ends: int = 9,
    is_ca: bool | None = None,
    for_clients: bool = False,
    signer: Certificate | None = None,
) -> Certificate:
    """One for a host, from and until so many days from now; signed by itself without a signer.

    `is_ca`: what it says of that; None: nothing.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(signer.certificate.subject if signer else own)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=begins))
        .not_valid_after(now + timedelta(days=ends))
    )
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([_named(host)]), critical=False)
    if is_ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
    if for_clients:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(usage, critical=False)
    return Certificate(builder.sign(signer.key if signer else key, hashes.SHA256()), key)


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class _Server(ThreadingHTTPServer):
    """It remembers what it was asked for."""

    seen: list[str]

    def handle_error(self, request: object, address: object) -> None:
        """A client that does not trust the certificate ends the connection."""


class _Answers(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("Last-Modified", "Fri, 20 Nov 2026 12:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(file: Path) -> Iterator[tuple[str, list[str]]]:
    """The endpoint of a server with the certificate and key of a file, and what it is asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with _Server(("127.0.0.1", 0), _Answers) as server:
        server.seen = []
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", server.seen
        finally:
            server.shutdown()
            thread.join()
