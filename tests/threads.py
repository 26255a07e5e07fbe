"""Which threads of the library run in this process."""

import threading


def running(*kinds: str) -> list[str]:
    """The names of the running threads of these kinds: "ahead", "fetch", "plan", "save", "verify".

    Kinds must be named, since a client of S3 keeps threads of its own for as long as some test's
    loader lives in this process.
    """
    prefixes = tuple(f"storage_loader-{kind}" for kind in kinds)
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefixes)]
