"""TensorFlow: the loader of `storage_loader` with tensors, and as a `tf.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "storage_loader.tensorflow needs TensorFlow: pip install 'storage-loader[tensorflow]'"
    ) from error

import ml_dtypes
import numpy as np

from . import loader
from .errors import ConfigError, LoaderError
from .loader.feed import Feed
from .loader.fill.memory import ALIGNMENT, AlignedMemory
from .loader.fill.parts import Array


def as_tensor(array: Array) -> tf.Tensor:
    """A tensor of the array's dtype, on its own memory if that begins on a 64-byte boundary.

    It must not be written to from then on: TensorFlow takes tensors to be constant.
    """
    if array.ctypes.data % ALIGNMENT or not (array.flags.writeable and array.flags.c_contiguous):
        aligned = AlignedMemory().empty(array.nbytes).view(array.dtype).reshape(array.shape)
        aligned[...] = array
        array = aligned
    if array.dtype == ml_dtypes.bfloat16:
        return tf.bitcast(as_tensor(array.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


def _as_tensors(arrays: Mapping[str, Array]) -> dict[str, Any]:
    return {name: as_tensor(array) for name, array in arrays.items()}


def _reduce_tensor(value: Any) -> Any:
    """A pickler's `reducer_override`: tensors go as arrays, whose memory is not copied."""
    if not isinstance(value, tf.Tensor) or not (value.dtype.is_numeric or value.dtype.is_bool):
        return NotImplemented
    array = value.numpy()
    if value.dtype == tf.bfloat16:
        return _bfloat16, (array.view(np.uint16),)
    return as_tensor, (array,)


def _bfloat16(array: Array) -> tf.Tensor:
    return as_tensor(array.view(ml_dtypes.bfloat16))


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors.

    Tensors lie in the host's memory, where the rows were gathered: nothing is copied again.
    """

    _feed = Feed(convert=_as_tensors, reduce=_reduce_tensor, memory=AlignedMemory)

    def as_dataset(self, element_spec: Any = None) -> tf.data.Dataset:
        """A `tf.data.Dataset` of the batches; each of its iterators runs the next epoch.

        So `repeat()` and `model.fit` get every epoch in an order of its own. `element_spec` is
        needed where `transform` is given and decides what a batch is; the cardinality is
        `len(loader)`, unknown where the loader goes on from a loaded state. An error while
        loading is TensorFlow's own, with our error's class and text in it.
        """
        promised = self._resume is None
        if element_spec is None:
            element_spec = self.element_spec

        def batches() -> Iterator[Any]:
            if promised and self._resume is not None:
                raise LoaderError(
                    "a state was loaded after as_dataset(), whose number of batches it changes; "
                    "call as_dataset() again"
                )
            for batch in self:
                yield tf.nest.map_structure(_array_of, batch, element_spec)

        dataset = tf.data.Dataset.from_generator(batches, output_signature=element_spec)
        if promised:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(self)))
        options = tf.data.Options()
        # Ranks read their own rows; each worker taking a share of a rank's would lose some.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        # TensorFlow would take batches ahead unasked, and a state counts what was taken.
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)

    @property
    def element_spec(self) -> Any:
        """The `tf.TensorSpec` of each attribute of a batch, a dict or with `as_tuple` a tuple.

        The batch axis is None where a batch may have fewer rows than `batch_size`.
        """
        if self._transform is not None:
            raise ConfigError(
                "as_dataset: what a batch is, is up to transform; give element_spec, or leave "
                "transform out and use as_dataset().map"
            )
        kinds = {a.name: (a.dtype, a.shape) for a in self.schema}
        kinds |= {name: kind for name, kind in _EXTRAS.items() if name in self._settings.extras}
        axis = () if self._settings.batch_size is None else (self._rows_of_a_batch(),)
        spec = {
            name: tf.TensorSpec((*axis, *shape), dtype) for name, (dtype, shape) in kinds.items()
        }
        return tuple(spec.values()) if self._as_tuple else spec

    def _rows_of_a_batch(self) -> int | None:
        """Rows of every batch; None where the last one may have fewer."""
        partitions = [self._partition(0)]
        if self._resume is not None:
            state, reader = self._resume
            partitions.append(reader._partition(state.rows))
        beyond = {n % p.global_size for p in partitions for n in (p.num_rows, p.start)}
        is_smaller = self._settings.last_batch == "partial" and beyond != {0}
        return None if is_smaller else self._settings.batch_size


_EXTRAS: dict[str, tuple[str, tuple[()]]] = {"row": ("int64", ()), "valid": ("bool", ())}


def _array_of(tensor: Any, spec: tf.TensorSpec) -> Array:
    """On the tensor's memory. `from_generator` would cast another dtype than the spec's."""
    array = np.asarray(tensor)
    if array.dtype != spec.dtype.as_numpy_dtype:
        raise LoaderError(f"element_spec has {spec.dtype.name}, transform gave {array.dtype}")
    return array


__all__ = ["DataLoader", "as_tensor"]
