"""A store around a store reaches the one within by every verb, and by none that is slower."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

from storage_loader.store import CountedStore, Counter, MemoryStore, Store
from storage_loader.store.forwarding import ForwardingStore
from storage_loader.store.keys import RenewedStore
from storage_loader.store.retried import RetriedStore

SLOW = {"get_many", "find", "find_all", "find_and_list"}  # made of other verbs where not overridden
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "get": ("a",),
    "get_ranges": ("a", [(0, 1)]),
    "get_many": ([("a", [(0, 1)])],),
    "find": ("a",),
    "find_all": (["a"],),
    "find_some": (["a"], {}),
    "get_some": ([("a", [(0, 1)])], {}),
    "find_and_list": ("a", ""),
    "stream": ("a", 0, 1),
    "put": ("b", b"2"),
    "head": ("a",),
    "list": ("",),
    "list_folders": ("",),
    "delete": (["b"],),
    "list_unfinished": ("",),
    "delete_unfinished": ([],),
    "now": ("probe",),
    "prepare": (),
    "absence": (),
    "note_retry": ("a",),
    "until": (threading.Event(),),
    "once": (),
    "noting": (lambda: None,),
}


class Noting(MemoryStore):
    """Notes which of its verbs are called."""

    def __init__(self) -> None:
        super().__init__("noting")
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ARGUMENTS:
            object.__getattribute__(self, "called").append(name)
        return object.__getattribute__(self, name)


class FixedKeys:
    """Never replaced."""

    def current(self) -> None:
        return None

    def replaced(self, used: object) -> bool:
        return False


def test_every_verb_is_known_here() -> None:
    verbs = {
        name
        for name, _ in inspect.getmembers(Store, inspect.isfunction)
        if not name.startswith("_")
    }
    assert verbs == set(ARGUMENTS)


def made(kind: str, inner: Store) -> Store:
    keys: Any = FixedKeys()
    return {
        "forwarding": lambda: ForwardingStore(inner),
        "retried": lambda: RetriedStore(inner, 1.0),
        "counted": lambda: CountedStore(inner, Counter()),
        "renewed": lambda: RenewedStore(inner, keys),
    }[kind]()


@pytest.mark.parametrize("verb", sorted(ARGUMENTS))
@pytest.mark.parametrize("kind", ["forwarding", "retried", "counted", "renewed"])
def test_a_verb_reaches_the_store_within(kind: str, verb: str) -> None:
    inner = Noting()
    inner.put("a", b"1")
    outer = made(kind, inner)
    inner.called.clear()
    result = getattr(outer, verb)(*ARGUMENTS[verb])
    if verb in ("stream", "list", "list_unfinished"):
        list(result)
    if kind == "retried" and verb in ("until", "once", "noting"):
        return  # it waits and notes by itself
    if verb in ("find_some", "get_some") and kind not in ("renewed", "counted"):
        assert inner.called == result == []  # nothing passes by what the outer one does to `get`
        return
    made_of = {"find": "get", "once": "until"}.get(verb, verb)
    if verb in SLOW and kind in ("forwarding", "renewed"):
        assert {"get", "get_ranges", "list"} & set(inner.called)
    elif kind == "retried" and verb in SLOW:  # in its own threads
        assert {"find", "get", "get_ranges", "list"} & set(inner.called)
    else:
        assert inner.called[0] == made_of


def test_what_a_wrapper_is_told_goes_on() -> None:
    """A counted store around a retried one: the notes of both are called."""
    noted: list[str] = []
    counter = Counter()
    inner = RetriedStore(Noting(), 1.0)
    outer = CountedStore(inner, counter).noting(lambda: noted.append("outer"))
    assert isinstance(outer, CountedStore)
    within = outer._inner
    assert isinstance(within, RetriedStore)
    for note in within._notes:
        note()
    assert (counter.total.retries, noted) == (1, ["outer"])
