"""What is sent to S3 is protected on the way: by TLS, else by its own signature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from storage_loader import Credentials, DataConfig
from storage_loader.store.direct_s3 import DirectS3
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support.answers import OBJECT, Answer, Answers

RANGE = {"Content-Range": "bytes 0-0/9"}


@pytest.mark.parametrize(
    ("endpoint", "secure", "unsigned"),
    [
        ("http://127.0.0.1:9000", None, False),
        ("127.0.0.1:9000", False, False),
        ("https://127.0.0.1:9000", None, True),
        ("127.0.0.1:9000", None, True),
        (None, None, True),  # AWS
    ],
)
def test_payloads_are_signed_where_nothing_else_protects_them(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, secure: bool | None, unsigned: bool
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    config = DataConfig(
        "x",
        [("a", "int64")],
        storage="s3://bucket",
        endpoint=endpoint,
        secure=secure,
        access_key="key",
        secret_key="secret",
        region="us-east-1",
    )
    place = S3Place.of(config)
    hashed = "UNSIGNED-PAYLOAD" if unsigned else hashlib.sha256(b"content").hexdigest()
    assert DirectS3(place)._payload(memoryview(b"content")) == hashed
    assert place.server_url.startswith("https://" if unsigned else "http://")


@pytest.mark.parametrize("token", [None, "a+token/of=keys"])
@pytest.mark.parametrize("verb", ["put", "create", "get", "ranges", "head"])
def test_signatures_are_what_aws_computes(answers: Answers, verb: str, token: str | None) -> None:
    """By boto's own words, over a key of all kinds of characters."""
    key = "a b/c+d%41/e#f?g=h&i~j/\u00e4\u20ac/k'(l)*!:@,;$[m]"
    answers.always(Answer(206 if verb == "ranges" else 200, b"x", {**OBJECT, **RANGE}))
    keys = lambda: Credentials("access", "a/secret+key", token)  # noqa: E731
    place = S3Place("bucket", "some prefix", answers.endpoint, "eu-1", credentials=keys)
    work: dict[str, Callable[[S3Store], object]] = {
        "put": lambda s: s.put(key, b"content"),
        "create": lambda s: s.put(key, b"content", create=True),
        "get": lambda s: s.get(key),
        "ranges": lambda s: s.get_ranges(key, [(0, 1)]),
        "head": lambda s: s.head(key),
    }
    work[verb](S3Store(place))
    [request] = answers.requests
    assert unquote(request.path) == f"/bucket/some prefix/{key}"
    assert request.headers.get("x-amz-security-token") == token
    said = request.headers["authorization"]
    names = said.partition("SignedHeaders=")[2].partition(",")[0].split(";")
    assert {"host", "x-amz-content-sha256", "x-amz-date"} <= set(names)
    assert ("x-amz-security-token" in names) is (token is not None)
    asked = AWSRequest(
        request.method,
        f"{answers.endpoint}{request.path}",
        {name: request.headers[name] for name in names if name != "host"},
    )
    asked.context["timestamp"] = request.headers["x-amz-date"]
    signer = S3SigV4Auth(BotoCredentials("access", "a/secret+key"), "s3", "eu-1")
    text = signer.string_to_sign(asked, signer.canonical_request(asked))
    assert said.endswith(f"Signature={signer.signature(text, asked)}")
