"""The points of S3: the server, its certificate, the bucket's settings, and spoiled requests."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from minio.commonconfig import ENABLED, Filter
from minio.lifecycleconfig import Expiration, LifecycleConfig, Rule
from minio.versioningconfig import VersioningConfig

from storage_loader import Checked, check
from storage_loader.checks import s3
from storage_loader.checks.examine import examine
from storage_loader.checks.s3 import S3Points
from storage_loader.checks.trial import Effort
from storage_loader.store import ObjectInfo, Store
from storage_loader.store.forwarding import ForwardingStore
from storage_loader.store.retried import RetriedStore
from storage_loader.store.s3 import S3Store
from storage_loader.store.s3_bucket import S3Bucket
from storage_loader.store.s3_place import S3Place
from tests.support.answers import Answer, Answers, Request, error
from tests.support.places import s3_place
from tests.support.relay import Relay, relaying
from tests.support.s3 import S3Server
from tests.support.tls import made, serving

LITTLE = Effort(rounds=2, fresh=2, listed=20, speed_seconds=0.02, object_nbytes=2**16)


def store_of(place: S3Place) -> Store:
    return RetriedStore(S3Store(place), deadline=3)


def checked_at(place: S3Place, **options: Any) -> Checked:
    return examine(store_of(place), S3Points(place), **{"effort": LITTLE, **options})


def names(points: Any) -> list[str]:
    return [one.name for one in points]


@pytest.fixture
def relay(s3_server: S3Server) -> Iterator[Relay]:
    with relaying(s3_server.endpoint) as one:
        yield one


@pytest.fixture
def relayed(s3_server: S3Server, s3_bucket: str, relay: Relay) -> S3Place:
    return s3_place(replace(s3_server, endpoint=relay.endpoint), s3_bucket, "p", timeout=3)


def test_through_a_relay_that_spoils_nothing_all_holds(relayed: S3Place) -> None:
    checked = checked_at(relayed)
    assert [one for one in checked.points if one.state != "holds"] == []
    assert [*store_of(relayed).list()] == []


def is_list(request: Request) -> bool:
    return request.method == "GET" and "list-type=2" in request.path


def is_get(request: Request) -> bool:
    return request.method in ("GET", "HEAD") and "/p/" in request.path.partition("?")[0]


def is_put(request: Request) -> bool:
    return request.method == "PUT" and "/p/" in request.path


def is_delete(request: Request) -> bool:
    return request.method == "DELETE" or (request.method == "POST" and "delete" in request.path)


def is_create(request: Request) -> bool:
    return is_put(request) and "if-none-match" in request.headers


@pytest.mark.parametrize(
    ("is_refused", "point"),
    [
        (is_list, "list"),
        (is_get, "get"),
        (is_put, "put"),
        (is_delete, "delete"),
        (is_create, "create-only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_permission_that_is_missing_is_found(
    relay: Relay, relayed: S3Place, is_refused: Callable[[Request], bool], point: str
) -> None:
    relay.ask = lambda r: error(403, "AccessDenied") if is_refused(r) else r
    checked = checked_at(relayed)
    assert names(checked.falls_short) == [point]
    assert "s3:" in checked[point].remedy or point == "create-only"
    relay.ask = lambda r: r
    left = [info.key for info in store_of(relayed).list()]
    assert all(key.startswith(".storage-loader-check/") for key in left)
    assert bool(left) == bool(checked.left)


def test_keys_that_are_refused_are_found(relay: Relay, relayed: S3Place) -> None:
    relay.ask = lambda r: error(403, "InvalidAccessKeyId") if "?" in r.path else r
    checked = checked_at(relayed)
    assert names(checked.falls_short) == ["keys"]
    assert checked["put"].state == "not tried"


def test_dropped_ranges_are_found(relay: Relay, relayed: S3Place) -> None:
    def whole(request: Request, answer: Answer) -> Answer:
        if "range" not in request.headers or answer.status != 206:
            return answer
        size = int(answer.headers["Content-Range"].rpartition("/")[2])
        headers = {k: v for k, v in answer.headers.items() if k != "Content-Range"}
        return Answer(200, bytes(size), headers)

    relay.answered = whole
    assert names(checked_at(relayed).falls_short) == ["range"]


@pytest.mark.parametrize("seconds", [-90, 90])
def test_a_skewed_clock_is_found(relay: Relay, relayed: S3Place, seconds: int) -> None:
    def skewed(request: Request, answer: Answer) -> Answer:
        then = datetime.now(timezone.utc) + timedelta(seconds=seconds)
        headers = {k: v for k, v in answer.headers.items() if k.lower() != "date"}
        return replace(answer, headers={**headers, "Date": format_datetime(then, usegmt=True)})

    relay.answered = skewed
    checked = checked_at(relayed)
    assert names(checked.falls_short) == ["clock"]
    word = "ahead of" if seconds > 0 else "behind"
    assert re.search(rf"(89|90|91) s {word} this machine's", checked["clock"].detail)


def test_a_put_that_breaks_off_and_leaves_an_object_is_found(
    relay: Relay, relayed: S3Place
) -> None:
    relay.completes = True
    checked = checked_at(relayed)
    assert names(checked.falls_short) == ["no half objects"]
    assert [*store_of(relayed).list()] == []


class Unordered(ForwardingStore):
    """The server lists a page in another order."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter([*super().list(prefix)][::-1])


