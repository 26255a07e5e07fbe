"""TensorFlow: the loader of `storage_loader` with tensors, and as a `tf.data.Dataset`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from .catalog import Snapshot
from .errors import ConfigError, LoaderError
from .loader.decode import Mask, as_array, stacked
from .loader.feed import Feed
from .loader.fill.memory import ALIGNMENT, AlignedMemory
from .loader.fill.parts import Array
from .loader.fill.ragged import length_name
from .ragged import Ragged
from .schema import Attribute


def as_tensor(array: Array | Ragged) -> tf.Tensor | tf.RaggedTensor:
    """A tensor of the array's dtype, on its own memory if that begins on a 64-byte boundary.

    Rows that differ in length become a `tf.RaggedTensor`. The memory must not be written to from
    then on: TensorFlow takes tensors to be constant.
    """
    if isinstance(array, Ragged):
        values, splits = as_tensor(array.values), as_tensor(array.offsets)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    if array.ctypes.data % ALIGNMENT or not (array.flags.writeable and array.flags.c_contiguous):
        aligned = AlignedMemory().empty(array.nbytes).view(array.dtype).reshape(array.shape)
        aligned[...] = array
        array = aligned
    if array.dtype == ml_dtypes.bfloat16:
        return tf.bitcast(as_tensor(array.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())


_json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class _Convert:
    """Makes tensors of a batch or row; texts are of dtype string."""

    json: frozenset[str] = frozenset()  # attributes whose values are given as their JSON text
    is_batch: bool = True

    def __call__(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._tensor(name, field) for name, field in fields.items()}

    def _tensor(self, name: str, field: Any) -> Any:
        if name in self.json:
            field = [_json_text(value) for value in field] if self.is_batch else _json_text(field)
        elif isinstance(field, (np.ndarray, Ragged)):
            return as_tensor(field)
        return tf.constant(field, tf.string)


def _stack(made: Sequence[Any], is_stored: Mask) -> Any:
    """As `stacked`: a tensor, of dtype string where all are text, or a list of what they are."""
    field = stacked([_array_of_one(one) for one in made], is_stored)
    if not isinstance(field, list):
        return as_tensor(field)
    if field and all(isinstance(one, (str, bytes)) for one in field):
        return tf.constant(field, tf.string)
    return [_tensor_of_one(one) for one in field]


def _array_of_one(value: Any) -> Any:
    is_number = isinstance(value, tf.Tensor) and (value.dtype.is_numeric or value.dtype.is_bool)
    return value.numpy() if is_number else value


def _tensor_of_one(value: Any) -> Any:
    array = as_array(value) if isinstance(value, np.ndarray) else None
    return value if array is None else as_tensor(array)


def _reduce_tensor(value: Any) -> Any:
    """A pickler's `reducer_override`: tensors go as arrays, whose memory is not copied."""
    if not isinstance(value, tf.Tensor) or not (value.dtype.is_numeric or value.dtype.is_bool):
        return NotImplemented
    array = np.asarray(value.numpy())  # which gives a scalar's value
    if value.dtype == tf.bfloat16:
        return _bfloat16, (array.view(np.uint16),)
    return as_tensor, (array,)


def _bfloat16(array: Array) -> tf.Tensor:
    return as_tensor(array.view(ml_dtypes.bfloat16))


class DataLoader(loader.DataLoader):
    """`storage_loader.DataLoader` whose batches are dicts of tensors; `transform` gets tensors.

    Tensors lie in the host's memory, where the rows were gathered: nothing is copied again. Rows
    that differ in length are a `tf.RaggedTensor`; bytes, str and JSON are tensors of dtype string,
    UTF-8, JSON as its text.
    """

    _feed = Feed(convert=_Convert(), stack=_stack, reduce=_reduce_tensor, memory=AlignedMemory)

    def open(self) -> Snapshot:
        snapshot = super().open()
        names = frozenset(a.name for a in snapshot.schema if a.dtype == "json")
        convert = _Convert(names, is_batch=self._settings.batch_size is not None)
        if self._feed.convert != convert:
            self._feed = replace(self._feed, convert=convert)
        return snapshot

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
        """What each attribute of a batch is, a dict or with `as_tuple` a tuple.

        A `tf.TensorSpec`, or of rows that differ in length a `tf.RaggedTensorSpec`. The batch axis
        is None where a batch may have fewer rows than `batch_size`; that of padded rows is None
        unless `Pad` has a length.
        """
        if self._runs_user_code:
            whose = "transform" if self._transform is not None else "decode"
            raise ConfigError(
                f"as_dataset: what a batch is, is up to {whose}; give element_spec, or leave "
                f"{whose} out and use as_dataset().map"
            )
        axis = () if self._settings.batch_size is None else (self._rows_of_a_batch(),)
        spec = {name: one for a in self.schema for name, one in self._specs(a, axis).items()}
        for name, dtype in _EXTRAS.items():
            if name in self._settings.extras:
                spec[name] = tf.TensorSpec(axis, dtype)
        return tuple(spec.values()) if self._as_tuple else spec

    def _specs(self, attribute: Attribute, axis: tuple[int | None, ...]) -> dict[str, Any]:
        """What an attribute becomes, by name; `axis`: that of the batch, if there is one."""
        name, item = attribute.name, attribute.item_shape
        if attribute.is_text:
            return {name: tf.TensorSpec(axis, tf.string)}
        if not attribute.is_variable:
            return {name: tf.TensorSpec((*axis, *item), attribute.dtype)}
        pad = self._pad.get(name)
        if pad is not None:
            width = None if pad.length is None else pad.width(np.zeros(0, np.int64))
            padded = tf.TensorSpec((*axis, width, *item), attribute.dtype)
            return {name: padded, length_name(name): tf.TensorSpec(axis, tf.int64)}
        if not axis:
            return {name: tf.TensorSpec((None, *item), attribute.dtype)}
        shape = (*axis, None, *item)
        return {name: tf.RaggedTensorSpec(shape, attribute.dtype, 1, tf.int64)}

    def _rows_of_a_batch(self) -> int | None:
        """Rows of every batch; None where the last one may have fewer."""
        partitions = [self._partition(0)]
        if self._resume is not None:
            state, reader = self._resume
            partitions.append(reader._partition(state.rows))
        beyond = {n % p.global_size for p in partitions for n in (p.num_rows, p.start)}
        is_smaller = self._settings.last_batch == "partial" and beyond != {0}
        return None if is_smaller else self._settings.batch_size


_EXTRAS = {"row": "int64", "valid": "bool"}


def _array_of(tensor: Any, spec: Any) -> Any:
    """On the tensor's memory. `from_generator` would cast another dtype than the spec's."""
    is_whole = isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "dtype", None) == tf.string
    given = tensor if is_whole else np.asarray(tensor)
    dtype = spec.dtype if is_whole else spec.dtype.as_numpy_dtype
    if given.dtype != dtype:
        raise LoaderError(f"element_spec has {spec.dtype.name}, transform gave {given.dtype}")
    return given


__all__ = ["DataLoader", "as_tensor"]
