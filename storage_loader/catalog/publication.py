"""One commit on its way to readers, and what became of it.

A put can be cut short, by Ctrl-C or because no answer comes, and take effect all the same: its
request may be under way still. So who has not seen the answer asks the store, and asks in a way
that settles it: it puts a barrier under the commit's id, create-only as the commit's own put.
Either the barrier gets the key, and the commit is not published, whenever its request arrives; or
the key has the commit, and then it is published.
"""

from __future__ import annotations

from ..errors import ObjectExistsError, StoreError
from ..store import Store
from ..store.base import read_only
from .commits import CommitId


class Publication:
    """Publishes one commit by one create-only put. `settle` says whether it is published."""

    def __init__(
        self, store: Store, key: str, commit_id: CommitId, body: bytes, barrier: bytes
    ) -> None:
        self.id = commit_id
        self._store = store
        self._key = key
        self._body = read_only(body)
        self._barrier = barrier
        self._has_begun = False
        self._is_published: bool | None = None  # None: not known

    def publish(self) -> None:
        """Make the commit visible. `ObjectExistsError` where its id is taken.

        After another `StoreError` it is not published, unless the message says that it may be.
        """
        self._has_begun = True
        try:
            self._store.put(self._key, self._body, create=True)
        except StoreError as error:
            # The answer to a put may be lost, and its retry then meets its own first attempt.
            try:
                is_published = self.settle(once=True)
            except StoreError:
                raise type(error)(
                    f"{error}; the commit may have arrived all the same, look before saving again"
                ) from error
            if not is_published:
                raise
        self._is_published = True

    def settle(self, *, once: bool = False) -> bool:
        """Whether the commit is published, for good. Raises `StoreError` where that is not known.

        `once`: without waiting for a store that fails. May be interrupted, and asked again.
        """
        if self._is_published is None:
            store = self._store.once() if once else self._store
            self._is_published = self._has_begun and self._holds(store)
        return self._is_published

    def _holds(self, store: Store) -> bool:
        if store.ends_puts:
            return store.find(self._key) == self._body
        try:
            store.put(self._key, self._barrier, create=True)
        except ObjectExistsError:
            return store.get(self._key) == self._body
        return False
