"""Keys to a storage that expire, and the function that gives new ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from .errors import ConfigError


@dataclass(frozen=True)
class Credentials:
    """What `DataConfig(credentials=function)` calls the function for. Shows no secret."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)  # of a session, where keys are temporary
    expires: datetime | None = None  # with time zone; None: good until the server refuses them

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key", "token"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "token" and value is None):
                raise ConfigError(f"Credentials: {name} is a string that is not empty")
        if self.expires is not None and (
            not isinstance(self.expires, datetime) or self.expires.tzinfo is None
        ):
            raise ConfigError("Credentials: expires is a datetime with a time zone, or None")


Provider = Callable[[], Credentials]