def test_listings_in_no_order_are_found(s3_server: S3Server, s3_bucket: str) -> None:
    place = s3_place(s3_server, s3_bucket)
    checked = examine(Unordered(store_of(place)), S3Points(place), effort=LITTLE)
    assert names(checked.falls_short) == ["whole listings"]
    assert "order of the keys" in checked["whole listings"].detail


def test_a_bucket_that_is_missing_is_made_and_removed(s3_server: S3Server) -> None:
    place = s3_place(s3_server, f"storage-loader-test-{uuid.uuid4().hex[:16]}")
    looked = checked_at(place, read_only=True)
    assert names(looked.falls_short) == ["bucket"]
    assert not s3_server.client().bucket_exists(place.bucket)
    checked = checked_at(place)
    assert [one for one in checked.points if one.state != "holds"] == []
    assert "may make it" in checked["bucket"].detail
    assert not s3_server.client().bucket_exists(place.bucket)


def test_a_bucket_that_may_not_be_made_is_told(relay: Relay, relayed: S3Place) -> None:
    place = replace(relayed, bucket="storage-loader-test-missing")
    relay.ask = lambda r: (
        error(403, "AccessDenied") if r.method == "PUT" and "/p/" not in r.path else r
    )
    checked = checked_at(place)
    assert names(checked.falls_short) == ["bucket"]
    assert "s3:CreateBucket" in checked["bucket"].remedy
    assert checked["put"].detail == "it needs bucket"


# ------------------------------------------------------------------------ what a bucket is set to


@pytest.fixture
def versioned(s3_server: S3Server) -> Iterator[S3Place]:
    client = s3_server.client()
    bucket = f"storage-loader-test-{uuid.uuid4().hex[:16]}"
    client.make_bucket(bucket)
    client.set_bucket_versioning(bucket, VersioningConfig(ENABLED))
    yield s3_place(s3_server, bucket, "p")
    if s3_server.real:  # moto cannot remove the mark of a deletion, and ends with the tests
        for one in client.list_objects(bucket, recursive=True, include_version=True):
            client.remove_object(bucket, one.object_name or "", version_id=one.version_id)
        client.remove_bucket(bucket)


def test_a_versioned_bucket_is_told_and_little_is_left_in_it(
    versioned: S3Place, s3_server: S3Server
) -> None:
    checked = checked_at(versioned)
    # Ceph 16 takes no notice of If-None-Match where versions are kept.
    beside = {"create-only"} if s3_server.real else set()
    assert {"versioning"} <= {*names(checked.falls_short)} <= {"versioning", *beside}
    assert {"whole listings", "speed"} <= {*names(checked.not_tried)}
    assert checked["speed"].detail == "it would leave much here, as versioning says"
    assert [*store_of(versioned).list()] == []


@pytest.mark.parametrize(
    ("prefix", "is_met"),
    [("", True), ("p/", True), ("p/digits/", True), ("other/", False)],
)
def test_rules_by_which_datasets_expire_are_found(
    s3_server: S3Server, s3_bucket: str, prefix: str, is_met: bool
) -> None:
    rule = Rule(
        status=ENABLED,
        rule_filter=Filter(prefix=prefix),
        rule_id="expire",
        expiration=Expiration(days=3),
    )
    s3_server.client().set_bucket_lifecycle(s3_bucket, LifecycleConfig([rule]))
    checked = checked_at(s3_place(s3_server, s3_bucket, "p"))
    assert names(checked.falls_short) == (["expiry"] if is_met else [])
    if is_met:
        assert f"below {prefix!r} after 3 days" in checked["expiry"].detail


