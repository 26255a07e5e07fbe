"""What a bucket is set to, and requests that no verb of `Store` makes: for those who check one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from .base import STREAM_CHUNK
from .keys import Keys
from .minio_s3 import MinioS3
from .s3_place import Failure, S3Place, code_of, raise_refused
from .signature import UNSIGNED

_UNSET = {
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "NoSuchObjectLockConfiguration",
}


@dataclass(frozen=True)
class Rule:
    """A rule that lets objects of a bucket expire."""

    prefix: str  # of the keys that it is for
    after: str  # "3 days", or a date


class CutError(Exception):
    """The body of a put ends here, on purpose."""


class S3Bucket(MinioS3):
    """A bucket as its owner sees it. The settings raise `StoreError`s, as the verbs do."""

    @classmethod
    def of(cls, place: S3Place) -> S3Bucket:
        """With the keys that a place names."""
        provider = place.credentials
        return cls(place, None if provider is None else Keys(place, provider))

    def versioning(self) -> str:
        """`Enabled`, `Suspended`, or "" where it was never turned on."""
        found = self._setting("versioning")
        return "" if found is None else _text(found, "Status")

    def lock(self) -> str | None:
        """How long new objects are locked, "" where only those that ask for it; None: no lock."""
        found = self._setting("object-lock")
        if found is None or _text(found, "ObjectLockEnabled") != "Enabled":
            return None
        for unit in ("Days", "Years"):
            if number := _text(found, unit):
                return f"{number} {unit.lower()}"
        return ""

    def expiring(self) -> list[Rule]:
        """The rules in force by which objects expire."""
        found = self._setting("lifecycle")
        rules = []
        for rule in [] if found is None else found.iter():
            if _name(rule) != "Rule" or _text(rule, "Status") != "Enabled":
                continue
            for part in rule:
                if _name(part) == "Expiration":
                    days, date = _text(part, "Days"), _text(part, "Date")
                    if days or date:
                        after = f"{days} days" if days else date
                        rules.append(Rule(_text(rule, "Prefix"), after))
        return rules

    def _setting(self, name: str) -> ElementTree.Element | None:
        """A setting's document; None where there is none."""
        url = f"{self._bucket_url}?{name}="
        verb = f"ask for {name} of"
        with self._mapped_errors(verb, ""):
            response = self._http.request(
                "GET", url, headers=self._signed("GET", url), redirect=False
            )
            if response.status == 404 and code_of(response.data) in _UNSET:
                return None
            if response.status >= 300:
                raise_refused(self._shown, Failure(verb, ""), response.status, response.data)
            if re.search(rb"<!\s*DOCTYPE", response.data):
                raise ValueError("a setting that declares a document type")
            return ElementTree.fromstring(response.data)

    def put_cut(self, key: str, nbytes: int) -> None:
        """Announce an object of so many bytes, send half of them and end the connection."""
        url = self._object_url(key)
        with self._mapped_errors("put", key):
            try:
                headers = self._signed("PUT", url, payload=UNSIGNED)
                headers["content-length"] = str(nbytes)
                self._asked(Failure("put", key), "PUT", url, headers, _half(nbytes))
            except CutError:
                return

    def remove(self) -> None:
        """Remove the bucket, which must be empty."""
        with self._mapped_errors("remove bucket", ""):
            self._minio.remove_bucket(self._place.bucket)


def _half(nbytes: int) -> Iterator[bytes]:
    left = nbytes // 2
    while left:
        piece = min(left, STREAM_CHUNK)
        yield bytes(piece)
        left -= piece
    raise CutError


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str:
    """The text of the first element of this name below one; "" where there is none."""
    found = (one.text or "" for one in element.iter() if _name(one) == name)
    return next(found, "").strip()
