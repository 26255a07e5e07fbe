"""Keys that no config names: the environment's, or an AWS profile's or SSO's through boto3."""

from __future__ import annotations

import os
from typing import Any

from ..errors import PermissionDeniedError
from .s3_place import S3Place


def has_environment_keys(place: S3Place) -> bool:
    """Whether the environment holds keys; `PermissionDeniedError` where it holds one alone."""
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        return False
    if not os.environ.get("AWS_SECRET_ACCESS_KEY"):
        raise PermissionDeniedError(
            f"{place.url} at {place.server}: AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is "
            "not; set both, or give access_key= and secret_key="
        )
    return True


def profile_session(place: S3Place) -> Any:
    """The boto3 session with keys for a place that has none of its own.

    None on AWS itself where there is no profile: what is left is the role of the machine.
    Raises `PermissionDeniedError` elsewhere.
    """
    try:
        import boto3  # noqa: PLC0415  optional
    except ImportError:
        session = None
    else:
        session = boto3.Session()
    if session is not None and session.get_credentials() is not None:
        return session
    if place.endpoint is None:
        return None
    raise PermissionDeniedError(
        f"{place.url} at {place.server}: no keys; give access_key= and secret_key=, set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install storage-loader[aws] to use "
        "an AWS profile"
    )