def test_a_rule_for_what_checks_leave_is_no_fault(s3_server: S3Server, s3_bucket: str) -> None:
    rule = Rule(
        status=ENABLED,
        rule_filter=Filter(prefix="p/.storage-loader-check/"),
        rule_id="expire",
        expiration=Expiration(days=1),
    )
    s3_server.client().set_bucket_lifecycle(s3_bucket, LifecycleConfig([rule]))
    assert checked_at(s3_place(s3_server, s3_bucket, "p")).falls_short == ()


NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


def at(answers: Answers) -> S3Place:
    return S3Place("bucket", "p", answers.endpoint, "us-east-1", "an access key", "a secret key")


@pytest.mark.parametrize(
    ("body", "lock"),
    [
        ("<ObjectLockEnabled>Enabled</ObjectLockEnabled>", ""),
        (
            "<ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
            "<Mode>GOVERNANCE</Mode><Days>7</Days></DefaultRetention></Rule>",
            "7 days",
        ),
        ("", None),
    ],
)
def test_a_lock_is_read(answers: Answers, body: str, lock: str | None) -> None:
    document = f"<ObjectLockConfiguration {NAMESPACE}>{body}</ObjectLockConfiguration>"
    answers.always(Answer(200, document.encode()))
    assert S3Bucket.of(at(answers)).lock() == lock
    [request] = answers.requests
    assert request.path == "/bucket?object-lock="
    answers.always(error(404, "ObjectLockConfigurationNotFoundError"))
    assert S3Bucket.of(at(answers)).lock() is None


class Locked(S3Bucket):
    """A bucket with a default retention."""

    def lock(self) -> str | None:
        return "7 days"


def test_a_locked_bucket_is_told(s3_server: S3Server, s3_bucket: str) -> None:
    place = s3_place(s3_server, s3_bucket)
    points = S3Points(place, Locked(place))
    checked = examine(store_of(place), points, effort=LITTLE)
    assert names(checked.falls_short) == ["lock"]
    assert checked["lock"].detail == "each new object is locked for 7 days"


@pytest.mark.parametrize(
    "answer",
    [
        error(403, "AccessDenied"),
        error(501, "NotImplemented"),
        Answer(200, b"not XML"),
        Answer(200, b"<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>"),
    ],
)
def test_settings_that_are_not_told_are_not_tried(answers: Answers, answer: Answer) -> None:
    answers.always(answer)
    points = {point.name: point for point in S3Points(at(answers)).after()}
    for name in ("versioning", "lock", "expiry"):
        found = points[name].find(None)  # type: ignore[arg-type]
        assert found.state == "not tried", found
        assert found.detail


# ----------------------------------------------------------------------------------- reaching it


def test_a_server_that_is_not_there_is_told() -> None:
    checked = check(
        "s3://bucket", endpoint="http://127.0.0.1:1", access_key="a", secret_key="b" * 8
    )
    assert names(checked.falls_short) == ["reached"]
    assert "Connection refused" in checked["reached"].detail
    assert {one.state for one in checked.points[1:]} == {"not tried"}
    assert checked.seconds < 10


def test_a_name_without_an_address_is_told() -> None:
    checked = check(
        "s3://bucket", endpoint="http://no-such-host.invalid", access_key="a", secret_key="b" * 8
    )
    assert names(checked.falls_short) == ["reached"]
    assert "the name no-such-host.invalid has no address" in checked["reached"].detail


def test_a_server_without_tls_is_told(answers: Answers) -> None:
    checked = check(
        "s3://bucket",
        endpoint=answers.endpoint.replace("http:", "https:"),
        access_key="a",
        secret_key="b" * 8,
    )
    assert "does not speak TLS" in checked["reached"].detail
    assert "secure=False" in checked["reached"].remedy


def test_a_certificate_that_is_trusted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made().written(tmp_path / "own.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with serving(file) as (endpoint, _):
        found = s3.S3Points(S3Place("bucket", "", endpoint, "us-east-1"))._reached(None)  # type: ignore[arg-type]
    assert found.state == "holds"
    assert "TLSv1" in found.detail


def test_no_key_is_shown(relay: Relay, relayed: S3Place) -> None:
    place = replace(relayed, secret_key="a very secret key", access_key="an access key")
    relay.ask = lambda r: error(403, "SignatureDoesNotMatch", "a very secret key")
    assert "a very secret key" not in repr(checked_at(place))
