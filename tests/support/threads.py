"""Which threads of the library a test has started."""

import gc
import threading
import weakref

_LIBRARY = "storage_loader-"
_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def running(*kinds: str) -> list[str]:
    """The names of this test's running threads of these kinds: "ahead", "fetch", "plan", "save",
    "verify".

    Kinds must be named, since a client of S3 keeps threads of its own for as long as some test's
    loader lives in this process.
    """
    prefixes = tuple(f"{_LIBRARY}{kind}" for kind in kinds)
    return [thread.name for thread in _all() if thread.name.startswith(prefixes)]


def forget_earlier() -> None:
    """Count from now on only threads that are started from now on.

    Called before each test: an iterator that an earlier one left in a cycle, as the traceback of an
    expected error is, still has threads. What that test made is young: to look at all that was ever
    imported takes a third of a second.
    """
    if _all():
        gc.collect(1)
    _earlier.update(_all())


def _all() -> list[threading.Thread]:
    found = (thread for thread in threading.enumerate() if thread not in _earlier)
    return [thread for thread in found if thread.name.startswith(_LIBRARY)]
