"""How S3 requests are signed: AWS's Signature Version 4, in headers."""

from __future__ import annotations

import hashlib
import hmac
import time
from functools import lru_cache
from typing import NamedTuple

NO_PAYLOAD = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"


class Signer(NamedTuple):
    """The keys that requests to a server are signed with."""

    host: str  # as the header says it
    region: str
    access_key: str
    secret_key: str
    token: str | None  # of a session

    def headers(
        self,
        verb: str,
        path: str,
        query: str = "",
        *,
        payload: str = NO_PAYLOAD,
        create: bool = False,
        now: float | None = None,
    ) -> dict[str, str]:
        """What lets a request in. All are signed.

        `path`, `query`: quoted, the latter sorted by its names. `payload`: the SHA-256 of what is
        sent, or `UNSIGNED`. `create`: nothing may be there. `now`: POSIX time; None is this moment.
        """
        when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        # In the order of their names, which is the one to sign them in.
        fields = {"host": self.host}
        if create:
            fields["if-none-match"] = "*"
        fields["x-amz-content-sha256"] = payload
        fields["x-amz-date"] = when
        if self.token:
            fields["x-amz-security-token"] = self.token
        names = ";".join(fields)
        lines = "".join([f"{name}:{value}\n" for name, value in fields.items()])
        request = f"{verb}\n{path}\n{query}\n{lines}\n{names}\n{payload}"
        scope = f"{when[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{when}\n{scope}\n{digest}"
        key = _signing_key(self.secret_key, when[:8], self.region)
        return {
            **fields,
            "authorization": f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={_hmac(key, text).hex()}",
        }


@lru_cache(maxsize=8)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    """Good for all requests of a day."""
    key = f"AWS4{secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = _hmac(key, word)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
