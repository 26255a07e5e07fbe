"""Every error this library raises, in one tree under `StorageLoaderError`.

Each class is also the standard class that fits, so `except FileNotFoundError` works
for those who do not know ours. Errors of other libraries are mapped where they enter
(`store/`, `hdf5/`) and chained with `raise ... from`.
"""

from . import text


class StorageLoaderError(Exception):
    """Base class of everything raised on purpose by storage_loader.

    Each argument is a line of the message. What stands in one may come from a storage or a
    server: it is shown as `printable` text, and begins no other line.
    """

    def __init__(self, *lines: object, message: str | None = None) -> None:
        """`message`: all lines in one text, as another error has them; torch gives it so, too."""
        super().__init__(*(lines if message is None else (text.Lines(message),)))

    @property
    def message(self) -> str:
        """The text. That there is one tells torch to give `message`, see its `reraise`."""
        return str(self)

    def __str__(self) -> str:
        return "\n".join(map(_shown, self.args))


def _shown(line: object) -> str:
    if isinstance(line, text.Lines):
        return "\n".join(map(text.printable, line.split("\n")))
    return text.printable(str(line))


class ConfigError(StorageLoaderError, ValueError):
    """A setting is wrong or contradicts another; nothing was read or written."""


class UnknownNameError(StorageLoaderError, TypeError):
    """A keyword, key or option that does not exist; the message gives the nearest one.

    Or an argument without the keyword that it needs.
    """


class SchemaError(StorageLoaderError, ValueError):
    """Attributes or a batch do not fit the dataset's schema; nothing was stored."""


class CastError(SchemaError):
    """A value cannot be stored in its attribute's dtype; nothing of its batch was stored."""


class DatasetNotFoundError(StorageLoaderError, FileNotFoundError):
    """No dataset with this name and `additional` exists in the storage."""


class VersionNotFoundError(StorageLoaderError, LookupError):
    """The dataset exists, but not the version asked for."""


class FormatError(StorageLoaderError, ValueError):
    """Stored bytes are not what the format or the commit says."""


class ChecksumError(FormatError):
    """Stored bytes differ from the checksum that their commit recorded."""


class ThreadError(StorageLoaderError, RuntimeError):
    """The system starts no more threads for this user or container."""


class SaverError(StorageLoaderError, RuntimeError):
    """A saver cannot go on: closed, failed, aborted, or used in another process."""


class LoaderError(StorageLoaderError, RuntimeError):
    """A loader cannot go on."""


class LoaderAttributeError(LoaderError, AttributeError):
    """What a loader or dataset was made with stays as it is; or it has nothing of this name."""


class TransformError(LoaderError):
    """The user's transform raised; the message names the rows, the cause is its own error."""


class StoreError(StorageLoaderError, OSError):
    """A storage operation failed; the message names place, key, cause and remedy."""

    is_transient = False
    """Whether the same request may succeed a moment later."""


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no object under this key."""


class ObjectExistsError(StoreError, FileExistsError):
    """A create-only put found an object under its key."""


class ObjectShortError(StoreError, FormatError):
    """An object ends before the bytes that its commit says it has."""


class NotAnObjectError(StoreError, FormatError):
    """A link, a FIFO or something else that is no regular file lies where an object must be."""


class ObjectTooLargeError(StoreError, FormatError):
    """An object that is read whole has more bytes than what it should be can have."""


class StoreFullError(StoreError):
    """There is no room left: a full disk, or a quota that is used up."""


class BucketNotFoundError(StoreError, FileNotFoundError):
    """The bucket does not exist."""


class FolderNotFoundError(StoreError, FileNotFoundError):
    """The folder that a storage names does not exist."""


class PermissionDeniedError(StoreError, PermissionError):
    """Keys are wrong or lack the permission."""


class KeysRefusedError(PermissionDeniedError):
    """The server does not know the keys, or the signature made with them is wrong."""


class StoreConnectionError(StoreError, ConnectionError):
    """The endpoint does not answer, or the connection to it broke off."""

    is_transient = True


class StoreTimeoutError(StoreError, TimeoutError):
    """The endpoint took too long."""

    is_transient = True


class StoreUnavailableError(StoreError):
    """The server answered that it cannot serve this now: HTTP 5xx, 429, SlowDown."""

    is_transient = True
