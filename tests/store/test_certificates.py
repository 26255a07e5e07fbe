"""A certificate that is refused: each client and `check` name the same reason and remedy."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_loader import DataConfig, check
from storage_loader.errors import StoreConnectionError, StoreError
from storage_loader.store import Store
from storage_loader.store.certificates import Refusal, fault
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.s3_place import S3Place
from tests.support.tls import BODY, Certificate, made, serving

ASKS: dict[str, Callable[[Store], object]] = {  # of each client
    "get": lambda store: store.get("a/b"),
    "delete": lambda store: store.delete(["a/b"]),
}
KEYS = {"access_key": "an access key", "secret_key": "a secret key"}


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the system's certificates are trusted, unless a test says otherwise."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


def place_at(endpoint: str, bucket: str = "bucket") -> S3Place:
    return S3Place.of(DataConfig("x", storage=f"s3://{bucket}", endpoint=endpoint, **KEYS))


def told(endpoint: str, verb: str = "get") -> str:
    """What the error of a verb says after naming the server."""
    with pytest.raises(StoreError) as caught:
        ASKS[verb](DirectS3(place_at(endpoint)))
    before, _, after = str(caught.value).partition(": the server's certificate is not trusted: ")
    assert re.fullmatch(rf"{verb} s3://bucket\S* at {endpoint}", before)
    return after


def checked(endpoint: str) -> str:
    """The same of `check`."""
    [found] = check("s3://bucket", endpoint=endpoint, **KEYS).falls_short
    assert found.name == "reached"
    start, _, reason = found.detail.partition(": the server's certificate is not trusted: ")
    assert start == endpoint
    return f"{reason}; {found.remedy}"


CA = made(name="Our CA", host=None, is_ca=True)


@pytest.mark.parametrize(
    ("one", "trusted", "said"),
    [
        (made(), None, "it has signed itself, .* name a file with this certificate in SSL_CERT_FI"),
        (made(signer=CA), None, "signed by Our CA, .* name a file with that CA's .* SSL_CERT_FILE"),
        (made(ends=-1), "itself", "it has expired; renew"),
        (made(ends=-1), None, "it has expired; renew"),
        (made(begins=1), "itself", "it is not valid yet; set the clocks"),
        (made(host="nas.lan"), "itself", r"it is for nas\.lan, not for 127\.0\.0\.1; use a name"),
        (made(host=None), "itself", "it is for no host .* not for 127.* whose subjectAltName has"),
        (made(is_ca=True), None, "it has signed itself, .* name a file with this certificate in"),
        (made(signer=CA, for_clients=True), "its CA", "unsuitable certificate purpose"),
        (made(signer=CA), "another CA", "Our CA, and SSL_CERT_FILE, .*, does not hold .*; add"),
        (made(), "another CA", "has signed itself, and SSL_CERT_FILE, .*, does not hold .*; add"),
        (made(signer=CA), "no file", r"Our CA, and SSL_CERT_FILE names .*none\.pem, .*cannot be r"),
        (made(signer=CA), "empty", r"names .*empty\.pem, which holds no certificates; name a file"),
    ],
    ids=lambda value: value.replace(" ", "-")[:30] if isinstance(value, str) else "",
)
def test_the_reason_and_the_remedy_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one: Certificate,
    trusted: str | None,
    said: str,
) -> None:
    files = {
        "itself": one.written(tmp_path / "own.pem"),
        "its CA": CA.written(tmp_path / "ca.pem"),
        "another CA": made(name="Another CA", is_ca=True).written(tmp_path / "other.pem"),
        "no file": tmp_path / "none.pem",
        "empty": tmp_path / "empty.pem",
    }
    files["empty"].write_text("")
    if trusted is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(files[trusted]))
    with serving(files["itself"]) as (endpoint, seen):
        reason = told(endpoint)
        assert re.search(said, reason), reason
        assert told(endpoint, "delete") == reason
        assert checked(endpoint) == reason
    assert seen == []


@pytest.mark.parametrize("trusted", ["root", "between"])
def test_any_ca_that_is_named_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    """Also one that OpenSSL alone calls ill-formed, which Python 3.13 asks of it by itself."""
    between = made(name="Between", host=None, is_ca=True, signer=CA)
    files = {
        "root": CA.written(tmp_path / "root.pem"),
        "between": between.written(tmp_path / "between.pem"),
    }
    monkeypatch.setenv("SSL_CERT_FILE", str(files[trusted]))
    usual = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        found = usual(**options)
        found.verify_flags |= ssl.VERIFY_X509_STRICT
        return found

    monkeypatch.setattr(ssl, "create_default_context", strict)
    file = made(signer=between).written(tmp_path / "own.pem", between)
    with serving(file) as (endpoint, seen):
        assert bytes(DirectS3(place_at(endpoint)).get("a/b")) == BODY
    assert seen == ["/bucket/a/b"]


def test_the_server_s_own_certificate_is_trusted_whoever_signed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(signer=CA).written(tmp_path / "own.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with serving(file) as (endpoint, _):
        assert bytes(DirectS3(place_at(endpoint)).get("a/b")) == BODY


def openssl(folder: Path, *words: str) -> Path:
    """The file of a certificate and key that openssl makes as our words say."""
    folder.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", *words, "-nodes", "-newkey", "rsa:2048", "-days", "2"]
        + ["-subj", "/CN=storage", "-keyout", "key.pem", "-out", "own.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "own.pem").read_bytes())
    return both


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_whoever_does_what_the_errors_say_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the certificate that `openssl req -x509 -nodes` makes, which is a CA's."""
    file = openssl(tmp_path / "made", "-addext", "subjectAltName=IP:127.0.0.1")
    with serving(file) as (endpoint, _):
        assert "name a file with this certificate in SSL_CERT_FILE" in told(endpoint)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        assert bytes(DirectS3(place_at(endpoint)).get("a/b")) == BODY


def test_a_server_behind_a_proxy_is_not_asked_past_it() -> None:
    """Then the client's own reason is told: what a handshake would add is left out."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        found = fault(url, 0.1, Refusal("expired", "certificate has expired"), is_direct=False)
        assert "it has expired" in str(found)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("refusal", [Refusal("host", ""), Refusal("other", "BadEncoding")])
def test_a_server_that_answers_no_more_leaves_the_client_s_reason(refusal: Refusal) -> None:
    found = fault("https://127.0.0.1:1", 0.1, refusal)
    assert found.reason in ("it is for another host, not for 127.0.0.1", "BadEncoding")


@pytest.mark.parametrize("verb", ASKS)
def test_a_bucket_s_name_is_no_reason(verb: str) -> None:
    store = DirectS3(place_at("https://127.0.0.1:1", "certificates"))
    with pytest.raises(StoreConnectionError, match="no connection; is the server running"):
        ASKS[verb](store)
