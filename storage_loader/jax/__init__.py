"""JAX: the loader of `storage_loader` with `jax.Array`s, on devices and over meshes."""

try:
    import jax as _jax  # noqa: F401
except ImportError as error:
    raise ImportError("storage_loader.jax needs JAX: pip install 'storage-loader[jax]'") from error

from . import ragged as _ragged
from .adapters import DataLoader

_ragged.register()

__all__ = ["DataLoader"]
