"""Failures of S3: each says which endpoint, bucket and key, what to do, and never a key.

What a real server cannot be made to answer comes from one that answers what it is told.
"""

from __future__ import annotations

import logging
import socket
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_loader import DataConfig
from storage_loader.errors import (
    BucketNotFoundError,
    KeysRefusedError,
    ObjectExistsError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StoreConnectionError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from storage_loader.store import Store, open_store
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_place import S3Place
from tests.support.answers import OBJECT, Answer, Answers, error, head_of
from tests.support.places import CLIENTS, s3_place
from tests.support.s3 import S3Server, remove_bucket

ACCESS, SECRET = "AKIAwordsofatest", "a+very/secret+key"
KEY = "some key"

VERBS: dict[str, Callable[[Store], object]] = {
    "get": lambda s: s.get(KEY),
    "ranges": lambda s: s.get_ranges(KEY, [(0, 1)]),
    "many": lambda s: s.get_many([(KEY, [(0, 1)]), (KEY, [(1, 2)])]),
    "stream": lambda s: list(s.stream(KEY, 0, 2)),
    "head": lambda s: s.head(KEY),
    "put": lambda s: s.put(KEY, b"x"),
    "create": lambda s: s.put(KEY, b"x", create=True),
    "list": lambda s: list(s.list("folder")),
    "folders": lambda s: s.list_folders("folder"),
    "delete": lambda s: s.delete([KEY]),
}


def named(verb: str, place: S3Place) -> str:
    """How the error begins: the verb, the object or folder, the endpoint."""
    words = {"ranges": "get", "many": "get", "stream": "get", "create": "put", "folders": "list"}
    key = {"list": "/folder", "folders": "/folder", "delete": ""}.get(verb, f"/{KEY}")
    return f"{words.get(verb, verb)} {place.url}{key} at {place.endpoint}: "


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's own AWS files."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def place(answers: Answers) -> S3Place:
    return S3Place("bucket", "some prefix", answers.endpoint, "us-east-1", ACCESS, SECRET)


@pytest.fixture(params=["direct", "minio"])
def client(request: pytest.FixtureRequest) -> Callable[[S3Place], Store]:
    return CLIENTS[request.param]


def texts_of(raised: BaseException) -> str:
    """All that an error, its causes and its contexts say or hold."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [raised]
    while todo:
        one = todo.pop()
        if one is not None and one not in found:
            found.append(one)
            todo += [one.__cause__, one.__context__]
    parts = [f"{e!s} {e!r} {vars(e)!r} {e.args!r}" for e in found]
    return "\n".join([*parts, *traceback.format_exception(raised)])


def fails(
    work: Callable[[], object],
    kind: type[Exception],
    text: str,
    caplog: pytest.LogCaptureFixture,
    secrets: tuple[str, ...] = (ACCESS, SECRET),
) -> None:
    """`work` raises exactly this, and nobody sees a key."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreError) as caught:
        work()
    assert (type(caught.value), str(caught.value)) == (kind, text)
    seen = texts_of(caught.value) + caplog.text
    for secret in secrets:
        assert secret not in seen


REFUSED = (
    "the server refused the keys ({code}); check access_key and secret_key, or the AWS_* variables"
)
NO_PERMISSION = (
    "no permission ({code}); check the keys and what they allow on bucket 'bucket': this needs "
    "{needs}"
)
NEEDS = {
    "get": "s3:GetObject, and s3:ListBucket to be told what does not exist",
    "list": "s3:ListBucket",
    "put": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
NO_BUCKET = (
    "there is no bucket 'bucket'; create it, or check its name (DataSaver creates it where the "
    "keys allow)"
)
OTHER_REGION = "the bucket lies in another region than 'us-east-1'; set region="
# A server may repeat what it was sent.
REPEATED = (
    f"<AWSAccessKeyId>{ACCESS}</AWSAccessKeyId><StringToSign>AWS4 {ACCESS}</StringToSign>"
    f"<SignatureProvided>{SECRET}</SignatureProvided><Resource>{ACCESS} {SECRET}</Resource>"
)


@pytest.mark.parametrize(
    ("status", "code", "kind", "text"),
    [
        (403, "InvalidAccessKeyId", KeysRefusedError, REFUSED),
        (403, "SignatureDoesNotMatch", KeysRefusedError, REFUSED),
        (400, "InvalidToken", KeysRefusedError, REFUSED),
        (400, "ExpiredToken", KeysRefusedError, REFUSED),
        (403, "AccessDenied", PermissionDeniedError, NO_PERMISSION),
        (401, "Unauthorized", PermissionDeniedError, NO_PERMISSION),
        (404, "NoSuchBucket", BucketNotFoundError, NO_BUCKET),
        (301, "PermanentRedirect", StoreError, OTHER_REGION),
        (307, "TemporaryRedirect", StoreError, OTHER_REGION),
        (400, "AuthorizationHeaderMalformed", StoreError, OTHER_REGION),
        (400, "InvalidBucketName", StoreError, "the server answered HTTP 400 InvalidBucketName"),
        (405, "MethodNotAllowed", StoreError, "the server answered HTTP 405 MethodNotAllowed"),
        (500, "InternalError", StoreUnavailableError, "the server answered HTTP 500 InternalError"),
        (503, "SlowDown", StoreUnavailableError, "the server answered HTTP 503 SlowDown"),
    ],
)
def test_what_the_server_refuses(
    answers: Answers,
    place: S3Place,
    client: Callable[[S3Place], Store],
    status: int,
    code: str,
    kind: type[Exception],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers.always(error(status, code, REPEATED))
    store = client(place)
    for verb, work in VERBS.items():
        if verb != "head":
            asked = named(verb, place)
            expected = asked + text.format(code=code, needs=NEEDS[asked.split()[0]])
            fails(lambda work=work: work(store), kind, expected, caplog)


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [
        (403, PermissionDeniedError, "no permission ("),
        (401, PermissionDeniedError, "no permission ("),
        (404, ObjectNotFoundError, "there is no such object"),
        (301, StoreError, OTHER_REGION),
        (400, StoreError, "the server answered HTTP 400"),
        (500, StoreUnavailableError, "the server answered HTTP 500"),
    ],
)
def test_head_has_only_a_status(
    answers: Answers,
    place: S3Place,
    client: Callable[[S3Place], Store],
    status: int,
    kind: type[Exception],
    text: str,
) -> None:
    answers.always(Answer(status))
    with pytest.raises(StoreError) as caught:
        client(place).head(KEY)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(named("head", place) + text)


def test_what_is_no_s3_server(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    """A web server, or the console of an S3 server: a list of nothing is not what it means."""
    store = client(place)
    page = b"<!doctype html><html><meta charset=utf-8><p>Hello</html>"
    for status in (200, 404):
        answers.always(Answer(status, page, {"Content-Type": "text/html"}))
        for verb in ("list", "folders", "delete"):
            with pytest.raises(StoreError) as caught:
                VERBS[verb](store)
            assert not isinstance(caught.value, FileNotFoundError)
            assert str(caught.value).startswith(named(verb, place))


def test_a_missing_object(
    answers: Answers,
    place: S3Place,
    client: Callable[[S3Place], Store],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers.always(error(404, "NoSuchKey", REPEATED))
    store = client(place)
    for verb in ("get", "ranges", "many", "stream"):
        text = named(verb, place) + "there is no such object"
        fails(lambda verb=verb: VERBS[verb](store), ObjectNotFoundError, text, caplog)
    for verb in ("put", "list", "delete"):
        text = named(verb, place) + "the server answered HTTP 404 NoSuchKey"
        fails(lambda verb=verb: VERBS[verb](store), StoreError, text, caplog)


@pytest.mark.parametrize("answer", [error(412, "PreconditionFailed"), Answer(409), Answer(412)])
def test_an_existing_object(
    answers: Answers,
    place: S3Place,
    client: Callable[[S3Place], Store],
    answer: Answer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers.always(answer)
    text = named("create", place) + "the object exists"
    fails(lambda: VERBS["create"](client(place)), ObjectExistsError, text, caplog)
    assert [r.headers.get("if-none-match") for r in answers.requests] == ["*"]


def test_only_create_asks_for_a_free_key(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    answers.always(Answer(200, headers=OBJECT))
    client(place).put(KEY, b"first")
    client(place).put(KEY, b"second", create=True)
    puts = [(r.method, r.path, r.body, r.headers.get("if-none-match")) for r in answers.requests]
    path = "/bucket/some%20prefix/some%20key"
    assert puts == [("PUT", path, b"first", None), ("PUT", path, b"second", "*")]


@pytest.mark.parametrize("last", [200, 412])
def test_creators_that_met_put_again(answers: Answers, place: S3Place, last: int) -> None:
    """AWS answers 409 ConditionalRequestConflict where two creators meet: neither has won yet."""
    conflict = error(409, "ConditionalRequestConflict")
    for use in ("direct", "minio"):
        answers.in_turn(conflict, conflict, Answer(last, headers=OBJECT))
        store = RetriedStore(CLIENTS[use](place), deadline=5)
        if last == 200:
            store.put(KEY, b"x", create=True)
        else:
            with pytest.raises(ObjectExistsError, match="the object exists"):
                store.put(KEY, b"x", create=True)
    assert len(answers.requests) == 6
    answers.always(conflict)
    with pytest.raises(StoreError, match="another upload to the same key is under way"):
        RetriedStore(S3Store(place), deadline=0).put(KEY, b"x", create=True)
    assert len(answers.requests) == 7


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_stumbles_is_asked_again(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store], status: int
) -> None:
    store = RetriedStore(client(place), deadline=5)
    answers.in_turn(error(status, "SlowDown"), Answer(200, b"content", OBJECT))
    assert store.get(KEY) == b"content"
    answers.in_turn(error(status, "SlowDown"), Answer(200, headers=OBJECT))
    store.put(KEY, b"content")
    assert [r.method for r in answers.requests] == ["GET", "GET", "PUT", "PUT"]
    assert [r.body for r in answers.requests[2:]] == [b"content"] * 2


def test_an_answer_cut_short_is_an_error(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    """Never data that is short."""
    store = client(place)
    answers.always(Answer(200, b"x" * 50, OBJECT, promised=100))
    for work in (lambda: store.get(KEY), lambda: list(store.stream(KEY, 0, 100))):
        with pytest.raises(StoreError, match=KEY):
            work()
    ranged = {**OBJECT, "Content-Range": "bytes 0-99/1000"}
    answers.always(Answer(206, b"x" * 50, ranged, promised=100))
    for work in (
        lambda: store.get_ranges(KEY, [(0, 100)]),
        lambda: list(store.stream(KEY, 0, 100)),
    ):
        with pytest.raises(StoreError, match=KEY):
            work()


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("head", b""),
        ("get", b"content"),
        ("ranges", b"x"),
        ("list", b"<ListBucketResult><Name>bucket</Name></ListBucketResult>"),
        ("put", b""),
        ("delete", b"<DeleteResult><Deleted><Key>some key</Key></Deleted></DeleteResult>"),
    ],
)
def test_an_answer_whose_head_is_cut_short_is_a_broken_connection(
    client: Callable[[S3Place], Store], verb: str, body: bytes
) -> None:
    """Wherever it is cut: "Content-Length: 12" of 1234 is a length too."""
    length = 1234 if verb == "head" else len(body)
    status = "206 Partial Content" if verb == "ranges" else "200 OK"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Range: bytes 0-0/9\r\n"
        'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "tag"\r\n\r\n'
    ).encode()
    answer = head + body
    with socket.create_server(("127.0.0.1", 0)) as listener:
        end = len(head)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:  # the test is over
                    return
                with connection, connection.makefile("rb") as request:
                    lines = head_of(request)
                    sent = [line for line in lines if line.lower().startswith(b"content-length")]
                    request.read(int(sent[0].split(b":")[1]) if sent else 0)
                    connection.sendall(answer[:end])

        thread = threading.Thread(target=serve)
        thread.start()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            place = S3Place("bucket", "", endpoint, "us-east-1", ACCESS, SECRET)
            for end in range(len(head)):
                with pytest.raises(StoreError) as caught:
                    VERBS[verb](client(place))
                assert caught.value.is_transient, f"cut after {head[:end]!r}"
            end = len(answer)
            VERBS[verb](client(place))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_ranges_that_come_short_are_an_error(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    answers.always(Answer(206, b"x" * 50, {**OBJECT, "Content-Range": "bytes 0-49/50"}))
    with pytest.raises(StoreError) as caught:
        client(place).get_ranges(KEY, [(0, 100)])
    assert str(caught.value) == (
        f"{place.url}/{KEY}: 50 bytes came for 0 to 100; the object is shorter than its commit says"
    )


# No server


def test_the_host_is_down(
    client: Callable[[S3Place], Store], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as bound:  # taken, but nobody listens
        bound.bind(("127.0.0.1", 0))
        place = S3Place(
            "bucket", "p", f"http://127.0.0.1:{bound.getsockname()[1]}", "r", ACCESS, SECRET
        )
        store = client(place)
        for verb, work in VERBS.items():
            text = "no connection; is the server running, and is the endpoint right?"
            fails(
                lambda work=work: work(store),
                StoreConnectionError,
                named(verb, place) + text,
                caplog,
            )


def parts_of(raised: BaseException) -> list[list[str]]:
    """The lines of each error that a traceback shows, the first cause first."""
    told = "".join(traceback.format_exception(raised))
    parts = told.split("\nThe above exception was the direct cause of the following exception:\n")
    return [part.strip().splitlines() for part in parts]


def test_a_traceback_shows_causes_in_a_line_each(client: Callable[[S3Place], Store]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        place = S3Place("bucket", "", endpoint, "r", ACCESS, SECRET)
        store = client(place)
        with pytest.raises(StoreConnectionError):
            store.get(KEY)  # its first request loads much, which could take all the time
        with pytest.raises(StoreConnectionError) as caught:
            RetriedStore(store, deadline=1).get(KEY)
    [[first], [last], final] = parts_of(caught.value)
    assert "onnection refused" in first
    assert last == f"storage_loader.errors.StoreConnectionError: {caught.value.__cause__}"
    assert final[-1].startswith(f"{last}; gave up after ")
    assert named("get", place) in last


def test_a_refusal_shows_the_servers_answer_in_a_line(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    code = "SignatureDoesNotMatch"
    answers.always(error(403, code, "<Detail>of the server\nitself</Detail>"))
    with pytest.raises(PermissionDeniedError) as caught:
        RetriedStore(client(place), deadline=60).get(KEY)
    [[answer], final] = parts_of(caught.value)
    assert code in answer
    assert final[-1].endswith(f"{named('get', place)}{REFUSED.format(code=code)}")


def test_the_host_has_no_address(
    client: Callable[[S3Place], Store], caplog: pytest.LogCaptureFixture
) -> None:
    place = S3Place("bucket", "", "http://no-such-host.invalid:9000", "r", ACCESS, SECRET)
    text = (
        "the server's name was not found; check the endpoint's spelling, and that this machine "
        "can look it up"
    )
    for verb in ("get", "put", "list"):
        fails(
            lambda verb=verb: VERBS[verb](client(place)),
            StoreConnectionError,
            named(verb, place) + text,
            caplog,
        )


def test_tls_to_a_server_without(
    answers: Answers, client: Callable[[S3Place], Store], caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = answers.endpoint.replace("http://", "https://")
    place = S3Place("bucket", "p", endpoint, "us-east-1", ACCESS, SECRET)
    text = (
        "no connection; is the server running, and is the endpoint right?; a server without TLS "
        "needs an endpoint that begins with http://"
    )
    for verb in ("get", "put", "create", "list", "delete"):
        fails(
            lambda verb=verb: VERBS[verb](client(place)),
            StoreConnectionError,
            named(verb, place) + text,
            caplog,
        )


def test_the_server_never_answers(
    client: Callable[[S3Place], Store],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = S3Place("bucket", "p", endpoint, "r", ACCESS, SECRET, timeout=0.3)
        store = client(place)
        for verb in ("get", "ranges", "put", "create", "list", "delete"):
            fails(
                lambda verb=verb: VERBS[verb](store),
                StoreTimeoutError,
                named(verb, place) + "the server took too long to answer",
                caplog,
            )


# Buckets


def test_a_refused_bucket_says_what_to_do(
    answers: Answers, place: S3Place, caplog: pytest.LogCaptureFixture
) -> None:
    answers.always(error(403, "AccessDenied", REPEATED))
    text = (
        f"create bucket {place.url} at {place.endpoint}: there is no bucket 'bucket', and these "
        "keys may not create it; create it, or use keys that may"
    )
    fails(S3Store(place).prepare, PermissionDeniedError, text, caplog)
    answers.always(error(403, "InvalidAccessKeyId", REPEATED))
    text = f"create bucket {place.url} at {place.endpoint}: " + REFUSED
    fails(
        S3Store(place).prepare,
        KeysRefusedError,
        text.format(code="InvalidAccessKeyId"),
        caplog,
    )


@pytest.mark.parametrize("code", ["BucketAlreadyOwnedByYou", "BucketAlreadyExists"])
def test_a_bucket_that_is_there_is_prepared(answers: Answers, place: S3Place, code: str) -> None:
    answers.always(error(409, code))
    S3Store(place).prepare()


@pytest.fixture
def s3_missing(s3_server: S3Server) -> Iterator[str]:
    """The name of a bucket that does not exist; it goes where the test makes it."""
    bucket = f"storage-loader-test-{uuid.uuid4().hex[:16]}"
    yield bucket
    remove_bucket(s3_server.client(), bucket)


def test_a_missing_bucket(
    s3_server: S3Server,
    s3_missing: str,
    client: Callable[[S3Place], Store],
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = s3_place(s3_server, s3_missing, "p")
    store = client(place)
    for verb in ("get", "ranges", "many", "stream", "put", "create", "list", "folders", "delete"):
        fails(
            lambda verb=verb: VERBS[verb](store),
            BucketNotFoundError,
            named(verb, place) + NO_BUCKET.replace("'bucket'", repr(s3_missing)),
            caplog,
            (s3_server.access_key, s3_server.secret_key),
        )
    S3Store(place).prepare()
    S3Store(place).prepare()
    store.put(KEY, b"x", create=True)
    assert store.get(KEY) == b"x"


# Keys


def test_wrong_keys(
    s3_server: S3Server,
    s3_bucket: str,
    client: Callable[[S3Place], Store],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Against moto, which takes any keys, the cases above stand for a real server's answers."""
    cases = [
        ({"access_key": ACCESS}, "InvalidAccessKeyId"),
        ({"secret_key": SECRET}, "SignatureDoesNotMatch"),
    ]
    for changes, code in cases if s3_server.real else []:
        place = s3_place(s3_server, s3_bucket, "p", **changes)
        store = client(place)
        for verb in ("get", "ranges", "stream", "put", "create", "list", "folders", "delete"):
            fails(
                lambda verb=verb, store=store: VERBS[verb](store),
                KeysRefusedError,
                named(verb, place) + REFUSED.format(code=code),
                caplog,
                (place.access_key or "", place.secret_key or ""),
            )
    assert list(client(s3_place(s3_server, s3_bucket, "p")).list()) == []


def signed_by(answers: Answers) -> set[str]:
    """The access keys of all requests."""
    return {
        r.headers["authorization"].partition("Credential=")[2].partition("/")[0]
        for r in answers.requests
    }


def use_all(store: Store, answers: Answers) -> None:
    answers.always(Answer(200, b"x", OBJECT))
    store.get(KEY)
    store.put(KEY, b"x")
    store.head(KEY)


def test_given_keys_do_not_mix_with_the_environments(
    answers: Answers,
    place: S3Place,
    client: Callable[[S3Place], Store],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token that belongs to other keys makes AWS refuse the request."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAofenvironment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    use_all(client(place), answers)
    assert signed_by(answers) == {ACCESS}
    assert all("x-amz-security-token" not in r.headers for r in answers.requests)


def test_keys_from_the_environment(
    answers: Answers,
    client: Callable[[S3Place], Store],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", answers.endpoint)
    place = S3Place.of(DataConfig("d", storage="s3://bucket/p"))
    assert (place.endpoint, place.access_key) == (answers.endpoint, None)
    use_all(client(place), answers)
    assert signed_by(answers) == {ACCESS}
    assert {r.headers.get("x-amz-security-token") for r in answers.requests} == {"a token"}
    answers.always(error(403, "InvalidAccessKeyId", REPEATED))
    for verb in ("get", "put", "list"):
        text = named(verb, place) + REFUSED.format(code="InvalidAccessKeyId")
        fails(lambda verb=verb: VERBS[verb](client(place)), KeysRefusedError, text, caplog)


def test_keys_from_a_profile(
    answers: Answers,
    client: Callable[[S3Place], Store],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "credentials").write_text(
        f"[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
        "aws_session_token = a token\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    use_all(client(S3Place("bucket", "", answers.endpoint, "us-east-1")), answers)
    assert signed_by(answers) == {ACCESS}
    assert {r.headers.get("x-amz-security-token") for r in answers.requests} == {"a token"}


def refused_unasked(answers: Answers, client: Callable[[S3Place], Store], reason: str) -> None:
    """For want of keys every verb is refused with this reason, and the server is not asked."""
    place = S3Place("bucket", "p", answers.endpoint, "us-east-1")
    for work in VERBS.values():
        with pytest.raises(PermissionDeniedError) as caught:
            work(client(place))
        assert str(caught.value) == f"{place.url} at {place.endpoint}: {reason}"
    assert answers.requests == []


def test_no_keys_at_all(answers: Answers, client: Callable[[S3Place], Store]) -> None:
    refused_unasked(
        answers,
        client,
        "no keys; give access_key= and secret_key=, set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or install storage-loader[aws] to use an AWS profile",
    )


def test_one_key_of_two_in_the_environment(
    answers: Answers, client: Callable[[S3Place], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    refused_unasked(
        answers,
        client,
        "AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not; set both, or give access_key= and "
        "secret_key=",
    )


def test_the_environment_fills_what_a_config_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    config = DataConfig("d", storage="s3://bucket/a b")
    assert S3Place.of(config) == S3Place("bucket", "a b", None, "us-east-1")
    assert S3Place.of(config).server == "AWS (us-east-1)"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    assert S3Place.of(config).region == "eu-1"
    monkeypatch.setenv("AWS_REGION", "eu-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general:1")
    assert S3Place.of(config) == S3Place("bucket", "a b", "http://general:1", "eu-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://of-s3")
    assert S3Place.of(config).endpoint == "https://of-s3"
    given = DataConfig(
        "d", storage="s3://bucket", endpoint="host:9", secure=False, region="r",
        access_key=ACCESS, secret_key=SECRET,
    )  # fmt: skip
    assert S3Place.of(given) == S3Place("bucket", "", "http://host:9", "r", ACCESS, SECRET)
    assert open_store(given).origin == "http://host:9 s3://bucket"


def test_no_text_of_an_object_holds_a_key(place: S3Place) -> None:
    for make in CLIENTS.values():
        store = make(place)
        for thing in (place, store, store.url, store.origin, getattr(store, "_client", None)):
            for text in (repr(thing), str(thing)):
                assert ACCESS not in text
                assert SECRET not in text


def test_a_key_that_may_not_be_deleted_is_named(
    answers: Answers, place: S3Place, client: Callable[[S3Place], Store]
) -> None:
    """A request for several keys is granted, and says for each what came of it."""
    answers.always(
        Answer(
            200,
            b"<DeleteResult><Error><Key>some prefix/a/b</Key><Code>AccessDenied</Code>"
            b"<Message>no</Message></Error></DeleteResult>",
        )
    )
    with pytest.raises(
        PermissionDeniedError,
        match=r"delete s3://bucket/some prefix/a/b at .*"
        r"no permission \(AccessDenied\); .* this needs s3:DeleteObject",
    ):
        client(place).delete(["a/b", "c"])
