"""Processes that read together: all of them the version that the first one sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..catalog import Catalog, Version
from ..config import DataConfig
from ..errors import LoaderError


@dataclass(frozen=True)
class Peers:
    """This process and those that open a dataset together with it, as a framework has them."""

    first: str  # what errors call the first one, e.g. "rank 0"
    is_first: bool  # this process is it
    broadcast: Callable[[Any], Any]
    """The first one's argument, which JSON knows, in each of them; all must call this."""

    def newest_version(self, config: DataConfig) -> Version:
        """The newest version as the first one sees it. All must call this.

        Raises the first one's error in each of them, so that none waits for the others.
        """
        told: Any = None
        if self.is_first:
            try:
                version = Catalog(config).snapshot().version
            except Exception as error:
                self.broadcast(f"{type(error).__name__}: {error}")
                raise
            told = [version.hash, *version.commits]
        told = self.broadcast(told)
        if isinstance(told, str):
            raise LoaderError(f"{self.first} could not open the dataset: {told}")
        return Version(tuple(told[1:]), told[0])
