"""The data partitioners as tf.data pipelines.

Who reads which example is arithmetic on indices (`assignment.py`), which NumPy
does for many steps at a time. A pipeline starts from these indices, for each of
the partitions (`seldp`, `defdp`, `by_label`, `dirichlet`), and does the rest:

  indices -> gather -> cast -> transform and augment -> batch -> prefetch

A data set that stays on disk has such a pipeline for each worker: see
`streamed.py`.
"""

from collections.abc import Iterator, Mapping
import itertools
from typing import Any

import tensorflow as tf

from selsync_jax.data.arrays import Block
from selsync_jax.data.arrays import Examples
from selsync_jax.data.arrays import KeyedTransform
from selsync_jax.data.protocol import Batch


def slots(blocks: Iterator[Block]) -> tf.data.Dataset:
  """Returns a pipeline of blocks of indices, one after the other.

  Args:
    blocks: at least one; only the leading axes of their arrays may differ.
  """
  first = next(blocks)
  return tf.data.Dataset.from_generator(
    lambda: itertools.chain([first], blocks),
    output_signature={
      name: tf.TensorSpec((None, *array.shape[1:]), array.dtype)
      for name, array in first.items()
    },
  ).prefetch(1)


def read(
  examples: Examples,
  dtypes: Mapping[str, type],
  blocks: Iterator[Block],
  transform: KeyedTransform,
) -> Iterator[Batch]:
  """Reads with a tf.data pipeline; see `arrays.Read`."""
  first = next(blocks, None)
  if first is None:
    return iter(())
  tensors = {name: tf.constant(array) for name, array in examples.items()}

  @tf.autograph.experimental.do_not_convert  # It has nothing to convert.
  def batch(slots: dict[str, Any]) -> dict[str, Any]:
    """The batches of all workers at a step."""
    lead, key = slots['index'].shape, slots.get('key')
    index = tf.reshape(slots['index'], [-1])
    flat = {
      name: tf.cast(tf.gather(tensor, index), dtypes.get(name, tensor.dtype))
      for name, tensor in tensors.items()
    }
    flat = transform(flat, None if key is None else tf.reshape(key, [-1]))
    batch = {k: tf.reshape(v, lead + v.shape[1:]) for k, v in flat.items()}
    return batch | {'mask': slots['mask']}

  return (
    slots(itertools.chain([first], blocks))
    .unbatch()
    .map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    .prefetch(2)
    .as_numpy_iterator()
  )
