"""Pages of listings: what S3 servers write, and what no server writes."""

from __future__ import annotations

import gc
from datetime import datetime, timedelta, timezone
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_loader.store.minio_s3 import MinioS3
from storage_loader.store.s3_page import Listed, Page
from storage_loader.store.s3_place import S3Place
from tests.support.answers import OBJECT, Answer, Answers

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"))
WHEN = datetime(2015, 10, 21, 7, 28, tzinfo=timezone.utc)
ENTRY = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{}</LastModified></Contents>"


def page(content: str, *, name: str = "ListBucketResult", head: str = "") -> bytes:
    """A document with this content in its root."""
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<?xml version="1.0"?>{head}<{name} xmlns="{space}">{content}</{name}>'.encode()


@given(
    st.dictionaries(
        NAMES.filter(bool),
        st.tuples(
            st.integers(0, 2**63 - 1),
            st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)),
        ),
    ),
    st.lists(NAMES),
    st.none() | st.text("abc=/+", min_size=1),
    st.booleans(),
)
def test_a_page_is_read_as_it_was_written(
    objects: dict[str, tuple[int, datetime]],
    folders: list[str],
    following: str | None,
    is_coded: bool,
) -> None:
    def written(name: str) -> str:
        return quote(name, safe="/").replace("%20", "+") if is_coded else escape(name)

    content = "<Name>bucket</Name><KeyCount>7</KeyCount><Owner><ID>1</ID></Owner>"
    for name, (nbytes, when) in objects.items():
        said = when.isoformat(timespec="microseconds").replace("+00:00", "Z")
        entry = ENTRY.format(written(name), nbytes, said)
        more = "<ETag>&quot;t&quot;</ETag><Owner><ID>2</ID><Name>\n</Name></Owner></Contents>"
        content += entry.replace("</Contents>", more) + "\n  "
    folders = [f"{folder}/" for folder in folders]
    for folder in folders:
        content += f"<CommonPrefixes><Prefix>{written(folder)}</Prefix></CommonPrefixes>"
    content += f"<IsTruncated>{str(following is not None).lower()}</IsTruncated>"
    if following is not None:
        content += f"<NextContinuationToken>{following}</NextContinuationToken>"
    if is_coded:  # some say so before the names, some after them
        content += "<EncodingType>url</EncodingType>"
    listed = [Listed(name, *what) for name, what in objects.items()]
    assert Page.parse(page(content)) == Page(listed, folders, following)


@pytest.mark.parametrize(
    ("said", "micros"), [("", 0), (".5", 500_000), (".042", 42_000), (".123456789", 123_456)]
)
def test_times_have_any_digits(said: str, micros: int) -> None:
    [found] = Page.parse(page(ENTRY.format("a", 1, f"2015-10-21T07:28:00{said}Z"))).objects
    assert found == Listed("a", 1, WHEN + timedelta(microseconds=micros))


def test_a_time_may_be_missing() -> None:
    [found] = Page.parse(page("<Contents><Key>a</Key><Size>1</Size></Contents>")).objects
    assert found.modified == datetime.fromtimestamp(0, timezone.utc)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not XML",
        page("<Contents>"),
        page("<Code>AccessDenied</Code>", name="Error"),
        page("", head="<!DOCTYPE ListBucketResult>"),
        page("&b;", head='<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>'),
        page("", head='<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">'),
        page("&undeclared;"),
        page("<a>" * 100 + "</a>" * 100),
        page(ENTRY.format("", 1, "2015-10-21T07:28:00Z")),
        page("<Contents><Size>1</Size></Contents>"),
        page("<Contents><Key>a</Key></Contents>"),
        page("<CommonPrefixes></CommonPrefixes>"),
        *(page(ENTRY.format("a", size, "2015-10-21T07:28:00Z")) for size in ("", "-1", "1e3", "٣")),
        page(ENTRY.format("a", "9" * 5000, "2015-10-21T07:28:00Z")),
        *(
            page(ENTRY.format("a", 1, when))
            for when in ("", "2015-10-21", "2015-13-21T07:28:00Z", "2015-10-21T07:28:00+01:00")
        ),
    ],
)
def test_what_is_no_page_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"a listing|an object of|month") as caught:
        Page.parse(body)
    assert type(caught.value) is ValueError  # not one of expat's
    assert len(str(caught.value)) < 200


def test_a_client_that_is_freed_leaves_the_others_their_connections(answers: Answers) -> None:
    """They share them; minio's own client closes all that it was given."""
    answers.always(Answer(200, b"x", OBJECT))
    place = S3Place("bucket", "", answers.endpoint, "us-east-1", "access", "secret")
    for _ in range(3):
        assert MinioS3(place).get("key") == b"x"
        gc.collect()
    assert len({request.port for request in answers.requests}) == 1
